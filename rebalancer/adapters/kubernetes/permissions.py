"""What the controller may do in a cluster, asked before it is needed: SelfSubjectAccessReview per right."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from rebalancer.adapters.kubernetes.clients import ClusterClient
from rebalancer.adapters.kubernetes.lease import LEASE, NAMESPACE
from rebalancer.adapters.kubernetes.resources import RESOURCES
from rebalancer.adapters.kubernetes.structs import Base
from rebalancer.api.base import GROUP
from rebalancer.errors import ClusterError


@dataclass(frozen=True, slots=True)
class Right:
    """One right and what is lost without it."""

    verb: str
    group: str
    resource: str
    without: str
    subresource: str = ""
    namespace: str = ""
    name: str = ""

    @property
    def words(self) -> str:
        """The right as kubectl would say it."""
        name = f"{self.resource}/{self.subresource}" if self.subresource else self.resource
        return f"{self.verb} {name}" + (f".{self.group}" if self.group else "")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that `rebalancer check` reports.

    Attributes:
        cluster: name, or `hub`.
        what: the thing checked, such as `reachable` or `list pods`.
        ok: whether it is as needed.
        detail: the version, or what is lost and the next step.
    """

    cluster: str
    what: str
    ok: bool
    detail: str = ""


MEMBER_RIGHTS = (
    Right("list", "apps", "deployments", "the cluster is out of sight"),
    Right("list", "", "pods", "its room is unknown, so nothing new is placed there"),
    Right("list", "", "nodes", "its room is unknown, so nothing new is placed there"),
    Right("list", "autoscaling", "horizontalpodautoscalers", "every workload counts as owned by an autoscaler"),
    Right("list", "", "resourcequotas", "its quotas are unknown, so nothing new is placed there"),
    Right("list", "policy", "poddisruptionbudgets", "all that is wanted has to stay ready"),
    Right("get", "apps", "deployments", "no move can begin there"),
    Right("patch", "apps", "deployments", "no move can begin there"),
    Right("get", "apps", "deployments", "nothing is scaled there", "scale"),
    Right("update", "apps", "deployments", "nothing is scaled there", "scale"),
    Right("create", "events.k8s.io", "events", "no Events are written there"),
)


ROLLOUT_RIGHTS = (
    Right("create", "apps", "deployments", "no canary can be made there"),
    Right("delete", "apps", "deployments", "a canary is emptied but stays there"),
    Right("list", "apps", "replicasets", "rollouts take the cluster for unreachable and hold"),
)
"""In members, where there are rollouts."""
HUB_RIGHTS = (
    *(Right("list", GROUP, r.plural, "policies can't be read from the hub") for r in RESOURCES.values()),
    *(Right("update", GROUP, r.plural, "its status is not written", "status") for r in RESOURCES.values()),
    Right("patch", GROUP, "canaryrollouts", "no rollout begins, because its finalizer can't be written"),
)
_LEASES = ("coordination.k8s.io", "leases", "the controller can't lead and so does not act")
LEASE_RIGHTS = (
    Right("create", *_LEASES, namespace=NAMESPACE),
    Right("get", *_LEASES, namespace=NAMESPACE, name=LEASE),
    Right("update", *_LEASES, namespace=NAMESPACE, name=LEASE),
)


class _ReviewStatus(Base, frozen=True):
    allowed: bool = False


class _Review(Base, frozen=True):
    status: _ReviewStatus = _ReviewStatus()


async def check(client: ClusterClient, rights: Sequence[Right], deadline_s: float) -> tuple[Finding, ...]:
    """Asks one cluster for its version and each right; a cluster that does not answer is one finding."""
    try:
        return await client.reads.run(lambda: _check(client, rights, time.monotonic() + deadline_s), deadline_s + 0.5)
    except ClusterError as error:
        return (Finding(client.name, "reachable", False, f"{error}; check spec.connection and the network"),)


def _check(client: ClusterClient, rights: Sequence[Right], until: float) -> tuple[Finding, ...]:
    findings = [Finding(client.name, "reachable", True, client.version(until))]
    for right in rights:
        allowed = _allowed(client, right, until)
        detail = "" if allowed else f"{right.without}; apply the ClusterRole that `rebalancer install rbac` renders"
        findings.append(Finding(client.name, right.words, allowed, detail))
    return tuple(findings)


def _allowed(client: ClusterClient, right: Right, until: float) -> bool:
    attributes = {"verb": right.verb, "group": right.group, "resource": right.resource}
    if right.subresource:
        attributes["subresource"] = right.subresource
    if right.namespace:
        attributes["namespace"] = right.namespace
    if right.name:
        attributes["name"] = right.name
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    answer = client.request("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", until=until, body=body)
    return msgspec.json.decode(answer.body, type=_Review).status.allowed
