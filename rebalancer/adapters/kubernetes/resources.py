"""Our kinds as the hub's API knows them: plural and scope."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rebalancer.api.base import GROUP, VERSION


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind on the hub."""

    kind: str
    plural: str
    namespaced: bool

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """URL path of one object, or of all of them when the name is empty."""
        parts = [f"/apis/{GROUP}/{VERSION}"]
        if self.namespaced and namespace:
            parts.append(f"namespaces/{namespace}")
        return "/".join([*parts, self.plural, *filter(None, (name, subresource))])


RESOURCES: Mapping[str, Resource] = {
    r.kind: r
    for r in (
        Resource("MemberCluster", "memberclusters", False),
        Resource("SchedulingPolicy", "schedulingpolicies", True),
        Resource("PropagationPolicy", "propagationpolicies", True),
        Resource("CanaryRollout", "canaryrollouts", True),
    )
}
