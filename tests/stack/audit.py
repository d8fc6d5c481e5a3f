"""What each identity really did: the audit policy of the test planes, and a reader of their log."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_WRITES = ["create", "update", "patch", "delete", "deletecollection"]
_COMPONENTS = ["kcm", "scheduler", "kwok", "emulator", "system:apiserver"]
_CONTROLLERS = ["system:serviceaccounts:kube-system", "system:nodes"]

# Components' reads, leases and events are noise; their other writes are kept without bodies (who changed replicas?).
# Everyone else's writes are kept with their bodies, their reads without: that is what their roles must allow.
_QUIET = [{"group": "coordination.k8s.io", "resources": ["leases"]}, {"group": "", "resources": ["events"]},
          {"group": "events.k8s.io", "resources": ["events"]}]  # fmt: skip
POLICY: dict[str, Any] = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "None", "users": _COMPONENTS, "resources": _QUIET},
        {"level": "None", "userGroups": _CONTROLLERS, "resources": _QUIET},
        {"level": "None", "users": _COMPONENTS, "verbs": ["get", "list", "watch"]},
        {"level": "None", "userGroups": _CONTROLLERS, "verbs": ["get", "list", "watch"]},
        {"level": "None", "nonResourceURLs": ["*"]},
        {"level": "Metadata", "users": _COMPONENTS},
        {"level": "Metadata", "userGroups": _CONTROLLERS},
        {"level": "Request", "verbs": _WRITES},
        {"level": "Metadata"},
    ],
}


@dataclass(frozen=True)
class Record:
    """One audited request.

    Attributes:
        user: Who sent it.
        verb: create, update, patch, delete, get, list, watch.
        resource: Plural, with the API group when there is one: `deployments.apps`.
        subresource: Such as `scale` or `status`, or empty.
        namespace: Empty for cluster-scoped objects.
        name: Empty for collections.
        code: HTTP status of the answer.
        body: The request's body for writes of everyone but Kubernetes' own components.
        when: RFC 3339 time of arrival.
    """

    user: str
    verb: str
    resource: str
    subresource: str
    namespace: str
    name: str
    code: int
    body: dict[str, Any]
    when: str

    @property
    def is_write(self) -> bool:
        """Whether it changes something."""
        return self.verb in _WRITES


def read(path: Path, *, user: str = "", writes_only: bool = False) -> list[Record]:
    """Reads an audit log; `user` keeps those whose name contains it. A last line cut in half is left out."""
    if not path.exists():
        return []
    records = []
    for line in path.read_text().split("\n")[:-1]:
        record = _record(json.loads(line))
        if user in record.user and (record.is_write or not writes_only):
            records.append(record)
    return records


def _record(event: dict[str, Any]) -> Record:
    target = event.get("objectRef") or {}
    group = target.get("apiGroup")
    resource = str(target.get("resource", ""))
    return Record(
        user=str(event["user"].get("username", "")),
        verb=str(event["verb"]),
        resource=f"{resource}.{group}" if group else resource,
        subresource=str(target.get("subresource", "")),
        namespace=str(target.get("namespace", "")),
        name=str(target.get("name", "")),
        code=int((event.get("responseStatus") or {}).get("code", 0)),
        body=event.get("requestObject") or {},
        when=str(event.get("requestReceivedTimestamp", "")),
    )
