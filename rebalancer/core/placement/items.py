"""What is placed and what comes out: workloads as the solvers take them, and the dollars that they weigh."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from rebalancer.core.model import Shadow as Shadow

LATENCY_DOLLARS = 0.001
"""What one millisecond costs per replica equivalent and hour at weight 1: 100 ms weigh as much as about two cores."""
MOVE_DOLLARS = 0.02
"""One-off cost of starting a replica elsewhere; over the horizon of 2 h it is worth 10 ms of latency."""
REMOVE_DOLLARS = 0.005
AMORTISATION_H = 2.0
UNPLACED_DOLLARS = 100.0
UNSERVED_DOLLARS = 50.0
SHORTFALL_DOLLARS = 50.0
"""For each replica, cluster or region by which spread or a cluster's minimum is missed."""
SPREAD_DOLLARS = 0.02
TIE_DOLLARS = 1e-7


@dataclass(frozen=True, slots=True)
class Item:
    """One workload to place.

    Attributes:
        workload: its key.
        replicas: wanted in total.
        demand: origin -> demand in replica equivalents.
        clusters: candidates; all mappings below are by these.
        now: replicas there now.
        serve: (origin, cluster) -> dollars per replica equivalent and hour; missing where unknown.
        run: cluster -> dollars per replica and hour.
        add_max: cluster -> how many new replicas may go there; 0 where it may receive none.
        frozen: clusters whose replicas are neither added nor removed.
        leave: clusters that must be emptied.
        cpu: cores per replica.
        memory: bytes per replica.
        regions: cluster -> region.
        spot: clusters that may vanish.
        roomless: clusters that would take more new replicas than `add_max` if they had room.
        gang: fewest replicas that may start, all in one cluster; 0 is no gang.
        gives: whether the room that its replicas leave is counted on; it then takes room with all that it has, and the
            room that is given has to contain it.
    """

    workload: str
    replicas: int
    demand: Mapping[str, float]
    clusters: tuple[str, ...]
    now: Mapping[str, int]
    serve: Mapping[tuple[str, str], float]
    run: Mapping[str, float]
    add_max: Mapping[str, int]
    frozen: frozenset[str] = frozenset()
    leave: frozenset[str] = frozenset()
    cpu: float = 0.0
    memory: float = 0.0
    regions: Mapping[str, str] = field(default_factory=dict)
    spot: frozenset[str] = frozenset()
    priority: int = 0
    cluster_min: int = 0
    cluster_max: int | None = None
    min_clusters: int = 1
    min_regions: int = 1
    max_share: float = 1.0
    spot_max_share: float = 1.0
    spread_weight: float = 0.0
    max_exchanges: int | None = None
    roomless: frozenset[str] = frozenset()
    gang: int = 0
    gives: bool = False


@dataclass(frozen=True, slots=True)
class Placed:
    """What the program found for one workload.

    Attributes:
        replicas: by cluster.
        traffic: (origin, cluster) -> replica equivalents served there.
        unplaced: replicas without a place.
        unserved: replica equivalents of demand that nobody serves.
    """

    replicas: Mapping[str, int]
    traffic: Mapping[tuple[str, str], float]
    unplaced: int
    unserved: float


@dataclass(frozen=True, slots=True)
class Solution:
    """All workloads placed.

    Attributes:
        items: by workload.
        gap_ratio: how far the plan costs more than the proven bound at most; NaN if unknown.
        cost, bound: $/h of the plan, and what no plan is below; NaN if unknown.
        shadow: cluster -> what its room is worth; empty if unknown.
        unsolved: workload -> what the solver said; such a workload is given as it stands.
    """

    items: Mapping[str, Placed]
    gap_ratio: float
    cost: float = math.nan
    bound: float = math.nan
    shadow: Mapping[str, Shadow] = field(default_factory=dict)
    unsolved: Mapping[str, str] = field(default_factory=dict)


def held(item: Item, where: Collection[str]) -> int:
    """Replicas in frozen clusters among some."""
    return sum(item.now.get(c, 0) for c in item.frozen if c in where)


def total_of(item: Item) -> int:
    """Replicas in total: what is wanted, or what may not be touched where that is more."""
    return max(item.replicas, held(item, item.frozen))


def add_limit(item: Item) -> int:
    """Most replicas that may start: growth, what must leave, and the exchanges of the budget."""
    total = total_of(item)
    if item.max_exchanges is None:
        return total
    stays = sum(item.now.get(c, 0) for c in item.clusters if c not in item.leave)
    forced = sum(item.now.get(c, 0) for c in item.leave - item.frozen)
    return max(0, total - stays - forced) + forced + item.max_exchanges


def floor_of(item: Item) -> int:
    """Fewest replicas per cluster; 0 where the total is too small for all clusters."""
    return item.cluster_min if item.cluster_min * len(item.clusters) <= total_of(item) else 0


def ways(item: Item, origin: str) -> dict[str, float]:
    """Cluster -> $/h of serving a replica equivalent of an origin.

    A frozen cluster with an unknown distance still serves somebody; it counts as the mean of what is known.
    """
    known = [item.serve[origin, c] for c in item.clusters if (origin, c) in item.serve]
    typical = sum(known) / len(known) if known else 0.0
    return {c: item.serve.get((origin, c), typical) for c in item.clusters}


def share_limit(item: Item, total: int) -> int:
    """Most replicas in one cluster by the policy's maximum share; one is always allowed."""
    return max(1, math.floor(item.max_share * total + 1e-9))


def unplaced_dollars(item: Item) -> float:
    """$/h of a replica without a place."""
    return UNPLACED_DOLLARS * float(2.0 ** (item.priority / 100.0))


def shortfall(item: Item, replicas: Mapping[str, int]) -> int:
    """Counts by how much a placement misses the policy's bounds and spread: replicas, clusters and regions."""
    total = sum(replicas.values())
    used = {c for c, n in replicas.items() if n > 0}
    missed = max(0, min(item.min_clusters, total) - len(used))
    missed += max(0, min(item.min_regions, total) - len({item.regions.get(c, c) for c in used}))
    missed += max(0, sum(replicas.get(c, 0) for c in item.spot) - math.floor(item.spot_max_share * total + 1e-9))
    high = total if item.cluster_max is None else item.cluster_max
    high = min(high, share_limit(item, total)) if item.max_share < 1.0 else high
    missed += sum(max(0, n - high) for n in replicas.values())
    if item.cluster_min * len(item.clusters) <= total:
        for c in sorted(set(item.clusters) - item.frozen - item.leave):
            missed += max(0, min(item.cluster_min, item.now.get(c, 0) + item.add_max.get(c, 0)) - replicas.get(c, 0))
    return missed
