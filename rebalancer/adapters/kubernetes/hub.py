"""The Hub port: our custom resources and their status; and the sight clocks that must survive a restart."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, cast

import msgspec

from rebalancer.adapters.kubernetes import permissions, times
from rebalancer.adapters.kubernetes.clients import FIELD_MANAGER, ClusterClient
from rebalancer.adapters.kubernetes.permissions import Finding
from rebalancer.adapters.kubernetes.resources import RESOURCES, Resource
from rebalancer.adapters.kubernetes.writes import outcome_of
from rebalancer.api.base import GROUP
from rebalancer.core.sight import Clock
from rebalancer.errors import ClusterError
from rebalancer.ports import Outcome

PAGE = 500
MAX_PAGES = 100
TRIES = 4
_MANAGER = [("fieldManager", FIELD_MANAGER)]
Object = dict[str, Any]


class KubernetesHub:
    """Custom resources of one API server."""

    def __init__(self, client: ClusterClient, *, deadline_s: float = 5.0) -> None:
        """Takes the hub's client; the deadline holds for each call as a whole."""
        self._client = client
        self._deadline_s = deadline_s
        self._known: dict[tuple[str, str, str], Object] = {}

    async def documents(self) -> list[dict[str, object]]:
        """Lists the objects of all our kinds.

        Raises:
            ClusterError: the hub can't be read, or a CustomResourceDefinition is missing.
        """
        found = await self._client.reads.run(self._list_all, self._deadline_s + 0.5)
        self._known = {_key(o): o for o in found}
        return cast("list[dict[str, object]]", found)

    async def write_status(self, kind: str, namespace: str, name: str, status: Mapping[str, object]) -> Outcome:
        """Replaces the status of one object with the version that was read as precondition; skipped when equal."""
        if kind not in RESOURCES:
            return Outcome("failed", f"hub: {kind} is none of our kinds")
        wanted = msgspec.json.decode(msgspec.json.encode(status))  # as it will be read back
        until = time.monotonic() + self._deadline_s
        try:
            return await self._client.writes.run(
                lambda: self._write(RESOURCES[kind], namespace, name, wanted, until), self._deadline_s + 0.5
            )
        except ClusterError as error:
            return outcome_of(error)

    async def check(self) -> tuple[Finding, ...]:
        """Asks the hub for its version and for each right that is needed; for `rebalancer check`."""
        rights = (*permissions.HUB_RIGHTS, *permissions.LEASE_RIGHTS)
        return await permissions.check(self._client, rights, self._deadline_s)

    def _list_all(self) -> list[Object]:
        until = time.monotonic() + self._deadline_s
        found: list[Object] = []
        for resource in RESOURCES.values():
            try:
                found += self._list(resource, until)
            except ClusterError as error:
                if error.kind == "not-found":
                    raise ClusterError(
                        "not-found",
                        f"hub: it does not know {resource.plural}.{GROUP}; "
                        "apply the CustomResourceDefinitions that `rebalancer install crds` renders",
                    ) from error
                raise
        return found

    def _list(self, resource: Resource, until: float) -> list[Object]:
        found: list[Object] = []
        more = ""
        for _ in range(MAX_PAGES):
            query = [("limit", str(PAGE)), *([("continue", more)] if more else [])]
            page = _object(self._client, self._client.request("GET", resource.path(), until=until, query=query).body)
            found += page.get("items") or ()
            more = str((page.get("metadata") or {}).get("continue") or "")
            if not more:
                return found
        raise ClusterError("invalid", f"hub: more than {MAX_PAGES * PAGE} {resource.plural}")

    def _write(self, resource: Resource, namespace: str, name: str, status: Object, until: float) -> Outcome:
        key = (resource.kind, namespace if resource.namespaced else "", name)
        last = Outcome("conflict", f"hub: {resource.kind} {name} keeps changing")
        for _ in range(TRIES):
            raw = self._known.get(key)
            try:
                if raw is None:
                    path = resource.path(namespace, name)
                    raw = _object(self._client, self._client.request("GET", path, until=until).body)
                    self._known[key] = raw
                version = str(raw["metadata"].get("resourceVersion", ""))
                if (raw.get("status") or {}) == status:
                    return Outcome("unchanged", resource_version=version)
                answer = self._client.request(
                    "PUT",
                    resource.path(namespace, name, "status"),
                    until=until,
                    query=_MANAGER,
                    body={**raw, "status": status},
                )
                self._known[key] = _object(self._client, answer.body)
                return Outcome("done", resource_version=str(self._known[key]["metadata"]["resourceVersion"]))
            except ClusterError as error:
                self._known.pop(key, None)
                last = outcome_of(error)
                if error.kind != "conflict":
                    return last
        return last


def _key(raw: Object) -> tuple[str, str, str]:
    metadata = raw["metadata"]
    return str(raw.get("kind", "")), str(metadata.get("namespace", "")), str(metadata["name"])


def _object(client: ClusterClient, body: bytes) -> Object:
    try:
        found = msgspec.json.decode(body)
    except (msgspec.MsgspecError, ValueError) as error:
        raise ClusterError("invalid", f"{client.name}: an answer that is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise ClusterError("invalid", f"{client.name}: an answer that is no Kubernetes object")
    return found


def sight_status(clock: Clock) -> dict[str, str]:
    """Returns what goes to MemberCluster.status.sight."""
    parts = {"seenTime": clock.seen_s, "backTime": clock.back_s, "goneTime": clock.gone_s}
    return {name: times.to_text(at_s) for name, at_s in parts.items() if at_s is not None}


def read_clocks(documents: Iterable[Mapping[str, Any]]) -> dict[str, Clock]:
    """Reads the sight clocks from the MemberClusters among the documents; one without a readable seenTime has none."""
    clocks: dict[str, Clock] = {}
    for one in documents:
        status = one.get("status")
        sight = status.get("sight") if one.get("kind") == "MemberCluster" and isinstance(status, Mapping) else None
        if not isinstance(sight, Mapping):
            continue
        seen_s = times.from_text(sight.get("seenTime"))
        if seen_s is not None:
            clocks[str(one["metadata"]["name"])] = Clock(
                seen_s, times.from_text(sight.get("backTime")), times.from_text(sight.get("goneTime"))
            )
    return clocks
