"""Room: node-shaped, less the reserve, and never more than one can know."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rebalancer.core.model import Cluster, ClusterState, Effect, NodeMatch, NodeRoom, Taint, Toleration, Unknown
from rebalancer.core.room import Room, Shape, dedicated, fits, of, within

GIB = 2.0**30


def nodes(*free_cpu: float, pods: int = 100, memory: float = 64 * GIB) -> tuple[NodeRoom, ...]:
    return tuple(NodeRoom(f"n{i}", cpu, memory, pods) for i, cpu in enumerate(free_cpu))


def room(*free_cpu: float, pods: int = 100) -> Room:
    return Room(sum(free_cpu), 1000 * GIB, nodes(*free_cpu, pods=pods))


@pytest.mark.parametrize(
    ("sentence", "found", "count"),
    [
        ("the sum of the floors, not the floor of the sum", fits(room(0.9, 0.9, 0.9), Shape(0.5, 0)), 3),
        ("free pods of the nodes bound it", fits(room(10, 10, pods=2), Shape(0.1, 0)), 4),
        ("no request at all is bounded by pods", fits(room(0, 0, pods=3), Shape(0, 0)), 6),
        ("a node that is overbooked takes nothing", fits(Room(4, GIB, nodes(-3, 5)), Shape(1, 0)), 4),
        ("memory binds as well", fits(Room(100, 100 * GIB, nodes(8, memory=3 * GIB)), Shape(1, GIB)), 3),
        ("the room after the reserve binds", fits(Room(2, GIB, nodes(8)), Shape(1, 0)), 2),
        ("nodes without the label do not count", fits(room(8), Shape(1, selector=(("disk", "ssd"),))), 0),
        ("a request that just fits", fits(room(0.3), Shape(0.1, 0)), 3),
        ("what is no number is no room", fits(Room(8, GIB, nodes(math.nan, math.inf, 2)), Shape(1, 0)), 2),
    ],
)
def test_replicas_fit_node_by_node(sentence: str, found: int, count: int) -> None:
    assert found == count, sentence


GPU = Taint("gpu", "true", Effect.NO_SCHEDULE)
MIXED = Room(4.0, 64 * GIB, (
    NodeRoom("arm", 4.0, 64 * GIB, 9, {"kubernetes.io/arch": "arm64", "cores": "4"}),
    NodeRoom("gpu", 8.0, 64 * GIB, 9, {"kubernetes.io/arch": "amd64", "cores": "8"}, (GPU,), {"nvidia.com/gpu": 2.0}),
))  # fmt: skip
TOLERATES = (Toleration("gpu", "Exists", "", None),)
EXECUTES = (Toleration("gpu", "Exists", "", Effect.NO_EXECUTE),)
ONE_GPU, ONE_FPGA = (("nvidia.com/gpu", 1.0),), (("example.com/fpga", 1.0),)


def asks(key: str, operator: str, *values: str) -> Shape:
    match = NodeMatch(key, operator, values)  # type: ignore[arg-type]  # literals of the table
    return Shape(1.0, affinity=((match,),), tolerations=TOLERATES)


@pytest.mark.parametrize(
    ("sentence", "shape", "count"),
    [
        ("a tainted node is not for everybody", Shape(1.0), 4),
        ("but for those that tolerate it", Shape(1.0, tolerations=TOLERATES), 12),
        ("another effect is not tolerated", Shape(1.0, tolerations=EXECUTES), 4),
        ("GPUs are counted as whole requests", Shape(0.1, extended=ONE_GPU, tolerations=TOLERATES), 2),
        ("a resource that no node has", Shape(0.1, extended=ONE_FPGA, tolerations=TOLERATES), 0),
        ("an architecture", Shape(1.0, selector=(("kubernetes.io/arch", "arm64"),), tolerations=TOLERATES), 4),
        ("In", asks("kubernetes.io/arch", "In", "amd64", "s390x"), 8),
        ("NotIn holds where the label is missing", asks("zone", "NotIn", "a"), 12),
        ("Exists", asks("zone", "Exists"), 0),
        ("DoesNotExist", asks("zone", "DoesNotExist"), 12),
        ("Gt compares numbers", asks("cores", "Gt", "4"), 8),
        ("Lt compares numbers", asks("cores", "Lt", "8"), 4),
        ("what is no number is neither less nor more", asks("kubernetes.io/arch", "Gt", "4"), 0),
        ("a node by its name", asks("metadata.name", "In", "arm"), 4),
        ("a term without expressions matches nothing", Shape(1.0, affinity=((),), tolerations=TOLERATES), 0),
        ("one of the terms is enough", Shape(1.0, affinity=(
            (NodeMatch("zone", "Exists"),), (NodeMatch("cores", "Exists"),)), tolerations=TOLERATES), 12),
    ],
)  # fmt: skip
def test_only_nodes_that_take_the_pod_are_room(sentence: str, shape: Shape, count: int) -> None:
    assert fits(MIXED, shape) == count, sentence


@pytest.mark.parametrize(
    ("sentence", "quota", "count"),
    [
        ("no quota binds nothing", {}, 9),
        ("a full quota leaves none (S17)", {"cpu": 0.0}, 0),
        ("the least of them binds", {"cpu": 3.0, "pods": 2.0, "memory": 9.0}, 2),
        ("GPUs have quotas of their own", {"nvidia.com/gpu": 1.0}, 1),
        ("what is not requested is not bound", {"memory": 0.0}, 9),
        ("a quota that is overdrawn leaves none", {"cpu": -4.0}, 0),
    ],
)
def test_quotas_bound_what_a_namespace_starts(sentence: str, quota: dict[str, float], count: int) -> None:
    assert within(quota, Shape(1.0, extended=ONE_GPU), 9) == count, sentence


def test_tainted_nodes_are_room_for_all_together_only_where_somebody_tolerates_them() -> None:
    assert dedicated(MIXED, [Shape(1.0)]) == (0.0, 0.0)
    assert dedicated(MIXED, [Shape(1.0), Shape(1.0, tolerations=TOLERATES)]) == (8.0, 64 * GIB)


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
    count = fits(room(*free, pods=pods), Shape(cpu))
    assert count * cpu <= sum(free) * (1 + 1e-6) + 1e-6
    assert count <= pods * len(free)
