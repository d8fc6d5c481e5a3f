"""The forecast as a reader sees it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rebalancer.core.model import Floats, Forecast, History
from rebalancer.errors import RebalancerError
from rebalancer.report.forecast import sparkline, told
from tests.unit.test_report import golden

KEYS = (("shop/web", "*"), ("shop/web", "eu"), ("shop/api", "*"))
BANDS: Floats = np.array([[[80.0, 100.0, 120.0], [70.0, 105.0, 140.0]], [[np.nan] * 3] * 2, [[1.0, 2.0, 3.0]] * 2])


def made() -> tuple[Forecast, History]:
    """A day of a sine with a gap; its origin has never been seen."""
    day = 100.0 + 50.0 * np.sin(np.arange(288) / 288 * 2 * math.pi)
    day[100:112] = np.nan
    history = History(0.0, 300.0, KEYS, np.stack([day, np.full(288, np.nan), day / 50]))
    why = ("96% of the last day under the 95 % quantile, error 0.41 of the naive forecast's", "no sample yet", "")
    forecast = Forecast(
        287 * 300.0, np.array([300.0, 3600.0]), np.array([0.05, 0.5, 0.95]), KEYS, BANDS, (True, False, True),
        np.array([0.0, np.nan, 0.0]), ("mixture", "none", "mixture"), why, np.array([0.96, np.nan, 1.0]),
        np.array([0.41, np.nan, 1.0]),
    )  # fmt: skip
    return forecast, history


@pytest.mark.parametrize(("form", "name"), [("text", "forecast.txt"), ("json", "forecast.json")])
def test_the_transcript(form: str, name: str) -> None:
    golden(name, told(*made(), "shop/web", form) + "\n")


def test_the_page_stands_alone_and_says_why() -> None:
    text = told(*made(), "shop/web", "html")
    assert "error 0.41 of the naive forecast" in text
    assert "http" not in text.replace("http-equiv", "")
    assert text.count("<svg") == 2
    assert "nan," not in text


def test_a_workload_that_is_not_there_is_an_error_that_names_those_that_are() -> None:
    with pytest.raises(RebalancerError, match=r"shop/nothing: no demand .* known: shop/api, shop/web"):
        told(*made(), "shop/nothing", "text")


@pytest.mark.parametrize(
    ("values", "drawn"), [([], "·"), ([0.0, 0.0], "▁▁"), ([math.nan, 1.0], "·█"), ([0.0, 1.0, 2.0], "▁▅█")]
)
def test_a_sparkline_begins_at_zero_and_shows_gaps(values: list[float], drawn: str) -> None:
    assert sparkline(values) == drawn
