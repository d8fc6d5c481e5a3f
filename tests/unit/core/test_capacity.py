"""Capacity of a replica from its CPU by its load: right where it can be known, else safe, and refused where wrong."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rebalancer.core.capacity import Learned, estimate, learn
from rebalancer.core.model import Placement, Plan
from rebalancer.core.planning import PlanMemory
from tests.unit.core.fleet import NOW, POLICY, REGIONS, WEB, cluster_state, demand, placement, plan, snapshot

USABLE, COST = 0.35, 0.01
"""Half a core at 70 %; cores per request/s."""
Samples = list[tuple[float, float]]


def seen(samples: Iterable[tuple[float, float]]) -> Learned:
    found = Learned()
    for load, cores in samples:
        found = learn(found, load, cores)
    return found


def day(
    count: int, *, idle: float = 0.05, cost: float = COST, mean: float = 18.0, swing: float = 0.5, noise: float = 0.0,
    growing: bool = False, seed: int = 0, period: int = 288,
) -> Samples:  # fmt: skip
    """CPU of a load that swings around its mean; noise is a share of the CPU, of the usual one or of that of the time.

    Nothing falls below a tenth of the noiseless value.
    """
    rng, usual, result = random.Random(seed), idle + cost * mean, []
    for i in range(count):
        load = mean * (1.0 + swing * math.sin(2 * math.pi * i / period))
        cores = idle + cost * load
        result.append((load, max(0.1 * cores, cores + rng.gauss(0.0, noise) * (cores if growing else usual))))
    return result


@pytest.mark.parametrize(
    ("sentence", "samples", "capacity", "told"),
    [
        ("nothing was seen", [], math.nan, "no cycle saw"),
        ("one sample: all CPU is the load's", [(20.0, 0.25)], 28.0, "all CPU counts"),
        ("a steady load: likewise, however long", [(20.0, 0.25)] * 500, 28.0, "20 of a load that varies are needed"),
        ("a load that swings tells idle CPU apart", day(300), 30.0, "0.05 cores idle"),
        ("too few samples do not", [(10.0, 0.15), (26.0, 0.31)] * 9, 35.0 * 18.0 / 23.0, "all CPU counts"),
        ("no idle CPU", day(300, idle=0.0), 35.0, "0 cores idle"),
        ("CPU that is always the same", [(x, 0.2) for x, _ in day(300)], math.nan, "R2 0.00"),
        ("CPU that falls with the load", [(x, 0.6 - COST * x) for x, _ in day(300)], math.nan, "-0.01 cores per unit"),
        ("a replica that idles above what it may use", day(300, idle=0.4), math.nan, "used when idle"),
        ("a load that hardly varies beside the noise", day(300, swing=0.03, noise=0.1), 35.0 * 18.0 / 23.0,
         "all CPU counts"),
        ("replicas that are too full: the line, not the ratio", day(600, mean=60.0, swing=0.3), 30.0, "CPU by load"),
    ],
)  # fmt: skip
def test_what_the_samples_say(sentence: str, samples: Samples, capacity: float, told: str) -> None:
    found = estimate(seen(samples), USABLE)
    assert found.capacity == pytest.approx(capacity, nan_ok=True, rel=0.03), (sentence, found)
    assert told in found.told, (sentence, found)


def test_without_a_request_nobody_knows() -> None:
    found = estimate(seen(day(300)), 0.0)
    assert math.isnan(found.capacity)
    assert found.told == "the pods request no CPU"


@settings(max_examples=150, deadline=None)
@given(
    idle=st.floats(0.0, 0.4), load=st.floats(0.5, 1.2), swing=st.floats(0.3, 0.8), noise=st.floats(0.0, 0.1),
    growing=st.booleans(), count=st.sampled_from([100, 300, 1000]), seed=st.integers(0, 10_000),
)  # fmt: skip
def test_a_line_with_noise_is_learned_at_most_a_tenth_too_high_and_a_third_too_low(
    idle: float, load: float, swing: float, noise: float, growing: bool, count: int, seed: int
) -> None:
    """Idle CPU is a share of what may be used, load of the capacity, noise of the CPU, even or growing with it."""
    capacity = USABLE * (1.0 - idle) / COST
    samples = day(count, idle=idle * USABLE, mean=load * capacity, swing=swing, noise=noise, growing=growing, seed=seed)
    found = estimate(seen(samples), USABLE)
    loads, cores = (sum(values) for values in zip(*samples[-10:], strict=True))
    least = min(capacity, USABLE * loads / cores)
    assert 0.67 * least <= found.capacity, found
    # Of replicas that are too full proportional CPU says too much, but less than they serve: it asks for more of them.
    assert found.capacity <= 1.1 * max(capacity, loads / 10), found


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), swing=st.floats(0.35, 0.8), spread=st.floats(0.05, 0.45))
def test_cpu_that_has_nothing_to_do_with_the_load_is_refused(seed: int, swing: float, spread: float) -> None:
    rng = random.Random(seed)
    samples = [(x, rng.uniform(0.5 - spread, 0.5 + spread)) for x, _ in day(576, swing=swing)]
    assert math.isnan(estimate(seen(samples), USABLE).capacity)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), error=st.floats(0.0, 0.1), idle=st.floats(0.0, 0.1))
def test_errors_of_a_steady_loads_measurement_are_not_taken_for_its_swing(seed: int, error: float, idle: float) -> None:
    rng = random.Random(seed)
    samples = [(20.0 * (1.0 + rng.gauss(0.0, error)), idle + 0.2) for _ in range(300)]
    found = estimate(seen(samples), USABLE)
    assert found.capacity == pytest.approx(USABLE * 20.0 / (idle + 0.2), rel=0.2), found


@pytest.mark.parametrize("cost", [0.5 * COST, 1.3 * COST, 2.0 * COST])
def test_a_release_that_changes_what_a_request_costs_is_noticed_within_twenty_samples(cost: float) -> None:
    known = seen(day(1440, noise=0.03, period=1440))
    assert estimate(known, USABLE).capacity == pytest.approx(0.3 / COST, rel=0.05)
    for load, cores in day(20, cost=cost, noise=0.03, period=1440):
        known = learn(known, load, cores)
    assert 0.5 * 0.3 / cost <= estimate(known, USABLE).capacity <= 1.2 * 0.3 / cost
    for load, cores in day(1440, cost=cost, noise=0.03, period=1440, seed=1):
        known = learn(known, load, cores)
    assert estimate(known, USABLE).capacity == pytest.approx(0.3 / cost, rel=0.05)


def test_what_is_long_ago_fades() -> None:
    found = estimate(seen([*day(3000, idle=0.1, cost=0.0085), *day(6000)]), USABLE)
    assert found.capacity == pytest.approx(30.0, rel=0.02)


# --- through the planner

ORIGINS = {"eu": 60.0, "us": 60.0}
HERE = {"eu-1": 4, "us-1": 4, "ap-1": 0}
CPU = {"eu-1": 0.8, "us-1": 0.8}
LEARNING = replace(POLICY, capacity_per_replica=None, min_replicas=0)


def learned(memory: PlanMemory | None = None) -> tuple[Plan, PlanMemory]:
    told = replace(demand(ORIGINS), cpu_cores=CPU)
    return plan(snapshot(HERE, ORIGINS, seen=told), ORIGINS, LEARNING, memory)


def test_a_cycle_learns_from_the_load_and_the_cpu_of_its_ready_replicas() -> None:
    found, memory = learned()
    assert found.workloads[WEB].capacity == pytest.approx(0.35 * 120.0 / 1.6)
    assert (memory.capacity[WEB].long.x, memory.capacity[WEB].long.y) == (15.0, 0.2)
    assert any(line.startswith("capacity of a replica 26.25 requests/s") for line in found.workloads[WEB].lines)


@pytest.mark.parametrize(
    ("sentence", "change", "ready", "seen_s"),
    [
        ("the CPU of one cluster is missing", {"cpu_cores": {"eu-1": 0.8}}, 4, NOW),
        ("requests of one cluster are missing", {"missing": ("us-1",)}, 4, NOW),
        ("CPU is capped by a limit", {"censored": {"us-1": "its pods use 94% of their CPU limit"}}, 4, NOW),
        ("CPU is no number", {"cpu_cores": {"eu-1": 0.8, "us-1": math.nan}}, 4, NOW),
        ("hardly any CPU", {"cpu_cores": {"eu-1": 0.004, "us-1": 0.004}}, 4, NOW),
        ("no load", {"total": 0.0}, 4, NOW),
        ("the replicas of one cluster were read a while ago", {}, 4, NOW - 60),
        ("no replica is ready", {}, 0, NOW),
    ],
)
def test_a_part_of_the_picture_teaches_nothing_and_takes_nothing_away(
    sentence: str, change: dict[str, object], ready: int, seen_s: float
) -> None:
    known = PlanMemory(capacity={WEB: seen(day(300))})
    told = replace(replace(demand(ORIGINS), cpu_cores=CPU), **change)  # type: ignore[arg-type]  # a table of keywords
    here: dict[str, int | Placement] = {c: placement(c, n, ready=min(n, ready)) for c, n in HERE.items()}
    scene = snapshot(here, ORIGINS, states={"us-1": cluster_state("us-1", seen_s=seen_s)}, seen=told)
    found, memory = plan(scene, ORIGINS, LEARNING, known)
    assert memory.capacity[WEB] == known.capacity[WEB], sentence
    assert found.workloads[WEB].capacity == pytest.approx(30.0, rel=0.01), sentence


def test_a_poor_fit_is_refused_with_its_r2_and_the_number_stays() -> None:
    nonsense = PlanMemory(capacity={WEB: seen([(x, 0.2) for x, _ in day(300)])})
    found, _ = learned(nonsense)
    (why,) = [r.detail for r in found.refusals if r.reason == "capacity-unknown"]
    assert "R2 0.0" in why
    assert found.actions == ()
    assert set(found.workloads[WEB].planned) == set(REGIONS)
