"""The fields of Kubernetes objects that are read, as typed structs: a list of pods costs only what is used of it."""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache
from typing import Generic, TypeVar

import msgspec

_UNITS = {
    "": 1.0, "n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18,
    "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50, "Ei": 2.0**60,
}  # fmt: skip
Quantity = str | int | float


@lru_cache(maxsize=4096)
def quantity(value: Quantity) -> float:
    """Turns a Kubernetes quantity such as `250m` or `1Gi` into a number in base units.

    Raises:
        ValueError: it is no quantity.
    """
    if not isinstance(value, str):
        return float(value)
    suffix = value.lstrip("+-.0123456789")
    if suffix in _UNITS:
        return float(value[: len(value) - len(suffix)]) * _UNITS[suffix]
    return float(value)  # 1e3 and the like


class Base(msgspec.Struct, rename="camel", gc=False, frozen=True):
    """Camel case, unknown fields ignored."""


class OwnerReference(Base, frozen=True):
    """Who made an object."""

    kind: str = ""
    name: str = ""
    controller: bool = False


class Meta(Base, frozen=True):
    """Object metadata."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[OwnerReference] | None = None
    deletion_timestamp: str | None = None


class ListMeta(Base, frozen=True):
    """Metadata of a list."""

    continue_: str = msgspec.field(name="continue", default="")
    resource_version: str = ""


T = TypeVar("T")


class Page(Base, Generic[T], frozen=True):
    """A page of a list."""

    metadata: ListMeta
    items: list[T] | None = None


class Resources(Base, frozen=True):
    """Resource requests."""

    requests: dict[str, Quantity] | None = None


class Container(Base, frozen=True):
    """A container."""

    resources: Resources | None = None
    restart_policy: str = ""


class NodeExpression(Base, frozen=True):
    """An expression of a node affinity."""

    key: str = ""
    operator: str = ""
    values: list[str] | None = None


class NodeTerm(Base, frozen=True):
    """A term of a node affinity: all of its expressions hold."""

    match_expressions: list[NodeExpression] | None = None
    match_fields: list[NodeExpression] | None = None


class NodeTerms(Base, frozen=True):
    """Terms of which one holds."""

    node_selector_terms: list[NodeTerm] | None = None


class NodeAffinity(Base, frozen=True):
    """What nodes a pod must have; what it prefers is not read."""

    required: NodeTerms | None = msgspec.field(name="requiredDuringSchedulingIgnoredDuringExecution", default=None)


class Affinity(Base, frozen=True):
    """Affinity of a pod."""

    node_affinity: NodeAffinity | None = None


class PodToleration(Base, frozen=True):
    """A toleration."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""


class PodSpec(Base, frozen=True):
    """A pod's spec."""

    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    overhead: dict[str, Quantity] | None = None
    resources: Resources | None = None
    node_name: str = ""
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    tolerations: list[PodToleration] | None = None


class Condition(Base, frozen=True):
    """A condition."""

    type: str = ""
    status: str = ""
    last_transition_time: datetime | None = None


class ContainerStatus(Base, frozen=True):
    """A container's status."""

    restart_count: int = 0


class PodStatus(Base, frozen=True):
    """A pod's status."""

    phase: str = ""
    conditions: list[Condition] | None = None
    container_statuses: list[ContainerStatus] | None = None


class PodMeta(Base, frozen=True):
    """A pod's metadata, without what is long."""

    name: str = ""
    creation_timestamp: datetime | None = None
    namespace: str = ""
    labels: dict[str, str] | None = None
    owner_references: list[OwnerReference] | None = None
    deletion_timestamp: str | None = None


class Pod(Base, frozen=True):
    """A pod."""

    metadata: PodMeta
    spec: PodSpec
    status: PodStatus = PodStatus()


class Selector(Base, frozen=True):
    """A label selector."""

    match_labels: dict[str, str] | None = None


class TemplateMeta(Base, frozen=True):
    """Metadata of a template."""

    labels: dict[str, str] | None = None


class Claim(Base, frozen=True):
    """A volume claim that a volume names."""

    claim_name: str = ""


class Volume(Base, frozen=True):
    """A volume."""

    persistent_volume_claim: Claim | None = None


class TemplateSpec(PodSpec, frozen=True):
    """A template's pod spec; pods themselves are read without their volumes."""

    volumes: list[Volume] | None = None


class Template(Base, frozen=True):
    """A pod template."""

    metadata: TemplateMeta = TemplateMeta()
    spec: TemplateSpec = TemplateSpec()


class DeploymentSpec(Base, frozen=True):
    """A Deployment's spec."""

    replicas: int | None = None
    paused: bool = False
    selector: Selector = Selector()
    template: Template = Template()


class DeploymentStatus(Base, frozen=True):
    """A Deployment's status."""

    ready_replicas: int = 0
    unavailable_replicas: int = 0


class Deployment(Base, frozen=True):
    """A Deployment."""

    metadata: Meta
    spec: DeploymentSpec
    status: DeploymentStatus = DeploymentStatus()

    @property
    def key(self) -> str:
        """namespace/name."""
        return f"{self.metadata.namespace}/{self.metadata.name}"


class NodeTaint(Base, frozen=True):
    """A taint."""

    key: str = ""
    value: str = ""
    effect: str = ""


class NodeSpec(Base, frozen=True):
    """A node's spec."""

    unschedulable: bool = False
    taints: list[NodeTaint] | None = None


class NodeStatus(Base, frozen=True):
    """A node's status."""

    allocatable: dict[str, Quantity] | None = None
    conditions: list[Condition] | None = None


class NodeMeta(Base, frozen=True):
    """A node's metadata."""

    name: str = ""
    labels: dict[str, str] | None = None


class Node(Base, frozen=True):
    """A node."""

    metadata: NodeMeta
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class TargetRef(Base, frozen=True):
    """What an autoscaler scales."""

    kind: str = ""
    name: str = ""


class AutoscalerSpec(Base, frozen=True):
    """An autoscaler's spec."""

    scale_target_ref: TargetRef = TargetRef()


class Autoscaler(Base, frozen=True):
    """A HorizontalPodAutoscaler."""

    metadata: Meta
    spec: AutoscalerSpec = AutoscalerSpec()


class QuotaSpec(Base, frozen=True):
    """A quota's spec."""

    hard: dict[str, Quantity] | None = None
    scopes: list[str] | None = None


class QuotaStatus(Base, frozen=True):
    """A quota's status."""

    hard: dict[str, Quantity] | None = None
    used: dict[str, Quantity] | None = None


class Quota(Base, frozen=True):
    """A ResourceQuota."""

    metadata: Meta
    spec: QuotaSpec = QuotaSpec()
    status: QuotaStatus = QuotaStatus()


class BudgetSpec(Base, frozen=True):
    """A PodDisruptionBudget's spec."""

    min_available: int | str | None = None
    max_unavailable: int | str | None = None
    selector: Selector | None = None


class Budget(Base, frozen=True):
    """A PodDisruptionBudget."""

    metadata: Meta
    spec: BudgetSpec = BudgetSpec()


class Version(Base, frozen=True):
    """The server's version."""

    git_version: str = ""


class ScaleSpec(Base, frozen=True):
    """The number of replicas."""

    replicas: int = 0


class Scale(Base, frozen=True):
    """The scale subresource."""

    metadata: Meta
    spec: ScaleSpec = ScaleSpec()
