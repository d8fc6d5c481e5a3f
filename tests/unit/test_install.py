"""What `install` renders: schemas without defaults or references, and rights without wildcards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from rebalancer import install
from rebalancer.adapters.kubernetes.permissions import HUB_RIGHTS, LEASE_RIGHTS, MEMBER_RIGHTS, ROLLOUT_RIGHTS, Right


def nodes(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield schema
    for child in (*schema.get("properties", {}).values(), schema.get("items"), schema.get("additionalProperties")):
        if isinstance(child, dict):
            yield from nodes(child)


def test_all_kinds_are_rendered_and_structural() -> None:
    documents = list(yaml.safe_load_all(install.render_crds()))
    assert [d["spec"]["names"]["kind"] for d in documents] == [
        "MemberCluster", "SchedulingPolicy", "PropagationPolicy", "CanaryRollout",
    ]  # fmt: skip
    assert [d["spec"]["scope"] for d in documents] == ["Cluster", *["Namespaced"] * 3]
    for one in documents:
        (version,) = one["spec"]["versions"]
        assert version["subresources"] == {"status": {}}
        for node in nodes(version["schema"]["openAPIV3Schema"]):
            assert not node.keys() & {"$ref", "anyOf", "const", "default", "title"}
            typed = {"type", "x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields"}
            assert node.keys() & typed


def test_bounds_and_words_come_along() -> None:
    policy = next(d for d in install.crds() if d["spec"]["names"]["kind"] == "SchedulingPolicy")
    spec = policy["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    assert spec["capacityPerReplica"] == {"type": "number", "minimum": 0, "exclusiveMinimum": True, "nullable": True}
    assert spec["budget"]["properties"]["maxMovesPerHour"] == {"x-kubernetes-int-or-string": True}
    assert spec["migration"]["properties"]["timeout"]["type"] == "string"
    assert spec["strategy"]["properties"]["type"]["enum"] == [
        "LatencyFirst",
        "DataLocality",
        "CostOptimized",
        "Weighted",
    ]
    assert spec["replicas"]["properties"]["min"]["description"]


def test_rules_that_compare_or_join_fields_come_along() -> None:
    rollout = next(d for d in install.crds() if d["spec"]["names"]["kind"] == "CanaryRollout")
    spec = rollout["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    (fixed,) = spec["workloadRef"]["x-kubernetes-validations"]
    assert fixed["rule"] == "self.name == oldSelf.name"
    (last,) = spec["strategy"]["properties"]["canary"]["x-kubernetes-validations"]
    assert last["message"] == "the last setWeight must be 100"


@pytest.mark.parametrize("schema", [{"anyOf": [{"type": "array"}, {"type": "string"}]}, {}, {"oneOf": []}])
def test_a_form_without_structural_counterpart_is_an_error(schema: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no structural form"):
        install.structural(schema, {})


def test_rights_are_least_and_cover_what_check_asks_for() -> None:
    documents = list(yaml.safe_load_all(install.render_rbac()))
    rules = {d["metadata"]["name"]: d["rules"] for d in documents if d["kind"] == "ClusterRole"}
    for role in (install.HUB, install.MEMBER, install.ROLLOUTS):
        for rule in rules[role]:
            assert "*" not in (*rule["apiGroups"], *rule["resources"], *rule["verbs"])
    assert all(granted(rules[install.MEMBER], r) for r in MEMBER_RIGHTS)
    assert all(granted(rules[install.ROLLOUTS], r) for r in ROLLOUT_RIGHTS)
    assert all(granted(rules[install.HUB], r) for r in HUB_RIGHTS)
    own = [r for d in documents if d["kind"] == "Role" for r in d["rules"]]
    assert all(granted(own, r) and r.namespace == install.NAMESPACE for r in LEASE_RIGHTS)
    assert {r.name for r in LEASE_RIGHTS} - {""} == {n for r in own for n in r.get("resourceNames", ())}
    secrets = [d for d in documents if any("secrets" in r["resources"] for r in d.get("rules", ()))]
    assert [(d["kind"], d["metadata"]["namespace"]) for d in secrets] == [("Role", install.NAMESPACE)]


def granted(rules: list[dict[str, Any]], right: Right) -> bool:
    name = f"{right.resource}/{right.subresource}" if right.subresource else right.resource
    return any(right.group in r["apiGroups"] and name in r["resources"] and right.verb in r["verbs"] for r in rules)
