"""A whole fleet as arrays: what the large solver takes, and what a plan of it costs in resources."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Small = npt.NDArray[np.int32]

UNBOUND = 1e30
"""Capacity of what does not bind."""
MAY_STAY, MUST_STAY = 1, 2


@dataclass(frozen=True, slots=True)
class Problem:
    """W workloads, C clusters, O origins per workload; costs in $/h or their equivalent, memory in GiB.

    Serving one replica equivalent of origin o of workload w from cluster c costs
    reach[w] * distance[origin[w, o], c] + sum over t of site_weight[w, t] * site[site_row[w, t], c].

    Attributes:
        replicas: (W,) wanted in total, at least what must stay.
        demand: (W, O) replica equivalents; each row sums to at most `replicas`.
        origin: (W, O) rows of `distance`.
        distance: (R, C), for example round trips in ms. reach: (W,) $/h per unit of it.
        site_row: (W, T) rows of `site`; -1 is none. site: (S, C) costs by cluster alone: distance to data, to what is
            called, egress. site_weight: (W, T).
        run: (W, C) $/h per replica.
        now: (W, C) replicas. add: (W, C) most new ones; 0 bars a cluster.
        state: (W, C) MAY_STAY, MAY_STAY | MUST_STAY, or 0 where replicas have to leave.
        cpu, memory: (W,) cores and GiB per replica.
        unplaced, start, stop: (W,) $/h per replica without a place, added, removed.
        budget: (W,) most replicas added.
        min_clusters, min_regions: (W,) spread. share: (W,) most in one cluster. Missing these costs SHORTFALL_DOLLARS.
        cluster_max, spot_max: (W,) bounds that hold. floor: (W,) fewest per cluster, as spread.
        peak: (W,) $/h per replica of the largest cluster.
        gang: (W,) fewest that may start, all in one cluster; 0 is no gang.
        region: (C,) index. spot: (C,) whether it may vanish.
        capacity: (3, C) cores, GiB and additions; UNBOUND where none is known to bind.
        leaving: (W,) whether replicas that leave make room. True plans where a workload should stand, with `capacity`
            all that is there for those like it, what they use included; False what may start in room that is free.
    """

    replicas: Ints
    demand: Floats
    origin: Ints
    distance: Floats
    reach: Floats
    site_row: Ints
    site: Floats
    site_weight: Floats
    run: npt.NDArray[np.float32]
    now: Small
    add: Small
    state: npt.NDArray[np.int8]
    cpu: Floats
    memory: Floats
    unplaced: Floats
    start: Floats
    stop: Floats
    budget: Floats
    min_clusters: Ints
    min_regions: Ints
    share: Ints
    cluster_max: Ints
    spot_max: Ints
    floor: Ints
    peak: Floats
    gang: Ints
    region: Ints
    spot: npt.NDArray[np.bool_]
    capacity: Floats
    leaving: npt.NDArray[np.bool_]

    @property
    def size(self) -> int:
        """Number of workloads."""
        return len(self.replicas)

    def tidy(self) -> Problem:
        """Returns it with every array laid out row by row, as the kernels were compiled for."""
        return Problem(**{f.name: np.ascontiguousarray(getattr(self, f.name)) for f in fields(self)})

    def rows(self, which: Ints, capacity: Floats) -> Problem:
        """Returns the problem of some workloads within a given capacity."""
        shared = ("distance", "site", "region", "spot", "capacity")
        parts = {f.name: getattr(self, f.name)[which] for f in fields(self) if f.name not in shared}
        return replace(self, **parts, capacity=capacity)

    def use(self, plan: Small) -> Floats:
        """What a plan takes of the capacity.

        Args:
            plan: (W, C) replicas.

        Returns:
            (3, C) cores, GiB and additions; what must stay is not counted, it takes the same in every plan.
        """
        free = (self.state & MUST_STAY) == 0
        staying = np.where(self.state & MAY_STAY, self.now, 0)
        added = np.where(free, np.maximum(plan - staying, 0), 0)
        counted = np.where(self.leaving[:, None], np.where(free, plan, 0), added)
        return np.stack([self.cpu @ counted, self.memory @ counted, added.sum(axis=0, dtype=np.float64)])


def violations(problem: Problem, plan: Small) -> dict[str, int]:
    """Counts by kind where a plan breaks what must hold; spread and shares are asked for, not enforced.

    Args:
        problem: the fleet.
        plan: (W, C) replicas.

    Returns:
        capacity and cluster_churn in clusters, the others in workloads or replicas; all 0 in a good plan.
    """
    must = (problem.state & MUST_STAY) > 0
    may = (problem.state & MAY_STAY) > 0
    staying = np.where(may, problem.now, 0)
    over = problem.use(plan) > problem.capacity * (1 + 1e-9) + 1e-6
    added = np.maximum(plan - staying, 0)
    total = plan.sum(axis=1)
    gangs = problem.gang > 0
    started = gangs & (added.sum(axis=1) > 0)
    split = started & (((plan > 0).sum(axis=1) > 1) | (total < np.minimum(problem.gang, problem.replicas)))
    spot = np.where(must, 0, plan)[:, problem.spot].sum(axis=1)
    return {
        "capacity": int((over[0] | over[1]).sum()),
        "cluster_churn": int(over[2].sum()),
        "barred": int(np.maximum(added - problem.add, 0)[~must].sum() + (added * must).sum()),
        "must_stay": int((np.where(must, plan - problem.now, 0) != 0).sum()),
        "churn": int((np.where(must, 0, added).sum(axis=1) > problem.budget + 1e-9).sum()),
        "gang": int(split.sum()),
        "cluster_max": int(((plan > problem.cluster_max[:, None]) & ~must).sum()),
        "spot": int((spot > problem.spot_max).sum()),
        "too_many": int(np.maximum(total - problem.replicas, 0).sum()),
        "spread": int(((plan > 0).sum(axis=1) < np.minimum(problem.min_clusters, total)).sum()),
    }
