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
SHIFT_FACTOR = 3.0
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
        part = deviation[:, : deviation.shape[1] - lag] if lag else deviation
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


def _bands(
    root: Floats, base: Floats, last: Floats, ahead: int, window: int, quantiles: Floats
) -> tuple[Floats, Floats]:
    """Band on the square-root scale for one horizon.

    Args:
        root: shape (S, T), square root of the values.
        base: shape (S, T + H), what the values deviate from (a profile, or zero).
        last: shape (S,), today's level of the deviation; NaN if unknown.
        ahead: horizon in slots.
        window: how many of the newest slots give residuals.
        quantiles: shape (Q,).

    Returns:
        (band of shape (S, Q), number of residuals per row).
    """
    slots = root.shape[1]
    deviation = root - base[:, :slots]
    level = _level(deviation)
    past = level[:, : slots - ahead][:, -window:]
    target = deviation[:, ahead:][:, -window:]
    factor = _shrink(past, target)
    residual = target - factor[:, None] * past
    count = (~np.isnan(residual)).sum(axis=1)
    enough = count >= MIN_RESIDUALS
    band = np.full((len(root), len(quantiles)), np.nan)
    if enough.any():
        point = base[:, slots - 1 + ahead] + factor * np.nan_to_num(last, nan=0.0)
        band[enough] = point[enough, None] + np.nanquantile(residual[enough], quantiles, axis=1).T
    return band, count


def _prior(root: Floats, last: Floats, ahead: int, quantiles: Floats) -> Floats:
    """Band around the level of a series with too little history, on the square-root scale; shape (S, Q)."""
    normal = np.array([NormalDist().inv_cdf(float(q)) for q in quantiles])
    widen = np.sqrt(1.0 + ahead / LEVEL_SLOTS) / np.sqrt(2.0)
    band: Floats = last[:, None] * (1.0 + PRIOR_SPREAD * widen * normal[None, :] / 2.0)
    return band


def _shifted(root: Floats, base: Floats, band_low: Floats, band_high: Floats) -> Bools:
    """Says per row whether the last SHIFT_SLOTS values all lie far outside the one-step band, on one side."""
    recent = root[:, -SHIFT_SLOTS:]
    width = np.maximum(band_high - band_low, 1e-9)
    centre = (band_high + band_low) / 2.0
    distance = (recent - centre[:, None]) / width[:, None]
    above = np.all(distance > SHIFT_FACTOR, axis=1)
    below = np.all(distance < -SHIFT_FACTOR, axis=1)
    result: Bools = above | below
    return result


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
    values = np.clip(history.values, 0.0, None)
    root = np.sqrt(values)
    series, slots = root.shape
    aheads = [max(1, int(np.ceil(h / history.step_s - 1e-9))) for h in horizons_s]
    bands = np.full((series, len(aheads), len(probs)), np.nan)
    method = np.full(series, "none", dtype=object)
    trusted = np.zeros(series, dtype=bool)
    age = np.full(series, np.nan)
    if series and slots:
        season = max(1, round(DAY_S / history.step_s))
        window = RESIDUAL_DAYS * season
        profile = _profile(root, season, max(aheads))
        seasonal_level = _level(root - profile[:, :slots])[:, -1]
        zero = np.zeros_like(profile)
        plain_level = _last_known(root)
        for h, ahead in enumerate(aheads):
            seasonal, count = _bands(root, profile, seasonal_level, ahead, window, probs)
            plain, _ = _bands(root, zero, plain_level, ahead, window, probs)
            prior = _prior(root, plain_level, ahead, probs)
            use = ~np.isnan(seasonal[:, 0])
            for name, band in (("prior", prior), ("persistence", plain), ("seasonal", seasonal)):
                known = ~np.isnan(band[:, 0])
                bands[known, h] = band[known]
                method[known] = name
            if h == 0:
                shifted = _shifted(root, profile, bands[:, 0, 0], bands[:, 0, -1])
                trusted = use & (count >= season // 2) & ~shifted
        bands = np.maximum.accumulate(np.clip(bands, 0.0, None), axis=2) ** 2
        known = ~np.isnan(root)
        newest = np.where(known.any(axis=1), slots - 1 - np.argmax(known[:, ::-1], axis=1), -1)
        end_s = history.start_s + (slots - 1) * history.step_s
        age = np.where(newest >= 0, now - end_s + (slots - 1 - newest) * history.step_s, np.nan)
        trusted &= ~np.isnan(root[:, -1])
    forecast = Forecast(
        at_s=now,
        horizons_s=np.array(horizons_s),
        quantiles=probs,
        keys=history.keys,
        bands=bands,
        trusted=tuple(bool(t) for t in trusted),
        age_s=age,
        method=tuple(str(m) for m in method),
    )
    return forecast, ForecastMemory(at_s=now)


def _last_known(root: Floats) -> Floats:
    """The newest known value per row, NaN where there is none; shape (S,)."""
    known = ~np.isnan(root)
    newest = root.shape[1] - 1 - np.argmax(known[:, ::-1], axis=1)
    return np.where(known.any(axis=1), root[np.arange(len(root)), newest], np.nan)


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
    within = forecast.horizons_s <= max(lead_s, forecast.horizons_s[0])
    columns = [np.interp(quantile, forecast.quantiles, band) for band in forecast.bands[row][within]]
    return float(np.max(columns))
