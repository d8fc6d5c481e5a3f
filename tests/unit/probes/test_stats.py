"""The small windows and the bucket grid."""

from __future__ import annotations

import itertools
import math

import pytest

from probes.stats import BUCKET_BOUNDS_S, FlowLoss, PeerStats, RollingMin


def test_the_grid_is_28_steps_of_the_root_of_two() -> None:
    assert len(BUCKET_BOUNDS_S) == 28
    assert BUCKET_BOUNDS_S[0] == 1e-4
    assert BUCKET_BOUNDS_S[-1] == pytest.approx(1.16, abs=0.005)
    ratios = [b / a for a, b in itertools.pairwise(BUCKET_BOUNDS_S)]
    assert all(ratio == pytest.approx(math.sqrt(2), rel=1e-3) for ratio in ratios)


def test_a_value_on_a_bound_belongs_to_the_bucket_below() -> None:
    stats = PeerStats()
    stats.observe(BUCKET_BOUNDS_S[3], None, now_s=0, unix_s=0)
    stats.observe(99.0, None, now_s=0, unix_s=0)
    assert stats.buckets[3] == 1
    assert stats.buckets[28] == 1


def test_the_smallest_value_is_forgotten_after_a_minute() -> None:
    window = RollingMin()
    assert window.get(0) is None
    window.add(0, 0.5)
    window.add(30, 0.9)
    assert window.get(45) == 0.5
    assert window.get(75) == 0.9
    assert window.get(200) is None


def test_the_worst_flow_shows_through_twelve_good_ones() -> None:
    flows = FlowLoss()
    for index in range(13 * 40):
        flows.add(index * 0.1, index % 13, lost=index % 13 == 7 and index % 2 == 0)
    assert flows.worst() == pytest.approx(0.5, abs=0.05)


def test_few_probes_of_a_flow_say_nothing() -> None:
    flows = FlowLoss()
    for index in range(29):
        flows.add(index, 0, lost=True)
    assert flows.worst() is None
