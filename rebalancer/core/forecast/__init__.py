"""Demand history to a quantile band over the lead time, per series, with whether it may be trusted and why not.

Experts forecast demand (never the replica count: that would feed back on itself): the newest value, the mean of the
last seven days, the value a week ago, a direct linear regression on the square-root and on the log scale, and seasonal
smoothing. Online weights mix them, and the mixture's own past errors give the band. The engine goes forward slot by
slot, all series at once, so what comes later can't change what was forecast.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rebalancer.core.forecast.bands import MIN_OUTCOMES
from rebalancer.core.forecast.engine import EXPERTS, Engine
from rebalancer.core.forecast.grid import UTC, Grid, Zone, Zones, join, take
from rebalancer.core.forecast.late import widen
from rebalancer.core.forecast.trust import verdicts
from rebalancer.core.model import Floats, Forecast, History

__all__ = ["DEFAULT_QUANTILES", "EXPERTS", "ForecastMemory", "Zone", "at_quantile", "forecasting"]

DEFAULT_QUANTILES = (0.05, 0.5, 0.75, 0.9, 0.95, 0.975, 0.99)
MAX_SLOTS = 8064
"""Four weeks of five minutes: the longest memory of a series, whatever its step."""
Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class ForecastMemory:
    """A cache only: a cold one costs time, never a different safe decision.

    The engine goes on in place, so a memory serves one caller. One that does not fit the history is built anew.

    Attributes:
        at_s: when the last forecast was made.
        keys: whose series the engine holds, in its order.
        engine: what is known of them; None before the first forecast.
    """

    at_s: float | None = None
    keys: tuple[Key, ...] = ()
    engine: Engine | None = None


def forecasting(
    history: History,
    memory: ForecastMemory,
    now: float,
    horizons_s: tuple[float, ...],
    quantiles: tuple[float, ...] = DEFAULT_QUANTILES,
    zones: Mapping[str, Zone] | None = None,
) -> tuple[Forecast, ForecastMemory]:
    """Forecasts all series.

    Args:
        history: demand on a grid; NaN, an infinite or a negative value is a gap.
        memory: cache of the last call; new slots only are taken in where it fits.
        now: time of the forecast.
        horizons_s: seconds ahead, ascending; rounded up to whole slots.
        quantiles: in (0, 1), ascending.
        zones: wall clock by origin region, so that a habit keeps its hour when the clocks change; the others are UTC.

    Returns:
        The forecast and the new memory. A series without any value gets a NaN band; a young one a band around its
        newest value from pooled quantiles. Bands never fall below zero and never decrease with the quantile.
    """
    series, slots = history.values.shape
    aheads = [max(1, int(np.ceil(h / history.step_s - 1e-9))) for h in horizons_s]
    if not (series and slots and aheads):
        return _nothing(history, now, horizons_s, quantiles), ForecastMemory(at_s=now)
    grid = Grid(history.step_s, tuple(sorted(set(aheads))), quantiles, min(slots, MAX_SLOTS))
    values = history.values[:, -grid.keep :]
    values = np.where(np.isfinite(values) & (values >= 0), values, np.nan)
    last = round(history.start_s / history.step_s) + slots - 1
    clocks = tuple(zones.get(origin, UTC) for _, origin in history.keys) if zones else ()
    engine = _caught_up(memory, grid, history.keys, values, last, clocks)
    known = ~np.isnan(values)
    late = np.where(known.any(axis=1), np.argmax(known[:, ::-1], axis=1), 0)
    late_s = now - (history.start_s + (slots - 1) * history.step_s) + late * history.step_s
    age = np.where(known.any(axis=1), late_s, np.nan)
    found = verdicts(engine.trust, grid, age, engine.errors.outcomes[0], late)
    bands = widen(engine, late, found.trusted)
    own = engine.errors.outcomes[0] >= MIN_OUTCOMES
    there = np.asarray(known.any(axis=1))
    method = ["none" if not k else "mixture" if o else "prior" for k, o in zip(there, own, strict=True)]
    place = [grid.ahead.index(a) for a in aheads]
    forecast = Forecast(
        at_s=now,
        horizons_s=np.array(horizons_s),
        quantiles=np.array(quantiles),
        keys=history.keys,
        bands=bands[place].transpose(2, 0, 1),
        trusted=tuple(bool(t) for t in found.trusted),
        age_s=age,
        method=tuple(method),
        why=found.why,
        coverage_ratio=found.coverage,
        scaled_error=found.error,
        refits=engine.refits,
    )
    return forecast, ForecastMemory(at_s=now, keys=history.keys, engine=engine)


def _nothing(history: History, now: float, horizons_s: tuple[float, ...], quantiles: tuple[float, ...]) -> Forecast:
    """The forecast of a history without a slot."""
    series = len(history.values)
    unknown = np.full(series, np.nan)
    return Forecast(
        at_s=now,
        horizons_s=np.array(horizons_s),
        quantiles=np.array(quantiles),
        keys=history.keys,
        bands=np.full((series, len(horizons_s), len(quantiles)), np.nan),
        trusted=(False,) * series,
        age_s=unknown,
        method=("none",) * series,
        why=("no sample yet",) * series,
        coverage_ratio=unknown,
        scaled_error=unknown,
    )


def _caught_up(
    memory: ForecastMemory, grid: Grid, keys: tuple[Key, ...], values: Floats, last: int, zones: Zones
) -> Engine:
    """Returns an engine that has taken in everything up to the slot `last`, from the cache as far as it fits."""
    old = memory.engine
    if old is not None:
        old.refits = {}
    new = last - old.tape.slot if old is not None else -1
    if old is None or not old.fits(grid, zoned=bool(zones)) or not 0 <= new < values.shape[1]:
        return _built(grid, keys, values, last, zones)
    place = {key: row for row, key in enumerate(memory.keys)}
    if keys != memory.keys:
        old = take(old, np.array([place[k] for k in keys if k in place], dtype=np.int64))
        old.zones = tuple(z for k, z in zip(keys, zones, strict=True) if k in place) if zones else ()
        place = {key: row for row, key in enumerate(k for k in keys if k in place)}
    if place:
        kept = np.array([row for row, key in enumerate(keys) if key in place])
        old.revise(values[kept, : values.shape[1] - new])
        for slot in range(values.shape[1] - new, values.shape[1]):
            old.step(values[kept, slot])
    missing = [row for row, key in enumerate(keys) if key not in place]
    if not missing:
        return old
    clocks = tuple(zones[row] for row in missing) if zones else ()
    fresh = _built(grid, tuple(keys[row] for row in missing), values[missing], last, clocks, old.tape.size)
    both = join(old, fresh) if place else fresh
    order = [*(k for k in keys if k in place), *(keys[row] for row in missing)]
    both = take(both, np.array([order.index(k) for k in keys]))
    both.zones = zones
    return both


def _built(
    grid: Grid, keys: tuple[Key, ...], values: Floats, last: int, zones: Zones, size: int | None = None
) -> Engine:
    """Returns an engine that has gone through a whole history; its tape ends in column `size`."""
    slots = values.shape[1]
    blank = 0 if size is None else max(0, size - slots)
    engine = Engine.blank(grid, ["/".join(k) for k in keys], last + 1 - slots - blank, blank, zones)
    for slot in range(slots):
        engine.step(values[:, slot])
    return engine


def at_quantile(forecast: Forecast, row: int, quantile: float, lead_s: float) -> float:
    """The largest demand at a quantile over the lead time.

    Args:
        forecast: the forecast.
        row: series.
        quantile: in (0, 1); interpolated between the forecast's quantiles, clipped to their range.
        lead_s: how far ahead; at least the first horizon is looked at.

    Returns:
        Demand; NaN if unknown.
    """
    # The first horizon that covers the lead is looked at too.
    last = np.searchsorted(forecast.horizons_s, lead_s - 1e-9)
    within = slice(0, int(last) + 1)
    columns = [np.interp(quantile, forecast.quantiles, band) for band in forecast.bands[row][within]]
    return float(np.max(columns))
