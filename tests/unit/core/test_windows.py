"""Windows: when they are open, over the change of the clocks too, and what they change."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import given
from hypothesis import strategies as st

from rebalancer.core import windows
from rebalancer.core.model import Price, PriceWindow, Window
from rebalancer.core.policy import PolicyWindow, Weights
from tests.unit.core.fleet import NOW, POLICY, REGIONS, WEB, cluster_state, placement, plan, snapshot
from tests.unit.core.test_planning import CALM, SETTLED, reasons

BERLIN = ZoneInfo("Europe/Berlin")
HOUR_S = 3600.0
ALWAYS = Window("0 0 * * *", ZoneInfo("UTC"), 86_400.0)


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


@pytest.mark.parametrize(
    ("what", "schedule", "hours", "when", "is_open"),
    [
        ("at its first moment", "0 22 * * *", 8, "2026-11-03T22:00:00+01:00", True),
        ("a second before", "0 22 * * *", 8, "2026-11-03T21:59:59+01:00", False),
        ("past midnight", "0 22 * * *", 8, "2026-11-04T05:59:59+01:00", True),
        ("its end is no part of it", "0 22 * * *", 8, "2026-11-04T06:00:00+01:00", False),
        ("in its own zone, not in ours", "0 22 * * *", 1, "2026-11-03T22:30:00+00:00", False),
        ("Sunday is 0", "0 3 * * 0", 1, "2026-11-08T03:10:00+01:00", True),
        ("Monday is no Sunday", "0 3 * * 0", 1, "2026-11-09T03:10:00+01:00", False),
        ("day of month or day of week", "0 0 13 * 5", 1, "2026-11-20T00:30:00+01:00", True),
        ("a start in the skipped hour comes right after it", "30 2 * * *", 1, "2026-03-29T03:20:00+02:00", True),
        ("and lasts no longer for that", "30 2 * * *", 1, "2026-03-29T04:00:00+02:00", False),
        ("a start in the doubled hour comes the first time", "30 2 * * *", 0.5, "2026-10-25T02:45:00+02:00", True),
        ("and not the second time", "30 2 * * *", 0.5, "2026-10-25T02:45:00+01:00", False),
        ("the night of the change is an hour longer, the window is not", "0 22 * * *", 8,
         "2026-10-25T05:30:00+01:00", False),
        ("a leap day that was years ago", "0 0 29 2 *", 1, "2026-11-03T00:00:00+01:00", False),
    ],
)  # fmt: skip
def test_a_window_is_open_as_its_clock_on_the_wall_says(
    what: str, schedule: str, hours: float, when: str, is_open: bool
) -> None:
    assert windows.is_open(Window(schedule, BERLIN, hours * HOUR_S), at(when)) is is_open, what


@given(
    st.sampled_from(["30 2 * * *", "0 * * * *", "15 1,2,3 * * *", "0 0 * * 0", "45 23 1 * *"]),
    st.sampled_from(["2026-03-29T03:00:00+02:00", "2026-10-25T03:00:00+01:00"]),
    st.integers(-36 * 60, 36 * 60),
    st.sampled_from([60.0, 1800.0, HOUR_S, 8 * HOUR_S, 72 * HOUR_S]),
)
def test_it_is_open_for_its_duration_after_each_start(
    schedule: str, change: str, minutes: int, duration_s: float
) -> None:
    now = datetime.fromtimestamp(at(change) + 60 * minutes, BERLIN)
    starts = []
    for start in CronSim(schedule, (now.astimezone(UTC) - timedelta(days=40)).astimezone(BERLIN)):
        if start.timestamp() > now.timestamp():
            break
        starts.append(start.timestamp())
    expected = bool(starts) and now.timestamp() - starts[-1] < duration_s
    assert windows.is_open(Window(schedule, BERLIN, duration_s), now.timestamp()) is expected


def test_of_two_open_windows_the_later_wins_and_what_neither_names_stays() -> None:
    cheap, near = Weights(cost=1.0), Weights(latency=1.0)
    shut = Window("0 0 1 1 *", BERLIN, 60.0)
    policy = replace(POLICY, min_replicas=3, windows=(
        PolicyWindow(ALWAYS, weights=cheap, min_replicas=5), PolicyWindow(ALWAYS, weights=near),
        PolicyWindow(shut, freeze=True),
    ))  # fmt: skip
    found = windows.in_force(policy, NOW)
    assert (found.weights, found.min_replicas, found.frozen) == (near, 5, False)
    assert windows.in_force(replace(policy, windows=()), NOW).min_replicas == 3


def test_prices_are_multiplied_by_all_open_windows_and_unknown_ones_stay_unknown() -> None:
    found = windows.price_at(Price(0.1, None, 0.02), (PriceWindow(ALWAYS, 0.5), PriceWindow(ALWAYS, 0.5)), NOW)
    assert found.cpu_core_hour == pytest.approx(0.025)
    assert (found.memory_gib_hour, found.egress_gib) == (None, 0.02)


def test_a_price_window_moves_what_is_placed_by_cost() -> None:
    policy = replace(POLICY, weights=Weights(cost=1.0), strategy="CostOptimized")
    origins = {"eu": 19.0, "us": 19.0}
    night = {"ap-1": cluster_state("ap-1", price_windows=(PriceWindow(ALWAYS, 0.01),))}
    by_day = plan(snapshot({"eu-1": 0, "us-1": 4, "ap-1": 0}, origins), origins, policy, CALM)[0]
    by_night = plan(snapshot({"eu-1": 0, "us-1": 4, "ap-1": 0}, origins, states=night), origins, policy, CALM)[0]
    assert by_day.workloads[WEB].target["us-1"] == 4
    assert by_night.workloads[WEB].target["ap-1"] == 4


FROZEN = replace(POLICY, windows=(PolicyWindow(ALWAYS, freeze=True),))


def test_in_a_freeze_nothing_moves_and_nothing_is_taken_away() -> None:
    far = {"eu": 0.0, "us": 0.0, "ap": 76.0}
    found = plan(snapshot({"eu-1": 8, "us-1": 0, "ap-1": 0}, far), far, FROZEN, CALM)[0]
    assert found.actions == ()
    assert ("freeze", "") in reasons(found)
    assert "window 0 0 * * * UTC is open" in found.workloads[WEB].lines
    less = {"eu": 5.0, "us": 5.0, "ap": 5.0}
    found = plan(snapshot(SETTLED, less), less, FROZEN, CALM)[0]
    assert found.actions == ()
    assert ("freeze", "") in reasons(found)


def test_in_a_freeze_a_drain_waits_and_is_told() -> None:
    even = {"eu": 38.0, "us": 38.0, "ap": 38.0}
    found = plan(snapshot(SETTLED, even, states={"eu-1": cluster_state("eu-1", drain=True)}), even, FROZEN, CALM)[0]
    assert not [a for a in found.actions if a.source == "eu-1"]
    assert ("freeze", "eu-1") in reasons(found)


def test_in_a_freeze_growth_and_failover_go_on() -> None:
    more = {"eu": 150.0, "us": 38.0, "ap": 38.0}
    grown = plan(snapshot(SETTLED, more), more, FROZEN, CALM)[0]
    assert [a.reason for a in grown.actions] == ["demand-up"]
    gone = cluster_state("ap-1", seen_s=NOW - 900)
    even = {"eu": 38.0, "us": 38.0, "ap": 38.0}
    lost = snapshot({**SETTLED, "ap-1": placement("ap-1", 4, observed_s=NOW - 900)}, even, states={"ap-1": gone})
    replaced = plan(lost, even, FROZEN, replace(CALM, clocks={}))[0]
    assert {a.reason for a in replaced.actions} <= {"failover", "demand-up"}


def test_a_burst_that_is_known_before_wants_replicas_where_it_comes_from() -> None:
    even = {"eu": 38.0, "us": 38.0, "ap": 38.0}
    burst = replace(POLICY, windows=(PolicyWindow(ALWAYS, origin_factors={"ap": 3.0}),))
    calm = plan(snapshot(SETTLED, even), even, POLICY, CALM)[0].workloads[WEB]
    found = plan(snapshot(SETTLED, even), even, burst, CALM)[0].workloads[WEB]
    assert found.demand == pytest.approx(calm.demand * 5 / 3)
    assert found.target["ap-1"] > calm.target["ap-1"]
    assert {c: found.target[c] for c in REGIONS if c != "ap-1"} == {c: calm.target[c] for c in REGIONS if c != "ap-1"}
