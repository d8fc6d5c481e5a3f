"""Room: node-shaped, less the reserve, and never more than one can know."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rebalancer.core.model import Cluster, ClusterState, NodeRoom, Unknown
from rebalancer.core.room import Room, fits, of

GIB = 2.0**30


def nodes(*free_cpu: float, pods: int = 100, memory: float = 64 * GIB) -> tuple[NodeRoom, ...]:
    return tuple(NodeRoom(f"n{i}", cpu, memory, pods) for i, cpu in enumerate(free_cpu))


def room(*free_cpu: float, pods: int = 100) -> Room:
    return Room(sum(free_cpu), 1000 * GIB, nodes(*free_cpu, pods=pods))


@pytest.mark.parametrize(
    ("sentence", "found", "count"),
    [
        ("the sum of the floors, not the floor of the sum", fits(room(0.9, 0.9, 0.9), 0.5, 0, {}), 3),
        ("free pods of the nodes bound it", fits(room(10, 10, pods=2), 0.1, 0, {}), 4),
        ("no request at all is bounded by pods", fits(room(0, 0, pods=3), 0, 0, {}), 6),
        ("a node that is overbooked takes nothing", fits(Room(4, GIB, nodes(-3, 5)), 1, 0, {}), 4),
        ("memory binds as well", fits(Room(100, 100 * GIB, nodes(8, memory=3 * GIB)), 1, GIB, {}), 3),
        ("the room after the reserve binds", fits(Room(2, GIB, nodes(8)), 1, 0, {}), 2),
        ("nodes without the label do not count", fits(room(8), 1, 0, {"disk": "ssd"}), 0),
        ("a request that just fits", fits(room(0.3), 0.1, 0, {}), 3),
        ("what is no number is no room", fits(Room(8, GIB, nodes(math.nan, math.inf, 2)), 1, 0, {}), 2),
    ],
)
def test_replicas_fit_node_by_node(sentence: str, found: int, count: int) -> None:
    assert found == count, sentence


def test_unknown_nodes_are_unknown_room_and_not_none_or_endless() -> None:
    state = ClusterState(Cluster("c", "eu"), 0.0, Unknown("room-unknown"))
    assert isinstance(of(state), Unknown)


def test_the_reserve_is_kept_and_room_is_never_negative() -> None:
    found = of(ClusterState(Cluster("c", "eu", reserve_ratio=0.5), 0.0, nodes(3.0), 10.0, 64 * GIB))
    assert isinstance(found, Room)
    assert found.cpu == 0.0
    assert found.memory == 32 * GIB


@given(st.lists(st.floats(0, 32), min_size=1, max_size=6), st.floats(0.01, 8), st.integers(0, 30))
def test_what_fits_never_needs_more_than_there_is(free: list[float], cpu: float, pods: int) -> None:
    count = fits(room(*free, pods=pods), cpu, 0, {})
    assert count * cpu <= sum(free) * (1 + 1e-6) + 1e-6
    assert count <= pods * len(free)
