"""How many replicas may begin in one cluster in one cycle, over all workloads; the others follow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rebalancer.core.model import ClusterState, MoveRecord, Plan
from rebalancer.core.placement import compile_kernels
from tests.unit.core.fleet import NOW, POLICY, REGIONS, WEB, cluster_state, placement
from tests.unit.core.scenes import CPU, many, one, room, started


def bounded(states: Mapping[str, ClusterState], **most: int) -> dict[str, ClusterState]:
    limits = {c.replace("_", "-"): n for c, n in most.items()}
    return {c: replace(s, cluster=replace(s.cluster, max_starts=limits.get(c))) for c, s in states.items()}


def told(found: Plan) -> dict[str, str]:
    return {r.cluster: r.detail for r in found.refusals if r.reason == "start-limit"}


@settings(max_examples=40, deadline=None)
@given(
    wanted=st.lists(st.integers(0, 9), min_size=1, max_size=5),
    standing=st.integers(0, 3),
    most=st.tuples(*[st.integers(1, 6)] * 3),
)
def test_no_cycle_begins_more_and_a_few_begin_all(wanted: list[int], standing: int, most: tuple[int, ...]) -> None:
    states = bounded(room(eu_1=20.0, us_1=20.0, ap_1=20.0), eu_1=most[0], us_1=most[1], ap_1=most[2])
    asked = {f"w{i}": n for i, n in enumerate(wanted)}
    here: dict[str, dict[str, int]] = {w: {"eu-1": min(standing, n)} for w, n in asked.items()}
    for _ in range(60):
        found = many(here, asked, states)
        for cluster, limit in zip(("eu-1", "us-1", "ap-1"), most, strict=True):
            assert started(found).get(cluster, 0) <= limit
        assert "no-room" not in {r.reason for r in found.refusals}
        here = {w: dict(p.planned) for w, p in found.workloads.items()}
        if not found.actions:
            break
    assert {w: sum(p.values()) for w, p in here.items()} == asked


@pytest.mark.slow
@pytest.mark.timeout(900)  # The first run on a machine compiles the kernels, which takes a minute or two.
def test_it_holds_in_a_fleet_that_is_solved_by_prices() -> None:
    compile_kernels()
    states = bounded(room(eu_1=300.0, us_1=300.0, ap_1=300.0), eu_1=40, us_1=25, ap_1=30)
    asked = {f"w{i:03d}": i % 7 for i in range(130)}
    here: dict[str, dict[str, int]] = {w: {} for w in asked}
    for _ in range(6):
        found = many(here, asked, states, kernels=True)
        begun = started(found)
        assert all(begun.get(c, 0) <= most for c, most in (("eu-1", 40), ("us-1", 25), ("ap-1", 30)))
        here = {w: dict(p.planned) for w, p in found.workloads.items()}
    assert {w: sum(p.values()) for w, p in here.items()} == asked


def test_what_waits_is_told_with_the_number() -> None:
    found = many({"a": {}, "b": {}}, {"a": 4, "b": 3}, bounded(room(eu_1=20.0), eu_1=5))
    assert started(found) == {"eu-1": 5}
    assert told(found) == {"eu-1": "2 replica(s) wait: at most 5 begin in a cycle"}


def test_a_gang_that_is_larger_than_the_limit_begins_whole_once_nothing_else_has() -> None:
    gang = replace(CPU, capacity_per_replica=1.0, gang=6)
    found = many({"gang": {}}, {"gang": 6}, bounded(room(eu_1=20.0), eu_1=4), policies={"gang": gang})
    assert started(found) == {"eu-1": 6}
    small = many({"gang": {}, "a": {}}, {"gang": 3, "a": 9}, bounded(room(eu_1=20.0), eu_1=4),
                 policies={"gang": replace(gang, gang=3)})  # fmt: skip
    assert started(small) == {"eu-1": 4}, "a gang within the limit widens nothing"


def test_without_a_limit_all_begin_at_once() -> None:
    found = many({"a": {}, "b": {}}, {"a": 4, "b": 3}, room(eu_1=20.0))
    assert started(found) == {"eu-1": 7}
    assert told(found) == {}


def test_a_lack_of_room_is_told_as_such_beside_the_limit() -> None:
    found = many({"a": {}}, {"a": 9}, bounded(room(eu_1=6.0), eu_1=4))
    assert started(found) == {"eu-1": 4}
    assert told(found) == {"eu-1": "2 replica(s) wait: at most 4 begin in a cycle"}
    (why,) = [r.detail for r in found.refusals if r.reason == "no-room" and not r.cluster]
    assert why.startswith("3 of 9 replicas have no place")


@pytest.mark.parametrize("raised", [False, True])
def test_a_move_in_flight_that_still_has_to_begin_takes_of_it(raised: bool) -> None:
    record = MoveRecord("m", "drift", "eu-1", "us-1", 2, 4, 2, "closer-to-users", NOW - 60, NOW + 600)
    states = bounded({c: cluster_state(c) for c in REGIONS}, us_1=3)
    here = {
        "eu-1": placement("eu-1", 4, move=record),
        "us-1": placement("us-1", 4 if raised else 2, ready=2, move=record),
        "ap-1": placement("ap-1", 0),
    }
    found = one(here, {"eu": 20.0, "us": 30.0}, replace(POLICY, max_concurrent_moves=3), states=states)
    assert started(found).get("us-1", 0) == (0 if raised else 2)
    assert WEB in found.workloads
