"""The large solver's problem as a program for HiGHS: exact room prices, and bounds that owe nothing to our kernels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rebalancer.core.placement import highs
from rebalancer.core.placement.items import SHORTFALL_DOLLARS, UNSERVED_DOLLARS
from rebalancer.core.placement.problem import MAY_STAY, MUST_STAY, UNBOUND, Floats, Problem


@dataclass(frozen=True, slots=True)
class Audit:
    """What HiGHS says.

    Attributes:
        value: $/h of its best plan (fractional ones unless `whole`).
        bound: what no plan is below, $/h.
        price: (3, C) duals of the capacities, $/h; zeros for a program with integers.
        plan: (W, C) replicas of its best plan.
    """

    value: float
    bound: float
    price: Floats
    plan: Floats


class _Program:
    """Columns and rows in blocks of arrays."""

    def __init__(self) -> None:
        """Starts empty."""
        self.cost: list[Floats] = []
        self.high: list[Floats] = []
        self.whole: list[np.ndarray] = []
        self.columns = 0
        self.row, self.column, self.value = ([np.empty(0)] for _ in range(3))
        self.low_row: list[Floats] = []
        self.high_row: list[Floats] = []
        self.rows = 0

    def add(self, cost: Floats, high: Floats, *, whole: bool = False) -> np.ndarray:
        """Adds variables of at least 0; returns their numbers."""
        first, self.columns = self.columns, self.columns + len(cost)
        self.cost.append(cost)
        self.high.append(high)
        self.whole.append(np.full(len(cost), whole))
        return np.arange(first, self.columns)

    def bound(self, low: Floats, high: Floats) -> np.ndarray:
        """Adds empty rows; returns their numbers."""
        first, self.rows = self.rows, self.rows + len(low)
        self.low_row.append(low)
        self.high_row.append(high)
        return np.arange(first, self.rows)

    def put(self, row: np.ndarray, column: np.ndarray, value: np.ndarray | float) -> None:
        """Fills the matrix."""
        self.row.append(row)
        self.column.append(column)
        self.value.append(np.broadcast_to(np.asarray(value, float), row.shape))

    def run(self, nodes: int, gap: float) -> tuple[Floats, Floats, float, float]:
        """Solves it: values, row duals, value and bound."""
        row, column = np.concatenate(self.row).astype(np.int64), np.concatenate(self.column).astype(np.int64)
        order = np.lexsort((column, row))
        rows = highs.Rows(
            np.concatenate(self.low_row), np.concatenate(self.high_row),
            np.searchsorted(row[order], np.arange(self.rows + 1)).astype(np.int32), column[order].astype(np.int32),
            np.concatenate(self.value)[order],
        )  # fmt: skip
        whole = np.concatenate(self.whole)
        solver = highs.run(
            np.concatenate(self.cost), np.zeros(self.columns), np.concatenate(self.high), rows,
            whole.tolist() if whole.any() else None, nodes=nodes, gap=gap,
        )  # fmt: skip
        info, found = solver.getInfo(), solver.getSolution()
        value = float(info.objective_function_value)
        low = float(info.mip_dual_bound) if whole.any() else value
        return np.array(found.col_value), np.array(found.row_dual), value, low


def audit(problem: Problem, *, whole: bool = False, nodes: int = 5000, gap: float = 1e-4) -> Audit:
    """Solves the whole problem over all clusters by HiGHS.

    Spread over regions, floors and the peak are not in the program: fleets that ask for them are bounded from below.
    Without `whole` gangs are fractional too.

    Args:
        problem: the fleet.
        whole: whole replicas, for small fleets; otherwise the relaxation.
        nodes: where the search for whole replicas ends.
        gap: likewise, as a ratio.
    """
    p, program = problem, _Program()
    must = (p.state & MUST_STAY) > 0
    staying = np.where(p.state & MAY_STAY, np.where(must, p.now, np.minimum(p.now, p.cluster_max[:, None])), 0)
    w, c = np.nonzero((staying > 0) | ((p.add > 0) & ~must))
    stay, free = staying[w, c].astype(float), ~must[w, c]
    fresh = np.where(free, np.minimum(p.add[w, c], np.maximum(p.cluster_max[w] - stay, 0)), 0).astype(float)
    run = np.where(free, p.run[w, c] - p.stop[w], 0.0)
    s = program.add(run, stay, whole=whole)
    t = program.add(p.run[w, c] + p.start[w], fresh, whole=whole)
    v = program.add(p.unplaced, p.replicas.astype(float), whole=whole)
    total = program.bound(p.replicas.astype(float), p.replicas.astype(float))
    for each in (s, t):
        program.put(total[w], each, 1.0)
    program.put(total, v, 1.0)
    kept = program.bound(np.where(free, -np.inf, stay), np.full(len(w), np.inf))
    program.put(kept, s, 1.0)
    served = program.bound(np.full(len(w), -np.inf), np.zeros(len(w)))
    for each in (s, t):
        program.put(served, each, -1.0)
    _users(program, problem, w, c, served, v)
    _budgets(program, problem, w, c, free, s, t)
    _spread(program, problem, w, s, t, v, whole=whole)
    _gangs(program, problem, w, s, t, stay, whole=whole)
    rows = _room(program, problem, w, c, free, s, t)
    values, duals, value, low = program.run(nodes, gap)
    plan = np.zeros(p.now.shape)
    plan[w, c] = values[s] + values[t]
    price = np.zeros(p.capacity.shape)
    if not whole:
        price[rows >= 0] = -duals[rows[rows >= 0]]
    fixed = float((np.where(must, p.run * p.now, 0.0)).sum())
    fixed += float((p.stop[:, None] * np.where(((p.state & MAY_STAY) > 0) & ~must, p.now, 0)).sum())
    return Audit(value + fixed, low + fixed, np.maximum(price, 0.0), plan)


def _users(program: _Program, p: Problem, w: np.ndarray, c: np.ndarray, served: np.ndarray, v: np.ndarray) -> None:
    """Traffic of each origin; what is not placed serves nobody, dearly."""
    beside = np.zeros(len(w))
    for i in range(p.site_row.shape[1]):
        row = p.site_row[w, i]
        beside += np.where(row >= 0, p.site_weight[w, i] * p.site[np.maximum(row, 0), c], 0.0)
    lost = program.bound(np.full(p.size, -np.inf), np.zeros(p.size))
    program.put(lost, v, -1.0)
    for o in range(p.demand.shape[1]):
        demand = program.bound(p.demand[:, o], p.demand[:, o])
        y = program.add(p.reach[w] * p.distance[p.origin[w, o], c] + beside, np.full(len(w), np.inf))
        program.put(demand[w], y, 1.0)
        program.put(served, y, 1.0)
        none = program.add(np.full(p.size, UNSERVED_DOLLARS), np.full(p.size, np.inf))
        program.put(demand, none, 1.0)
        program.put(lost, none, 1.0)


def _budgets(
    program: _Program, p: Problem, w: np.ndarray, c: np.ndarray, free: np.ndarray, s: np.ndarray, t: np.ndarray
) -> None:
    """Additions and spot replicas of each workload."""
    adds = program.bound(np.full(p.size, -np.inf), p.budget)
    program.put(adds[w], t, 1.0)
    spot = program.bound(np.full(p.size, -np.inf), p.spot_max.astype(float))
    here = p.spot[c] & free
    for each in (s, t):
        program.put(spot[w[here]], each[here], 1.0)


def _spread(
    program: _Program, p: Problem, w: np.ndarray, s: np.ndarray, t: np.ndarray, v: np.ndarray, *, whole: bool
) -> None:
    """Clusters and shares that are asked for, with a dear way out."""
    need = np.minimum(p.min_clusters, p.replicas).astype(float)
    asked = (need > 1)[w]
    used = program.add(np.zeros(int(asked.sum())), np.ones(int(asked.sum())), whole=whole)
    below = program.bound(np.full(len(used), -np.inf), np.zeros(len(used)))
    program.put(below, used, 1.0)
    for each in (s, t):
        program.put(below, each[asked], -1.0)
    enough = program.bound(np.where(need > 1, need, -np.inf), np.full(p.size, np.inf))
    program.put(enough[w[asked]], used, 1.0)
    program.put(enough, program.add(np.full(p.size, SHORTFALL_DOLLARS), np.full(p.size, np.inf)), 1.0)
    over = program.add(np.full(len(w), SHORTFALL_DOLLARS), np.full(len(w), np.inf))
    share = program.bound(np.full(len(w), -np.inf), p.share[w].astype(float))
    program.put(share, over, -1.0)
    for each in (s, t):
        program.put(share, each, 1.0)


def _gangs(
    program: _Program, p: Problem, w: np.ndarray, s: np.ndarray, t: np.ndarray, stay: Floats, *, whole: bool
) -> None:
    """All or nothing in one cluster; what runs may stay as it is."""
    gang = p.gang[w] > 0
    if not whole or not gang.any():
        return
    owner, most = w[gang], p.replicas[w[gang]].astype(float)
    here = program.add(np.zeros(len(owner)), np.ones(len(owner)), whole=True)
    begun = program.add(np.zeros(len(owner)), np.ones(len(owner)), whole=True)
    once = program.bound(np.full(p.size, -np.inf), np.ones(p.size))
    program.put(once[owner], here, 1.0)
    inside = program.bound(np.full(len(owner), -np.inf), np.zeros(len(owner)))
    starts = program.bound(np.full(len(owner), -np.inf), np.zeros(len(owner)))
    least = program.bound(np.full(len(owner), -np.inf), np.zeros(len(owner)))
    for each in (s, t):
        program.put(inside, each[gang], 1.0)
        program.put(least, each[gang], -1.0)
    program.put(inside, here, -np.maximum(most, stay[gang]))
    program.put(starts, t[gang], 1.0)
    program.put(starts, begun, -most)
    program.put(least, begun, np.minimum(p.gang[owner], most))


def _room(
    program: _Program, p: Problem, w: np.ndarray, c: np.ndarray, free: np.ndarray, s: np.ndarray, t: np.ndarray
) -> np.ndarray:
    """The coupling rows; returns their numbers (3, C), -1 where nothing binds."""
    known = p.capacity < UNBOUND / 2
    rows = np.full(p.capacity.shape, -1)
    rows[known] = program.bound(np.full(int(known.sum()), -np.inf), np.maximum(p.capacity[known], 0.0))
    for i, need in enumerate((p.cpu, p.memory, np.ones(p.size))):
        here = rows[i, c] >= 0
        program.put(rows[i, c[here]], t[here], need[w[here]])
        if i < 2:
            stays = here & free & p.leaving[w]
            program.put(rows[i, c[stays]], s[stays], need[w[stays]])
    return rows
