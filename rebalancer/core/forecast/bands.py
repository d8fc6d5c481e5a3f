"""Quantiles of the forecast's own past errors, on the square-root scale, corrected while they miss.

Rings of residuals of the last seven days give the quantiles; a step of 0.08 of the usual error after each outcome
(quantile tracking) keeps their coverage where the errors drift. A series with too few outcomes takes quantiles of the
naive forecast's errors, pooled over real series (tables A and B).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rebalancer.core.forecast.grid import Grid, Ints, Singles, half_life
from rebalancer.core.model import Floats

DAYS = 7
TRACKING = 0.08
USUAL_DAYS = 4.0
SPACING_S = 900.0
"""What lies closer together than a quarter of an hour errs together: keeping it all would cost time and memory only."""
MIN_OUTCOMES = 20
YOUNG_REFRESH_S, REFRESH_S = 7200.0, 14400.0
"""How often the quantiles are read from the residuals: in the first day of outcomes, and later."""
PRIOR_PROBS = (0.05, 0.5, 0.9, 0.95, 0.975, 0.99)
PRIOR_SLOTS = (1, 2, 4, 7, 13)
PRIOR_YOUNG = (
    (-0.361, 0.0, 0.175, 0.360, 0.614, 1.047),
    (-0.391, 0.0, 0.199, 0.400, 0.678, 1.128),
    (-0.399, 0.0, 0.220, 0.433, 0.705, 1.199),
    (-0.403, 0.0, 0.242, 0.449, 0.726, 1.268),
    (-0.427, 0.0, 0.283, 0.507, 0.776, 1.309),
)
PRIOR_KNOWN = (
    (-1.99, 0.0, 1.44, 1.99, 2.60, 3.68),
    (-2.27, 0.0, 1.70, 2.40, 3.30, 5.45),
    (-2.54, 0.0, 1.88, 2.79, 4.03, 6.26),
    (-3.06, 0.0, 2.18, 3.37, 5.09, 8.73),
    (-4.13, 0.0, 2.89, 4.56, 8.02, 14.4),
)
"""Rows by horizon in 5-minute slots (1, 2-3, 4-6, 7-12, 13-24), columns by PRIOR_PROBS. The first in units of the root
of the mean level, until 12 samples are known; the second in units of the usual step from slot to slot."""
PRIOR_SAMPLES = 12
PRIOR_STEP_S = 300.0


@dataclass(slots=True)
class Bands:
    """What the mixture got wrong.

    Attributes:
        residuals: shape (ring, H, S), by slot of their outcome, one in a quarter of an hour; NaN where there was none.
        points: shape (reach + 1, H, S), root of earlier forecasts by slot of their origin.
        edges: shape (reach + 1, H, Q, S), their corrected residual quantiles.
        quantiles: shape (H, Q, S), of the residuals, refreshed now and then.
        tracking: shape (H, Q, S), correction.
        sizes: shape (2, H, S), decaying sum of absolute residuals and of weights.
        outcomes: shape (H, S).
        steps: shape (2, S), decaying sum of steps from slot to slot and of weights.
        lately: shape (PRIOR_SAMPLES, S), the newest values by slot.
        samples: shape (S,).
    """

    residuals: Singles
    points: Floats
    edges: Floats
    quantiles: Floats
    tracking: Floats
    sizes: Floats
    outcomes: Ints
    steps: Floats
    lately: Floats
    samples: Ints

    @staticmethod
    def blank(grid: Grid, series: int) -> Bands:
        """Returns bands without experience."""
        horizons, probs, ring = len(grid.ahead), len(grid.probs), grid.reach + 1
        return Bands(
            residuals=np.full(
                (DAYS * grid.season // grid.slots(SPACING_S), horizons, series), np.nan, dtype=np.float32
            ),
            points=np.full((ring, horizons, series), np.nan),
            edges=np.full((ring, horizons, probs, series), np.nan),
            quantiles=np.zeros((horizons, probs, series)),
            tracking=np.zeros((horizons, probs, series)),
            sizes=np.zeros((2, horizons, series)),
            outcomes=np.zeros((horizons, series), dtype=np.int64),
            steps=np.zeros((2, series)),
            lately=np.full((PRIOR_SAMPLES, series), np.nan),
            samples=np.zeros(series, dtype=np.int64),
        )


def needed(grid: Grid) -> int:
    """Returns after how many outcomes a series' own quantiles count."""
    return MIN_OUTCOMES * grid.slots(SPACING_S)


def judge(bands: Bands, grid: Grid, slot: int, root: Floats) -> None:
    """Takes the newest value in; `root` of shape (S,), NaN where nothing was seen."""
    ahead, horizons = np.array(grid.ahead), np.arange(len(grid.ahead))
    origins = (slot - ahead) % (grid.reach + 1)
    residual = root - bands.points[origins, horizons]
    known = ~np.isnan(residual)
    spacing = grid.slots(SPACING_S)
    if slot % spacing == 0:
        bands.residuals[slot // spacing % len(bands.residuals)] = residual
    bands.outcomes += known
    bands.sizes *= np.where(known, half_life(USUAL_DAYS * grid.season), 1.0)
    bands.sizes[0] += np.where(known, np.abs(residual), 0.0)
    bands.sizes[1] += known
    edge = bands.edges[origins, horizons]
    missed = (residual[:, None] > edge) - (1.0 - np.array(grid.probs)[None, :, None])
    judged = known[:, None] & ~np.isnan(edge)
    bands.tracking += np.where(judged, TRACKING * missed * usual(bands)[:, None], 0.0)
    _samples(bands, slot, root)


def usual(bands: Bands) -> Floats:
    """Usual size of a residual; shape (H, S), zero before the first."""
    found: Floats = bands.sizes[0] / np.maximum(bands.sizes[1], 1e-12)
    return found


def _samples(bands: Bands, slot: int, root: Floats) -> None:
    """Keeps what the prior quantiles are measured by."""
    seen = ~np.isnan(root)
    change = np.abs(root - bands.lately[(slot - 1) % PRIOR_SAMPLES])
    known = ~np.isnan(change)
    bands.steps *= np.where(known, half_life(float(PRIOR_SAMPLES)), 1.0)
    bands.steps[0] += np.where(known, change, 0.0)
    bands.steps[1] += known
    bands.lately[slot % PRIOR_SAMPLES] = root
    bands.samples += seen


def due(bands: Bands, grid: Grid, slot: int, phase: Ints) -> Ints:
    """Returns the series whose quantiles are to be read anew.

    Args:
        bands: experience.
        grid: slots.
        slot: the newest.
        phase: shape (S,), spreads them over the slots.
    """
    young = bands.outcomes[0] < grid.season
    every = np.where(young, grid.slots(YOUNG_REFRESH_S), grid.slots(REFRESH_S))
    return np.flatnonzero(phase % every == slot % every)


def refresh(bands: Bands, grid: Grid, rows: Ints) -> None:
    """Reads the quantiles of some series' residuals anew."""
    if not len(rows):
        return
    # Each series' residuals side by side: sorting them so is several times faster.
    ordered = np.ascontiguousarray(bands.residuals.take(rows, axis=2).transpose(1, 2, 0))
    ordered.sort(axis=2)
    count = np.count_nonzero(ordered == ordered, axis=2, keepdims=True)
    # Of n outcomes the k-th smallest bounds the next one with probability k / (n + 1).
    place = np.clip(np.array(grid.probs) * (count + 1) - 1, 0, np.maximum(count - 1, 0))
    low = np.floor(place).astype(np.int64)
    high = np.minimum(low + 1, np.maximum(count - 1, 0))
    left, right = np.take_along_axis(ordered, low, axis=2), np.take_along_axis(ordered, high, axis=2)
    found = np.where(count > 0, left + (right - left) * (place - low), 0.0)
    bands.quantiles[:, :, rows] = found.transpose(0, 2, 1)


def draw(bands: Bands, grid: Grid, slot: int, point: Floats) -> Floats:
    """Returns the bands around a forecast, and notes both.

    Args:
        bands: experience.
        grid: horizons and quantiles.
        slot: the origin's.
        point: shape (H, S), demand; NaN where unknown.

    Returns:
        Shape (H, Q, S), demand; never negative, never decreasing with the quantile.
    """
    root = np.sqrt(point)
    edge, known = bands.quantiles + bands.tracking, bands.outcomes[:, None] >= needed(grid)
    if not known.all():
        edge = np.where(known, edge, prior(bands, grid))
    edge = np.maximum.accumulate(edge, axis=1)
    bands.points[slot % len(bands.points)] = root
    bands.edges[slot % len(bands.edges)] = edge
    result: Floats = np.maximum(root[:, None] + edge, 0.0) ** 2
    return result


def prior(bands: Bands, grid: Grid) -> Floats:
    """Residual quantiles of a series that nobody knows yet; shape (H, Q, S)."""
    slots = np.array(grid.ahead) * grid.step_s / PRIOR_STEP_S
    row = np.clip(np.searchsorted(PRIOR_SLOTS, slots, side="right") - 1, 0, len(PRIOR_SLOTS) - 1)
    tables = [np.stack([np.interp(grid.probs, PRIOR_PROBS, line) for line in np.array(table)[row]])
              for table in (PRIOR_YOUNG, PRIOR_KNOWN)]  # fmt: skip
    known = ~np.isnan(bands.lately)
    level = np.sqrt((np.where(known, bands.lately, 0.0) ** 2).sum(axis=0) / np.maximum(known.sum(axis=0), 1))
    step = np.maximum(bands.steps[0] / np.maximum(bands.steps[1], 1e-12), 0.02 * level)
    young = bands.samples < PRIOR_SAMPLES
    result: Floats = np.where(young, tables[0][..., None] * level, tables[1][..., None] * step)
    return result
