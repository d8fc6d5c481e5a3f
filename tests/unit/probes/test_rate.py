"""The schedule: never above the budget, a fair share for every path, a closer look at what changed."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.rate import BOOST, BOOST_S, Schedule, changed, shares


def play(
    schedule: Schedule[int], until_s: float, boosts: dict[float, list[int]] | None = None, tick_s: float = 0.005
) -> list[tuple[float, int]]:
    """Lets a schedule run as the sender does, with its own wishes about when to wake."""
    sent, now_s, pending = [], 0.0, sorted((boosts or {}).items())
    while now_s < until_s:
        while pending and pending[0][0] <= now_s:
            for path in pending.pop(0)[1]:
                schedule.boost(path, now_s)
        while (taken := schedule.take(now_s)) is not None:
            sent.append((now_s, taken))
        wait_s = schedule.next_in_s(now_s)
        now_s += max(tick_s, wait_s if wait_s is not None else 1.0)
    return sent


def filled(paths: int, interval_s: float, budget_pps: float) -> Schedule[int]:
    schedule: Schedule[int] = Schedule(interval_s, budget_pps)
    for path in range(paths):
        schedule.add(path, interval_s * path / max(1, paths))
    return schedule


@given(
    st.integers(1, 40), st.floats(0.05, 2.0), st.floats(2.0, 80.0),
    st.dictionaries(st.floats(0, 3), st.lists(st.integers(0, 39), max_size=40), max_size=3), st.floats(0.005, 2.5),
)  # fmt: skip
def test_no_window_of_a_second_or_more_holds_more_than_the_budget(
    paths: int, interval_s: float, budget_pps: float, boosts: dict[float, list[int]], tick_s: float
) -> None:
    sent = [at for at, _path in play(filled(paths, interval_s, budget_pps), 5.0, boosts, tick_s)]
    assert sent
    for width in (1.0, 1.7, 4.0):
        for index, at in enumerate(sent):
            assert bisect_left(sent, at + width) - index <= budget_pps * width + 1e-6


@given(st.integers(2, 60), st.floats(2.0, 30.0), st.sets(st.integers(0, 59)))
def test_a_short_budget_is_shared_evenly_whoever_wants_more(paths: int, budget_pps: float, wishes: set[int]) -> None:
    schedule = filled(paths, paths / budget_pps / 20, budget_pps)  # all together want twenty times the budget
    sent = Counter(path for _at, path in play(schedule, 60.0, {0.0: sorted(wishes)}))
    assert len(sent) == paths, "nobody is left out"
    assert max(sent.values()) - min(sent.values()) <= 2


def test_a_calm_path_keeps_its_base_rate_while_others_take_the_rest() -> None:
    schedule = filled(10, 0.1, 300.0)
    sent = Counter(path for at, path in play(schedule, 15.0, {0.0: [0, 1, 2]}) if at >= 5.0)
    for path in range(3, 10):
        assert sent[path] == pytest.approx(100, abs=3)
    for path in range(3):
        assert sent[path] == pytest.approx(10 * (300 - 70) / 3, rel=0.1), "the three share what the seven leave"


def test_a_closer_look_is_ten_times_as_often_and_ends_after_a_minute() -> None:
    sent = play(filled(3, 1.0, 1000.0), 130.0, {10.0: [1]})
    close = sum(11 < at < 69 for at, path in sent if path == 1)
    assert close == pytest.approx(58 * BOOST, rel=0.05)
    after = sum(75 < at < 125 for at, path in sent if path == 1)
    assert after == pytest.approx(50, abs=2)
    assert sum(11 < at < 69 for at, path in sent if path == 0) == pytest.approx(58, abs=2)


def test_a_removed_path_is_never_sent_to_again() -> None:
    schedule = filled(3, 0.1, 1000.0)
    assert {path for _at, path in play(schedule, 1.0)} == {0, 1, 2}
    schedule.boost(1, 1.0)
    schedule.remove(1)
    assert {path for _at, path in play(schedule, 3.0)} == {0, 2}
    for path in (0, 2):
        schedule.remove(path)
    assert schedule.next_in_s(4.0) is None
    assert schedule.take(1e6) is None


def test_a_pause_is_not_made_up_for() -> None:
    schedule = filled(2, 0.1, 1000.0)
    play(schedule, 1.0)
    sent: list[int] = []
    while (path := schedule.take(500.0)) is not None and len(sent) < 50:
        sent.append(path)
    assert len(sent) <= 4


@given(st.floats(0.01, 100), st.floats(2, 1e5), st.integers(0, 10_000), st.integers(0, 10_000))
def test_rates_fit_the_budget_and_a_boost_never_slows(base: float, budget: float, calm: int, boosted: int) -> None:
    calm_pps, boosted_pps = shares(base, budget, calm, boosted)
    assert calm * calm_pps + boosted * boosted_pps <= budget * (1 + 1e-9) or calm + boosted == 0
    assert 0 < calm_pps <= base
    assert calm_pps <= boosted_pps * (1 + 1e-9) <= BOOST * base * (1 + 1e-6)


@pytest.mark.parametrize(
    ("sentence", "ok", "lost", "now", "before", "expected"),
    [
        ("all is answered as ever", 30, 0, 0.1, 0.1, False),
        ("one is lost", 29, 1, 0.1, 0.1, True),
        ("nothing is answered: dead is no news", 0, 30, None, 0.1, False),
        ("the path is longer now", 30, 0, 0.106, 0.1, True),
        ("the path is shorter now", 30, 0, 0.094, 0.1, True),
        ("within 5 %", 30, 0, 0.104, 0.1, False),
        ("noise on a short path", 30, 0, 0.0003, 0.00015, False),
        ("no history yet", 30, 0, 0.1, None, False),
    ],
)
def test_what_is_a_change(
    sentence: str, ok: int, lost: int, now: float | None, before: float | None, expected: bool
) -> None:
    assert changed(ok=ok, lost=lost, rtt_min_s=now, rtt_min_before_s=before) is expected, sentence


def test_a_minute_is_what_the_design_says() -> None:
    assert (BOOST, BOOST_S) == (10.0, 60.0)
