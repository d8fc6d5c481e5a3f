"""Replicas that move so that others find a place: who moves, for whom, in which order, and when nobody does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rebalancer.core.model import ClusterState, NodeRoom, Plan
from tests.unit.core.fleet import cluster_state
from tests.unit.core.scenes import CPU, many, room, started

PLAIN = replace(CPU, capacity_per_replica=1.0, max_moves_per_hour="100%")
TIED = {"tied": frozenset({"eu-1"})}
"""A workload that may stand in one cluster only."""


def reasons(found: Plan, workload: str) -> set[str]:
    return {r.reason for r in found.refusals if r.workload == workload}


def moves(found: Plan) -> list[tuple[str, str, str, int, str]]:
    return [(a.workload, a.source, a.target, a.replicas, a.reason) for a in found.actions if a.source]


def test_a_replica_that_may_go_elsewhere_makes_room_for_one_that_may_not() -> None:
    found = many(
        {"free": {"eu-1": 3}, "tied": {"eu-1": 1}}, {"free": 3, "tied": 2}, room(eu_1=0.0, us_1=5.0), allowed=TIED
    )
    (move,) = moves(found)
    assert move[:3] == ("free", "eu-1", "us-1")
    assert move[4] == "makes-room"
    assert "makes room for tied" in found.actions[0].explanation
    assert "awaits-room" in reasons(found, "tied")
    assert "no-room" not in reasons(found, "tied"), "it is only to wait"
    assert found.workloads["tied"].target == {"eu-1": 2, "us-1": 0}


@pytest.mark.parametrize(
    ("sentence", "policy"),
    [
        ("its windows are closed", replace(PLAIN, frozen=True)),
        ("nothing steers its users", replace(PLAIN, steering="none")),
        ("it is only observed", replace(PLAIN, observe_only=True)),
    ],
)
def test_nobody_counts_on_room_of_a_workload_that_will_not_move(sentence: str, policy: object) -> None:
    found = many(
        {"free": {"eu-1": 3}, "tied": {"eu-1": 1}}, {"free": 3, "tied": 2}, room(eu_1=0.0, us_1=5.0), allowed=TIED,
        policies={"free": policy},  # type: ignore[dict-item]  # from the table
    )  # fmt: skip
    assert moves(found) == [], sentence
    assert "no-room" in reasons(found, "tied")
    assert "awaits-room" not in reasons(found, "tied")


def test_nobody_makes_room_for_who_is_only_observed() -> None:
    watched = replace(PLAIN, observe_only=True)
    found = many(
        {"free": {"eu-1": 3}, "tied": {"eu-1": 1}}, {"free": 3, "tied": 2}, room(eu_1=0.0, us_1=5.0), allowed=TIED,
        policies={"tied": watched},
    )  # fmt: skip
    assert moves(found) == []


@pytest.mark.parametrize("priority", [0, 1000])
def test_nobody_gives_up_a_place_for_others(priority: int) -> None:
    found = many(
        {"free": {"eu-1": 3}, "tied": {"eu-1": 1}}, {"free": 3, "tied": 4}, room(eu_1=0.0), allowed=TIED,
        policies={"tied": replace(PLAIN, priority=priority)},
    )  # fmt: skip
    assert found.actions == ()
    assert found.workloads["free"].target["eu-1"] == 3
    assert "no-room" in reasons(found, "tied")


def test_what_is_short_begins_at_once_where_there_is_room_although_a_better_place_is_being_left() -> None:
    both = {"tied": frozenset({"eu-1", "ap-1"})}
    found = many(
        {"free": {"eu-1": 3}, "tied": {"eu-1": 1}},
        {"free": 3, "tied": 2},
        room(eu_1=0.0, us_1=5.0, ap_1=5.0),
        allowed=both,
    )
    assert started(found).get("ap-1", 0) + started(found).get("us-1", 0) >= 1
    assert "no-room" not in reasons(found, "tied")


def nodes(name: str, *free: float) -> dict[str, ClusterState]:
    state = cluster_state(name, reserve_ratio=0.0)
    return {name: replace(state, nodes=tuple(NodeRoom(f"{name}-{i}", f, 1e12, 100) for i, f in enumerate(free)))}


def test_nobody_moves_where_the_room_left_would_be_in_pieces() -> None:
    states = {**nodes("eu-1", 0.25, 0.25, 0.25, 0.25), **room(us_1=5.0)}
    found = many(
        {"small": {"eu-1": 8}, "tied": {"eu-1": 1}}, {"small": 8, "tied": 2}, states, allowed=TIED,
        cores={"small": 0.5, "tied": 2.0},
    )  # fmt: skip
    assert moves(found) == []
    assert "no-room" in reasons(found, "tied")


def test_who_is_as_large_makes_room_although_the_rest_is_in_pieces() -> None:
    states = {**nodes("eu-1", 0.25, 0.25, 0.25, 0.25), **room(us_1=5.0)}
    found = many(
        {"large": {"eu-1": 2}, "small": {"eu-1": 8}, "tied": {"eu-1": 1}}, {"large": 2, "small": 8, "tied": 2}, states,
        allowed=TIED, cores={"large": 2.0, "small": 0.5, "tied": 2.0},
    )  # fmt: skip
    assert [m[:4] for m in moves(found)] == [("large", "eu-1", "us-1", 1)]


def test_a_move_begins_in_the_reserve_but_growth_does_not() -> None:
    states = room(eu_1=0.0, us_1=5.0)
    reserve = cluster_state("eu-1", room_cpu=1.0, reserve_ratio=0.1)
    states["eu-1"] = replace(reserve, allocatable_cpu=10.0)
    one = {"free": {"eu-1": 3}, "tied": {"eu-1": 1}}
    found = many(one, {"free": 3, "tied": 2}, states, allowed=TIED)
    assert started(found) == {"eu-1": 1, "us-1": 1}
    alone = many(one, {"free": 3, "tied": 2}, {"eu-1": states["eu-1"]}, allowed=TIED)
    assert started(alone) == {}


@pytest.mark.slow
def test_the_large_solver_makes_room_as_the_exact_one_does() -> None:
    others = {f"w{i:03d}": {"us-1": 1} for i in range(110)}
    found = many(
        {"free": {"eu-1": 3}, "tied": {"eu-1": 1}, **others}, {"free": 3, "tied": 2, **dict.fromkeys(others, 1)},
        room(eu_1=0.0, us_1=5.0), allowed=TIED, kernels=True,
    )  # fmt: skip
    assert [m[:3] for m in moves(found)] == [("free", "eu-1", "us-1")]
    assert "awaits-room" in reasons(found, "tied")
