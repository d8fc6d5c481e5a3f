"""MemberCluster: a cluster of the fleet."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from rebalancer.api.base import API_VERSION, Duration, Metadata, Model, Percent, WindowSpec
from rebalancer.core import model


class Connection(Model):
    """How the controller reaches the cluster: exactly one of a kubeconfig file (with a context) or a Secret."""

    kubeconfig_path: str = ""
    context: str = ""
    kubeconfig_secret_ref: str = ""

    @model_validator(mode="after")
    def _exactly_one(self) -> Connection:
        if self.kubeconfig_secret_ref and (self.kubeconfig_path or self.context):
            raise ValueError("set either kubeconfigSecretRef, or kubeconfigPath and context, not both")
        if not (self.kubeconfig_secret_ref or self.kubeconfig_path or self.context):
            raise ValueError("set one of kubeconfigPath, context or kubeconfigSecretRef")
        return self


class PriceWindowSpec(WindowSpec):
    """While it is open, CPU and memory cost `factor` times as much."""

    factor: float = Field(ge=0, le=100)


class PriceSpec(Model):
    """Prices in USD, egress per GiB; an unknown price counts as the mean of the known, so that it decides nothing."""

    cpu_core_hour: float | None = Field(default=None, ge=0)
    memory_gib_hour: float | None = Field(default=None, ge=0)
    egress_gib: float | None = Field(default=None, ge=0)
    windows: list[PriceWindowSpec] = Field(default_factory=list, max_length=50)


class NodeShape(Model):
    """What a node that an autoscaler adds has for pods."""

    cpu_cores: float = Field(gt=0, le=10_000)
    memory_gib: float = Field(gt=0, le=1_000_000)
    pods: int = Field(default=110, ge=1, le=10_000)


class ElasticSpec(Model):
    """A node autoscaler: up to how many nodes the cluster may have, what a new one has, and when it is there."""

    max_nodes: int = Field(ge=1, le=100_000)
    node_shape: NodeShape
    provision: Duration = Field(ge=0, le=7200)


class Capacity(Model):
    """What is kept free against fragmentation, how many replicas may begin at once, and what can appear."""

    reserve: Percent = Field(default=0.05, ge=0, le=0.5)
    max_starts_per_cycle: int | None = Field(default=None, ge=1, le=100_000)
    elastic: ElasticSpec | None = None

    def resolve(self) -> model.Elastic | None:
        """Returns what can appear as the core knows it."""
        if self.elastic is None:
            return None
        shape = self.elastic.node_shape
        return model.Elastic(
            self.elastic.max_nodes, shape.cpu_cores, shape.memory_gib * model.GIB, shape.pods, self.elastic.provision
        )


class TaintSpec(Model):
    """A taint as nodes have it; `network-quality` is set by the controller."""

    key: str = Field(min_length=1)
    value: str = ""
    effect: model.Effect

    @model_validator(mode="after")
    def _not_ours(self) -> TaintSpec:
        if self.key == "network-quality":
            raise ValueError("network-quality is set by the controller from measurements; use another key")
        return self


class MemberClusterSpec(Model):
    """The spec of a MemberCluster."""

    region: str = Field(min_length=1)
    zone: str = ""
    provider: str = ""
    labels: dict[str, str] = Field(default_factory=dict)
    connection: Connection
    price: PriceSpec = PriceSpec()
    capacity: Capacity = Capacity()
    spot: bool = False
    metrics_label: dict[str, str] = Field(default_factory=dict, max_length=1)
    taints: list[TaintSpec] = Field(default_factory=list)
    drain: bool = False
    paused: bool = False


class MemberCluster(Model):
    """A cluster of the fleet; cluster-scoped."""

    api_version: Literal["rebalancer.dev/v1alpha1"] = API_VERSION
    kind: Literal["MemberCluster"] = "MemberCluster"
    metadata: Metadata
    spec: MemberClusterSpec
    status: dict[str, object] = Field(default_factory=dict)

    def resolve(self) -> model.Cluster:
        """Returns the cluster as the core knows it."""
        spec = self.spec
        return model.Cluster(
            name=self.metadata.name,
            region=spec.region,
            zone=spec.zone,
            provider=spec.provider,
            labels=dict(spec.labels),
            price=model.Price(spec.price.cpu_core_hour, spec.price.memory_gib_hour, spec.price.egress_gib),
            price_windows=tuple(model.PriceWindow(w.window(), w.factor) for w in spec.price.windows),
            reserve_ratio=spec.capacity.reserve,
            elastic=spec.capacity.resolve(),
            max_starts=spec.capacity.max_starts_per_cycle,
            taints=tuple(model.Taint(t.key, t.value, t.effect) for t in spec.taints),
            spot=spec.spot,
            drain=spec.drain,
            paused=spec.paused,
        )

    def metrics_label(self) -> tuple[str, str]:
        """Returns label name and value under which the cluster's series appear."""
        for name, value in self.spec.metrics_label.items():
            return name, value
        return "cluster", self.metadata.name
