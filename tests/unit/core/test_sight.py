"""Loss of sight: one clock per cluster, a brake for the fleet, and failback only after a stable while."""

from __future__ import annotations

import pytest

from rebalancer.core.model import Sight
from rebalancer.core.sight import Clock, braked, judge, tick, trusted_again

LOST_AFTER_S, FAILBACK_S = 300.0, 900.0


def live(looks: list[tuple[float, bool]], clocks: dict[str, Clock] | None = None) -> dict[str, Clock]:
    """Lets one cluster answer or not at each time."""
    seen: float | None = None
    clocks = clocks or {}
    for at, answers in looks:
        seen = at if answers else seen
        clocks = tick(clocks, {"c": seen}, at)
    return clocks


def every(first: int, last: int, answers: bool, step: int = 10) -> list[tuple[float, bool]]:
    return [(float(t), answers) for t in range(first, last, step)]


@pytest.mark.parametrize(
    ("age", "brake", "sight"),
    [(0, False, Sight.READY), (30, False, Sight.READY), (31, False, Sight.SUSPECT), (300, False, Sight.SUSPECT),
     (301, False, Sight.LOST), (301, True, Sight.SUSPECT), (9e9, True, Sight.SUSPECT)],
)  # fmt: skip
def test_a_cluster_is_suspect_then_lost_unless_the_brake_holds(age: float, brake: bool, sight: Sight) -> None:
    assert judge(Clock(0.0, 0.0), LOST_AFTER_S, age, brake=brake) is sight


@pytest.mark.parametrize(
    ("out", "all_of_them", "holds"),
    [(0, 3, False), (1, 3, False), (2, 3, True), (1, 2, False), (2, 2, True), (1, 1, False)],
)
def test_the_brake_holds_where_most_clusters_vanish_at_once(out: int, all_of_them: int, holds: bool) -> None:
    clocks = {str(i): Clock(0.0 if i < out else 100.0) for i in range(all_of_them)}
    assert braked(clocks, 100.0) is holds


def test_a_short_blink_changes_nothing() -> None:
    clocks = live([*every(0, 100, True), *every(100, 300, False), *every(300, 310, True)])
    assert trusted_again(clocks["c"], LOST_AFTER_S, FAILBACK_S, 300.0)


def test_after_a_loss_nothing_new_goes_there_until_it_was_seen_for_the_whole_failback_time() -> None:
    clocks = live([*every(0, 100, True), *every(100, 600, False), *every(600, 1500, True)])
    assert not trusted_again(clocks["c"], LOST_AFTER_S, FAILBACK_S, 1490.0)
    clocks = live(every(1500, 1510, True), clocks)
    assert trusted_again(clocks["c"], LOST_AFTER_S, FAILBACK_S, 1500.0)


def test_a_blink_during_failback_does_not_wipe_the_loss_out() -> None:
    clocks = live([*every(0, 100, True), *every(100, 600, False), *every(600, 800, True), *every(800, 860, False),
                   *every(860, 900, True)])  # fmt: skip
    assert not trusted_again(clocks["c"], LOST_AFTER_S, FAILBACK_S, 890.0)


def test_a_cluster_that_comes_and_goes_every_four_minutes_stays_out() -> None:
    clocks: dict[str, Clock] = live([*every(0, 100, True), *every(100, 600, False)])
    for start in range(600, 6000, 480):
        clocks = live(every(start, start + 240, True), clocks)
        assert not trusted_again(clocks["c"], LOST_AFTER_S, FAILBACK_S, start + 230.0)
        seen = start + 230.0
        for at in range(start + 240, start + 480, 10):
            clocks = tick(clocks, {"c": seen}, float(at))


def test_the_clock_survives_a_restart_in_the_middle_of_an_outage() -> None:
    before = live([*every(0, 100, True), *every(100, 300, False)])
    kept = {"c": Clock(before["c"].seen_s, before["c"].back_s, before["c"].gone_s)}
    after = tick(kept, {"c": None}, 350.0)
    assert judge(after["c"], LOST_AFTER_S, 391.0, brake=False) is Sight.LOST


def test_a_cluster_that_never_answered_is_not_lost_at_the_first_look_but_after_lost_after() -> None:
    clocks = tick({}, {"c": None}, 0.0)
    assert judge(clocks["c"], LOST_AFTER_S, 0.0, brake=False) is Sight.READY
    clocks = tick(clocks, {"c": None}, 301.0)
    assert judge(clocks["c"], LOST_AFTER_S, 301.0, brake=False) is Sight.LOST
    assert not trusted_again(clocks["c"], LOST_AFTER_S, FAILBACK_S, 301.0)


def test_a_cluster_that_left_the_configuration_has_no_clock() -> None:
    assert tick({"old": Clock(0.0)}, {"c": 5.0}, 5.0) == {"c": Clock(5.0, 5.0)}
