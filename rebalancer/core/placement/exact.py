"""The exact mixed-integer program (HiGHS) over all workloads of a small fleet.

Per workload the model is a minimum-cost flow: origins send demand (in replica equivalents) to clusters, clusters have
whole replicas, replicas cost money, moving costs a little, and what can't be placed or served costs a lot. Workloads
are coupled only by the free CPU and memory of the clusters. Costs are dollars per hour or their equivalent; the solver
stops by nodes, never by wall clock, so that the same input gives the same plan on a busy machine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rebalancer.core.model import GIB
from rebalancer.core.placement import highs
from rebalancer.core.placement.encode import placed
from rebalancer.core.placement.items import (
    AMORTISATION_H,
    MOVE_DOLLARS,
    REMOVE_DOLLARS,
    SHORTFALL_DOLLARS,
    SPREAD_DOLLARS,
    TIE_DOLLARS,
    UNSERVED_DOLLARS,
    Item,
    Placed,
    Shadow,
    Solution,
    add_limit,
    floor_of,
    held,
    share_limit,
    total_of,
    unplaced_dollars,
    ways,
)

FEW, EXACT_GAP, CLOSE_GAP = 10, 1e-7, 9.5e-4
"""Up to so many workloads the optimum is proved; of more, HiGHS would spend most of its time on the last hundredths."""
EXACT_NODES, CLOSE_NODES = 5000, 400
"""Likewise; 400 nodes of a fleet of 50 take up to some 15 s, and most need none."""
DISPLACED_DOLLARS = 1e6
"""For a replica that stands and would get no place any more: nobody makes room for others by giving up."""
SMALL_FLEET = 100
"""So many workloads are solved in one exact program; more in batches by priority, each exact in what is left."""


class NoSolutionError(ValueError):
    """HiGHS ended without a feasible point, or refused the numbers."""


class _Program:
    """Collects columns and rows for HiGHS."""

    def __init__(self, gap: float, nodes: int) -> None:
        """Starts empty; the search for whole replicas ends within `gap` of the bound, or after so many nodes."""
        self.gap, self.nodes = gap, nodes
        self.cost: list[float] = []
        self.lower: list[float] = []
        self.upper: list[float] = []
        self.integer: list[bool] = []
        self.row_lower: list[float] = []
        self.row_upper: list[float] = []
        self.start: list[int] = [0]
        self.index: list[int] = []
        self.value: list[float] = []

    def column(self, cost: float, lower: float, upper: float, *, integer: bool = False) -> int:
        """Adds a variable and returns its number."""
        self.cost.append(cost)
        self.lower.append(lower)
        self.upper.append(max(lower, upper))
        self.integer.append(integer)
        return len(self.cost) - 1

    def row(self, lower: float, upper: float, terms: Sequence[tuple[int, float]]) -> None:
        """Adds a constraint."""
        self.row_lower.append(lower)
        self.row_upper.append(upper)
        for column, value in terms:
            self.index.append(column)
            self.value.append(value)
        self.start.append(len(self.index))

    def _check(self) -> None:
        """Refuses what is no number: HiGHS may never come back from it."""
        bounds = (*self.lower, *self.upper, *self.row_lower, *self.row_upper)
        if any(map(math.isnan, bounds)) or not all(map(math.isfinite, (*self.cost, *self.value))):
            raise NoSolutionError("a cost or bound is no number")

    def _run(self, *, whole: bool) -> Any:
        rows = highs.Rows(
            np.array(self.row_lower), np.array(self.row_upper), np.array(self.start, np.int32),
            np.array(self.index, np.int32), np.array(self.value),
        )  # fmt: skip
        return highs.run(
            np.array(self.cost), np.array(self.lower), np.array(self.upper), rows, self.integer if whole else None,
            nodes=self.nodes, gap=self.gap,
        )  # fmt: skip

    def solve(self) -> tuple[list[float], float, float, float]:
        """Solves the program.

        Returns:
            (values of the columns, gap to the bound, the plan's cost, the bound).

        Raises:
            NoSolutionError: HiGHS found none, or a number is none. The model itself always has a solution.
        """
        self._check()
        solver = self._run(whole=True)
        info = solver.getInfo()
        values = list(solver.getSolution().col_value)
        if info.primal_solution_status != 2:  # 2: a feasible point is known
            raise NoSolutionError(solver.modelStatusToString(solver.getModelStatus()))
        return values, float(info.mip_gap), float(info.objective_function_value), float(info.mip_dual_bound)

    def duals(self) -> list[float]:
        """Row duals of the relaxation: what a row's bound is worth; empty where HiGHS found none."""
        return list(self._run(whole=False).getSolution().row_dual)


@dataclass(slots=True)
class _Columns:
    """Where a workload's variables are in the program."""

    stay: dict[str, int]
    new: dict[str, int]
    flow: dict[tuple[str, str], int]
    unplaced: int
    displaced: int
    unserved: list[int]


def _columns(program: _Program, item: Item) -> _Columns:
    """Adds the variables of one workload: staying and new replicas, flows, and what is left over."""
    stay, new, flow = {}, {}, {}
    for i, cluster in enumerate(item.clusters):
        run = item.run.get(cluster, 0.0) + TIE_DOLLARS * i
        here = item.now.get(cluster, 0)
        low = here if cluster in item.frozen else 0
        high = 0 if cluster in item.leave and cluster not in item.frozen else here
        stay[cluster] = program.column(run - REMOVE_DOLLARS / AMORTISATION_H, low, high, integer=True)
        add = 0 if cluster in item.frozen or cluster in item.leave else item.add_max.get(cluster, 0)
        new[cluster] = program.column(run + MOVE_DOLLARS / AMORTISATION_H, 0, max(0, add), integer=True)
    for origin, demand in item.demand.items():
        for cluster, way in ways(item, origin).items():
            flow[origin, cluster] = program.column(way, 0, demand)
    unplaced = program.column(unplaced_dollars(item), 0, item.replicas, integer=True)
    displaced = program.column(DISPLACED_DOLLARS, 0, item.replicas, integer=True)
    unserved = [program.column(UNSERVED_DOLLARS, 0, d) for d in item.demand.values()]
    return _Columns(stay, new, flow, unplaced, displaced, unserved)


def _rows(program: _Program, item: Item, at: _Columns) -> None:
    """Adds the constraints of one workload."""
    both = {c: [(at.stay[c], 1.0), (at.new[c], 1.0)] for c in item.clusters}
    everything = [term for c in item.clusters for term in both[c]]
    total = total_of(item)
    stands = sum(item.now.get(c, 0) for c in item.clusters if c not in item.leave) if item.gives else 0
    program.upper[at.unplaced], program.upper[at.displaced] = max(0, total - stands), min(total, stands)
    program.row(total, total, [*everything, (at.unplaced, 1.0), (at.displaced, 1.0)])
    for (origin, demand), spare in zip(item.demand.items(), at.unserved, strict=True):
        program.row(demand, demand, [*((at.flow[origin, c], 1.0) for c in item.clusters), (spare, 1.0)])
    for cluster in item.clusters:
        flows = [(at.flow[o, cluster], 1.0) for o in item.demand]
        program.row(-math.inf, 0.0, [*flows, (at.stay[cluster], -1.0), (at.new[cluster], -1.0)])
        _cluster_bounds(program, item, cluster, total, both[cluster])
    if item.max_exchanges is not None:
        program.row(-math.inf, add_limit(item), [(at.new[c], 1.0) for c in item.clusters])
    if item.gang > 0:
        _gang(program, item, at, total)
    _spread(program, item, at, both, total)


def _cluster_bounds(
    program: _Program, item: Item, cluster: str, total: int, terms: Sequence[tuple[int, float]]
) -> None:
    """Bounds of the policy in one cluster; they never push a frozen cluster or one that must be left."""
    if cluster in item.frozen or cluster in item.leave:
        return
    high = math.inf if item.cluster_max is None else float(item.cluster_max)
    if item.max_share < 1.0:
        # Soft as all spread: too much in one cluster is better than too little at all.
        program.row(-math.inf, share_limit(item, total), [*terms, (_slack(program, total), -1.0)])
    reachable = item.now.get(cluster, 0) + item.add_max.get(cluster, 0)
    low = float(min(floor_of(item), reachable))
    if high < total:
        program.row(-math.inf, high, terms)
    if min(low, high) > 0:
        # Soft, because other rows (budget, room, what may not be touched) may stand against it.
        program.row(min(low, high), math.inf, [*terms, (_slack(program, low), 1.0)])


def _spread(
    program: _Program,
    item: Item,
    at: _Columns,
    both: Mapping[str, list[tuple[int, float]]],
    total: int,
) -> None:
    """Minimum clusters and regions, spot share, and the soft weight on the largest share."""
    used: dict[str, int] = {}
    if item.min_clusters > 1:
        for cluster in item.clusters:
            used[cluster] = program.column(0.0, 0.0, 1.0)
            program.row(-math.inf, 0.0, [(used[cluster], 1.0), *((c, -v) for c, v in both[cluster])])
        need = min(item.min_clusters, total)
        program.row(need, math.inf, [*((u, 1.0) for u in used.values()), (_slack(program, need), 1.0)])
    if item.min_regions > 1:
        regions = sorted({item.regions[c] for c in item.clusters})
        marks = []
        for region in regions:
            mark = program.column(0.0, 0.0, 1.0)
            inside = [t for c in item.clusters if item.regions[c] == region for t in both[c]]
            program.row(-math.inf, 0.0, [(mark, 1.0), *((c, -v) for c, v in inside)])
            marks.append((mark, 1.0))
        need = min(item.min_regions, total)
        program.row(need, math.inf, [*marks, (_slack(program, need), 1.0)])
    spots = [t for c in item.clusters if c in item.spot and c not in item.frozen for t in both[c]]
    if item.spot_max_share < 1.0 and spots:
        most = math.floor(item.spot_max_share * total + 1e-9) - held(item, item.spot)
        program.row(-math.inf, max(0, most), spots)
    if item.spread_weight > 0:
        peak = program.column(item.spread_weight * SPREAD_DOLLARS * len(item.clusters), 0.0, math.inf)
        for cluster in item.clusters:
            program.row(0.0, math.inf, [(peak, 1.0), *((c, -v) for c, v in both[cluster])])


def _gang(program: _Program, item: Item, at: _Columns, total: int) -> None:
    """All in one cluster, at least `gang` of them where any start; what runs may stay as it is."""
    inside = []
    for cluster in (c for c in item.clusters if c not in item.frozen):
        here = program.column(0.0, 0.0, 1.0, integer=True)
        begun = program.column(0.0, 0.0, 1.0, integer=True)
        inside.append((here, 1.0))
        stay, new = (at.stay[cluster], 1.0), (at.new[cluster], 1.0)
        program.row(-math.inf, 0.0, [stay, new, (here, -float(max(total, item.now.get(cluster, 0))))])
        program.row(-math.inf, 0.0, [new, (begun, -float(total))])
        program.row(0.0, math.inf, [stay, new, (begun, -float(min(item.gang, total)))])
    standing = sum(1 for c in item.clusters if item.now.get(c, 0) and c not in item.leave)
    program.row(-math.inf, float(max(0 if held(item, item.frozen) else 1, standing)), inside)


def _slack(program: _Program, need: float) -> int:
    """A dear way out where spread can't be had, for example because too few clusters are allowed."""
    return program.column(SHORTFALL_DOLLARS, 0.0, float(need))


def solve_exactly(
    items: Sequence[Item], free_cpu: Mapping[str, float], free_memory: Mapping[str, float], adds: Mapping[str, float]
) -> Solution:
    """Places all workloads of a small fleet; more than SMALL_FLEET in batches by priority, without a bound.

    Args:
        items: workloads.
        free_cpu: cluster -> free cores; a cluster that is missing does not bind.
        free_memory: cluster -> free bytes, likewise.
        adds: cluster -> most replicas that may be added, likewise.
    """
    ordered = sorted(items, key=lambda i: (-i.priority, i.workload))
    free = [dict(free_cpu), dict(free_memory), dict(adds)]
    result: dict[str, Placed] = {}
    found = []
    for first in range(0, len(ordered), SMALL_FLEET):
        batch = ordered[first : first + SMALL_FLEET]
        try:
            solved = [_solve_batch(batch, free)]
            _take(batch, solved[0].items, free)
        except NoSolutionError:
            _keep_standing(batch, free)
            solved = [_solve_alone(replace(item, gives=False), free) for item in batch]
        found += solved
        for part in solved:
            result |= part.items
    unsolved = {w: why for part in found for w, why in part.unsolved.items()}
    return found[0] if len(found) == 1 else Solution(result, math.nan, unsolved=unsolved)


def _take(items: Sequence[Item], placed: Mapping[str, Placed], free: Sequence[dict[str, float]]) -> None:
    """Takes what starts off the room that is left."""
    for item in items:
        for cluster, count in placed[item.workload].replicas.items():
            added = max(0, count - item.now.get(cluster, 0))
            held = count if item.gives and cluster not in item.frozen else added
            for row, need in zip(free, (item.cpu * held, item.memory * held, 1.0 * added), strict=True):
                row[cluster] = row.get(cluster, math.inf) - need


def _keep_standing(items: Sequence[Item], free: Sequence[dict[str, float]]) -> None:
    """Takes what stands and gives room off the room that is left: who is placed alone may not count on it."""
    for item in items:
        for cluster in item.clusters if item.gives else ():
            if cluster not in item.frozen:
                for row, need in zip(free, (item.cpu, item.memory), strict=False):
                    row[cluster] = row.get(cluster, math.inf) - item.now.get(cluster, 0) * need


def _solve_alone(item: Item, free: Sequence[dict[str, float]]) -> Solution:
    """One workload of a batch without a solution, so that the others don't suffer; without an answer it stays."""
    try:
        solved = _solve_batch([item], free)
    except NoSolutionError as error:
        now = {c: item.now.get(c, 0) for c in item.clusters}
        short = max(0, item.replicas - sum(now.values()))
        return Solution({item.workload: Placed(now, {}, short, 0.0)}, math.nan, unsolved={item.workload: str(error)})
    _take([item], solved.items, free)
    return solved


def _solve_batch(items: Sequence[Item], free: Sequence[Mapping[str, float]]) -> Solution:
    program = _Program(*((EXACT_GAP, EXACT_NODES) if len(items) <= FEW else (CLOSE_GAP, CLOSE_NODES)))
    at = {}
    for item in items:
        at[item.workload] = _columns(program, item)
        _rows(program, item, at[item.workload])
    room: dict[tuple[int, str], tuple[int, float]] = {}
    for cluster in sorted({c for i in items for c in i.clusters}):
        for kind, of in enumerate(free):
            needs = [(i, (i.cpu, i.memory, 1.0)[kind]) for i in items if cluster in i.clusters]
            terms = [(at[i.workload].new[cluster], need) for i, need in needs if need > 0]
            terms += [
                (at[i.workload].stay[cluster], need)
                for i, need in needs
                if need > 0 and kind < 2 and i.gives and cluster not in i.frozen
            ]
            if terms and math.isfinite(of.get(cluster, math.inf)):
                # Scaled to one, because bytes beside cores would strain the solver's tolerances.
                scale = max(v for _, v in terms)
                room[kind, cluster] = len(program.row_lower), scale
                program.row(-math.inf, max(0.0, of[cluster]) / scale, [(c, v / scale) for c, v in terms])
    values, gap, cost, bound = program.solve()
    for item in items:
        # What room is worth shows where the lack of room does not hide behind how many fit.
        for cluster in item.roomless - item.frozen - item.leave:
            program.upper[at[item.workload].new[cluster]] = total_of(item)
    duals = program.duals() if room else []
    price = {key: max(0.0, -duals[row]) / scale for key, (row, scale) in room.items() if duals}
    shadow = {
        c: Shadow(price.get((0, c), 0.0), price.get((1, c), 0.0) * GIB, price.get((2, c), 0.0))
        for c in sorted({c for _, c in room})
    }
    return Solution({i.workload: _read(i, at[i.workload], values) for i in items}, gap, cost, bound, shadow)


def _read(item: Item, at: _Columns, values: Sequence[float]) -> Placed:
    return Placed(
        replicas={c: round(values[at.stay[c]] + values[at.new[c]]) for c in item.clusters},
        traffic={k: values[col] for k, col in at.flow.items() if values[col] > 1e-7},
        unplaced=round(values[at.unplaced] + values[at.displaced]),
        unserved=sum(values[c] for c in at.unserved),
    )


def evaluate(item: Item, replicas: Mapping[str, int]) -> Placed:
    """Says how traffic would best be served by given replicas; nothing is moved.

    Args:
        item: the workload.
        replicas: by cluster.
    """
    return placed(item, replicas, 0)
