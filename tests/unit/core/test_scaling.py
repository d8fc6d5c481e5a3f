"""From demand to replicas: bounds, tolerance, stabilisation, and decreases only on complete data."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rebalancer.core.policy import Policy, resolve_count
from rebalancer.core.scaling import Recommendations, ScalingSettings, Wanted, remember, wanted

SETTINGS = ScalingSettings()
NOW = 10_000.0
CALM: Recommendations = ((NOW - 700, 1), (NOW - 290, 1), (NOW, 1))
"""A past in which nothing but one replica was recommended."""


def ask(
    demand: float, current: int, *, low: int = 2, high: int | None = None, past: Recommendations = CALM,
    may_decrease: bool = True,
) -> Wanted:  # fmt: skip
    policy = Policy("p", min_replicas=low, max_replicas=high)
    return wanted(policy, demand, 10.0, current, past, NOW, SETTINGS, may_decrease=may_decrease)


@pytest.mark.parametrize(
    ("sentence", "found", "replicas", "reason", "held"),
    [
        ("demand needs more", ask(95, 4), 10, "demand-up", ()),
        ("just what is there", ask(40, 4), 4, "", ()),
        ("a little more is within the tolerance", ask(104, 10), 10, "", ()),
        ("beyond the tolerance it is not", ask(111, 10), 12, "demand-up", ()),
        ("a small step up of a small workload", ask(25, 2), 3, "demand-up", ()),
        ("a little less is within the tolerance", ask(91, 10), 10, "", ()),
        ("far less, for the whole window: in steps", ask(10, 10), 7, "demand-down", ("large-drop",)),
        ("less, for the whole window", ask(75, 10), 8, "demand-down", ()),
        ("the maximum holds", ask(500, 10, high=10), 10, "", ("at-max",)),
        ("growth up to the maximum", ask(500, 5, high=10), 10, "demand-up", ("at-max",)),
        ("the minimum holds", ask(1, 2), 2, "", ("at-min",)),
        ("below the minimum", ask(1, 1), 2, "below-min", ()),
        ("below the minimum, with demand for more", ask(50, 1), 5, "below-min", ()),
        ("above the maximum: down to it and no further", ask(10, 20, high=10), 10, "above-max", ()),
        ("nothing at all", ask(0, 1, low=0, past=((NOW - 700, 0), (NOW, 0))), 0, "demand-down", ()),
        ("partial data takes nothing away", ask(10, 10, may_decrease=False), 10, "", ("demand-partial",)),
        ("partial data still adds", ask(200, 10, may_decrease=False), 20, "demand-up", ()),
        ("the window was not watched", ask(10, 10, past=((NOW - 100, 1), (NOW, 1))), 10, "", ("stabilising",)),
        ("more was wanted within the window", ask(10, 10, past=((NOW - 700, 1), (NOW - 200, 30), (NOW, 1))), 10, "",
         ("stabilising",)),
        ("a little more was wanted within the window", ask(10, 10, past=((NOW - 700, 1), (NOW - 200, 8), (NOW, 1))), 8,
         "demand-down", ()),
    ],
)  # fmt: skip
def test_replicas_follow_demand(
    sentence: str, found: Wanted, replicas: int, reason: str, held: tuple[str, ...]
) -> None:
    assert (found.replicas, found.reason, found.held) == (replicas, reason, held), sentence


bounds = st.tuples(st.integers(0, 20), st.integers(0, 20)).map(lambda p: (min(p), max(p)))
pasts = st.lists(st.tuples(st.floats(0, 900), st.integers(0, 60)), max_size=8).map(
    lambda entries: tuple(sorted((NOW - age, n) for age, n in entries))
)


@given(st.floats(0, 600), st.floats(0, 600), st.integers(0, 60), st.tuples(bounds, st.booleans()), pasts, st.booleans())
def test_more_demand_never_asks_for_fewer_replicas(
    one: float, two: float, current: int, edge: tuple[tuple[int, int], bool], past: Recommendations, may: bool
) -> None:
    (low, high), bounded = edge
    less, more = sorted((one, two))

    def replicas(demand: float) -> int:
        seen = remember(past, NOW, math.ceil(demand / 10 - 1e-9), SETTINGS)
        limit = high if bounded else None
        return ask(demand, current, low=low, high=limit, past=seen, may_decrease=may).replicas

    assert replicas(less) <= replicas(more)


@given(st.floats(0, 600), st.integers(0, 60), bounds, pasts, st.booleans())
def test_the_number_is_within_the_bounds_and_falls_slowly(
    demand: float, current: int, edge: tuple[int, int], past: Recommendations, may: bool
) -> None:
    low, high = edge
    found = ask(demand, current, low=low, high=high, past=past, may_decrease=may)
    assert low <= found.replicas <= high
    if current <= high:
        assert found.replicas >= current - max(1, math.floor(current * SETTINGS.max_drop_ratio))
    if not may and low <= current <= high:
        assert found.replicas >= current


def test_memory_keeps_the_window_and_one_entry_before_it() -> None:
    past: Recommendations = ((0.0, 5), (100.0, 6), (350.0, 7), (500.0, 8))
    assert remember(past, 600.0, 9, SETTINGS) == ((100.0, 6), (350.0, 7), (500.0, 8), (600.0, 9))


@pytest.mark.parametrize(
    ("value", "total", "count"), [(3, 10, 3), ("10%", 25, 2), ("10%", 5, 0), ("29%", 100, 29), ("0%", 50, 0)]
)
def test_a_percentage_is_rounded_down(value: int | str, total: int, count: int) -> None:
    assert resolve_count(value, total) == count
