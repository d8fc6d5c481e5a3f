"""Demand history to a quantile band over the lead time.

The point forecast is the seasonal profile (mean of the same slot of the last days, on the square-root scale) plus
today's deviation from it, shrunk by a factor that is fitted per series and horizon. The band is that forecast plus
quantiles of its own past errors. All series are computed at once; nothing is fitted by iteration.

What is forecast is demand, never the replica count: that would feed back on itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from rebalancer.core.model import Bools, Floats, Forecast, History

DAY_S = 86400.0
PROFILE_DAYS = 7
RESIDUAL_DAYS = 7
LEVEL_SLOTS = 6
MIN_RESIDUALS = 24
PRIOR_SPREAD = 0.35
"""Band half-width of a series nobody knows yet, on the square-root scale relative to its level, per unit of the normal
quantile: wide on purpose, since a young series that doubles within the lead time is common."""
SHIFT_SLOTS = 3
SHIFT_FACTOR = 1.0
"""Three slots in a row on one side outside the 98 % band: noise hardly does that (in none of 288 forecasts of the
carried trace), and a doubled level at once."""
DEFAULT_QUANTILES = (0.1, 0.5, 0.75, 0.9, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class ForecastMemory:
    """A cache only: a cold one costs time, never a different safe decision.

    Attributes:
        at_s: when the last forecast was made.
    """

    at_s: float | None = None


def _profile(root: Floats, season: int, ahead: int) -> Floats:
    """Mean of the same slot of the last days, for each slot and `ahead` slots beyond; NaN where no day is known."""
    series, slots = root.shape
    total = np.zeros((series, slots + ahead))
    count = np.zeros((series, slots + ahead))
    for day in range(1, PROFILE_DAYS + 1):
        lag = day * season
        if lag >= slots + ahead:
            break
        width = min(slots, slots + ahead - lag)
        part = root[:, :width]
        known = ~np.isnan(part)
        total[:, lag : lag + width] += np.where(known, part, 0.0)
        count[:, lag : lag + width] += known
    result: Floats = np.divide(total, count, out=np.full_like(total, np.nan), where=count > 0)
    return result


def _level(deviation: Floats) -> Floats:
    """Mean of the last LEVEL_SLOTS deviations, newer ones more; NaN where none is known. Shape as the input."""
    weights = 0.5 ** (np.arange(LEVEL_SLOTS) / 2.0)
    total = np.zeros_like(deviation)
    norm = np.zeros_like(deviation)
    for lag, weight in enumerate(weights):
        part = deviation[:, : max(0, deviation.shape[1] - lag)]
        known = ~np.isnan(part)
        total[:, lag:] += np.where(known, part, 0.0) * weight
        norm[:, lag:] += known * weight
    level: Floats = np.divide(total, norm, out=np.full_like(total, np.nan), where=norm > 0)
    return level


def _shrink(level: Floats, target: Floats) -> Floats:
    """Least-squares factor of `target` on `level` per row, in [0, 1]; 1 where nothing is known."""
    both = ~np.isnan(level) & ~np.isnan(target)
    x = np.where(both, level, 0.0)
    y = np.where(both, target, 0.0)
    power = (x * x).sum(axis=1)
    factor: Floats = np.divide((x * y).sum(axis=1), power, out=np.ones(len(x)), where=power > 1e-12)
    return np.clip(factor, 0.0, 1.0)


def _errors(level: Floats, deviation: Floats, ahead: int, window: int) -> tuple[Floats, Floats]:
    """How far past levels missed: (shrink factor of shape (S,), errors of shape (S, at most window))."""
    past = level[:, : max(0, level.shape[1] - ahead)][:, -window:]
    target = deviation[:, ahead:][:, -window:]
    factor = _shrink(past, target)
    return factor, target - factor[:, None] * past


def _quantiles(values: Floats, probs: Floats) -> Floats:
    """Quantiles per row, NaN left out; shape (rows, Q). A row without a value is NaN."""
    ordered = np.sort(values, axis=1)
    count = (~np.isnan(values)).sum(axis=1)
    place = probs[None, :] * np.maximum(count - 1, 0)[:, None]
    low = np.floor(place).astype(int)
    high = np.minimum(low + 1, np.maximum(count - 1, 0)[:, None])
    left, right = np.take_along_axis(ordered, low, 1), np.take_along_axis(ordered, high, 1)
    result: Floats = left + (right - left) * (place - low)
    return result


def _bands(
    deviation: Floats, level: Floats, base: Floats, last: Floats, reach: int, window: int, probs: Floats
) -> tuple[Floats, Floats]:
    """Band on the square-root scale for one horizon.

    Args:
        deviation: shape (S, T), values less what they deviate from (a profile, or zero).
        level: shape (S, T), the smoothed deviation.
        base: shape (S,), what they deviate from at the horizon.
        last: shape (S,), the newest level; NaN if unknown.
        reach: slots from the newest value to the horizon.
        window: how many of the newest slots give errors.
        probs: shape (Q,).

    Returns:
        (band of shape (S, Q), number of errors per row).
    """
    factor, errors = _errors(level, deviation, reach, window)
    count = (~np.isnan(errors)).sum(axis=1)
    enough = count >= MIN_RESIDUALS
    band = np.full((len(deviation), len(probs)), np.nan)
    if enough.any():
        point = base + factor * last
        band[enough] = point[enough, None] + _quantiles(errors[enough], probs)
    return band, count


def _prior(last: Floats, ahead: int, quantiles: Floats) -> Floats:
    """Band around the level of a series with too little history, on the square-root scale; shape (S, Q)."""
    normal = np.array([NormalDist().inv_cdf(float(q)) for q in quantiles])
    widen = np.sqrt(1.0 + ahead / LEVEL_SLOTS) / np.sqrt(2.0)
    band: Floats = last[:, None] * (1.0 + PRIOR_SPREAD * widen * normal[None, :] / 2.0)
    return band


def _shifted(deviation: Floats, level: Floats, window: int) -> Bools:
    """Says per row whether the newest values all lie on one side, far outside what was foreseen before any of them."""
    _, errors = _errors(level, deviation, LEVEL_SLOTS, window)
    if errors.shape[1] < MIN_RESIDUALS + SHIFT_SLOTS:
        return np.zeros(len(errors), dtype=bool)
    usual = _quantiles(errors[:, :-SHIFT_SLOTS], np.array([0.01, 0.99]))
    recent = errors[:, -SHIFT_SLOTS:]
    above = np.all(recent > np.maximum(SHIFT_FACTOR * usual[:, 1:], 1e-6), axis=1)
    below = np.all(recent < np.minimum(SHIFT_FACTOR * usual[:, :1], -1e-6), axis=1)
    result: Bools = above | below
    return result


def _rows(root: Floats, season: int, aheads: list[int], late: int, probs: Floats) -> tuple[Floats, list[str], Bools]:
    """Forecasts rows whose newest value is `late` slots old: (bands on the square-root scale, method, trusted)."""
    series, slots = root.shape
    window = RESIDUAL_DAYS * season
    profile = _profile(root, season, max(aheads))
    deviation = root - profile[:, :slots]
    level, plain_level = _level(deviation), _level(root)
    last, plain_last = level[:, slots - 1 - late], plain_level[:, slots - 1 - late]
    bands = np.full((series, len(aheads), len(probs)), np.nan)
    method = np.full(series, "none", dtype=object)
    trusted = np.zeros(series, dtype=bool)
    shifted = _shifted(deviation, level, window)
    # While the level moves, today's deviation lags behind: the newest values alone say where it is.
    plain_last[shifted] = root[shifted, -SHIFT_SLOTS:].mean(axis=1)
    for h, ahead in enumerate(aheads):
        reach = ahead + late
        seasonal, count = _bands(deviation, level, profile[:, slots - 1 + ahead], last, reach, window, probs)
        plain, _ = _bands(root, plain_level, np.zeros(series), plain_last, reach, window, probs)
        for name, band in (("prior", _prior(plain_last, reach, probs)), ("persistence", plain), ("seasonal", seasonal)):
            known = ~np.isnan(band[:, 0]) & ~(shifted & (name == "seasonal"))
            bands[known, h] = band[known]
            method[known] = name
        if h == 0:
            trusted = ~np.isnan(seasonal[:, 0]) & (count >= season // 2) & ~shifted
    return bands, [str(m) for m in method], trusted & (late == 0)


def forecasting(
    history: History,
    memory: ForecastMemory,
    now: float,
    horizons_s: tuple[float, ...],
    quantiles: tuple[float, ...] = DEFAULT_QUANTILES,
) -> tuple[Forecast, ForecastMemory]:
    """Forecasts all series.

    Args:
        history: demand on a grid; NaN is a gap.
        memory: cache of the last call.
        now: time of the forecast.
        horizons_s: seconds ahead, ascending; rounded up to whole slots.
        quantiles: in (0, 1), ascending.

    Returns:
        The forecast and the new memory. A series without any value gets a NaN band; one with less than a day of
        history a band around its level. Bands never fall below zero and never decrease with the quantile.
    """
    probs = np.array(quantiles)
    values = np.clip(np.where(np.isfinite(history.values), history.values, np.nan), 0.0, None)
    root = np.sqrt(values)
    series, slots = root.shape
    aheads = [max(1, int(np.ceil(h / history.step_s - 1e-9))) for h in horizons_s]
    bands = np.full((series, len(aheads), len(probs)), np.nan)
    method = ["none"] * series
    trusted = np.zeros(series, dtype=bool)
    age = np.full(series, np.nan)
    if series and slots and aheads:
        season = max(1, round(DAY_S / history.step_s))
        known = ~np.isnan(root)
        late = np.where(known.any(axis=1), np.argmax(known[:, ::-1], axis=1), 0)
        for slots_late in np.unique(late):
            rows = np.flatnonzero(late == slots_late)
            bands[rows], names, trusted[rows] = _rows(root[rows], season, aheads, int(slots_late), probs)
            for row, name in zip(rows, names, strict=True):
                method[row] = name
        bands = np.maximum.accumulate(np.clip(bands, 0.0, None), axis=2) ** 2
        end_s = history.start_s + (slots - 1) * history.step_s
        age = np.where(known.any(axis=1), now - end_s + late * history.step_s, np.nan)
    forecast = Forecast(
        at_s=now,
        horizons_s=np.array(horizons_s),
        quantiles=probs,
        keys=history.keys,
        bands=bands,
        trusted=tuple(bool(t) for t in trusted),
        age_s=age,
        method=tuple(method),
    )
    return forecast, ForecastMemory(at_s=now)


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
