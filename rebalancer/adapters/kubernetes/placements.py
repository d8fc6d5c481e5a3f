"""Kubernetes objects of one cluster -> placements and room. Pure: nothing here talks to a server.

What is not known is not counted as zero: where pods can't be listed, readiness comes from the Deployment's own status
and the room is Unknown.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from rebalancer.adapters.kubernetes import marks
from rebalancer.adapters.kubernetes.structs import Autoscaler, Container, Deployment, Node, Pod, PodSpec, quantity
from rebalancer.core.model import NodeRoom, Placement
from rebalancer.core.policy import Policy

ROLLOUT_LABEL = "rebalancer.dev/rollout"
HASH_LABEL = "pod-template-hash"
_BARS = ("NoSchedule", "NoExecute")
_OVER = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class Objects:
    """What was listed in one cluster; None is a list that could not be read, which is not an empty one."""

    deployments: Sequence[Deployment]
    pods: Sequence[Pod] | None
    nodes: Sequence[Node] | None
    autoscalers: Sequence[Autoscaler] | None


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


def requests_of(spec: PodSpec) -> tuple[float, float]:
    """What a pod requests, cores and bytes, as the scheduler counts it.

    Init containers run one after another beside the sidecars (init containers that always restart) before them.
    """
    totals = []
    for name in ("cpu", "memory"):
        sidecars = peak = 0.0
        for one in spec.init_containers or ():
            amount = _request(one, name)
            if one.restart_policy == "Always":
                sidecars += amount
                peak = max(peak, sidecars)
            else:
                peak = max(peak, sidecars + amount)
        total = max(peak, sidecars + sum(_request(c, name) for c in spec.containers or ()))
        whole = (spec.resources.requests or {}).get(name) if spec.resources else None
        total = quantity(whole) if whole is not None else total
        totals.append(total + quantity((spec.overhead or {}).get(name, 0)))
    return totals[0], totals[1]


def _request(container: Container, name: str) -> float:
    found = container.resources.requests if container.resources else None
    return quantity(found[name]) if found and name in found else 0.0


def room(nodes: Iterable[Node], pods: Iterable[Pod]) -> tuple[tuple[NodeRoom, ...], float, float]:
    """Computes what is free on each node that takes ordinary pods.

    Pods that are not bound yet are in flight: they are charged to the nodes with most free CPU, if they fit at all.

    Returns:
        The nodes by name, and the allocatable cores and bytes of all of them.
    """
    free: dict[str, list[float]] = {}
    labels: dict[str, Mapping[str, str]] = {}
    total_cpu = total_memory = 0.0
    for node in nodes:
        if not _takes_pods(node):
            continue
        allocatable = node.status.allocatable or {}
        cpu, memory, slots = (quantity(allocatable.get(k, 0)) for k in ("cpu", "memory", "pods"))
        free[node.metadata.name] = [cpu, memory, slots]
        labels[node.metadata.name] = node.metadata.labels or {}
        total_cpu += cpu
        total_memory += memory
    waiting: list[tuple[float, float]] = []
    for pod in pods:
        if pod.status.phase in _OVER:
            continue
        if not pod.spec.node_name:
            if pod.metadata.deletion_timestamp is None:
                waiting.append(requests_of(pod.spec))
        elif pod.spec.node_name in free:
            _charge(free[pod.spec.node_name], *requests_of(pod.spec))
    _charge_waiting(free, waiting)
    rooms = tuple(
        NodeRoom(name, max(0.0, f[0]), max(0.0, f[1]), max(0, int(f[2])), labels[name])
        for name, f in sorted(free.items())
    )
    return rooms, total_cpu, total_memory


def _takes_pods(node: Node) -> bool:
    ready = any(c.type == "Ready" and c.status == "True" for c in node.status.conditions or ())
    barred = any(t.effect in _BARS for t in node.spec.taints or ())
    return ready and not node.spec.unschedulable and not barred


def _charge(free: list[float], cpu: float, memory: float) -> None:
    free[0] -= cpu
    free[1] -= memory
    free[2] -= 1


def _charge_waiting(free: Mapping[str, list[float]], waiting: Sequence[tuple[float, float]]) -> None:
    heap = [(-f[0], name) for name, f in free.items()]
    heapq.heapify(heap)
    for cpu, memory in sorted(waiting, reverse=True):
        if not heap:
            return
        one = free[heap[0][1]]
        if cpu <= one[0] and memory <= one[1] and one[2] >= 1:
            _charge(one, cpu, memory)
            heapq.heapreplace(heap, (-one[0], heap[0][1]))


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
        placements[one.key] = placement
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
