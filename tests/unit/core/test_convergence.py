"""Cycle after cycle: the fleet comes to rest, nothing goes to and fro, nothing is missing on the way."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rebalancer.core.model import Placement, SetReplicas
from rebalancer.core.moves import HOUR_S, ended, records
from rebalancer.core.policy import Policy, resolve_count
from tests.unit.core.fleet import NOW, POLICY, REGIONS, cluster_state, placement
from tests.unit.core.plant import Plant

TARGET = {"eu": 38.0, "us": 38.0, "ap": 38.0}


def rest(plant: Plant, cycles: int = 150) -> list[dict[str, int]]:
    """Lets cycles run until four plans in a row are empty; returns the placements on the way."""
    path, still = [plant.wanted], 0
    for _ in range(cycles):
        still = still + 1 if not plant.cycle().actions else 0
        path.append(plant.wanted)
        if still >= 4 and plant.memory.recommendations and plant.now - NOW > 700:
            return path
    raise AssertionError(f"no rest after {cycles} cycles: {path[-6:]}")


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(
    replicas=st.tuples(*[st.integers(0, 7)] * 3),
    load=st.tuples(*[st.integers(0, 60)] * 3),
    concurrent=st.integers(1, 3),
    spread=st.sampled_from([1, 2]),
)
@example((7, 3, 2), (45, 52, 4), 1, 1)  # the decrease fell on the one cluster that no move held, and came back
def test_the_planner_comes_to_rest_with_no_fewer_ready_than_are_wanted(
    replicas: tuple[int, ...], load: tuple[int, ...], concurrent: int, spread: int
) -> None:
    origins = {o: float(v) for o, v in zip(("eu", "us", "ap"), load, strict=True)}
    policy = replace(POLICY, max_concurrent_moves=concurrent, min_clusters=spread)
    plant = Plant.of(dict(zip(REGIONS, replicas, strict=True)), origins, policy=policy)
    floor = plant.ready
    for _ in range(80):
        found = plant.cycle()
        wanted = found.workloads["shop/web"].wanted
        assert wanted is not None
        floor = min(floor, wanted)
        assert plant.ready >= floor
        assert len(records(plant.placements)) <= concurrent
    assert plant.conflicts == 0
    assert [plant.cycle().actions for _ in range(3)] == [(), (), ()]
    moved = [(m.source, m.target) for m in ended(plant.placements).values() if m.outcome == "done"]
    assert not [pair for pair in moved if pair[::-1] in moved], "a replica went to and fro"


def test_replicas_end_where_their_users_are() -> None:
    plant = Plant.of({"eu-1": 12}, TARGET)
    path = rest(plant)
    assert path[-1] == {"eu-1": 4, "us-1": 4, "ap-1": 4}
    assert all(sum(step.values()) >= 12 for step in path)


@pytest.mark.parametrize("budget", ["25%", 1])
@pytest.mark.slow
def test_the_hourly_budget_holds_at_every_moment(budget: int | str) -> None:
    policy: Policy = replace(POLICY, max_moves_per_hour=budget, max_concurrent_moves=3)
    plant = Plant.of({"eu-1": 12}, TARGET, policy=policy)
    for _ in range(65):
        plant.cycle()
        begun = [(t, s) for t, s in plant.writes if isinstance(s, SetReplicas) and s.replicas > s.expected]
        last = sum(s.replicas - s.expected for t, s in begun if plant.now - t <= HOUR_S)
        assert last <= max(1, resolve_count(budget, 12 + last)) + resolve_count(budget, 12)
        assert sum(r.replicas for r in records(plant.placements).values()) <= max(1, resolve_count(budget, 13))


def test_noise_within_one_replica_moves_nothing() -> None:
    plant = Plant.of({"eu-1": 4, "us-1": 4, "ap-1": 4}, dict(TARGET))
    for i in range(40):
        plant.origins = {o: v + (0.8 if (i + n) % 2 else -0.8) for n, (o, v) in enumerate(TARGET.items())}
        assert plant.cycle().actions == ()


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(
    start=st.sampled_from([{"eu-1": 12}, {"eu-1": 4}, {"us-1": 3, "ap-1": 3}]),
    kills=st.lists(st.integers(0, 5), min_size=1, max_size=12),
    delay=st.sampled_from([0.0, 90.0]),
)
def test_a_kill_between_any_two_steps_ends_in_the_same_place(
    start: dict[str, int], kills: list[int], delay: float
) -> None:
    origins = {o: 9.5 * sum(start.values()) / 3 for o in ("eu", "us", "ap")}
    calm = Plant.of(start, origins, delay_s=delay)
    rest(calm)
    killed = Plant.of(start, origins, delay_s=delay)
    lowest = killed.ready
    for stop_after in kills:
        killed.cycle(stop_after)
        lowest = min(lowest, killed.ready)
        killed.memory = replace(killed.memory, recommendations={}, capacity={})
    for step in rest(killed):
        assert sum(step.values()) >= lowest
    assert lowest >= sum(start.values())
    assert killed.wanted == calm.wanted
    assert not records(killed.placements)
    ids = [m.id for p in killed.placements.values() for m in p.moved]
    assert all(ids.count(i) <= 2 for i in ids), "an end is noted once on each side"


@pytest.mark.parametrize("kills", [[0, 1, 2], [3, 1, 1], [4, 0, 1, 2]])
def test_a_kill_at_one_of_a_few_places_ends_in_the_same_place(kills: list[int]) -> None:
    origins = {"eu": 9.5, "us": 19.0, "ap": 9.5}
    calm, killed = (Plant.of({"eu-1": 4}, origins, delay_s=90.0) for _ in range(2))
    rest(calm)
    for stop_after in kills:
        killed.cycle(stop_after)
        assert killed.ready >= 4
    assert all(sum(step.values()) >= 4 for step in rest(killed))
    assert killed.wanted == calm.wanted


def test_replicas_that_never_become_ready_are_taken_back_and_not_tried_again_at_once() -> None:
    plant = Plant.of({"eu-1": 4}, {"ap": 38.0}, delay_s=1e9)
    tried = 0
    for _ in range(55):
        found = plant.cycle()
        tried += sum(1 for a in found.actions if a.kind != "scale" and a.reason == "closer-to-users")
        assert plant.ready == 4
    assert tried == 1
    assert plant.wanted == {"eu-1": 4, "us-1": 0, "ap-1": 0}


def test_a_move_whose_source_is_lost_before_the_target_was_raised_does_not_count_as_capacity() -> None:
    plant = Plant.of({"eu-1": 8}, {"ap": 38.0, "eu": 38.0})
    plant.cycle(stop_after=2)
    assert len(records(plant.placements)) == 1
    plant.now += 900
    plant.scene = {"states": {"eu-1": cluster_state("eu-1", seen_s=plant.now - 900)}}
    for _ in range(5):
        found = plant.cycle(seconds=0.0)
    standing: dict[str, Placement] = {c: p for c, p in plant.placements.items() if c != "eu-1"}
    assert sum(p.wanted for p in standing.values()) == found.workloads["shop/web"].wanted == 8


def test_a_fleet_of_one_replica_in_a_full_cluster_stays() -> None:
    full = {c: cluster_state(c, room_cpu=0.0) for c in REGIONS}
    plant = Plant({c: placement(c, 2 if c == "eu-1" else 0) for c in REGIONS}, {"ap": 19.0}, scene={"states": full})
    assert plant.cycle().actions == ()
