"""The hub on a real API server: generated CRDs, least rights, status, Events, lease; and what a denied right does."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rebalancer import install
from rebalancer.adapters.kubernetes.actuator import KubernetesActuator
from rebalancer.adapters.kubernetes.clients import Clients, ClusterClient, hub_client
from rebalancer.adapters.kubernetes.events import KubernetesNotifier
from rebalancer.adapters.kubernetes.hub import KubernetesHub, read_clocks, sight_status
from rebalancer.adapters.kubernetes.lease import KubernetesLease
from rebalancer.adapters.kubernetes.permissions import MEMBER_RIGHTS
from rebalancer.adapters.kubernetes.resources import RESOURCES
from rebalancer.adapters.kubernetes.rollouts import KubernetesRollouts
from rebalancer.api.cluster import MemberCluster
from rebalancer.config import from_hub, load
from rebalancer.core.model import EndIntent, Moved, MoveRecord, PutIntent, SetReplicas, Unknown
from rebalancer.core.policy import Policy
from rebalancer.core.rollout.decision import DeleteCanary, EnsureCanary
from rebalancer.core.rollout.model import Spec
from rebalancer.core.sight import Clock
from rebalancer.errors import ClusterError
from tests.stack.api import ApiError, deployment, path_of
from tests.stack.control_plane import ControlPlane
from tests.stack.fixtures import fleet_for
from tests.stack.fleet import CONTROL_PLANES, Fleet, Member
from tests.stack.processes import wait_for

pytestmark = [pytest.mark.stack]

SYSTEM, ACCOUNT = install.NAMESPACE, install.ACCOUNT
EXAMPLE: dict[str, Any] = {
    "apiVersion": "rebalancer.dev/v1alpha1",
    "kind": "SchedulingPolicy",
    "metadata": {"name": "latency-sensitive-policy", "namespace": "default"},
    "spec": {
        "podSelector": {"matchLabels": {"app": "my-realtime-api"}},
        "strategy": {"type": "LatencyFirst"},
        "tolerations": [{"key": "network-quality", "operator": "Equal", "value": "poor", "effect": "NoSchedule"}],
    },
}
CLUSTER: dict[str, Any] = {
    "apiVersion": "rebalancer.dev/v1alpha1",
    "kind": "MemberCluster",
    "metadata": {"name": "eu-1"},
    "spec": {"region": "europe-west1", "connection": {"kubeconfigSecretRef": "eu-1"}},
}
POLICY = Policy(name="web", pod_labels={"app": "web"})
WEB = "default/web"


@pytest.fixture(scope="module")
def fleet(request: pytest.FixtureRequest) -> Iterator[Fleet]:
    with fleet_for(request, parts=CONTROL_PLANES, members=(Member("eu-1", "europe-west1"),)) as started:
        started.add_nodes()
        for plane in (started.hub, started.planes["eu-1"]):
            for obj in install.rbac():
                plane.api.apply(obj)
        started.deploy(deployment("web", replicas=3))
        started.planes["eu-1"].wait_ready_pods(3, selector="app=web")
        for obj in install.crds():
            started.hub.api.apply(obj)
        for obj in install.crds():
            wait_for(partial(_established, started.hub, obj["metadata"]["name"]), "established CRD")
        yield started


def _conditions(plane: ControlPlane, name: str) -> dict[str, str]:
    found = plane.api.get(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}")
    return {c["type"]: c["status"] for c in found.get("status", {}).get("conditions") or ()}


def _established(plane: ControlPlane, name: str) -> bool:
    return _conditions(plane, name).get("Established") == "True"


@pytest.fixture
def hub(fleet: Fleet) -> Iterator[ClusterClient]:
    """The hub's client with the controller's own account and no other right."""
    client = hub_client(str(fleet.hub.service_account(ACCOUNT, namespace=SYSTEM)))
    yield client
    client.close()


def member(connection: dict[str, str]) -> MemberCluster:
    return MemberCluster.model_validate({**CLUSTER, "spec": {"region": "r", "connection": connection}})


def looking_at(kubeconfig: Path) -> tuple[Clients, KubernetesActuator]:
    members = {"eu-1": member({"kubeconfigPath": str(kubeconfig)})}
    clients = Clients(members)
    return clients, KubernetesActuator(members, clients)


def create(plane: ControlPlane, obj: dict[str, Any], **params: str) -> dict[str, Any]:
    path = RESOURCES[obj["kind"]].path(obj["metadata"].get("namespace", ""))
    return plane.api.call("POST", path, obj, params=params)


def test_the_generated_definitions_are_structural_and_established(fleet: Fleet) -> None:
    for obj in install.crds():
        conditions = _conditions(fleet.hub, obj["metadata"]["name"])
        assert conditions["Established"] == "True"
        assert conditions.get("NonStructuralSchema", "False") == "False"


def test_the_example_policy_comes_back_as_it_was_written(fleet: Fleet) -> None:
    made = create(fleet.hub, EXAMPLE, fieldValidation="Strict")
    assert made["spec"] == EXAMPLE["spec"]  # no defaults are baked in
    assert load(from_hub([made])).policies["default/latency-sensitive-policy"].resolve().strategy == "LatencyFirst"


def test_a_typo_is_refused_by_strict_clients_and_pruned_for_others(fleet: Fleet) -> None:
    typo = {**EXAMPLE, "metadata": {"name": "typo", "namespace": "default"}}
    typo["spec"] = {**EXAMPLE["spec"], "targetUtilisation": "70%"}
    with pytest.raises(ApiError, match=r'unknown field "spec\.targetUtilisation"'):
        create(fleet.hub, typo, fieldValidation="Strict")  # what kubectl asks for
    with pytest.raises(ApiError, match="targetUtilisation: field not declared in schema"):
        fleet.hub.api.apply(typo)
    assert "targetUtilisation" not in create(fleet.hub, typo, fieldValidation="Warn")["spec"]
    fleet.hub.api.delete(RESOURCES["SchedulingPolicy"].path("default", "typo"))


def test_a_rollout_keeps_its_workload_and_ends_with_all_the_traffic(fleet: Fleet) -> None:
    rollout = {**EXAMPLE, "kind": "CanaryRollout", "metadata": {"name": "web", "namespace": "default"}}
    path = RESOURCES["CanaryRollout"].path("default", "web")
    for steps, taken in (([{"setWeight": 50}], False), ([{"setWeight": 50}, {"pause": {}}, {"setWeight": 100}], True)):
        rollout["spec"] = {"workloadRef": {"name": "web"}, "strategy": {"canary": {"steps": steps}}}
        if taken:
            create(fleet.hub, rollout)
        else:
            with pytest.raises(ApiError, match="the last setWeight must be 100"):
                create(fleet.hub, rollout)
    fleet.hub.api.apply({**rollout, "spec": {"workloadRef": {"name": "web", "kind": "Deployment"}}})
    with pytest.raises(ApiError, match="workloadRef can't be changed"):
        fleet.hub.api.apply({**rollout, "spec": {"workloadRef": {"name": "other"}}})
    fleet.hub.api.delete(path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"strategy": {"type": "Fastest"}}, "Unsupported value"),
        ({"replicas": {"min": -1}}, "greater than or equal to 0"),
        ({"migration": {"timeout": 600}}, "must be of type string"),
        ({"budget": {"maxMovesPerHour": 1.5}}, "must be of type"),
        ({"capacityPerReplica": 0}, "should be greater than 0"),
    ],
)
def test_bounds_hold_on_the_server_too(fleet: Fleet, change: dict[str, Any], words: str) -> None:
    wrong = {**EXAMPLE, "metadata": {"name": "wrong", "namespace": "default"}, "spec": {**EXAMPLE["spec"], **change}}
    with pytest.raises(ApiError, match=words):
        create(fleet.hub, wrong)


def test_full_forms_are_accepted(fleet: Fleet) -> None:
    spec = {
        **EXAMPLE["spec"],
        "targetUtilization": 0.6,
        "spotMaxShare": "50%",
        "capacityPerReplica": None,
        "budget": {"maxUnavailable": 1, "maxMovesPerHour": "20%"},
        "demand": {"query": "requests_total", "originShares": {"europe-west1": 0.4, "us-east4": 0.6}},
        "migration": {"minReady": "5s", "drain": {"wait": "1m30s"}},
        "residency": {"clusterSelector": {"matchLabels": {"compliance": "gdpr"}}},
    }
    made = create(fleet.hub, {**EXAMPLE, "metadata": {"name": "full", "namespace": "default"}, "spec": spec})
    assert made["spec"] == spec
    fleet.hub.api.delete(RESOURCES["SchedulingPolicy"].path("default", "full"))


def test_status_is_written_once_and_sight_survives(fleet: Fleet, hub: ClusterClient) -> None:
    create(fleet.hub, CLUSTER)
    clock = Clock(time.time(), time.time() - 60.25, None)
    status = {"sight": sight_status(clock), "nested": {"a": 1, "b": [1.5, None]}}

    async def write_twice() -> None:
        one = KubernetesHub(hub)
        assert {str(d["kind"]) for d in await one.documents()} >= {"MemberCluster"}
        assert (await one.write_status("MemberCluster", "", "eu-1", status)).kind == "done"
        assert (await one.write_status("MemberCluster", "", "eu-1", status)).kind == "unchanged"
        path = RESOURCES["MemberCluster"].path("", "eu-1")
        fleet.hub.api.patch(path, {"spec": {"zone": "b"}})  # the user edits meanwhile: no conflict that is ours
        assert (await one.write_status("MemberCluster", "", "eu-1", {**status, "more": True})).kind == "done"
        assert fleet.hub.api.get(path)["spec"]["zone"] == "b"
        assert (await one.write_status("MemberCluster", "", "gone", status)).kind == "conflict"
        again = KubernetesHub(hub)  # after a restart
        found = read_clocks(await again.documents())["eu-1"]
        assert (found.seen_s, found.back_s, found.gone_s) == pytest.approx((clock.seen_s, clock.back_s, None), abs=1e-5)
        assert (await again.write_status("MemberCluster", "", "eu-1", {**status, "more": True})).kind == "unchanged"

    asyncio.run(write_twice())
    fleet.hub.api.delete(RESOURCES["MemberCluster"].path("", "eu-1"))


def test_a_hub_without_our_kinds_says_what_to_apply(fleet: Fleet) -> None:
    client = hub_client(str(fleet.planes["eu-1"].kubeconfig))
    with pytest.raises(ClusterError, match=r"does not know memberclusters.*rebalancer install"):
        asyncio.run(KubernetesHub(client).documents())
    client.close()


def test_all_of_it_runs_with_the_rendered_rights_and_no_other(fleet: Fleet, hub: ClusterClient) -> None:
    plane = fleet.planes["eu-1"]
    kubeconfig = plane.service_account(ACCOUNT, namespace=SYSTEM)
    document = kubeconfig.read_text().replace(
        f'"certificate-authority": "{plane.credentials.ca}"',
        f'"certificate-authority-data": "{base64.b64encode(plane.credentials.ca.read_bytes()).decode()}"',
    )
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "eu-1", "namespace": SYSTEM}}
    fleet.hub.api.apply({**secret, "stringData": {"kubeconfig": document}})
    members = {"eu-1": member({"kubeconfigSecretRef": "eu-1"})}
    clients = Clients(members, hub)
    actuator = KubernetesActuator(members, clients)
    notifier = KubernetesNotifier(clients.members, actuator.uid_of)

    async def everything() -> None:
        findings = await actuator.check()
        assert [f for f in (*findings, *await KubernetesHub(hub).check()) if not f.ok] == []
        assert len(findings) == 1 + len(MEMBER_RIGHTS)
        now = time.time()
        state = await actuator.observe((POLICY,), now)
        assert state.clusters["eu-1"].error == ""
        placement = state.placements[WEB]["eu-1"]
        record = MoveRecord("m", "drift", "us-1", "eu-1", 1, 2, 3, "cheaper", now, now + 60)
        ended = Moved("m", now, "us-1", "eu-1", 1, "done")
        for step in (PutIntent("eu-1", record), SetReplicas("eu-1", 3, 4), EndIntent("eu-1", "m", ended)):
            assert (await actuator.apply(WEB, step, placement)).kind == "done"
        for _ in range(2):
            await notifier.event(WEB, "eu-1", "cheaper", "3 -> 4", warning=False, at_s=now)
        assert notifier.counts == {"written": 1, "repeated": 1, "dropped": 0, "failed": 0}

    asyncio.run(everything())
    clients.members["eu-1"].close()
    records = plane.audit(user=f"{SYSTEM}:{ACCOUNT}")
    assert {r.code for r in records} <= {200, 201, 409}  # a status update between our read and write is repeated
    used = {(r.verb, r.resource, r.subresource) for r in records if "accessreviews" not in r.resource}
    assert used == {
        (r.verb, f"{r.resource}.{r.group}" if r.group else r.resource, r.subresource) for r in MEMBER_RIGHTS
    }
    event = next(e for e in plane.api.items(path_of("Event", "", "default")) if e["reason"] == "cheaper")
    assert (event["involvedObject"]["kind"], event["message"]) == ("Deployment", "3 -> 4")
    assert event["involvedObject"]["uid"] == actuator.uid_of(WEB, "eu-1")
    denied = [r for r in fleet.hub.audit(user=f"{SYSTEM}:{ACCOUNT}") if r.code in (401, 403)]
    assert denied == []


def test_rollouts_run_on_the_same_clients_and_rights(fleet: Fleet) -> None:
    plane = fleet.planes["eu-1"]
    members = {"eu-1": member({"kubeconfigPath": str(plane.service_account(ACCOUNT, namespace=SYSTEM))})}
    clients = Clients(members)
    spec = Spec("default", "roll", "web")

    async def story() -> None:
        assert await clients.connect() == {}
        rollouts = KubernetesRollouts(clients.apis())
        seen = await rollouts.observe(spec, "eu-1")
        assert seen.stable is not None
        template = seen.stable.template
        assert (await rollouts.apply(spec, EnsureCanary("eu-1", seen.stable.revision, template, 1))).ok
        assert (await rollouts.observe(spec, "eu-1")).canary is not None
        assert (await rollouts.apply(spec, DeleteCanary("eu-1"))).ok
        rollouts.close()

    asyncio.run(story())
    clients.close()
    assert [r for r in plane.audit(user=f"{SYSTEM}:{ACCOUNT}") if r.code in (401, 403)] == []


def test_a_secret_must_not_make_the_controller_run_programs(fleet: Fleet, hub: ClusterClient) -> None:
    document = (
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n"
        "clusters: [{name: c, cluster: {server: 'https://127.0.0.1:1'}}]\n"
        "contexts: [{name: c, context: {cluster: c, user: u}}]\n"
        "users: [{name: u, user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: id}}}]\n"
    )
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "evil", "namespace": SYSTEM}}
    fleet.hub.api.apply({**secret, "stringData": {"kubeconfig": document}})
    members = {"eu-1": member({"kubeconfigSecretRef": "evil"})}
    clients = Clients(members, hub)
    state = asyncio.run(KubernetesActuator(members, clients).observe((POLICY,), time.time()))
    assert "uses exec, which a Secret must not" in state.clusters["eu-1"].error


def _role(plane: ControlPlane, name: str, *rules: tuple[str, str, list[str]]) -> Path:
    plane.api.apply({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": name},
        "rules": [{"apiGroups": [g], "resources": [r], "verbs": v} for g, r, v in rules],
    })  # fmt: skip
    return plane.service_account(name, cluster_role=name)


def test_without_the_right_on_pods_the_room_is_unknown_and_nothing_looks_unready(fleet: Fleet) -> None:
    plane = fleet.planes["eu-1"]
    wait_for(lambda: len(plane.ready_pods(selector="app=web")) >= 3, "ready pods")
    plane.api.scale("default", "web", 3)
    plane.wait_ready_pods(3, selector="app=web")
    autoscalers = ("autoscaling", "horizontalpodautoscalers", ["list"])
    file = _role(plane, "no-pods", ("apps", "deployments", ["list"]), autoscalers, ("", "nodes", ["list"]))
    clients, actuator = looking_at(file)
    now = time.time()
    first = asyncio.run(actuator.observe((POLICY,), now))
    later = asyncio.run(actuator.observe((POLICY,), now + 60))
    state = later.clusters["eu-1"]
    assert state.seen_s == now + 60  # it answers, so it is in sight
    assert isinstance(state.nodes, Unknown)
    assert "HTTP 403" in state.nodes.detail and "pods" in state.error
    assert first.placements[WEB]["eu-1"].ready == 3
    assert later.placements[WEB]["eu-1"].ready_since_s == (now,) * 3
    outcome = asyncio.run(actuator.apply(WEB, SetReplicas("eu-1", 3, 4), later.placements[WEB]["eu-1"]))
    assert outcome.kind == "forbidden"
    missing = {f.what for f in asyncio.run(actuator.check()) if not f.ok}
    assert "list pods" in missing and "update deployments/scale.apps" in missing and "list nodes" not in missing
    clients.close()


def test_without_the_right_on_autoscalers_workloads_are_left_alone(fleet: Fleet) -> None:
    plane = fleet.planes["eu-1"]
    file = _role(plane, "no-hpa", ("apps", "deployments", ["list"]), ("", "nodes", ["list"]), ("", "pods", ["list"]))
    clients, actuator = looking_at(file)
    state = asyncio.run(actuator.observe((POLICY,), time.time()))
    assert state.placements[WEB]["eu-1"].owner == "hpa"
    assert not isinstance(state.clusters["eu-1"].nodes, Unknown)
    clients.close()


def test_without_the_right_on_deployments_the_cluster_is_out_of_sight(fleet: Fleet) -> None:
    plane = fleet.planes["eu-1"]
    clients, actuator = looking_at(_role(plane, "nothing", ("", "nodes", ["list"])))
    state = asyncio.run(actuator.observe((POLICY,), time.time()))
    assert (state.clusters["eu-1"].seen_s, dict(state.placements)) == (None, {})
    assert "HTTP 403" in state.clusters["eu-1"].error
    clients.close()


def test_one_leader_at_a_time_and_a_quick_handover(hub: ClusterClient) -> None:
    async def two() -> None:
        first = KubernetesLease(hub, identity="a", duration_s=2.0, renew_deadline_s=1.2, retry_s=0.2)
        second = KubernetesLease(hub, identity="b", duration_s=2.0, renew_deadline_s=1.2, retry_s=0.2)
        running = asyncio.create_task(first.run())
        await _until(first.is_leader)
        waiting = asyncio.create_task(second.run())
        await asyncio.sleep(1.0)  # several rounds of both, in which nothing must change
        assert first.is_leader() and not second.is_leader()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert not first.is_leader()
        began = time.monotonic()
        await _until(second.is_leader)
        assert time.monotonic() - began < 1.0  # released, so nobody waits for the duration
        assert second.transitions >= 2
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)

    asyncio.run(two())


def test_a_leader_that_can_not_renew_stops_before_another_begins(fleet: Fleet, hub: ClusterClient) -> None:
    async def cut() -> None:
        lease = KubernetesLease(hub, identity="c", duration_s=2.0, renew_deadline_s=1.2, retry_s=0.2)
        running = asyncio.create_task(lease.run())
        await _until(lease.is_leader)
        fleet.hub.parts["apiserver"].pause()
        try:
            began = time.monotonic()
            await _until(lambda: not lease.is_leader())
            assert time.monotonic() - began < 1.5
        finally:
            fleet.hub.parts["apiserver"].resume()
        await _until(lease.is_leader, 10)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(cut())


async def _until(condition: Any, timeout_s: float = 5.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.02)
