"""(c) One Prometheus dies: the view says which cluster and since when; nothing is decreased because of it."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.scenarios.conftest import AP, EU
from tests.scenarios.stage import Controller, Mesh, deploy, member, policy, remove, replicas
from tests.stack.fleet import Fleet
from tests.stack.processes import wait_for

pytestmark = [pytest.mark.stack, pytest.mark.scenario, pytest.mark.timeout(600)]
STABILIZATION_S = 20.0


def test_a_dead_prometheus_decreases_nothing(stage: tuple[Fleet, Mesh], tmp_path: Path) -> None:
    fleet, _ = stage
    deploy(fleet, "blind", {"eu-1": 2, "us-1": 2, "ap-1": 2})
    fleet.users.wait_requests("default/blind", 1000, timeout_s=60)
    controller = Controller(fleet, tmp_path / "c", [*(member(fleet, n) for n in fleet.planes), policy("blind")]).start()
    try:
        wait_for(
            lambda: controller.metric('rebalancer_view_completeness{cluster="us-1",state="complete"}') == 1.0,
            "a complete view", 30, owner=controller.process,
        )  # fmt: skip
        fleet.prometheus["us-1"].process.kill()
        died_s = time.time()
        wait_for(
            lambda: controller.metric('rebalancer_view_completeness{cluster="us-1",state="complete"}') == 0.0,
            "the gap to be seen", 30, owner=controller.process,
        )  # fmt: skip
        before = replicas(fleet, "blind")
        # Asia goes quiet, Europe grows: the first asks for a decrease that nobody may make, the second for more.
        fleet.users.set_rates("default/blind", {AP: 1.0, EU: 260.0})
        wait_for(
            lambda: replicas(fleet, "blind")["eu-1"] > before["eu-1"], "the others go on", 60,
            owner=controller.process,
        )  # fmt: skip
        lowest = dict(replicas(fleet, "blind"))
        until = time.monotonic() + STABILIZATION_S + 10.0

        def watched() -> bool:
            for cluster, count in replicas(fleet, "blind").items():
                lowest[cluster] = min(lowest[cluster], count)
            return time.monotonic() > until

        wait_for(watched, "longer than the stabilisation window", STABILIZATION_S + 30, poll_s=1.0)
        assert lowest["us-1"] >= before["us-1"], "decreased in the cluster that is not seen"
        assert sum(lowest.values()) >= sum(before.values()), "decreased because of it"
        shown = controller.cli("plan").stdout
        line = next(text for text in shown.splitlines() if "view of us-1" in text)
        told = re.search(r"since (\S+ \S+Z)", line)
        assert told, line
        since_s = datetime.strptime(told[1], "%Y-%m-%d %H:%M:%SZ").replace(tzinfo=UTC).timestamp()
        # Thanos looks at its stores every few seconds, so a moment after the death, and never before the last sample.
        assert died_s - 15 <= since_s <= died_s + 30, (line, died_s)
        fleet.prometheus["us-1"].restart()
        wait_for(
            lambda: controller.metric('rebalancer_view_completeness{cluster="us-1",state="complete"}') == 1.0,
            "sight again", 60, owner=controller.process,
        )  # fmt: skip
    finally:
        controller.stop()
        if not fleet.prometheus["us-1"].process.running:
            fleet.prometheus["us-1"].restart()
        remove(fleet, "blind")
