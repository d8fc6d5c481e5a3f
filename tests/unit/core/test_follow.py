"""What of a target begins beside what stands: never more than fits, never less than was there, and whole in the end."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rebalancer.core.placement.follow import follow, needs
from rebalancer.core.placement.problem import MAY_STAY, MUST_STAY, Floats, Problem, Small
from tests.benchmarks.fleets import make


def standing(seed: int, clusters: int, workloads: int) -> tuple[Problem, Small, Floats]:
    """A fleet as it stands anyhow, a target anyhow, and a capacity that holds either of them, but not both."""
    rng = np.random.default_rng(seed)
    fleet = make((clusters, workloads), seed)
    shape = fleet.now.shape
    now = (rng.integers(0, 4, shape) * (rng.random(shape) < 0.4)).astype(np.int32)
    state = np.where(rng.random(shape) < 0.1, MAY_STAY | MUST_STAY, np.where(rng.random(shape) < 0.1, 0, MAY_STAY))
    target = (rng.integers(0, 4, shape) * (rng.random(shape) < 0.4)).astype(np.int32)
    target = np.where(state & MUST_STAY, now, np.where(state & MAY_STAY, target, 0)).astype(np.int32)
    wanted = np.maximum(target.sum(axis=1), 1)
    spots = np.maximum(target[:, fleet.spot].sum(axis=1), wanted // 2)
    capacity = np.maximum(needs(fleet, now), needs(fleet, target))
    capacity[2] = 1e9
    asked = replace(
        fleet, now=now, state=state.astype(np.int8), replicas=wanted, spot_max=spots,
        add=np.full(shape, 100, np.int32), gang=np.where(rng.random(workloads) < 0.1, wanted, 0),
        leaving=np.zeros(workloads, np.bool_),
    )  # fmt: skip
    return asked, target, capacity


def free(problem: Problem, capacity: Floats) -> Problem:
    used = needs(problem, problem.now)
    used[2] = 0.0
    return replace(problem, capacity=np.maximum(capacity - used, 0.0))


@given(st.integers(0, 10_000), st.integers(2, 7), st.integers(1, 30))
@settings(max_examples=80, deadline=None)
def test_a_step_fits_beside_what_stands_and_takes_nobody_below_what_is_there_or_wanted(
    seed: int, clusters: int, workloads: int
) -> None:
    problem, target, capacity = standing(seed, clusters, workloads)
    problem = free(problem, capacity)
    step = follow(problem, target)
    stays = np.where((problem.state & MAY_STAY) > 0, problem.now, 0)
    added = np.maximum(step - stays, 0)
    assert (needs(problem, added) <= problem.capacity + 1e-6).all()
    assert (added <= np.maximum(target - stays, 0)).all(), "nothing begins that the target does not want there"
    assert (step >= np.minimum(stays, target)).all(), "nothing leaves that the target keeps"
    assert (step.sum(axis=1) >= np.minimum(stays.sum(axis=1), problem.replicas)).all()
    must = (problem.state & MUST_STAY) > 0
    assert (step[must] == problem.now[must]).all()
    spots = step[:, problem.spot].sum(axis=1)
    assert (spots <= np.maximum(problem.spot_max, stays[:, problem.spot].sum(axis=1))).all()
    gangs = problem.gang > 0
    assert ((added == 0) | (added == np.maximum(target - stays, 0)))[gangs].all(), "a gang begins as a whole"


def test_what_fits_is_the_target_itself() -> None:
    problem, target, capacity = standing(1, 4, 10)
    roomy = replace(problem, capacity=capacity * 1000)
    assert follow(roomy, target) is target


def one(now: list[list[int]], target: list[list[int]], room: list[float], **changes: object) -> list[list[int]]:
    """Workloads of one core each that want as many replicas as the target has; returns the step."""
    problem, _, _ = standing(0, len(room), len(now))
    wish, shape = np.array(target, np.int32), (len(now), len(room))
    capacity = np.array([room, [1e9] * len(room), [1e9] * len(room)])
    problem = replace(
        problem, now=np.array(now, np.int32), replicas=wish.sum(axis=1), cpu=np.ones(len(now)), capacity=capacity,
        state=np.full(shape, MAY_STAY, np.int8), gang=np.zeros(len(now), np.int64), spot=np.zeros(len(room), np.bool_),
        min_clusters=np.ones(len(now), np.int64), unplaced=np.full(len(now), 100.0),
    )  # fmt: skip
    problem = replace(problem, **changes)  # type: ignore[arg-type]  # fields of a table
    return [row.tolist() for row in follow(problem, wish)]


@pytest.mark.parametrize(
    ("sentence", "now", "target", "room", "changes", "step"),
    [
        ("what is missing comes before what only moves", [[1, 0], [0, 0]], [[0, 1], [0, 1]], [0, 1], {},
         [[1, 0], [0, 1]]),
        ("of what is missing, the dearest comes first", [[0], [0]], [[1], [1]], [1], {"unplaced": np.array([1.0, 2.0])},
         [[0], [1]]),
        ("who leaves a full cluster goes before who does not", [[0, 1, 0], [1, 0, 0], [0, 0, 0]],
         [[0, 0, 1], [0, 0, 1], [1, 0, 0]], [0, 5, 1], {}, [[0, 1, 0], [0, 0, 1], [0, 0, 0]]),
        ("two that are in each other's place wait", [[1, 0], [0, 1]], [[0, 1], [1, 0]], [0, 0], {}, [[1, 0], [0, 1]]),
        ("with room for one, one of them begins", [[1, 0], [0, 1]], [[0, 1], [1, 0]], [1, 0], {}, [[1, 0], [1, 0]]),
        ("of a gang nothing begins unless all fits", [[0]], [[3]], [2], {"gang": np.array([3])}, [[0]]),
    ],
)  # fmt: skip
def test_who_begins(
    sentence: str, now: list[list[int]], target: list[list[int]], room: list[float], changes: dict[str, object],
    step: list[list[int]],
) -> None:  # fmt: skip
    assert one(now, target, room, **changes) == step, sentence


@given(st.integers(0, 10_000), st.integers(2, 6), st.integers(1, 25))
@settings(max_examples=40, deadline=None)
def test_with_a_little_room_lent_waves_reach_the_target(seed: int, clusters: int, workloads: int) -> None:
    problem, target, capacity = standing(seed, clusters, workloads)
    largest = np.array([problem.cpu.max(), problem.memory.max(), 0.0])[:, None] * problem.replicas.max()
    for _ in range(60):
        step = follow(free(problem, capacity + largest), target)
        if (step == target).all():
            return
        problem = replace(problem, now=step)
    left = np.maximum(target - problem.now, 0).sum()
    assert left == 0, f"{left} replicas never began"
