"""Takes the forecaster through real series, slot by slot, and scores every origin of the last days."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rebalancer.core.forecast.engine import Engine
from rebalancer.core.forecast.grid import DAY_S, Grid, Zones
from rebalancer.core.model import Bools, Floats
from tests.benchmarks.forecast_rivals import Rival, filled
from tests.benchmarks.traces import Trace

HORIZONS = 24
PROBS = (0.05, 0.5, 0.9, 0.95, 0.99)
WARM_DAYS = {288: 21, 24: 100}
KEEP_DAYS = {288: 28, 24: 56}
FIT_DAYS = {288: 14, 24: 56}
"""What a library is fitted on."""


@dataclass(frozen=True)
class Walk:
    """What was forecast for one series.

    Attributes:
        values: shape (T,).
        points: shape (T, H), made with data up to each slot.
        bands: shape (T, H, Q).
        naive: shape (T, H), the newest known value.
        origins: slots of the test region from which all horizons can be scored.
    """

    trace: Trace
    values: Floats
    points: Floats
    bands: Floats
    naive: Floats
    origins: range

    def actual(self, origins: Sequence[int]) -> Floats:
        """Outcomes, shape (origins, H); NaN where nothing was seen."""
        return np.stack([self.values[np.array(origins) + h] for h in range(1, HORIZONS + 1)], axis=1)

    def yesterday(self, origins: Sequence[int]) -> Floats:
        """The same slots a day before; shape (origins, H)."""
        whole = filled(self.values, self.trace.season)
        lags = [np.array(origins) + h - self.trace.season for h in range(1, HORIZONS + 1)]
        return np.stack([whole[lag] for lag in lags], axis=1)


@dataclass(frozen=True)
class Record:
    """What the forecaster said in each slot, of all series.

    Attributes:
        points: shape (T, H, S), made with data up to each slot.
        bands: shape (T, H, Q, S).
        naive: shape (T, S), the newest known value.
        begun: shape (T, S), whether the newest errors look like a shift of level.
        shifted: shape (T, S), the same and on until six values lay inside of the band.
    """

    points: Floats
    bands: Floats
    naive: Floats
    begun: Bools
    shifted: Bools


def aligned(values: Sequence[Floats]) -> Floats:
    """Puts series side by side so that all end together; shape (T, S), gaps before the shorter ones begin."""
    slots = max(len(v) for v in values)
    return np.stack([np.concatenate([np.full(slots - len(v), np.nan), v]) for v in values], axis=1)


def record(table: Floats, season: int, names: Sequence[str], probs: tuple[float, ...], zones: Zones = ()) -> Record:
    """Goes through all series at once.

    Args:
        table: shape (T, S), demand; NaN where nothing was seen.
        season: slots per day.
        names: of the series.
        probs: quantiles.
        zones: wall clock of each series; empty if all stay on one clock.
    """
    slots, series = table.shape
    grid = Grid(DAY_S / season, tuple(range(1, HORIZONS + 1)), probs, KEEP_DAYS[season] * season)
    engine = Engine.blank(grid, names, 0, zones=zones)
    found = Record(
        points=np.full((slots, HORIZONS, series), np.nan),
        bands=np.full((slots, HORIZONS, len(probs), series), np.nan),
        naive=np.full((slots, series), np.nan),
        begun=np.zeros((slots, series), dtype=bool),
        shifted=np.zeros((slots, series), dtype=bool),
    )
    for slot in range(slots):
        engine.step(table[slot])
        found.points[slot], found.bands[slot], found.naive[slot] = engine.point, engine.band, engine.last**2
        found.begun[slot], found.shifted[slot] = engine.trust.begun, engine.trust.shifted
        if slot % (7 * season) == 0:
            print(f"# day {slot // season} of {slots // season}", flush=True)
    return found


def walk(traces: Sequence[Trace], days: int, probs: tuple[float, ...] = PROBS) -> list[Walk]:
    """Goes through all series at once, aligned at their ends.

    Args:
        traces: of one season.
        days: length of the test region; half of a series that is shorter than twice as long, at most a week of it.
        probs: quantiles.
    """
    season = traces[0].season
    values = [t.values[-(days + WARM_DAYS[season]) * season :] for t in traces]
    table = aligned(values)
    slots = len(table)
    found = record(table, season, [t.name for t in traces], probs)
    result = []
    for row, one in enumerate(values):
        length = len(one)
        first = length - days * season if length >= 2 * days * season else min(7 * season, length // 2)
        first = max(first, length - days * season)
        origins = range(slots - length + first - 1, slots - HORIZONS - 1)
        held = np.repeat(found.naive[:, row : row + 1], HORIZONS, axis=1)
        seen = found.points[..., row], found.bands[..., row]
        result.append(Walk(traces[row], table[:, row], *seen, held, origins))
    return result


def error(forecast: Floats, actual: Floats, known: Bools) -> float:
    """Mean absolute error over what is known."""
    return float(np.abs(forecast - actual)[known].mean())


def relative(walks: Sequence[Walk], rival: Rival | None, count: int) -> list[float]:
    """Error relative to yesterday's value per series, at `count` origins (0: every one), ours without a rival."""
    found = []
    for one in walks:
        origins = list(one.origins)
        if count:
            origins = [origins[int(i)] for i in np.linspace(0, len(origins) - 1, count)]
        actual, before = one.actual(origins), one.yesterday(origins)
        known = ~np.isnan(actual)
        if rival is None:
            made = one.points[origins]
        else:
            fit = FIT_DAYS[one.trace.season] * one.trace.season
            starts = [max(0, o + 1 - fit) for o in origins]
            known_from = int(np.argmax(~np.isnan(one.values)))
            spans = [one.values[max(s, known_from) : o + 1] for s, o in zip(starts, origins, strict=True)]
            made = np.stack([rival(filled(s, one.trace.season), one.trace.season, HORIZONS) for s in spans])
        found.append(error(made, actual, known) / error(before, actual, known))
    return found


def geometric(values: Sequence[float]) -> float:
    """Geometric mean."""
    return float(np.exp(np.mean(np.log(values))))


def coverage(one: Walk, prob: float) -> float:
    """Share of outcomes at or under a quantile, over all origins and horizons."""
    actual = one.actual(list(one.origins))
    known = ~np.isnan(actual)
    band = one.bands[list(one.origins)][:, :, PROBS.index(prob)]
    return float((actual <= band * (1 + 1e-6) + 1e-9)[known].mean())


def first_step(one: Walk) -> float:
    """Error one slot ahead, relative to the naive forecast's."""
    origins = list(one.origins)
    actual = one.actual(origins)[:, :1]
    known = ~np.isnan(actual)
    return error(one.points[origins][:, :1], actual, known) / error(one.naive[origins][:, :1], actual, known)
