"""Which clusters a workload chooses from: those where it stands, and the best at the prices of room."""

from __future__ import annotations

import numpy as np

from rebalancer.core.placement.compiled import B1, BIG, F32, F64, I32, I64, Jobs, Near, Sites, compiled, inner
from rebalancer.core.placement.problem import MAY_STAY, MUST_STAY, Ints, Problem

CHOICES = 10
"""Beside those with replicas; 16 of 20 clusters took twice the time and came out no cheaper (bench-placement)."""
FULL = 1e9
"""Ranks a cluster without room behind all that have some; above every cost, and small enough to keep their order."""


@inner
def serve(w: int, o: int, c: int, origin: I64, distance: F64, reach: F64, row: I64, site: F64, weight: F64) -> float:
    """$/h of serving one replica equivalent of origin o from cluster c; o < 0 leaves the way from the users out."""
    cost = reach[w] * distance[origin[w, o], c] if o >= 0 else 0.0
    for t in range(row.shape[1]):
        if row[w, t] >= 0:
            cost += weight[w, t] * site[row[w, t], c]
    return cost


@compiled
def count(now: I32, add: I32, state: np.ndarray, most: int) -> I64:
    """Row bounds of the lists: as many clusters as are usable, at most `most` beside those with replicas."""
    workloads, clusters = now.shape
    first = np.zeros(workloads + 1, np.int64)
    for w in range(workloads):
        held, usable = 0, 0
        for c in range(clusters):
            if now[w, c] > 0 and state[w, c] & MAY_STAY:
                held += 1
            elif add[w, c] > 0:
                usable += 1
        first[w + 1] = first[w] + held + min(usable, max(most - held, most // 2))
    return first


@compiled
def choose(
    first: I64, now: I32, add: I32, state: np.ndarray, run: F32, demand: F64, origin: I64, distance: F64, reach: F64,
    row: I64, site: F64, weight: F64, cpu: F64, memory: F64, price: F64, left: F64, cluster: I32,
) -> None:  # fmt: skip
    """Fills the lists: clusters with replicas, then round robin the best of each origin and the best of all.

    In the second half those come first that have room for a replica now, whatever the prices say of it: where most
    others stay as they are, the best clusters may all be full, and a replica more would drive others out.
    """
    workloads, clusters = now.shape
    origins = demand.shape[1]
    own = np.empty((origins + 1, clusters))
    used, fits = np.empty(clusters, np.bool_), np.empty(clusters, np.bool_)
    for w in range(workloads):
        e, end = first[w], first[w + 1]
        total = max(np.sum(demand[w]), 1e-12)
        for c in range(clusters):
            used[c] = now[w, c] > 0 and state[w, c] & MAY_STAY > 0
            if used[c]:
                cluster[e] = c
                e += 1
            base = run[w, c] + price[0, c] * cpu[w] + price[1, c] * memory[w] + price[2, c]
            base += serve(w, -1, c, origin, distance, reach, row, site, weight)
            own[origins, c] = base
            for o in range(origins):
                way = reach[w] * distance[origin[w, o], c]
                own[o, c] = base + way
                own[origins, c] += way * demand[w, o] / total
            fits[c] = left[0, c] >= cpu[w] and left[1, c] >= memory[w] and left[2, c] >= 1
        turn, half = 0, (e + end) // 2
        while e < end:
            o = turn % (origins + 1)
            turn += 1
            if o < origins and demand[w, o] <= 0:
                continue
            best, least = -1, BIG
            for c in range(clusters):
                cost = own[o, c] + (FULL if e >= half and not fits[c] else 0.0)
                if not used[c] and add[w, c] > 0 and cost < least:
                    best, least = c, cost
            cluster[e] = best
            used[best] = True
            e += 1


@compiled
def fill(
    first: I64, cluster: I32, now: I32, add: I32, state: np.ndarray, run: F32, demand: F64, origin: I64, distance: F64,
    reach: F64, row: I64, site: F64, weight: F64, cluster_max: I64, floor: I64, replicas: I64,
    out: tuple[F32, F32, I32, B1, I32, I32],
) -> None:  # fmt: skip
    """Fills what the kernels read of each listed cluster."""
    near_run, near_serve, stay, fixed, new, low = out
    for w in range(first.shape[0] - 1):
        for e in range(first[w], first[w + 1]):
            c = cluster[e]
            near_run[e] = run[w, c]
            fixed[e] = state[w, c] & MUST_STAY > 0
            here = now[w, c] if state[w, c] & MAY_STAY else 0
            stay[e] = here if fixed[e] else min(here, cluster_max[w])
            new[e] = 0 if fixed[e] else max(0, min(add[w, c], cluster_max[w] - stay[e]))
            low[e] = 0 if fixed[e] else min(floor[w], stay[e] + new[e])
            beside = serve(w, -1, c, origin, distance, reach, row, site, weight)
            for o in range(demand.shape[1]):
                near_serve[e, o] = beside + reach[w] * distance[origin[w, o], c] if demand[w, o] > 0 else 0.0


@compiled
def beyond(
    first: I64, cluster: I32, add: I32, run: F32, demand: F64, origin: I64, distance: F64, reach: F64, row: I64,
    site: F64, weight: F64, cpu: F64, memory: F64, start: F64, price: F64, out: F64,
) -> None:  # fmt: skip
    """The least $/h of a new replica equivalent in any cluster that is not listed, into `out` (W, O + 1).

    The last column is for an idle one; BIG where every usable cluster is listed.
    """
    clusters, origins = add.shape[1], demand.shape[1]
    listed = np.empty(clusters, np.bool_)
    for w in range(out.shape[0]):
        listed[:] = False
        for e in range(first[w], first[w + 1]):
            listed[cluster[e]] = True
        out[w, :] = BIG
        for c in range(clusters):
            if listed[c] or add[w, c] <= 0:
                continue
            cost = run[w, c] + start[w] + price[0, c] * cpu[w] + price[1, c] * memory[w] + price[2, c]
            out[w, origins] = min(out[w, origins], cost)
            cost += serve(w, -1, c, origin, distance, reach, row, site, weight)
            for o in range(origins):
                out[w, o] = min(out[w, o], cost + reach[w] * distance[origin[w, o], c])


def beyond_of(problem: Problem, near: Near, price: F64) -> F64:
    """(W, O + 1) as `beyond` fills it."""
    p = problem
    out = np.empty((p.size, p.demand.shape[1] + 1))
    beyond(
        near.first, near.cluster, p.add, p.run, p.demand, p.origin, p.distance, p.reach, p.site_row, p.site,
        p.site_weight, p.cpu, p.memory, p.start, price, out,
    )  # fmt: skip
    return out


def jobs_of(problem: Problem) -> Jobs:
    """The workloads as the kernels see them."""
    p = problem
    return Jobs(
        p.replicas, p.demand, p.cpu, p.memory, p.unplaced, p.start, p.stop, p.budget, p.min_clusters, p.min_regions,
        p.share, p.spot_max, p.peak, p.gang, p.leaving,
    )  # fmt: skip


def sites_of(problem: Problem) -> Sites:
    """The clusters as the kernels see them."""
    return Sites(problem.region, problem.spot)


def near_of(problem: Problem, price: F64, most: int = CHOICES, *, left: F64 | None = None) -> Near:
    """The clusters to choose from at given prices.

    Args:
        problem: the fleet.
        price: (3, C).
        most: how many, those with replicas included where they are fewer.
        left: (3, C) what is free where everything stays as it is; None where prices alone decide.
    """
    p = problem
    free = np.full(price.shape, BIG) if left is None else left
    first = count(p.now, p.add, p.state, most)
    cluster = np.empty(first[-1], np.int32)
    choose(
        first, p.now, p.add, p.state, p.run, p.demand, p.origin, p.distance, p.reach, p.site_row, p.site,
        p.site_weight, p.cpu, p.memory, price, free, cluster,
    )  # fmt: skip
    n, origins = len(cluster), p.demand.shape[1]
    run, ways, stay = np.empty(n, np.float32), np.empty((n, origins), np.float32), np.empty(n, np.int32)
    fixed, new, low = np.empty(n, np.bool_), np.empty(n, np.int32), np.empty(n, np.int32)
    fill(
        first, cluster, p.now, p.add, p.state, p.run, p.demand, p.origin, p.distance, p.reach, p.site_row, p.site,
        p.site_weight, p.cluster_max, p.floor, p.replicas, (run, ways, stay, fixed, new, low),
    )  # fmt: skip
    return Near(first, cluster, run, ways, stay, fixed, new, low)


def owner_of(near: Near) -> Ints:
    """(entries,) whose each entry is: the workload's row."""
    return np.repeat(np.arange(len(near.first) - 1), np.diff(near.first))
