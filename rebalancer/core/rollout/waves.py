"""Which clusters begin together, and how many canary pods a weight means."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rebalancer.core.rollout.model import Batch, Wave


def canary_replicas(stable: int, weight: int) -> int:
    """Canary pods beside `stable` pods so that at least `weight` percent of all pods are canaries.

    Stable keeps its full number until promotion, so c = n w / (100 - w), rounded up, at least 1. A canary never gets
    larger than stable: from 50 percent on it has the full capacity, and its share reaches 100 percent only when
    promotion rolls the stable pods.

    Returns:
        0 where stable has no pods or the weight is 0.
    """
    if stable <= 0 or weight <= 0:
        return 0
    if weight >= 50:
        return stable
    return max(1, math.ceil(stable * weight / (100 - weight)))


def actual_weight(canary_ready: int, stable_ready: int) -> float | None:
    """Share of ready pods that are canaries, in percent; None when no pod is ready."""
    total = canary_ready + stable_ready
    return round(100.0 * canary_ready / total, 1) if total else None


def _at_a_time(limit: int | str | None, clusters: int) -> int:
    if limit is None:
        return max(1, clusters)
    if isinstance(limit, str):
        return max(1, math.ceil(clusters * float(limit.rstrip("%")) / 100.0))
    return max(1, limit)


def batches(waves: Sequence[Wave], labels: Mapping[str, Mapping[str, str]]) -> tuple[Batch, ...]:
    """Cuts the waves into batches; a cluster belongs to the first wave that has it.

    Args:
        waves: empty is one wave with all clusters.
        labels: of every cluster that has the workload.
    """
    out: list[Batch] = []
    left = dict(labels)
    for wave in waves or (Wave("all"),):
        every = not wave.clusters and not wave.labels
        chosen = [c for c in wave.clusters if c in left]
        chosen += [
            c
            for c in sorted(left)
            if c not in chosen and (every or (wave.labels and wave.labels.items() <= left[c].items()))
        ]
        for c in chosen:
            del left[c]
        size = _at_a_time(wave.max_concurrent, len(chosen))
        out += [Batch(wave.name, tuple(chosen[i : i + size]), wave.bake_s) for i in range(0, len(chosen), max(1, size))]
    return tuple(out)
