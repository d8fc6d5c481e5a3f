"""What still fits where: node-shaped, less a reserve, with what is in flight already taken."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from rebalancer.core.model import ClusterState, NodeRoom, Unknown


@dataclass(frozen=True, slots=True)
class Room:
    """Room of one cluster.

    Attributes:
        cpu, memory: free cores and bytes after the reserve; never negative.
        nodes: room by node.
    """

    cpu: float
    memory: float
    nodes: tuple[NodeRoom, ...]


def of(state: ClusterState) -> Room | Unknown:
    """Returns the room of a cluster, or Unknown where its nodes are unknown."""
    if isinstance(state.nodes, Unknown):
        return state.nodes
    keep = state.cluster.reserve_ratio
    cpu = sum(n.free_cpu for n in state.nodes) - keep * _finite(state.allocatable_cpu)
    memory = sum(n.free_memory for n in state.nodes) - keep * _finite(state.allocatable_memory)
    return Room(max(0.0, cpu), max(0.0, memory), state.nodes)


def _finite(value: float) -> float:
    return value if math.isfinite(value) else 0.0


def fits(room: Room, cpu: float, memory: float, selector: Mapping[str, str]) -> int:
    """How many replicas fit, node by node: the sum of the floors, not the floor of the sum.

    Args:
        room: room of the cluster.
        cpu: cores one replica requests; 0 takes no part.
        memory: bytes one replica requests; 0 takes no part.
        selector: node labels that are asked for.

    Returns:
        Replicas, bounded by the free pods of the nodes and by the room after the reserve.
    """
    count = 0
    for node in room.nodes:
        if any(node.labels.get(k) != v for k, v in selector.items()):
            continue
        if not (math.isfinite(node.free_cpu) and math.isfinite(node.free_memory)):
            continue
        here = node.free_pods
        if cpu > 0:
            here = min(here, math.floor(node.free_cpu / cpu + 1e-9))
        if memory > 0:
            here = min(here, math.floor(node.free_memory / memory + 1e-9))
        count += max(0, here)
    if cpu > 0:
        count = min(count, math.floor(room.cpu / cpu + 1e-9))
    if memory > 0:
        count = min(count, math.floor(room.memory / memory + 1e-9))
    return count
