"""(a) Replicas that sit far from their users are moved to them, for the printed reason, and never fewer are ready."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.stage import Controller, Mesh, member, policy, replicas
from tests.stack.api import deployment, service
from tests.stack.fleet import Fleet
from tests.stack.processes import wait_for

pytestmark = [pytest.mark.stack, pytest.mark.scenario, pytest.mark.timeout(600)]


def test_replicas_move_to_their_users(stage: tuple[Fleet, Mesh], tmp_path: Path) -> None:
    fleet, _ = stage
    for cluster in fleet.planes:
        fleet.deploy(deployment("far", replicas=8 if cluster == "us-1" else 0), (cluster,))
        fleet.deploy(service("far"), (cluster,))
    fleet.planes["us-1"].wait_ready_pods(8, selector="app=far")
    fleet.users.wait_requests("default/far", 2000, timeout_s=60)
    # The users need all eight: a spare replica has no reason to move, it goes with the next decrease.
    documents = [*(member(fleet, n) for n in fleet.planes), policy("far", capacityPerReplica=26)]
    controller = Controller(fleet, tmp_path / "c", documents)
    wait_for(
        lambda: controller.plan()["workloads"]["default/far"]["target"]["us-1"] == 0,
        "a plan that leaves us-1, once the rates are those of a whole window", 60, poll_s=0.5,
    )  # fmt: skip
    assert "closer-to-users" in controller.cli("plan").stdout
    before_ms = fleet.users.service_truth("default/far", 10)["served_latency_ms"]
    fleet.users.mark()
    controller.start()
    try:
        wait_for(lambda: replicas(fleet, "far")["us-1"] == 0, "us-1 is left", 150, poll_s=0.5, owner=controller.process)
        wait_for(
            lambda: fleet.users.service_truth("default/far", 10)["served_latency_ms"] < before_ms / 5,
            "latency fell", 30, poll_s=0.5,
        )  # fmt: skip
        truth = fleet.users.service_truth("default/far", 10)
        assert truth["min_total_ready"] >= 8, truth
        explained = controller.cli("explain", "default/far").stdout
        assert "eu-1" in explained
        assert 'reason="closer-to-users"' in controller.get("/metrics")
    finally:
        controller.stop()
