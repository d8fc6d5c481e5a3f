"""Division by weights: quotas as Webster's, floors, caps, and that one more replica takes none away."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rebalancer.core.placement.webster import divide


@st.composite
def fleets(draw: st.DrawFn) -> tuple[int, np.ndarray, np.ndarray, np.ndarray]:
    count = draw(st.integers(1, 7))
    many = st.lists(st.integers(0, 12), min_size=count, max_size=count)
    weights = draw(st.lists(st.floats(0, 100, allow_subnormal=False), min_size=count, max_size=count))
    floors, extra = np.array(draw(many), np.int64), np.array(draw(many), np.int64)
    return draw(st.integers(0, 60)), np.array(weights), floors, floors + extra


@given(fleets())
@settings(max_examples=300, deadline=None)
def test_one_more_replica_never_lowers_a_cluster(fleet: tuple[int, np.ndarray, np.ndarray, np.ndarray]) -> None:
    total, weights, floors, caps = fleet
    fewer, more = (divide(n, weights, floors=floors, caps=caps) for n in (total, total + 1))
    assert (more >= fewer).all()
    assert more.sum() - fewer.sum() in (0, 1)


@given(fleets())
@settings(max_examples=300, deadline=None)
def test_floors_and_caps_hold_and_nothing_is_left_while_there_is_a_place(
    fleet: tuple[int, np.ndarray, np.ndarray, np.ndarray],
) -> None:
    total, weights, floors, caps = fleet
    found = divide(total, weights, floors=floors, caps=caps)
    assert (found >= floors).all()
    assert (found <= caps).all()
    assert found.sum() <= max(total, floors.sum())
    if found.sum() < total:
        assert (found == caps)[weights > 0].all()


@given(fleets())
@settings(max_examples=200, deadline=None)
def test_no_replica_would_be_better_placed_elsewhere(fleet: tuple[int, np.ndarray, np.ndarray, np.ndarray]) -> None:
    total, weights, _, _ = fleet
    found = divide(total, weights)
    # Webster's criterion: the last seat given is worth at least as much as any seat not given.
    given_last = [weights[c] / (2 * found[c] - 1) for c in range(len(found)) if found[c] > 0]
    next_one = [weights[c] / (2 * found[c] + 1) for c in range(len(found))]
    assert not given_last or min(given_last) >= max(next_one) - 1e-9


@pytest.mark.parametrize(
    ("total", "weights", "expected"),
    [
        (10, [6, 3, 1], [6, 3, 1]),
        (7, [53, 24, 23], [3, 2, 2]),
        (3, [1, 1, 1, 1], [1, 1, 1, 0]),
        (0, [1, 2], [0, 0]),
        (5, [0, 0], [0, 0]),
    ],
)
def test_known_divisions(total: int, weights: list[float], expected: list[int]) -> None:
    assert divide(total, np.array(weights, float)).tolist() == expected


def test_ties_follow_the_order_given() -> None:
    assert divide(1, np.array([1.0, 1.0]), order=(1, 0)).tolist() == [0, 1]


@pytest.mark.parametrize(("total", "weights"), [(-1, [1.0]), (1, [-1.0]), (1, [float("nan")])])
def test_what_is_no_number_is_refused(total: int, weights: list[float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        divide(total, np.array(weights))
