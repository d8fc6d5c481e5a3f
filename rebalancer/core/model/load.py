"""Demand as it was and as it may become: what is offered now, its history on a grid, and the bands of its forecast."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
TOTAL = "*"
"""The origin under which a workload's total demand stands in histories and forecasts."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Offered load of a workload now.

    Attributes:
        unit: requests/s or cores.
        total: sum over origins; NaN if unknown.
        by_origin: origin region -> demand; empty when origins are unknown.
        served: (origin, cluster) -> demand seen there; empty if unknown.
        missing: clusters whose part is missing from the numbers; their last known part is held in them.
        censored: clusters where CPU hides some of what was wanted -> why: pods are throttled or at their limit.
        as_of_s: time of the newest sample; NaN if none.
        peaks_known: whether the newest history says how far demand rises within its slots; means alone are too low.
    """

    unit: str
    total: float
    by_origin: Mapping[str, float] = field(default_factory=dict)
    served: Mapping[tuple[str, str], float] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    censored: Mapping[str, str] = field(default_factory=dict)
    as_of_s: float = float("nan")
    cpu_cores: Mapping[str, float] = field(default_factory=dict)
    peaks_known: bool = True


@dataclass(frozen=True, slots=True)
class History:
    """Demand on a regular grid.

    Attributes:
        start_s: time of the first slot's end.
        step_s: slot length.
        keys: (workload, origin) per row; origin TOTAL is the workload's total.
        values: shape (series, slots), NaN where unknown.
    """

    start_s: float
    step_s: float
    keys: tuple[tuple[str, str], ...]
    values: Floats


@dataclass(frozen=True, slots=True)
class Forecast:
    """Quantile bands of demand.

    Attributes:
        at_s: when it was made.
        horizons_s: shape (H,), seconds ahead, ascending.
        quantiles: shape (Q,), in (0, 1), ascending.
        keys: (workload, origin) per row.
        bands: shape (series, H, Q); NaN where no forecast is possible.
        trusted: per row; False while the level shifts or history is short.
        age_s: per row, age of the newest sample; NaN if none.
        method: per row, how the band came about, for the reader.
        why: per row, one sentence on why it is trusted or not.
        coverage_ratio: shape (series,), share of the last day's outcomes under the 95 % quantile; NaN if none.
        scaled_error: shape (series,), error of the last day relative to the naive forecast's; NaN if none.
        refits: refits that this forecast took, by outcome.
    """

    at_s: float
    horizons_s: Floats
    quantiles: Floats
    keys: tuple[tuple[str, str], ...]
    bands: Floats
    trusted: tuple[bool, ...]
    age_s: Floats
    method: tuple[str, ...]
    why: tuple[str, ...] = ()
    coverage_ratio: Floats = field(default_factory=lambda: np.empty(0))
    scaled_error: Floats = field(default_factory=lambda: np.empty(0))
    refits: Mapping[str, int] = field(default_factory=dict)
