"""The parser: what the protocol can say, and whatever else may come."""

from __future__ import annotations

import contextlib
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rebalancer.adapters.telemetry.decode import NotPrometheus, Series, decode, decode_data, on_grid
from rebalancer.adapters.telemetry.grid import Grid
from tests.unit.adapters.telemetry.servers import success

VALUES: dict[str, float] = {
    "1.5": 1.5, "-0": 0.0, "1e300": 1e300, "NaN": math.nan, "+Inf": math.inf, "-Inf": -math.inf, "Inf": math.inf,
}  # fmt: skip


@pytest.mark.parametrize("text", VALUES)
def test_every_spelling_of_a_value_is_read(text: str) -> None:
    [series] = decode(success([{"metric": {}, "values": [[1, "2"], [3.25, text]]}], "matrix")).series
    np.testing.assert_equal(series.values, [2.0, VALUES[text]])
    np.testing.assert_equal(series.times_s, [1.0, 3.25])


def test_the_label_of_the_last_bucket_is_left_alone_where_a_value_is_infinite() -> None:
    [series] = decode(success([{"metric": {"le": "+Inf"}, "value": [1, "+Inf"]}])).series
    assert series.labels == {"le": "+Inf"}
    assert series.values.tolist() == [math.inf]


def test_a_scalar_is_a_series_without_labels() -> None:
    [series] = decode(success([5, "7"], "scalar")).series
    assert (dict(series.labels), series.values.tolist()) == ({}, [7.0])


HISTOGRAM = {"count": "3", "sum": "0.5", "buckets": [[0, "0.1", "0.2", "3"]]}


def test_a_native_histogram_counts_as_the_counter_that_it_replaces() -> None:
    instant = decode(success([{"metric": {"a": "b"}, "histogram": [1, HISTOGRAM]}, {"metric": {}, "value": [1, "2"]}]))
    assert [one.values.tolist() for one in instant.series] == [[3.0], [2.0]]
    both = {"metric": {}, "values": [[1, "1"], [4, "4"]], "histograms": [[2, HISTOGRAM], [3, {"count": "NaN"}]]}
    [ranged] = decode(success([both], "matrix")).series
    np.testing.assert_equal(ranged.times_s, [1.0, 2.0, 3.0, 4.0])
    np.testing.assert_equal(ranged.values, [1.0, 3.0, math.nan, 4.0])


@pytest.mark.parametrize("bad", [[1, {}], [1, {"count": "x"}], [1], {"count": "1"}])
def test_a_histogram_without_a_count_makes_the_answer_unusable(bad: Any) -> None:
    with pytest.raises(NotPrometheus):
        decode(success([{"metric": {}, "histogram": bad}]))


def test_a_text_is_no_number() -> None:
    with pytest.raises(NotPrometheus):
        decode(success([1, "words"], "string"))


@pytest.mark.parametrize("values", [[[1]], [[1, "2", 3]], [[1, "x"]], [[1, None]], ["1", "2"], [[1, "2"], []]])
def test_a_sample_that_is_no_pair_of_numbers_makes_the_answer_unusable(values: list[Any]) -> None:
    with pytest.raises(NotPrometheus):
        decode(success([{"metric": {}, "values": values}], "matrix"))


def test_nothing_found_is_an_empty_answer() -> None:
    assert decode(success([])).series == ()
    assert decode(success([], "matrix", warnings=["w"])).warnings == ("w",)


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"status":"fine"}', b"\xff\xfe", b"[" * 100_000, b"null"])
def test_anything_else_is_not_prometheus(body: bytes) -> None:
    with pytest.raises(NotPrometheus):
        decode(body)
    with pytest.raises(NotPrometheus):
        decode_data(body)


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_but_not_prometheus(body: bytes) -> None:
    with contextlib.suppress(NotPrometheus):
        decode(body)


JSON = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["metric", "value", "values", "x"]), inner)
    ),
    max_leaves=10,
)


@given(JSON, st.sampled_from(["vector", "matrix", "scalar", "string", "other"]))
def test_no_json_in_the_place_of_the_result_raises_anything_else(result: Any, kind: str) -> None:
    with contextlib.suppress(NotPrometheus):
        decode(json.dumps({"status": "success", "data": {"resultType": kind, "result": result}}).encode())


@given(
    st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
    st.lists(st.tuples(st.floats(0, 4e9), st.floats(allow_nan=True)), min_size=1, max_size=20),
)
def test_what_a_server_writes_comes_back(labels: dict[str, str], points: list[tuple[float, float]]) -> None:
    def render(value: float) -> str:
        return "NaN" if math.isnan(value) else ("+Inf" if value > 0 else "-Inf") if math.isinf(value) else repr(value)

    body = success([{"metric": labels, "values": [[at, render(value)] for at, value in points]}], "matrix")
    [series] = decode(body).series
    assert dict(series.labels) == labels
    np.testing.assert_equal(series.times_s, [at for at, _ in points])
    np.testing.assert_equal(series.values, [value for _, value in points])


def test_gaps_on_a_grid_are_nan_and_strangers_stay_outside() -> None:
    series = Series({}, np.array([100.0, 120.2, 500.0]), np.array([1.0, 3.0, 9.0]))
    np.testing.assert_equal(on_grid(series, Grid(100.0, 10.0, 4)), [1.0, np.nan, 3.0, np.nan])
