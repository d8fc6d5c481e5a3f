"""Grids, and the history that is fetched once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rebalancer.adapters.telemetry.grid import MAX_POINTS, Grid, duration, of_window, split
from rebalancer.adapters.telemetry.ring import Ring

KEY = ("default/web", "", "eu-1")


@given(st.integers(0, 60_000), st.integers(1, 12_000))
def test_parts_cover_a_grid_once_each_within_the_limit(slots: int, size: int) -> None:
    grid = Grid(1000.0, 10.0, slots)
    parts = list(grid.parts(size))[::-1]
    ends = [part.start_s + i * 10.0 for part in parts for i in range(part.slots)]
    assert len(ends) == slots
    assert ends == [1000.0 + i * 10.0 for i in range(slots)]
    assert all(part.slots <= size for part in parts)
    assert all((part.end_s - part.start_s) / 10.0 <= MAX_POINTS for part in split(grid))


@given(st.floats(0, 1e6), st.floats(0, 1e5), st.sampled_from([10.0, 60.0, 300.0, 0.5]))
def test_slots_end_on_multiples_of_the_step_inside_the_window(start: float, length: float, step: float) -> None:
    grid = of_window(start, start + length, step)
    assert grid.start_s % step == pytest.approx(0.0, abs=1e-6)
    if grid.slots:
        assert grid.start_s - step >= start - 1e-3
        assert grid.end_s <= start + length + 1e-3


@pytest.mark.parametrize(("seconds", "text"), [(120.0, "120s"), (0.25, "250ms"), (0.0, "1ms"), (1.5, "1500ms")])
def test_durations_are_whole_numbers(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def _fill(ring: Ring, part: Grid | None) -> int:
    if part is None:
        return 0
    ring.put(part, {KEY: np.array([part.start_s + i * part.step_s for i in range(part.slots)])})
    return part.slots


def _cycle(ring: Ring, grid: Grid, seen: tuple[str, ...] = ("eu-1",)) -> int:
    ring.move(grid)
    count = _fill(ring, ring.newer(seen))
    while (older := ring.older()) is not None:
        count += _fill(ring, older)
    return count


def _ends(grid: Grid) -> list[float]:
    return [grid.start_s + i * grid.step_s for i in range(grid.slots)]


@given(st.lists(st.integers(0, 40), min_size=1, max_size=6), st.integers(1, 30), st.integers(12, 50))
def test_after_each_cycle_the_whole_window_is_there(moves: list[int], slots: int, chunk: int) -> None:
    ring = Ring()
    ring.chunk = chunk
    at = 1000
    for move in moves:
        at += move
        grid = Grid(at * 10.0, 10.0, slots)
        _cycle(ring, grid)
        np.testing.assert_equal(ring.rows[KEY], _ends(grid))


def test_a_later_cycle_fetches_the_new_slot_and_reads_two_again() -> None:
    ring = Ring()
    assert _cycle(ring, Grid(10.0, 10.0, 100)) == 100
    assert _cycle(ring, Grid(20.0, 10.0, 100)) == 3
    assert _cycle(ring, Grid(20.0, 10.0, 100)) == 2


def test_a_known_value_outlives_an_answer_without_it() -> None:
    ring = Ring()
    _cycle(ring, Grid(10.0, 10.0, 4))
    ring.put(Grid(30.0, 10.0, 2), {KEY: np.array([np.nan, 7.0])})
    np.testing.assert_equal(ring.rows[KEY], [10.0, 20.0, 30.0, 7.0])


def test_slots_that_a_cluster_missed_are_read_again_once_it_is_back() -> None:
    ring = Ring()
    _cycle(ring, Grid(10.0, 10.0, 50))
    ring.mark(["us-1"], [], 300.0)
    ring.move(Grid(20.0, 10.0, 50))
    assert (gone := ring.newer(["eu-1"])) is not None
    assert gone.start_s == 490.0
    assert (back := ring.newer(["eu-1", "us-1"])) is not None
    assert (back.start_s, back.end_s) == (300.0, 510.0)
    ring.mark([], ["us-1"], 300.0)
    assert (healed := ring.newer(["eu-1", "us-1"])) is not None
    assert healed.start_s == 490.0


def test_a_cluster_that_is_back_is_read_again_for_as_long_as_its_samples_may_be_late() -> None:
    ring = Ring()
    _cycle(ring, Grid(10.0, 10.0, 50))
    ring.mark(["us-1"], [], 300.0, now=500.0, late_s=60.0)

    def begin(filled: list[str], now: float) -> float:
        ring.move(Grid(now - 490.0, 10.0, 50))
        found = ring.newer(["eu-1", "us-1"])
        assert found is not None
        _fill(ring, found)
        ring.mark([], filled, found.start_s, now=now, late_s=60.0)
        return found.start_s

    assert [begin(["us-1"], now) for now in (510.0, 540.0, 570.0, 580.0)] == [300.0, 300.0, 300.0, 560.0]
    ring.mark(["us-1"], [], 550.0, now=580.0, late_s=60.0)
    assert begin(["us-1"], 590.0) == 550.0, "gone again, the time begins anew"
    assert begin(["us-1"], 600.0) == 550.0


def test_what_a_cluster_missed_is_forgotten_with_the_window_only() -> None:
    ring = Ring()
    _cycle(ring, Grid(10.0, 10.0, 50))
    ring.mark(["us-1"], [], 20.0)
    ring.move(Grid(110.0, 10.0, 50))
    assert (found := ring.newer(["us-1"])) is not None
    assert found.start_s == 110.0, "the part of the gap that is still in the window"


def test_a_backfill_that_is_cut_off_goes_on_where_it_stopped() -> None:
    ring = Ring()
    ring.chunk = 12
    ring.move(Grid(10.0, 10.0, 30))
    assert _fill(ring, ring.older()) == 12
    assert _cycle(ring, Grid(20.0, 10.0, 30)) == 3 + 17
    np.testing.assert_equal(ring.rows[KEY], _ends(Grid(20.0, 10.0, 30)))


def test_another_step_begins_anew() -> None:
    ring = Ring()
    _cycle(ring, Grid(10.0, 10.0, 10))
    ring.move(Grid(20.0, 20.0, 5))
    assert ring.rows == {}


def test_chunks_get_cheaper_down_to_a_bound() -> None:
    ring = Ring()
    halvings = 0
    while ring.cheaper():
        halvings += 1
    assert (ring.chunk, halvings) == (12, 7)
