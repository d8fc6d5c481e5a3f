"""SchedulingPolicy: how one or more workloads are placed."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from rebalancer.api.amounts import BehaviorSpec, DemandSpec, ForecastSpec, PerClusterSpec, ReplicasSpec, setting
from rebalancer.api.base import (
    API_VERSION,
    CountOrPercent,
    Duration,
    LabelSelector,
    Metadata,
    Model,
    Name,
    Percent,
    WindowSpec,
)
from rebalancer.api.base import WorkloadRef as WorkloadRef
from rebalancer.core import policy as core
from rebalancer.core.model import Effect, Toleration


class WeightsSpec(Model):
    """Weights of the objective's terms; only their proportions matter."""

    latency: float = Field(default=0.0, ge=0, le=1)
    data: float = Field(default=0.0, ge=0, le=1)
    cost: float = Field(default=0.0, ge=0, le=1)
    spread: float = Field(default=0.0, ge=0, le=1)


class StrategySpec(Model):
    """What is optimised."""

    type: core.Strategy
    weights: WeightsSpec | None = None

    @model_validator(mode="after")
    def _weights_fit(self) -> StrategySpec:
        if (self.type == "Weighted") != (self.weights is not None):
            raise ValueError("weights go with type Weighted, and only with it")
        if self.weights is not None and not any(self.weights.model_dump().values()):
            raise ValueError("at least one weight must be above 0")
        return self

    def resolve(self) -> core.Weights:
        """Returns the weights; those of Weighted are scaled so that the largest is 1."""
        if self.weights is None:
            return core.STRATEGY_WEIGHTS[self.type]
        values = self.weights.model_dump()
        top = max(values.values())
        return core.Weights(**{name: value / top for name, value in values.items()})


class ResidencySpec(Model):
    """Where the workload may stand at all; never broken, not in failover either."""

    cluster_selector: LabelSelector | None = None
    regions: list[str] = Field(default_factory=list)


class TolerationSpec(Model):
    """A toleration as pods have it."""

    key: str = ""
    operator: Literal["Equal", "Exists"] = "Equal"
    value: str = ""
    effect: Effect | None = None

    @model_validator(mode="after")
    def _as_kubernetes(self) -> TolerationSpec:
        if not self.key and self.operator != "Exists":
            raise ValueError("an empty key needs operator Exists")
        if self.operator == "Exists" and self.value:
            raise ValueError("operator Exists takes no value")
        return self


class DataCluster(Model):
    """A cluster that holds a share of the data."""

    name: Name
    share: float = Field(gt=0, le=1)


class DataSpec(Model):
    """Where the data is."""

    clusters: list[DataCluster] = Field(min_length=1)

    @model_validator(mode="after")
    def _one_whole(self) -> DataSpec:
        total = sum(c.share for c in self.clusters)
        if total > 1.001:
            raise ValueError(f"the shares of data.clusters sum to {total:g}, but must not to more than 1")
        return self


class SpreadSpec(Model):
    """How far replicas must be spread."""

    min_clusters: int = setting("spread.minClusters")
    min_regions: int = setting("spread.minRegions")
    max_share: Percent = setting("spread.maxShare")


class GangSpec(Model):
    """All or nothing: replicas that only work together, in one cluster."""

    min_available: int = Field(ge=2, le=100_000)


class DependencySpec(Model):
    """Something that the workload calls, and where it stands."""

    service: str = Field(min_length=1)
    clusters: list[Name] = Field(default_factory=list)
    workload_ref: WorkloadRef | None = None
    calls_per_request: float = Field(default=1.0, gt=0, le=10_000)

    @model_validator(mode="after")
    def _somewhere(self) -> DependencySpec:
        if bool(self.clusters) == (self.workload_ref is not None):
            raise ValueError("set exactly one of clusters and workloadRef: where the service stands")
        return self


class BudgetSpec(Model):
    """How much may move."""

    max_unavailable: CountOrPercent = 0
    max_moves_per_hour: CountOrPercent = "10%"
    max_concurrent_moves: int = setting("budget.maxConcurrentMoves")


class DrainSpec(Model):
    """How long sessions may finish before the source goes."""

    wait: Duration = setting("migration.drain.wait")


class MigrationSpec(Model):
    """How a replica moves."""

    min_ready: Duration = setting("migration.minReady")
    timeout: Duration = setting("migration.timeout")
    drain: DrainSpec = DrainSpec()


class PolicyWindowSpec(WindowSpec):
    """What the policy changes while the window is open."""

    strategy: core.Strategy | None = None
    weights: WeightsSpec | None = None
    min_replicas: int | None = Field(default=None, ge=0, le=100_000)
    freeze: bool = False
    origin_factors: dict[str, Annotated[float, Field(gt=0, le=100)]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _changes(self) -> PolicyWindowSpec:
        if self.strategy is not None or self.weights is not None:
            StrategySpec(type=self.strategy or "Weighted", weights=self.weights)
        if not (self.strategy or self.weights or self.min_replicas is not None or self.freeze or self.origin_factors):
            raise ValueError("a window must change something: strategy, weights, minReplicas, freeze or originFactors")
        return self

    def to_core(self) -> core.PolicyWindow:
        """Returns the window as the core knows it."""
        chosen = self.strategy or ("Weighted" if self.weights else None)
        weights = StrategySpec(type=chosen, weights=self.weights).resolve() if chosen else None
        return core.PolicyWindow(
            self.window(), chosen, weights, self.min_replicas, self.freeze, dict(self.origin_factors)
        )


class FailoverSpec(Model):
    """When a cluster counts as lost, and when it is used again."""

    lost_after: Duration = setting("failover.lostAfter")
    failback_after: Duration = setting("failover.failbackAfter")


def _steering(value: object) -> object:
    """Refuses the ways of steering that nothing here writes weights for yet.

    Raises:
        ValueError: with what is supported.
    """
    if value in ("dns", "gateway", "serviceImport"):
        raise ValueError(
            "is designed but not supported in this version; use external (something else follows the "
            "ready endpoints) or none"
        )
    return value


class SchedulingPolicySpec(Model):
    """The spec of a SchedulingPolicy."""

    pod_selector: LabelSelector | None = None
    workload_ref: WorkloadRef | None = None
    strategy: StrategySpec
    demand: DemandSpec = DemandSpec()
    capacity_per_replica: float | None = Field(default=None, gt=0)
    target_utilization: Percent = setting("targetUtilization")
    replicas: ReplicasSpec = ReplicasSpec()
    per_cluster: PerClusterSpec = PerClusterSpec()
    forecast: ForecastSpec = ForecastSpec()
    behavior: BehaviorSpec = BehaviorSpec()
    steering: Annotated[core.Steering, BeforeValidator(_steering)] = "external"
    residency: ResidencySpec = ResidencySpec()
    tolerations: list[TolerationSpec] = Field(default_factory=list)
    data: DataSpec | None = None
    spread: SpreadSpec = SpreadSpec()
    spot_max_share: Percent = setting("spotMaxShare")
    gang: GangSpec | None = None
    depends_on: list[DependencySpec] = Field(default_factory=list)
    priority: int = setting("priority")
    budget: BudgetSpec = BudgetSpec()
    migration: MigrationSpec = MigrationSpec()
    failover: FailoverSpec = FailoverSpec()
    windows: list[PolicyWindowSpec] = Field(default_factory=list, max_length=50)
    paused: bool = False
    observe_only: bool = False

    @model_validator(mode="after")
    def _selects(self) -> SchedulingPolicySpec:
        if (self.pod_selector is None) == (self.workload_ref is None):
            raise ValueError("set exactly one of podSelector and workloadRef")
        if self.strategy.type == "DataLocality" and self.data is None:
            raise ValueError("DataLocality needs data.clusters: which cluster holds which share")
        high = self.replicas.max
        if high is not None and self.per_cluster.min > high:
            raise ValueError(f"perCluster.min {self.per_cluster.min} is above replicas.max {high}")
        return self

    @model_validator(mode="after")
    def _windows_fit(self) -> SchedulingPolicySpec:
        high = self.replicas.max
        for number, window in enumerate(self.windows):
            if high is not None and window.min_replicas is not None and window.min_replicas > high:
                raise ValueError(f"windows[{number}].minReplicas {window.min_replicas} is above replicas.max {high}")
            if (window.strategy == "DataLocality" or (window.weights and window.weights.data)) and self.data is None:
                raise ValueError(f"windows[{number}] weighs the distance to the data, but data.clusters says nothing")
        return self

    @model_validator(mode="after")
    def _gang_fits(self) -> SchedulingPolicySpec:
        if self.gang is None:
            return self
        least = self.gang.min_available
        for name, most in (("replicas.max", self.replicas.max), ("perCluster.max", self.per_cluster.max)):
            if most is not None and least > most:
                raise ValueError(f"gang.minAvailable {least} is above {name} {most}; lower the one or raise the other")
        for name, spread in (
            ("spread.minClusters", self.spread.min_clusters),
            ("spread.minRegions", self.spread.min_regions),
            ("perCluster.min", self.per_cluster.min + 1),
        ):
            if spread > 1:
                value = spread if name != "perCluster.min" else spread - 1
                raise ValueError(f"gang.minAvailable {least} keeps all replicas in one cluster, but {name} is {value}")
        return self


class SchedulingPolicy(Model):
    """How the workloads that it selects are placed; namespaced."""

    api_version: Literal["rebalancer.dev/v1alpha1"] = API_VERSION
    kind: Literal["SchedulingPolicy"] = "SchedulingPolicy"
    metadata: Metadata
    spec: SchedulingPolicySpec
    status: dict[str, object] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _own_namespace(self) -> SchedulingPolicy:
        ref = self.spec.workload_ref
        if ref is not None and ref.namespace not in (None, self.metadata.namespace):
            raise ValueError(
                f"spec.workloadRef.namespace is {ref.namespace!r}, but a policy places workloads of its own namespace "
                f"{self.metadata.namespace!r}; move the policy there"
            )
        return self

    def resolve(self) -> core.Policy:
        """Returns the policy as the core knows it."""
        s = self.spec
        return core.Policy(
            name=self.metadata.name,
            namespace=self.metadata.namespace,
            pod_labels=dict(s.pod_selector.match_labels) if s.pod_selector else {},
            workload_name=s.workload_ref.name if s.workload_ref else "",
            strategy=s.strategy.type,
            weights=s.strategy.resolve(),
            demand=core.DemandSpec(
                s.demand.query, s.demand.workload_label, s.demand.origin_label,
                s.demand.origin == "entryCluster", dict(s.demand.origin_shares), s.demand.response_kib,
            ),
            capacity_per_replica=s.capacity_per_replica,
            target_utilization=s.target_utilization,
            min_replicas=max(s.replicas.min, s.gang.min_available if s.gang else 0),
            max_replicas=s.replicas.max,
            cluster_min=s.per_cluster.min,
            cluster_max=s.per_cluster.max,
            quantile=s.forecast.quantile,
            lead_s=s.forecast.lead,
            scale_up_stabilization_s=s.behavior.scale_up.stabilization,
            scale_down_stabilization_s=s.behavior.scale_down.stabilization,
            steering=s.steering,
            residency_labels=dict(s.residency.cluster_selector.match_labels) if s.residency.cluster_selector else {},
            residency_regions=tuple(s.residency.regions),
            tolerations=tuple(Toleration(t.key, t.operator, t.value, t.effect) for t in s.tolerations),
            data={c.name: c.share for c in s.data.clusters} if s.data else {},
            min_clusters=s.spread.min_clusters,
            min_regions=s.spread.min_regions,
            max_share=s.spread.max_share,
            spot_max_share=s.spot_max_share,
            gang=s.gang.min_available if s.gang else 0,
            depends=tuple(_dependency(d, self.metadata.namespace) for d in s.depends_on),
            priority=s.priority,
            max_unavailable=s.budget.max_unavailable,
            max_moves_per_hour=s.budget.max_moves_per_hour,
            max_concurrent_moves=s.budget.max_concurrent_moves,
            min_ready_s=s.migration.min_ready,
            move_timeout_s=s.migration.timeout,
            drain_wait_s=s.migration.drain.wait,
            lost_after_s=s.failover.lost_after,
            failback_after_s=s.failover.failback_after,
            paused=s.paused,
            observe_only=s.observe_only,
            windows=tuple(w.to_core() for w in s.windows),
        )  # fmt: skip


def _dependency(spec: DependencySpec, namespace: str) -> core.Dependency:
    ref = spec.workload_ref
    workload = f"{ref.namespace or namespace}/{ref.name}" if ref else ""
    return core.Dependency(spec.service, tuple(spec.clusters), workload, spec.calls_per_request)
