"""Kubernetes objects of one cluster -> placements and room. Pure: nothing here talks to a server.

What is not known is not counted as zero: where pods can't be listed, readiness comes from the Deployment's own status
and the room is Unknown.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from rebalancer.adapters.kubernetes import marks
from rebalancer.adapters.kubernetes.limits import budgets_of
from rebalancer.adapters.kubernetes.shapes import (
    affinity_of,
    extended_of,
    extended_room,
    requests_of,
    taints_of,
    tolerations_of,
)
from rebalancer.adapters.kubernetes.structs import Autoscaler, Budget, Deployment, Node, Pod, quantity
from rebalancer.core.model import NodeRoom, Placement, Taint
from rebalancer.core.policy import Policy

ROLLOUT_LABEL = "rebalancer.dev/rollout"
HASH_LABEL = "pod-template-hash"
_OVER = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class Objects:
    """What was listed in one cluster; None is a list that could not be read, which is not an empty one."""

    deployments: Sequence[Deployment]
    pods: Sequence[Pod] | None
    nodes: Sequence[Node] | None
    autoscalers: Sequence[Autoscaler] | None
    budgets: Sequence[Budget] | None = ()


@dataclass(frozen=True, slots=True)
class Seen:
    """What one cluster's objects say.

    Attributes:
        placements: by workload. policies: workload -> policy. problems: one sentence each.
        ambiguous: workloads that more than one policy selects.
    """

    placements: Mapping[str, Placement]
    policies: Mapping[str, str]
    ambiguous: frozenset[str] = frozenset()
    problems: tuple[str, ...] = ()


@dataclass(slots=True)
class ReadyMemory:
    """Since when a Deployment's own status shows its ready replicas; for clusters whose pods can't be listed."""

    since_s: dict[str, list[float]] = field(default_factory=dict)

    def update(self, workload: str, ready: int, now: float) -> tuple[float, ...]:
        """Notes the number; replicas that went are taken to be the newest, so that nothing looks older than it is."""
        known = self.since_s.get(workload, [])
        self.since_s[workload] = [*known[:ready], *[now] * (ready - len(known))]
        return tuple(self.since_s[workload])

    def forget_others(self, workloads: Set[str]) -> None:
        """Drops what is gone, so that the memory is bounded by what runs."""
        for gone in self.since_s.keys() - workloads:
            del self.since_s[gone]


def room(nodes: Iterable[Node], pods: Iterable[Pod]) -> tuple[tuple[NodeRoom, ...], float, float]:
    """Computes what is free on each ready node; a tainted one is for those that tolerate it.

    Pods that are not bound yet are in flight: they are charged to the nodes with most free CPU, if they fit at all.

    Returns:
        The nodes by name, and the allocatable cores and bytes of those without taints.
    """
    free: dict[str, _Free] = {}
    for node in nodes:
        if _takes_pods(node):
            allocatable = node.status.allocatable or {}
            cpu, memory, slots = (quantity(allocatable.get(k, 0)) for k in ("cpu", "memory", "pods"))
            labels = node.metadata.labels or {}
            free[node.metadata.name] = _Free(cpu, memory, slots, extended_room(node), labels, taints_of(node))
    ordinary = {n: f for n, f in free.items() if not f.taints}
    total_cpu, total_memory = sum(f.cpu for f in ordinary.values()), sum(f.memory for f in ordinary.values())
    waiting: list[tuple[float, float]] = []
    for pod in pods:
        if pod.status.phase in _OVER:
            continue
        if not pod.spec.node_name:
            if pod.metadata.deletion_timestamp is None:
                waiting.append(requests_of(pod.spec))
        elif pod.spec.node_name in free:
            free[pod.spec.node_name].charge(*requests_of(pod.spec), extended_of(pod.spec))
    _charge_waiting(ordinary, waiting)
    rooms = tuple(
        NodeRoom(name, max(0.0, f.cpu), max(0.0, f.memory), max(0, int(f.slots)), f.labels, f.taints,
                 {k: max(0.0, v) for k, v in f.extended.items()})
        for name, f in sorted(free.items())
    )  # fmt: skip
    return rooms, total_cpu, total_memory


@dataclass(slots=True)
class _Free:
    """What is free on one node, on its way down."""

    cpu: float
    memory: float
    slots: float
    extended: dict[str, float]
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]

    def charge(self, cpu: float, memory: float, extended: Mapping[str, float]) -> None:
        """Takes one pod off."""
        self.cpu -= cpu
        self.memory -= memory
        self.slots -= 1
        for name, units in extended.items():
            self.extended[name] = self.extended.get(name, 0.0) - units


def _takes_pods(node: Node) -> bool:
    ready = any(c.type == "Ready" and c.status == "True" for c in node.status.conditions or ())
    return ready and not node.spec.unschedulable


def _charge_waiting(free: Mapping[str, _Free], waiting: Sequence[tuple[float, float]]) -> None:
    heap = [(-f.cpu, name) for name, f in free.items()]
    heapq.heapify(heap)
    for cpu, memory in sorted(waiting, reverse=True):
        if not heap:
            return
        one = free[heap[0][1]]
        if cpu <= one.cpu and memory <= one.memory and one.slots >= 1:
            one.charge(cpu, memory, {})
            heapq.heapreplace(heap, (-one.cpu, heap[0][1]))


def read(cluster: str, objects: Objects, policies: Sequence[Policy], memory: ReadyMemory, now: float) -> Seen:
    """Turns the objects of one cluster into placements of the workloads that the policies select."""
    pods = None if objects.pods is None else _by_owner(objects.pods)
    scaled = {f"{a.metadata.namespace}/{a.spec.scale_target_ref.name}" for a in objects.autoscalers or ()
              if a.spec.scale_target_ref.kind == "Deployment"}  # fmt: skip
    canaries = {d.key for d in objects.deployments if ROLLOUT_LABEL in (d.metadata.labels or {})}
    placements: dict[str, Placement] = {}
    chosen: dict[str, str] = {}
    ambiguous: set[str] = set()
    problems: list[str] = []
    memory.forget_others({d.key for d in objects.deployments})
    for one in objects.deployments:
        if one.key in canaries:
            continue
        matching = [p.key for p in policies if selects(p, one)]
        if len(matching) > 1:
            ambiguous.add(one.key)
            problems.append(f"{cluster}: {one.key} has {len(matching)} policies ({', '.join(sorted(matching))}); "
                            "it gets none until all but one are removed")  # fmt: skip
        if len(matching) != 1:
            continue
        owner = ""
        if objects.autoscalers is None or one.key in scaled:
            owner = "hpa"  # where nobody can tell, an autoscaler may own it, so it is left alone
        elif f"{one.key}-canary" in canaries:
            owner = "rollout"
        placement, problem = _placement(cluster, one, pods, owner, memory, now)
        labels = one.spec.template.metadata.labels or {}
        known = None if objects.budgets is None else budgets_of(objects.budgets, one.metadata.namespace, labels)
        placements[one.key] = replace(placement, budgets=known)
        chosen[one.key] = matching[0]
        if problem:
            problems.append(f"{cluster}: {one.key}: {problem}")
    return Seen(placements, chosen, frozenset(ambiguous), tuple(problems))


def selects(policy: Policy, deployment: Deployment) -> bool:
    """Says whether the policy takes the Deployment."""
    if deployment.metadata.namespace != policy.namespace:
        return False
    if policy.workload_name:
        return deployment.metadata.name == policy.workload_name
    labels = deployment.spec.template.metadata.labels or {}
    return bool(policy.pod_labels) and all(labels.get(k) == v for k, v in policy.pod_labels.items())


def _by_owner(pods: Iterable[Pod]) -> dict[tuple[str, str], list[Pod]]:
    """Pods by namespace and Deployment: a Deployment's ReplicaSet is called `<deployment>-<pod-template-hash>`."""
    found: dict[tuple[str, str], list[Pod]] = {}
    for pod in pods:
        tail = "-" + (pod.metadata.labels or {}).get(HASH_LABEL, "")
        for owner in pod.metadata.owner_references or ():
            if owner.kind == "ReplicaSet" and len(tail) > 1 and owner.name.endswith(tail):
                found.setdefault((pod.metadata.namespace, owner.name.removesuffix(tail)), []).append(pod)
    return found


def _placement(
    cluster: str,
    one: Deployment,
    pods: Mapping[tuple[str, str], Sequence[Pod]] | None,
    owner: str,
    memory: ReadyMemory,
    now: float,
) -> tuple[Placement, str]:
    meta, template = one.metadata, one.spec.template
    move, moved, problem = marks.read(meta.annotations)
    begun: tuple[tuple[float, float], ...] = ()
    if pods is None:
        ready = memory.update(one.key, one.status.ready_replicas, now)
        unavailable = one.status.unavailable_replicas
    else:
        wanted_labels = (one.spec.selector.match_labels or {}).items()
        own = [
            p for p in pods.get((meta.namespace, meta.name), ()) if wanted_labels <= (p.metadata.labels or {}).items()
        ]
        alive = [p for p in own if p.metadata.deletion_timestamp is None and p.status.phase not in _OVER]
        ready = tuple(sorted(s for s in (_ready_since(p, now) for p in alive) if s is not None))
        unavailable = len(alive) - len(ready)
        begun = tuple(sorted(s for s in (_start(p) for p in alive) if s is not None))
        memory.since_s[one.key] = list(ready)
    cpu, bytes_ = requests_of(template.spec)
    return Placement(
        workload=one.key,
        cluster=cluster,
        wanted=1 if one.spec.replicas is None else one.spec.replicas,
        ready_since_s=ready,
        cpu=cpu,
        memory=bytes_,
        move=move,
        moved=moved,
        owner=owner,
        resource_version=meta.resource_version,
        uid=meta.uid,
        node_selector=template.spec.node_selector or {},
        affinity=affinity_of(template.spec),
        tolerations=tolerations_of(template.spec),
        extended=extended_of(template.spec),
        claims=tuple(
            v.persistent_volume_claim.claim_name for v in template.spec.volumes or () if v.persistent_volume_claim
        ),
        labels={**(meta.labels or {}), **(template.metadata.labels or {})},
        paused=one.spec.paused,
        observed_s=now,
        unavailable_pods=unavailable,
        starts=begun,
    ), problem


def _ready_since(pod: Pod, now: float) -> float | None:
    for condition in pod.status.conditions or ():
        if condition.type == "Ready":
            if condition.status != "True":
                return None
            since = condition.last_transition_time
            # A cluster's clock may be ahead of ours: ready since now, not in the future.
            return min(now, since.timestamp()) if since is not None else now
    return None


def _start(pod: Pod) -> tuple[float, float] | None:
    """(when it became ready, seconds from created to ready), both by the cluster's clock; None where either is unknown.

    Only of pods that never restarted a container: what became ready again says nothing of a start.
    """
    created = pod.metadata.creation_timestamp
    if created is None or any(c.restart_count for c in pod.status.container_statuses or ()):
        return None
    for condition in pod.status.conditions or ():
        if condition.type == "Ready" and condition.status == "True" and condition.last_transition_time is not None:
            ready = condition.last_transition_time.timestamp()
            return ready, max(0.0, ready - created.timestamp())
    return None
