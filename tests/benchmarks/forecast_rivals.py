"""Library models at a few origins: statsmodels' ETSModel, and statsforecast's best where it is installed."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np

from rebalancer.core.model import Floats

Rival = Callable[[Floats, int, int], Floats]
"""(history, season, horizons) -> mean forecast."""


def filled(values: Floats, season: int) -> Floats:
    """Fills gaps by the same slot of earlier days, else by the last value; libraries take no gaps."""
    result = values.copy()
    for slot in np.flatnonzero(np.isnan(result)):
        earlier = [result[slot - d * season] for d in range(1, 8) if slot >= d * season]
        known = [v for v in earlier if not np.isnan(v)]
        result[slot] = known[0] if known else result[slot - 1] if slot else 0.0
    return np.nan_to_num(result)


def ets(history: Floats, season: int, horizons: int) -> Floats:
    """statsmodels' ETSModel: additive error and season, heuristic initial values."""
    from statsmodels.tsa.exponential_smoothing.ets import ETSModel

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = ETSModel(history, error="add", trend=None, seasonal="add", seasonal_periods=season,
                         initialization_method="heuristic")  # fmt: skip
        result: Floats = np.asarray(model.fit(disp=False).forecast(horizons))
    return result


def rivals() -> dict[str, Rival]:
    """Returns the libraries that are installed, by name."""
    found: dict[str, Rival] = {"ets": ets}
    try:
        from statsforecast.models import MSTL, DynamicOptimizedTheta
    except ImportError:
        return found

    def theta(history: Floats, season: int, horizons: int) -> Floats:
        result: Floats = DynamicOptimizedTheta(season_length=season).forecast(history, horizons)["mean"]
        return result

    def mstl(history: Floats, season: int, horizons: int) -> Floats:
        result: Floats = MSTL(season_length=[season, 7 * season]).forecast(history, horizons)["mean"]
        return result

    return {**found, "dynamic-optimized-theta": theta, "mstl-day-week": mstl}
