"""From demand to replicas: bounds, tolerance, stabilisation, and decreases only on complete data."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rebalancer.core.policy import Policy, resolve_count
from rebalancer.core.scaling import Recommendations, ScalingSettings, Wanted, behaviour, remember, wanted

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
        ("above the maximum, with demand for more", ask(150, 20, high=10), 10, "above-max", ("at-max",)),
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


@pytest.mark.parametrize(
    ("sentence", "up_s", "past", "replicas", "reason", "held"),
    [
        ("no window, as an HPA: at once", 0.0, ((NOW - 60, 4), (NOW, 10)), 10, "demand-up", ()),
        ("a spike that is new waits", 120.0, ((NOW - 60, 4), (NOW, 10)), 4, "", ("stabilising",)),
        ("as far as was wanted all the while", 120.0, ((NOW - 60, 7), (NOW, 10)), 7, "demand-up", ("stabilising",)),
        ("wanted for the whole window", 120.0, ((NOW - 200, 4), (NOW - 110, 10), (NOW, 10)), 10, "demand-up", ()),
        ("a cold memory delays nothing", 120.0, ((NOW, 10),), 10, "demand-up", ()),
        ("what was wanted less than now takes nothing away", 120.0, ((NOW - 60, 1), (NOW, 10)), 4, "",
         ("stabilising",)),
    ],
)  # fmt: skip
def test_an_increase_goes_as_far_as_demand_asked_for_over_its_window(
    sentence: str, up_s: float, past: Recommendations, replicas: int, reason: str, held: tuple[str, ...]
) -> None:
    calm = behaviour(Policy("p", scale_up_stabilization_s=up_s), SETTINGS)
    found = wanted(Policy("p"), 95.0, 10.0, 4, past, NOW, calm, may_decrease=True)
    assert (found.replicas, found.reason, found.held) == (replicas, reason, held), sentence


def test_below_the_minimum_nothing_waits() -> None:
    calm = ScalingSettings(up_stabilization_s=600.0)
    found = wanted(Policy("p", min_replicas=3), 10.0, 10.0, 1, ((NOW - 60, 1), (NOW, 1)), NOW, calm, may_decrease=True)
    assert (found.replicas, found.reason) == (3, "below-min")


def test_a_policy_says_its_own_stabilisation_else_the_controllers_holds() -> None:
    assert behaviour(Policy("p"), SETTINGS) == SETTINGS
    own = behaviour(Policy("p", scale_down_stabilization_s=60.0, scale_up_stabilization_s=30.0), SETTINGS)
    assert (own.stabilization_s, own.up_stabilization_s) == (60.0, 30.0)
    past = ((NOW - 100, 9), (NOW - 50, 8), (NOW, 8))
    assert wanted(Policy("p"), 75.0, 10.0, 10, past, NOW, SETTINGS, may_decrease=True).replicas == 10
    assert wanted(Policy("p"), 75.0, 10.0, 10, past, NOW, own, may_decrease=True).replicas == 8


@given(st.floats(0, 600), st.integers(0, 60), pasts, st.floats(0, 900))
def test_a_longer_window_never_grows_faster_and_never_takes_away(
    demand: float, current: int, past: Recommendations, window_s: float
) -> None:
    policy = Policy("p", min_replicas=0)
    raw = math.ceil(demand / 10.0 - 1e-9)

    def replicas(up_s: float) -> int:
        calm = replace(SETTINGS, up_stabilization_s=up_s)
        seen = remember(past, NOW, raw, calm)
        return wanted(policy, demand, 10.0, current, seen, NOW, calm, may_decrease=True).replicas

    at_once, later = replicas(0.0), replicas(window_s)
    assert later <= at_once
    assert later >= min(at_once, current)


def test_memory_keeps_the_longer_window() -> None:
    past: Recommendations = ((0.0, 5), (100.0, 6), (500.0, 8))
    calm = ScalingSettings(stabilization_s=60.0, up_stabilization_s=550.0)
    assert remember(past, 600.0, 9, calm) == ((0.0, 5), (100.0, 6), (500.0, 8), (600.0, 9))


def test_memory_keeps_the_window_and_one_entry_before_it() -> None:
    past: Recommendations = ((0.0, 5), (100.0, 6), (350.0, 7), (500.0, 8))
    assert remember(past, 600.0, 9, SETTINGS) == ((100.0, 6), (350.0, 7), (500.0, 8), (600.0, 9))


@pytest.mark.parametrize(
    ("value", "total", "count"), [(3, 10, 3), ("10%", 25, 2), ("10%", 5, 0), ("29%", 100, 29), ("0%", 50, 0)]
)
def test_a_percentage_is_rounded_down(value: int | str, total: int, count: int) -> None:
    assert resolve_count(value, total) == count
