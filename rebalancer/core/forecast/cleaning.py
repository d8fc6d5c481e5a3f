"""Outages and one-off spikes: kept out of seasonal memory, decided slot by slot from what came before.

An outage is demand far below what the same slot of the last days says, for three slots, where last week was not as low.
A spike is an excursion of more than six deviations that neither yesterday nor last week knew, for less than six hours;
what lasts longer is a new level, and then its values come back into memory. Levels are never cleaned: they must follow.
For six hours an outage is no evidence either: demand is expected back, and no expert is blamed for it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rebalancer.core.forecast.grid import Grid, Ints, Tape, half_life, median
from rebalancer.core.model import Bools, Floats

DAYS = (1, 2, 3, 4, 5, 6, 7)
SPIKE = 6.0
KNOWN_SPIKE = 3.0
"""Half a spike at the same time yesterday or last week makes today's one a habit."""
SPIKE_S = 6 * 3600.0
LEVEL_S = 3 * 3600.0
OUTAGE_SLOTS = 3
OUTAGE_RATIO = 0.1
WEEKLY_LOW_RATIO = 0.2
OUTAGE_FLOOR_RATIO = 0.05
SPREAD_FLOOR_RATIO = 0.02
NEAR = 2
"""Slots to either side in which an excursion counts as at the same time."""


@dataclass(slots=True)
class Cleaner:
    """What cleaning remembers of each series.

    Attributes:
        deviations: shape (L, S), the last three hours' distance from the usual; NaN where unknown.
        marks: shape (week + near, S), by slot: 1 or -1 where a value was half a spike above or below.
        spread: shape (2, S), decaying sum of distances and of weights.
        level: shape (2, S), decaying sum of values and of weights.
        run, low_run: shape (S,), slots since an excursion, or a low, began.
        expected: shape (OUTAGE_SLOTS, S), what was expected in the last slots.
    """

    deviations: Floats
    marks: npt.NDArray[np.int8]
    spread: Floats
    level: Floats
    run: Ints
    low_run: Ints
    expected: Floats

    @staticmethod
    def blank(grid: Grid, series: int) -> Cleaner:
        """Returns a cleaner that has seen nothing."""
        lately = max(3, grid.slots(LEVEL_S))
        zeros = np.zeros(series, dtype=np.int64)
        return Cleaner(
            deviations=np.full((lately, series), np.nan),
            marks=np.zeros((7 * grid.season + NEAR + 1, series), dtype=np.int8),
            spread=np.zeros((2, series)),
            level=np.zeros((2, series)),
            run=zeros,
            low_run=zeros.copy(),
            expected=np.full((OUTAGE_SLOTS, series), np.nan),
        )


def step(cleaner: Cleaner, tape: Tape, value: Floats) -> Bools:
    """Writes the newest slot of all series to the tape, cleaned as far as it can be known now.

    Args:
        cleaner: is brought up to date.
        tape: its newest column is filled; earlier ones are corrected when a run of values turns out to be an outage,
            or a new level.
        value: shape (S,), square root of demand; NaN where nothing was seen.

    Returns:
        Shape (S,): where the value belongs to an outage of less than six hours, and says nothing about the forecast.
    """
    column, rows = tape.size - 1, np.arange(len(value))
    seen = ~np.isnan(value)
    past = tape.read(tape.raw, tape.same_slot(np.array([column]), DAYS, rows)[:, 0], rows)
    usual, known = median(past), (~np.isnan(past)).sum(axis=0)
    lately = median(cleaner.deviations)
    expected = np.maximum(usual + np.where(np.isnan(lately), 0.0, lately), 0.0)
    deviation = value - usual
    spike = _spikes(cleaner, tape, np.where(seen, value - expected, np.nan), known)
    out = _outages(cleaner, tape, value, usual, past[6])
    tape.raw[column], tape.seen[column] = value, seen & ~out
    tape.clean[column] = np.where((spike | out) & ~np.isnan(expected), expected, value)
    cleaner.expected[tape.slot % OUTAGE_SLOTS] = expected
    _correct(cleaner, tape, spike, out)
    # An outage is no level: it moves neither what is expected nor what an excursion is measured by.
    value, deviation = (np.where(out, np.nan, one) for one in (value, deviation))
    cleaner.deviations[tape.slot % len(cleaner.deviations)] = deviation
    _remember(cleaner.level, value, half_life(3.0 * tape.grid.season))
    # Winsorised, so that a spike does not widen what the next one is measured by.
    spread = cleaner.spread[0] / np.maximum(cleaner.spread[1], 1e-12)
    bounded = np.minimum(np.abs(deviation), np.where(spread > 0, 3.0 * spread, np.inf))
    _remember(cleaner.spread, bounded, half_life(float(tape.grid.season)))
    passing: Bools = out & (cleaner.low_run <= tape.grid.slots(SPIKE_S))
    return passing


def _remember(state: Floats, value: Floats, keep: float) -> None:
    """Adds a value to a decaying (sum, weight); a gap leaves it as it is."""
    known = ~np.isnan(value)
    state *= np.where(known, keep, 1.0)
    state[0] += np.where(known, value, 0.0)
    state[1] += known


def _spikes(cleaner: Cleaner, tape: Tape, distance: Floats, known: Ints) -> Bools:
    """Says which values are excursions that nobody knew; of a run only its first six hours."""
    season, slot, size = tape.grid.season, tape.slot, len(cleaner.marks)
    level = cleaner.level[0] / np.maximum(cleaner.level[1], 1e-12)
    spread = 1.2533 * cleaner.spread[0] / np.maximum(cleaner.spread[1], 1e-12)
    spread = np.maximum(spread, SPREAD_FLOOR_RATIO * level) + 1e-9
    ratio = np.where(np.isnan(distance), 0.0, distance / spread)
    settled = cleaner.spread[1] >= min(season / 2.0, 72.0)
    spike: Bools = (np.abs(ratio) > SPIKE) & (known >= 2) & settled
    near = np.arange(-NEAR, NEAR + 1)
    sign = np.sign(ratio)
    for lag in (season, 7 * season):
        marks = cleaner.marks[(slot - lag + near) % size]
        spike &= ~(marks == sign).any(axis=0)
    cleaner.marks[slot % size] = np.where(np.abs(ratio) > KNOWN_SPIKE, sign, 0).astype(np.int8)
    spike_or_gap = spike | (np.isnan(distance) & (cleaner.run > 0))
    cleaner.run = np.where(spike_or_gap, cleaner.run + 1, 0)
    return spike


def _outages(cleaner: Cleaner, tape: Tape, value: Floats, usual: Floats, last_week: Floats) -> Bools:
    """Says which values belong to an outage that has lasted long enough to be known as one."""
    level = cleaner.level[0] / np.maximum(cleaner.level[1], 1e-12)
    with np.errstate(invalid="ignore"):  # comparisons with NaN are false, as they should be
        low = (value < np.sqrt(OUTAGE_RATIO) * usual) & (usual > np.sqrt(OUTAGE_FLOOR_RATIO) * level)
        low &= ~(last_week < np.sqrt(WEEKLY_LOW_RATIO) * usual)
    cleaner.low_run = np.where(low, cleaner.low_run + 1, 0)
    result: Bools = cleaner.low_run >= OUTAGE_SLOTS
    return result


def _correct(cleaner: Cleaner, tape: Tape, spike: Bools, out: Bools) -> None:
    """Corrects earlier columns: an outage's first slots, and the values of what turned out to be a new level."""
    column = tape.size - 1
    for back in range(1, OUTAGE_SLOTS):
        begun = np.flatnonzero((cleaner.low_run == OUTAGE_SLOTS) & (column - back >= 0))
        expected = cleaner.expected[(tape.slot - back) % OUTAGE_SLOTS, begun]
        tape.seen[column - back, begun] = False
        kept = tape.clean[column - back, begun]
        tape.clean[column - back, begun] = np.where(np.isnan(expected), kept, expected)
        cleaner.deviations[(tape.slot - back) % len(cleaner.deviations), begun] = np.nan
    limit = tape.grid.slots(SPIKE_S)
    for row in np.flatnonzero(spike & ~out & (cleaner.run > limit)):
        since = max(0, column - int(cleaner.run[row]) + 1)
        tape.clean[since : column + 1, row] = tape.raw[since : column + 1, row]
