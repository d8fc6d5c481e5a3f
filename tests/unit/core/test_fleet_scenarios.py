"""What users of other multi-cluster systems ran into, as scenes of our planner; each is named after its thread.

Shown elsewhere, and not repeated here:

- S01, S02, S04, S05, S07, I4: test_webster.py (division by fixed weights). I15: test_placement.py.
- S14's room that is promised, S28, S36, S54, S56, I3, I13: test_planning.py. S27, S28, S34, I16: test_sight.py.
- S22, S23, S31, S35, S37, S41, S45, S47, S49, S55, S60: test_fleet_scenarios_safety.py.
- S48, I1, I5, I6: test_convergence.py. S43: test_moves.py. S59: test_scaling.py.
- I2: test_guardrails.py. I8, I14: test_placement_fleet.py and test_planning.py. I9: test_cycle.py.
- I10: test_reasons.py and test_planning.py. I12: test_why.py. I17: test_rollout_ownership.py.

Not the planner's, and why:

- S22, S23: queues of jobs, their quotas and pre-emption. It plans Deployments only; a policy can name nothing else.
- S37: jobs that must run exactly once, behind a fence. A move and a failover run the old and the new side by side, so
  nothing that bears no second copy belongs under a policy; jobs can't be named, and what claims a volume stays.
- S38: traffic weights that fall to nothing within some probes of a loss. It writes no weights; the share of a lost
  cluster is placed elsewhere, and whatever steers the users follows the ready endpoints.
- S30 in its own words: a plan is not written by generation; each write carries what was read of its object instead, and
  a cluster that is missing from a view is not touched (test_fleet_invariants.py).
- S49's emptying of a source under an autoscaler: nothing here steers users away from it, and for that case the scene
  itself asks for the refusal `hpa-no-traffic-control`.
- S58: what a backtest tells of cost beside its gain.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rebalancer.core.model import (
    Demand,
    Elastic,
    Placement,
    SetReplicas,
    Unknown,
    View,
)
from tests.unit.core.fleet import NOW, POLICY, REGIONS, WEB, cluster_state, placement, plan, snapshot
from tests.unit.core.plant import Plant
from tests.unit.core.scenes import CALM, many, one, room, started

# --- A. Division and rounding


def test_s09_no_ready_replica_goes_while_others_are_not_ready() -> None:
    here: dict[str, int | Placement] = {"eu-1": 5, "us-1": placement("us-1", 5, ready=2), "ap-1": 0}
    found = one(here, {"eu": 35.0, "us": 34.0}, replace(POLICY, max_moves_per_hour=0))
    cuts = {s.cluster: s.expected - s.replicas for a in found.actions for s in a.steps if isinstance(s, SetReplicas)}
    assert cuts == {"us-1": 3}


def test_s10_less_is_taken_by_excess_and_nothing_starts() -> None:
    plant = Plant.of({"eu-1": 10, "us-1": 70}, {"eu": 95.0, "us": 95.0})
    for _ in range(80):
        plant.cycle()
    assert plant.wanted == {"eu-1": 10, "us-1": 10, "ap-1": 0}
    assert not [s for _, s in plant.writes if isinstance(s, SetReplicas) and s.replicas > s.expected]


def test_s11_the_dear_cluster_fills_last_and_empties_first() -> None:
    states = room(us_1=8.0, eu_1=50.0)
    assert started(many({"w": {}}, {"w": 5}, states)) == {"us-1": 5}
    full = room(us_1=3.0, eu_1=50.0)
    assert started(many({"w": {"us-1": 5}}, {"w": 12}, full)) == {"us-1": 3, "eu-1": 4}
    back = many({"w": {"us-1": 8, "eu-1": 4}}, {"w": 9}, room(us_1=0.0, eu_1=46.0))
    assert back.workloads["w"].planned == {"us-1": 8, "eu-1": 1}


# --- B. Capacity truth


def test_s12_twenty_at_once_get_no_more_than_there_is() -> None:
    names = {f"w{i:02d}": {"eu-1": 0} for i in range(20)}
    found = many(names, dict.fromkeys(names, 1), room(eu_1=2.0, us_1=2.0))
    assert started(found) == {"eu-1": 2, "us-1": 2}
    assert sum(r.reason == "no-room" and not r.cluster for r in found.refusals) == 16


def test_s13_a_drained_cluster_empties_into_all_the_room_in_one_plan() -> None:
    states = {**room(us_1=10.0, ap_1=5.0), "eu-1": cluster_state("eu-1", room_cpu=0.0, drain=True)}
    names = {f"w{i:02d}": {"eu-1": 1} for i in range(15)}
    assert started(many(names, dict.fromkeys(names, 1), states)) == {"us-1": 10, "ap-1": 5}


def test_s14_room_for_one_is_given_once() -> None:
    found = many({"a": {}, "b": {}}, {"a": 1, "b": 1}, room(eu_1=1.0, us_1=0.0))
    assert started(found) == {"eu-1": 1}
    assert sum(r.reason == "no-room" and not r.cluster for r in found.refusals) == 1


@pytest.mark.parametrize("nodes", [Unknown("room-unknown"), ()])
def test_s16_neither_unknown_nor_no_room_is_endless(nodes: Unknown | tuple[()]) -> None:
    states = {"eu-1": replace(cluster_state("eu-1"), nodes=nodes)}
    assert started(many({"w": {}}, {"w": 3}, states)) == {}


def test_s17_a_full_quota_of_the_tenant_is_no_room_for_it() -> None:
    states = {**room(us_1=9.0), "eu-1": replace(room(eu_1=9.0)["eu-1"], quotas={"shop": {"cpu": 0.0}})}
    found = many({"shop/w": {}, "blog/w": {}}, {"shop/w": 3, "blog/w": 12}, states)
    assert found.workloads["shop/w"].planned == {"us-1": 3, "eu-1": 0}
    assert found.workloads["blog/w"].planned["eu-1"] > 0


def test_s18_a_gang_starts_whole_or_not_at_all() -> None:
    policy = replace(POLICY, gang=3)
    small = {c: cluster_state(c, room_cpu=1.0, reserve_ratio=0.0) for c in REGIONS}
    found = one(dict.fromkeys(REGIONS, 0), {"eu": 28.0}, policy, states=small)
    assert found.actions == ()
    assert "gang-does-not-fit" in {r.reason for r in found.refusals}


@pytest.mark.parametrize("step", [1, 2, 8])
def test_s19_the_end_does_not_depend_on_the_size_of_the_steps(step: int) -> None:
    placed = 0
    for asked in range(step, 9, step):
        found = many({"w": {"eu-1": placed}}, {"w": asked}, room(eu_1=2.0 - placed))
        placed += started(found).get("eu-1", 0)
    assert placed == 2


def test_s20_two_that_fit_alone_do_not_fit_together() -> None:
    found = many({"a": {}, "b": {}}, {"a": 2, "b": 2}, room(eu_1=3.0))
    assert started(found) == {"eu-1": 3}


ELASTIC = Elastic(max_nodes=3, cpu=4.0, memory=1e12, pods=10, provision_s=300.0)


@pytest.mark.parametrize(
    ("sentence", "elastic", "unready", "places"),
    [
        ("no autoscaler", None, 0, 1),
        ("two nodes can appear in time", ELASTIC, 0, 9),
        ("too late", replace(ELASTIC, provision_s=301.0), 0, 1),
        ("all nodes are there already", replace(ELASTIC, max_nodes=1), 0, 1),
        ("pods that are not ready may wait for one of them", ELASTIC, 3, 5),
    ],
)
def test_room_that_can_appear_counts_once_and_in_time(
    sentence: str, elastic: Elastic | None, unready: int, places: int
) -> None:
    state = room(eu_1=1.0)["eu-1"]
    states = {"eu-1": replace(state, cluster=replace(state.cluster, elastic=elastic))}
    here = replace(placement("eu-1", unready, ready=0), cpu=1.0, memory=0.0, unavailable_pods=unready)
    seen = replace(snapshot({"eu-1": here}, {"eu": 280.0}), clusters=states, views={"eu-1": View("complete", NOW)})
    found, _ = plan(seen, {"eu": 280.0}, replace(POLICY, lead_s=300.0), CALM)
    assert started(found).get("eu-1", 0) == places, sentence


# --- C. Lost sight, failover, failback


def test_s24_growth_goes_elsewhere_while_a_cluster_is_out_of_sight() -> None:
    away = {"eu-1": cluster_state("eu-1", seen_s=NOW - 60)}
    found = one({"eu-1": 5, "us-1": 0, "ap-1": 0}, {"eu": 95.0}, states=away)
    assert "eu-1" not in {s.cluster for a in found.actions for s in a.steps}
    assert sum(started(found).values()) == 5


@pytest.mark.parametrize("seen", [NOW - 60, NOW - 7200, None])
def test_s25_what_may_stand_nowhere_else_is_never_evicted_to_nowhere(seen: float | None) -> None:
    policy = replace(POLICY, residency_regions=("eu",))
    found = one({"eu-1": 5, "us-1": 0, "ap-1": 0}, {"eu": 48.0}, policy,
                states={"eu-1": cluster_state("eu-1", seen_s=seen)})  # fmt: skip
    assert found.actions == ()


def test_s29_a_fault_of_our_own_evicts_nobody() -> None:
    away = {c: cluster_state(c, seen_s=NOW - 7200) for c in REGIONS}
    assert one({"eu-1": 4, "us-1": 4, "ap-1": 4}, {"eu": 10.0}, states=away).actions == ()


@pytest.mark.slow
def test_s33_after_a_loss_the_fleet_goes_back_in_steps_once_it_is_stable() -> None:
    plant = Plant.of({"eu-1": 3, "us-1": 3, "ap-1": 3}, {"eu": 29.0, "us": 29.0, "ap": 29.0})
    for _ in range(5):
        plant.cycle()
    gone = plant.now
    for _ in range(20):
        plant.scene = {"states": {"us-1": cluster_state("us-1", seen_s=gone)}}
        plant.cycle()
    assert sum(n for c, n in plant.wanted.items() if c != "us-1") == 9
    plant.scene, back = {}, plant.now
    for _ in range(90):
        before = plant.wanted
        plant.cycle()
        assert plant.ready >= 9
        changed = sum(abs(n - before[c]) for c, n in plant.wanted.items())
        assert not changed or plant.now - back > plant.policy.failback_after_s, "not at once"
    assert plant.wanted == {"eu-1": 3, "us-1": 3, "ap-1": 3}, "and not never"


# --- D. Safe moves and churn


def test_s39_the_sum_of_ready_never_falls_while_half_of_it_moves() -> None:
    plant = Plant.of({"eu-1": 10}, {"eu": 48.0, "us": 48.0}, delay_s=60.0)
    for _ in range(60):
        plant.cycle()
        assert plant.ready >= 10
    assert plant.wanted == {"eu-1": 5, "us-1": 5, "ap-1": 0}


def test_s40_the_source_stays_until_the_target_is_ready_for_min_ready() -> None:
    policy = replace(POLICY, min_ready_s=60.0)
    plant = Plant.of({"eu-1": 2}, {"us": 19.0}, policy=policy, delay_s=90.0)
    for _ in range(20):
        up = plant.now
        plant.cycle(seconds=30.0)
        cuts = [t for t, s in plant.writes if isinstance(s, SetReplicas) and s.cluster == "eu-1"]
        if cuts:
            begun = next(t for t, s in plant.writes if isinstance(s, SetReplicas))
            assert up - begun >= 90.0 + 60.0
            return
    raise AssertionError("the move never ended")


@pytest.mark.slow
def test_s44_a_pod_that_fits_nowhere_is_not_tried_again_and_again() -> None:
    plant = Plant.of({"eu-1": 4}, {"ap": 38.0}, delay_s=1e9)
    begun, told = 0, set()
    for _ in range(360):
        found = plant.cycle()
        begun += sum(a.kind != "scale" and a.reason == "closer-to-users" for a in found.actions)
        told |= {r.reason for r in found.refusals}
    assert begun == 3
    assert "quarantine" in told
    assert plant.wanted == {"eu-1": 4, "us-1": 0, "ap-1": 0}


# --- E. Writers, metrics, forecast


@pytest.mark.parametrize("owner", ["hpa", "rollout"])
def test_s49_s50_who_owns_the_replicas_is_never_overruled(owner: str) -> None:
    here: dict[str, int | Placement] = {"eu-1": placement("eu-1", 2, owner=owner), "us-1": 1, "ap-1": 1}
    assert one(here, {"ap": 300.0}).actions == ()


@pytest.mark.parametrize("total", [float("nan"), None])
def test_s51_s53_what_is_no_number_keeps_what_there_is(total: float | None) -> None:
    seen = Unknown("demand-unknown") if total is None else Demand("requests/s", total)
    found = one({"eu-1": 200, "us-1": 0, "ap-1": 0}, {}, seen=seen)
    assert found.actions == ()


@settings(max_examples=40, deadline=None)
@given(current=st.integers(4, 200), load=st.floats(0.0, 30.0))
def test_s53_no_cycle_takes_away_more_than_three_in_ten(current: int, load: float) -> None:
    found = one({"eu-1": current, "us-1": 0, "ap-1": 0}, {"eu": load})
    assert sum(found.workloads[WEB].planned.values()) >= current - max(1, int(0.3 * current))
