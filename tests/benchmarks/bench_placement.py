"""Figures of the placement solver: `python -m tests.benchmarks.bench_placement [--size NAME ...] [--seeds N]`.

Each line is `name value unit bound ok|SHORT`; peers' rules on the same fleets follow as rivals. A fleet is placed cold,
then meets events (shift of demand, outage, dearer region, noise, 5 % changed); gaps are to the integer Lagrangian bound
over each workload's listed clusters at prices refined for it, so they are upper limits of the true ones. Fleets are
generated and not tuned to; the small ones are compared with HiGHS' own bound. Times are of this process's CPU, because
others may use the machine; the wall clock of an idle core is about the same, since everything runs in one thread.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np

from rebalancer.core.placement import prices
from rebalancer.core.placement.audit import audit
from rebalancer.core.placement.duality import bound as lagrangian
from rebalancer.core.placement.duality import constant, sizes, usual
from rebalancer.core.placement.exact import CLOSE_GAP, CLOSE_NODES
from rebalancer.core.placement.fleet import Warm
from rebalancer.core.placement.fleet import _solve as plan_next
from rebalancer.core.placement.nearby import near_of
from rebalancer.core.placement.problem import Floats, Problem, Small, violations
from tests.benchmarks import rules
from tests.benchmarks.figures import line, quantile, rival
from tests.benchmarks.fleets import EVENTS, SIZES, later, make

GAPS = {"20x1,000": (0.3, 1.0), "50x10,000": (0.4, 1.0), "200x100,000": (0.5, 1.5)}
BOUNDS = {
    "20x1,000": {"full": 1.0, "some": 0.15, "cold": 2.0, "memory": 400.0},
    "50x10,000": {"full": 5.0, "some": 0.5, "cold": 12.0, "memory": 600.0},
    "200x100,000": {"full": 60.0, "some": 10.0, "cold": 150.0, "memory": 1500.0},
}
SEEDS = {"8x50": 5, "20x1,000": 3, "50x10,000": 2, "200x100,000": 1}
HIGHS_WORKLOADS = 2_000
"""Up to so many the relaxation takes HiGHS seconds."""
HARD = ("capacity", "cluster_churn", "barred", "must_stay", "churn", "gang", "cluster_max", "spot", "too_many")


def integer_bound(problem: Problem, price: Floats) -> float:
    """The best integer Lagrangian bound that a few steps find, $/h, from the plan's prices and from HiGHS' duals.

    Any prices give a bound. The planner's own are short of the best after a large event, and HiGHS' duals of the
    relaxation are found without the planner; fleets too large for HiGHS are judged by the planner's prices alone.
    """
    starts = [price, audit(problem).price] if problem.size <= HIGHS_WORKLOADS else [price]
    return max(_climb(problem, p) for p in starts) + float(constant(problem).sum())


def _climb(problem: Problem, price: Floats) -> float:
    size, near = sizes(problem), near_of(problem, price)
    scale = usual(problem, near)[:, None]
    best, step = -np.inf, 0.02
    for _ in range(1 if problem.size > prices.HUGE else 6):
        value, _, use = lagrangian(problem, near_of(problem, price), price, whole=True)
        best, step = max(best, value), step * 0.7
        price = np.maximum(0.0, price + step * scale * np.clip((use - problem.capacity) / size, -0.5, 0.5))
    return best


class Tally:
    """What was measured at one size."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.gaps: list[float] = []
        self.certified: list[float] = []
        self.times: dict[str, list[float]] = {"cold": [], "full": [], "some": []}
        self.broken = self.out = self.spread = 0
        self.churn: list[float] = []
        self.full_churn: list[float] = []
        self.still: list[float] = []
        self.some_gaps: list[float] = []

    def note(self, problem: Problem, plan: Small, cost: float, bound: float) -> None:
        """Adds a plan."""
        self.gaps.append(100 * (cost - bound) / bound)
        found = violations(problem, plan)
        self.broken += sum(found[k] for k in HARD)
        self.spread += found["spread"]
        self.out += int((problem.replicas - plan.sum(axis=1)).sum())


def timed(call: Callable[[], prices.Solved]) -> tuple[prices.Solved, float]:
    """Runs it; returns its answer and its CPU seconds."""
    begun = time.process_time()
    found = call()
    return found, time.process_time() - begun


def moved(problem: Problem, plan: Small) -> float:
    """Share of the standing replicas that change their cluster, in %."""
    change = plan - problem.now
    both = np.minimum(np.maximum(change, 0).sum(axis=1), np.maximum(-change, 0).sum(axis=1))
    return 100 * float(both.sum()) / max(1, int(problem.now.sum()))


def next_cycle(fleet: Problem, cold: prices.Solved, now: Problem, seed: int) -> Small:
    """The plan that a running planner makes: only what changed since the last cycle, in which nothing had."""
    clusters = tuple(map(str, range(now.now.shape[1])))
    names = tuple(map(str, range(now.size)))
    before = later(fleet, cold.plan, "none", seed)
    warm = Warm(names, clusters, before, cold.plan, cold.out, cold.price, cold.cost, cold.least, cold.gap_ratio)
    return plan_next(now, names, clusters, warm, seed).plan


def peak_mb(fleet: Problem, cold: prices.Solved) -> float:
    """The most memory that the process had after all ways of planning, before anything measures the plans."""
    now = later(fleet, cold.plan, "some", 0)
    prices.solve_all(now, price=cold.price, start=now.now, seed=0)
    next_cycle(fleet, cold, now, 0)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(size: str, seeds: int) -> bool:
    """Prints the figures of one size."""
    tally, first, peers = Tally(), make(size, 1000), rules.Peers()
    begun, compile_s = timed(lambda: prices.solve_all(first, seed=0))
    memory = peak_mb(first, begun)
    rival(f"placement_{size}_first_plan_with_compiling_or_loading", compile_s, "s")
    for seed in range(seeds):
        fleet = make(size, seed)
        cold, seconds = timed(lambda fleet=fleet, seed=seed: prices.solve_all(fleet, seed=seed))  # type: ignore[misc]  # bound now
        tally.times["cold"].append(seconds)
        tally.note(fleet, cold.plan, float(cold.cost.sum()), integer_bound(fleet, cold.price))
        peers.cold(fleet, tally.gaps[-1], float(cold.cost.sum()))
        # The largest fleet takes minutes an event; noise is told of the others.
        for event in EVENTS if fleet.size <= prices.HUGE else ("shift", "some"):
            _event(tally, peers, fleet, cold, event, seed)
    return _print(size, tally, peers, memory)


def _event(tally: Tally, peers: rules.Peers, fleet: Problem, cold: prices.Solved, event: str, seed: int) -> None:
    now = later(fleet, cold.plan, event, seed)
    found, seconds = timed(lambda: prices.solve_all(now, price=cold.price, start=now.now, seed=seed))
    tally.times["full"].append(seconds)
    bound = integer_bound(now, found.price)
    tally.note(now, found.plan, float(found.cost.sum()), bound)
    tally.certified.append(100 * found.gap_ratio)
    if event == "noise":
        tally.full_churn.append(moved(now, found.plan))
        plan = next_cycle(fleet, cold, now, seed)
        tally.churn.append(moved(now, plan))
        tally.still.append(100 * (rules.cost_of(now, plan) - float(found.cost.sum())) / bound)
    if event == "shift":
        peers.after(now, found.cost, bound)
    if event == "some":
        begun = time.process_time()
        plan = next_cycle(fleet, cold, now, seed)
        tally.times["some"].append(time.process_time() - begun)
        tally.some_gaps.append(100 * (rules.cost_of(now, plan) - bound) / bound)
        found_violations = violations(now, plan)
        tally.broken += sum(found_violations[k] for k in HARD)


def _print(size: str, tally: Tally, peers: rules.Peers, memory: float) -> bool:
    bounds = BOUNDS[size]
    name = f"placement_{size}"
    good = [
        line(f"{name}_gap_median", statistics.median(tally.gaps), "%", GAPS[size][0]),
        line(f"{name}_gap_max", max(tally.gaps), "%", GAPS[size][1]),
        line(f"{name}_certified_lp_gap_median", statistics.median(tally.certified), "%", 100.0),
        *(line(f"{name}_{k}_cpu_p95", quantile(v, 0.95), "s", bounds[k]) for k, v in tally.times.items()),
        line(f"{name}_peak_memory", memory, "MB", bounds["memory"]),
        line(f"{name}_violations", tally.broken, "", 0),
        line(f"{name}_without_a_place", tally.out, "replicas", 0),
        line(f"{name}_spread_missed", tally.spread, "workloads", 0),
        line(f"{name}_some_gap_max", max(tally.some_gaps), "%", GAPS[size][1]),
        *(line(f"{name}_extra_cost_under_noise_max", v, "%", 0.3) for v in ([max(tally.still)] if tally.still else [])),
        *(line(f"{name}_moved_under_noise_max", v, "%", 0.2) for v in ([max(tally.churn)] if tally.churn else [])),
    ]
    if tally.full_churn:
        rival(f"{name}_moved_under_noise_by_full_plan_max", max(tally.full_churn), "%")
    peers.show(name)
    return all(good)


def measure_small(seeds: int) -> bool:
    """Small fleets are solved by HiGHS: its own bound, its own time."""
    gaps, seconds = [], []
    for seed in range(seeds):
        fleet = make("8x50", seed)
        begun = time.process_time()
        found = audit(fleet, whole=True, gap=CLOSE_GAP, nodes=CLOSE_NODES)
        seconds.append(time.process_time() - begun)
        gaps.append(100 * (found.value - found.bound) / found.bound)
    return all([line("placement_8x50_exact_gap_max", max(gaps), "%", 0.1),
                line("placement_8x50_exact_cpu_max", max(seconds), "s", 5.0)])  # fmt: skip


def main() -> int:
    """Prints all figures; the exit code is 1 if one is short."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", action="append", choices=list(SIZES), help="default: 8x50 and 20x1,000")
    parser.add_argument("--seeds", type=int, help="fleets per size")
    given = parser.parse_args()
    good = []
    for size in given.size or ["8x50", "20x1,000"]:
        seeds = given.seeds or SEEDS[size]
        good.append(measure_small(seeds) if size == "8x50" else measure(size, seeds))
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
