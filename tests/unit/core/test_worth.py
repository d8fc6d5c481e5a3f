"""What the room that a replica leaves is worth to those who wait for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rebalancer.core.model import ClusterState, Plan
from tests.unit.core.fleet import cluster_state
from tests.unit.core.scenes import CPU, many, room

PLAIN = replace(CPU, capacity_per_replica=1.0, max_moves_per_hour="100%")
TIED = {"tied": frozenset({"eu-1"})}


def worth(found: Plan) -> dict[str, float]:
    """By the workload that makes room: what it is worth to others, $/h of the move."""
    return {a.workload: a.why.terms.get("room", 0.0) for a in found.actions if a.why is not None}


def test_room_for_a_replica_without_a_place_is_worth_as_much_as_its_place() -> None:
    found = many(
        {"free": {"eu-1": 3}, "tied": {"eu-1": 1}}, {"free": 3, "tied": 2}, room(eu_1=0.0, us_1=5.0), allowed=TIED
    )
    assert worth(found)["free"] == pytest.approx(100.0, abs=5.0)
    assert found.actions[0].gain > 0


@pytest.mark.parametrize(("priority", "dollars"), [(0, 100.0), (100, 200.0), (-100, 50.0)])
def test_room_for_who_is_more_urgent_is_worth_more(priority: int, dollars: float) -> None:
    found = many(
        {"free": {"eu-1": 3}, "tied": {"eu-1": 1}}, {"free": 3, "tied": 2}, room(eu_1=0.0, us_1=5.0), allowed=TIED,
        policies={"tied": replace(PLAIN, priority=priority)},
    )  # fmt: skip
    assert worth(found)["free"] == pytest.approx(dollars, rel=0.05)


def test_who_begins_a_chain_is_worth_what_its_end_gains() -> None:
    found = many(
        {"first": {"us-1": 2}, "middle": {"eu-1": 2}, "tied": {"eu-1": 1}}, {"first": 2, "middle": 2, "tied": 2},
        room(eu_1=0.0, us_1=0.0, ap_1=5.0),
        allowed={**TIED, "middle": frozenset({"eu-1", "us-1"}), "first": frozenset({"us-1", "ap-1"})},
    )  # fmt: skip
    (move,) = (a for a in found.actions if a.source)
    assert (move.workload, move.source, move.target) == ("first", "us-1", "ap-1")
    assert move.gain == pytest.approx(100.0, abs=5.0)


def test_every_move_that_begins_gains_something_or_must_be() -> None:
    found = many(
        {"free": {"eu-1": 4}, "other": {"eu-1": 4}, "tied": {"eu-1": 1}}, {"free": 4, "other": 4, "tied": 2},
        room(eu_1=0.0, us_1=5.0), allowed=TIED,
    )  # fmt: skip
    moves = [a for a in found.actions if a.source]
    assert len(moves) == 1, "one makes the room that one needs"
    assert all(a.gain > 0 or a.forced for a in moves)


def named(cluster: str) -> ClusterState:
    """A full cluster like eu-1, with a name of its own."""
    state = cluster_state("eu-1", room_cpu=0.0)
    return replace(state, cluster=replace(state.cluster, name=cluster))


@pytest.mark.parametrize("links", [3, 8])
def test_a_chain_begins_however_long_it_is(links: int) -> None:
    ring = ["eu-1", *(f"c{i}" for i in range(1, links)), "us-1"]
    counts = {f"w{i}": {ring[i]: 2} for i in range(1, links)}
    allowed = {f"w{i}": frozenset({ring[i], ring[i + 1]}) for i in range(1, links)}
    found = many(
        {"first": {"eu-1": 1}, "tied": {"eu-1": 1}, **counts}, {"first": 1, "tied": 2, **dict.fromkeys(counts, 2)},
        {**{c: named(c) for c in ring[:-1]}, "us-1": cluster_state("us-1", room_cpu=5.0)},
        allowed={**TIED, "first": frozenset({"eu-1", "c1"}), **allowed},
    )  # fmt: skip
    assert [(a.workload, a.target) for a in found.actions if a.source] == [(f"w{links - 1}", "us-1")]


def test_room_is_made_for_who_must_leave_a_drained_cluster() -> None:
    states = room(eu_1=0.0, us_1=5.0, ap_1=5.0)
    drained = replace(states["us-1"], cluster=replace(states["us-1"].cluster, drain=True))
    found = many(
        {"free": {"eu-1": 3}, "tied": {"us-1": 2}}, {"free": 3, "tied": 2}, {**states, "us-1": drained},
        allowed={"tied": frozenset({"eu-1", "us-1"}), "free": frozenset({"eu-1", "ap-1"})},
    )  # fmt: skip
    moves = [(a.workload, a.source, a.target, a.reason) for a in found.actions if a.source]
    assert ("free", "eu-1", "ap-1", "makes-room") in moves
