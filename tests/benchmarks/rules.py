"""Stand-ins for the rules that peers place replicas by, on the benchmark's fleets, with the same filters.

Written from what their documentation says: Karmada's dynamic weight (replicas by free room, old ones stay), nearest
first (each workload fills the cluster nearest to its users), top-k (an even split over the k clusters with most room).
None of them aims at our objective; the figures say what is left on the table under it, not more.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rebalancer.core.placement import prices
from rebalancer.core.placement.duality import constant
from rebalancer.core.placement.nearby import jobs_of, near_of, owner_of, sites_of
from rebalancer.core.placement.passes import values
from rebalancer.core.placement.problem import Floats, Problem, Small
from rebalancer.core.placement.webster import divide
from tests.benchmarks.figures import rival

TOP = 3


def cost_of(problem: Problem, plan: Small) -> float:
    """$/h of any plan."""
    listed = np.where(plan > problem.now, np.maximum(problem.add, plan - problem.now), problem.add).astype(np.int32)
    near = near_of(_with(problem, listed), np.zeros(problem.capacity.shape), most=problem.now.shape[1])
    owner = owner_of(near)
    x = plan[owner, near.cluster].astype(np.int64)
    value = np.zeros(problem.size)
    out = np.maximum(0, problem.replicas - plan.sum(axis=1)).astype(np.int64)
    free = np.zeros(problem.capacity.shape)
    values(jobs_of(problem), near, sites_of(problem), free, x, out, value)
    return float(value.sum() + constant(problem).sum())


def _placed_part(problem: Problem, plan: Small) -> Problem:
    """The fleet without what has no place, and without what the rules don't look at: spread, spot share, churn.

    Penalties for these would say more of the penalties than of the rules.
    """
    placed = plan.sum(axis=1).astype(np.int64)
    scale = np.minimum(1.0, placed / np.maximum(problem.demand.sum(axis=1), 1e-9))
    none = np.ones_like(placed)
    return replace(
        problem, replicas=placed, demand=problem.demand * scale[:, None], min_clusters=none, min_regions=none,
        spot_max=placed, share=placed, budget=placed.astype(np.float64), cluster_max=placed,
    )  # fmt: skip


def _with(problem: Problem, add: Small) -> Problem:
    return replace(problem, add=add)


def _room(problem: Problem, w: int, left: Floats) -> np.ndarray:
    """Replicas of w that fit into each cluster that takes new ones."""
    fit = np.floor(np.minimum(left[0] / problem.cpu[w], left[1] / problem.memory[w]) + 1e-9)
    return np.where(problem.add[w] > 0, np.maximum(fit, 0), 0).astype(np.int64)


def place(problem: Problem, rule: str) -> Small:
    """Places what is missing by a rule, workload by workload; what stands stays, a surplus goes by weight.

    Args:
        problem: the fleet.
        rule: `dynamic-weight`, `nearest` or `top-k`.
    """
    plan = np.where(problem.state > 0, problem.now, 0).astype(np.int64)
    left = problem.capacity - np.stack([problem.cpu @ plan, problem.memory @ plan, np.zeros(plan.shape[1])])
    for w in range(problem.size):
        more = int(problem.replicas[w] - plan[w].sum())
        if more < 0:
            step = divide(int(problem.replicas[w]), plan[w].astype(float), caps=plan[w]) - plan[w]
        elif more == 0:
            continue
        else:
            step = _grow(problem, w, more, _room(problem, w, left), rule)
        plan[w] += step
        left[0] -= problem.cpu[w] * step
        left[1] -= problem.memory[w] * step
    return plan.astype(np.int32)


def _grow(problem: Problem, w: int, more: int, room: np.ndarray, rule: str) -> np.ndarray:
    if problem.gang[w] > 0:
        step = np.zeros_like(room)
        step[int(np.argmax(room))] = more if room.max() >= more else 0
        return step
    if rule == "dynamic-weight":
        return divide(min(more, int(room.sum())), room.astype(float), caps=room)
    if rule == "top-k":
        best = np.argsort(-room, kind="stable")[: max(TOP, int(problem.min_clusters[w]))]
        room = np.where(np.isin(np.arange(len(room)), best), room, 0)
        return divide(min(more, int(room.sum())), (room > 0).astype(float), caps=room)
    way = (problem.distance[problem.origin[w]] * problem.demand[w][:, None]).sum(axis=0)
    step = np.zeros_like(room)
    for c in np.argsort(way, kind="stable"):
        step[c] = min(more, room[c])
        more -= int(step[c])
    return step


class Peers:
    """How far the rules are above the bound, cold and after a shift of demand."""

    RULES = ("dynamic-weight", "nearest", "top-k")

    def __init__(self) -> None:
        """Nothing yet."""
        self.gaps: dict[tuple[str, str], list[float]] = {}
        self.missing: dict[tuple[str, str], int] = {}

    def cold(self, fleet: Problem, gap: float, cost: float) -> None:
        """Adds a first placement; `gap` and `cost` are the planner's."""
        self._add("cold", fleet, cost / (1 + gap / 100))

    def after(self, fleet: Problem, cost: Floats, bound: float) -> None:
        """Adds a shift from where the planner stood."""
        del cost
        self._add("shift", fleet, bound)

    def _add(self, when: str, fleet: Problem, bound: float) -> None:
        if fleet.size > prices.HUGE:
            return
        for rule in self.RULES:
            plan = place(fleet, rule)
            lost = np.maximum(0, fleet.replicas - plan.sum(axis=1))
            value = cost_of(_placed_part(fleet, plan), plan)
            self.gaps.setdefault((rule, when), []).append(100 * (value / bound - 1))
            self.missing[rule, when] = self.missing.get((rule, when), 0) + int(lost.sum())

    def show(self, name: str) -> None:
        """Prints them."""
        for (rule, when), gaps in sorted(self.gaps.items()):
            rival(f"{name}_{rule}_{when}_gap_median", float(np.median(gaps)), "%")
            rival(f"{name}_{rule}_{when}_without_a_place", self.missing[rule, when], "replicas")
