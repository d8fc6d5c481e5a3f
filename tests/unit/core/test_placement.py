"""The exact program against brute force on tiny fleets, and every bound by itself."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rebalancer.core.placement import (
    AMORTISATION_H,
    MOVE_DOLLARS,
    REMOVE_DOLLARS,
    SHORTFALL_DOLLARS,
    UNPLACED_DOLLARS,
    UNSERVED_DOLLARS,
    Item,
    Placed,
    Solution,
    evaluate,
    shortfall,
)
from rebalancer.core.placement import solve as solve_with_cache

CLUSTERS = ("a", "b", "c")
REGIONS = {"a": "eu", "b": "us", "c": "us"}


def item(replicas: int, now: Mapping[str, int] | None = None, **changes: object) -> Item:
    base = Item(
        workload="shop/web",
        replicas=replicas,
        demand={"eu": replicas / 2, "us": replicas / 2},
        clusters=CLUSTERS,
        now={**dict.fromkeys(CLUSTERS, 0), **(now or {})},
        serve={("eu", "a"): 0.001, ("eu", "b"): 0.09, ("eu", "c"): 0.1, ("us", "a"): 0.09, ("us", "b"): 0.001,
               ("us", "c"): 0.03},
        run=dict.fromkeys(CLUSTERS, 0.01),
        add_max=dict.fromkeys(CLUSTERS, 10),
        regions=REGIONS,
        cpu=1.0,
    )  # fmt: skip
    return replace(base, **changes)  # type: ignore[arg-type]  # test helper


def solve(items: Sequence[Item], cpu: Mapping[str, float], memory: Mapping[str, float]) -> Solution:
    return solve_with_cache(items, cpu, memory)[0]


def place(given: Item, free: Mapping[str, float] | None = None) -> Placed:
    return solve([given], free or {}, {}).items[given.workload]


def cost(given: Item, replicas: Mapping[str, int]) -> float:
    """The objective of a placement, counted by hand."""
    placed = evaluate(given, replicas)
    total = sum(given.serve.get(k, 0.0) * v for k, v in placed.traffic.items())
    total += UNSERVED_DOLLARS * placed.unserved
    total += UNPLACED_DOLLARS * (given.replicas - sum(replicas.values()))
    for cluster, count in replicas.items():
        total += given.run[cluster] * count
        total += max(0, count - given.now[cluster]) * MOVE_DOLLARS / AMORTISATION_H
        total += max(0, given.now[cluster] - count) * REMOVE_DOLLARS / AMORTISATION_H
    return total + SHORTFALL_DOLLARS * shortfall(given, replicas)


def feasible(given: Item, replicas: Mapping[str, int], free: Mapping[str, float]) -> bool:
    added = {c: max(0, n - given.now[c]) for c, n in replicas.items()}
    return (
        sum(replicas.values()) <= given.replicas
        and all(added[c] <= given.add_max[c] and added[c] * given.cpu <= free.get(c, math.inf) for c in CLUSTERS)
        and all(replicas[c] == given.now[c] for c in given.frozen)
        and all(replicas[c] == 0 for c in given.leave)
        and (given.cluster_max is None or all(n <= given.cluster_max for n in replicas.values()))
    )


@settings(max_examples=60, deadline=None)
@given(
    replicas=st.integers(1, 4),
    now=st.tuples(*[st.integers(0, 3)] * 3),
    serve=st.tuples(*[st.integers(1, 200)] * 6),
    run=st.tuples(*[st.integers(0, 50)] * 3),
    add=st.tuples(*[st.integers(0, 4)] * 3),
    free=st.tuples(*[st.integers(0, 4)] * 3),
    spread=st.tuples(st.integers(1, 3), st.sampled_from([1.0, 0.7, 0.5]), st.sampled_from([None, 1, 2, 4])),
    demand=st.tuples(st.floats(0, 1), st.floats(0.2, 1)),
)
def test_the_program_finds_what_brute_force_finds(
    replicas: int, now: tuple[int, ...], serve: tuple[int, ...], run: tuple[int, ...], add: tuple[int, ...],
    free: tuple[int, ...], spread: tuple[int, float, int | None], demand: tuple[float, float],
) -> None:  # fmt: skip
    keys = [(o, c) for o in ("eu", "us") for c in CLUSTERS]
    share, amount = demand
    tiny = item(
        replicas,
        dict(zip(CLUSTERS, now, strict=True)),
        serve={k: ms / 1000 for k, ms in zip(keys, serve, strict=True)},
        run={c: v / 100 for c, v in zip(CLUSTERS, run, strict=True)},
        add_max=dict(zip(CLUSTERS, add, strict=True)),
        demand={"eu": share * amount * replicas, "us": (1 - share) * amount * replicas},
        min_clusters=spread[0],
        max_share=spread[1],
        cluster_max=spread[2],
    )
    room = {c: float(v) for c, v in zip(CLUSTERS, free, strict=True)}
    found = place(tiny, room).replicas
    every = (dict(zip(CLUSTERS, n, strict=True)) for n in itertools.product(range(5), repeat=3))
    # The shortfall is measured against what is wanted, as the program does, so unplaced replicas count as missing.
    best = min(_score(tiny, r) for r in every if feasible(tiny, r, room))
    assert feasible(tiny, found, room), found
    assert _score(tiny, found) == pytest.approx(best, abs=2e-4)


def _score(given: Item, replicas: Mapping[str, int]) -> float:
    """As `cost`, with the spread rows of the program: they count against the replicas wanted."""
    base = cost(replace(given, min_clusters=1, max_share=1.0, cluster_max=None), replicas)
    used = sum(1 for n in replicas.values() if n)
    missed = max(0, min(given.min_clusters, given.replicas) - used)
    if given.max_share < 1.0:
        limit = max(1, math.floor(given.max_share * given.replicas + 1e-9))
        missed += sum(max(0, n - limit) for n in replicas.values())
    return base + SHORTFALL_DOLLARS * missed


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 6), st.sampled_from([0.25, 0.5, 1.0, 2.0]), st.integers(-100, 100)), min_size=1,
             max_size=6),
    st.tuples(*[st.floats(0, 8)] * 3),
)  # fmt: skip
def test_capacity_is_never_exceeded_by_all_workloads_together(
    wanted: list[tuple[int, float, int]], free: tuple[float, ...]
) -> None:
    items = [
        item(n, workload=f"shop/w{i}", cpu=cpu, memory=cpu * 2**30, priority=p) for i, (n, cpu, p) in enumerate(wanted)
    ]
    cpu = dict(zip(CLUSTERS, free, strict=True))
    memory = {c: v * 2**30 for c, v in cpu.items()}
    found = solve(items, cpu, memory).items
    for cluster in CLUSTERS:
        used = sum(found[i.workload].replicas[cluster] * i.cpu for i in items)
        assert used <= cpu[cluster] + 1e-6
    for one in items:
        assert sum(found[one.workload].replicas.values()) + found[one.workload].unplaced == one.replicas


@settings(max_examples=100, deadline=None)
@given(
    replicas=st.tuples(*[st.integers(0, 4)] * 3),
    serve=st.tuples(*[st.integers(1, 200)] * 6),
    demand=st.tuples(st.floats(0, 6), st.floats(0, 6)),
)
def test_given_replicas_serve_traffic_as_the_program_would(
    replicas: tuple[int, ...], serve: tuple[int, ...], demand: tuple[float, float]
) -> None:
    keys = [(o, c) for o in ("eu", "us") for c in CLUSTERS]
    standing = dict(zip(CLUSTERS, replicas, strict=True))
    fixed = item(
        sum(replicas), standing, frozen=frozenset(CLUSTERS), demand=dict(zip(("eu", "us"), demand, strict=True)),
        serve={k: ms / 1000 for k, ms in zip(keys, serve, strict=True)},
    )  # fmt: skip
    ours, theirs = evaluate(fixed, standing), place(fixed)
    for found in (ours, theirs):
        assert sum(found.traffic.values()) + found.unserved == pytest.approx(sum(demand), abs=1e-5)
    costs = [sum(fixed.serve[k] * v for k, v in found.traffic.items()) for found in (ours, theirs)]
    assert ours.unserved == pytest.approx(theirs.unserved, abs=1e-5)
    assert costs[0] == pytest.approx(costs[1], abs=1e-5)


def test_the_same_input_gives_the_same_plan() -> None:
    items = [item(7, {"b": 3}, workload=f"shop/w{i}") for i in range(8)]
    assert solve(items, {"a": 9.0}, {}) == solve(items[::-1], {"a": 9.0}, {})


def test_no_workload_is_no_plan() -> None:
    assert solve([], {}, {}).items == {}


@pytest.mark.parametrize(
    ("sentence", "given", "free", "replicas"),
    [
        ("everybody is served nearby", item(4), {}, {"a": 2, "b": 2, "c": 0}),
        ("a full cluster takes nothing new", item(4, add_max={"a": 10, "b": 0, "c": 10}), {}, {"a": 2, "b": 0, "c": 2}),
        ("room binds", item(4), {"b": 1.0}, {"a": 2, "b": 1, "c": 1}),
        ("staying needs no room", item(4, {"a": 2, "b": 2}), {"a": 0.0, "b": 0.0}, {"a": 2, "b": 2, "c": 0}),
        ("frozen replicas stay", item(4, {"c": 3}, frozen=frozenset("c")), {}, {"a": 1, "b": 0, "c": 3}),
        ("more frozen than wanted", item(2, {"c": 3}, frozen=frozenset("c")), {}, {"a": 0, "b": 0, "c": 3}),
        ("what must leave leaves", item(4, {"b": 4}, leave=frozenset("b")), {}, {"a": 2, "b": 0, "c": 2}),
        ("frozen wins over leave", item(4, {"b": 4}, leave=frozenset("b"), frozen=frozenset("b")), {},
         {"a": 0, "b": 4, "c": 0}),
        ("a maximum per cluster", item(4, cluster_max=2, demand={"us": 4.0}), {}, {"a": 0, "b": 2, "c": 2}),
        ("a minimum per cluster", item(4, cluster_min=1), {}, {"a": 2, "b": 1, "c": 1}),
        ("a minimum of clusters", item(4, min_clusters=3), {}, {"a": 2, "b": 1, "c": 1}),
        ("a minimum of regions", item(2, demand={"us": 2.0}, min_regions=2), {}, {"a": 1, "b": 1, "c": 0}),
        ("a largest share", item(4, max_share=0.5, demand={"us": 4.0}), {}, {"a": 0, "b": 2, "c": 2}),
        ("a largest share gives way before replicas are missing",
         item(4, max_share=0.5, add_max={"a": 0, "b": 10, "c": 0}), {}, {"a": 0, "b": 4, "c": 0}),
        ("a share of spot", item(4, spot=frozenset("b"), spot_max_share=0.25), {}, {"a": 2, "b": 1, "c": 1}),
        ("frozen spot replicas count", item(4, {"c": 1}, spot=frozenset("bc"), frozen=frozenset("c"),
                                            spot_max_share=0.25), {}, {"a": 3, "b": 0, "c": 1}),
        ("no more exchanges than allowed", item(4, {"c": 4}, max_exchanges=1), {}, {"a": 1, "b": 0, "c": 3}),
        ("growth is no exchange", item(4, {"c": 2}, max_exchanges=0), {}, {"a": 2, "b": 0, "c": 2}),
        ("a forced exchange is none either", item(4, {"c": 4}, max_exchanges=0, leave=frozenset("c")), {},
         {"a": 2, "b": 2, "c": 0}),
        ("one minimum per cluster against a frozen total", item(3, {"c": 3}, frozen=frozenset("c"), cluster_min=1), {},
         {"a": 0, "b": 0, "c": 3}),
        ("a minimum per cluster against no exchanges", item(3, {"c": 3}, cluster_min=1, max_exchanges=0), {},
         {"a": 0, "b": 0, "c": 3}),
        ("a minimum per cluster without room", item(3, {"b": 3}, cluster_min=1), {"a": 0.0, "c": 0.0},
         {"a": 0, "b": 3, "c": 0}),
    ],
)  # fmt: skip
def test_each_bound(sentence: str, given: Item, free: dict[str, float], replicas: dict[str, int]) -> None:
    assert dict(place(given, free).replicas) == replicas, sentence


def test_what_fits_nowhere_is_unplaced_and_nothing_that_runs_is_given_up() -> None:
    found = place(item(5, {"a": 2}, add_max=dict.fromkeys(CLUSTERS, 0)))
    assert found.replicas == {"a": 2, "b": 0, "c": 0}
    assert found.unplaced == 3


def test_room_for_one_goes_to_the_higher_priority() -> None:
    low, high = item(1, workload="shop/a-low", priority=0), item(1, workload="shop/z-high", priority=200)
    found = solve([low, high], {"a": 1.0, "b": 0.0, "c": 0.0}, {}).items
    assert found["shop/z-high"].replicas["a"] == 1
    assert found["shop/a-low"].unplaced == 1


def test_a_hundred_and_one_workloads_are_solved_in_two_batches_that_share_the_room() -> None:
    items = [item(1, workload=f"shop/w{i:03d}", demand={"eu": 1.0}) for i in range(101)]
    found = solve(items, {"a": 100.0, "b": 0.0, "c": 0.0}, {})
    assert sum(p.replicas["a"] for p in found.items.values()) == 100
    assert math.isnan(found.gap_ratio)


def test_a_spread_weight_evens_out() -> None:
    found = place(item(6, demand={"us": 6.0}, serve={("us", c): 0.01 for c in CLUSTERS}, spread_weight=1.0))
    assert found.replicas == {"a": 2, "b": 2, "c": 2}


@pytest.mark.parametrize(
    ("given", "replicas", "missed"),
    [
        (item(4, min_clusters=2), {"a": 4, "b": 0, "c": 0}, 1),
        (item(4, min_clusters=2), {"a": 3, "b": 1, "c": 0}, 0),
        (item(4, min_regions=2), {"a": 0, "b": 2, "c": 2}, 1),
        (item(4, max_share=0.5), {"a": 4, "b": 0, "c": 0}, 2),
        (item(4, cluster_max=1), {"a": 3, "b": 1, "c": 0}, 2),
        (item(4, spot=frozenset("a"), spot_max_share=0.25), {"a": 3, "b": 1, "c": 0}, 2),
        (item(4, cluster_min=1), {"a": 4, "b": 0, "c": 0}, 2),
        (item(4, cluster_min=1, add_max={"a": 0, "b": 0, "c": 9}), {"a": 4, "b": 0, "c": 0}, 1),
    ],
)
def test_what_a_placement_misses_is_counted(given: Item, replicas: dict[str, int], missed: int) -> None:
    assert shortfall(given, replicas) == missed


@pytest.mark.parametrize("number", [math.nan, -math.inf])
def test_a_workload_without_a_solution_stays_as_it_is_and_the_others_are_placed(number: float) -> None:
    broken = item(3, {"a": 1}, workload="shop/broken", run=dict.fromkeys(CLUSTERS, number))
    found = solve([item(3, {"a": 1}, workload="shop/sound"), broken], {}, {})
    assert set(found.unsolved) == {"shop/broken"}
    assert sum(found.items["shop/sound"].replicas.values()) == 3
    assert found.items["shop/broken"].replicas == broken.now
    assert math.isnan(found.gap_ratio)
