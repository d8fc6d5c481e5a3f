"""(e) A member's API server hangs: the cycle of the others goes on within its deadline."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.scenarios.stage import Controller, Mesh, deploy, member, policy, remove, replicas
from tests.stack.fleet import Fleet
from tests.stack.processes import wait_for

pytestmark = [pytest.mark.stack, pytest.mark.scenario, pytest.mark.timeout(600)]
DEADLINE_S = 10.0


def test_a_hanging_api_server_stops_nobody_else(stage: tuple[Fleet, Mesh], tmp_path: Path) -> None:
    fleet, _ = stage
    deploy(fleet, "hang", {"us-1": 3, "ap-1": 1})
    fleet.users.wait_requests("default/hang", 1000, timeout_s=60)
    documents = [*(member(fleet, n) for n in fleet.planes), policy("hang", replicas={"min": 4, "max": 8})]
    hung = fleet.planes["ap-1"].parts["apiserver"]
    # Only observing until the server hangs, so that all moves fall into the time without it.
    watcher = Controller(fleet, tmp_path / "w", documents, act=False).start()
    watcher.stop()
    controller = Controller(fleet, tmp_path / "c", documents)
    try:
        controller.start()
        hung.pause()
        wait_for(
            lambda: controller.metric('rebalancer_cluster_sight{cluster="ap-1",region="asia-southeast1"}') == 0.5,
            "ap-1 to be suspect", 90, owner=controller.process,
        )  # fmt: skip

        def moved() -> bool:
            plane = fleet.planes
            counts = {
                c: int(plane[c].api.get("/apis/apps/v1/namespaces/default/deployments/hang")["spec"]["replicas"])
                for c in ("us-1", "eu-1")
            }
            return counts == {"us-1": 0, "eu-1": 3}

        wait_for(moved, "the others' moves", 120, poll_s=0.5, owner=controller.process)
        durations = [float(s) for s in re.findall(r"cycle \w+ in ([0-9.]+) s", controller.log())]
        assert durations and max(durations) < DEADLINE_S, durations
        hung.resume()
        wait_for(
            lambda: controller.metric('rebalancer_cluster_sight{cluster="ap-1",region="asia-southeast1"}') == 1.0,
            "ap-1 to be seen again", 60, owner=controller.process,
        )  # fmt: skip
        assert replicas(fleet, "hang")["ap-1"] == 1
    finally:
        hung.resume()
        controller.stop()
        remove(fleet, "hang")
