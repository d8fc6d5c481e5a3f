"""Bands of series whose forecast may not be trusted: wider, since what they rest on is old or does not hold."""

from __future__ import annotations

import numpy as np

from rebalancer.core.forecast import bands
from rebalancer.core.forecast.engine import Engine
from rebalancer.core.forecast.grid import Ints
from rebalancer.core.model import Bools, Floats

BLIND = 4.0
"""How much wider a band may become where nobody knows how far a series strays."""
NORMAL = 1.645
"""The normal distribution's quantile at 95 %."""


def widen(engine: Engine, late: Ints, trusted: Bools) -> Floats:
    """Returns the newest bands, wider where they are not trusted.

    A series whose newest slots are missing is forecast from further away: its band grows with the root of the distance,
    up to how far the series strays from its profile at all. Any series that is not trusted gets the envelope of its
    band and the one around its newest value.

    Args:
        engine: what is known.
        late: shape (S,), slots since the newest value.
        trusted: shape (S,).

    Returns:
        Shape (H, Q, S), demand.
    """
    grid = engine.grid
    edge = np.sqrt(engine.band) - np.sqrt(engine.point)[:, None]
    ahead = np.array(grid.ahead, dtype=np.float64)[:, None]
    growth = np.sqrt(1.0 + late / ahead)
    usual = np.maximum(edge[:, -1], 1e-9)
    limit = np.where(np.isnan(engine.fit.spread[0]), BLIND, NORMAL * engine.fit.spread[0] / usual)
    edge = edge * np.minimum(growth, np.maximum(limit, 1.0))[:, None]
    own = np.sqrt(engine.point)[:, None] + edge
    held = engine.last + bands.prior(engine.errors, grid)
    upper = (np.array(grid.probs) >= 0.5)[None, :, None]
    around = np.where(upper, np.fmax(own, held), np.fmin(own, held))
    result: Floats = np.maximum(np.maximum.accumulate(np.where(trusted, own, around), axis=1), 0.0) ** 2
    return result
