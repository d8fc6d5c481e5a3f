"""(d) The controller is killed with -9 in the middle of a migration: the next finishes it, nothing is done twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.stage import Controller, Mesh, deploy, intents, member, policy, remove, replicas, scale_writes
from tests.stack.fleet import Fleet
from tests.stack.processes import wait_for

pytestmark = [pytest.mark.stack, pytest.mark.scenario, pytest.mark.timeout(600)]


def test_the_next_controller_finishes_the_move(stage: tuple[Fleet, Mesh], tmp_path: Path) -> None:
    fleet, _ = stage
    deploy(fleet, "moving", {"us-1": 3})
    fleet.users.wait_requests("default/moving", 1000, timeout_s=60)
    fleet.planes["eu-1"].set_start_delay(8.0)
    old = {c: len(scale_writes(fleet, c, "moving")) for c in fleet.planes}  # of an earlier run on this fleet
    documents = [*(member(fleet, n) for n in fleet.planes), policy("moving", replicas={"min": 3, "max": 3})]
    first = Controller(fleet, tmp_path / "c", documents).start()
    try:
        # The source still has all its replicas, the target is raised but not ready: the middle of the move.
        wait_for(
            lambda: len(intents(fleet, "moving")) == 2 and replicas(fleet, "moving")["eu-1"] > 0,
            "the middle of a move", 60, poll_s=0.2, owner=first.process,
        )  # fmt: skip
        first.process.kill()
        middle = replicas(fleet, "moving")
        assert middle["us-1"] == 3 and middle["eu-1"] > 0, middle
        assert len(intents(fleet, "moving")) == 2
        assert scale_writes(fleet, "us-1", "moving")[old["us-1"] :] == []
        fleet.users.mark()
    finally:
        first.stop()
    second = Controller(fleet, tmp_path / "c2", documents).start()
    try:
        wait_for(
            lambda: replicas(fleet, "moving")["us-1"] == 0 and not intents(fleet, "moving"), "the move to end", 120,
            owner=second.process,
        )  # fmt: skip
        raised, cut = (scale_writes(fleet, c, "moving")[old[c] :] for c in ("eu-1", "us-1"))
        assert raised == sorted(set(raised)), f"something was done twice in eu-1: {raised}"
        assert cut == sorted(set(cut), reverse=True), f"something was done twice in us-1: {cut}"
        assert fleet.users.service_truth("default/moving", 10)["min_total_ready"] >= 3
    finally:
        second.stop()
        fleet.planes["eu-1"].set_start_delay(0.0)
        remove(fleet, "moving")
