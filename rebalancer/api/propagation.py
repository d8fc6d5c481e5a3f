"""PropagationPolicy: where the objects of a workload may stand."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rebalancer.api.base import API_VERSION, LabelSelector, Metadata, Model, Name


class ResourceSelector(Model):
    """Selects objects to propagate."""

    api_version: str = "apps/v1"
    kind: str = Field(min_length=1)
    name: str = ""
    label_selector: LabelSelector | None = None


class PropagationPlacement(Model):
    """Which clusters the objects may stand in: all that fulfil every field that is set."""

    cluster_selector: LabelSelector | None = None
    cluster_names: list[Name] = Field(default_factory=list)
    regions: list[str] = Field(default_factory=list)


class PropagationPolicySpec(Model):
    """The spec of a PropagationPolicy."""

    resource_selectors: list[ResourceSelector] = Field(min_length=1)
    placement: PropagationPlacement = PropagationPlacement()


class PropagationPolicy(Model):
    """Where the objects it selects may stand. It narrows the clusters of a workload; it copies nothing yet."""

    api_version: Literal["rebalancer.dev/v1alpha1"] = API_VERSION
    kind: Literal["PropagationPolicy"] = "PropagationPolicy"
    metadata: Metadata
    spec: PropagationPolicySpec
    status: dict[str, object] = Field(default_factory=dict)

    def allows(self, cluster: str, region: str, labels: dict[str, str]) -> bool:
        """Says whether the cluster fulfils the placement."""
        placement = self.spec.placement
        if placement.cluster_names and cluster not in placement.cluster_names:
            return False
        if placement.regions and region not in placement.regions:
            return False
        wanted = placement.cluster_selector.match_labels if placement.cluster_selector else {}
        return all(labels.get(k) == v for k, v in wanted.items())

    def selects(self, namespace: str, name: str, labels: dict[str, str]) -> bool:
        """Says whether one of the selectors takes the Deployment."""
        if namespace != self.metadata.namespace:
            return False
        for selector in self.spec.resource_selectors:
            if selector.kind != "Deployment" or (selector.name and selector.name != name):
                continue
            wanted = selector.label_selector.match_labels if selector.label_selector else {}
            if all(labels.get(k) == v for k, v in wanted.items()):
                return True
        return False
