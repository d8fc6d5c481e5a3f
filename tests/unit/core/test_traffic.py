"""Traffic is split at the least cost, and in the end it is split, whatever the size of the costs."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rebalancer.core.placement.traffic import best


@settings(max_examples=200, deadline=None)
@given(
    need=st.lists(st.floats(0.0, 5.0), min_size=1, max_size=4),
    replicas=st.lists(st.integers(0, 6), min_size=1, max_size=3),
    ways=st.lists(st.floats(0.0, 1.0), min_size=12, max_size=12),
    scale=st.sampled_from([1.0, 1e5, 1e9, 1e15]),
    equal=st.booleans(),
)
def test_all_that_fits_is_served_however_dear(
    need: list[float], replicas: list[int], ways: list[float], scale: float, equal: bool
) -> None:
    origins, clusters = [f"o{i}" for i in range(len(need))], [f"c{i}" for i in range(len(replicas))]
    pairs = itertools.product(origins, clusters)
    # Costs that differ in their last digits only are the hard ones.
    serve = {pair: scale * (0.6 + 1e-6 * way if equal else way) for pair, way in zip(pairs, ways, strict=False)}
    demand, there = dict(zip(origins, need, strict=True)), dict(zip(clusters, replicas, strict=True))
    found = best(demand, there, serve, lost=1e18)
    assert sum(found.values()) == pytest.approx(min(sum(need), sum(replicas)), abs=1e-4)
    for cluster, count in there.items():
        assert sum(v for (_, c), v in found.items() if c == cluster) <= count + 1e-6


def test_costs_that_differ_in_their_last_digits_end() -> None:
    demand = {"o0": 1.1968914046625336, "o1": 4.0481264571208175, "o2": 2.1831133082252885, "o3": 4.353355651535917}
    serve = {
        ("o0", "c0"): 63809.01772287639, ("o0", "c1"): 41467.528180399546, ("o0", "c2"): 17847.21890871936,
        ("o1", "c0"): 63809.22218387934, ("o1", "c1"): 41467.629526433375, ("o1", "c2"): 17846.971260746894,
        ("o2", "c0"): 63809.0813833452, ("o2", "c1"): 41467.51713957862, ("o2", "c2"): 17846.97283069601,
        ("o3", "c0"): 63809.19584286967, ("o3", "c1"): 41467.46046612195, ("o3", "c2"): 17847.123137931233,
    }  # fmt: skip
    found = best(demand, {"c0": 3, "c1": 1, "c2": 6}, serve, 1e18)
    assert sum(found.values()) == pytest.approx(10.0)
