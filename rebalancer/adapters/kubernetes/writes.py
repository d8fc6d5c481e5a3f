"""The writes on a workload's Deployment, in a worker thread: read, compare, write with a precondition.

Each write reads the object first. Kubelets and controllers move the resourceVersion all the time, so what must still
hold is the field that the step is about: the number of replicas, or the intent. The resourceVersion that was just read
guards the gap between reading and writing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from rebalancer.adapters.kubernetes import marks
from rebalancer.adapters.kubernetes.clients import FIELD_MANAGER, MERGE_PATCH, ClusterClient
from rebalancer.adapters.kubernetes.structs import Base, Meta, Scale
from rebalancer.core.model import EndIntent, Placement, PutIntent, SetReplicas, Step
from rebalancer.errors import ClusterError
from rebalancer.ports import Outcome, OutcomeKind

TRIES = 4
"""First try and three more after conflicts."""
_METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
_MANAGER = [("fieldManager", FIELD_MANAGER)]
_OUTCOMES: dict[str, OutcomeKind] = {
    "forbidden": "forbidden", "unauthorized": "forbidden", "conflict": "conflict", "not-found": "conflict",
    "timeout": "unreachable", "unreachable": "unreachable", "throttled": "unreachable",
}  # fmt: skip


class _Object(Base, frozen=True):
    metadata: Meta


@dataclass(frozen=True, slots=True)
class Target:
    """The object of a write.

    Attributes:
        uid: of the object that was observed; empty if unknown. Another one is another object.
        now: Unix seconds.
    """

    client: ClusterClient
    workload: str
    uid: str
    now: float

    @property
    def path(self) -> str:
        """Path of the Deployment."""
        namespace, _, name = self.workload.partition("/")
        return f"/apis/apps/v1/namespaces/{namespace}/deployments/{name}"


def outcome_of(error: ClusterError) -> Outcome:
    """Turns an error into how a write ended."""
    kind = _OUTCOMES.get(error.kind, "failed")
    hint = "; whether it was written shows in the next cycle" if error.kind == "timeout" else ""
    return Outcome(kind, f"{error}{hint}")


def apply(
    client: ClusterClient, workload: str, step: Step, placement: Placement, now: float, deadline_s: float
) -> Outcome:
    """Carries out one step; never raises ClusterError."""
    target = Target(client, workload, placement.uid, now)
    until = time.monotonic() + deadline_s
    work: Callable[[], Outcome]
    if isinstance(step, SetReplicas):
        set_step = step
        work = lambda: _set_replicas(target, set_step, until)  # noqa: E731  # one line per step reads best
    else:
        mark_step = step
        work = lambda: _mark(target, mark_step, until)  # noqa: E731  # as above
    last = Outcome("conflict", f"{client.name}: {workload} keeps changing")
    for _ in range(TRIES):
        try:
            return work()
        except ClusterError as error:
            last = outcome_of(error)
            if error.kind != "conflict":
                return last
    return last


def _set_replicas(target: Target, step: SetReplicas, until: float) -> Outcome:
    client, path = target.client, f"{target.path}/scale"
    scale = _decode(client, client.request("GET", path, until=until).body, Scale)
    current, version = scale.spec.replicas, scale.metadata.resource_version
    if gone := _other(target, scale.metadata):
        return gone
    if current == step.replicas:
        return Outcome("unchanged", resource_version=version)
    if current != step.expected:
        plan = f"neither the {step.expected} that were planned from nor the {step.replicas} planned for"
        return Outcome("conflict", f"{client.name}: {target.workload} has {current} replicas, {plan}")
    namespace, _, name = target.workload.partition("/")
    body = {
        "apiVersion": "autoscaling/v1",
        "kind": "Scale",
        "metadata": {"name": name, "namespace": namespace, "uid": scale.metadata.uid, "resourceVersion": version},
        "spec": {"replicas": step.replicas},
    }
    answer = client.request("PUT", path, until=until, query=_MANAGER, body=body)
    return Outcome("done", resource_version=_decode(client, answer.body, Scale).metadata.resource_version)


def _mark(target: Target, step: PutIntent | EndIntent, until: float) -> Outcome:
    client = target.client
    found = _decode(client, client.request("GET", target.path, until=until, accept=_METADATA).body, _Object).metadata
    if gone := _other(target, found):
        return gone
    annotations = found.annotations or {}
    changes: dict[str, str | None]
    if isinstance(step, PutIntent):
        move, _, _ = marks.read(annotations)
        if move is not None and move.id != step.record.id:
            return Outcome("conflict", f"{client.name}: {target.workload} carries another move, {move.id}")
        changes = {marks.MOVE: marks.write_move(step.record)}
    else:
        changes = _ending(annotations, step, target.now)
    changes = {k: v for k, v in changes.items() if annotations.get(k) != v}
    if not changes:
        return Outcome("unchanged", resource_version=found.resource_version)
    body: dict[str, Any] = {"metadata": {"resourceVersion": found.resource_version, "annotations": changes}}
    answer = client.request(
        "PATCH", target.path, until=until, query=_MANAGER, body=body, content_type=MERGE_PATCH, accept=_METADATA
    )
    return Outcome("done", resource_version=_decode(client, answer.body, _Object).metadata.resource_version)


def _ending(annotations: dict[str, str], step: EndIntent, now: float) -> dict[str, str | None]:
    """Takes the intent off if it is this move's, and remembers the end; both once, however often it is repeated."""
    move, moved, _ = marks.read(annotations)
    changes: dict[str, str | None] = {}
    if move is not None and move.id == step.move_id:
        changes[marks.MOVE] = None
    if all(m.id != step.moved.id for m in moved):
        changes[marks.MOVED] = marks.write_moved([*moved, step.moved], now)
    return changes


def _other(target: Target, found: Meta) -> Outcome | None:
    if target.uid and found.uid and found.uid != target.uid:
        return Outcome("conflict", f"{target.client.name}: {target.workload} was deleted and made anew meanwhile")
    return None


def _decode(client: ClusterClient, body: bytes, type_: type[Any]) -> Any:
    try:
        return msgspec.json.decode(body, type=type_)
    except (msgspec.MsgspecError, ValueError) as error:
        raise ClusterError("invalid", f"{client.name}: an answer that is no Kubernetes object: {error}") from error
