"""Scenes of loss, of moves that undo each other, and of measurements; test_fleet_scenarios lists all scenes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from rebalancer.api.base import WorkloadRef
from rebalancer.core.forecast import DEFAULT_QUANTILES
from rebalancer.core.model import TOTAL, Forecast, Moved, Placement, SetReplicas
from rebalancer.core.moves import HOUR_S
from rebalancer.core.planning import PlanMemory, PlanSettings, planning
from rebalancer.core.policy import SETTINGS, resolve_count
from tests.unit.core.fleet import NOW, POLICY, REGIONS, WEB, cluster_state, demand, placement, snapshot
from tests.unit.core.plant import Plant
from tests.unit.core.scenes import CALM, CPU, one

EVEN = {"eu": 29.0, "us": 29.0, "ap": 29.0}
THIRDS = {"eu-1": 3, "us-1": 3, "ap-1": 3}


def changes(plant: Plant, since: float = 0.0) -> list[tuple[float, SetReplicas]]:
    return [(t, s) for t, s in plant.writes if isinstance(s, SetReplicas) and t >= since]


# --- B. Capacity truth


@pytest.mark.parametrize("kind", ["Job", "CronJob", "StatefulSet", "DaemonSet", "Pod"])
def test_s22_s23_s37_jobs_and_what_must_exist_once_can_not_be_given_to_the_planner(kind: str) -> None:
    with pytest.raises(ValidationError, match="kind"):
        WorkloadRef.model_validate({"kind": kind, "name": "web"})


# --- C. Lost sight, failover, failback


def test_s31_what_is_out_of_sight_for_a_while_stays_as_it_is_written_on_its_objects() -> None:
    plant = Plant.of(THIRDS, dict(EVEN))
    for _ in range(15):
        plant.cycle()
    gone = plant.now - 45.0
    for cycle in range(4):
        plant.scene = {"states": {"us-1": cluster_state("us-1", seen_s=gone)}}
        plant.origins = {"eu": 58.0, "ap": 29.0}
        plant.cycle()
        if cycle == 1:
            # A restart: nothing but the clocks is known of before.
            plant.memory = PlanMemory(clocks=plant.memory.clocks)
    plant.scene, plant.origins = {}, dict(EVEN)
    for _ in range(15):
        plant.cycle()
    assert plant.wanted == THIRDS
    assert "us-1" not in {s.cluster for _, s in changes(plant)}


def test_s35_what_was_asked_for_during_the_outage_is_done_after_it() -> None:
    plant = Plant.of(THIRDS, dict(EVEN))
    for _ in range(3):
        plant.cycle()
    gone = plant.now
    for _ in range(20):
        plant.scene = {"states": {"us-1": cluster_state("us-1", seen_s=gone, drain=True)}}
        plant.cycle()
    assert plant.wanted["us-1"] == 3, "nothing is deleted where nobody looks"
    for _ in range(40):
        plant.scene = {"states": {"us-1": cluster_state("us-1", seen_s=plant.now, drain=True)}}
        plant.cycle()
        assert plant.ready >= 9
    assert plant.wanted["us-1"] == 0
    assert sum(plant.wanted.values()) == 9


# --- D. Safe moves and churn


@pytest.mark.parametrize(("worth", "back"), [(0.2, False), (0.08, False), (0.05, True)])
def test_s41_a_move_is_undone_during_its_cool_down_only_for_twice_its_worth(worth: float, back: bool) -> None:
    brought = Moved("m", NOW - 300, "eu-1", "ap-1", 4, "done", worth)
    here: dict[str, int | Placement] = {"eu-1": 0, "us-1": 0, "ap-1": placement("ap-1", 4, moved=(brought,))}
    found = one(here, {"eu": 38.0}, replace(POLICY, max_moves_per_hour=8))
    assert {(a.source, a.target) for a in found.actions} == ({("ap-1", "eu-1")} if back else set())
    assert ("cool-down" in {r.reason for r in found.refusals}) is not back
    if back:
        (action,) = found.actions
        assert action.gain / action.replicas >= 2 * worth


def test_s45_no_more_replicas_follow_to_where_the_last_ones_did_not_stay_ready() -> None:
    plant = Plant.of({"eu-1": 8}, {"ap": 38.0, "eu": 38.0})
    while plant.wanted["ap-1"] < 2 or plant.placements["ap-1"].move is not None:
        plant.cycle()
    # One that came is evicted, and its successor never gets ready.
    plant.placements["ap-1"] = replace(plant.placements["ap-1"], ready_since_s=(NOW,))
    before = plant.now
    for _ in range(30):
        found = plant.cycle()
        assert not [a for a in found.actions if a.target == "ap-1" and a.kind != "scale"]
    assert "not-settled" in {r.reason for r in found.refusals}
    plant.placements["ap-1"] = replace(plant.placements["ap-1"], ready_since_s=(NOW, plant.now))
    for _ in range(40):
        plant.cycle()
    assert plant.wanted == {"eu-1": 4, "us-1": 0, "ap-1": 4}
    assert changes(plant, before)


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(
    budget=st.sampled_from([1, 2, "25%", "50%"]),
    flips=st.lists(st.integers(5, 40), min_size=4, max_size=8),
    concurrent=st.integers(1, 3),
    delay_s=st.sampled_from([0.0, 90.0, 1e9]),
)
def test_s47_starts_and_stops_of_moves_in_any_hour_are_within_the_budget(
    budget: int | str, flips: list[int], concurrent: int, delay_s: float
) -> None:
    policy = replace(POLICY, max_moves_per_hour=budget, max_concurrent_moves=concurrent)
    plant = Plant.of({"eu-1": 6, "ap-1": 6}, {}, policy=policy, delay_s=delay_s)
    users = ({"eu": 57.0, "ap": 57.0}, {"us": 114.0})
    for number, cycles in enumerate(flips):
        plant.origins = users[number % 2]
        for _ in range(cycles):
            plant.cycle()
    allowed = max(1, resolve_count(budget, 12 + resolve_count(budget, 12)))
    for end, _ in changes(plant):
        window = [s.replicas - s.expected for t, s in changes(plant) if end - HOUR_S < t <= end]
        started, stopped = sum(max(0, n) for n in window), sum(max(0, -n) for n in window)
        assert started <= allowed
        # What began before the hour may stop within it: at most the moves in flight then, which the budget bounds too.
        assert started + stopped <= 2 * allowed + max(1, resolve_count(budget, 12))


# --- E. Writers, metrics, forecast


@pytest.mark.parametrize("drained", [False, True])
def test_s49_nothing_is_taken_from_an_autoscaler_whose_users_nobody_can_steer_away(drained: bool) -> None:
    here: dict[str, int | Placement] = {"eu-1": placement("eu-1", 4, owner="hpa"), "us-1": 2, "ap-1": 2}
    found = one(here, {"ap": 70.0}, states={"eu-1": cluster_state("eu-1", drain=drained)})
    assert found.actions == ()
    assert {r.reason for r in found.refusals} == {"hpa-no-traffic-control"}


@settings(max_examples=60, deadline=None)
@given(
    target=st.floats(0.05, 0.95),
    cores=st.floats(0.0, 6.0),
    missing=st.sets(st.sampled_from(sorted(REGIONS)), min_size=1),
    replicas=st.tuples(*[st.integers(0, 9)] * 3),
)
def test_s55_pods_whose_cpu_is_missing_are_not_filled_in_to_take_some_away(
    target: float, cores: float, missing: set[str], replicas: tuple[int, ...]
) -> None:
    policy = replace(CPU, target_utilization=target)
    seen = replace(demand({"": cores}, missing=tuple(sorted(missing))), unit="cores")
    found = one(dict(zip(REGIONS, replicas, strict=True)), {"": cores}, policy, seen=seen)
    assert not [s for a in found.actions for s in a.steps if isinstance(s, SetReplicas) and s.replicas < s.expected]


def test_s55_no_policy_aims_at_more_than_a_replica_requests() -> None:
    high = SETTINGS["targetUtilization"].high
    assert high is not None
    assert high < 1.0


def rising(values: dict[float, float]) -> Forecast:
    """A forecast without doubt: demand by seconds ahead."""
    bands = np.array([[[v] * len(DEFAULT_QUANTILES) for v in values.values()]])
    return Forecast(NOW, np.array(list(values)), np.array(DEFAULT_QUANTILES), ((WEB, TOTAL),), bands, (True,),
                    np.zeros(1), ("mixture",))  # fmt: skip


def wanted(starts_s: float | None, lead_s: float | None) -> int:
    begun = () if starts_s is None else tuple((NOW - 600.0 * i, starts_s) for i in (3, 2, 1))
    here: dict[str, int | Placement] = {c: replace(placement(c, 2), starts=begun) for c in REGIONS}
    seen = snapshot(here, {"eu": 20.0, "us": 20.0, "ap": 20.0})
    ahead = rising({300.0: 60.0, 600.0: 80.0, 1200.0: 120.0})
    policy = replace(POLICY, lead_s=lead_s)
    found = planning(seen, ahead, {"shop/web": policy}, CALM, PlanSettings())[0].workloads[WEB].wanted
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("sentence", "starts_s", "lead_s", "replicas"),
    [
        ("quick starts look as far as they take", 30.0, None, 6),
        ("slow ones look farther", 480.0, None, 8),
        ("and farther", 1080.0, None, 12),
        ("until starts are known, five minutes", None, None, 6),
        ("what the policy says goes before", 30.0, 1200.0, 12),
    ],
)
def test_s60_demand_is_looked_at_as_far_ahead_as_replicas_take_to_start(
    sentence: str, starts_s: float | None, lead_s: float | None, replicas: int
) -> None:
    assert wanted(starts_s, lead_s) == replicas, sentence
