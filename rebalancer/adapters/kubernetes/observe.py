"""Lists what one cluster runs, in a worker thread, within one deadline for all lists together."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from rebalancer.adapters.kubernetes import placements
from rebalancer.adapters.kubernetes.clients import ClusterClient
from rebalancer.adapters.kubernetes.limits import quotas_of
from rebalancer.adapters.kubernetes.placements import Objects, ReadyMemory, Seen
from rebalancer.adapters.kubernetes.structs import Autoscaler, Budget, Deployment, Node, Page, Pod, Quota, T
from rebalancer.core.model import NodeRoom, Unknown
from rebalancer.core.policy import Policy
from rebalancer.errors import ClusterError

PAGE = 500
MAX_PAGES = 400
FEW_NAMESPACES = 4
"""Up to so many namespaces are listed one by one; more cost more round trips than one list of the cluster."""
VERSION_AGE_S = 600.0
_PODS = [("fieldSelector", "status.phase!=Succeeded,status.phase!=Failed")]
L2 = TypeVar("L2")


@dataclass(frozen=True, slots=True)
class ClusterView:
    """What one look at a cluster found.

    Attributes:
        seen: placements and policies.
        nodes: room, or Unknown with what is missing.
        quotas: what quotas leave by namespace and resource, or Unknown.
        gaps: sentences on lists that were denied; the rest is good.
        took_s: how long the look took.
    """

    seen: Seen
    nodes: tuple[NodeRoom, ...] | Unknown
    allocatable_cpu: float
    allocatable_memory: float
    version: str
    quotas: Mapping[str, Mapping[str, float]] | Unknown
    gaps: tuple[str, ...]
    took_s: float


@dataclass(slots=True)
class Observer:
    """Looks at one cluster again and again; used by one thread at a time."""

    client: ClusterClient
    deadline_s: float
    ready: ReadyMemory = field(default_factory=ReadyMemory)
    version: str = ""
    version_at: float = -VERSION_AGE_S

    def look(self, policies: Sequence[Policy], now: float) -> ClusterView:
        """Lists everything once.

        A list that is denied leaves its part unknown: nodes or pods the room, pods the exact times of readiness
        (which then come from the Deployments' status), autoscalers who owns the replicas, quotas what the namespaces
        may still start, PodDisruptionBudgets what has to stay ready.

        Raises:
            ClusterError: the Deployments can't be read.
        """
        began = time.monotonic()
        until = began + self.deadline_s
        gaps: list[str] = []
        if time.monotonic() - self.version_at > VERSION_AGE_S:
            self.version = self.client.version(until)
            self.version_at = time.monotonic()
        spaces = sorted({p.namespace for p in policies})
        deployments = self._in(spaces, "apps/v1", "deployments", Page[Deployment], until)
        autoscalers = self._denied(
            lambda: self._in(spaces, "autoscaling/v2", "horizontalpodautoscalers", Page[Autoscaler], until), gaps
        )
        nodes = self._denied(lambda: self._list("/api/v1/nodes", Page[Node], until), gaps)
        pods = self._denied(lambda: self._list("/api/v1/pods", Page[Pod], until, _PODS), gaps)
        budgets = self._denied(lambda: self._in(spaces, "policy/v1", "poddisruptionbudgets", Page[Budget], until), gaps)
        quotas = self._denied(lambda: self._in(spaces, "v1", "resourcequotas", Page[Quota], until), gaps)
        objects = Objects(deployments, pods, nodes, autoscalers, budgets)
        left: Mapping[str, Mapping[str, float]] | Unknown = Unknown("quota-unknown", detail="; ".join(gaps))
        rooms: tuple[NodeRoom, ...] | Unknown = Unknown("room-unknown", detail="; ".join(gaps))
        cpu = memory = float("nan")
        try:
            seen = placements.read(self.client.name, objects, policies, self.ready, now)
            if nodes is not None and pods is not None:
                rooms, cpu, memory = placements.room(nodes, pods)
            if quotas is not None:
                left = quotas_of(quotas)
        except ValueError as error:  # a quantity that is none
            raise ClusterError("invalid", f"{self.client.name}: an object that can't be read: {error}") from error
        return ClusterView(seen, rooms, cpu, memory, self.version, left, tuple(gaps), time.monotonic() - began)

    def _denied(self, call: Callable[[], L2], gaps: list[str]) -> L2 | None:
        try:
            return call()
        except ClusterError as error:
            if error.kind not in ("forbidden", "not-found"):
                raise
            gaps.append(str(error))
            return None

    def _in(self, spaces: Sequence[str], api: str, plural: str, type_: type[Page[T]], until: float) -> list[T]:
        """All objects of a kind in some namespaces."""
        return [one for path in _paths(api, plural, spaces) for one in self._list(path, type_, until)]

    def _list(self, path: str, type_: type[Page[T]], until: float, query: Sequence[tuple[str, str]] = ()) -> list[T]:
        return [one for page in self._pages(path, type_, until, query) for one in page.items or ()]

    def _pages(
        self, path: str, type_: type[Page[T]], until: float, query: Sequence[tuple[str, str]] = ()
    ) -> list[Page[T]]:
        """All pages of a list; a continue token that expired meanwhile begins the list anew, once."""
        try:
            return self._all_pages(path, type_, until, query)
        except ClusterError as error:
            if error.kind != "gone":
                raise
        return self._all_pages(path, type_, until, query)

    def _all_pages(
        self, path: str, type_: type[Page[T]], until: float, query: Sequence[tuple[str, str]]
    ) -> list[Page[T]]:
        pages: list[Page[T]] = []
        more: str = ""
        for _ in range(MAX_PAGES):
            asked = [*query, ("limit", str(PAGE)), *([("continue", more)] if more else [])]
            answer = self.client.request("GET", path, until=until, query=asked)
            try:
                page = msgspec.json.decode(answer.body, type=type_)
            except (msgspec.MsgspecError, ValueError) as error:
                raise ClusterError(
                    "invalid", f"{self.client.name}: {path} is no list of Kubernetes: {error}"
                ) from error
            pages.append(page)
            more = page.metadata.continue_
            if not more:
                return pages
        raise ClusterError("invalid", f"{self.client.name}: {path} has more than {MAX_PAGES} pages of {PAGE}")


def _paths(api: str, plural: str, spaces: Sequence[str]) -> list[str]:
    root = f"/apis/{api}" if "/" in api else f"/api/{api}"
    if len(spaces) > FEW_NAMESPACES:
        return [f"{root}/{plural}"]
    return [f"{root}/namespaces/{s}/{plural}" for s in spaces]
