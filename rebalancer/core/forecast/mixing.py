"""Online weights of the experts, per series and horizon.

    weight ~ 1 / (E_long^(1/2) E_short^(1/2))^4

with mean absolute errors of a half-life of two days and of one hour, so that the mixture leaves an expert within the
hour in which the level moves, and comes back to it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rebalancer.core.forecast.grid import Grid, half_life
from rebalancer.core.model import Bools, Floats

SHORT_FLOOR = 0.05
"""A lucky hour counts at most twenty times as much as the days before."""
FLOOR = 1e-9
LONG_DAYS, SHORT_DAYS = 2.0, 1.0 / 24.0
TRIAL_DAYS = 1.0 / 12.0
"""An expert counts from so much experience on."""


@dataclass(slots=True)
class Mixing:
    """What the experts got wrong.

    Attributes:
        past: shape (ring, E, H, S), the experts' forecasts by slot of their origin.
        long, short: shape (E, H, S), decaying sums of absolute errors.
        long_norm, short_norm: shape (E, H, S), sums of their weights.
    """

    past: Floats
    long: Floats
    short: Floats
    long_norm: Floats
    short_norm: Floats

    @staticmethod
    def blank(grid: Grid, series: int, experts: int) -> Mixing:
        """Returns weights without experience."""
        shape = (experts, len(grid.ahead), series)
        past = np.full((grid.reach + 1, *shape), np.nan)
        return Mixing(past, np.zeros(shape), np.zeros(shape), np.zeros(shape), np.zeros(shape))


def judge(mixing: Mixing, grid: Grid, slot: int, value: Floats) -> None:
    """Adds the errors of earlier forecasts of this slot; `value` of shape (S,), NaN where nothing was seen."""
    ahead = np.array(grid.ahead)
    origins = (slot - ahead) % len(mixing.past)
    missed = np.abs(mixing.past[origins, :, np.arange(len(ahead))] - value).transpose(1, 0, 2)
    known = ~np.isnan(missed)
    missed = np.where(known, missed, 0.0)
    for total, norm, days in (
        (mixing.long, mixing.long_norm, LONG_DAYS),
        (mixing.short, mixing.short_norm, SHORT_DAYS),
    ):
        keep = half_life(max(0.5, days * grid.season))
        total *= keep
        norm *= keep
        total += missed
        norm += known


def weights(mixing: Mixing, grid: Grid, experts: Floats, shifted: Bools) -> Floats:
    """Returns the experts' weights; shape (E, H, S), they sum to one where any expert has something to say.

    Args:
        mixing: experience.
        grid: slots.
        experts: shape (E, H, S), forecasts; NaN where an expert has none.
        shifted: shape (S,), where the level moves, only the last hour counts.
    """
    there = ~np.isnan(experts)
    tried = there & (mixing.long_norm >= TRIAL_DAYS * grid.season)
    some = tried.any(axis=0)
    long = mixing.long / np.maximum(mixing.long_norm, 1e-12)
    short = mixing.short / np.maximum(mixing.short_norm, 1e-12)
    # From here on in place: these arrays are larger than the processor's cache.
    square = np.maximum(short, SHORT_FLOOR * long)
    square *= np.where(shifted, square, long)
    floor = FLOOR * np.maximum(1.0, np.where(there, experts, 0.0).max(axis=0))
    np.maximum(square, floor * floor, out=square)
    np.copyto(square, np.inf, where=~tried)
    raw: Floats = np.divide(np.where(some, square.min(axis=0), 1.0), square, out=square)
    raw *= raw
    np.copyto(raw, there, where=~some)
    norm = raw.sum(axis=0)
    np.divide(raw, norm, out=raw, where=norm > 0)
    return raw
