"""Raw Kubernetes objects <-> what the rollout core sees; nothing here talks to a server."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

from pydantic import ValidationError

from rebalancer.api.rollout import CanaryRollout
from rebalancer.core.rollout.codec import status_from_dict, status_to_dict
from rebalancer.core.rollout.decision import ReleaseStable, SetTemplate
from rebalancer.core.rollout.model import CanarySeen, ClusterSeen, Spec, StableSeen, State, Status, Template
from rebalancer.core.rollout.revision import HASH_LABEL, ROLLOUT_LABEL, clean, revision_of
from rebalancer.core.rollout.stored import Stored
from rebalancer.core.rollout.verbs import parse_request

Object = dict[str, Any]

STRATEGY_BEFORE = "rebalancer.dev/strategy-before"
PAUSED_BY = "rebalancer.dev/paused-by"
FINALIZER = "rebalancer.dev/rollout"
LAST_GOOD_SPEC = "lastGoodSpec"
LAST_GOOD_BYTES = 65536
"""A larger spec is remembered in memory only; the status has to fit into an object."""
_CANT_START = frozenset(
    {"CrashLoopBackOff", "ImagePullBackOff", "ErrImagePull", "InvalidImageName", "CreateContainerConfigError"}
    | {"CreateContainerError", "RunContainerError"}
)


def selector_text(deployment: Object) -> str:
    """Returns the Deployment's matchLabels as a query; its ReplicaSets and the canary's have them all."""
    labels = deployment["spec"]["selector"].get("matchLabels") or {}
    return ",".join(f"{k}={v}" for k, v in sorted(labels.items()))


def canary_body(spec: Spec, stable: Object, template: Template, replicas: int) -> Object:
    """Returns the canary's Deployment: the labels that the Service selects, and one that tells the two apart."""
    mark = {ROLLOUT_LABEL: spec.name}
    pod = cast("Object", clean(template))
    metadata = {k: v for k, v in cast("Object", pod.get("metadata") or {}).items() if k in ("labels", "annotations")}
    metadata["labels"] = {**(metadata.get("labels") or {}), **mark}
    selector = stable["spec"]["selector"]
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": spec.canary, "namespace": spec.namespace, "labels": mark},
        "spec": {
            "replicas": replicas,
            "minReadySeconds": stable["spec"].get("minReadySeconds", 0),
            "selector": {**selector, "matchLabels": {**(selector.get("matchLabels") or {}), **mark}},
            "template": {**pod, "metadata": metadata},
        },
    }


def _pointer(key: str) -> str:
    return "/metadata/annotations/" + key.replace("~", "~0").replace("/", "~1")


def _annotations(stable: Object) -> list[Object]:
    if stable["metadata"].get("annotations") is None:
        return [{"op": "add", "path": "/metadata/annotations", "value": {}}]
    return []


def _unmoved(stable: Object) -> Object:
    return {"op": "test", "path": "/metadata/generation", "value": stable["metadata"]["generation"]}


def pause_patch(spec: Spec, stable: Object) -> list[Object]:
    """Pauses the user's Deployment and gives its own strategy back."""
    patch = [_unmoved(stable), *_annotations(stable), {"op": "add", "path": "/spec/paused", "value": True}]
    patch.append({"op": "add", "path": _pointer(PAUSED_BY), "value": spec.name})
    before = (stable["metadata"].get("annotations") or {}).get(STRATEGY_BEFORE)
    if before:
        patch.append({"op": "replace", "path": "/spec/strategy", "value": json.loads(before)})
        patch.append({"op": "remove", "path": _pointer(STRATEGY_BEFORE)})
    return patch


def template_patch(stable: Object, action: SetTemplate) -> list[Object]:
    """Sets the template; a roll never takes a pod away before its successor is ready."""
    patch = [
        _unmoved(stable),
        *_annotations(stable),
        {"op": "replace", "path": "/spec/template", "value": dict(action.template)},
        {"op": "add", "path": "/spec/paused", "value": action.paused},
    ]
    if action.paused:
        return patch
    strategy = stable["spec"].get("strategy") or {}
    if STRATEGY_BEFORE not in (stable["metadata"].get("annotations") or {}):
        patch.append({"op": "add", "path": _pointer(STRATEGY_BEFORE), "value": json.dumps(strategy)})
    surge = (strategy.get("rollingUpdate") or {}).get("maxSurge") or "25%"
    safe = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": surge if surge != "0%" else 1}}
    return [*patch, {"op": "add", "path": "/spec/strategy", "value": safe}]


def release_patch(stable: Object, action: ReleaseStable) -> list[Object]:
    """Unpauses the Deployment with its own strategy, after its template is the one that runs; our marks go."""
    annotations = stable["metadata"].get("annotations") or {}
    patch = [_unmoved(stable)]
    if action.template is not None:
        patch.append({"op": "replace", "path": "/spec/template", "value": dict(action.template)})
    if STRATEGY_BEFORE in annotations:
        patch.append({"op": "replace", "path": "/spec/strategy", "value": json.loads(annotations[STRATEGY_BEFORE])})
    patch += [{"op": "remove", "path": _pointer(k)} for k in (STRATEGY_BEFORE, PAUSED_BY) if k in annotations]
    return [*patch, {"op": "add", "path": "/spec/paused", "value": False}]


def _owned_by(sets: Sequence[Object], owner: Object | None) -> list[Object]:
    if owner is None:
        return []
    uid = owner["metadata"]["uid"]
    return [
        s for s in sets
        if any(r.get("uid") == uid and r.get("controller") for r in s["metadata"].get("ownerReferences") or ())
    ]  # fmt: skip


def _by_revision(sets: Sequence[Object], count: Callable[[Object], int]) -> dict[str, int]:
    out: dict[str, int] = {}
    for s in sets:
        revision, number = revision_of(s["spec"]["template"]), count(s)
        if number > 0:
            out[revision] = out.get(revision, 0) + number
    return out


def _ready(one: Object) -> int:
    return int((one.get("status") or {}).get("readyReplicas") or 0)


def _existing(one: Object) -> int:
    status = int((one.get("status") or {}).get("replicas") or 0)
    return max(status, int(one["spec"].get("replicas") or 0))


def _stable_seen(rollout: Spec, deployment: Object, own: Sequence[Object]) -> StableSeen:
    spec, metadata = deployment["spec"], deployment["metadata"]
    observed = int((deployment.get("status") or {}).get("observedGeneration") or 0)
    return StableSeen(
        wanted=int(spec.get("replicas", 1)),
        paused=bool(spec.get("paused", False)),
        template=clean(spec["template"]),
        revision=revision_of(spec["template"]),
        pods=_by_revision(own, _existing),
        ready=_by_revision(own, _ready),
        settled=observed >= int(metadata.get("generation") or 0),
        resource_version=str(metadata.get("generation", "")),
        held=(metadata.get("annotations") or {}).get(PAUSED_BY) == rollout.name,
    )


def _cant_start(pod: Object) -> bool:
    status = pod.get("status") or {}
    states = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    return any(((s.get("state") or {}).get("waiting") or {}).get("reason") in _CANT_START for s in states)


def _canary_seen(spec: Spec, deployment: Object, own: Sequence[Object], pods: Sequence[Object]) -> CanarySeen:
    revision = revision_of(deployment["spec"]["template"])
    alive = [p for p in pods if not p["metadata"].get("deletionTimestamp")]
    return CanarySeen(
        wanted=int(deployment["spec"].get("replicas", 1)),
        revision=revision,
        pods=len(alive),
        ready=_by_revision(own, _ready).get(revision, 0),
        failing=sum(1 for p in alive if _cant_start(p)),
        ours=(deployment["metadata"].get("labels") or {}).get(ROLLOUT_LABEL) == spec.name,
        resource_version=str(deployment["metadata"].get("generation", "")),
    )


def seen_of(
    spec: Spec,
    cluster: str,
    stable: Object | None,
    canary: Object | None,
    sets: Sequence[Object],
    pods: Sequence[Object],
) -> ClusterSeen:
    """Turns raw objects of one cluster into what the core sees."""
    own, others = _owned_by(sets, stable), _owned_by(sets, canary)
    hashes: dict[str, str] = {}
    templates: dict[str, Template] = {}
    for s in (*own, *others):
        revision = revision_of(s["spec"]["template"])
        hashes[(s["metadata"].get("labels") or {}).get(HASH_LABEL, "")] = revision
        templates[revision] = clean(s["spec"]["template"])
    return ClusterSeen(
        name=cluster,
        stable=None if stable is None else _stable_seen(spec, stable, own),
        canary=None if canary is None else _canary_seen(spec, canary, others, pods),
        pod_hashes=hashes,
        templates=templates,
    )


def _spec_of(raw: Object, good: Object | None) -> tuple[Spec | None, str]:
    """Returns the spec in force, None if there is none, and what is wrong with the one that stands there."""
    try:
        return CanaryRollout.model_validate(raw).to_spec(), ""
    except ValidationError as error:
        first = error.errors()[0]
        mistake = f"{'.'.join(str(p) for p in first['loc'])}: {first['msg']}"
    for last in (good, (raw.get("status") or {}).get(LAST_GOOD_SPEC)):
        try:
            spec = CanaryRollout.model_validate({**raw, "spec": last}).to_spec()
        except ValidationError:
            continue
        return spec, f"the spec is not valid and the last good one stays in force: {mistake}"
    return None, f"the spec is not valid: {mistake}"


def stored_of(raw: Object, good: Object | None = None) -> Stored:
    """Reads one CanaryRollout; what can't be read is a problem and never a rollout that starts over.

    Args:
        raw: the object.
        good: the last spec of it that was good, if it is remembered; else the one in the status is taken.
    """
    metadata = raw["metadata"]
    spec, problem = _spec_of(raw, good)
    known = spec is not None
    if spec is None:
        workload = str(((raw.get("spec") or {}).get("workloadRef") or {}).get("name", ""))
        namespace, name = str(metadata.get("namespace", "default")), str(metadata["name"])
        spec = Spec(namespace, name, workload, generation=int(metadata.get("generation") or 0))
    one = Stored(
        spec,
        Status(),
        parse_request(metadata.get("annotations") or {}),
        str(metadata.get("resourceVersion", "")),
        problem,
        guarded=FINALIZER in (metadata.get("finalizers") or ()),
        deleting=bool(metadata.get("deletionTimestamp")),
        created=str(metadata.get("creationTimestamp") or ""),
    )
    try:
        one = replace(one, status=status_from_dict(raw.get("status")))
    except ValueError as error:
        return replace(one, problem=str(error), waits=True, blind=True)
    return one if known else _without_spec(one)


def _without_spec(one: Stored) -> Stored:
    """Nothing can be judged without a spec; but going back needs no more than the names."""
    spec = replace(one.spec, workload=one.status.workload or one.spec.workload)
    asked = one.request is not None and one.request.verb == "abort" and one.request.id != one.status.handled_request
    ends = one.deleting or one.status.state is State.ROLLING_BACK or (asked and one.status.active)
    return replace(one, spec=spec, waits=not (ends and spec.workload))


def status_body(stored: Stored, status: Status, raw: Object, good: Object | None) -> Object:
    """Returns the status as it is written, with the last good spec: a new process, too, goes on with that."""
    last = good or (raw.get("status") or {}).get(LAST_GOOD_SPEC)
    body = status_to_dict(stored.spec, status)
    if last is not None and len(json.dumps(last)) <= LAST_GOOD_BYTES:
        body[LAST_GOOD_SPEC] = last
    return body
