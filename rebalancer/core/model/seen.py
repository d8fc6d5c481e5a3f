"""What was observed: clusters, nodes, placements, demand, and the snapshot of one cycle.

All values are immutable. Times are Unix seconds, CPU is in cores, memory in bytes, demand in the unit of its workload
(requests/s or cores). A workload's key is `namespace/name`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from rebalancer.core.model.declared import Cluster, Taint, Toleration
from rebalancer.core.model.load import Demand
from rebalancer.core.network import LatencyMap


@dataclass(frozen=True, slots=True)
class Unknown:
    """Something nobody knows; never zero, infinite or healthy.

    Attributes:
        reason: id in core.reasons.
        since_s: when it was last known; None if never.
        detail: what is missing, for the reader.
    """

    reason: str
    since_s: float | None = None
    detail: str = ""


class Sight(StrEnum):
    """How well the cluster's API is seen."""

    READY = "ready"
    SUSPECT = "suspect"
    LOST = "lost"


Completeness = Literal["complete", "partial", "stale", "failed"]


@dataclass(frozen=True, slots=True)
class View:
    """How well a cluster's metrics are seen.

    Attributes:
        state: complete, partial, stale or failed.
        since_s: when the state began, or when the newest sample was taken; None if never seen.
        detail: what is missing, one sentence; empty when complete.
    """

    state: Completeness
    since_s: float | None = None
    detail: str = ""

    @property
    def complete(self) -> bool:
        """Whether decreases may rest on it."""
        return self.state == "complete"


@dataclass(frozen=True, slots=True)
class NodeRoom:
    """What is free on one schedulable node; already less what running and bound pods request.

    Attributes:
        free_cpu, free_memory, free_pods: cores, bytes and pods.
        taints: those that bar pods.
        extended: free units of other resources, such as GPUs.
    """

    name: str
    free_cpu: float
    free_memory: float
    free_pods: int
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    extended: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NodeMatch:
    """One expression of a required node affinity: a label's key, an operator of Kubernetes, and its values."""

    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ClusterState:
    """A cluster as it was observed.

    Attributes:
        cluster: its declaration.
        seen_s: last good answer of its API server; None if never.
        nodes: room by node, or Unknown.
        allocatable_cpu, allocatable_memory: cores and bytes of all nodes without taints; NaN if unknown.
        version: server version, empty if unknown.
        error: why the last observation failed; empty if it did not.
        quotas: namespace -> resource (cpu, memory, pods, or an extended one) -> what its quotas leave, in base units;
            what is missing has none. Or Unknown.
    """

    cluster: Cluster
    seen_s: float | None
    nodes: tuple[NodeRoom, ...] | Unknown
    allocatable_cpu: float = float("nan")
    allocatable_memory: float = float("nan")
    version: str = ""
    error: str = ""
    quotas: Mapping[str, Mapping[str, float]] | Unknown = field(default_factory=dict)


MoveKind = Literal["migrate", "drift"]


@dataclass(frozen=True, slots=True)
class MoveRecord:
    """The intent of a move, as it is written to both objects before the first replica starts.

    Replica numbers are absolute, so that carrying a step out twice is a no-op. `gain` is what each replica's move is
    worth, $/h; 0 where it is forced or nobody wrote it down.
    """

    id: str
    kind: MoveKind
    source: str
    target: str
    replicas: int
    source_before: int
    target_before: int
    reason: str
    started_s: float
    deadline_s: float
    gain: float = 0.0


@dataclass(frozen=True, slots=True)
class Moved:
    """A move that ended: counts against the hourly budget and sets the cool-down; `gain` is the record's."""

    id: str
    ended_s: float
    source: str
    target: str
    replicas: int
    outcome: Literal["done", "timed-out", "cancelled", "not-followed"]
    gain: float = 0.0


@dataclass(frozen=True, slots=True)
class PodBudget:
    """A PodDisruptionBudget: fewest available pods, or most unavailable ones; counts, or percentages of all pods."""

    min_available: int | str | None = None
    max_unavailable: int | str | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """A workload in one cluster, as observed.

    Attributes:
        wanted: spec.replicas.
        ready_since_s: for each ready replica the time since it is ready, ascending.
        starts: for each ready replica whose creation is known (when it became ready, seconds from created to ready).
        cpu, memory: what one replica requests, cores and bytes; 0 where it requests nothing.
        extended: units of other resources that one replica requests.
        node_selector, affinity, tolerations: which nodes take it. Of the affinity's terms one has to hold, of a term
            all expressions; without terms any node will do.
        move: the intent found on the object.
        moved: ended moves found on the object.
        owner: who else owns the replicas: `hpa`, `rollout`, or empty.
        claims: volume claims of its pods, whose data is in this cluster only.
        budgets: its PodDisruptionBudgets; None where nobody can tell.
        resource_version: precondition for writes.
        observed_s: when this was read; older than the cycle where the cluster is out of sight.
    """

    workload: str
    cluster: str
    wanted: int
    ready_since_s: tuple[float, ...] = ()
    cpu: float = 0.0
    memory: float = 0.0
    move: MoveRecord | None = None
    moved: tuple[Moved, ...] = ()
    owner: str = ""
    resource_version: str = ""
    uid: str = ""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    affinity: tuple[tuple[NodeMatch, ...], ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    extended: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    paused: bool = False
    observed_s: float = 0.0
    unavailable_pods: int = 0
    starts: tuple[tuple[float, float], ...] = ()
    budgets: tuple[PodBudget, ...] | None = ()
    claims: tuple[str, ...] = ()

    @property
    def ready(self) -> int:
        """Ready replicas."""
        return len(self.ready_since_s)

    def ready_for(self, min_ready_s: float, now: float) -> int:
        """Replicas that have been ready for at least `min_ready_s`."""
        return sum(1 for since in self.ready_since_s if now - since >= min_ready_s)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What was seen in one cycle, with ages and gaps.

    Attributes:
        clusters: by name, every configured cluster.
        views: metrics view by cluster, every configured cluster.
        placements: workload -> cluster -> placement.
        demand: by workload, or Unknown.
        network: the latency map.
        policies: workload -> name of its policy.
        rollouts: workloads under a running rollout.
        allowed: workload -> clusters that propagation allows; a workload that is missing may be anywhere.
        usual_rtt_s: pair of clusters, the lesser name first -> 7-day median of its median round trip in s; without an
            entry a pair is judged by loss only.
    """

    at_s: float
    clusters: Mapping[str, ClusterState]
    views: Mapping[str, View]
    placements: Mapping[str, Mapping[str, Placement]]
    demand: Mapping[str, Demand | Unknown]
    network: LatencyMap
    policies: Mapping[str, str]
    rollouts: frozenset[str] = frozenset()
    allowed: Mapping[str, frozenset[str]] = field(default_factory=dict)
    usual_rtt_s: Mapping[tuple[str, str], float] = field(default_factory=dict)
