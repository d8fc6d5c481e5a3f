"""What other days say of a slot: a profile of the last days and weeks, and today's deviation from it.

A profile at a slot reads only slots at least a day earlier (less the farthest horizon), so it is known before the slot
comes. Both are computed for any columns and series, so that fitting on the past and forecasting now share them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rebalancer.core.forecast.grid import Grid, Ints, Tape, mean
from rebalancer.core.model import Floats

LAGS = (1, 2, 3, 4, 5, 6, 7, 14, 21, 28)
"""Days back: each of a week, and the same weekday of four weeks."""
DAY_WEIGHTS, WEEK_WEIGHTS = 0.8 ** np.arange(1.0, 8.0), 0.7 ** np.arange(1.0, 5.0)
GAP_DECAY = 0.98
"""By how much a deviation is forgotten for each slot in which nothing is seen."""
SIDES = 4
"""Features of a profile: yesterday smoothed, yesterday itself, the unsmoothed profile, the weekly one."""
SCALES = ("square root", "logarithm")
"""Scales on which deviations are measured: one for noise of counts, one for noise that grows with the level."""


def scaled(root: Floats, offset: Floats, axis: int = 0) -> Floats:
    """From the square root of demand to both scales.

    Args:
        root: any shape, series last.
        offset: shape (S,), keeps the logarithm finite at zero; NaN until a level is known.
        axis: where the new axis of scales goes.
    """
    result: Floats = np.stack([root, np.log(root * root + offset)], axis=axis)
    return result


def back(value: Floats, offset: Floats) -> Floats:
    """From both scales, on the first axis, to demand; never negative."""
    from_log = np.exp(np.minimum(value[1], 50.0)) - offset
    # What is left of zero after a logarithm and back is rounding.
    from_log = np.where(from_log <= 1e-9 * offset, 0.0, from_log)
    result: Floats = np.stack([np.maximum(value[0], 0.0) ** 2, from_log])
    return result


@dataclass(frozen=True, slots=True)
class Profile:
    """What other days say of some columns.

    Attributes:
        base: shape (2, C, B), the profile on both scales; NaN where no day is known.
        sides: shape (SIDES, 2, C, B), how other views differ from it; 0 where unknown.
        days, week: shape (C, B), mean of the last seven days and the value a week ago, in demand; NaN where unknown.
    """

    base: Floats
    sides: Floats
    days: Floats
    week: Floats


def profile(tape: Tape, columns: Ints, rows: Ints, offset: Floats) -> Profile:
    """Returns the profile at columns, from the cleaned values of other days.

    Args:
        tape: what was seen.
        columns: shape (C,); at most the farthest horizon ahead.
        rows: shape (B,), series.
        offset: shape (B,), the logarithm's.
    """
    grid = tape.grid
    wide = max(1, round(2 * grid.season / 288)) if grid.fine else 0
    spread = np.arange(-wide, wide + 1)[:, None, None, None]
    root = tape.read(tape.clean, spread + tape.same_slot(columns, LAGS, rows)[None], rows)
    near = scaled(root, offset, axis=2)
    plain, smooth = near[wide], mean(near)
    close = mean(near[wide - 1 : wide + 2, 0]) if wide else plain[0]
    base, weekly = mean(smooth[:7], DAY_WEIGHTS), mean(smooth[6:], WEEK_WEIGHTS)
    base = np.where(np.isnan(base), weekly, base)
    sides = np.stack([close, plain[0], mean(plain[:7], DAY_WEIGHTS), weekly]) - base
    day = root[wide] ** 2
    return Profile(base, np.where(np.isnan(sides), 0.0, sides), mean(day[:7]), day[6])


def spans(grid: Grid) -> tuple[int, ...]:
    """Over how many slots today's deviation is averaged."""
    unit = max(1, grid.season // 288)
    return (3 * unit, 12 * unit, 36 * unit, grid.season) if grid.fine else (3, 6, 12, grid.season)


LEVELS = 7
"""Features of today's deviation: the newest three, and their means over four spans."""


def levels(grid: Grid, deviation: Floats) -> Floats:
    """Features of the deviations of many columns; shape (LEVELS, C, B).

    Args:
        grid: slots.
        deviation: shape (C, B), consecutive columns; NaN where nothing was seen.
    """
    held = hold(deviation)
    previous = np.concatenate([np.zeros_like(held[:1]), held[:-1]])
    before = np.concatenate([np.zeros_like(held[:1]), previous[:-1]])
    known = ~np.isnan(deviation)
    pad = np.zeros((1, deviation.shape[1]))
    total = np.concatenate([pad, np.cumsum(np.where(known, deviation, 0.0), axis=0)])
    count = np.concatenate([pad, np.cumsum(known, axis=0)])
    ends = np.arange(1, len(deviation) + 1)
    means = []
    for span in spans(grid):
        begin = np.maximum(ends - span, 0)
        means.append((total[ends] - total[begin]) / np.maximum(count[ends] - count[begin], 1.0))
    return np.stack([held, previous, before, *means])


def hold(deviation: Floats) -> Floats:
    """Bridges gaps by the last deviation, forgotten slowly; zero before the first. Shape as the input, time first."""
    known = ~np.isnan(deviation)
    place = np.where(known, np.arange(len(deviation))[:, None], -1)
    last = np.maximum.accumulate(place, axis=0)
    age = np.arange(len(deviation))[:, None] - last
    found = np.take_along_axis(np.where(known, deviation, 0.0), np.maximum(last, 0), axis=0)
    return np.where(last >= 0, found * GAP_DECAY**age, 0.0)
