"""Yesterday, moved to today's level, and by an hour where clocks have changed.

A habit of people who changed their clocks comes an hour earlier or later than it did yesterday; nobody has to say in
which zone they live, for yesterday moved by an hour then fits the last hours far better than yesterday as it was.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rebalancer.core.forecast import seasons
from rebalancer.core.forecast.grid import HOUR_S, Grid, Ints, Tape, half_life, mean
from rebalancer.core.model import Floats

LEVEL_S = 1800.0
"""Half-life in which yesterday is moved to today's level."""
MEMORY_S = 3 * HOUR_S
"""Half-life of what a shift of the clock is judged by."""
BETTER = 0.6
"""Yesterday is moved by an hour where that leaves less than this share of the error: without a change of the clocks
the nearer hour hardly ever fits so much better."""


def shifts(grid: Grid) -> tuple[int, ...]:
    """By how many slots yesterday may be moved; the first is none. All that is read must have been seen already."""
    hour = grid.slots(HOUR_S)
    return (0, hour, -hour) if grid.fine and grid.reach + hour + 1 < grid.season else (0,)


@dataclass(slots=True)
class Yesterday:
    """What yesterday said, and how today differs from it.

    Attributes:
        past: shape (ring, S), root of demand a day before each slot, smoothed; from an hour back to an hour beyond the
            farthest horizon, NaN where nothing was seen.
        level: shape (1 + K, S), by how much the root of demand lately differs from yesterday's: first without spikes,
            then as it was seen, for each shift.
        missed: shape (K, S), decaying sum of how far the latter was off.
    """

    past: Floats
    level: Floats
    missed: Floats

    @staticmethod
    def blank(grid: Grid, series: int) -> Yesterday:
        """Returns one that knows nothing."""
        moves = shifts(grid)
        ring = grid.reach + max(moves) - min(moves) + 1
        return Yesterday(
            past=np.full((ring, series), np.nan),
            level=np.zeros((1 + len(moves), series)),
            missed=np.zeros((len(moves), series)),
        )


def read(part: Yesterday, tape: Tape, columns: Ints, rows: Ints) -> None:
    """Notes what stands a day before some columns; of shape (C,), at most an hour beyond the farthest horizon."""
    wide = 1 if tape.grid.fine else 0
    near = np.arange(-wide, wide + 1)[:, None, None]
    found = mean(tape.read(tape.clean, tape.same_slot(columns, (1,), rows) + near, rows))
    part.past[((tape.first + columns) % len(part.past))[:, None], rows] = found


def step(part: Yesterday, tape: Tape, base: Floats) -> None:
    """Takes the newest column in.

    Args:
        part: is brought up to date.
        tape: what was seen.
        base: shape (S,), profile of the newest slot; stands for yesterday where that was not seen.
    """
    grid, column, moves = tape.grid, tape.size - 1, shifts(tape.grid)
    read(part, tape, np.array([column + grid.reach + max(moves)]), np.arange(len(base)))
    past = part.past[(tape.slot + np.array([0, *moves])) % len(part.past)]
    # A habit that comes an hour early looks like a spike at first: what shifts are judged by must not be cleaned of it.
    now = np.stack([tape.clean[column], *[tape.raw[column]] * len(moves)])
    fresh = np.where(tape.seen[column], now, np.nan) - np.where(np.isnan(past), base, past)
    known = ~np.isnan(fresh)
    keep, follow = half_life(grid.slots(MEMORY_S)), half_life(grid.slots(LEVEL_S))
    off = np.abs(fresh - part.level)[1:]
    part.missed = np.where(known[1:], keep * part.missed + off, part.missed)
    followed = follow * part.level + (1.0 - follow) * fresh
    part.level = np.where(known, followed, part.level * seasons.GAP_DECAY)


def forecast(part: Yesterday, tape: Tape, base: Floats) -> Floats:
    """Forecasts all horizons; shape (H, S), demand. `base` of the same shape: the profile, root of demand."""
    grid, rows = tape.grid, np.arange(base.shape[1])
    best = part.missed.argmin(axis=0)
    best = np.where(part.missed[best, rows] < BETTER * part.missed[0], best, 0)
    slots = tape.slot + np.array(grid.ahead)[:, None] + np.array(shifts(grid))[best]
    past = part.past[slots % len(part.past), rows]
    level = part.level[np.where(best > 0, best + 1, 0), rows]
    found: Floats = np.maximum(np.where(np.isnan(past), base, past) + level, 0.0) ** 2
    return found
