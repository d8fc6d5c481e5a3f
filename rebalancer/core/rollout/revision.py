"""A revision is a stable hash over named fields of a pod template.

Named fields, because the API server of a newer version adds defaults: a hash over everything it returns would start a
rollout after every cluster upgrade. The list is the pod spec of the Kubernetes API reference as of 1.36; a
field that is not in it does not make a revision.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import cast

from rebalancer.core.rollout.model import Template

ROLLOUT_LABEL = "rebalancer.dev/rollout"
HASH_LABEL = "pod-template-hash"
_OUR_LABELS = (ROLLOUT_LABEL, HASH_LABEL)

_POD_FIELDS = frozenset((
    "containers", "initContainers", "volumes", "serviceAccountName", "automountServiceAccountToken",
    "nodeSelector", "affinity", "tolerations", "topologySpreadConstraints", "priorityClassName",
    "runtimeClassName", "hostNetwork", "hostPID", "hostIPC", "hostAliases", "dnsPolicy", "dnsConfig",
    "securityContext", "imagePullSecrets", "terminationGracePeriodSeconds", "shareProcessNamespace",
    "resourceClaims", "schedulerName", "readinessGates", "overhead", "resources",
))  # fmt: skip
_CONTAINER_FIELDS = frozenset((
    "name", "image", "command", "args", "workingDir", "ports", "env", "envFrom", "resources", "volumeMounts",
    "volumeDevices", "livenessProbe", "readinessProbe", "startupProbe", "lifecycle", "securityContext", "stdin",
    "tty", "restartPolicy", "imagePullPolicy",
))  # fmt: skip


def _without_empty(value: object) -> object:
    """Drops nulls and empty maps and lists: absent and empty mean the same in a pod template."""
    if isinstance(value, Mapping):
        items = ((str(k), _without_empty(v)) for k, v in value.items())
        return {k: v for k, v in items if v not in (None, {}, [])}
    if isinstance(value, list | tuple):
        return [_without_empty(v) for v in value]
    return value


def _named(template: Template) -> dict[str, object]:
    metadata = cast("Mapping[str, Mapping[str, str]]", template.get("metadata") or {})
    spec = cast("Mapping[str, object]", template.get("spec") or {})
    labels = {k: v for k, v in (metadata.get("labels") or {}).items() if k not in _OUR_LABELS}
    pod: dict[str, object] = {k: v for k, v in spec.items() if k in _POD_FIELDS}
    for kind in ("containers", "initContainers"):
        containers = cast("list[Mapping[str, object]]", spec.get(kind) or [])
        pod[kind] = [{k: v for k, v in c.items() if k in _CONTAINER_FIELDS} for c in containers]
    return {"labels": labels, "annotations": dict(metadata.get("annotations") or {}), "spec": pod}


def revision_of(template: Template) -> str:
    """Returns the revision of a pod template: 10 hex digits, the same for stored, copied and re-read templates."""
    text = json.dumps(_without_empty(_named(template)), sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=5).hexdigest()


def with_images(template: Template, images: Mapping[str, str]) -> Template:
    """Returns the template with these images (container -> image); names that it lacks change nothing."""
    spec = dict(cast("Mapping[str, object]", template.get("spec") or {}))
    for kind in ("containers", "initContainers"):
        containers = cast("list[Mapping[str, object]]", spec.get(kind) or [])
        if containers:
            spec[kind] = [{**c, "image": images.get(str(c.get("name")), c.get("image"))} for c in containers]
    return {**template, "spec": spec}


def missing_containers(template: Template, images: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the container names in `images` that the template does not have."""
    spec = cast("Mapping[str, list[Mapping[str, object]]]", template.get("spec") or {})
    known = {str(c.get("name")) for kind in ("containers", "initContainers") for c in spec.get(kind) or []}
    return tuple(sorted(set(images) - known))


def clean(template: Template) -> Template:
    """Returns the template without the labels that a ReplicaSet or this rollout added."""
    metadata = dict(cast("Mapping[str, object]", template.get("metadata") or {}))
    labels = cast("Mapping[str, str]", metadata.get("labels") or {})
    metadata["labels"] = {k: v for k, v in labels.items() if k not in _OUR_LABELS}
    return {**template, "metadata": metadata}
