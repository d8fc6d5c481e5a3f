"""Every move says what it gains by term, what bounds it and why it went nowhere else; the rest says what it is for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rebalancer.core.model import Plan
from rebalancer.core.planning import PlanMemory
from rebalancer.core.policy import Dependency, Policy
from rebalancer.core.reasons import REASONS
from tests.unit.core.fleet import POLICY, REGIONS, WEB, cluster_state, plan, snapshot

TOLD = {"gains-less", "room-wanted", "target-in-steps"}


def one(replicas: dict[str, int], origins: dict[str, float], policy: Policy = POLICY, **scene: object) -> Plan:
    return plan(snapshot(replicas, origins, **scene), origins, policy, PlanMemory())[0]  # type: ignore[arg-type]  # test helper


@settings(max_examples=60, deadline=None)
@given(
    replicas=st.tuples(*[st.integers(0, 9)] * 3),
    load=st.tuples(*[st.integers(0, 90)] * 3),
    room=st.tuples(*[st.integers(0, 8)] * 3),
    drained=st.sampled_from(["", *REGIONS]),
)
def test_terms_sum_to_the_gain_and_what_gains_nothing_is_forced(
    replicas: tuple[int, ...], load: tuple[int, ...], room: tuple[int, ...], drained: str
) -> None:
    origins = {o: float(v) for o, v in zip(("eu", "us", "ap"), load, strict=True)}
    states = {c: cluster_state(c, room_cpu=float(r), drain=c == drained) for c, r in zip(REGIONS, room, strict=True)}
    found = one(dict(zip(REGIONS, replicas, strict=True)), origins, states=states)
    for action in found.actions:
        if action.kind == "scale":
            assert action.forced
            assert action.reason in REASONS
            continue
        assert action.why is not None
        assert sum(action.why.terms.values()) == pytest.approx(action.gain, abs=1e-9)
        assert not action.forced or action.reason in ("drain", "residency", "taint-no-execute")
        for other in action.why.alternatives:
            assert other.cluster not in (action.source, action.target)
            assert other.reason in REASONS or other.reason in TOLD
            assert other.reason != "gains-less" or other.gain <= action.gain + 1e-9


def test_another_node_helps_most_where_users_wait_for_room() -> None:
    states = {"ap-1": cluster_state("ap-1", room_cpu=0.5, reserve_ratio=0.0)}
    found = one({"eu-1": 8, "us-1": 0, "ap-1": 0}, {"ap": 76.0}, states=states)
    assert found.shadow["ap-1"].cpu_core > 0.01
    assert found.shadow["us-1"].cpu_core == pytest.approx(0.0)
    assert [a.why.binding for a in found.actions if a.why] == ["room"]


def test_the_first_reason_against_the_better_cluster_is_named() -> None:
    states = {"ap-1": cluster_state("ap-1", room_cpu=0.0)}
    found = one({"eu-1": 8, "us-1": 0, "ap-1": 0}, {"us": 38.0, "ap": 38.0}, states=states)
    against = {a.cluster: a.reason for action in found.actions if action.why for a in action.why.alternatives}
    assert against["ap-1"] == "no-room"


# --- gangs and dependencies, through the planner


def test_eight_of_ten_placeable_means_none() -> None:
    gang = replace(POLICY, gang=10, min_replicas=10)
    states = {c: cluster_state(c, room_cpu=4.0, reserve_ratio=0.0) for c in REGIONS}
    found = one(dict.fromkeys(REGIONS, 0), {"eu": 95.0}, gang, states=states)
    assert found.actions == ()
    assert "gang-does-not-fit" in {r.reason for r in found.refusals}
    states["ap-1"] = cluster_state("ap-1", room_cpu=6.0, reserve_ratio=0.0)
    found = one(dict.fromkeys(REGIONS, 0), {"eu": 95.0}, gang, states=states)
    assert {c: n for c, n in found.workloads[WEB].planned.items() if n} == {"ap-1": 10}


def test_a_gang_that_runs_is_not_ended_because_it_can_not_grow() -> None:
    gang = replace(POLICY, gang=4, min_replicas=4)
    full = {c: cluster_state(c, room_cpu=0.0) for c in REGIONS}
    found = one({"eu-1": 4, "us-1": 0, "ap-1": 0}, {"eu": 95.0}, gang, states=full)
    assert found.workloads[WEB].planned == {"eu-1": 4, "us-1": 0, "ap-1": 0}


def test_a_gang_moves_whole_or_not_at_all() -> None:
    gang = replace(POLICY, gang=4, min_replicas=4)
    found = one({"eu-1": 4, "us-1": 0, "ap-1": 0}, {"ap": 36.0}, gang)
    assert [(a.source, a.target, a.replicas) for a in found.actions] == [("eu-1", "ap-1", 4)]
    poor = replace(gang, max_moves_per_hour=3)
    found = one({"eu-1": 4, "us-1": 0, "ap-1": 0}, {"ap": 36.0}, poor)
    assert found.actions == ()
    assert "move-budget" in {r.reason for r in found.refusals}


def test_calls_to_what_it_needs_pull_a_workload_there() -> None:
    far = Dependency("ledger", ("ap-1",), calls=5.0)
    found = one({"eu-1": 4, "us-1": 0, "ap-1": 0}, {"eu": 36.0}, replace(POLICY, depends=(far,)))
    assert [(a.source, a.target) for a in found.actions] == [("eu-1", "ap-1")]
    near = replace(far, clusters=("ap-1", "eu-1"))
    assert one({"eu-1": 4, "us-1": 0, "ap-1": 0}, {"eu": 36.0}, replace(POLICY, depends=(near,))).actions == ()


def test_a_dependency_that_stands_nowhere_known_moves_nothing() -> None:
    lost = Dependency("ledger", workload="shop/ledger")
    found = one({"eu-1": 4, "us-1": 0, "ap-1": 0}, {"ap": 36.0}, replace(POLICY, depends=(lost,)))
    assert found.actions == ()
    assert "rtt-unknown" in {r.reason for r in found.refusals}
