"""The forecast: finite whatever the history, honest about levels that move, and calibrated on a real load shape."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rebalancer.core.forecast import DEFAULT_QUANTILES, ForecastMemory, at_quantile, forecasting
from rebalancer.core.model import Floats, Forecast, History

STEP_S = 300.0
DAY = 288
HOUR = tuple(STEP_S * i for i in range(1, 13))
SHAPE = Path(__file__).parents[2] / "stack" / "data" / "load_shape.json"
NINE = DEFAULT_QUANTILES.index(0.9)


def load_shape() -> Floats:
    return np.array(json.loads(SHAPE.read_text(encoding="utf-8"))["values"], dtype=np.float64)


def forecast(values: Floats, horizons_s: tuple[float, ...] = HOUR) -> Forecast:
    table = np.atleast_2d(values)
    keys = tuple((f"shop/w{i}", "*") for i in range(len(table)))
    now = max(0, table.shape[1] - 1) * STEP_S
    return forecasting(History(0.0, STEP_S, keys, table), ForecastMemory(), now, horizons_s)[0]


@pytest.mark.parametrize("slots", [*range(31), 287, 288, 289, 300, 575, 576, 577, 2016, 2300, 4032])
def test_every_length_of_history_gives_a_finite_band_and_none_gives_nan(slots: int) -> None:
    found = forecast(np.full((1, slots), 5.0))
    if slots == 0:
        assert np.isnan(found.bands).all()
        assert found.method == ("none",)
        assert np.isnan(found.age_s).all()
    else:
        assert np.isfinite(found.bands).all()
        assert found.bands[0, 0, 0] - 1e-9 <= 5.0 <= found.bands[0, 0, -1] + 1e-9


def test_no_series_at_all_is_an_empty_forecast() -> None:
    found = forecasting(History(0.0, STEP_S, (), np.empty((0, 10))), ForecastMemory(), 0.0, HOUR)[0]
    assert found.bands.shape == (0, 12, 6)
    assert found.trusted == ()


def test_constant_zero_stays_zero() -> None:
    assert (forecast(np.zeros((1, 600))).bands == 0.0).all()


@pytest.mark.parametrize("junk", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_a_gap_and_not_a_demand(junk: float) -> None:
    values = load_shape()[: 9 * DAY].copy()
    clean = forecast(values).bands[0, 0, NINE]
    values[-40:-20] = junk
    assert forecast(values).bands[0, 0, NINE] == pytest.approx(clean, rel=0.1)


def test_a_series_of_gaps_only_is_unknown_beside_one_that_is_known() -> None:
    found = forecast(np.array([[np.nan] * 600, [7.0] * 600]))
    assert np.isnan(found.bands[0]).all()
    assert np.isnan(found.age_s[0])
    assert found.method[0] == "none"
    assert np.allclose(found.bands[1], 7.0)


@settings(max_examples=60, deadline=None)
@given(
    slots=st.integers(0, 700),
    level=st.floats(0.0, 1e6),
    gaps=st.lists(st.tuples(st.integers(0, 699), st.integers(1, 400)), max_size=4),
    seed=st.integers(0, 10_000),
)
def test_a_band_is_ordered_never_negative_and_known_where_anything_is_known(
    slots: int, level: float, gaps: list[tuple[int, int]], seed: int
) -> None:
    values = level * np.random.default_rng(seed).random((1, slots))
    for first, length in gaps:
        values[:, first : first + length] = np.nan
    bands = forecast(values).bands[0]
    if np.isnan(values).all():
        assert np.isnan(bands).all()
        return
    assert np.isfinite(bands).all()
    assert (bands >= 0).all()
    assert (np.diff(bands, axis=1) >= -1e-9 * max(1.0, level)).all()


@settings(max_examples=25, deadline=None)
@given(factor=st.floats(1.0, 50.0), slots=st.integers(1, 700), seed=st.integers(0, 1000))
def test_more_demand_is_never_forecast_as_less(factor: float, slots: int, seed: int) -> None:
    values = 10.0 + 5.0 * np.random.default_rng(seed).random((1, slots))
    assert (forecast(values * factor).bands >= forecast(values).bands * factor * (1 - 1e-6) - 1e-6).all()


def rolling(values: Floats, every: int) -> tuple[Floats, float]:
    """(coverage by horizon and quantile, mean absolute error relative to yesterday's value)."""
    origins = range(8 * DAY, len(values) - 12, every)
    coverage, error, naive = np.zeros((12, len(DEFAULT_QUANTILES))), 0.0, 0.0
    for origin in origins:
        bands = forecast(values[:origin]).bands[0]
        truth = values[origin : origin + 12]
        coverage += truth[:, None] <= bands
        error += float(np.abs(bands[:, 1] - truth).sum())
        naive += float(np.abs(values[origin - DAY : origin - DAY + 12] - truth).sum())
    return coverage / len(origins), error / naive


def test_nine_in_ten_lie_below_the_ninety_percent_quantile_and_the_median_beats_yesterday() -> None:
    coverage, relative = rolling(load_shape(), 13)
    ninety = coverage[:, NINE]
    assert (ninety >= 0.85).all(), ninety
    assert (ninety <= 0.97).all(), ninety
    assert relative < 0.8


@pytest.mark.parametrize("factor", [0.3, 2.0, 3.0])
def test_a_level_that_shifts_is_distrusted_and_the_band_still_covers_it(factor: float) -> None:
    values = load_shape()
    origin = 10 * DAY + 150
    assert forecast(values[:origin]).trusted == (True,)
    for since in range(3, 7):
        shifted = values.copy()
        shifted[origin - since :] *= factor
        found = forecast(shifted[:origin])
        assert found.trusted == (False,), since
        recent = shifted[origin - since : origin].mean()
        assert found.bands[0, 0, 0] <= recent <= found.bands[0, 0, -1]
    old = values.copy()
    old[origin - 12 :] *= factor
    assert forecast(old[:origin]).trusted == (True,)


def test_noise_of_a_real_trace_is_no_shift() -> None:
    values = load_shape()
    assert all(forecast(values[:o], HOUR[:1]).trusted[0] for o in range(9 * DAY, len(values), 13))


def test_a_young_history_is_not_trusted() -> None:
    assert forecast(load_shape()[: DAY + 100]).trusted == (False,)


@pytest.mark.parametrize("late", [1, 3, 6, 12, 48, 300])
def test_a_series_whose_newest_slots_are_missing_is_forecast_from_what_it_last_was(late: int) -> None:
    values, covered, count = load_shape(), 0, 0
    for origin in range(10 * DAY, len(values), 47):
        stale = values[:origin].copy()
        stale[origin - late :] = np.nan
        found = forecast(stale, HOUR[:1])
        assert found.age_s[0] == late * STEP_S
        assert found.trusted == (False,)
        covered += bool(values[origin] <= found.bands[0, 0, NINE])
        count += 1
    assert covered / count >= 0.8


def test_the_quantile_over_the_lead_looks_at_the_horizon_that_covers_it() -> None:
    bands = np.array([[[1.0, 10.0], [2.0, 20.0], [3.0, 30.0]]])
    found = Forecast(0.0, np.array([300.0, 600.0, 900.0]), np.array([0.5, 0.9]), (("w", "*"),), bands, (True,),
                     np.array([0.0]), ("seasonal",))  # fmt: skip
    leads = [0.0, 300.0, 301.0, 600.0, 700.0, 5000.0]
    assert [at_quantile(found, 0, 0.9, lead) for lead in leads] == [10.0, 10.0, 20.0, 20.0, 30.0, 30.0]
    assert at_quantile(found, 0, 0.7, 300.0) == pytest.approx(5.5)
    assert at_quantile(found, 0, 0.999, 300.0) == 10.0


def test_an_unknown_band_is_unknown_at_every_quantile() -> None:
    assert np.isnan(at_quantile(forecast(np.array([[np.nan] * 9])), 0, 0.9, 300.0))
