"""Rollouts on real API servers: the clusters (RolloutActuator) and the hub (RolloutStore).

The kubernetes client blocks, so each cluster has worker threads of its own: one that hangs holds up nobody else. Every
request has a connect and a read timeout; retries are the caller's next tick. Writes to the user's Deployment are JSON
patches that test `metadata.generation`, which only a change of the spec moves: a status update is no conflict.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, cast

import urllib3
from kubernetes import client

from rebalancer.adapters.kubernetes.rollout_objects import (
    FINALIZER,
    Object,
    canary_body,
    pause_patch,
    release_patch,
    seen_of,
    selector_text,
    status_body,
    stored_of,
    template_patch,
)
from rebalancer.api.base import GROUP, VERSION
from rebalancer.core.rollout.decision import (
    Action,
    DeleteCanary,
    EnsureCanary,
    PauseStable,
    ReleaseStable,
    ScaleCanary,
    SetTemplate,
)
from rebalancer.core.rollout.model import ClusterSeen, Spec, Status
from rebalancer.core.rollout.revision import ROLLOUT_LABEL
from rebalancer.core.rollout.stored import Stored
from rebalancer.errors import ClusterError
from rebalancer.ports import Outcome, OutcomeKind

T = TypeVar("T")

FIELD_MANAGER = "rebalancer-rollout"
PLURAL = "canaryrollouts"
TIMEOUT_S = (1.0, 2.0)
"""Connect and read, of each request."""
_WORKERS = 2
_KINDS: dict[int, OutcomeKind] = {401: "forbidden", 403: "forbidden", 409: "conflict", 422: "failed"}
_ERRORS = {401: "unauthorized", 403: "forbidden", 404: "not-found", 409: "conflict", 422: "invalid", 429: "throttled"}


def rollout_client(configuration: client.Configuration) -> client.ApiClient:
    """Returns a client without retries of its own: the next tick is the retry, and it knows more."""
    configuration.retries = 0
    return client.ApiClient(configuration)


def _data(response: Any) -> Object:  # the client's raw response
    return cast("Object", json.loads(response.data))


def _cluster_error(cluster: str, error: Exception) -> ClusterError:
    if isinstance(error, client.ApiException) and error.status:
        kind = _ERRORS.get(error.status, "unreachable")
        return ClusterError(kind, f"{cluster}: HTTP {error.status} {error.reason}")
    return ClusterError("unreachable", f"{cluster}: {type(error).__name__}: {str(error)[:200]}")


def _outcome(cluster: str, error: Exception) -> Outcome:
    if isinstance(error, client.ApiException) and error.status:
        body = str(error.body or "")[:300]
        kind = _KINDS.get(error.status, "failed")
        if error.status == 422 and "test" in body.lower():
            kind = "conflict"  # the patch's own precondition did not hold
        return Outcome(kind, f"{cluster}: HTTP {error.status} {error.reason} {body}".strip())
    return Outcome("unreachable", f"{cluster}: {type(error).__name__}: {str(error)[:200]}")


class _Threads:
    """Worker threads per cluster."""

    def __init__(self, names: Sequence[str]) -> None:
        self._pools = {n: ThreadPoolExecutor(_WORKERS, thread_name_prefix=f"rollout-{n}") for n in names}

    async def run(self, name: str, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pools[name], work)

    def close(self) -> None:
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)


class KubernetesRollouts:
    """RolloutActuator on member clusters."""

    def __init__(self, clusters: Mapping[str, client.ApiClient]) -> None:
        """Takes a client per member cluster; make them with `rollout_client`."""
        self._apps = {name: client.AppsV1Api(api) for name, api in clusters.items()}
        self._core = {name: client.CoreV1Api(api) for name, api in clusters.items()}
        self._threads = _Threads(sorted(clusters))

    def close(self) -> None:
        """Ends the worker threads; calls that hang end with their timeouts."""
        self._threads.close()

    async def observe(self, spec: Spec, cluster: str) -> ClusterSeen:
        """Reads both Deployments, their ReplicaSets and the canary's pods.

        Raises:
            ClusterError: the cluster can't be read.
        """
        if cluster not in self._apps:
            raise ClusterError("unreachable", f"{cluster}: no connection is configured")
        try:
            return await self._threads.run(cluster, lambda: self._observe(spec, cluster))
        except (client.ApiException, urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise _cluster_error(cluster, error) from error

    async def apply(self, spec: Spec, action: Action) -> Outcome:
        """Carries out one action."""
        if action.cluster not in self._apps:
            return Outcome("unreachable", f"{action.cluster}: no connection is configured")
        try:
            return await self._threads.run(action.cluster, lambda: self._apply(spec, action))
        except (client.ApiException, urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            return _outcome(action.cluster, error)

    def _deployment(self, cluster: str, namespace: str, name: str) -> Object | None:
        try:
            response = self._apps[cluster].read_namespaced_deployment(
                name, namespace, _preload_content=False, _request_timeout=TIMEOUT_S
            )
        except client.ApiException as error:
            if error.status == 404:
                return None
            raise
        return _data(response)

    def _observe(self, spec: Spec, cluster: str) -> ClusterSeen:
        stable = self._deployment(cluster, spec.namespace, spec.workload)
        canary = self._deployment(cluster, spec.namespace, spec.canary)
        sets: list[Object] = []
        pods: list[Object] = []
        if stable is not None:
            response = self._apps[cluster].list_namespaced_replica_set(
                spec.namespace,
                label_selector=selector_text(stable),
                _preload_content=False,
                _request_timeout=TIMEOUT_S,
            )
            sets = _data(response)["items"]
        if canary is not None:
            found = self._core[cluster].list_namespaced_pod(
                spec.namespace,
                label_selector=f"{ROLLOUT_LABEL}={spec.name}",
                _preload_content=False,
                _request_timeout=TIMEOUT_S,
            )
            pods = _data(found)["items"]
        return seen_of(spec, cluster, stable, canary, sets, pods)

    def _apply(self, spec: Spec, action: Action) -> Outcome:
        match action:
            case EnsureCanary():
                return self._ensure(spec, action)
            case ScaleCanary():
                body = {"spec": {"replicas": action.replicas}}
                return self._patch(action.cluster, spec.namespace, spec.canary, body, "application/merge-patch+json")
            case DeleteCanary():
                return self._delete(spec, action.cluster)
            case PauseStable() | SetTemplate() | ReleaseStable():
                return self._change_stable(spec, action)

    def _patch(self, cluster: str, namespace: str, name: str, body: Any, content: str) -> Outcome:
        force = True if content == "application/apply-patch+yaml" else None
        response = self._apps[cluster].patch_namespaced_deployment(
            name, namespace, body, field_manager=FIELD_MANAGER, _content_type=content,
            _preload_content=False, _request_timeout=TIMEOUT_S, force=force,
        )  # fmt: skip
        return Outcome("done", resource_version=_data(response)["metadata"]["resourceVersion"])

    def _ensure(self, spec: Spec, action: EnsureCanary) -> Outcome:
        stable = self._deployment(action.cluster, spec.namespace, spec.workload)
        if stable is None:
            return Outcome("failed", f"{action.cluster}: there is no Deployment {spec.workload}")
        body = canary_body(spec, stable, action.template, action.replicas)
        return self._patch(action.cluster, spec.namespace, spec.canary, body, "application/apply-patch+yaml")

    def _delete(self, spec: Spec, cluster: str) -> Outcome:
        try:
            self._apps[cluster].delete_namespaced_deployment(
                spec.canary, spec.namespace, propagation_policy="Background",
                _preload_content=False, _request_timeout=TIMEOUT_S,
            )  # fmt: skip
        except client.ApiException as error:
            if error.status == 404:
                return Outcome("unchanged", "it is gone already")
            raise
        return Outcome("done")

    def _change_stable(self, spec: Spec, action: PauseStable | SetTemplate | ReleaseStable) -> Outcome:
        stable = self._deployment(action.cluster, spec.namespace, spec.workload)
        if stable is None:
            return Outcome("failed", f"{action.cluster}: there is no Deployment {spec.workload}")
        if action.expected and str(stable["metadata"].get("generation", "")) != action.expected:
            return Outcome("conflict", f"{action.cluster}: {spec.workload} was changed meanwhile")
        match action:
            case PauseStable():
                patch = pause_patch(spec, stable)
            case ReleaseStable():
                patch = release_patch(stable, action)
            case SetTemplate():
                patch = template_patch(stable, action)
        return self._patch(action.cluster, spec.namespace, spec.workload, patch, "application/json-patch+json")


def _uid(raw: Object) -> str:
    return str(raw["metadata"].get("uid", ""))


class HubRollouts:
    """RolloutStore on the hub's custom resources."""

    def __init__(self, hub: client.ApiClient) -> None:
        """Takes the hub's client."""
        self._api = client.CustomObjectsApi(hub)
        self._threads = _Threads(["hub"])
        self._raw: dict[str, Object] = {}
        self._good: dict[str, Object] = {}

    def close(self) -> None:
        """Ends the worker threads."""
        self._threads.close()

    async def load(self) -> Sequence[Stored]:
        """Lists all CanaryRollouts; one that can't be read comes with its problem.

        Raises:
            ClusterError: the hub can't be read.
        """
        try:
            items = await self._threads.run("hub", self._list)
        except (client.ApiException, urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise _cluster_error("hub", error) from error
        self._raw = {f"{o['metadata'].get('namespace')}/{o['metadata']['name']}": o for o in items}
        every = [stored_of(o, self._good.get(_uid(o))) for o in items]
        good = {_uid(o): o["spec"] for o, one in zip(items, every, strict=True) if not one.problem}
        self._good = {_uid(o): self._good[_uid(o)] for o in items if _uid(o) in self._good} | good
        return every

    def _list(self) -> list[Object]:
        response = self._api.list_custom_object_for_all_namespaces(
            GROUP, VERSION, PLURAL, _preload_content=False, _request_timeout=TIMEOUT_S
        )
        return cast("list[Object]", _data(response)["items"])

    async def save(self, stored: Stored, status: Status) -> Outcome:
        """Replaces the status, with the resourceVersion that was read as precondition."""
        raw = self._raw.get(stored.spec.key)
        if raw is None:
            return Outcome("failed", f"{stored.spec.key} was not loaded")
        metadata = {**raw["metadata"], "resourceVersion": stored.version}
        body = {**raw, "metadata": metadata, "status": status_body(stored, status, raw, self._good.get(_uid(raw)))}
        return await self._write(lambda: self._replace(stored.spec, body))

    async def _write(self, work: Callable[[], Outcome]) -> Outcome:
        try:
            return await self._threads.run("hub", work)
        except (client.ApiException, urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            return _outcome("hub", error)

    def _replace(self, spec: Spec, body: Object) -> Outcome:
        response = self._api.replace_namespaced_custom_object_status(
            GROUP, VERSION, spec.namespace, PLURAL, spec.name, body, field_manager=FIELD_MANAGER,
            _preload_content=False, _request_timeout=TIMEOUT_S,
        )  # fmt: skip
        return Outcome("done", resource_version=_data(response)["metadata"]["resourceVersion"])

    async def guard(self, stored: Stored) -> Outcome:
        """Adds the finalizer, so that a deletion waits until the Deployments are given back."""
        return await self._finalizers(stored, lambda found: [*found, FINALIZER])

    async def release(self, stored: Stored) -> Outcome:
        """Takes the finalizer off."""
        return await self._finalizers(stored, lambda found: [f for f in found if f != FINALIZER])

    async def _finalizers(self, stored: Stored, change: Callable[[list[str]], list[str]]) -> Outcome:
        raw, spec = self._raw.get(stored.spec.key), stored.spec
        if raw is None:
            return Outcome("failed", f"{spec.key} was not loaded")
        metadata = raw["metadata"]
        # A merge patch replaces the list as a whole: with the version that was read, nobody else's entry is lost.
        finalizers = change(list(metadata.get("finalizers") or ()))
        body = {"metadata": {"resourceVersion": stored.version, "finalizers": finalizers}}
        return await self._write(lambda: self._merge(spec, body))

    def _merge(self, spec: Spec, body: Object) -> Outcome:
        response = self._api.patch_namespaced_custom_object(
            GROUP, VERSION, spec.namespace, PLURAL, spec.name, body, field_manager=FIELD_MANAGER,
            _content_type="application/merge-patch+json", _preload_content=False, _request_timeout=TIMEOUT_S,
        )  # fmt: skip
        return Outcome("done", resource_version=_data(response)["metadata"]["resourceVersion"])
