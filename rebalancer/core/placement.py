"""Which cluster runs how many: an exact mixed-integer program (HiGHS) over all workloads of a small fleet.

Per workload the model is a minimum-cost flow: origins send demand (in replica equivalents) to clusters, clusters have
whole replicas, replicas cost money, moving costs a little, and what can't be placed or served costs a lot. Workloads
are coupled only by the free CPU and memory of the clusters. Costs are dollars per hour or their equivalent; the solver
stops by nodes, never by wall clock, so that the same input gives the same plan on a busy machine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import highspy
import highspy.highs
import numpy as np

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
MAX_NODES = 5000
SMALL_FLEET = 100
"""So many workloads are solved in one exact program; more in batches by priority, each exact in what is left."""


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
        gap_ratio: distance to the proven bound; NaN if unknown.
    """

    items: Mapping[str, Placed]
    gap_ratio: float


class _Program:
    """Collects columns and rows for HiGHS."""

    def __init__(self) -> None:
        """Starts empty."""
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

    def solve(self) -> tuple[list[float], float]:
        """Solves the program.

        Returns:
            (values of the columns, gap to the bound; NaN for a program without integers).

        Raises:
            ValueError: HiGHS found no solution; the model is built so that there always is one.
        """
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = len(self.cost), len(self.row_lower)
        lp.col_cost_ = np.array(self.cost)
        lp.col_lower_, lp.col_upper_ = np.array(self.lower), np.array(self.upper)
        lp.row_lower_, lp.row_upper_ = np.array(self.row_lower), np.array(self.row_upper)
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.num_col_, lp.a_matrix_.num_row_ = lp.num_col_, lp.num_row_
        lp.a_matrix_.start_ = np.array(self.start)
        lp.a_matrix_.index_ = np.array(self.index)
        lp.a_matrix_.value_ = np.array(self.value)
        if any(self.integer):
            kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
            lp.integrality_ = [kinds[i] for i in self.integer]
        # The public class prints a banner before it can be silenced; its base takes the option first.
        solver = highspy.highs._Highs()  # type: ignore[attr-defined]  # see above
        solver.setOptionValue("output_flag", False)
        solver.setOptionValue("threads", 1)
        solver.setOptionValue("random_seed", 0)
        solver.setOptionValue("mip_max_nodes", MAX_NODES)
        solver.setOptionValue("mip_rel_gap", 1e-7)
        solver.passModel(lp)
        solver.run()
        info = solver.getInfo()
        if info.primal_solution_status != 2:  # 2: a feasible point is known
            raise ValueError(f"placement has no solution: {solver.modelStatusToString(solver.getModelStatus())}")
        gap = float(info.mip_gap) if any(self.integer) else math.nan
        return list(solver.getSolution().col_value), gap


@dataclass(slots=True)
class _Columns:
    """Where a workload's variables are in the program."""

    stay: dict[str, int]
    new: dict[str, int]
    flow: dict[tuple[str, str], int]
    unplaced: int
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
        known = [c for r, c in item.serve if r == origin]
        # A frozen cluster with unknown latency still serves somebody; it counts as the mean of what is known.
        typical = sum(item.serve[origin, c] for c in known) / len(known) if known else 0.0
        for cluster in item.clusters:
            flow[origin, cluster] = program.column(item.serve.get((origin, cluster), typical), 0, demand)
    unplaced = program.column(UNPLACED_DOLLARS * 2.0 ** (item.priority / 100.0), 0, item.replicas, integer=True)
    unserved = [program.column(UNSERVED_DOLLARS, 0, d) for d in item.demand.values()]
    return _Columns(stay, new, flow, unplaced, unserved)


def _rows(program: _Program, item: Item, at: _Columns) -> None:
    """Adds the constraints of one workload."""
    both = {c: [(at.stay[c], 1.0), (at.new[c], 1.0)] for c in item.clusters}
    everything = [term for c in item.clusters for term in both[c]]
    kept = sum(item.now.get(c, 0) for c in item.frozen)
    total = max(item.replicas, kept)
    program.upper[at.unplaced] = total
    program.row(total, total, [*everything, (at.unplaced, 1.0)])
    for (origin, demand), spare in zip(item.demand.items(), at.unserved, strict=True):
        program.row(demand, demand, [*((at.flow[origin, c], 1.0) for c in item.clusters), (spare, 1.0)])
    for cluster in item.clusters:
        flows = [(at.flow[o, cluster], 1.0) for o in item.demand]
        program.row(-math.inf, 0.0, [*flows, (at.stay[cluster], -1.0), (at.new[cluster], -1.0)])
        _cluster_bounds(program, item, cluster, total, both[cluster])
    free = [c for c in item.clusters if c not in item.leave]
    stays = sum(item.now.get(c, 0) for c in free)
    if item.max_exchanges is not None:
        forced = sum(item.now.get(c, 0) for c in item.leave - item.frozen)
        limit = max(0, total - stays - forced) + forced + item.max_exchanges
        program.row(-math.inf, limit, [(at.new[c], 1.0) for c in item.clusters])
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
    low = float(min(item.cluster_min, reachable)) if item.cluster_min * len(item.clusters) <= total else 0.0
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
        held = sum(item.now.get(c, 0) for c in item.spot & item.frozen)
        program.row(-math.inf, max(0, math.floor(item.spot_max_share * total + 1e-9) - held), spots)
    if item.spread_weight > 0:
        peak = program.column(item.spread_weight * SPREAD_DOLLARS * len(item.clusters), 0.0, math.inf)
        for cluster in item.clusters:
            program.row(0.0, math.inf, [(peak, 1.0), *((c, -v) for c, v in both[cluster])])


def share_limit(item: Item, total: int) -> int:
    """Most replicas in one cluster by the policy's maximum share; one is always allowed."""
    return max(1, math.floor(item.max_share * total + 1e-9))


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


def _slack(program: _Program, need: float) -> int:
    """A dear way out where spread can't be had, for example because too few clusters are allowed."""
    return program.column(SHORTFALL_DOLLARS, 0.0, float(need))


def solve(items: Sequence[Item], free_cpu: Mapping[str, float], free_memory: Mapping[str, float]) -> Solution:
    """Places all workloads.

    Args:
        items: workloads.
        free_cpu: cluster -> free cores; a cluster that is missing does not bind.
        free_memory: cluster -> free bytes, likewise.

    Returns:
        The placement. More than SMALL_FLEET workloads are placed in batches by priority; the gap is then unknown.
    """
    if not items:
        return Solution({}, 0.0)
    ordered = sorted(items, key=lambda i: (-i.priority, i.workload))
    cpu, memory = dict(free_cpu), dict(free_memory)
    result: dict[str, Placed] = {}
    gaps = []
    for first in range(0, len(ordered), SMALL_FLEET):
        batch = ordered[first : first + SMALL_FLEET]
        placed, gap = _solve_batch(batch, cpu, memory)
        gaps.append(gap)
        result |= placed
        for item in batch:
            for cluster, count in placed[item.workload].replicas.items():
                added = max(0, count - item.now.get(cluster, 0))
                cpu[cluster] = cpu.get(cluster, math.inf) - added * item.cpu
                memory[cluster] = memory.get(cluster, math.inf) - added * item.memory
    return Solution(result, gaps[0] if len(gaps) == 1 else math.nan)


def _solve_batch(
    items: Sequence[Item], free_cpu: Mapping[str, float], free_memory: Mapping[str, float]
) -> tuple[dict[str, Placed], float]:
    program = _Program()
    at = {}
    for item in items:
        at[item.workload] = _columns(program, item)
        _rows(program, item, at[item.workload])
    for cluster in sorted({c for i in items for c in i.clusters}):
        for free, need in ((free_cpu, "cpu"), (free_memory, "memory")):
            terms = [
                (at[i.workload].new[cluster], float(getattr(i, need)))
                for i in items
                if cluster in i.clusters and getattr(i, need) > 0
            ]
            if terms and math.isfinite(free.get(cluster, math.inf)):
                # Scaled to one, because bytes beside cores would strain the solver's tolerances.
                scale = max(v for _, v in terms)
                program.row(-math.inf, max(0.0, free[cluster]) / scale, [(c, v / scale) for c, v in terms])
    values, gap = program.solve()
    return {i.workload: _read(i, at[i.workload], values) for i in items}, gap


def _read(item: Item, at: _Columns, values: Sequence[float]) -> Placed:
    return Placed(
        replicas={c: round(values[at.stay[c]] + values[at.new[c]]) for c in item.clusters},
        traffic={k: values[col] for k, col in at.flow.items() if values[col] > 1e-7},
        unplaced=round(values[at.unplaced]),
        unserved=sum(values[c] for c in at.unserved),
    )


def evaluate(item: Item, replicas: Mapping[str, int]) -> Placed:
    """Says how traffic would best be served by given replicas; nothing is moved.

    Args:
        item: the workload.
        replicas: by cluster.
    """
    program = _Program()
    flow = {}
    for origin, demand in item.demand.items():
        known = [item.serve[origin, c] for c in item.clusters if (origin, c) in item.serve]
        typical = sum(known) / len(known) if known else 0.0
        for cluster in item.clusters:
            flow[origin, cluster] = program.column(item.serve.get((origin, cluster), typical), 0, demand)
        spare = program.column(UNSERVED_DOLLARS, 0, demand)
        program.row(demand, demand, [*((flow[origin, c], 1.0) for c in item.clusters), (spare, 1.0)])
    for cluster in item.clusters:
        program.row(-math.inf, float(replicas.get(cluster, 0)), [(flow[o, cluster], 1.0) for o in item.demand])
    values = program.solve()[0] if item.demand else []
    traffic = {k: values[col] for k, col in flow.items() if values[col] > 1e-7}
    return Placed(dict(replicas), traffic, 0, sum(item.demand.values()) - sum(traffic.values()))
