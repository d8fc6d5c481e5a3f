"""(f) A canary in waves: healthy goes to the end, bad in the second wave goes back everywhere, blind holds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from rebalancer import install
from tests.scenarios.stage import GROUP, Controller, Mesh, deploy, member, policy, remove
from tests.stack.fleet import Fleet
from tests.stack.processes import wait_for

pytestmark = [pytest.mark.stack, pytest.mark.scenario, pytest.mark.timeout(600)]
COUNTS = {"eu-1": 5, "us-1": 5, "ap-1": 5}
SELECTOR = 'ingress_requests_total{namespace="default",service="canary"}'
ROLLBACK_S = 30.0


def rollout() -> dict[str, Any]:
    return {
        "apiVersion": GROUP, "kind": "CanaryRollout", "metadata": {"name": "canary", "namespace": "default"},
        "spec": {
            "workloadRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "canary"},
            "strategy": {"canary": {
                "steps": [{"setWeight": w} for w in (5, 20, 50, 100)],
                "scaleDownDelaySeconds": 2,
                "analysis": {
                    "warmupSeconds": 2, "minStepSeconds": 3, "maxStepSeconds": 300,
                    "metrics": [{
                        "name": "error-rate", "type": "Ratio", "total": SELECTOR,
                        "bad": SELECTOR.replace("}", ',code=~"5.."}'), "versionLabel": "pod_template_hash",
                        "maxErrorRate": 0.01,
                    }],
                },
            }},
            "placement": {"waves": [
                {"name": "first", "clusters": ["eu-1"], "bakeSeconds": 2},
                {"name": "rest", "clusters": ["us-1", "ap-1"]},
            ]},
        },
    }  # fmt: skip


@pytest.fixture
def canary(stage: tuple[Fleet, Mesh], tmp_path: Path) -> Iterator[tuple[Fleet, Controller]]:
    """The service in all clusters, everything declared on the hub, and a controller that acts."""
    fleet, _ = stage
    api = fleet.hub.api
    for document in yaml.safe_load_all(install.render_crds()):
        api.apply(document)
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "rebalancer-system"}}
    api.apply(namespace)
    wait_for(lambda: api.get(f"/apis/{GROUP}/canaryrollouts")["kind"] == "CanaryRolloutList", "the kinds", 30)
    deploy(fleet, "canary", COUNTS, image="registry.example/canary:v1")
    members = [member(fleet, n) for n in fleet.planes]
    for document in (
        *members,
        policy("canary", replicas={"min": 15, "max": 15}, perCluster={"min": 5, "max": 5}, capacityPerReplica=60),
        rollout(),
    ):
        api.create(document)
    hub = {"hub": {"kubeconfigPath": str(fleet.hub.kubeconfig)}}
    controller = Controller(fleet, tmp_path / "c", [], spec=hub).start()
    try:
        yield fleet, controller
    finally:
        controller.stop()
        fleet.users.set_errors()
        fleet.users.vanish()
        remove(fleet, "canary")


def status(fleet: Fleet) -> dict[str, Any]:
    found = fleet.hub.api.get(f"/apis/{GROUP}/namespaces/default/canaryrollouts/canary")
    return dict(found.get("status") or {})


def state(fleet: Fleet) -> str:
    return str(status(fleet).get("state", ""))


def edit(fleet: Fleet, version: str) -> None:
    """GitOps edits the template in every cluster."""
    container = {"name": "app", "image": f"registry.example/canary:{version}"}
    patch = {"spec": {"template": {"spec": {"containers": [container]}}}}
    for plane in fleet.planes.values():
        plane.api.patch("/apis/apps/v1/namespaces/default/deployments/canary", patch)


def running(fleet: Fleet, version: str) -> dict[str, int]:
    """Ready pods of a version by cluster."""
    return {
        name: sum(
            1
            for pod in plane.ready_pods()
            if pod["spec"]["containers"][0]["image"] == f"registry.example/canary:{version}"
        )
        for name, plane in fleet.planes.items()
    }


def test_canary(canary: tuple[Fleet, Controller]) -> None:
    fleet, controller = canary
    wait_for(
        lambda: all(
            p.api.get("/apis/apps/v1/namespaces/default/deployments/canary")["spec"].get("paused")
            for p in fleet.planes.values()
        ),
        "the idle rollout to hold the Deployments", 60, owner=controller.process,
    )  # fmt: skip
    _healthy(fleet, controller)
    _bad_in_the_second_wave(fleet, controller)
    _blind(fleet, controller)


def _healthy(fleet: Fleet, controller: Controller) -> None:
    """An edit while the rollout is idle is withheld, goes through the canary, and reaches all pods by itself."""
    edit(fleet, "v2")
    wait_for(lambda: running(fleet, "v2")["eu-1"] > 0, "the first canary", 60, poll_s=0.2, owner=controller.process)
    seen = running(fleet, "v2")
    assert seen["us-1"] == seen["ap-1"] == 0 and seen["eu-1"] <= 2, f"the edit was not withheld: {seen}"
    assert running(fleet, "v1") == COUNTS, "a stable pod was touched"
    wait_for(lambda: "rollout-in-progress" in controller.cli("plan").stdout, "the planner to leave it alone", 30)
    wait_for(lambda: state(fleet) == "Completed", "completion", 300, poll_s=0.5, owner=controller.process)
    assert running(fleet, "v2") == COUNTS and sum(running(fleet, "v1").values()) == 0


def _bad_in_the_second_wave(fleet: Fleet, controller: Controller) -> None:
    """A revision that fails one request in ten only in the second wave's clusters goes back in all clusters."""
    image = "registry.example/canary:v3"
    fleet.users.set_errors(*({"ratio": 0.1, "image": image, "cluster": c} for c in ("us-1", "ap-1")))
    edit(fleet, "v3")
    wait_for(lambda: state(fleet) == "RollingBack", "the rollback", 300, poll_s=0.2, owner=controller.process)
    wait_for(lambda: sum(running(fleet, "v3").values()) == 0, "the canary to go everywhere", 30, poll_s=0.1)
    gone_s = time.time()
    arms = fleet.users.service_truth("default/canary")["arms"]
    bad = [
        arm["first_bad_s"]
        for cluster in ("us-1", "ap-1")
        for arm in arms[cluster].values()
        if arm["image"] == image and arm["first_bad_s"] is not None
    ]
    assert bad, "the second wave was never reached"
    took_s = gone_s - min(bad)
    assert took_s <= ROLLBACK_S, took_s
    assert running(fleet, "v2") == COUNTS, "a stable pod was touched"
    wait_for(lambda: state(fleet) == "RolledBack", "the end of the rollback", 30)
    fleet.users.set_errors()


def _blind(fleet: Fleet, controller: Controller) -> None:
    """A revision whose metrics vanish neither advances nor goes back, until somebody aborts."""
    edit(fleet, "v4")
    wait_for(lambda: running(fleet, "v4")["eu-1"] > 0, "the canary", 60, poll_s=0.2, owner=controller.process)
    fleet.users.vanish({"service": "default/canary", "family": "ingress_requests_total"})
    wait_for(lambda: status(fleet).get("hold") == "NoData", "the hold", 60, poll_s=0.5, owner=controller.process)
    held = running(fleet, "v4")
    until = time.monotonic() + 20.0

    def watched() -> bool:
        assert state(fleet) not in ("RollingBack", "RolledBack", "Promoting"), status(fleet)
        return time.monotonic() > until

    wait_for(watched, "20 s of holding", 40, poll_s=1.0)
    assert running(fleet, "v4") == held
    done = controller.cli("rollout", "abort", "default/canary")
    assert done.returncode == 0, done.stderr
    wait_for(lambda: sum(running(fleet, "v4").values()) == 0, "the aborted canary to go", 30)
    assert "RolledBack" in controller.cli("rollout", "get", "default/canary").stdout
