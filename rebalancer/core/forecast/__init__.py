"""Demand history to a quantile band over the lead time, per series, with whether it may be trusted and why not.

Experts forecast demand (never the replica count: that would feed back on itself): the newest value, the mean of the
last seven days, the value a week ago, yesterday moved to today's level, a direct linear regression on the square-root
and on the log scale, and seasonal smoothing. Online weights mix them, and the mixture's own past errors give the band.
The engine goes forward slot by slot, all series at once, so what comes later can't change what was forecast.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from rebalancer.core.forecast.bands import needed
from rebalancer.core.forecast.cold import ForecastMemory, caught_up
from rebalancer.core.forecast.engine import EXPERTS, Engine
from rebalancer.core.forecast.grid import UTC, Grid, Zone
from rebalancer.core.forecast.late import widen
from rebalancer.core.forecast.trust import Verdicts, verdicts
from rebalancer.core.model import Bools, Floats, Forecast, History

__all__ = ["DEFAULT_QUANTILES", "EXPERTS", "ForecastMemory", "Zone", "at_quantile", "forecasting", "readable"]

DEFAULT_QUANTILES = (0.05, 0.5, 0.75, 0.9, 0.95, 0.975, 0.99)
MAX_SLOTS = 8064
"""Four weeks of five minutes: the longest memory of a series, whatever its step."""


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
    values = readable(history.values[:, -grid.keep :])
    last = round(history.start_s / history.step_s) + slots - 1
    clocks = tuple(zones.get(origin, UTC) for _, origin in history.keys) if zones else ()
    engine, memory, waiting = caught_up(memory, grid, history.keys, values, last, clocks)
    known = ~np.isnan(values)
    late = np.where(known.any(axis=1), np.argmax(known[:, ::-1], axis=1), 0)
    late_s = now - (history.start_s + (slots - 1) * history.step_s) + late * history.step_s
    age = np.where(known.any(axis=1), late_s, np.nan)
    found = verdicts(engine.trust, grid, age, engine.errors.outcomes[0], late)
    bands = widen(engine, late, found.trusted)
    own = engine.errors.outcomes[0] >= needed(grid)
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
        why=_told(engine, found, waiting),
        coverage_ratio=found.coverage,
        scaled_error=found.error,
        refits=engine.refits,
    )
    return forecast, replace(memory, at_s=now)


MOST = 1e15
"""Requests/s or cores that nobody has: such a sample is an error of an exporter, and its square would overflow."""


def readable(values: Floats) -> Floats:
    """Returns demand of any shape with NaN for what is none: a negative value or one beyond all demand is a gap."""
    result: Floats = np.where((values >= 0) & (values <= MOST), values, np.nan)
    return result


def _told(engine: Engine, found: Verdicts, waiting: Bools) -> tuple[str, ...]:
    """Why each series is trusted or not; after a start also what is still to be done for it."""
    turn = f"not built up yet since the start: {int(waiting.sum())} of {len(waiting)} series wait for a later cycle"
    unfitted = np.isnan(engine.fit.spread[0])
    told = []
    for why, trusted, waits, without in zip(found.why, found.trusted, waiting, unfitted, strict=True):
        told.append(turn if waits else f"{why}; the regression is not fitted yet" if trusted and without else why)
    return tuple(told)


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
