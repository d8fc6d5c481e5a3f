"""A small Kubernetes client for tests: plain JSON over HTTP, so that harness and product share no code."""

from __future__ import annotations

import contextlib
import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import httpx

Object = dict[str, Any]

_PLURALS = {"Ingress": "ingresses", "EndpointSlice": "endpointslices", "NetworkPolicy": "networkpolicies"}
_CLUSTER_SCOPED = {
    "Namespace", "Node", "ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition", "PersistentVolume",
    "MemberCluster", "PriorityClass", "StorageClass", "ValidatingWebhookConfiguration", "MutatingWebhookConfiguration",
}  # fmt: skip


class ApiError(RuntimeError):
    """An answer of 400 or above; `status` is the HTTP status, `reason` Kubernetes' own word."""

    def __init__(self, method: str, path: str, response: httpx.Response) -> None:
        self.status = response.status_code
        try:
            self.body: Object = response.json()
        except ValueError:
            self.body = {"message": response.text}
        self.reason = str(self.body.get("reason", ""))
        super().__init__(f"{method} {path}: {self.status} {self.reason}: {self.body.get('message', '')}")


def path_of(kind: str, name: str = "", namespace: str = "", api_version: str = "v1") -> str:
    """URL path of an object, or of its collection when the name is empty."""
    plural = _PLURALS.get(kind) or (kind[:-1] + "ies" if kind.endswith("cy") else kind + "s")
    root = f"/api/{api_version}" if api_version == "v1" else f"/apis/{api_version}"
    scope = f"/namespaces/{namespace}" if namespace and kind not in _CLUSTER_SCOPED else ""
    return f"{root}{scope}/{plural.lower()}" + (f"/{name}" if name else "")


def path_for(obj: Object, *, collection: bool = False) -> str:
    """URL path of an object from its own kind, namespace (default `default`) and name."""
    meta = obj["metadata"]
    kind = str(obj["kind"])
    namespace = "" if kind in _CLUSTER_SCOPED else meta.get("namespace", "default")
    return path_of(kind, "" if collection else meta["name"], namespace, obj["apiVersion"])


class Api:
    """One API server with one identity. Every call has a deadline and raises ApiError or httpx.TransportError."""

    def __init__(self, server: str, token: str, ca_file: Path, timeout_s: float = 10.0) -> None:
        self.server = server
        self.token = token
        context = ssl.create_default_context(cafile=str(ca_file))
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._client = httpx.Client(
            base_url=server, headers=headers, verify=context, timeout=timeout_s, trust_env=False
        )

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()

    def call(self, method: str, path: str, body: Object | None = None, **options: Any) -> Object:
        """Sends one request and returns the decoded answer; `options` go to httpx (params, headers, timeout)."""
        response = self._client.request(method, path, json=body, **options)
        if response.status_code >= 400:
            raise ApiError(method, path, response)
        if "json" not in response.headers.get("content-type", ""):
            return {"text": response.text}
        return cast(Object, response.json())

    def get(self, path: str, **params: str) -> Object:
        """GET with query parameters."""
        return self.call("GET", path, params=params)

    def items(self, path: str, **params: str) -> list[Object]:
        """The items of a list."""
        return cast(list[Object], self.get(path, **params)["items"])

    def create(self, obj: Object) -> Object:
        """POST to the object's collection."""
        return self.call("POST", path_for(obj, collection=True), obj)

    def apply(self, obj: Object, field_manager: str = "test", force: bool = True) -> Object:
        """Server-side apply."""
        return self.call(
            "PATCH",
            path_for(obj),
            obj,
            params={"fieldManager": field_manager, "force": str(force).lower()},
            headers={"Content-Type": "application/apply-patch+yaml"},
        )

    def patch(self, path: str, body: Object, kind: str = "merge") -> Object:
        """PATCH: kind is merge or strategic-merge."""
        return self.call("PATCH", path, body, headers={"Content-Type": f"application/{kind}-patch+json"})

    def delete(self, path: str, missing_ok: bool = True, **params: str) -> None:
        """DELETE; an object that is not there is fine unless `missing_ok` is False."""
        try:
            self.call("DELETE", path, params=params)
        except ApiError as error:
            if not (missing_ok and error.status == 404):
                raise

    def scale(self, namespace: str, name: str, replicas: int) -> None:
        """Sets a Deployment's replicas through its scale subresource."""
        path = path_of("Deployment", name, namespace, "apps/v1") + "/scale"
        self.patch(path, {"spec": {"replicas": replicas}})

    def namespace(self, name: str) -> None:
        """Makes a namespace unless it is there."""
        with contextlib.suppress(ApiError):
            self.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})

    def watch(self, path: str, resource_version: str, timeout_s: int = 300) -> Iterator[Object]:
        """Yields watch events until the server ends the watch after `timeout_s`; raises as httpx does."""
        params = {"watch": "1", "resourceVersion": resource_version, "timeoutSeconds": str(timeout_s)}
        # A server that hangs must not hold the reader longer than the watch itself would have lasted.
        limits = httpx.Timeout(10.0, read=timeout_s + 10.0)
        with self._client.stream("GET", path, params=params, timeout=limits) as response:
            if response.status_code >= 400:
                response.read()
                raise ApiError("WATCH", path, response)
            for line in response.iter_lines():
                if line:
                    yield json.loads(line)


def deployment(
    name: str,
    *,
    namespace: str = "default",
    replicas: int = 1,
    image: str = "registry.example/app:v1",
    cpu: str = "100m",
    memory: str = "64Mi",
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    pod_labels: dict[str, str] | None = None,
) -> Object:
    """A Deployment of one container whose pods carry app=<name>; for kwok any image name will do."""
    selector = {"app": name}
    resources = {"requests": {"cpu": cpu, "memory": memory}, "limits": {"cpu": cpu, "memory": memory}}
    template = {
        "metadata": {"labels": {**selector, **(pod_labels or {})}, "annotations": annotations or {}},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "app", "image": image, "resources": resources}],
        },
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace, "labels": {**selector, **(labels or {})}},
        "spec": {"replicas": replicas, "selector": {"matchLabels": selector}, "template": template},
    }


def service(name: str, *, namespace: str = "default", port: int = 80) -> Object:
    """A Service over the pods app=<name>."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": name}},
        "spec": {"selector": {"app": name}, "ports": [{"name": "http", "port": port, "targetPort": 8080}]},
    }
