"""The settings of one policy, resolved: what a user wrote, else the default, each with unit, bounds and why."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from rebalancer.core.model import Toleration, Window

Strategy = Literal["LatencyFirst", "DataLocality", "CostOptimized", "Weighted"]
Steering = Literal["external", "none"]


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of a policy.

    Attributes:
        field: path in the YAML.
        default: as it stands in the YAML; empty if the field is required or unset.
        low, high: inclusive bounds in base units (seconds, ratio, replicas); None if unbounded.
        why: why the default is what it is.
    """

    field: str
    default: object
    low: float | None
    high: float | None
    why: str


SETTINGS: Mapping[str, Setting] = MappingProxyType({s.field: s for s in (
    Setting("targetUtilization", 0.7, 0.05, 0.95, "leaves a replica the room for a burst of its own"),
    Setting("replicas.min", 2, 0, 100_000, "one replica may always be lost"),
    Setting("replicas.max", None, 0, 100_000, "bounded by budgets and room instead"),
    Setting("perCluster.min", 0, 0, 100_000, "clusters may be left"),
    Setting("perCluster.max", None, 0, 100_000, "bounded by room"),
    Setting("forecast.quantile", 0.9, 0.5, 0.999, "the target's slack takes one short step in ten"),
    Setting("forecast.lead", None, 0, 7200, "the measured start delay (p95) and 2m; 5m until three starts are known"),
    Setting("behavior.scaleUp.stabilization", 0.0, 0, 3600, "as an HPA's: what is missing now is missed by users now"),
    Setting("behavior.scaleDown.stabilization", None, 0, 86_400, "scaling.stabilization of the RebalancerConfig, 5m"),
    Setting("spread.minClusters", 1, 1, 1000, "spread costs latency, so it is asked for"),
    Setting("spread.minRegions", 1, 1, 1000, "as minClusters"),
    Setting("spread.maxShare", 1.0, 0.05, 1.0, "as minClusters"),
    Setting("spotMaxShare", 1.0, 0.0, 1.0, "only the user knows which workload bears a lost cluster"),
    Setting("priority", 0, -1000, 1000, "all workloads are equal until somebody says otherwise"),
    Setting("budget.maxUnavailable", 0, 0, None, "moves make before they break"),
    Setting("budget.maxMovesPerHour", "10%", 0, None, "a wrong plan is seen before it has moved much"),
    Setting("budget.maxConcurrentMoves", 1, 1, 100, "one move's effect is seen before the next begins"),
    Setting("migration.minReady", 30.0, 0, 3600, "a replica that crashes does so in its first seconds"),
    Setting("migration.timeout", 600.0, 10, 86_400, "as a Deployment's progress deadline"),
    Setting("migration.drain.wait", 30.0, 0, 3600, "as a pod's termination grace"),
    Setting("failover.lostAfter", 300.0, 10, 86_400, "a restart of an API server takes less"),
    Setting("failover.failbackAfter", 900.0, 10, 86_400, "a flapping cluster stays out"),
)})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights of the objective's terms, each in [0, 1]; see core.placement for what they multiply."""

    latency: float = 0.0
    data: float = 0.0
    cost: float = 0.0
    spread: float = 0.0


STRATEGY_WEIGHTS: Mapping[str, Weights] = MappingProxyType({
    # The small other terms break ties, so that equal latency is served cheaply and equal prices nearby.
    "LatencyFirst": Weights(latency=1.0, cost=0.05),
    "CostOptimized": Weights(latency=0.05, cost=1.0),
    "DataLocality": Weights(latency=0.05, data=1.0, cost=0.05),
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class DemandSpec:
    """Where demand comes from.

    Attributes:
        query: selector of a request counter, `metric` or `metric{matchers}`; empty means the pods' CPU.
        workload_label: label of the counter that carries the workload's name.
        origin_label: label that carries the origin region; empty if there is none.
        entry_cluster: users reach the nearest cluster first, so the counting cluster's region is the origin.
        origin_shares: declared shares by region, summing to 1; empty if not declared.
        response_kib: mean size of an answer in KiB, which leaves the cluster; 0 where egress plays no part.
    """

    query: str = ""
    workload_label: str = "service"
    origin_label: str = ""
    entry_cluster: bool = False
    origin_shares: Mapping[str, float] = field(default_factory=dict)
    response_kib: float = 0.0

    @property
    def origin_known(self) -> bool:
        """Whether demand can be split by origin."""
        return bool(self.origin_label or self.entry_cluster or self.origin_shares)


@dataclass(frozen=True, slots=True)
class Dependency:
    """Something that the workload calls.

    Attributes:
        service: its name, for the reader.
        clusters: where it stands; empty if `workload` says so.
        workload: `namespace/name` of a workload of the fleet, which stands where it has replicas.
        calls: calls per request.
    """

    service: str
    clusters: tuple[str, ...] = ()
    workload: str = ""
    calls: float = 1.0


@dataclass(frozen=True, slots=True)
class PolicyWindow:
    """What a policy changes while a window is open; None and empty leave it as it is.

    Attributes:
        freeze: nothing moves and nothing is taken away; growth and failover go on.
        origin_factors: origin region -> what its demand is multiplied by, for bursts that are known before.
    """

    window: Window
    strategy: Strategy | None = None
    weights: Weights | None = None
    min_replicas: int | None = None
    freeze: bool = False
    origin_factors: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Policy:
    """One SchedulingPolicy, resolved. Times are seconds, shares are ratios, counts are replicas."""

    name: str
    namespace: str = "default"
    pod_labels: Mapping[str, str] = field(default_factory=dict)
    workload_name: str = ""
    strategy: Strategy = "LatencyFirst"
    weights: Weights = STRATEGY_WEIGHTS["LatencyFirst"]
    demand: DemandSpec = DemandSpec()
    capacity_per_replica: float | None = None
    target_utilization: float = 0.7
    min_replicas: int = 2
    max_replicas: int | None = None
    cluster_min: int = 0
    cluster_max: int | None = None
    quantile: float = 0.9
    lead_s: float | None = None
    scale_up_stabilization_s: float = 0.0
    scale_down_stabilization_s: float | None = None
    steering: Steering = "external"
    residency_labels: Mapping[str, str] = field(default_factory=dict)
    residency_regions: tuple[str, ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    data: Mapping[str, float] = field(default_factory=dict)
    min_clusters: int = 1
    min_regions: int = 1
    max_share: float = 1.0
    spot_max_share: float = 1.0
    gang: int = 0
    depends: tuple[Dependency, ...] = ()
    priority: int = 0
    max_unavailable: int | str = 0
    max_moves_per_hour: int | str = "10%"
    max_concurrent_moves: int = 1
    min_ready_s: float = 30.0
    move_timeout_s: float = 600.0
    drain_wait_s: float = 30.0
    lost_after_s: float = 300.0
    failback_after_s: float = 900.0
    paused: bool = False
    observe_only: bool = False
    windows: tuple[PolicyWindow, ...] = ()
    frozen: bool = False
    open_windows: tuple[str, ...] = ()
    origin_factors: Mapping[str, float] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"


def resolve_count(value: int | str, total: int, *, at_least: int = 0, up: bool = False) -> int:
    """Turns a count or a percentage of `total` into replicas, not below `at_least`; rounded down, or `up`."""
    if isinstance(value, str):
        exact = float(value.rstrip("%")) / 100.0 * total
        return max(at_least, math.ceil(exact - 1e-9) if up else math.floor(exact + 1e-9))
    return max(at_least, value)
