"""A generated fleet as the planner sees it: clusters, placements, demand, policies; and plants that carry it on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rebalancer.core.forecast import DEFAULT_QUANTILES
from rebalancer.core.model import (
    GIB,
    TOTAL,
    Cluster,
    ClusterState,
    Demand,
    Forecast,
    NodeRoom,
    Placement,
    Plan,
    Price,
    Snapshot,
    View,
)
from rebalancer.core.network import LatencyMap, measured_cell
from rebalancer.core.placement import LATENCY_DOLLARS
from rebalancer.core.placement.problem import Floats, Problem
from rebalancer.core.planning import PlanMemory, PlanSettings, planning
from rebalancer.core.policy import STRATEGY_WEIGHTS, DemandSpec, Policy, Strategy
from rebalancer.core.sight import Clock
from tests.unit.core.plant import Plant

START_S = 1_700_000_000.0
CYCLE_S = 60.0
LOAD = 10.0
"""Demand that one replica serves."""


def names(problem: Problem) -> list[str]:
    """Clusters by column."""
    return [f"c{i}" for i in range(problem.now.shape[1])]


def policy(problem: Problem, w: int) -> Policy:
    """What the generated workload asks for, with budgets that a day's moves fit into."""
    latency = problem.reach[w] / LATENCY_DOLLARS
    data = problem.site_row[w, 0] >= 0
    strategy: Strategy = "LatencyFirst" if latency == 1.0 else "DataLocality" if data else "CostOptimized"
    return Policy(
        f"w{w}", workload_name=f"w{w}", strategy=strategy, weights=STRATEGY_WEIGHTS[strategy],
        demand=DemandSpec("requests_total", origin_label="origin"), capacity_per_replica=LOAD, min_replicas=0,
        data={f"c{problem.site_row[w, 0]}": 1.0} if data else {}, min_clusters=int(problem.min_clusters[w]),
        spot_max_share=0.5 if problem.spot_max[w] < problem.replicas[w] else 1.0, gang=int(problem.gang[w]),
        max_moves_per_hour="100%", max_concurrent_moves=3,
    )  # fmt: skip


def demand(problem: Problem, w: int) -> dict[str, float]:
    """Demand of a workload by origin region."""
    found: dict[str, float] = {}
    for origin, amount in zip(problem.origin[w], problem.demand[w], strict=True):
        if amount > 0:
            found[f"r{origin}"] = found.get(f"r{origin}", 0.0) + float(amount) * LOAD
    return found


def network(problem: Problem) -> LatencyMap:
    """Round trips between clusters, as far as their regions are apart."""
    at = names(problem)
    cells = {
        (at[a], at[b]): measured_cell(float(problem.distance[problem.region[a], b]) / 1000.0)
        for a in range(len(at)) for b in range(len(at)) if a != b
    }  # fmt: skip
    return LatencyMap(cells, {c: f"r{r}" for c, r in zip(at, problem.region, strict=True)})


@dataclass
class Standing:
    """A fleet under the planner, cycle after cycle; replicas are ready at once.

    Attributes:
        overfull: clusters and instants at which more was asked for than there is.
        short: workloads and instants at which fewer were ready than before and than wanted.
        drained: a cluster that is to be emptied; empty if none is.
    """

    problem: Problem
    plants: dict[str, Plant]
    memory: PlanMemory
    drained: str = ""
    now_s: float = START_S
    overfull: int = 0
    short: int = 0

    @classmethod
    def of(cls, problem: Problem, drained: str = "") -> Standing:
        """The fleet as the problem's `now` has it, calm for a day."""
        at, plants = names(problem), {}
        for w in range(problem.size):
            places = {
                c: Placement(
                    f"default/w{w}", c, int(n), (START_S - 3600,) * int(n), float(problem.cpu[w]),
                    float(problem.memory[w]) * GIB,
                )
                for c, n in zip(at, problem.now[w], strict=True)
            }  # fmt: skip
            plants[f"default/w{w}"] = Plant(places, demand(problem, w), policy(problem, w), START_S)
        calm = dict.fromkeys(plants, ((START_S - 700, 1), (START_S - 200, 1)))
        clocks = {c: Clock(START_S, START_S - 86_400) for c in at}
        return cls(problem, plants, PlanMemory(clocks=clocks, recommendations=calm), drained)

    def free(self) -> Floats:
        """(2, C) cores and GiB that nobody asked for."""
        counts = np.array([[p.placements[c].wanted for c in names(self.problem)] for p in self.plants.values()])
        taken: Floats = np.stack([self.problem.cpu @ counts, self.problem.memory @ counts])
        return self.problem.capacity[:2] - taken

    def snapshot(self) -> Snapshot:
        """What the planner sees now."""
        problem, at, free = self.problem, names(self.problem), self.free()
        price = problem.run[0] / (self.cost_weight() * (problem.cpu[0] + problem.memory[0] / 8.0))
        states = {}
        for i, c in enumerate(at):
            declared = Cluster(c, f"r{problem.region[i]}", price=Price(float(price[i]), float(price[i]) / 8.0),
                               reserve_ratio=0.0, spot=bool(problem.spot[i]), drain=c == self.drained)  # fmt: skip
            node = NodeRoom(f"{c}-n", float(max(0.0, free[0, i])), float(max(0.0, free[1, i])) * GIB, 100_000)
            states[c] = ClusterState(declared, self.now_s, (node,), float(problem.capacity[0, i]), 1e15)
        allowed = problem.add > 0
        return Snapshot(
            at_s=self.now_s, clusters=states, views={c: View("complete", self.now_s) for c in at},
            placements={w: dict(p.placements) for w, p in self.plants.items()},
            demand={w: Demand("requests/s", sum(p.origins.values()), p.origins, as_of_s=self.now_s)
                    for w, p in self.plants.items()},
            network=network(problem), policies={w: p.policy.key for w, p in self.plants.items()},
            allowed={w: frozenset(c for i, c in enumerate(at) if allowed[row, i])
                     for row, w in enumerate(self.plants)},
        )  # fmt: skip

    def cost_weight(self) -> float:
        """The weight of money in the first workload, by which prices are read off its costs."""
        return next(iter(self.plants.values())).policy.weights.cost

    def cycle(self) -> Plan:
        """Plans and carries out; counts what no instant may show."""
        policies = {p.policy.key: p.policy for p in self.plants.values()}
        found, self.memory = planning(self.snapshot(), flat(self.plants, self.now_s), policies, self.memory,
                                      PlanSettings())  # fmt: skip
        for action in found.actions:
            plant = self.plants[action.workload]
            before, wanted = plant.ready, found.workloads[action.workload].wanted or 0
            for step in action.steps:
                if not plant.write(step):
                    break
                self.overfull += int((self.free() < -1e-6).any())
                self.short += int(plant.ready < min(before, wanted))
        self.now_s += CYCLE_S
        for plant in self.plants.values():
            plant.now = self.now_s
        return found


def flat(plants: Mapping[str, Plant], now_s: float) -> Forecast:
    """A trusted forecast that demand stays as it is."""
    rows = [((w, o), v) for w, p in plants.items() for o, v in ((TOTAL, sum(p.origins.values())), *p.origins.items())]
    bands = np.array([[[v] * len(DEFAULT_QUANTILES)] * 2 for _, v in rows])
    return Forecast(now_s, np.array([300.0, 900.0]), np.array(DEFAULT_QUANTILES), tuple(k for k, _ in rows), bands,
                    (True,) * len(rows), np.zeros(len(rows)), ("mixture",) * len(rows))  # fmt: skip
