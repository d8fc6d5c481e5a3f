"""Seasonal smoothing with a level that decays (SPAR): a small bank of fixed settings, the best one per horizon wins.

    deviation <- (1 - alpha) phi deviation + alpha (y - slow - season)
    usual     <- (1 - alpha) phi usual + alpha (cleaned y - slow - season)
    season    <- season + gamma (cleaned y - slow - usual - season)
    forecast  =  slow + phi^h deviation + season at t + h

`slow` follows with a half-life of three days. `usual` is the deviation without outages and spikes: measured against the
other one, what a spike leaves in the season is a hole as deep as the spike. Nothing is fitted: the errors of each
setting are kept, with a half-life.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rebalancer.core.forecast.grid import Grid, Ints, Tape, half_life
from rebalancer.core.model import Floats

SETTINGS = (
    (0.05, 0.15, 1.0),
    (0.3, 0.15, 0.995),
    (0.3, 0.35, 0.97),
    (0.6, 0.05, 0.995),
    (0.6, 0.15, 0.97),
    (0.9, 0.15, 0.995),
)
"""(alpha, gamma, phi), spread over what wins on one series or another."""
SLOW_DAYS = 3.0
ERROR_DAYS = 3.5


@dataclass(slots=True)
class Smoothing:
    """The bank's state.

    Attributes:
        slow, deviation, usual: shape (K, S).
        season: shape (season, K, S), by slot of the day.
        days: shape (S,), how many slots were taken in.
        past: shape (ring, K, H, S), forecasts by slot of their origin.
        error: shape (K, H, S), decaying sums of absolute errors.
    """

    slow: Floats
    deviation: Floats
    usual: Floats
    season: Floats
    days: Ints
    past: Floats
    error: Floats

    @staticmethod
    def blank(grid: Grid, series: int) -> Smoothing:
        """Returns a bank that has seen nothing."""
        settings = len(SETTINGS)
        return Smoothing(
            slow=np.zeros((settings, series)),
            deviation=np.zeros((settings, series)),
            usual=np.zeros((settings, series)),
            season=np.zeros((grid.season, settings, series)),
            days=np.zeros(series, dtype=np.int64),
            past=np.full((grid.reach + 1, settings, len(grid.ahead), series), np.nan),
            error=np.zeros((settings, len(grid.ahead), series)),
        )


def step(bank: Smoothing, tape: Tape, value: Floats, cleaned: Floats) -> Floats:
    """Takes a slot in and forecasts all horizons.

    Args:
        bank: is brought up to date.
        tape: says where in the day the slot stands.
        value: shape (S,), square root of demand; NaN where nothing was seen.
        cleaned: shape (S,), the same without outages and spikes; feeds the season.

    Returns:
        Shape (H, S), demand; NaN in the first day.
    """
    grid, slot, rows = tape.grid, tape.slot, np.arange(len(value))
    alpha, gamma, phi = (np.array(column)[:, None] for column in zip(*SETTINGS, strict=True))
    _judge(bank, grid, slot, value)
    ahead = np.array(grid.ahead)
    places = _places(tape, np.array([0, *grid.ahead]))
    seen = ~np.isnan(value)
    here = bank.season[places[0], :, rows].T if places.ndim == 2 else bank.season[places[0]]
    # In the first day the mean so far stands for the level, and what differs from it for the season.
    young = bank.days < grid.season
    first = 1.0 / (bank.days + 1.0)
    mean = bank.slow + np.where(young, first, 0.0) * (value - bank.slow)
    keep = half_life(SLOW_DAYS * grid.season)
    kept = np.where(np.isnan(cleaned), value, cleaned)
    deviation, usual = (
        np.where(young, 0.0, (1.0 - alpha) * before * phi + alpha * (now - bank.slow - here))
        for before, now in ((bank.deviation, value), (bank.usual, kept))
    )
    slow = np.where(young, mean, keep * bank.slow + (1.0 - keep) * (value - here))
    rate = np.where(young, 1.0, gamma)
    season = here + rate * (kept - slow - usual - here)
    bank.slow = np.where(seen, slow, bank.slow)
    bank.deviation = np.where(seen, deviation, bank.deviation * phi)
    bank.usual = np.where(seen, usual, bank.usual * phi)
    fresh = np.where(seen, season, here)
    if places.ndim == 2:
        bank.season[places[0], :, rows] = fresh.T
        there = bank.season[places[1:], :, rows[None]].transpose(2, 0, 1)
    else:
        bank.season[places[0]] = fresh
        there = bank.season[places[1:]].transpose(1, 0, 2)
    bank.days += seen
    found = bank.slow[:, None] + bank.deviation[:, None] * (phi**ahead)[:, :, None] + there
    found = np.where(bank.days >= grid.season, np.maximum(found, 0.0), np.nan)
    bank.past[slot % len(bank.past)] = found
    best = bank.error.argmin(axis=0)
    result: Floats = np.take_along_axis(found, best[None], axis=0)[0] ** 2
    return result


def _places(tape: Tape, ahead: Ints) -> Ints:
    """Slots of the day, by the wall clock: shape (A,) where all series share one, else (A, S)."""
    slots = tape.slot + ahead
    if tape.wall is None:
        result: Ints = slots % tape.grid.season
        return result
    local: Ints = (slots[:, None] + tape.wall[tape.size - 1 + ahead]) % tape.grid.season
    return local


def _judge(bank: Smoothing, grid: Grid, slot: int, value: Floats) -> None:
    """Adds the errors of earlier forecasts of this slot."""
    bank.error *= half_life(ERROR_DAYS * grid.season)
    for place, ahead in enumerate(grid.ahead):
        missed = np.abs(bank.past[(slot - ahead) % len(bank.past), :, place] - value)
        bank.error[:, place] += np.where(np.isnan(missed), 0.0, missed)
