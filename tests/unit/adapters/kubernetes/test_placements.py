"""Kubernetes objects -> placements and room, without a server."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from rebalancer.adapters.kubernetes import limits, marks, placements, shapes
from rebalancer.adapters.kubernetes.placements import Objects, ReadyMemory
from rebalancer.adapters.kubernetes.structs import Autoscaler, Budget, Deployment, Node, Pod, PodSpec, Quota, quantity
from rebalancer.core.model import Effect, Moved, MoveRecord, NodeMatch, PodBudget, Toleration
from rebalancer.core.policy import Policy

NOW = 1_800_000_000.0
POLICY = Policy(name="p", namespace="shop", pod_labels={"app": "web"})


def made(type_: Any, document: dict[str, Any]) -> Any:
    return msgspec.json.decode(json.dumps(document), type=type_)


def a_deployment(name: str = "web", **changes: Any) -> Deployment:
    meta = {"name": name, "namespace": "shop", "uid": f"uid-{name}", "resourceVersion": "7"}
    template = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"resources": {}}]}}
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "template": template}
    found: Deployment = made(
        Deployment, {"metadata": {**meta, **changes.pop("metadata", {})}, "spec": {**spec, **changes}}
    )
    return found


def a_pod(owner: str = "web-abc", *, ready: str = "True", node: str = "n1", cpu: str = "1", **meta: Any) -> Pod:
    condition = {"type": "Ready", "status": ready, "lastTransitionTime": "2027-01-15T07:59:00Z"}
    labels = {"app": "web", "pod-template-hash": owner.rpartition("-")[2]}
    references = [{"kind": "ReplicaSet", "name": owner, "controller": True}]
    metadata = {"name": "x", "namespace": "shop", "labels": labels, "ownerReferences": references, **meta}
    spec = {"nodeName": node, "containers": [{"resources": {"requests": {"cpu": cpu, "memory": "1Gi"}}}]}
    found: Pod = made(
        Pod, {"metadata": metadata, "spec": spec, "status": {"phase": "Running", "conditions": [condition]}}
    )
    return found


def a_node(name: str, cpu: str = "4", ready: str = "True", **spec: Any) -> Node:
    status = {
        "allocatable": {"cpu": cpu, "memory": "8Gi", "pods": "10"},
        "conditions": [{"type": "Ready", "status": ready}],
    }
    found: Node = made(Node, {"metadata": {"name": name}, "spec": spec, "status": status})
    return found


def seen(deployments: list[Deployment], pods: list[Pod] | None = None, **lists: Any) -> placements.Seen:
    memory = lists.pop("memory", ReadyMemory())
    policies = lists.pop("policies", (POLICY,))
    objects = Objects(deployments, pods, [], lists.get("autoscalers", []), lists.get("budgets", []))
    return placements.read("eu", objects, policies, memory, lists.get("now", NOW))


@pytest.mark.parametrize(
    ("text", "value"),
    [("250m", 0.25), ("1Gi", 2**30), ("1.5", 1.5), ("2k", 2000), ("1e3", 1000), (4, 4), ("100n", 1e-7), ("1E", 1e18)],
)
def test_quantities(text: str | int, value: float) -> None:
    assert quantity(text) == pytest.approx(value)


def test_a_quantity_that_is_none_is_an_error() -> None:
    with pytest.raises(ValueError, match="could not convert"):
        quantity("lots")


def test_requests_count_init_containers_sidecars_and_overhead_as_the_scheduler_does() -> None:
    def container(cpu: str, **more: str) -> dict[str, Any]:
        return {"resources": {"requests": {"cpu": cpu}}, **more}

    spec = {
        "containers": [container("100m"), container("200m")],
        "initContainers": [container("50m", restartPolicy="Always"), container("1")],
        "overhead": {"cpu": "10m", "memory": "1Mi"},
    }
    cpu, memory = shapes.requests_of(made(PodSpec, spec))
    assert cpu == pytest.approx(1.05 + 0.01)
    assert memory == 2**20
    whole = {**spec, "resources": {"requests": {"cpu": "2"}}}
    assert shapes.requests_of(made(PodSpec, whole))[0] == pytest.approx(2.01)


def test_room_counts_only_nodes_that_take_pods() -> None:
    nodes = [
        a_node("n1"),
        a_node("tainted", taints=[{"key": "k", "effect": "NoExecute"}]),
        a_node("preferred", taints=[{"key": "k", "effect": "PreferNoSchedule"}]),
        a_node("cordoned", unschedulable=True),
        a_node("down", ready="Unknown"),
    ]
    rooms, cpu, memory = placements.room(nodes, [a_pod(), a_pod(node="tainted")])
    found = [(r.name, r.free_cpu, r.free_pods, len(r.taints)) for r in rooms]
    assert found == [("n1", 3.0, 9, 0), ("preferred", 4.0, 10, 0), ("tainted", 3.0, 9, 1)]
    assert (cpu, memory) == (8.0, 16 * 2**30)


def test_gpus_are_counted_on_their_node_and_asked_for_by_the_pod() -> None:
    node = made(Node, {"metadata": {"name": "g"}, "status": {
        "allocatable": {"cpu": "8", "memory": "8Gi", "pods": "10", "nvidia.com/gpu": "4"},
        "conditions": [{"type": "Ready", "status": "True"}]}})  # fmt: skip
    spec = {"nodeName": "g", "containers": [{"resources": {"requests": {"cpu": "1", "nvidia.com/gpu": "3"}}}]}
    rooms, _, _ = placements.room([node], [made(Pod, {"metadata": {"name": "p"}, "spec": spec})])
    assert rooms[0].extended == {"nvidia.com/gpu": 1.0}
    assert shapes.extended_of(made(PodSpec, spec)) == {"nvidia.com/gpu": 3.0}


def test_which_nodes_a_pod_takes_is_read_from_the_template() -> None:
    spec = {
        "volumes": [{"name": "c", "emptyDir": {}}, {"name": "d", "persistentVolumeClaim": {"claimName": "disk"}}],
        "tolerations": [{"key": "gpu", "operator": "Exists"}, {"key": "soft", "effect": "PreferNoSchedule"},
                        {"key": "a", "value": "b", "effect": "NoExecute", "tolerationSeconds": 300}],
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a", "b"]}]},
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}, {}]}}},
    }  # fmt: skip
    found = seen([a_deployment(template={"metadata": {"labels": {"app": "web"}}, "spec": spec})]).placements["shop/web"]
    assert found.claims == ("disk",)
    assert found.tolerations == (
        Toleration("gpu", "Exists", "", None),
        Toleration("a", "Equal", "b", Effect.NO_EXECUTE),
    )
    assert found.affinity == (
        (NodeMatch("zone", "In", ("a", "b")),), (NodeMatch("metadata.name", "In", ("n1",)),), ()
    )  # fmt: skip


def test_an_operator_that_is_none_is_an_error() -> None:
    terms = [{"matchExpressions": [{"key": "zone", "operator": "Near"}]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    with pytest.raises(ValueError, match="'Near'"):
        shapes.affinity_of(made(PodSpec, {"affinity": {"nodeAffinity": required}}))


def test_pods_that_wait_for_a_node_take_room_where_most_is_free() -> None:
    waiting = [a_pod(node="", cpu="2"), a_pod(node="", cpu="3"), a_pod(node="", cpu="50")]
    rooms, _, _ = placements.room([a_node("n1"), a_node("n2")], [a_pod(), *waiting])
    assert {r.name: r.free_cpu for r in rooms} == {"n1": 1.0, "n2": 1.0}  # 50 cores fit nowhere and are in no node


def test_only_its_own_living_pods_count() -> None:
    pods = [
        a_pod(),
        a_pod(ready="False"),
        a_pod(deletionTimestamp="2027-01-15T07:59:30Z"),
        a_pod("web-canary-xyz"),
        a_pod("web-abc", namespace="other"),
    ]
    found = seen([a_deployment()], pods).placements["shop/web"]
    assert (found.wanted, found.ready, found.unavailable_pods) == (2, 1, 1)
    assert found.ready_since_s == (NOW - 60,)


def test_a_start_lasts_from_created_to_ready_by_the_cluster_s_clock() -> None:
    born = {"creationTimestamp": "2027-01-15T07:58:15Z"}
    pods = [a_pod(**born), a_pod(), a_pod(ready="False", **born)]
    ((_, delay_s),) = seen([a_deployment()], pods).placements["shop/web"].starts
    assert delay_s == 45.0


def test_a_cluster_clock_ahead_of_ours_makes_nothing_ready_in_the_future() -> None:
    assert seen([a_deployment()], [a_pod()], now=NOW - 3600).placements["shop/web"].ready_since_s == (NOW - 3600,)


def test_replicas_left_out_are_one() -> None:
    assert seen([a_deployment(replicas=None)], []).placements["shop/web"].wanted == 1


def test_without_a_list_of_pods_readiness_comes_from_the_status_with_times_of_our_own() -> None:
    memory = ReadyMemory()
    for ready, now, expected in (
        (2, NOW, [0, 0]),
        (3, NOW + 30, [0, 0, 30]),
        (1, NOW + 60, [0]),
        (2, NOW + 90, [0, 90]),
    ):
        one = msgspec.structs.replace(
            a_deployment(), status=made(type(a_deployment().status), {"readyReplicas": ready})
        )
        found = seen([one], None, memory=memory, now=now).placements["shop/web"]
        assert [s - NOW for s in found.ready_since_s] == expected
    seen([], None, memory=memory)
    assert memory.since_s == {}


def test_without_a_list_of_autoscalers_every_workload_counts_as_owned() -> None:
    assert seen([a_deployment()], [], autoscalers=None).placements["shop/web"].owner == "hpa"
    other = made(
        Autoscaler, {"metadata": {"namespace": "shop"}, "spec": {"scaleTargetRef": {"kind": "X", "name": "web"}}}
    )
    assert seen([a_deployment()], [], autoscalers=[other]).placements["shop/web"].owner == ""


def test_a_canary_is_no_workload_and_marks_its_owner() -> None:
    canary = a_deployment("web-canary", metadata={"labels": {"rebalancer.dev/rollout": "r"}})
    found = seen([a_deployment(), canary], [a_pod(), a_pod("web-canary-q")])
    assert {k: (p.owner, p.ready) for k, p in found.placements.items()} == {"shop/web": ("rollout", 1)}


def test_an_empty_selector_takes_nothing() -> None:
    assert seen([a_deployment()], [], policies=(Policy(name="p", namespace="shop"),)).placements == {}


def test_two_policies_take_nothing() -> None:
    twin = Policy(name="q", namespace="shop", workload_name="web")
    found = seen([a_deployment()], [], policies=(POLICY, twin))
    assert not found.placements
    assert found.ambiguous == frozenset({"shop/web"})
    assert "2 policies (shop/p, shop/q)" in found.problems[0]


def test_marks_come_back_and_stay_bounded() -> None:
    record = MoveRecord("m", "drift", "a", "b", 1, 3, 2, "cheaper", NOW, NOW + 600)
    old = Moved("old", NOW - marks.KEEP_S - 1, "a", "b", 1, "done")
    many = [Moved(f"m{i}", NOW - i, "a", "b", 1, "done") for i in range(80)]
    text = marks.write_moved([old, *many], NOW)
    move, moved, problem = marks.read({marks.MOVE: marks.write_move(record), marks.MOVED: text})
    assert (move, problem) == (record, "")
    assert len(moved) == marks.KEEP_COUNT
    assert moved[-1].id == "m0"
    assert len(text) < 10_000


def test_marks_of_an_older_version_know_no_gain() -> None:
    old = '[{"id":"m","ended_s":1.0,"source":"a","target":"b","replicas":1,"outcome":"done"}]'
    assert marks.read({marks.MOVED: old})[1] == (Moved("m", 1.0, "a", "b", 1, "done", gain=0.0),)


@pytest.mark.parametrize("text", ["{", "[]", '{"id": 7}', "null", '{"id":"m","kind":"jump"}'])
def test_broken_marks_are_ignored_with_a_sentence(text: str) -> None:
    move, moved, problem = marks.read({marks.MOVE: text})
    assert (move, moved) == (None, ())
    assert "can't be read and is ignored" in problem


def test_quotas_leave_the_least_that_one_of_them_leaves() -> None:
    def quota(hard: dict[str, str], used: dict[str, str], **spec: Any) -> Quota:
        found: Quota = made(Quota, {"metadata": {"namespace": "shop"}, "spec": {"hard": hard, **spec},
                                    "status": {"used": used}})  # fmt: skip
        return found

    found = limits.quotas_of([
        quota({"cpu": "4", "requests.memory": "8Gi", "limits.cpu": "1"}, {"cpu": "1500m", "requests.memory": "8Gi"}),
        quota({"requests.cpu": "2", "pods": "10", "requests.nvidia.com/gpu": "2"}, {"requests.cpu": "0", "pods": "12"}),
        quota({"pods": "1"}, {"pods": "1"}, scopes=["BestEffort"]),
    ])  # fmt: skip
    assert found == {"shop": {"cpu": 2.0, "memory": 0.0, "pods": 0.0, "nvidia.com/gpu": 0.0}}


@pytest.mark.parametrize(
    ("sentence", "namespace", "selector", "count"),
    [
        ("its labels match", "shop", {"matchLabels": {"app": "web"}}, 1),
        ("an empty selector takes every pod of the namespace", "shop", {}, 1),
        ("no selector takes none", "shop", None, 0),
        ("other labels", "shop", {"matchLabels": {"app": "api"}}, 0),
        ("another namespace", "other", {}, 0),
        ("an expression is taken to hold", "shop", {"matchExpressions": [{"key": "a", "operator": "Exists"}]}, 1),
    ],
)
def test_disruption_budgets_are_those_that_select_the_pods(
    sentence: str, namespace: str, selector: dict[str, Any] | None, count: int
) -> None:
    spec = {"minAvailable": "50%", **({} if selector is None else {"selector": selector})}
    budget = made(Budget, {"metadata": {"namespace": namespace}, "spec": spec})
    found = seen([a_deployment()], budgets=[budget]).placements["shop/web"].budgets
    assert found == (PodBudget("50%"),) * count, sentence


def test_disruption_budgets_that_can_not_be_listed_are_unknown() -> None:
    assert seen([a_deployment()], budgets=None).placements["shop/web"].budgets is None
