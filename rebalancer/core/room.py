"""What still fits where: node-shaped, less a reserve, with what is in flight already taken."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from rebalancer.core.model import ClusterState, Elastic, NodeMatch, NodeRoom, Placement, Toleration, Unknown

NAME_FIELD = "metadata.name"
"""The one field, instead of a label, that a node affinity may ask for."""


@dataclass(frozen=True, slots=True)
class Room:
    """Room of one cluster.

    Attributes:
        cpu, memory: free cores and bytes of the nodes without taints, after the reserve; never negative.
        nodes: room by node.
    """

    cpu: float
    memory: float
    nodes: tuple[NodeRoom, ...]

    @property
    def in_one_piece(self) -> bool:
        """Whether all of it is on one node, so that what leaves adds to what is free."""
        return sum(not n.taints for n in self.nodes) == 1


def of(state: ClusterState, keep: float | None = None) -> Room | Unknown:
    """Returns the room of a cluster, or Unknown where its nodes are unknown.

    Args:
        state: the cluster.
        keep: share of what can be allocated that stays free; the cluster's reserve where it is None.
    """
    if isinstance(state.nodes, Unknown):
        return state.nodes
    keep = state.cluster.reserve_ratio if keep is None else keep
    ordinary = [n for n in state.nodes if not n.taints]
    cpu = sum(n.free_cpu for n in ordinary) - keep * _finite(state.allocatable_cpu)
    memory = sum(n.free_memory for n in ordinary) - keep * _finite(state.allocatable_memory)
    return Room(max(0.0, cpu), max(0.0, memory), state.nodes)


def _finite(value: float) -> float:
    return value if math.isfinite(value) else 0.0


@dataclass(frozen=True, slots=True)
class Shape:
    """What one replica needs of a node; equal shapes fit equally often.

    Attributes:
        cpu, memory: requests, cores and bytes; 0 takes no part.
        extended: (resource, units) of other requests.
        selector: (label, value) that are asked for.
        affinity: terms of which one has to hold; empty asks for nothing.
        tolerations: of node taints.
    """

    cpu: float = 0.0
    memory: float = 0.0
    extended: tuple[tuple[str, float], ...] = ()
    selector: tuple[tuple[str, str], ...] = ()
    affinity: tuple[tuple[NodeMatch, ...], ...] = ()
    tolerations: tuple[Toleration, ...] = ()

    @property
    def plain(self) -> bool:
        """Whether any node without taints would do, as far as it has CPU and memory."""
        return not (self.extended or self.selector or self.affinity)

    def times(self, other: Shape) -> int:
        """How many of another shape fit where one of this stood; bounded where the other asks for nothing."""
        ratios = [mine / need for mine, need in ((self.cpu, other.cpu), (self.memory, other.memory)) if need > 0]
        return math.floor(min(ratios) + 1e-9) if ratios else 1_000_000


def shape_of(placement: Placement, cpu: float, memory: float) -> Shape:
    """Returns the shape of a placement's replicas, with requests given."""
    return Shape(
        cpu, memory, tuple(sorted(placement.extended.items())), tuple(sorted(placement.node_selector.items())),
        placement.affinity, placement.tolerations,
    )  # fmt: skip


def takes(node: NodeRoom, shape: Shape) -> bool:
    """Says whether a node would take such a replica at all: selector, required affinity and taints."""
    if any(node.labels.get(k) != v for k, v in shape.selector):
        return False
    if shape.affinity and not any(all(_holds(node, one) for one in term) for term in shape.affinity if term):
        return False
    return all(any(t.tolerates(taint) for t in shape.tolerations) for taint in node.taints)


def _holds(node: NodeRoom, match: NodeMatch) -> bool:
    """One expression, by the rules of Kubernetes: NotIn holds where the label is missing, Gt and Lt compare numbers."""
    value = node.name if match.key == NAME_FIELD else node.labels.get(match.key)
    if match.operator in ("Exists", "DoesNotExist"):
        return (value is not None) == (match.operator == "Exists")
    if match.operator == "NotIn":
        return value not in match.values
    if value is None:
        return False
    if match.operator == "In":
        return value in match.values
    try:
        here, asked = int(value), int(match.values[0])
    except (ValueError, IndexError):
        return False
    return here > asked if match.operator == "Gt" else here < asked


def fits(room: Room, shape: Shape) -> int:
    """How many replicas fit, node by node: the sum of the floors, not the floor of the sum.

    Args:
        room: room of the cluster.
        shape: what one replica needs.

    Returns:
        Replicas, bounded by the free pods of the matching nodes; on nodes without taints also by the room after the
        reserve.
    """
    open_, dedicated = 0, 0
    for node in room.nodes:
        if not takes(node, shape):
            continue
        here = on(node, shape)
        if node.taints:
            dedicated += here
        else:
            open_ += here
    for need, free in ((shape.cpu, room.cpu), (shape.memory, room.memory)):
        if need > 0:
            open_ = min(open_, math.floor(free / need + 1e-9))
    return open_ + dedicated


def to_come(state: ClusterState, waiting: tuple[float, float]) -> int:
    """How many nodes a node autoscaler could still add, less those that pods which are not ready may wait for.

    Args:
        state: the cluster.
        waiting: cores and bytes that replicas request which have a pod, but are not ready.
    """
    elastic = state.cluster.elastic
    if elastic is None or isinstance(state.nodes, Unknown):
        return 0
    taken = math.ceil(max(waiting[0] / elastic.cpu, waiting[1] / elastic.memory) - 1e-9)
    return max(0, elastic.max_nodes - len(state.nodes) - taken)


def fresh(elastic: Elastic) -> NodeRoom:
    """A new node. Nobody knows its labels, so it takes nothing that asks for some."""
    return NodeRoom("", elastic.cpu, elastic.memory, elastic.pods)


def within(quota: Mapping[str, float], shape: Shape, most: int) -> int:
    """How many replicas, at most `most`, the quotas of their namespace leave; a resource without a quota is free."""
    needs = (("pods", 1.0), ("cpu", shape.cpu), ("memory", shape.memory), *shape.extended)
    left = [math.floor(quota[name] / need + 1e-9) for name, need in needs if need > 0 and name in quota]
    return max(0, min([most, *left]))


def dedicated(room: Room, shapes: Collection[Shape]) -> tuple[float, float]:
    """Free cores and bytes of the tainted nodes that at least one of the shapes takes.

    Where shapes that don't tolerate the taints stand beside, room for all of them together counts it as well: it
    bounds the sum too loosely, never what one of them gets.
    """
    found = [n for n in room.nodes if n.taints and any(takes(n, s) for s in shapes)]
    cpu = sum(n.free_cpu for n in found if math.isfinite(n.free_cpu))
    return cpu, sum(n.free_memory for n in found if math.isfinite(n.free_memory))


def on(node: NodeRoom, shape: Shape) -> int:
    """How many fit on one node; none where its free room is no number."""
    if not (math.isfinite(node.free_cpu) and math.isfinite(node.free_memory)):
        return 0
    needs = [(shape.cpu, node.free_cpu), (shape.memory, node.free_memory)]
    needs += [(units, node.extended.get(name, 0.0)) for name, units in shape.extended]
    return max(0, min([node.free_pods, *(math.floor(free / need + 1e-9) for need, free in needs if need > 0)]))
