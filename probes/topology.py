"""Which of all targets one agent probes: everybody in a small fleet, one cluster per region in a big one. Pure.

A full mesh of n clusters is n^2 paths. Beyond 200 clusters each region has a representative and a standby:
representatives probe each other and the clusters of their region, standbys do the same among themselves, the others
probe only these two. So a region whose representative dies is still measured from everywhere. What was not measured
between two clusters is inherited from their regions' pair in the latency map. Every agent finds the same
representatives from the same list, without asking anybody.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterable

from probes.targets import Target

FULL_MESH_CLUSTERS = 200
"""Clusters up to which all probe all: 199 peers at one probe a second are 3 to 5 % of a core."""


def weight(*parts: str) -> int:
    """Returns the rendezvous weight of a candidate for a purpose: the same everywhere, evenly spread."""
    return int.from_bytes(hashlib.sha256("\0".join(parts).encode()).digest()[:8], "big")


def representatives(regions: Iterable[tuple[str, str]]) -> dict[str, tuple[str, str]]:
    """Returns region -> (its representative, its standby); a cluster without a region represents itself.

    Args:
        regions: (cluster, region) of every candidate; the only one of a region is both.
    """
    candidates: dict[str, list[tuple[int, str]]] = {}
    for cluster, region in regions:
        key = region or f"\0{cluster}"
        candidates.setdefault(key, []).append((weight(key, cluster), cluster))
    ranked = {key: heapq.nlargest(2, found) for key, found in candidates.items()}
    return {key: (found[0][1], found[-1][1]) for key, found in ranked.items()}


def choose(targets: Iterable[Target], cluster: str, region: str, limit: int = FULL_MESH_CLUSTERS) -> list[Target]:
    """Returns the targets that the agent of a cluster probes, in their order.

    Args:
        targets: the whole list; entries of the own cluster are left out of the answer.
        cluster: own cluster.
        region: own region.
        limit: clusters, the own one included, up to which all are probed.
    """
    everybody = list(targets)
    others = [target for target in everybody if target.cluster != cluster]
    names = {cluster, *(target.cluster for target in others)}
    if len(names) <= limit:
        return others
    # A cluster under maintenance represents nobody, as long as its region has another.
    whole = {(target.cluster, target.region) for target in others} | {(cluster, region)}
    resting = {target.cluster for target in everybody if target.draining}
    chosen = {**representatives(whole), **representatives(pair for pair in whole if pair[0] not in resting)}
    probed = set(chosen[region or f"\0{cluster}"])
    for speakers in ({first for first, _ in chosen.values()}, {second for _, second in chosen.values()}):
        if cluster in speakers:
            probed |= speakers | {target.cluster for target in others if target.region == region}
    return [target for target in others if target.cluster in probed]
