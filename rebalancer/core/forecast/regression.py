"""Direct linear regression: for each horizon, the deviation from the profile out of the newest deviations.

Ridge regression on the square-root and on the log scale, with weights that halve in ten days, refit once a day; a
second pass weighs outliers down (Huber's weights). Features and target are bounded at six deviations. A series without
a fit yet takes its newest deviation along: yesterday, corrected by today's level.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rebalancer.core.forecast import seasons
from rebalancer.core.forecast.grid import Grid, Ints, Singles, Tape, mean, median
from rebalancer.core.forecast.seasons import LEVELS, SCALES, SIDES
from rebalancer.core.model import Bools, Floats

FEATURES = 1 + LEVELS + 2 * SIDES
RIDGE = 0.02
BOUND = 6.0
HUBER = 2.0
HALF_LIFE_DAYS = 10.0
STRIDE_S = 900.0
WINDOW_DAYS = {True: 14, False: 56}
"""On fine grids two weeks hold enough to fit; an hourly one needs eight."""
MIN_ROWS = 30
NODES = (1, 2, 3, 4, 6, 8, 10, 12, 15, 18, 21, 24)


def nodes(grid: Grid) -> tuple[int, ...]:
    """Horizons that are fitted; those between them are interpolated."""
    if len(grid.ahead) <= len(NODES):
        return grid.ahead
    picked = np.unique(np.round(np.geomspace(grid.ahead[0], grid.reach, len(NODES))).astype(int))
    inside = [h for h in NODES if grid.ahead[0] <= h <= grid.reach]
    return tuple(sorted({grid.ahead[0], grid.reach, *(inside or [int(h) for h in picked])}))


@dataclass(slots=True)
class Regression:
    """What is fitted on both scales, and today's deviations on them.

    Attributes:
        offset: shape (S,), the logarithm's; NaN until a level is known.
        beta: shape (2, nodes, FEATURES, S).
        spread: shape (2, S), usual size of a deviation; NaN until the first fit.
        base: shape (ring, 2, S), profile by slot, the farthest horizon ahead included.
        sides: shape (ring, SIDES, 2, S), likewise.
        today: shape (season, 2, S), deviations of the last day by slot; NaN where nothing was seen.
        day: shape (2, 2, S), sum over `today` and how many are known; each is bounded by itself, so that a spike of an
            hour does not move the mean of a day.
        held: shape (3, 2, S), the newest deviations with gaps bridged, newest first.
    """

    offset: Floats
    beta: Floats
    spread: Floats
    base: Floats
    sides: Floats
    today: Singles
    day: Floats
    held: Floats

    @staticmethod
    def blank(grid: Grid, series: int) -> Regression:
        """Returns one that knows nothing."""
        ring, scales = grid.reach + 1, len(SCALES)
        return Regression(
            offset=np.full(series, np.nan),
            beta=np.zeros((scales, len(nodes(grid)), FEATURES, series)),
            spread=np.full((scales, series), np.nan),
            base=np.full((ring, scales, series), np.nan),
            sides=np.zeros((ring, SIDES, scales, series)),
            today=np.full((grid.season, scales, series), np.nan, dtype=np.float32),
            day=np.zeros((2, scales, series)),
            held=np.zeros((3, scales, series)),
        )


def step(part: Regression, tape: Tape, found: seasons.Profile) -> None:
    """Takes the newest column in, and the profile of the column that the farthest horizon reaches."""
    column, slot, ring = tape.size - 1, tape.slot, len(part.base)
    part.base[(slot + tape.grid.reach) % ring] = found.base[:, 0]
    part.sides[(slot + tape.grid.reach) % ring] = found.sides[:, :, 0]
    root = np.where(tape.seen[column], tape.raw[column], np.nan).astype(np.float64)
    deviation = seasons.scaled(root, part.offset) - part.base[slot % ring]
    limit, place = _limits(part), slot % tape.grid.season
    for change, one in ((-1.0, part.today[place]), (1.0, deviation.astype(np.float32))):
        known = ~np.isnan(one)
        part.day[0] += np.where(known, change * np.clip(one, -limit, limit), 0.0)
        part.day[1] += change * known
    part.today[place] = deviation
    newest = np.where(np.isnan(deviation), part.held[0] * seasons.GAP_DECAY, deviation)
    part.held = np.stack([newest, part.held[0], part.held[1]])


def recount(part: Regression, rows: Ints) -> None:
    """Sums the last day's deviations of some series anew, after their bounds or all of their values have changed."""
    limit = _limits(part)[:, rows]
    day = np.clip(part.today[..., rows], -limit, limit)
    known = ~np.isnan(day)
    part.day[0][:, rows] = np.where(known, day, np.float32(0.0)).sum(axis=0, dtype=np.float64)
    part.day[1][:, rows] = known.sum(axis=0)


def _limits(part: Regression) -> Singles:
    """How far a deviation counts; shape (2, S), infinite before the first fit."""
    result: Singles = np.where(np.isnan(part.spread), np.inf, BOUND * part.spread).astype(np.float32)
    return result


def forecast(part: Regression, tape: Tape) -> Floats:
    """Forecasts all horizons on both scales; shape (2, H, S), demand. NaN where no other day is known."""
    grid, slot, ring = tape.grid, tape.slot, len(part.base)
    *short, _ = spans = seasons.spans(grid)
    fitted = ~np.isnan(part.spread)
    unit = np.where(fitted, part.spread, 1.0)
    limit = np.where(fitted, BOUND, np.inf)
    bound = _limits(part)
    newest = np.clip(part.today[(slot - np.arange(short[-1])) % grid.season], -bound, bound)
    means = [_mean(newest[:span]) for span in short]
    means.append(part.day[0] / np.maximum(part.day[1], 1) if spans[-1] == grid.season else means[-1])
    level = np.clip(np.stack([*part.held, *means]) / unit, -limit, limit)
    steps = nodes(grid)
    sides = part.sides[(slot + np.array((0, *steps))) % ring]
    sides = np.clip(sides / unit, -limit, limit)
    beta, cut = part.beta, 1 + LEVELS
    move = beta[:, :, 0] + np.einsum("khfs,fks->khs", beta[:, :, 1:cut], level)
    move += np.einsum("khfs,hfks->khs", beta[:, :, cut : cut + SIDES], sides[1:])
    move += np.einsum("khfs,fks->khs", beta[:, :, cut + SIDES :], sides[0])
    move = np.where(fitted[:, None], move * unit[:, None], means[0][:, None])
    if len(steps) < len(grid.ahead):
        move = _between(steps, grid.ahead, move)
    base = part.base[(slot + np.array(grid.ahead)) % ring].transpose(1, 0, 2)
    return seasons.back(base + move, part.offset)


def _mean(values: Singles) -> Floats:
    """Mean over the first axis; zero where nothing is known."""
    known = ~np.isnan(values)
    total = np.where(known, values, np.float32(0.0)).sum(axis=0, dtype=np.float64)
    result: Floats = total / np.maximum(known.sum(axis=0, dtype=np.int32), 1)
    return result


def _between(steps: tuple[int, ...], ahead: tuple[int, ...], move: Floats) -> Floats:
    """Interpolates all horizons from the fitted ones; `move` of shape (2, nodes, S).

    Each horizon has two neighbours: a matrix product would multiply zeros, and wake the threads of a linear algebra
    library for it.
    """
    high = np.searchsorted(steps, ahead)
    low = np.where(np.array(steps)[high] == ahead, high, high - 1)
    gap = np.array(steps)[high] - np.array(steps)[low]
    share = ((np.array(ahead) - np.array(steps)[low]) / np.maximum(gap, 1))[:, None]
    result: Floats = move[:, low] + share * (move[:, high] - move[:, low])
    return result


def refit(part: Regression, tape: Tape, rows: Ints) -> Bools:
    """Fits some series anew on what the tape holds; returns for each whether it could be fitted on both scales."""
    grid = tape.grid
    begin = max(0, tape.size - WINDOW_DAYS[grid.fine] * grid.season)
    offset = part.offset[rows]
    found = seasons.profile(tape, np.arange(begin, tape.size), rows, offset)
    raw, clean, seen = (line[begin : tape.size][:, rows] for line in (tape.raw, tape.clean, tape.seen))
    # A spike that nobody knew teaches nothing about how long deviations last.
    root = np.where(seen & (raw == clean), raw, np.nan)
    deviations = seasons.scaled(root.astype(np.float64), offset) - found.base
    fine = np.ones(len(rows), dtype=bool)
    for scale, deviation in enumerate(deviations):
        fine &= _fit(part, grid, rows, scale, deviation, found.sides[:, scale])
    recount(part, rows)
    return fine


def _fit(part: Regression, grid: Grid, rows: Ints, scale: int, deviation: Floats, sides: Floats) -> Bools:
    """Fits on one scale, for all nodes; says which series had enough to be fitted on."""
    spread = _spread(np.abs(deviation[-7 * grid.season :]))
    level = seasons.levels(grid, np.clip(deviation / spread, -BOUND, BOUND))
    sides = np.clip(sides / spread, -BOUND, BOUND)
    target = np.clip(deviation / spread, -BOUND, BOUND)
    usable = ~np.isnan(target)
    stride, newest = grid.slots(STRIDE_S), len(deviation) - 1
    fine: Bools = usable.sum(axis=0) >= grid.season // 12 + MIN_ROWS * stride * grid.fine
    for place, ahead in enumerate(nodes(grid)):
        origins = np.arange(newest - ahead, -1, -stride)[::-1]
        ones = np.ones((1, len(origins), len(rows)))
        design = np.concatenate([ones, level[:, origins], sides[:, origins + ahead], sides[:, origins]])
        age = (newest - ahead - origins) / (HALF_LIFE_DAYS * grid.season)
        known = usable[origins + ahead]
        weight = np.where(known, 0.5 ** age[:, None], 0.0)
        wanted = np.where(known, target[origins + ahead], 0.0)
        part.beta[scale, place][:, rows[fine]] = _solve(design[..., fine], wanted[:, fine], weight[:, fine])
    part.spread[scale, rows] = np.where(fine, spread, part.spread[scale, rows])
    return fine


def _spread(distance: Floats) -> Floats:
    """Usual size of a deviation; where a series mostly stands still its mean, for the median is zero there."""
    result: Floats = np.maximum(1.4826 * median(distance), mean(distance)) + 1e-9
    return result


def _solve(design: Floats, target: Floats, weight: Floats) -> Floats:
    """Weighted ridge regression, twice; shape (FEATURES, B).

    Args:
        design: shape (FEATURES, N, B).
        target: shape (N, B).
        weight: shape (N, B), zero where the target is unknown.
    """
    x = np.ascontiguousarray(design.transpose(2, 1, 0))
    y, w = np.ascontiguousarray(target.T), np.ascontiguousarray(weight.T)
    w /= np.maximum(w.sum(axis=1, keepdims=True), 1e-12)
    beta, factor = np.zeros((len(x), x.shape[2])), w
    for last in (False, True):
        weighted = x * factor[..., None]
        gram = weighted.transpose(0, 2, 1) @ x
        ridge = RIDGE * factor.sum(axis=1)[:, None, None] * np.eye(x.shape[2])
        right = weighted.transpose(0, 2, 1) @ y[..., None]
        beta = np.linalg.solve(gram + ridge + 1e-12 * np.eye(x.shape[2]), right)[..., 0]
        if not last:
            missed = np.abs(y - (x @ beta[..., None])[..., 0])
            usual = 1.4826 * median(np.where(w > 0, missed, np.nan).T)[:, None] + 1e-9
            factor = w * np.minimum(1.0, HUBER * usual / np.maximum(missed, 1e-12))
    return beta.T
