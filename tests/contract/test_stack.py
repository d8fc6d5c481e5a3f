"""The real stack itself: planes, pods, metrics, history and users do what other tests rely on."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stack import history
from tests.stack.api import Api, ApiError, deployment, path_of, service
from tests.stack.fixtures import fleet_for
from tests.stack.fleet import ALL, Fleet, FleetSpec, Part
from tests.stack.kwok import FAULT, START_DELAY
from tests.stack.metrics import Query
from tests.stack.processes import StackError, wait_for
from tests.stack.users import Service

pytestmark = [pytest.mark.stack]

WEB = "default/web"
RATES = {"europe-west1": 40.0, "us-east4": 20.0, "asia-southeast1": 20.0}
ALWAYS = {"groups": [{"name": "test", "rules": [{"alert": "Always", "expr": "vector(1)"}]}]}


@pytest.fixture(scope="module")
def fleet(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    rules = tmp_path_factory.mktemp("rules") / "rules.yaml"
    rules.write_text(str(ALWAYS).replace("'", '"'))
    web = Service("web", RATES, capacity_per_replica=40.0)
    parts: frozenset[Part] = ALL | {"alertmanager"}
    spec = FleetSpec(parts=parts, services=(web,), rule_files=(rules,), history_days=14, history_step_s=300)
    with fleet_for(request, spec) as started:
        sys.stdout.write(f"\nfleet up in {started.started_in_s:.1f} s: {started.phases_s}\n")
        sys.stdout.write(
            f"{sum(p.rss_mb for p in started.processes()):.0f} MB in {len(started.processes())} processes\n"
        )
        started.add_nodes()
        started.deploy(deployment("web", replicas=3))
        started.deploy(service("web"))
        for plane in started.planes.values():
            plane.wait_ready_pods(3, selector="app=web")
        started.users.wait_requests(WEB, 100)
        yield started


def _restore(fleet: Fleet) -> None:
    fleet.users.order(down=[], metrics_down=[], vanish=[], errors=[])
    fleet.users.steer(WEB, "external", {})
    fleet.deploy(deployment("web", replicas=3))
    for plane in fleet.planes.values():
        plane.wait_ready_pods(3, selector="app=web")


@pytest.fixture
def web(fleet: Fleet) -> Iterator[Fleet]:
    """The fleet with web at 3 replicas everywhere, put back afterwards."""
    yield fleet
    _restore(fleet)


def _requests(fleet: Fleet) -> dict[str, int]:
    arms = fleet.users.service_truth(WEB)["arms"]
    return {cluster: sum(arm["requests"] for arm in found.values()) for cluster, found in arms.items()}


def test_fleet_starts_in_bounded_time(fleet: Fleet) -> None:
    assert fleet.started_in_s < 60  # about 10 s on two idle cores; others may share the machine
    assert len(fleet.planes) == 3
    assert fleet.hub.api.get("/version")["gitVersion"] == "v1.36.3"
    assert "scheduler" not in fleet.hub.parts


def test_deployment_scales_and_its_pods_become_ready(fleet: Fleet) -> None:
    plane = fleet.planes["ap-1"]
    plane.api.create(deployment("scaled", replicas=1))
    plane.wait_ready_pods(1, selector="app=scaled")
    plane.api.scale("default", "scaled", 50)
    plane.wait_ready_pods(50, selector="app=scaled")
    plane.api.scale("default", "scaled", 0)
    plane.wait_ready_pods(0, selector="app=scaled")
    plane.api.delete(path_of("Deployment", "scaled", "default", "apps/v1"))


def test_start_delay_of_a_pod_is_kept(fleet: Fleet) -> None:
    plane = fleet.planes["ap-1"]
    plane.api.create(deployment("slow", annotations={START_DELAY: "2s"}))
    took = plane.wait_ready_pods(1, selector="app=slow")
    plane.api.delete(path_of("Deployment", "slow", "default", "apps/v1"))
    assert 1.9 < took < 8


@pytest.mark.parametrize("fault", ["crashloop", "unready"])
def test_faulty_pods_run_and_never_become_ready(fleet: Fleet, fault: str) -> None:
    plane, selector = fleet.planes["us-1"], f"app={fault}"
    plane.api.create(deployment(fault, replicas=2, pod_labels={FAULT: fault}))
    pods = wait_for(lambda: [p for p in plane.pods(selector=selector) if p["status"]["phase"] == "Running"], "pods")
    state = pods[0]["status"]["containerStatuses"][0]["state"]
    assert (state.get("waiting", {}).get("reason") == "CrashLoopBackOff") == (fault == "crashloop")
    assert not plane.ready_pods(selector=selector)
    plane.api.delete(path_of("Deployment", fault, "default", "apps/v1"))


def test_node_fails_and_heals_by_label(fleet: Fleet) -> None:
    plane = fleet.planes["us-1"]
    [name] = plane.add_nodes(1, prefix="ill")
    plane.api.patch(path_of("Node", name), {"metadata": {"labels": {FAULT: "not-ready"}}})
    wait_for(lambda: name not in plane.ready_nodes(), "node not ready")
    plane.api.patch(path_of("Node", name), {"metadata": {"labels": {FAULT: None}}})
    wait_for(lambda: name in plane.ready_nodes(), "node ready")
    plane.api.delete(path_of("Node", name))


def test_service_account_is_bound_to_its_role_and_audited(fleet: Fleet) -> None:
    plane = fleet.planes["eu-1"]
    token = plane.mint_token("product", cluster_role="view", namespace="product")
    api = Api(plane.server, token, plane.credentials.ca)
    assert api.items(path_of("Deployment", "", "default", "apps/v1"))
    with pytest.raises(ApiError, match="403"):
        api.scale("default", "web", 7)
    [write] = plane.audit("product:product", writes_only=True)
    assert (write.verb, write.resource, write.subresource) == ("patch", "deployments.apps", "scale")
    assert (write.name, write.code, write.user) == ("web", 403, "system:serviceaccount:product:product")
    api.close()


def test_audit_keeps_bodies_of_writes(fleet: Fleet) -> None:
    plane = fleet.planes["us-1"]
    plane.api.scale("default", "web", 3)
    write = plane.audit("test-admin", writes_only=True)[-1]
    assert write.is_write
    assert write.body == {"spec": {"replicas": 3}}


def test_thanos_sees_all_clusters(fleet: Fleet) -> None:
    assert fleet.thanos.healthy_stores() == ["ap-1", "eu-1", "us-1"]
    query = "count by (cluster) (ingress_requests_total)"
    wait_for(lambda: len(fleet.thanos.query.vector(query)) == 3, "series of three clusters")


def test_history_is_there_and_follows_the_shape(fleet: Fleet) -> None:
    query = fleet.thanos.query
    for days in (1, 7, 13):
        at = time.time() - days * 86400
        rates = query.vector(f"sum by (origin) (rate(ingress_requests_total[1h] offset {days}d))")
        found = {labels["origin"]: value for labels, value in rates}
        assert set(found) == set(RATES)
        for origin, mean in RATES.items():
            offset = history.UTC_OFFSET_H[origin]
            factors = [history.load_factor(at - minute * 60, offset) for minute in range(60)]
            assert found[origin] == pytest.approx(mean * sum(factors) / 60, rel=0.15)


def test_node_and_pod_metrics_match_the_cluster(fleet: Fleet) -> None:
    query = fleet.prometheus["eu-1"].query
    cores = wait_for(lambda: query.scalar('sum(kube_node_status_allocatable{resource="cpu"})'), "node metrics")
    assert cores == 24
    wait_for(
        lambda: round(query.scalar('sum(kube_pod_container_resource_requests{resource="cpu"})'), 6) == 0.3,
        "requests of three pods",
    )
    assert query.vector('container_cpu_usage_seconds_total{pod=~"web-.*"}')


def test_counters_follow_ready_endpoints(web: Fleet) -> None:
    wait_for(lambda: _rate(web.thanos.query, "eu-1") > 20, "traffic in eu-1")
    web.planes["eu-1"].api.scale("default", "web", 0)
    web.planes["eu-1"].wait_ready_pods(0, selector="app=web")
    wait_for(lambda: web.users.service_truth(WEB)["ready"]["eu-1"] == 0, "emulator sees it")
    before = _requests(web)
    wait_for(lambda: _requests(web)["us-1"] > before["us-1"] + 100, "traffic goes to the next nearest")
    assert _requests(web)["eu-1"] == before["eu-1"]
    truth = web.users.service_truth(WEB, window_s=1)
    assert truth["served_latency_ms"] > 30  # half of all users are in Europe, 80 ms from us-1
    wait_for(lambda: _rate(web.thanos.query, "eu-1") == 0, "counters stand still")


def _rate(query: Query, cluster: str) -> float:
    expression = f'sum(rate(ingress_requests_total{{cluster="{cluster}",pod_template_hash!="history"}}[3s]))'
    return query.scalar(expression)


def test_no_endpoint_anywhere_fails_requests(web: Fleet) -> None:
    for plane in web.planes.values():
        plane.api.scale("default", "web", 0)
    wait_for(lambda: web.users.service_truth(WEB)["unserved"], "unserved requests")
    assert web.users.service_truth(WEB)["total_ready"] == 0
    assert 'code="503"' in web.users.control.text("/eu-1/metrics")


def test_versions_get_traffic_by_ratio_and_errors_by_image(web: Fleet) -> None:
    web.users.set_errors({"ratio": 0.5, "image": "bad", "cluster": "us-1"})
    canary = deployment("web-canary", replicas=1, image="registry.example/app:bad")
    for labels in (canary["spec"]["selector"]["matchLabels"], canary["spec"]["template"]["metadata"]["labels"]):
        labels.update(app="web", track="canary")
    plane = web.planes["us-1"]
    plane.api.apply(canary)
    plane.wait_ready_pods(4, selector="app=web")

    def bad() -> dict[str, object] | None:
        arms = web.users.service_truth(WEB)["arms"]["us-1"].values()
        return next((arm for arm in arms if arm["image"].endswith(":bad") and arm["requests"] > 40), None)

    arm = wait_for(bad, "canary traffic", 30)
    assert arm["first_bad_s"]
    assert 0.25 < float(str(arm["errors"])) / float(str(arm["requests"])) < 0.75
    plane.api.delete(path_of("Deployment", "web-canary", "default", "apps/v1"))


def test_pinned_traffic_does_not_follow(web: Fleet) -> None:
    web.users.steer(WEB, "pinned", {"*": {"ap-1": 1.0}})
    before = _requests(web)
    wait_for(lambda: _requests(web)["ap-1"] > before["ap-1"] + 200, "pinned traffic")
    after = _requests(web)
    assert after["eu-1"] - before["eu-1"] < 50  # at most a tick's worth from before the order


def test_metrics_can_vanish_and_answer_503(web: Fleet) -> None:
    users = web.users
    users.vanish({"service": WEB})
    assert "ingress_requests_total{" not in users.control.text("/eu-1/metrics")
    assert "kube_node_status_allocatable{" in users.control.text("/eu-1/metrics")
    users.metrics_down("eu-1")
    assert users.control.text("/eu-1/metrics") == "down on purpose"
    wait_for(lambda: web.prometheus["eu-1"].query.scalar("up") == 0, "up is 0")
    with pytest.raises(ValueError, match="unknown orders"):
        users.order(nonsense=1)


def test_alerts_reach_alertmanager(fleet: Fleet) -> None:
    wait_for(lambda: len(fleet.alertmanager.alerts()) >= 3, "an alert of each cluster")
    assert {alert["labels"]["cluster"] for alert in fleet.alertmanager.alerts()} == {"eu-1", "us-1", "ap-1"}


def test_prometheus_reloads_what_it_scrapes(fleet: Fleet, tmp_path: Path) -> None:
    prometheus = fleet.prometheus["eu-1"]
    prometheus.reload()
    broken = tmp_path / "broken.yaml"
    broken.write_text("groups: 7")
    prometheus.rule_files.append(str(broken))
    with pytest.raises(StackError, match="refused"):
        prometheus.reload()
    prometheus.rule_files.pop()
    prometheus.reload()
