"""What the emulator knows of a member cluster: real EndpointSlices, pods and nodes, through watches."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import httpx

from tests.stack.api import Api, ApiError, Object
from tests.stack.traffic import quantity

T = TypeVar("T")


class Mirror(Generic[T]):
    """A live copy of one collection. When the API server is gone the last copy stays, as in a real data plane."""

    def __init__(self, api: Api, path: str, digest: Callable[[Object], T]) -> None:
        self._api, self._path, self._digest = api, path, digest
        self._items: dict[str, T] = {}
        self._lock = threading.Lock()
        self.synced = threading.Event()
        threading.Thread(target=self._loop, name=f"mirror {path}", daemon=True).start()

    def items(self) -> list[T]:
        """The copy as of now."""
        with self._lock:
            return list(self._items.values())

    def _loop(self) -> None:
        pause = threading.Event()
        while True:
            try:
                self._list_and_watch()
            except (ApiError, httpx.HTTPError, httpx.StreamError):
                pause.wait(0.3)  # an outage may last; nothing else depends on this thread

    def _list_and_watch(self) -> None:
        answer = self._api.get(self._path)
        fresh = {item["metadata"]["uid"]: self._digest(item) for item in answer["items"]}
        with self._lock:
            self._items = fresh
        self.synced.set()
        for event in self._api.watch(self._path, answer["metadata"]["resourceVersion"]):
            if event["type"] == "ERROR":
                return
            obj = event["object"]
            with self._lock:
                if event["type"] == "DELETED":
                    self._items.pop(obj["metadata"]["uid"], None)
                elif event["type"] in ("ADDED", "MODIFIED"):
                    self._items[obj["metadata"]["uid"]] = self._digest(obj)


@dataclass(frozen=True)
class Endpoints:
    """Ready pods of one EndpointSlice."""

    namespace: str
    service: str
    pods: tuple[str, ...]


@dataclass(frozen=True)
class Pod:
    """A pod: its version, and what it asks for (cores, bytes) by container."""

    namespace: str
    name: str
    node: str
    arm: str
    image: str
    done: bool
    requests: tuple[tuple[str, str, float], ...]
    cpu_limit: float

    @property
    def container(self) -> str:
        """Name of the container that serves, the first."""
        return self.requests[0][0] if self.requests else "app"


@dataclass(frozen=True)
class Node:
    """A node's allocatable room and state."""

    name: str
    allocatable: tuple[tuple[str, float], ...]
    ready: bool
    unschedulable: bool


def _endpoints(obj: Object) -> Endpoints:
    meta = obj["metadata"]
    ready = (
        endpoint["targetRef"]["name"]
        for endpoint in obj.get("endpoints") or []
        if (endpoint.get("conditions") or {}).get("ready", True) and endpoint.get("targetRef")
    )
    return Endpoints(meta["namespace"], (meta.get("labels") or {}).get("kubernetes.io/service-name", ""), tuple(ready))


def _pod(obj: Object) -> Pod:
    meta, spec = obj["metadata"], obj["spec"]
    requests: list[tuple[str, str, float]] = []
    limit = 0.0
    for container in spec["containers"]:
        resources: dict[str, Any] = container.get("resources") or {}
        asked = resources.get("requests") or {}
        requests += [
            (container["name"], name, quantity(str(asked[name]))) for name in ("cpu", "memory") if name in asked
        ]
        bound = (resources.get("limits") or {}).get("cpu") or asked.get("cpu")
        limit += quantity(str(bound)) if bound else 0.0
    labels = meta.get("labels") or {}
    return Pod(
        meta["namespace"],
        meta["name"],
        spec.get("nodeName", ""),
        labels.get("pod-template-hash") or labels.get("controller-revision-hash", ""),
        spec["containers"][0]["image"],
        (obj.get("status") or {}).get("phase") in ("Succeeded", "Failed"),
        tuple(requests),
        limit or float("inf"),
    )


def _node(obj: Object) -> Node:
    status = obj.get("status") or {}
    room = status.get("allocatable") or {}
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions") or [])
    allocatable = tuple((name, quantity(str(room[name]))) for name in ("cpu", "memory", "pods") if name in room)
    return Node(obj["metadata"]["name"], allocatable, ready, bool(obj["spec"].get("unschedulable")))


class Sight:
    """The three mirrors of one cluster."""

    def __init__(self, server: str, token: str, ca: Path) -> None:
        api = Api(server, token, ca)
        self.endpoints = Mirror(api, "/apis/discovery.k8s.io/v1/endpointslices", _endpoints)
        self.pods = Mirror(api, "/api/v1/pods", _pod)
        self.nodes = Mirror(api, "/api/v1/nodes", _node)

    @property
    def synced(self) -> bool:
        """Whether each mirror has been filled once."""
        return all(mirror.synced.is_set() for mirror in (self.endpoints, self.pods, self.nodes))

    def ready(self) -> dict[tuple[str, str], list[Pod]]:
        """Pods with a ready endpoint, by (namespace, service)."""
        pods = {(pod.namespace, pod.name): pod for pod in self.pods.items()}
        found: dict[tuple[str, str], list[Pod]] = {}
        for piece in self.endpoints.items():
            known = found.setdefault((piece.namespace, piece.service), [])
            known += [pods[piece.namespace, name] for name in piece.pods if (piece.namespace, name) in pods]
        return found
