"""Which way of counting comes first while nobody knows yet which policy selects a workload."""

from __future__ import annotations

from rebalancer.adapters.telemetry.asks import asks_of
from rebalancer.core.policy import DemandSpec, Policy


def policy(name: str, query: str, origin_label: str = "") -> Policy:
    return Policy(name, namespace="shop", demand=DemandSpec(query, origin_label=origin_label))


def test_a_policy_without_origins_does_not_hide_those_of_another_that_counts_by_the_same_metric() -> None:
    asks = asks_of({"a": policy("a", "requests_total"), "b": policy("b", "requests_total", "origin")})
    assert [a.origin_label for a in asks] == ["origin", ""]
    assert all(a.takes("shop/anything") for a in asks)


def test_counters_come_before_cpu_and_one_after_the_other() -> None:
    policies = {p.name: p for p in (policy("a", ""), policy("b", "z_total", "o"), policy("c", "a_total"))}
    assert [a.query for a in asks_of(policies)] == ["a_total", "z_total", ""]
