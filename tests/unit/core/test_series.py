"""Grids of demand: a gap is held for a bounded time and then unknown; it is zero only where the cluster was seen."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rebalancer.core.model import TOTAL, Floats
from rebalancer.core.series import assemble, current, fill

NAN = float("nan")
WEB = "shop/web"


def row(*values: float) -> Floats:
    return np.array([values], dtype=np.float64)


@pytest.mark.parametrize(
    ("values", "seen", "filled"),
    [
        ((1, 2, NAN), (True, True, True), (1, 2, 0)),
        ((1, 2, NAN), (True, True, False), (1, 2, 2)),
        ((5, NAN, NAN, NAN), (True, False, False, False), (5, 5, 5, NAN)),
        ((NAN, NAN, 4), (False, False, True), (NAN, NAN, 4)),
        ((5, NAN, NAN, NAN, 7), (True, False, False, False, True), (5, 5, 5, NAN, 7)),
        ((NAN, NAN), (False, False), (NAN, NAN)),
    ],
)
def test_zero_where_seen_held_where_not_unknown_after_the_hold(
    values: tuple[float, ...], seen: tuple[bool, ...], filled: tuple[float, ...]
) -> None:
    np.testing.assert_array_equal(fill(np.array(values), np.array(seen), 2), np.array(filled, dtype=float))


@given(st.lists(st.one_of(st.just(NAN), st.floats(0, 100)), min_size=1, max_size=40), st.data(), st.integers(0, 5))
def test_a_held_gap_is_bounded(values: list[float], data: st.DataObject, hold: int) -> None:
    seen = np.array([not np.isnan(v) or data.draw(st.booleans()) for v in values])
    filled = fill(np.array(values), seen, hold)
    for i, value in enumerate(filled):
        recent = seen[max(0, i - hold) : i + 1].any()
        assert np.isnan(value) == (not recent)
        if seen[i]:
            assert value == (0.0 if np.isnan(values[i]) else values[i])


def totals(keys: list[tuple[str, str, str]], values: Floats, complete: tuple[str, ...] = ()) -> dict[str, list[float]]:
    history = assemble(keys, values, 0.0, 300.0, hold_s=600.0, complete=complete)
    return {origin: history.values[i].tolist() for i, (_, origin) in enumerate(history.keys)}


def test_a_sum_is_unknown_where_one_of_its_parts_is() -> None:
    keys = [(WEB, "eu", "eu-1"), (WEB, "us", "us-1")]
    values = np.array([[1.0, 1, 1, 1, 1], [5, NAN, NAN, NAN, NAN]])
    found = totals(keys, values)
    assert found["eu"] == [1, 1, 1, 1, 1]
    np.testing.assert_array_equal(found["us"], [5, 5, 5, NAN, NAN])
    np.testing.assert_array_equal(found[TOTAL], [6, 6, 6, NAN, NAN])


def test_a_cluster_that_is_seen_well_but_has_no_series_any_more_serves_nobody() -> None:
    keys = [(WEB, "eu", "eu-1"), (WEB, "us", "us-1")]
    values = np.array([[1.0, 1, 1, 1, 1], [5, NAN, NAN, NAN, NAN]])
    assert totals(keys, values, complete=("eu-1", "us-1"))[TOTAL] == [6, 1, 1, 1, 1]


def test_a_view_that_is_complete_again_does_not_turn_the_outage_before_into_zero() -> None:
    values = np.array([[5.0, NAN, NAN, NAN, 7]])
    np.testing.assert_array_equal(totals([(WEB, "us", "us-1")], values, ("us-1",))[TOTAL], [5, 5, 5, NAN, 7])


def test_a_cluster_without_any_sample_is_not_taken_for_seen() -> None:
    values = np.array([[NAN, NAN]])
    np.testing.assert_array_equal(totals([(WEB, "us", "us-1")], values, ("us-1",))[TOTAL], [NAN, NAN])


def test_before_its_first_sample_a_cluster_adds_nothing() -> None:
    keys = [(WEB, "eu", "eu-1"), (WEB, "us", "us-1")]
    values = np.array([[1.0, 1, 1], [NAN, NAN, 5]])
    assert totals(keys, values)[TOTAL] == [1, 1, 6]


def test_without_origin_there_is_a_total_only() -> None:
    assert list(totals([(WEB, "", "eu-1")], row(1, 2))) == [TOTAL]


def test_no_rows_is_no_series() -> None:
    history = assemble([], np.empty((0, 4)), 0.0, 300.0)
    assert history.keys == ()
    assert history.values.shape == (0, 4)


def test_demand_now_holds_the_part_of_a_cluster_that_went_out_of_sight() -> None:
    keys = [(WEB, "eu", "eu-1"), (WEB, "us", "us-1")]
    values = np.array([[1.0, 1, 1], [5, 5, NAN]])
    found = current(keys, values, np.array([2.0, NAN]), {WEB: "requests/s"}, {"us-1": 60.0}, 900.0, 300.0)[WEB]
    assert found.total == 7
    assert found.by_origin == {"eu": 2.0, "us": 5.0}
    assert found.missing == ("us-1",)


def test_demand_now_leaves_out_what_was_out_of_sight_for_too_long_and_names_it() -> None:
    keys = [(WEB, "eu", "eu-1"), (WEB, "us", "us-1")]
    values = np.array([[1.0] * 6, [5.0] + [NAN] * 5])
    found = current(keys, values, np.array([2.0, NAN]), {}, {"us-1": 60.0}, 900.0, 300.0)[WEB]
    assert found.total == 2
    assert "us" not in found.by_origin
    assert found.missing == ("us-1",)


def test_demand_of_which_nothing_is_known_is_not_zero() -> None:
    found = current([(WEB, "us", "us-1")], row(NAN, NAN), np.array([NAN]), {}, {"us-1": None}, 900.0, 300.0)[WEB]
    assert np.isnan(found.total)


def test_no_series_in_a_cluster_that_is_seen_is_no_traffic() -> None:
    found = current([(WEB, "us", "us-1")], row(5, 5), np.array([NAN]), {}, {}, 900.0, 300.0)[WEB]
    assert found.total == 0.0
    assert found.missing == ()
