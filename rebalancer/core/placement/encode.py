"""Items to arrays and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rebalancer.core.model import GIB
from rebalancer.core.placement.items import (
    AMORTISATION_H,
    MOVE_DOLLARS,
    REMOVE_DOLLARS,
    SPREAD_DOLLARS,
    TIE_DOLLARS,
    UNSERVED_DOLLARS,
    Item,
    Placed,
    add_limit,
    floor_of,
    held,
    share_limit,
    total_of,
    unplaced_dollars,
    ways,
)
from rebalancer.core.placement.problem import MAY_STAY, MUST_STAY, UNBOUND, Floats, Problem, Small
from rebalancer.core.placement.traffic import best


def clusters_of(items: Sequence[Item]) -> tuple[str, ...]:
    """All clusters that anybody may use, by name."""
    return tuple(sorted({c for i in items for c in i.clusters}))


def capacity_of(
    clusters: Sequence[str], free_cpu: Mapping[str, float], free_memory: Mapping[str, float], adds: Mapping[str, float]
) -> Floats:
    """(3, C) cores, GiB and additions; what is missing does not bind."""
    rows = ((free_cpu, 1.0), (free_memory, GIB), (adds, 1.0))
    return np.array([[max(0.0, min(UNBOUND, free.get(c, UNBOUND * unit) / unit)) for c in clusters]
                     for free, unit in rows])  # fmt: skip


def encode(items: Sequence[Item], clusters: Sequence[str], capacity: Floats) -> Problem:
    """Turns items into a problem.

    Args:
        items: workloads; the demand of each sums to at most its replicas.
        clusters: as from `clusters_of`.
        capacity: as from `capacity_of`; with what the items that give room use.
    """
    at = {c: i for i, c in enumerate(clusters)}
    count, width = len(items), max((len(i.demand) for i in items), default=1) or 1
    demand, origin = np.zeros((count, width)), np.zeros((count, width), np.int64)
    run, now = np.zeros((count, len(at)), np.float32), np.zeros((count, len(at)), np.int32)
    add, state = np.zeros((count, len(at)), np.int32), np.zeros((count, len(at)), np.int8)
    rows: dict[tuple[float, ...], int] = {(0.0,) * len(at): 0}
    for w, item in enumerate(items):
        total = total_of(item)
        for o, (name, amount) in enumerate(item.demand.items()):
            way = ways(item, name)
            row = tuple(way.get(c, 0.0) for c in clusters)
            origin[w, o], demand[w, o] = rows.setdefault(row, len(rows)), amount
        for i, c in enumerate(item.clusters):
            j = at[c]
            run[w, j], now[w, j] = item.run.get(c, 0.0) + TIE_DOLLARS * i, item.now.get(c, 0)
            if c in item.frozen:
                state[w, j] = MAY_STAY | MUST_STAY
            elif c not in item.leave:
                state[w, j], add[w, j] = MAY_STAY, max(0, min(item.add_max.get(c, 0), total))
    totals = np.array([total_of(i) for i in items], np.int64)
    region = {r: n for n, r in enumerate(sorted({i.regions.get(c, c) for i in items for c in i.clusters}))}
    spots = {c for i in items for c in i.spot}

    def ints(values: list[int]) -> np.ndarray:
        return np.array(values, np.int64)

    def floats(values: list[float]) -> Floats:
        return np.array(values, np.float64)

    return Problem(
        replicas=totals, demand=demand, origin=origin, distance=np.array(list(rows)), reach=np.ones(count),
        site_row=np.full((count, 1), -1, np.int64), site=np.zeros((1, len(at))), site_weight=np.zeros((count, 1)),
        run=run, now=now, add=add, state=state,
        cpu=floats([i.cpu for i in items]), memory=floats([i.memory / GIB for i in items]),
        unplaced=floats([unplaced_dollars(i) for i in items]),
        start=np.full(count, MOVE_DOLLARS / AMORTISATION_H), stop=np.full(count, REMOVE_DOLLARS / AMORTISATION_H),
        budget=floats([add_limit(i) for i in items]),
        min_clusters=ints([i.min_clusters for i in items]), min_regions=ints([i.min_regions for i in items]),
        share=ints([share_limit(i, total_of(i)) for i in items]),
        cluster_max=ints([total_of(i) if i.cluster_max is None else i.cluster_max for i in items]),
        spot_max=ints([max(0, int(i.spot_max_share * total_of(i) + 1e-9) - held(i, i.spot)) for i in items]),
        floor=ints([floor_of(i) for i in items]),
        peak=floats([i.spread_weight * SPREAD_DOLLARS * len(i.clusters) for i in items]),
        gang=ints([i.gang for i in items]),
        region=ints([region[next((i.regions.get(c, c) for i in items if c in i.clusters), c)] for c in clusters]),
        spot=np.array([c in spots for c in clusters], np.bool_), capacity=capacity,
        leaving=np.array([i.gives for i in items], np.bool_),
    )  # fmt: skip


def decode(items: Sequence[Item], clusters: Sequence[str], plan: Small, out: np.ndarray) -> dict[str, Placed]:
    """The plan of each workload, with how its traffic is served best."""
    at = {c: i for i, c in enumerate(clusters)}
    result = {}
    for w, item in enumerate(items):
        row = plan[w].tolist()
        result[item.workload] = placed(item, {c: row[at[c]] for c in item.clusters}, int(out[w]))
    return result


def placed(item: Item, replicas: Mapping[str, int], out: int) -> Placed:
    """Replicas with their traffic."""
    there = [c for c, n in replicas.items() if n > 0]
    serve = {(o, c): item.serve[o, c] for o in item.demand for c in there if (o, c) in item.serve}
    for origin in {o for o in item.demand for c in there if (o, c) not in serve}:
        serve |= {(origin, c): way for c, way in ways(item, origin).items()}
    traffic = best(item.demand, replicas, serve, UNSERVED_DOLLARS)
    return Placed(dict(replicas), traffic, out, max(0.0, sum(item.demand.values()) - sum(traffic.values())))
