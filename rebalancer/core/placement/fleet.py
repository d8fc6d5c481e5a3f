"""The door to both solvers: exact for small fleets, by prices for large ones, and only what changed when little did."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import numpy as np

from rebalancer.core.placement.encode import capacity_of, clusters_of, decode, encode
from rebalancer.core.placement.exact import SMALL_FLEET, solve_exactly
from rebalancer.core.placement.items import Item, Shadow, Solution
from rebalancer.core.placement.problem import Floats, Ints, Problem, Small

if TYPE_CHECKING:
    from rebalancer.core.placement.prices import Solved

CHANGED_RATIO = 0.25
"""From this share of changed workloads on, everything is planned anew."""
DRIFT = 0.005
"""So much further from the bound than the last plan of all, as a ratio, everything is planned anew as well."""
HELPERS_EACH, HELPERS = 3, 150
"""So many others may make room for each workload that changed, and so many at most: large fleets gain nothing by it."""
SAME_DEMAND = 0.05
"""Demand this close to what it was planned for, as a share of its replicas, counts as the same: noise moves nothing."""


@dataclass(frozen=True, slots=True)
class Warm:
    """What the last cycle knew of a large fleet: a cache, which may be lost at the cost of time only.

    Attributes:
        workloads, clusters: names by row and column.
        problem, plan, out: what was asked and answered; demand is what each workload was last planned for.
        price: (3, C) prices of room.
        cost, least: (W,) $/h of each plan, and the least at the prices.
        gap_ratio: how far the last plan of all workloads was above the bound.
    """

    workloads: tuple[str, ...]
    clusters: tuple[str, ...]
    problem: Problem
    plan: Small
    out: Ints
    price: Floats
    cost: Floats
    least: Floats
    gap_ratio: float


def joint(count: int, *, kernels: bool) -> bool:
    """Whether so many workloads are solved in one piece, so that one may count on the room that another leaves."""
    return count <= SMALL_FLEET or kernels


def solve(
    items: Sequence[Item],
    free_cpu: Mapping[str, float],
    free_memory: Mapping[str, float],
    adds: Mapping[str, float] | None = None,
    *,
    kernels: bool = False,
    warm: Warm | None = None,
    seed: int = 0,
    refine: bool = True,
) -> tuple[Solution, Warm | None]:
    """Places all workloads.

    Args:
        items: workloads.
        free_cpu: cluster -> free cores; a cluster that is missing does not bind.
        free_memory: cluster -> free bytes, likewise.
        adds: cluster -> most replicas that may be added in this cycle, likewise.
        kernels: whether the compiled solver may be used; without it a large fleet is solved in exact batches.
        warm: what the last call returned.
        seed: decides the order in which the large solver looks at workloads.
        refine: whether the prices of `warm` are iterated further; not needed for a step towards the plan that they
            belong to.

    Returns:
        (the placement, what the next call may start from). The same arguments give the same placement.
    """
    if not items:
        return Solution({}, 0.0, 0.0, 0.0), None
    if len(items) <= SMALL_FLEET or not kernels:
        return solve_exactly(items, free_cpu, free_memory, adds or {}), None
    ordered = sorted(items, key=lambda i: i.workload)
    clusters = clusters_of(ordered)
    problem = encode(ordered, clusters, capacity_of(clusters, free_cpu, free_memory, adds or {}))
    names = tuple(i.workload for i in ordered)
    found = _solve(problem, names, clusters, warm, seed, refine=refine)
    return _solution(ordered, found), found


def _solve(
    problem: Problem, names: tuple[str, ...], clusters: tuple[str, ...], warm: Warm | None, seed: int, *,
    refine: bool = True,
) -> Warm:  # fmt: skip
    # Imports numba, which a small fleet never needs.
    from rebalancer.core.placement.prices import DRIFTED, solve_all

    if warm is None or warm.clusters != clusters:
        return _of_all(problem, names, clusters, solve_all(problem, seed=seed))
    changed = changes(problem, names, warm)
    many = changed.mean() > CHANGED_RATIO
    if not many:
        some = _some(problem, names, warm, changed, seed)
        if gap_of(some) <= warm.gap_ratio + DRIFT:
            return some
    found = solve_all(
        problem, price=warm.price, start=problem.now, seed=seed, dual=refine, reluctance=1.0 if many else DRIFTED
    )
    return _of_all(problem, names, clusters, found)


def _of_all(problem: Problem, names: tuple[str, ...], clusters: tuple[str, ...], found: Solved) -> Warm:
    return Warm(
        names, clusters, problem, found.plan, found.out, found.price, found.cost, found.least, max(0.0, found.gap_ratio)
    )


def _some(problem: Problem, names: tuple[str, ...], warm: Warm, changed: np.ndarray, seed: int) -> Warm:
    """Plans what changed, and others who can make room for it; the rest keeps its plan."""
    from rebalancer.core.placement.prices import solve_some, who_makes_room

    row = {name: i for i, name in enumerate(warm.workloads)}
    old = np.array([row.get(name, 0) for name in names])
    plan, out = warm.plan[old], warm.out[old]
    cost, least = warm.cost[old], warm.least[old]
    active = np.flatnonzero(changed)
    if len(active):
        helpers = min(HELPERS_EACH * len(active), HELPERS)
        active = who_makes_room(problem, active, plan, warm.price, helpers)
        found = solve_some(problem, active, plan, warm.price, seed)
        plan[active], out[active] = found.plan, found.out
        cost[active], least[active] = found.cost, found.least
    # What was not planned again is compared with what it was planned for, or slow growth would never be seen.
    demand = problem.demand.copy()
    same = np.setdiff1d(np.arange(len(names)), active)
    demand[same] = warm.problem.demand[old[same]]
    problem = replace(problem, demand=demand)
    return Warm(names, warm.clusters, problem, plan, out, warm.price, cost, least, warm.gap_ratio)


def gap_of(found: Warm) -> float:
    """How far the plan is above the bound at its prices, as a ratio."""
    # Imports numba, see above.
    from rebalancer.core.placement.duality import dual_value

    bound = dual_value(found.problem, found.price, found.least)
    return (float(found.cost.sum()) - bound) / max(abs(bound), 1e-9)


def changes(problem: Problem, names: Sequence[str], warm: Warm) -> np.ndarray:
    """(W,) which workloads are to be planned again: new ones, changed ones, and those whose plan no longer fits."""
    row = {name: i for i, name in enumerate(warm.workloads)}
    old = np.array([row.get(name, -1) for name in names])
    result = old < 0
    old = np.maximum(old, 0)
    if problem.demand.shape[1] != warm.problem.demand.shape[1]:
        return np.ones(len(names), np.bool_)
    before = warm.problem.rows(old, warm.problem.capacity)
    loose = ("demand", "origin", "distance", "site", "site_row", "region", "spot", "capacity", "add")
    for name in (f.name for f in fields(problem) if f.name not in loose):
        mine, theirs = getattr(problem, name), getattr(before, name)
        whole = np.issubdtype(mine.dtype, np.integer)
        differs = mine != theirs if whole else ~np.isclose(mine, theirs, rtol=1e-6, atol=1e-9)
        result |= differs.reshape(len(names), -1).any(axis=1)
    slack = SAME_DEMAND * np.maximum(problem.replicas, 1)
    result |= np.abs(problem.demand - before.demand).max(axis=1) > slack
    # Few pairs of rows stand for all workloads and origins.
    pairs, which = np.unique(problem.origin * len(before.distance) + before.origin, return_inverse=True)
    ways, ways_before = np.divmod(pairs, len(before.distance))
    close = np.isclose(problem.distance[ways], before.distance[ways_before], rtol=1e-2)
    apart = np.asarray((~np.asarray(close)).any(axis=1))
    result |= apart[which.reshape(problem.origin.shape)].any(axis=1)
    plan = warm.plan[old]
    added = np.maximum(plan - problem.now, 0)
    result |= ((added > problem.add) & (added > 0)).any(axis=1)
    result |= (added[:, added.sum(axis=0) > problem.capacity[2]] > 0).any(axis=1)
    return np.asarray(result | (warm.out[old] > 0), np.bool_)


def _solution(ordered: Sequence[Item], found: Warm) -> Solution:
    # Imports numba, see above.
    from rebalancer.core.placement.duality import dual_value

    cost = float(found.cost.sum())
    bound = dual_value(found.problem, found.price, found.least)
    shadow = {c: Shadow(*map(float, found.price[:, i])) for i, c in enumerate(found.clusters)}
    gap = (cost - bound) / max(abs(bound), 1e-9) if math.isfinite(bound) else math.nan
    return Solution(decode(ordered, found.clusters, found.plan, found.out), gap, cost, bound, shadow)


def compile_kernels() -> None:
    """Compiles the large solver by placing a fleet of a few workloads; takes a minute, or a second where it was kept.

    To be called once from outside, before `kernels` is set; nothing else here compiles anything.
    """
    item = Item("", 2, {"": 1.0}, ("a", "b"), {"a": 1, "b": 1}, {("", "a"): 0.1, ("", "b"): 0.2}, {"a": 0.0, "b": 0.0},
                {"a": 2, "b": 2}, cpu=1.0)  # fmt: skip
    items = [replace(item, workload=str(i), now={"a": i % 3, "b": 0}) for i in range(2)]
    clusters = clusters_of(items)
    problem = encode(items, clusters, capacity_of(clusters, {"a": 1.0, "b": 9.0}, {}, {}))
    found = _solve(problem, ("0", "1"), clusters, None, 0)
    _solve(replace(problem, replicas=problem.replicas + 1), ("0", "1"), clusters, found, 0)
