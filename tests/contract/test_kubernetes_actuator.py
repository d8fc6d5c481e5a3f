"""The actuator on real API servers: what is seen, what is written, and what a hang, a denial or a kill does."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rebalancer.adapters.kubernetes.actuator import KubernetesActuator
from rebalancer.adapters.kubernetes.clients import Clients
from rebalancer.api.cluster import MemberCluster
from rebalancer.core.model import EndIntent, Moved, MoveRecord, Placement, PutIntent, SetReplicas, Unknown
from rebalancer.core.policy import Policy
from rebalancer.ports import FleetState, Outcome
from tests.stack.api import deployment, path_of
from tests.stack.credentials import rotate_account_key
from tests.stack.fixtures import fleet_for
from tests.stack.fleet import Fleet
from tests.stack.processes import wait_for

pytestmark = [pytest.mark.stack]

POLICY = Policy(name="web", namespace="default", pod_labels={"app": "web"})
WEB = "default/web"


@pytest.fixture(scope="module")
def fleet(request: pytest.FixtureRequest) -> Iterator[Fleet]:
    with fleet_for(request, parts=frozenset({"members"})) as started:
        started.add_nodes()
        started.deploy(deployment("web", replicas=3))
        for plane in started.planes.values():
            plane.wait_ready_pods(3, selector="app=web")
        yield started


def member(name: str, kubeconfig: Path) -> MemberCluster:
    spec = {"region": "r", "connection": {"kubeconfigPath": str(kubeconfig)}}
    document = {"apiVersion": "rebalancer.dev/v1alpha1", "kind": "MemberCluster", "metadata": {"name": name}}
    return MemberCluster.model_validate({**document, "spec": spec})


class World:
    """An actuator with its own clients, as one process of the controller has them."""

    def __init__(self, fleet: Fleet, **kubeconfigs: Path) -> None:
        files = {n: kubeconfigs.get(n.replace("-", "_"), p.kubeconfig) for n, p in fleet.planes.items()}
        self.members = {n: member(n, f) for n, f in files.items()}
        self.clients = Clients(self.members)
        self.actuator = KubernetesActuator(self.members, self.clients, observe_deadline_s=2.0, write_deadline_s=2.0)

    def observe(self, *policies: Policy) -> FleetState:
        return asyncio.run(self.actuator.observe(policies or (POLICY,), time.time()))

    def web(self, cluster: str = "eu-1") -> Placement:
        return self.observe().placements[WEB][cluster]

    def apply(self, step: Any, placement: Placement, workload: str = WEB) -> Outcome:
        return asyncio.run(self.actuator.apply(workload, step, placement))


@pytest.fixture
def world(fleet: Fleet) -> Iterator[World]:
    made = World(fleet)
    yield made
    made.clients.close()
    for plane in fleet.planes.values():
        plane.api.apply(deployment("web", replicas=3))
        plane.api.patch(
            path_of("Deployment", "web", "default", "apps/v1"),
            {"metadata": {"annotations": {"rebalancer.dev/move": None, "rebalancer.dev/moved": None}}},
        )
        plane.api.scale("default", "web", 3)
        plane.wait_ready_pods(3, selector="app=web")


def scale_writes(fleet: Fleet, cluster: str = "eu-1") -> list[int]:
    """Codes of all writes of the scale subresource so far that were ours (a PUT; the tests' own are PATCHes)."""
    records = fleet.planes[cluster].audit(writes_only=True)
    return [r.code for r in records if r.subresource == "scale" and r.verb == "update"]


def test_sees_replicas_readiness_requests_and_room(fleet: Fleet, world: World) -> None:
    before = time.time()
    state = world.observe()
    assert state.problems == ()
    assert state.policies == {WEB: "default/web"}
    assert set(state.placements[WEB]) == set(fleet.planes)
    for name, placement in state.placements[WEB].items():
        assert (placement.wanted, placement.ready, placement.unavailable_pods) == (3, 3, 0)
        assert all(before - 120 < since <= time.time() for since in placement.ready_since_s)
        assert (placement.cpu, placement.memory) == (0.1, 64 * 2**20)
        assert (placement.owner, placement.paused, placement.move) == ("", False, None)
        assert placement.uid and placement.resource_version
        seen = state.clusters[name]
        assert (seen.error, seen.version, seen.allocatable_cpu) == ("", "v1.36.3", 24.0)
        assert not isinstance(seen.nodes, Unknown)
        assert sum(n.free_cpu for n in seen.nodes) == pytest.approx(24 - 0.3)
        assert sum(n.free_pods for n in seen.nodes) == 3 * 110 - 3


def test_scales_once_however_often_it_is_told_to(fleet: Fleet, world: World) -> None:
    old = world.web()
    count = len(scale_writes(fleet))
    step = SetReplicas("eu-1", 3, 5)
    assert world.apply(step, old).kind == "done"
    assert world.apply(step, old).kind == "unchanged"  # the same process, with what it saw before
    fresh = World(fleet)  # killed and started again
    assert fresh.apply(step, fresh.web()).kind == "unchanged"
    assert fresh.web().wanted == 5
    fresh.clients.close()
    assert scale_writes(fleet)[count:] == [200]


def test_status_updates_are_no_conflict_but_another_number_is(fleet: Fleet, world: World) -> None:
    old = world.web()
    plane = fleet.planes["eu-1"]
    path = path_of("Deployment", "web", "default", "apps/v1")
    plane.api.patch(path, {"metadata": {"annotations": {"someone": "else"}}})
    assert world.web().resource_version != old.resource_version
    assert world.apply(SetReplicas("eu-1", 3, 4), old).kind == "done"
    plane.api.scale("default", "web", 7)
    outcome = world.apply(SetReplicas("eu-1", 4, 5), old)
    assert outcome.kind == "conflict"
    assert "has 7 replicas" in outcome.detail
    assert world.web().wanted == 7
    assert world.apply(SetReplicas("eu-1", 7, 6), dataclasses.replace(old, uid="of-another-object")).kind == "conflict"
    assert world.apply(SetReplicas("eu-1", 1, 2), old, "default/gone").kind == "conflict"


def test_intents_survive_and_end_once(fleet: Fleet, world: World) -> None:
    now = time.time()
    record = MoveRecord("m1", "migrate", "eu-1", "us-1", 2, 3, 3, "closer-to-users", now, now + 600)
    placement = world.web()
    assert world.apply(PutIntent("eu-1", record), placement).kind == "done"
    assert world.apply(PutIntent("eu-1", record), placement).kind == "unchanged"
    other = dataclasses.replace(record, id="m2")
    assert world.apply(PutIntent("eu-1", other), placement).kind == "conflict"
    fresh = World(fleet)
    assert fresh.web().move == record
    changed = dataclasses.replace(record, reason="traffic-did-not-follow")
    assert fresh.apply(PutIntent("eu-1", changed), placement).kind == "done"
    ended = Moved("m1", now, "eu-1", "us-1", 2, "done")
    assert fresh.apply(EndIntent("eu-1", "m1", ended), fresh.web()).kind == "done"
    again = dataclasses.replace(ended, ended_s=now + 5)
    assert fresh.apply(EndIntent("eu-1", "m1", again), fresh.web()).kind == "unchanged"
    after = fresh.web()
    assert (after.move, after.moved, after.wanted) == (None, (ended,), 3)
    fresh.clients.close()


def test_broken_marks_are_ignored_and_told(fleet: Fleet, world: World) -> None:
    path = path_of("Deployment", "web", "default", "apps/v1")
    fleet.planes["eu-1"].api.patch(path, {"metadata": {"annotations": {"rebalancer.dev/move": "{nonsense"}}})
    state = world.observe()
    assert state.placements[WEB]["eu-1"].move is None
    assert len(state.problems) == 1
    assert "eu-1: default/web: annotation rebalancer.dev/move can't be read" in state.problems[0]


def test_two_policies_on_one_workload_leave_it_alone(world: World) -> None:
    other = Policy(name="other", namespace="default", workload_name="web")
    state = world.observe(POLICY, other)
    assert (state.placements, state.policies) == ({}, {})
    assert any("2 policies (default/other, default/web)" in p for p in state.problems)


def test_autoscalers_and_canaries_own_what_is_theirs(fleet: Fleet, world: World) -> None:
    api = fleet.planes["us-1"].api
    hpa = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "maxReplicas": 9,
            "minReplicas": 3,
        },
    }
    api.create(hpa)
    canary = deployment("web-canary", replicas=2, labels={"rebalancer.dev/rollout": "web"})
    for labels in (canary["spec"]["selector"]["matchLabels"], canary["spec"]["template"]["metadata"]["labels"]):
        labels.update({"app": "web", "rebalancer.dev/rollout": "web"})
    fleet.planes["ap-1"].api.create(canary)
    fleet.planes["ap-1"].wait_ready_pods(5, selector="app=web")
    try:
        state = world.observe()
        assert {c: p.owner for c, p in state.placements[WEB].items()} == {"eu-1": "", "us-1": "hpa", "ap-1": "rollout"}
        assert state.placements[WEB]["ap-1"].ready == 3  # the canary's pods are not the workload's
        assert set(state.placements) == {WEB}
    finally:
        api.delete(path_of("HorizontalPodAutoscaler", "web", "default", "autoscaling/v2"))
        fleet.planes["ap-1"].api.delete(path_of("Deployment", "web-canary", "default", "apps/v1"))


def test_a_hung_api_server_delays_nobody_and_comes_back(fleet: Fleet, world: World) -> None:
    good = world.observe()
    apiserver = fleet.planes["us-1"].parts["apiserver"]
    apiserver.pause()
    try:

        async def cycles() -> list[tuple[FleetState, float]]:
            found = []
            for _ in range(2):
                began = time.monotonic()
                state = await world.actuator.observe((POLICY,), time.time())
                found.append((state, time.monotonic() - began))
            outcome = await world.actuator.apply(WEB, SetReplicas("us-1", 3, 4), good.placements[WEB]["us-1"])
            assert outcome.kind == "unreachable"
            assert (await world.actuator.apply(WEB, SetReplicas("eu-1", 3, 4), good.placements[WEB]["eu-1"])).ok
            return found

        for state, took_s in asyncio.run(cycles()):
            assert took_s < 3.0
            assert state.clusters["us-1"].seen_s == good.clusters["us-1"].seen_s
            assert "us-1" in state.clusters["us-1"].error
            assert state.placements[WEB]["us-1"] == good.placements[WEB]["us-1"]
            assert state.clusters["eu-1"].seen_s != good.clusters["eu-1"].seen_s
            assert state.clusters["eu-1"].error == ""
    finally:
        apiserver.resume()

    def back() -> bool:
        state = world.observe()
        return state.clusters["us-1"].error == "" and state.placements[WEB]["us-1"].observed_s > time.time() - 5

    wait_for(back, "us-1 back in sight", 20)


def test_an_expired_token_is_read_anew_once(fleet: Fleet) -> None:
    plane = fleet.planes["eu-1"]
    file = plane.service_account("ctl", cluster_role="cluster-admin")
    world = World(fleet, eu_1=file)
    assert world.observe().clusters["eu-1"].error == ""
    rotate_account_key(plane.credentials)
    plane.restart("apiserver")
    plane.restart("kcm")
    state = world.observe()
    assert "eu-1: HTTP 401" in state.clusters["eu-1"].error
    assert state.placements[WEB]["eu-1"].ready == 3  # the last known
    assert state.clusters["us-1"].error == ""
    plane.service_account("ctl", cluster_role="cluster-admin")  # a new token in the same file
    wait_for(lambda: world.observe().clusters["eu-1"].error == "", "eu-1 back by the new token", 15)
    world.clients.close()


def test_a_bad_kubeconfig_takes_out_its_own_cluster_only(fleet: Fleet, tmp_path: Path) -> None:
    (tmp_path / "bad").write_text("kind: Config\n")
    world = World(fleet, eu_1=tmp_path / "bad", us_1=tmp_path / "none")
    state = world.observe()
    assert "can't be used" in state.clusters["eu-1"].error
    assert "can't be used" in state.clusters["us-1"].error
    assert state.clusters["us-1"].seen_s is None
    assert set(state.placements[WEB]) == {"ap-1"}
    world.clients.close()
