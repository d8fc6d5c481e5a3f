"""Rollouts on real API servers: real Deployments, ReplicaSets and pods; only the counters are the test's own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from kubernetes import client, config

from rebalancer.adapters.kubernetes.rollouts import HubRollouts, KubernetesRollouts, rollout_client
from rebalancer.core.model import View
from rebalancer.core.rollout import Status
from rebalancer.core.rollout.codec import status_from_dict
from rebalancer.core.rollout.verbs import request_patch
from rebalancer.ports import Counter, CounterAnswer, Selection, Telemetry
from rebalancer.rollouts import RolloutReport, Rollouts, TickReport
from tests.stack.api import Api, ApiError, deployment, path_of
from tests.stack.fleet import Fleet

pytestmark = [pytest.mark.stack]

NAME = "rollouts-live"
OLD, NEW = "registry.example/app:v1", "registry.example/app:v2"
RPS, BASE = 200.0, 0.001
CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "canaryrollouts.rebalancer.dev"},
    "spec": {
        "group": "rebalancer.dev",
        "scope": "Namespaced",
        "names": {"plural": "canaryrollouts", "singular": "canaryrollout", "kind": "CanaryRollout"},
        "versions": [
            {
                "name": "v1alpha1", "served": True, "storage": True, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}  # fmt: skip


class Now:
    """The wall clock."""

    def now(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Requests:
    """Counters of the requests that ready pods get: split evenly over the ready pods that the API server shows."""

    def __init__(self, planes: Mapping[str, Any], namespace: str) -> None:
        self.apis: dict[str, Api] = {name: plane.api for name, plane in planes.items()}
        self.namespace = namespace
        self.errors: dict[tuple[str, str], float] = {}
        self.hashes: dict[tuple[str, str], str] = {}
        self.gone = False
        self.first_bad_s: float | None = None
        self._values: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
        self._last: float | None = None

    def advance(self) -> None:
        """Counts what was requested since the last call."""
        now = time.time()
        passed = 0.0 if self._last is None else now - self._last
        self._last = now
        for cluster, api in self.apis.items():
            ready = self._ready(api, cluster)
            for hashed, number in ready.items():
                share = RPS * passed * number / sum(ready.values())
                rate = self.errors.get((cluster, self.hashes[cluster, hashed]), BASE)
                if rate > BASE and share > 0 and self.first_bad_s is None:
                    self.first_bad_s = now
                self._add(cluster, hashed, "total", now, share)
                self._add(cluster, hashed, "bad", now, share * rate)

    def _ready(self, api: Api, cluster: str) -> dict[str, int]:
        out: dict[str, int] = {}
        for pod in api.items(path_of("Pod", "", self.namespace), labelSelector="app=web"):
            hashed = pod["metadata"]["labels"]["pod-template-hash"]
            self.hashes[cluster, hashed] = pod["spec"]["containers"][0]["image"]
            conditions = {c["type"]: c["status"] for c in pod.get("status", {}).get("conditions", [])}
            if conditions.get("Ready") == "True" and "deletionTimestamp" not in pod["metadata"]:
                out[hashed] = out.get(hashed, 0) + 1
        return out

    def _add(self, cluster: str, hashed: str, kind: str, now: float, amount: float) -> None:
        points = self._values.setdefault((cluster, hashed, kind), [])
        points.append((now, (points[-1][1] if points else 0.0) + amount))

    async def counters(
        self, selection: Selection, clusters: Sequence[str], since_s: float, now: float
    ) -> CounterAnswer:
        views = {c: View("complete", now) for c in clusters}
        if self.gone:
            return CounterAnswer((), (), views)
        found: dict[str, list[Counter]] = {"total": [], "bad": []}
        for (cluster, hashed, kind), points in self._values.items():
            kept = [p for p in points if p[0] >= since_s]
            if kept and cluster in clusters:
                labels = {"cluster": cluster, selection.version_label: hashed}
                found[kind].append(Counter(labels, tuple(t for t, _ in kept), tuple(v for _, v in kept)))
        return CounterAnswer(tuple(found["total"]), tuple(found["bad"]), views)


def connect(kubeconfig: Path) -> client.ApiClient:
    """A client as the product makes it."""
    settings = client.Configuration()
    loader: Any = config
    loader.load_kube_config(str(kubeconfig), client_configuration=settings)
    return rollout_client(settings)


class Live:
    """A rollout over all members, ticked by the test."""

    def __init__(self, fleet: Fleet, namespace: str) -> None:
        self.fleet, self.namespace = fleet, namespace
        self.hub = fleet.hub.api
        self.requests = Requests(fleet.planes, namespace)
        self.members = sorted(fleet.planes)
        clients = {n: connect(p.kubeconfig) for n, p in fleet.planes.items()}
        self.actuator = KubernetesRollouts(clients)
        self.store = HubRollouts(connect(fleet.hub.kubeconfig))
        labels: dict[str, dict[str, str]] = {n: {} for n in self.members}
        self.rollouts = Rollouts(self.store, self.actuator, cast("Telemetry", self.requests), Now(), lambda: labels)
        self.reports: list[TickReport] = []

    def mine(self) -> RolloutReport:
        return next(r for r in self.reports[-1].rollouts if r.spec.namespace == self.namespace)

    def exists(self) -> bool:
        try:
            self.hub.get(self.path)
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return True

    def delete(self, seconds: float = 40.0) -> None:
        """Deletes the rollout and ticks until it is gone."""

        async def loop() -> bool:
            end = time.monotonic() + seconds
            while self.exists() and time.monotonic() < end:
                self.requests.advance()
                self.reports.append(await self.rollouts.tick())
                await asyncio.sleep(0.2)
            return self.exists()

        self.hub.delete(self.path)
        assert not asyncio.run(loop()), f"not released: {self.mine().status.message} {self.mine().saved}"

    def close(self) -> None:
        if self.exists():
            self.delete()
        self.actuator.close()
        self.store.close()

    @property
    def path(self) -> str:
        return f"/apis/rebalancer.dev/v1alpha1/namespaces/{self.namespace}/canaryrollouts/web"

    def status(self) -> Status:
        return status_from_dict(self.hub.get(self.path).get("status"))

    def workload(self, cluster: str, name: str = "web") -> dict[str, Any] | None:
        try:
            return self.fleet.planes[cluster].api.get(path_of("Deployment", name, self.namespace, "apps/v1"))
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def images(self, cluster: str) -> set[str]:
        pods = self.fleet.planes[cluster].api.items(path_of("Pod", "", self.namespace), labelSelector="app=web")
        return {p["spec"]["containers"][0]["image"] for p in pods if "deletionTimestamp" not in p["metadata"]}

    def edit(self, image: str) -> None:
        patch = [{"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": image}]
        for plane in self.fleet.planes.values():
            plane.api.patch(path_of("Deployment", "web", self.namespace, "apps/v1"), cast("Any", patch), kind="json")

    def ask(self, verb: Any) -> None:
        self.hub.patch(self.path, request_patch(verb, f"{verb}-{time.time()}"))

    def run(self, until: Any, seconds: float = 60.0) -> Status:
        async def loop() -> Status:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                self.requests.advance()
                self.reports.append(await self.rollouts.tick())
                status = self.mine().status
                if until(status):
                    return status
                await asyncio.sleep(0.5)
            last = self.mine()
            raise AssertionError(
                f"{last.status.shown} {last.status.message} {last.problem} {last.outcomes} {last.saved}"
            )

        return asyncio.run(loop())


@pytest.fixture
def live(control_planes: Fleet, request: pytest.FixtureRequest) -> Iterator[Live]:
    namespace = f"{NAME}-{abs(hash(request.node.name)) % 10**6}"
    hub = control_planes.hub.api
    hub.apply(CRD)
    hub.namespace(namespace)
    for plane in control_planes.planes.values():
        plane.api.namespace(namespace)
    control_planes.deploy(deployment("web", namespace=namespace, replicas=4, image=OLD))
    first, *rest = sorted(control_planes.planes)
    rollout = {
        "apiVersion": "rebalancer.dev/v1alpha1",
        "kind": "CanaryRollout",
        "metadata": {"name": "web", "namespace": namespace},
        "spec": {
            "workloadRef": {"name": "web"},
            "strategy": {
                "canary": {
                    "steps": [{"setWeight": 20}, {"setWeight": 50}, {"setWeight": 100}],
                    "scaleDownDelaySeconds": 1,
                    "analysis": {
                        "warmupSeconds": 1,
                        "minStepSeconds": 1,
                        "metrics": [{"name": "errors", "total": "requests_total", "bad": "bad_total"}],
                    },
                }
            },
            "placement": {"waves": [{"name": "first", "clusters": [first]}, {"name": "rest", "clusters": rest}]},
        },
    }
    deadline = time.monotonic() + 20.0
    path = f"/apis/rebalancer.dev/v1alpha1/namespaces/{namespace}/canaryrollouts"
    while True:  # a new kind is served a moment after it is made
        try:
            hub.call("POST", path, rollout)
            break
        except ApiError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
    one = Live(control_planes, namespace)
    yield one
    one.close()


def adopted(live: Live) -> None:
    live.run(lambda s: len(s.clusters) == len(live.members) and all(c.stable for c in s.clusters.values()))
    live.run(lambda s: all((live.workload(m) or {})["spec"].get("paused") for m in live.members))


def test_a_template_edit_is_withheld_and_a_healthy_one_reaches_every_pod(live: Live) -> None:
    adopted(live)
    live.edit(NEW)
    assert all(live.images(m) == {OLD} for m in live.members)
    live.run(lambda s: s.outcome == "completed", 180.0)
    for member in live.members:
        assert live.images(member) == {NEW}
        assert live.workload(member, "web-canary") is None
        workload = live.workload(member)
        assert workload is not None
        assert workload["spec"]["paused"] is True
        assert workload["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == "25%"
    assert live.status().phase == "Healthy"


def test_a_revision_that_fails_in_the_second_wave_is_out_of_all_clusters_within_thirty_seconds(live: Live) -> None:
    adopted(live)
    live.requests.errors = {(m, NEW): 0.1 for m in live.members[1:]}
    live.edit(NEW)
    live.run(lambda s: s.state.value == "RolledBack", 180.0)
    assert live.requests.first_bad_s is not None
    took = time.time() - live.requests.first_bad_s
    assert took <= 30.0
    assert all(live.images(m) == {OLD} and live.workload(m, "web-canary") is None for m in live.members)
    live.ask("undo")
    live.run(lambda s: s.state.value == "Idle", 20.0)
    for member in live.members:
        workload = live.workload(member)
        assert workload is not None
        assert workload["spec"]["template"]["spec"]["containers"][0]["image"] == OLD


def test_a_revision_whose_metrics_vanish_holds_and_abort_takes_it_out(live: Live) -> None:
    adopted(live)
    live.edit(NEW)
    live.run(lambda s: s.state.value == "Analysing", 60.0)
    live.requests.gone = True
    live.run(lambda s: s.hold == "NoData", 20.0)
    step = live.status().step
    end = time.monotonic() + 6.0
    status = live.run(lambda s: time.monotonic() > end, 20.0)
    assert (status.hold, status.step) == ("NoData", step)
    live.ask("abort")
    live.run(lambda s: s.state.value == "RolledBack", 30.0)
    assert all(live.images(m) == {OLD} for m in live.members)


def test_a_rollout_deleted_half_way_gives_the_deployments_back_as_they_ran(live: Live) -> None:
    adopted(live)
    live.edit(NEW)
    live.run(lambda s: s.state.value == "Analysing", 60.0)
    assert any(live.workload(m, "web-canary") for m in live.members)
    live.delete()
    for member in live.members:
        assert live.workload(member, "web-canary") is None
        workload = live.workload(member)
        assert workload is not None
        assert not workload["spec"].get("paused")
        assert workload["spec"]["template"]["spec"]["containers"][0]["image"] == OLD
        assert workload["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == "25%"
        assert not [a for a in workload["metadata"].get("annotations", {}) if a.startswith("rebalancer.dev/")]
        assert live.images(member) == {OLD}
