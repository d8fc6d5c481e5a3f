"""The rule agrees with its numeric reference, keeps its promise under the null, and refuses what is no count."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rebalancer.core.evidence import (
    MAX_STARTS,
    Counts,
    Evidence,
    MetricEvidence,
    Rule,
    add,
    begin_step,
    from_dict,
    increment,
    log_bad,
    log_good,
    overdispersion,
    to_dict,
)

STEP = "step"
RULE = Rule()

# (interval = canary requests, bad, stable requests, bad, warm, full), log E_bad, log E_good of the design's reference.
REFERENCE: dict[str, tuple[list[Any], float, float]] = {
    "outage": ([(25, 25, 475, 0, False, False)], 65.687934, -12.626233),
    "two steps": ([(50, 0, 950, 1, False, False), STEP, (100, 3, 400, 1, False, False)], 1.197218, -1.872663),
    "warm": ([(25, 5, 475, 1, True, False), (25, 1, 475, 1, False, False)], 1.339732, -0.950454),
    "full": ([(500, 1, 9500, 10, False, False), (50, 10, 0, 0, False, True)], 20.868840, -0.933822),
    "good": ([(400, 0, 7600, 4, False, False)], -0.282094, 2.672324),
    "fractions": (
        [(10.5, 0.5, 99.5, 1.25, False, False), STEP, (0, 0, 10, 1, False, False), STEP, (7, 0, 70, 0, False, False)],
        -0.058059,
        0.027357,
    ),
}


def feed(
    evidence: Evidence, nc: float, kc: float, ns: float, ks: float, warm: bool = False, full: bool = False
) -> Evidence:
    inc = increment(RULE, evidence.counts, Counts(nc, kc, ns, ks), warm=warm, full=full)
    return evidence if inc is None else add(evidence, inc)


@pytest.mark.parametrize("name", REFERENCE)
def test_evidence_equals_the_numeric_reference(name: str) -> None:
    intervals, bad, good = REFERENCE[name]
    evidence = Evidence()
    for one in intervals:
        evidence = begin_step(evidence) if isinstance(one, str) else feed(evidence, *one)
    assert log_bad(evidence) == pytest.approx(bad, abs=1e-4)
    assert log_good(evidence) == pytest.approx(good, abs=1e-4)


@pytest.mark.parametrize(
    "counts", [(math.nan, 0, 1, 0), (1, 2, 1, 0), (-1, 0, 1, 0), (1, 0, math.inf, 0), (1, 0, 1, 2)]
)
def test_numbers_that_are_no_counts_are_not_judged(counts: tuple[float, float, float, float]) -> None:
    assert increment(RULE, Counts(), Counts(*counts), warm=False, full=False) is None


def test_a_stable_counter_that_is_gone_is_no_reason_for_the_absolute_test() -> None:
    evidence = feed(Evidence(), 500, 1, 9500, 10)
    for _ in range(20):
        evidence = feed(evidence, 50, 10, 0, 0)
    assert log_bad(evidence) < 0.5
    for _ in range(3):
        evidence = feed(evidence, 50, 10, 0, 0, full=True)
    assert log_bad(evidence) > math.log(20)


def test_an_incident_that_hits_both_versions_is_no_evidence_against_the_canary() -> None:
    evidence = Evidence()
    for _ in range(60):
        evidence = feed(evidence, 50, 10, 200, 40)
    assert log_bad(evidence) < 0.0


def test_one_error_at_near_zero_traffic_does_not_roll_back() -> None:
    one = MetricEvidence().begin_step(["a"])
    inc = increment(RULE, Counts(), Counts(20, 1, 400, 0), warm=False, full=False)
    assert inc is not None
    one = one.add("a", inc, good=True)
    assert one.log_bad() < math.log(20) or not one.enough_bad(RULE)


def test_few_bad_requests_suffice_only_if_most_fail() -> None:
    def with_counts(n: float, k: float) -> MetricEvidence:
        inc = increment(RULE, Counts(), Counts(n, k, 100, 0), warm=False, full=False)
        assert inc is not None
        return MetricEvidence().add("a", inc, good=True)

    assert not with_counts(10, 2).enough_bad(RULE)
    assert with_counts(3, 2).enough_bad(RULE)
    assert with_counts(100, 3).enough_bad(RULE)


def test_one_bad_cluster_of_many_and_a_weak_fault_in_all_are_both_seen() -> None:
    clusters = [f"c{i}" for i in range(10)]

    def run(bad: dict[str, float]) -> float:
        e = MetricEvidence(fleet=10).begin_step(clusters)
        for _ in range(20):
            for c in clusters:
                inc = increment(RULE, Counts(), Counts(10, bad.get(c, 0.01), 90, 0.09), warm=False, full=False)
                assert inc is not None
                e = e.add(c, inc, good=True)
        return e.log_bad()

    assert run({"c3": 1.0}) > math.log(20)
    assert run(dict.fromkeys(clusters, 0.1)) > math.log(20)
    assert run({}) < 0.0


def test_a_cluster_outside_the_step_gives_evidence_of_harm_only() -> None:
    inc = increment(RULE, Counts(), Counts(400, 0, 1000, 1), warm=False, full=False)
    assert inc is not None
    e = MetricEvidence(fleet=2).begin_step(["b"]).add("a", inc, good=False)
    assert e.log_good(["b"]) == pytest.approx(0.0)
    assert e.pooled.starts[0] != Evidence().starts[0]


def test_each_step_asks_for_its_own_good_evidence_and_starts_are_bounded() -> None:
    evidence = feed(Evidence(), 400, 0, 7600, 4)
    assert log_good(evidence) > 2.0
    assert log_good(begin_step(evidence)) == pytest.approx(0.0)
    for _ in range(100):
        evidence = begin_step(evidence)
    assert len(evidence.starts) == MAX_STARTS
    assert log_bad(evidence) < 0.0


@pytest.mark.parametrize("rate", [0.01, 0.3])
def test_the_mean_e_value_of_a_healthy_canary_is_at_most_one(rate: float) -> None:
    rng = np.random.default_rng(1)
    rule = Rule(tolerance=1.0)
    values = []
    for _ in range(600):
        evidence = Evidence()
        for _ in range(10):
            counts = Counts(20, float(rng.binomial(20, rate)), 80, float(rng.binomial(80, rate)))
            inc = increment(rule, evidence.counts, counts, warm=False, full=False)
            assert inc is not None
            evidence = add(evidence, inc)
        values.append(math.exp(log_bad(evidence)))
    assert np.mean(values) <= 1.0 + 3.0 * np.std(values) / math.sqrt(len(values))
    assert np.mean(np.array(values) >= 20.0) <= 0.05


def test_overdispersion_is_one_without_data_and_grows_with_bursts() -> None:
    rng = np.random.default_rng(2)
    assert overdispersion([]) == 1.0
    smooth = [Counts(500, float(rng.poisson(2)), 500, float(rng.poisson(2))) for _ in range(300)]
    bursts = [Counts(500, 5.0 * rng.poisson(0.4), 500, 5.0 * rng.poisson(0.4)) for _ in range(300)]
    assert overdispersion(smooth) < 1.3
    assert 3.0 < overdispersion(bursts) < 7.0


@given(st.lists(st.tuples(*[st.floats(0, 1e6)] * 2), min_size=1, max_size=5), st.booleans(), st.booleans())
def test_evidence_written_and_read_back_is_the_same(arms: list[tuple[float, float]], warm: bool, full: bool) -> None:
    evidence = Evidence()
    for nc, ns in arms:
        evidence = begin_step(feed(evidence, nc, nc / 3, ns, ns / 7, warm, full))
    assert from_dict(json.loads(json.dumps(to_dict(evidence)))) == evidence


@pytest.mark.parametrize(
    "damage", [{"starts": []}, {"warm": [1.0]}, {"counts": [1, 2, 3, "x"]}, {"full": [math.nan] * 8}]
)
def test_a_damaged_status_is_an_error_and_not_healthy(damage: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r".+"):
        from_dict({**to_dict(Evidence()), **damage})
