"""(b) A lossy link is weighed by the traffic that crosses it, taints only where most links are bad, and clears."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.scenarios.stage import Controller, Mesh, deploy, member, policy, remove, replicas, scale_writes
from tests.stack.fleet import Fleet
from tests.stack.processes import wait_for

pytestmark = [pytest.mark.stack, pytest.mark.scenario, pytest.mark.timeout(600)]
TAINT = 'rebalancer_cluster_taint{cluster="eu-1",effect="NoSchedule",key="network-quality",value="poor"}'
LOSSY = 'rebalancer_link_state{dst_cluster="ap-1",src_cluster="eu-1",state="lossy"}'
NO_ASIA = {"residency": {"regions": ["europe-west1", "us-east4"]}, "replicas": {"min": 3, "max": 3}}


def test_a_lossy_link(stage: tuple[Fleet, Mesh], tmp_path: Path) -> None:
    fleet, mesh = stage
    deploy(fleet, "crossing", {"eu-1": 3})
    deploy(fleet, "staying", {"eu-1": 3})
    for name in ("crossing", "staying"):
        fleet.users.wait_requests(f"default/{name}", 500, timeout_s=60)
    policies = [policy("crossing", **NO_ASIA), policy("staying", **NO_ASIA)]
    controller = Controller(fleet, tmp_path / "c", [*(member(fleet, n) for n in fleet.planes), *policies]).start()
    try:
        wait_for(
            lambda: controller.metric(LOSSY) == 0.0 and controller.metric(TAINT) is None, "a clean map", 60,
            owner=controller.process,
        )  # fmt: skip
        assert replicas(fleet, "crossing") == {"eu-1": 3, "us-1": 0, "ap-1": 0}
        began = time.monotonic()
        mesh.link("eu-1", "ap-1", loss=0.2)
        # A global load balancer sees slow requests on that way too, and prefers another where there is one.
        fleet.users.avoid(**{"asia-southeast1|eu-1": 600.0})
        wait_for(lambda: controller.metric(LOSSY) == 1.0, "the link to be lossy", 120, owner=controller.process)
        shown = controller.cli("network", "eu-1")
        assert shown.returncode == 0, shown.stderr
        row = next(line for line in shown.stdout.splitlines() if "eu-1" in line and "ap-1" in line)
        assert "lossy" in row, shown.stdout
        # What crosses the link moves off it, because 20 % loss costs more than the longer way; what does not, stays.
        wait_for(lambda: replicas(fleet, "crossing")["eu-1"] == 0, "the crossing service to move", 120, poll_s=0.5)
        assert replicas(fleet, "staying") == {"eu-1": 3, "us-1": 0, "ap-1": 0}
        assert controller.metric(TAINT) is None, "one bad link must not taint a cluster"
        mesh.link("eu-1", "us-1", loss=0.2)
        wait_for(lambda: controller.metric(TAINT) == 1.0, "the taint", 120, poll_s=0.5, owner=controller.process)
        assert time.monotonic() - began < 300
        assert replicas(fleet, "staying") == {"eu-1": 3, "us-1": 0, "ap-1": 0}, "NoSchedule bars new replicas only"
        for other in ("us-1", "ap-1"):
            mesh.link("eu-1", other, loss=0.0)
        fleet.users.avoid()
        wait_for(
            lambda: controller.metric(TAINT) is None and controller.metric(LOSSY) == 0.0, "the end of it all", 240,
            poll_s=0.5, owner=controller.process,
        )  # fmt: skip
        wait_for(lambda: replicas(fleet, "crossing")["eu-1"] == 3, "the way back", 120, poll_s=0.5)
        changes = taint_changes(controller, 20.0)
        assert changes == 0, "the taint flapped"
        # Out and back, nothing more: every number was written at most once on each way.
        out = scale_writes(fleet, "eu-1", "crossing")
        assert out.count(0) == 1, out
        assert scale_writes(fleet, "eu-1", "staying") == []
    finally:
        for other in ("us-1", "ap-1"):
            mesh.link("eu-1", other, loss=0.0)
        fleet.users.avoid()
        controller.stop()
        remove(fleet, "crossing")
        remove(fleet, "staying")


def taint_changes(controller: Controller, watch_s: float) -> int:
    """How often the taint came or went while it was watched."""
    seen = [controller.metric(TAINT)]
    until = time.monotonic() + watch_s

    def over() -> bool:
        now = controller.metric(TAINT)
        if now != seen[-1]:
            seen.append(now)
        return time.monotonic() > until

    wait_for(over, "the end of the watch", watch_s + 10, poll_s=1.0)
    return len(seen) - 1
