"""What /healthz and the log say of rollouts: whether they tick, and whether this controller acts."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rebalancer.core.rollout import Spec, Status
from rebalancer.rollouts import OBSERVING, RolloutReport, TickReport
from rebalancer.service import Service


class Clock:
    at = 1000.0

    def now(self) -> float:
        return self.at


def service() -> tuple[Service, Any]:
    """A service whose cycle ran at 1000 and whose last good tick was then, too."""
    spec = SimpleNamespace(
        cycle=SimpleNamespace(interval=600.0, deadline=10.0), rollouts=SimpleNamespace(interval=2.0)
    )  # fmt: skip
    one = cast("Any", Service(cast("Any", SimpleNamespace(spec=spec)), act=True))
    one._world = SimpleNamespace(clock=Clock())
    one._started_s = one._last_s = one._ticked_s = 1000.0
    return one, one._world.clock


def test_health_says_when_no_rollout_tick_ended_well_for_half_a_minute() -> None:
    one, clock = service()
    clock.at = 1029.0
    assert one.health()[0]
    clock.at = 1031.0
    good, text = one.health()
    assert not good
    assert "no rollout tick ended well for 31 s" in text


def test_health_gives_slow_ticks_three_intervals() -> None:
    one, clock = service()
    cast("Any", one)._live.spec.rollouts.interval = 20.0
    clock.at = 1059.0
    assert one.health()[0]
    clock.at = 1061.0
    assert not one.health()[0]


def test_a_standby_says_that_it_waits_for_the_lease_and_without_act_that_it_observes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    report = TickReport(1.0, (RolloutReport(Spec("shop", "web", "web"), Status(), problem=OBSERVING),))
    for act in (True, False):
        Service(cast("Any", None), act=act)._tell_rollouts(report)
    assert [r.getMessage() for r in caplog.records] == [
        "rollout shop/web Idle: waits for the lease",
        "rollout shop/web Idle: only observing",
    ]
