"""What Thanos says of its stores."""

from __future__ import annotations

from typing import Any

import pytest

from rebalancer.adapters.telemetry.dialect import is_partial, of_cluster, params, stores

NOW = 1_800_000_000.0
FOREVER = 2**63 - 1


def _store(name: str, cluster: str | None, error: str | None = None, newest_s: float | None = None) -> dict[str, Any]:
    return {
        "name": name, "lastCheck": "2027-01-15T07:59:00.123456789Z", "lastError": error,
        "labelSets": [{"cluster": cluster, "replica": "a"}] if cluster else [],
        "minTime": 0, "maxTime": FOREVER if newest_s is None else newest_s * 1000,
    }  # fmt: skip


CASES: dict[str, tuple[list[dict[str, Any]], bool | None, str]] = {
    "a healthy sidecar": ([_store("a", "eu")], True, ""),
    "an unhealthy one is named with its error": (
        [_store("a", "eu", "refused")],
        False,
        "store a is unhealthy: refused",
    ),
    "one of two replicas is enough": ([_store("a", "eu", "refused"), _store("b", "eu")], True, ""),
    "no store of the cluster": ([_store("a", "us")], False, "no store with its label"),
    "a store that ended long ago": ([_store("a", "eu", None, NOW - 7200)], False, "no sample since long"),
    "a receiver may have it, beside sidecars of others": ([_store("a", "us"), _store("b", None)], None, ""),
    "a receiver that is down has nothing": (
        [_store("a", "us"), _store("b", None, "refused")],
        False,
        "no store with its label",
    ),
    "stores without the label say nothing": ([_store("a", None)], None, ""),
    "no stores say nothing": ([], None, ""),
}


@pytest.mark.parametrize("sentence", CASES)
def test_stores_tell_of_a_cluster(sentence: str) -> None:
    entries, healthy, words = CASES[sentence]
    view = of_cluster(stores({"sidecar": entries, "store": None}), ("cluster", "eu"), NOW, 120)
    assert (None if view is None else view.healthy) == healthy
    if view is not None:
        assert words in view.detail


def test_the_last_good_check_says_since_when() -> None:
    view = of_cluster(stores({"sidecar": [_store("a", "eu", "refused")]}), ("cluster", "eu"), NOW, 120)
    assert view is not None
    assert view.since_s == pytest.approx(NOW - 60, abs=1)


@pytest.mark.parametrize("data", [None, [], {"a": 1}, {"a": [1, {}]}, {"a": [{"labelSets": 3, "lastCheck": "x"}]}])
def test_an_unknown_shape_is_no_error(data: object) -> None:
    of_cluster(stores(data), ("cluster", "eu"), NOW, 120)


def test_remarks_on_a_query_are_not_a_partial_answer() -> None:
    assert not is_partial(("PromQL warning: metric might not be a counter",))
    assert is_partial(("PromQL info: x", "receive series from Addr: 10.0.0.1: refused"))


def test_only_thanos_gets_parameters() -> None:
    assert params("prometheus") == {}
    assert params("thanos")["partial_response"] == "false"
    assert params("thanos")["max_source_resolution"] == "0s"
    assert params("thanos", partly=True)["partial_response"] == "true"


def test_a_check_without_a_time_zone_is_not_taken_for_local_time() -> None:
    entry = {**_store("a", "eu", "refused"), "lastCheck": "2027-01-15T07:59:00"}
    found = of_cluster(stores({"sidecar": [entry]}), ("cluster", "eu"), NOW, 60.0)
    assert found is not None
    assert (found.healthy, found.since_s) == (False, None)
