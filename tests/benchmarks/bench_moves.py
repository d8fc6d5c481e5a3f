"""Figures of the moves: `python -m tests.benchmarks.bench_moves [--seeds N]`, over generated fleets at 85 % use.

Waves: a fleet of 20 clusters and 1,000 workloads stands as planned and meets an event (shift of demand, outage, dearer
region). What fits into free room begins, then what it replaces goes, and the next wave is planned into that room; all
waves together have the budgets of one cycle. Told is the share of moves that the first two waves leave over; what was
broken at any instant: room, residency, budgets, gangs, or ready replicas below what was there and is wanted; and how
far two waves are from a plan that moves everything at once, as if room were there before it is left.

Explained: small fleets run under the planner itself through the same events until they rest. Told is the share of
explained moves that gain nothing; with a cluster to be emptied as well, those of them that are not marked as forced;
and again what was broken.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from rebalancer.core.model import Action
from rebalancer.core.placement.prices import Solved, solve_all
from rebalancer.core.placement.problem import Problem, violations
from rebalancer.core.planning.actions import FORCED
from tests.benchmarks.bench_placement import HARD
from tests.benchmarks.figures import line, rival
from tests.benchmarks.fleets import later, make
from tests.benchmarks.rules import cost_of
from tests.benchmarks.standing import Standing

EVENTS, DRAIN = ("shift", "outage", "price"), "drain"
MAX_WAVES, MAX_CYCLES, QUIET_CYCLES = 8, 60, 12
"""A fleet rests when nothing was done for longer than stabilisation and cool-down take."""
SMALL = (8, 60)
"""Clusters and workloads of a fleet that the planner solves exactly."""


@dataclass(slots=True)
class Waves:
    """What the waves after one event did.

    Attributes:
        begun: replicas that began, by wave, until none did.
        broken: what was broken on the way.
        out: replicas without a place after two waves.
        dearer: how much more the fleet then costs than if all moved at once, %, of what has a place in both.
    """

    begun: list[int]
    broken: int
    out: int
    dearer: float


def waves(now: Problem, cold: Solved, seed: int) -> Waves:
    """Carries an event out in waves: each begins what fits into the room that is free, and ends what that replaces."""
    standing, begun, broken = now.now, np.zeros_like(now.now), 0
    found, plans = [], [standing]
    for _ in range(MAX_WAVES):
        left = now.capacity - np.stack([now.cpu @ standing, now.memory @ standing, begun.sum(axis=0)])
        wave = replace(
            now, now=standing, leaving=False, capacity=np.maximum(left, 0.0),
            budget=np.maximum(0.0, now.budget - begun.sum(axis=1)),
        )  # fmt: skip
        plan = solve_all(wave, price=cold.price, start=standing, seed=seed).plan
        counts = violations(wave, plan)
        kept = np.minimum(standing.sum(axis=1), now.replicas)
        broken += sum(counts[k] for k in HARD) + int((plan.sum(axis=1) < kept).sum())
        if (plan == standing).all():
            break
        added = np.maximum(plan - standing, 0)
        found.append(int(added.sum()))
        begun, standing = begun + added, plan
        plans.append(plan)
    after = plans[min(2, len(plans) - 1)]
    at_once = solve_all(now, price=cold.price, start=now.now, seed=seed).plan
    missing = np.maximum(0, now.replicas - after.sum(axis=1))
    both = np.flatnonzero((missing == 0) & (at_once.sum(axis=1) >= now.replicas))
    costs = [cost_of(now.rows(both, now.capacity), plan[both]) for plan in (after, at_once)]
    return Waves(found, broken, int(missing.sum()), 100.0 * (costs[0] / costs[1] - 1.0))


def measure_waves(seeds: int) -> bool:
    """Prints by event what two waves leave over, and how far they are from moving everything at once."""
    good = []
    for event in EVENTS:
        found = []
        for seed in range(seeds):
            fleet = make("20x1,000", seed)
            cold = solve_all(fleet, seed=seed)
            found.append(waves(later(fleet, cold.plan, event, seed), cold, seed))
        name = f"moves_20x1,000_{event}"
        rival(f"{name}_replicas_begun", sum(sum(w.begun) for w in found), "replicas")
        over = [100.0 * sum(w.begun[2:]) / max(1, sum(w.begun)) for w in found]
        good += [
            line(f"{name}_left_after_two_waves_max", max(over), "%", 5.0),
            line(f"{name}_broken", sum(w.broken for w in found), "", 0),
            line(f"{name}_without_a_place_after_two_waves", sum(w.out for w in found), "replicas", 0),
            line(f"{name}_dearer_than_all_at_once_max", max(w.dearer for w in found), "%", 1.0),
        ]
    return all(good)


def until_rest(standing: Standing) -> Iterator[tuple[Action, ...]]:
    """What each cycle does, until the fleet rests."""
    quiet = 0
    for _ in range(MAX_CYCLES):
        actions = standing.cycle().actions
        quiet = 0 if actions else quiet + 1
        yield actions
        if quiet > QUIET_CYCLES:
            return


def measure_explained(seeds: int) -> bool:
    """Prints how many explained moves of the planner gain nothing, and what it broke."""
    moves: dict[str, list[Action]] = {event: [] for event in (*EVENTS, DRAIN)}
    broken, undone = 0, 0
    for seed in range(seeds):
        fleet = make(SMALL, seed)
        cold = solve_all(fleet, seed=seed)
        smallest = f"c{int(np.argmin(fleet.capacity[0]))}"
        for event, found in moves.items():
            standing = Standing.of(later(fleet, cold.plan, event, seed), smallest if event == DRAIN else "")
            for actions in until_rest(standing):
                found += [a for a in actions if a.why is not None]
                undone += sum(a.reason in ("move-timed-out", "move-cancelled") for a in actions)
            broken += standing.overfull + standing.short + sum(p.conflicts for p in standing.plants.values())
    every = [a for found in moves.values() for a in found]
    free = [a for event in EVENTS for a in moves[event]]
    rival("moves_explained", len(every), "moves")
    rival("moves_forced_by_a_drain", sum(a.forced for a in moves[DRAIN]), "moves")
    return all([
        line("moves_explained_without_gain", 100.0 * sum(a.forced for a in free) / max(1, len(free)), "%", 5.0),
        line("moves_without_gain_not_marked", sum(a.forced and a.reason not in FORCED for a in every), "moves", 0),
        line("moves_undone", undone, "moves", 0),
        line("moves_planner_broken", broken, "", 0),
    ])  # fmt: skip


def main() -> int:
    """Prints all figures; the exit code is 1 if one is short."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3, help="fleets per event")
    seeds = parser.parse_args().seeds
    return 0 if all([measure_waves(seeds), measure_explained(seeds)]) else 1


if __name__ == "__main__":
    sys.exit(main())
