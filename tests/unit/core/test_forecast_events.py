"""What spikes, changed clocks and shifts of level leave in the forecast's memory, part by part."""

import numpy as np
import pytest

from rebalancer.core.forecast import trust, yesterday
from rebalancer.core.forecast.engine import EXPERTS, Engine
from rebalancer.core.forecast.grid import Grid
from rebalancer.core.model import Floats

DAY = 288
PROBS = (0.05, 0.5, 0.95)
GRID = Grid(300.0, tuple(range(1, 25)), PROBS, 7 * DAY)
NOTHING = np.full(1, np.nan)


def habit(slots: int, moved: int = 0) -> Floats:
    """Demand with two peaks a day and a little noise."""
    of_day = (np.arange(slots) + moved) % DAY
    peaks = sum(np.exp(-(((of_day - at) / 25.0) ** 2)) for at in (100, 200))
    noise: Floats = np.random.default_rng(0).normal(1.0, 0.03, slots)
    result: Floats = (100.0 + 300.0 * peaks) * noise
    return result


def error(engine: Engine, expert: str, after: Floats) -> float:
    """How far an expert's newest forecasts are from what comes, relative to it."""
    made = engine.mix.past[engine.tape.slot % len(engine.mix.past), EXPERTS.index(expert), :, 0]
    return float(np.abs(made - after).mean() / after.mean())


def stepped(values: Floats) -> Engine:
    """An engine that has gone through a series."""
    engine = Engine.blank(GRID, ["web"], 0)
    for value in values:
        engine.step(np.array([value]))
    return engine


def test_a_spike_leaves_no_hole_in_tomorrows_season() -> None:
    values, origin = habit(6 * DAY), 5 * DAY + 95
    after = values[origin : origin + 24]
    untouched = error(stepped(values[:origin]), "smoothing", after)
    values[4 * DAY + 100 : 4 * DAY + 106] *= 5.0
    assert error(stepped(values[:origin]), "smoothing", after) < 1.2 * untouched


@pytest.mark.parametrize("hours", [-1, 1])
def test_yesterday_is_moved_by_an_hour_once_the_clocks_have_changed(hours: int) -> None:
    change = 4 * DAY + 50
    values = habit(6 * DAY)
    values[change:] = habit(6 * DAY, 12 * hours)[change:]
    origin = 4 * DAY + 190
    moved = stepped(values[:origin])
    after = values[origin : origin + 24]
    as_it_was = float(np.abs(values[origin - DAY : origin - DAY + 24] - after).mean() / after.mean())
    assert error(moved, "yesterday", after) < 0.25 * as_it_was


def test_nothing_is_read_that_has_not_been_seen() -> None:
    coarse = Grid(3600.0, tuple(range(1, 25)), PROBS, 56 * 24)
    assert yesterday.shifts(coarse) == (0,)
    assert yesterday.shifts(GRID) == (0, 12, -12)


def flags(residuals: Floats, usual: float, known: bool = True) -> list[bool]:
    """Where a shift is seen in residuals around a root of 100."""
    state = trust.Trust.blank(GRID, 1)
    edge = np.array([[-2.0], [0.0], [2.0]]) * usual
    size = np.array([usual]) if known else NOTHING
    found = []
    for slot, residual in enumerate(residuals):
        one = np.array([residual])
        trust.judge(state, GRID, slot, one, edge, size, np.array([100.0]), (NOTHING, NOTHING))
        found.append(bool(state.begun[0]))
    return found


@pytest.mark.parametrize("freedom", [2.5, 4.0, 100.0])
def test_slots_without_a_shift_look_like_one_in_a_fortieth_at_most_however_heavy_the_tails(freedom: float) -> None:
    residuals = 10.0 * np.random.default_rng(1).standard_t(freedom, 60 * DAY)
    share = np.mean(flags(residuals, float(np.abs(residuals).mean())))
    assert share <= 2 * trust.SHIFT_SHARE


def test_a_shift_is_seen_in_two_slots_and_neither_a_gap_nor_an_unknown_error_is_one() -> None:
    calm = np.random.default_rng(2).normal(0.0, 5.0, 10 * DAY)
    shifted = calm.copy()
    shifted[-2:] += 40.0
    gap = shifted.copy()
    gap[-2:] = np.nan
    assert flags(shifted, 4.0)[-1]
    assert flags(-shifted, 4.0)[-1]
    assert not any(flags(gap, 4.0)[-2:])
    assert not any(flags(shifted, 4.0, known=False))
