"""CanaryRollouts as the hub has them: an invalid spec, a status that can't be read, and the start with them."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from rebalancer import config as cfg
from rebalancer.adapters.kubernetes.rollout_objects import LAST_GOOD_BYTES, LAST_GOOD_SPEC, status_body, stored_of
from rebalancer.adapters.kubernetes.rollouts import HubRollouts
from rebalancer.core.rollout import Spec, State, Status
from rebalancer.core.rollout.codec import status_to_dict
from rebalancer.core.rollout.model import ClusterStatus
from rebalancer.core.rollout.verbs import request_patch
from rebalancer.errors import ConfigError
from rebalancer.worlds.live import Live, at_start

STEPS = {"workloadRef": {"name": "web"}, "strategy": {"canary": {"steps": [{"setWeight": 30}, {"setWeight": 100}]}}}
FALLING = {
    "workloadRef": {"name": "web"},
    "strategy": {"canary": {"steps": [{"setWeight": 30}, {"setWeight": 20}, {"setWeight": 100}]}},
}
RUNNING = Status(
    state=State.ANALYSING, revision="r2", workload="web", clusters={"eu-1": ClusterStatus(stable="r1", weight=30)}
)


def raw(spec: dict[str, Any], status: Status | None = None, **metadata: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "apiVersion": "rebalancer.dev/v1alpha1",
        "kind": "CanaryRollout",
        "metadata": {
            "name": "web",
            "namespace": "shop",
            "uid": "u1",
            "generation": 2,
            "resourceVersion": "7",
            **metadata,
        },
        "spec": spec,
    }
    return found if status is None else {**found, "status": status_to_dict(Spec("shop", "web", "web"), status)}


class FakeHub(HubRollouts):
    """The hub without a server."""

    def __init__(self, *items: dict[str, Any]) -> None:
        super().__init__(cast("Any", None))
        self.items = list(items)

    def _list(self) -> list[dict[str, Any]]:
        return self.items

    def _replace(self, spec: Spec, body: dict[str, Any]) -> Any:
        self.items = [body]


def test_an_edit_that_makes_the_spec_invalid_leaves_the_last_good_one_in_force() -> None:
    hub = FakeHub(raw(STEPS, RUNNING))
    (good,) = asyncio.run(hub.load())
    hub.items = [raw(FALLING, RUNNING)]
    (one,) = asyncio.run(hub.load())
    assert (one.spec, one.status, one.waits) == (good.spec, RUNNING, False)
    assert one.problem.startswith("the spec is not valid and the last good one stays in force: spec.strategy.canary")
    assert "must rise" in one.problem


def test_a_new_process_finds_the_last_good_spec_in_the_status() -> None:
    hub = FakeHub(raw(STEPS, RUNNING))
    (good,) = asyncio.run(hub.load())
    asyncio.run(hub.save(good, RUNNING))
    written = hub.items[0]["status"]
    assert written[LAST_GOOD_SPEC] == STEPS
    fresh = FakeHub({**raw(FALLING), "status": written})
    (one,) = asyncio.run(fresh.load())
    assert (one.spec, one.status, one.waits) == (good.spec, RUNNING, False)
    asyncio.run(fresh.save(one, RUNNING))
    assert fresh.items[0]["status"][LAST_GOOD_SPEC] == STEPS


def test_a_rollout_made_anew_under_the_same_name_does_not_inherit_a_spec() -> None:
    hub = FakeHub(raw(STEPS))
    asyncio.run(hub.load())
    hub.items = [raw(FALLING, uid="u2")]
    assert asyncio.run(hub.load())[0].waits


def test_a_spec_too_large_for_the_status_is_left_out_of_it() -> None:
    large = {**STEPS, "images": {"web": "x" * LAST_GOOD_BYTES}}
    assert LAST_GOOD_SPEC not in status_body(stored_of(raw(large)), RUNNING, raw(large), large)


def test_without_any_good_spec_it_waits_but_can_be_aborted_and_deleted() -> None:
    asked = cast("dict[str, Any]", request_patch("abort", "1"))["metadata"]["annotations"]
    back = Status(state=State.ROLLING_BACK, workload="web")
    assert stored_of(raw(FALLING, RUNNING)).waits
    assert not stored_of(raw(FALLING, RUNNING, annotations=asked)).waits
    assert not stored_of(raw(FALLING, RUNNING, deletionTimestamp="2030-01-01T00:00:00Z")).waits
    assert not stored_of(raw(FALLING, back)).waits
    one = stored_of(raw({**FALLING, "workloadRef": {"name": "other"}}, RUNNING))
    assert (one.spec.workload, one.status, one.spec.generation) == ("web", RUNNING, 2)


def test_a_status_that_cannot_be_read_is_never_taken_for_an_empty_one() -> None:
    one = stored_of({**raw(STEPS), "status": {"state": "Dancing"}})
    assert one.waits
    assert one.blind


def live() -> Live:
    documents = cfg.parse(
        "{apiVersion: rebalancer.dev/v1alpha1, kind: RebalancerConfig, metadata: {name: c}, spec: "
        "{hub: {kubeconfigPath: /x}, telemetry: {backends: [{url: 'http://localhost'}]}}}",
        "fleet.yaml",
    )
    config = cfg.load(documents)
    assert config.controller is not None
    return Live(tuple(documents), config, config.controller.spec)


def cluster(**spec: Any) -> dict[str, Any]:
    head = {"apiVersion": "rebalancer.dev/v1alpha1", "kind": "MemberCluster", "metadata": {"name": "eu-1"}}
    return {**head, "spec": {"region": "eu", "connection": {"kubeconfigPath": "/x"}, **spec}}


def test_one_wrong_rollout_on_the_hub_keeps_nobody_from_starting_and_is_named() -> None:
    config, mistakes = at_start(live(), [raw(FALLING), cluster()])
    assert list(config.clusters) == ["eu-1"]
    assert config.rollouts == {}
    (one,) = mistakes
    assert "must rise" in one


def test_a_wrong_cluster_on_the_hub_ends_the_start() -> None:
    with pytest.raises(ConfigError, match="region"):
        at_start(live(), [raw(FALLING), cluster(region=7)])
