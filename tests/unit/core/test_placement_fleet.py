"""The large solver: what must hold in every plan, agreement with HiGHS, bounds that are bounds, and its cache."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from rebalancer.core.placement import Item, compile_kernels, solve
from rebalancer.core.placement.audit import audit
from rebalancer.core.placement.prices import Solved, solve_all, solve_some
from rebalancer.core.placement.problem import MAY_STAY, MUST_STAY, Problem, violations
from tests.benchmarks.fleets import EVENTS, later, make

# The first run on a machine compiles the kernels, which takes a minute or two.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
HARD = ("capacity", "cluster_churn", "barred", "must_stay", "churn", "gang", "cluster_max", "spot", "too_many")


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    compile_kernels()


def broken(problem: Problem, found: Solved) -> dict[str, int]:
    counts = violations(problem, found.plan)
    return {k: counts[k] for k in HARD if counts[k]}


def twisted(problem: Problem, seed: int) -> Problem:
    """A fleet that stands anyhow: replicas that must stay or leave, tight budgets, and only free room counts."""
    rng = np.random.default_rng(seed)
    shape = problem.now.shape
    now = (rng.integers(0, 4, shape) * (rng.random(shape) < 0.3)).astype(np.int32)
    state = np.where(rng.random(shape) < 0.1, MAY_STAY | MUST_STAY, np.where(rng.random(shape) < 0.15, 0, MAY_STAY))
    held = np.where(state & MUST_STAY, now, 0).sum(axis=1)
    total = np.maximum(problem.replicas, held)
    add = np.where(state == MAY_STAY, rng.integers(0, 6, shape), 0)
    return replace(
        problem, now=now, state=state.astype(np.int8), add=add.astype(np.int32), replicas=total,
        budget=rng.integers(0, 8, len(total)).astype(float), min_regions=rng.integers(1, 3, len(total)),
        share=np.maximum(1, total // rng.integers(1, 4, len(total))), floor=rng.integers(0, 2, len(total)),
        cluster_max=total.copy(), spot_max=np.where(rng.random(len(total)) < 0.3, total // 2, total),
        capacity=problem.capacity * 0.3, leaving=np.zeros(len(total), np.bool_),
    )  # fmt: skip


@given(st.integers(0, 10_000), st.integers(2, 9), st.integers(1, 40), st.sampled_from([0.6, 0.85, 1.0, 1.3]))
@settings(max_examples=60, deadline=None)
def test_what_must_hold_holds_in_every_first_placement(seed: int, clusters: int, workloads: int, use: float) -> None:
    fleet = make((clusters, workloads), seed, use)
    found = solve_all(fleet, seed=seed)
    assert broken(fleet, found) == {}
    assert (found.plan.sum(axis=1) + found.out == fleet.replicas).all()


@given(st.integers(0, 10_000), st.integers(2, 9), st.integers(1, 40), st.sampled_from(EVENTS))
@settings(max_examples=60, deadline=None)
def test_what_must_hold_holds_after_every_event(seed: int, clusters: int, workloads: int, event: str) -> None:
    fleet = make((clusters, workloads), seed)
    before = solve_all(fleet, seed=seed)
    now = later(fleet, before.plan, event, seed)
    found = solve_all(now, price=before.price, start=now.now, seed=seed)
    assert broken(now, found) == {}


@given(st.integers(0, 10_000), st.integers(2, 9), st.integers(1, 40))
@example(413, 8, 31)
@example(972, 8, 10)  # a gang of which a part must stay, with more spot replicas than it may have
@settings(max_examples=80, deadline=None)
def test_what_must_hold_holds_in_a_fleet_that_stands_anyhow(seed: int, clusters: int, workloads: int) -> None:
    fleet = twisted(make((clusters, workloads), seed), seed)
    found = solve_all(fleet, start=fleet.now, seed=seed)
    assert broken(fleet, found) == {}
    leaving = (fleet.state == 0) & (found.plan > 0)
    assert not leaving.any(), "what has to leave left"


@given(st.integers(0, 100_000), st.integers(2, 8))
@settings(max_examples=100, deadline=None)
def test_one_workload_is_placed_as_highs_places_it(seed: int, clusters: int) -> None:
    fleet = make((clusters, 1), seed, use=0.2)
    found, exact = solve_all(fleet, seed=seed), audit(fleet, whole=True, gap=1e-9)
    # Where not everything has a place, HiGHS may trade spread for replicas several at a time.
    assume(round(exact.plan.sum()) == fleet.replicas.sum())
    assert float(found.cost.sum()) == pytest.approx(exact.value, abs=1e-5 * max(1.0, exact.value))


@given(st.integers(0, 100_000), st.integers(2, 6), st.integers(2, 12))
@settings(max_examples=40, deadline=None)
def test_no_plan_is_cheaper_than_the_bound(seed: int, clusters: int, workloads: int) -> None:
    fleet = make((clusters, workloads), seed)
    found, exact = solve_all(fleet, seed=seed), audit(fleet, whole=True)
    assert found.bound <= exact.value * (1 + 1e-6) + 1e-6
    assert float(found.cost.sum()) >= exact.bound * (1 - 1e-6) - 1e-6


def test_the_bound_covers_clusters_that_are_on_no_list() -> None:
    fleet = make((40, 60), 3)
    found, relaxed = solve_all(fleet, seed=0), audit(replace(fleet, gang=np.zeros_like(fleet.gang)))
    assert found.bound <= audit(fleet).value * 1.02
    assert found.gap_ratio >= 0
    assert relaxed.value > 0


def test_the_same_seed_gives_the_same_plan() -> None:
    fleet = make((8, 60), 5)
    first, second = (solve_all(fleet, seed=1) for _ in range(2))
    assert (first.plan == second.plan).all()
    assert (first.price == second.price).all()


def test_planning_some_leaves_the_others() -> None:
    fleet = make((10, 200), 1)
    before = solve_all(fleet, seed=0)
    now = later(fleet, before.plan, "some", 1)
    changed = np.flatnonzero(np.abs(now.demand - fleet.demand).sum(axis=1) > 1e-9)
    found = solve_some(now, changed, now.now, before.price, 0)
    plan = now.now.copy()
    plan[changed] = found.plan
    assert {k: v for k, v in violations(now, plan).items() if v and k in HARD} == {}


# --- through the door of the planner


def items(count: int, demand: float = 1.0) -> list[Item]:
    clusters = ("a", "b", "c", "d")
    return [
        Item(
            workload=f"shop/w{i:04d}", replicas=4, demand={"eu": 2.0 * demand, "us": 1.5 * demand}, clusters=clusters,
            now={c: 2 if c in "ab" else 0 for c in clusters},
            serve={(o, c): 0.01 * (1 + (j + k + i) % 4) for j, o in enumerate(("eu", "us"))
                   for k, c in enumerate(clusters)},
            run=dict.fromkeys(clusters, 0.01), add_max=dict.fromkeys(clusters, 4), cpu=1.0,
            regions={c: c for c in clusters}, priority=i % 3,
        )
        for i in range(count)
    ]  # fmt: skip


ROOM = {"a": 60.0, "b": 60.0, "c": 60.0, "d": 60.0}


def test_a_large_fleet_carries_its_gap_and_prices_of_room() -> None:
    found, warm = solve(items(150), ROOM, {}, kernels=True)
    assert warm is not None
    assert 0 <= found.gap_ratio < 0.1
    assert found.bound <= found.cost
    assert set(found.shadow) == {"a", "b", "c", "d"}
    used = {c: sum(max(0, p.replicas[c] - (2 if c in "ab" else 0)) for p in found.items.values()) for c in ROOM}
    assert all(used[c] <= ROOM[c] for c in ROOM)


def test_where_nothing_changed_the_plan_stays_as_it_is() -> None:
    first, warm = solve(items(150), ROOM, {}, kernels=True)
    second, after = solve(items(150), ROOM, {}, kernels=True, warm=warm)
    assert second.items == first.items
    assert second.cost == first.cost
    assert warm is not None
    assert after is not None
    assert (after.price == warm.price).all()


def test_what_did_not_change_is_not_planned_again() -> None:
    given_items = items(150)
    first, warm = solve(given_items, ROOM, {}, kernels=True)
    changed = [replace(given_items[0], replicas=6, demand={"eu": 3.0, "us": 2.5}), *given_items[1:]]
    second, _ = solve(changed, ROOM, {}, kernels=True, warm=warm)
    same = [w for w in first.items if w != given_items[0].workload]
    assert all(first.items[w] == second.items[w] for w in same)
    assert sum(second.items[given_items[0].workload].replicas.values()) == 6


def test_the_large_solver_costs_about_what_the_exact_one_costs() -> None:
    few = [replace(i, priority=0) for i in items(100)]
    idle = [replace(i, workload=f"z{n}", replicas=0, demand={}, now={}) for n, i in enumerate(items(5))]
    exact, _ = solve(few, ROOM, {})
    near, _ = solve([*few, *idle], ROOM, {}, kernels=True)
    # The exact program leaves out what removing every replica would cost, which is the same in every plan.
    removals = sum(sum(i.now.values()) for i in few) * 0.005 / 2.0
    assert near.cost - removals == pytest.approx(exact.cost, rel=0.01)
    assert near.bound - removals <= exact.cost * 1.001


def test_without_kernels_a_large_fleet_is_solved_in_batches_that_share_the_room() -> None:
    found, warm = solve(items(150), ROOM, {})
    assert warm is None
    used = {c: sum(max(0, p.replicas[c] - (2 if c in "ab" else 0)) for p in found.items.values()) for c in ROOM}
    assert all(used[c] <= ROOM[c] for c in ROOM)
