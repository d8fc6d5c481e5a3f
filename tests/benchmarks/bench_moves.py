"""Figures of the moves: `python -m tests.benchmarks.bench_moves [--seeds N]`, over generated fleets at 85 % use.

Waves: a fleet of 20 clusters and 1,000 workloads stands as planned and meets an event (shift of demand, outage, dearer
region). Each wave plans where the fleet should stand, begins what fits beside what stands there (in the reserve, too,
which is on top of what the plan may fill), then what it replaces goes; four waves together have the moves of an hour.
Told is the share of the first plan's moves that two waves leave over; what was broken at any instant: room, residency,
budgets, gangs, or ready replicas below what was there and is wanted; and how far two hours end from a plan that moves
everything at once, as if room were there before it is left.

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
from rebalancer.core.placement.follow import follow, needs
from rebalancer.core.placement.prices import Solved, solve_all
from rebalancer.core.placement.problem import UNBOUND, Floats, Problem, Small, violations
from rebalancer.core.planning.actions import FORCED
from tests.benchmarks.bench_placement import HARD
from tests.benchmarks.figures import line, rival
from tests.benchmarks.fleets import later, make
from tests.benchmarks.rules import cost_of
from tests.benchmarks.standing import Standing

MARKED = FORCED | {"makes-room"}
EVENTS, DRAIN = ("shift", "outage", "price"), "drain"
LENT = 1.0 / 0.95
"""Capacity while replicas move, by the usual reserve of 5 %."""
HOURS, WAVES = 2, 4
MAX_CYCLES, QUIET_CYCLES = 60, 12
"""A fleet rests when nothing was done for longer than stabilisation and cool-down take."""
SMALL = (8, 60)
"""Clusters and workloads of a fleet that the planner solves exactly."""


@dataclass(slots=True)
class Waves:
    """What the waves after one event did.

    Attributes:
        begun: replicas that began, by wave.
        left: share of the starts of the first target that two waves leave over where it is not planned anew.
        broken: what was broken on the way.
        out: replicas without a place, after two waves and at the end.
        dearer: how much more the fleet then costs than if all moved at once, %, of what has a place in both.
    """

    begun: list[int]
    left: float
    broken: int
    out: list[int]
    dearer: list[float]


def waves(now: Problem, cold: Solved, seed: int) -> Waves:
    """Carries an event out in waves, each the part of a new target that fits, and ends what that replaces."""
    standing, hour, broken = now.now, np.zeros_like(now.now), 0
    found, plans, price, budget = [], [standing], cold.price, now.budget
    for number in range(HOURS * WAVES):
        if number % WAVES == 0 and number:
            quarter = np.maximum(1.0, np.ceil(0.25 * standing.sum(axis=1)))
            hour, budget = np.zeros_like(hour), np.where(now.gang > 0, now.budget, quarter)
        wave = replace(now, now=standing, budget=np.maximum(0.0, budget - hour.sum(axis=1)))
        target = solve_all(wave, price=price, start=standing, seed=seed)
        price = target.price
        free = replace(wave, leaving=np.zeros(now.size, np.bool_), capacity=_free(now, standing, now.capacity * LENT))
        plan = follow(free, target.plan)
        _elsewhere(replace(free, capacity=_free(now, standing, now.capacity)), plan, price, seed)
        counts = violations(free, plan)
        kept = np.minimum(standing.sum(axis=1), now.replicas)
        broken += sum(counts[k] for k in HARD) + int((plan.sum(axis=1) < kept).sum())
        added = np.maximum(plan - standing, 0)
        found.append(int(added.sum()))
        hour, standing = hour + added, plan
        plans.append(plan)
    after = plans[2]
    at_once = solve_all(now, price=cold.price, start=now.now, seed=seed).plan
    return Waves(
        found, _left_over(now, at_once), broken,
        [int(np.maximum(0, now.replicas - p.sum(axis=1)).sum()) for p in (after, standing)],
        [_dearer(now, p, at_once) for p in (after, standing)],
    )  # fmt: skip


def _left_over(now: Problem, target: Small) -> float:
    """Share of a target's starts that two waves leave over, nothing being planned anew."""
    standing = now.now
    for _ in range(2):
        room = _free(now, standing, now.capacity * LENT)
        standing = follow(replace(now, now=standing, leaving=np.zeros(now.size, np.bool_), capacity=room), target)
    return float(np.maximum(target - standing, 0).sum() / max(1, np.maximum(target - now.now, 0).sum()))


def _free(problem: Problem, standing: Small, capacity: Floats) -> Floats:
    """(3, C) what is left beside what stands; the starts of a cycle are there for each wave."""
    used = needs(problem, standing)
    used[2] = 0.0
    return np.asarray(np.maximum(capacity - used, 0.0), np.float64)


def _elsewhere(free: Problem, plan: Small, price: Floats, seed: int) -> None:
    """Places what is missing wherever there is room, as the planner does; `plan` is changed."""
    short = np.flatnonzero(plan.sum(axis=1) < free.replicas)
    if not len(short):
        return
    left = np.maximum(free.capacity - free.use(plan), 0.0)
    begun = np.maximum(plan[short] - free.now[short], 0)
    rows = replace(
        free.rows(short, left), now=plan[short], add=np.maximum(0, free.add[short] - begun).astype(np.int32),
        budget=(free.replicas - plan.sum(axis=1))[short].astype(np.float64),
    )  # fmt: skip
    plan[short] = solve_all(rows, price=price, start=rows.now, seed=seed).plan


def _dearer(now: Problem, plan: Small, at_once: Small) -> float:
    """How much more a plan costs than one that moves all at once, %, of what has a place in both."""
    both = np.flatnonzero((plan.sum(axis=1) >= now.replicas) & (at_once.sum(axis=1) >= now.replicas))
    # What two hours began is more than one hour's budget, which is no matter of what a plan costs.
    free = replace(now, budget=np.full(now.size, UNBOUND))
    costs = [cost_of(free.rows(both, now.capacity), p[both]) for p in (plan, at_once)]
    return 100.0 * (costs[0] / costs[1] - 1.0)


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
        rival(f"{name}_without_a_place_after_two_waves", sum(w.out[0] for w in found), "replicas")
        rival(f"{name}_dearer_after_two_waves_max", max(w.dearer[0] for w in found), "%")
        good += [
            line(f"{name}_left_after_two_waves_max", 100.0 * max(w.left for w in found), "%", 5.0),
            line(f"{name}_broken", sum(w.broken for w in found), "", 0),
            line(f"{name}_without_a_place_at_the_end", sum(w.out[1] for w in found), "replicas", 0),
            line(f"{name}_dearer_than_all_at_once_max", max(w.dearer[1] for w in found), "%", 1.0),
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
        line("moves_without_gain_not_marked", sum(a.forced and a.reason not in MARKED for a in every), "moves", 0),
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
