"""One suite, the same assertions: Prometheus 3.9, Debian's 2.42, one Prometheus per cluster, and Thanos.

The exporter counts by a known rate, so demand is known exactly; history is backfilled. Test order matters at the end:
the last tests take a cluster away and bring it back.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rebalancer.adapters.telemetry import MetricsTelemetry
from rebalancer.adapters.telemetry.discover import discover
from rebalancer.api.cluster import MemberCluster
from rebalancer.api.controller import BackendSpec, TelemetrySpec
from rebalancer.core.model import Floats, Unknown
from rebalancer.core.policy import DemandSpec, Policy
from rebalancer.ports import DemandAnswer, DemandWindow, Selection
from tests.stack import binaries, history
from tests.stack.fixtures import fleet_for
from tests.stack.fleet import MEMBERS, Fleet, FleetSpec
from tests.stack.metrics import Prometheus, Target
from tests.stack.processes import wait_for
from tests.stack.users import Service

pytestmark = [pytest.mark.stack]

RULES = Path(__file__).parents[2] / "rules" / "rebalancer-recording.yaml"
RATES = {"europe-west1": 40.0, "us-east4": 20.0}
COUNTING = {"eu-1": "europe-west1", "us-1": "us-east4"}
CORES, RTT_S, WINDOW_S, STEP_S, HISTORY_S = 1.5, 0.02, 10.0, 60.0, 6 * 3600.0
LIMITS = {"eu-1": (1.6, 0.1), "us-1": (2.0, 0.4)}
"""CPU limit in cores, and share of the periods in which the pod is throttled."""
KINDS = ("prometheus-3.9", "prometheus-2.42", "prometheus-per-cluster", "thanos")
POLICIES = {"default/web": Policy("web", demand=DemandSpec("ingress_requests_total", "service", "origin"))}
ERRORS = Selection("ingress_requests_total", 'ingress_requests_total{code=~"5.."}', "pod_template_hash")


class SystemClock:
    """The clock of the machine."""

    def now(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


@dataclass
class Exporter:
    """One page of metrics per cluster, with counters that rise by known rates."""

    services: tuple[str, ...] = ("web",)
    down: set[str] = field(default_factory=set)
    errors: dict[str, int] = field(default_factory=dict)
    began_s: float = field(default_factory=time.time)
    port: int = 0

    def page(self, cluster: str) -> str | None:
        if cluster in self.down:
            return None
        past = time.time() - self.began_s
        head = f'namespace="default",pod_template_hash="a",code="200",origin="{COUNTING.get(cluster, "")}"'
        if cluster == "bare":
            return f'# TYPE bare_requests_total counter\nbare_requests_total{{service="web",{head}}} {past}\n'
        lines = []
        if cluster in COUNTING:
            rate = RATES[COUNTING[cluster]]
            lines += [f'ingress_requests_total{{service="{name}",{head}}} {rate * past}' for name in self.services]
            if cluster in self.errors:
                failed = head.replace('code="200"', 'code="500"')
                lines.append(f'ingress_requests_total{{service="web",{failed}}} {self.errors[cluster]}')
        pod = 'namespace="default",pod="web-5d4f7c9b8-x2vbn",container="web"'
        lines.append(f"container_cpu_usage_seconds_total{{{pod}}} {CORES * past}")
        cores, throttled = LIMITS.get(cluster, (4.0, 0.0))
        lines += [
            f"container_cpu_cfs_periods_total{{{pod}}} {10 * past}",
            f"container_cpu_cfs_throttled_periods_total{{{pod}}} {10 * throttled * past}",
            f'kube_pod_container_resource_limits{{{pod},node="n1",resource="cpu",unit="core"}} {cores}',
        ]
        lines += self._owned(past)
        for node, size in (("n1", 8), ("n2", 4)):
            lines.append(f'kube_node_status_allocatable{{node="{node}",resource="cpu",unit="core"}} {size}')
            lines.append(f'kube_node_spec_unschedulable{{node="{node}"}} {int(node == "n2")}')
        lines.append(f'kube_pod_container_resource_requests{{{pod},node="n1",resource="cpu",unit="core"}} 2.5')
        return "\n".join([*lines, *self._probes(cluster, past)]) + "\n"

    def _owned(self, past: float) -> list[str]:
        """A counter of the pods' own, and who owns them; of the last pod only its name tells."""
        owned = {"odd-name": "web-5d4f7c9b8", "web-5d4f7c9b8-x2vbn": "web-5d4f7c9b8", "api-7c9b85d4f-9k2xz": ""}
        lines = [f'app_requests_total{{namespace="default",pod="{pod}"}} {7 * past}' for pod in owned]
        of = 'namespace="default"'
        for ksm in ("a", "b"):
            lines += [
                f'kube_pod_owner{{ksm="{ksm}",{of},pod="{pod}",owner_kind="ReplicaSet",owner_name="{rs}"}} 1'
                for pod, rs in owned.items()
                if rs
            ]
            sets = f'{of},replicaset="web-5d4f7c9b8",owner_kind="Deployment",owner_name="web-long-name"'
            lines.append(f'kube_replicaset_owner{{ksm="{ksm}",{sets}}} 1')
        return lines

    def _probes(self, cluster: str, past: float) -> list[str]:
        lines = []
        for peer in (member.name for member in MEMBERS):
            if peer != cluster:
                pair = f'src_cluster="{cluster}",dst_cluster="{peer}",proto="udp"'
                lines += [
                    f'rebalancer_probe_probes_total{{{pair},outcome="ok"}} {90 * past}',
                    f'rebalancer_probe_probes_total{{{pair},outcome="lost_forward"}} {10 * past}',
                    f"rebalancer_probe_rtt_seconds_sum{{{pair}}} {90 * past * RTT_S}",
                    f"rebalancer_probe_rtt_seconds_count{{{pair}}} {90 * past}",
                    f"rebalancer_probe_last_ok_timestamp_seconds{{{pair}}} {time.time()}",
                ]
        return lines


@contextmanager
def exporting() -> Iterator[Exporter]:
    exporter = Exporter()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = exporter.page(self.path.split("/")[1])
            body = (page or "down").encode()
            self.send_response(200 if page else 503)
            self.send_header("content-type", "text/plain; version=0.0.4")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    exporter.port = server.server_port
    try:
        yield exporter
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


@dataclass
class World:
    """The fleet, its exporter and the old Prometheus."""

    fleet: Fleet
    exporter: Exporter
    old: Prometheus | None

    def backends(self, kind: str) -> list[dict[str, Any]]:
        if kind == "thanos":
            return [{"type": "thanos", "url": self.fleet.thanos.url}]
        if kind == "prometheus-per-cluster":
            return [{"url": one.url, "clusters": [name]} for name, one in self.fleet.prometheus.items()]
        if kind == "prometheus-2.42":
            if self.old is None:
                pytest.skip("no Prometheus 2.42: set REBALANCER_PROMETHEUS_242, or install Debian's")
            return [{"url": self.old.url}]
        return [{"url": self.fleet.global_prometheus.url}]

    def lose(self, kind: str, cluster: str) -> None:
        """Takes the metrics of a cluster away: its Prometheus dies, or its targets do where one scrapes all."""
        if kind in ("thanos", "prometheus-per-cluster"):
            self.fleet.prometheus[cluster].process.kill()
        else:
            self.exporter.down.add(cluster)

    def bring_back(self, cluster: str) -> None:
        self.exporter.down.discard(cluster)
        if not self.fleet.prometheus[cluster].process.running:
            self.fleet.prometheus[cluster].restart()


def _targets(port: int) -> dict[str, tuple[Target, ...]]:
    url = f"http://127.0.0.1:{port}"
    return {m.name: (Target("ingress", f"{url}/{m.name}/metrics", {"instance": m.name}),) for m in MEMBERS}


def _old_prometheus(fleet: Fleet, exporter: Exporter) -> Prometheus | None:
    program = binaries.prometheus_242()
    if program is None:
        return None
    old = Prometheus("prometheus-242", fleet.folder / "prometheus-242", rule_files=(RULES,), program=program)
    for cluster, targets in _targets(exporter.port).items():
        old.scrape(*targets, cluster=cluster)
        if cluster in COUNTING:
            origin = COUNTING[cluster]
            past = [history.PastService("default", "web", {origin: RATES[origin]})]
            path = old.folder / f"{cluster}.txt"
            history.write(path, cluster, past, end_s=time.time() - 1, days=HISTORY_S / 86400, step_s=15)
            old.backfill(path)
    old.scrape(Target("bare", f"http://127.0.0.1:{exporter.port}/bare/metrics"))
    return old.start()


@pytest.fixture(scope="module")
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    with exporting() as exporter:
        spec = FleetSpec(
            parts=frozenset({"prometheus", "thanos", "global"}), services=(Service("web", RATES),),
            history_days=HISTORY_S / 86400, history_step_s=15, rule_files=(RULES,), targets=_targets(exporter.port),
        )  # fmt: skip
        with fleet_for(request, spec) as fleet:
            fleet.global_prometheus.scrape(Target("bare", f"http://127.0.0.1:{exporter.port}/bare/metrics"))
            fleet.global_prometheus.reload()
            old = _old_prometheus(fleet, exporter)
            servers = [*fleet.prometheus.values(), fleet.global_prometheus, *([old] if old else [])]
            for server in servers:
                # A minute of scrapes: the probes' rates of 2 min and the demand's of 10 s stand on it.
                wait_for(lambda s=server: s.query.scalar("min(count_over_time(up[1h]))") > 15, "scrapes", 60, 0.2)  # type: ignore[misc]  # bound early
            try:
                yield World(fleet, exporter, old)
            finally:
                if old is not None:
                    old.stop()


@asynccontextmanager
async def telemetry(
    world: World, kind: str, counts: Callable[..., None] | None = None
) -> AsyncIterator[MetricsTelemetry]:
    spec = {"backends": world.backends(kind), "rateWindow": f"{WINDOW_S:.0f}s", "maxAge": "10s", "history": "5h"}
    clusters = {
        m.name: MemberCluster.model_validate(
            {"metadata": {"name": m.name}, "spec": {"region": m.region, "connection": {"context": m.name}}}
        )
        for m in MEMBERS
    }
    made = MetricsTelemetry(TelemetrySpec.model_validate(spec), clusters, SystemClock(), counts)
    try:
        yield made
    finally:
        await made.close()


def window() -> DemandWindow:
    end = time.time() // STEP_S * STEP_S
    return DemandWindow(end - HISTORY_S, end, STEP_S)


async def demand(tele: MetricsTelemetry) -> DemandAnswer:
    return await tele.demand(window(), POLICIES)


async def until(tele: MetricsTelemetry, condition: Callable[[DemandAnswer], bool], what: str) -> DemandAnswer:
    end = time.monotonic() + 60  # a sidecar looks every 30 s whether its Prometheus is back
    while True:
        answer = await demand(tele)
        if condition(answer):
            return answer
        assert time.monotonic() < end, f"{what}: {answer.views} {answer.errors}"
        await asyncio.sleep(0.2)  # a poll of other processes: there is nothing to await


@pytest.mark.parametrize("kind", KINDS)
def test_demand_now_is_the_true_rate_by_workload_origin_and_cluster(world: World, kind: str) -> None:
    async def run() -> None:
        async with telemetry(world, kind) as tele:
            answer = await demand(tele)
        now = dict(zip(answer.keys, answer.latest, strict=True))
        expected = {("default/web", origin, cluster): RATES[origin] for cluster, origin in COUNTING.items()}
        assert now == pytest.approx(expected, rel=0.03)
        assert answer.units == {"default/web": "requests/s"}
        assert {("default/web", m.name): CORES for m in MEMBERS} == pytest.approx(dict(answer.cpu), rel=0.03)
        assert {name: view.state for name, view in answer.views.items()} == {m.name: "complete" for m in MEMBERS}
        assert answer.errors == ()

    asyncio.run(run())


@pytest.mark.parametrize("kind", KINDS)
def test_cpu_as_demand_is_censored_where_pods_are_throttled_or_at_their_limit(world: World, kind: str) -> None:
    by_cpu = {"default/web": Policy("web", demand=DemandSpec(entry_cluster=True))}

    async def run() -> None:
        async with telemetry(world, kind) as tele:
            answer = await tele.demand(window(), by_cpu)
            counted = await tele.demand(window(), POLICIES)
        now = dict(zip(answer.keys, answer.latest, strict=True))
        assert now == pytest.approx({("default/web", m.region, m.name): CORES for m in MEMBERS}, rel=0.03)
        assert answer.units == {"default/web": "cores"}
        assert set(answer.censored) == {("default/web", "eu-1"), ("default/web", "us-1")}
        # As exact as the rates that they are shares of.
        limit = re.search(r"(\d+)% of their CPU limit", answer.censored["default/web", "eu-1"])
        throttled = re.search(r"throttled in (\d+)% of the CPU periods", answer.censored["default/web", "us-1"])
        assert limit is not None
        assert throttled is not None
        assert [int(limit[1]), int(throttled[1])] == pytest.approx([94, 40], rel=0.03)
        assert answer.errors == ()
        assert counted.censored == answer.censored, "a replica's capacity is not learned from CPU that is capped"

    asyncio.run(run())


@pytest.mark.parametrize("kind", KINDS)
def test_workloads_without_a_label_are_those_that_own_the_pods(world: World, kind: str) -> None:
    own = {"default/app": Policy("app", demand=DemandSpec("app_requests_total", "service", entry_cluster=True))}

    async def run() -> None:
        async with telemetry(world, kind) as tele:
            answer = await tele.demand(window(), own)
            again = await tele.demand(window(), own)
            found = [one for one in await tele.check(own) if one.what == "demand"]
        expected = {("default/web-long-name", m.region, m.name): 14.0 for m in MEMBERS}
        expected |= {("default/api", m.region, m.name): 7.0 for m in MEMBERS}
        for one in (answer, again):
            assert dict(zip(one.keys, one.latest, strict=True)) == pytest.approx(expected, rel=0.03)
            assert one.errors == ()
        assert all(one.state == "ok" and "own the pods" in one.sentence for one in found)

    asyncio.run(run())


def steepness(values: Floats) -> Floats:
    """Largest change to a neighbouring slot."""
    steps = np.abs(np.diff(values, axis=-1))
    edge = np.zeros((*values.shape[:-1], 1))
    left, right = np.concatenate([steps, edge], axis=-1), np.concatenate([edge, steps], axis=-1)
    return np.asarray(np.maximum(left, right), dtype=np.float64)


def test_the_demand_matrix_is_the_same_on_all(world: World) -> None:
    async def run(kind: str) -> DemandAnswer:
        async with telemetry(world, kind) as tele:
            return await demand(tele)

    kinds = [kind for kind in KINDS if kind != "prometheus-2.42" or world.old is not None]
    answers = {kind: asyncio.run(run(kind)) for kind in kinds}
    first = answers[kinds[0]]
    past = slice(5, int(HISTORY_S / STEP_S) - 6)
    assert not np.isnan(first.values[:, past]).any()
    for kind, answer in answers.items():
        assert answer.keys == first.keys, kind
        # The servers' samples were taken some seconds apart: that is less than half a slot of the load's change.
        slack = 0.02 * first.values + 0.5 * steepness(first.values)
        off = np.abs(answer.values - first.values)[:, past] > slack[:, past]
        assert not off.any(), (kind, np.argwhere(off))
    for row, (_, origin, _) in enumerate(first.keys):
        ends = window().end_s - np.arange(5, 300)[::-1] * STEP_S
        loads = [history.load_factor(at - STEP_S / 2, history.UTC_OFFSET_H[origin]) for at in ends]
        truth = RATES[origin] * np.array(loads)
        slack = 0.05 * truth + 0.5 * steepness(truth) + 0.1
        assert (np.abs(first.values[row, -300:-5] - truth) <= slack).all(), origin


@pytest.mark.parametrize("kind", KINDS)
def test_room_leaves_cordoned_nodes_out(world: World, kind: str) -> None:
    async def run() -> None:
        async with telemetry(world, kind) as tele:
            answer = await tele.room()
        assert answer.clusters == {m.name: {"cpu": (8.0, 2.5)} for m in MEMBERS}
        assert answer.errors == ()

    asyncio.run(run())


@pytest.mark.parametrize("kind", KINDS)
def test_the_latency_map_comes_from_the_recordings(world: World, kind: str) -> None:
    async def run() -> None:
        async with telemetry(world, kind) as tele:
            answer = await tele.network(time.time())
        assert answer.errors == ()
        cells = answer.map.cells
        assert len(cells) == len(MEMBERS) * (len(MEMBERS) - 1)
        for cell in cells.values():
            assert (cell.source, cell.state) == ("direct", "lossy")
            assert cell.rtt_mean_s == pytest.approx(RTT_S, rel=0.01)
            assert cell.loss == pytest.approx(0.1, abs=0.01)
            assert cell.rtt_p99_s is None, "no histogram, no quantile"
            assert cell.age_s is not None
            assert cell.age_s < 5

    asyncio.run(run())


@pytest.mark.parametrize("kind", KINDS)
def test_counters_are_raw_and_a_series_born_late_keeps_its_first_value(world: World, kind: str) -> None:
    async def run() -> None:
        async with telemetry(world, kind) as tele:
            since = time.time()
            world.exporter.errors["eu-1"] = 3
            end = time.monotonic() + 15
            while True:
                answer = await tele.counters(ERRORS, [m.name for m in MEMBERS], since, time.time())
                if answer.bad and len(answer.bad[0].values) >= 3:
                    break
                assert time.monotonic() < end, answer
                await asyncio.sleep(0.2)  # a poll of other processes: there is nothing to await
        [born] = answer.bad
        assert born.labels["cluster"] == "eu-1"
        assert born.labels["pod_template_hash"] == "a"
        assert set(born.values) == {3.0}, "its first event is in it"
        assert min(born.times_s) >= since
        steady = [one for one in answer.total if one.labels["code"] == "200"]
        assert {one.labels["cluster"] for one in steady} == set(COUNTING)
        for one in steady:
            slope = np.diff(one.values) / np.diff(one.times_s)
            np.testing.assert_allclose(slope, RATES[COUNTING[one.labels["cluster"]]], rtol=0.1)
        assert {name: view.state for name, view in answer.views.items()} == {m.name: "complete" for m in MEMBERS}

    asyncio.run(run())
    world.exporter.errors.clear()


@pytest.mark.parametrize("kind", KINDS)
def test_check_finds_everything_it_needs(world: World, kind: str) -> None:
    async def run() -> None:
        async with telemetry(world, kind) as tele:
            found = await tele.check(POLICIES)
        bad = [one for one in found if one.state != "ok" and one.what != "probes"]
        if kind == "prometheus-per-cluster":
            bad = [one for one in bad if one.what != "demand"]
        assert bad == []
        assert {"backend", "cluster", "demand", "history", "cpu", "room", "probes"} == {one.what for one in found}
        probes = [one for one in found if one.what == "probes"]
        assert all(one.state == "degraded" and "p50" in one.sentence for one in probes), "no histogram here"

    asyncio.run(run())


@pytest.mark.parametrize("kind", KINDS)
def test_init_finds_the_clusters_and_what_is_missing(world: World, kind: str) -> None:
    backend = BackendSpec(url=world.backends(kind)[0]["url"])
    found = asyncio.run(discover(backend, time.time()))
    assert found.kind == ("thanos" if kind == "thanos" else "prometheus")
    named = {"eu-1"} if kind == "prometheus-per-cluster" else {m.name for m in MEMBERS}
    assert (found.label, set(found.regions)) == ("cluster", named)
    assert found.missing == ()


@pytest.mark.parametrize("kind", ["prometheus-3.9", "prometheus-2.42"])
def test_a_metric_without_cluster_label_makes_its_part_unknown_and_nothing_else(world: World, kind: str) -> None:
    bare = {"default/bare": Policy("bare", demand=DemandSpec("bare_requests_total", "service", ""))}

    async def run() -> None:
        async with telemetry(world, kind) as tele:
            alone = await tele.demand(window(), bare)
            both = await tele.demand(window(), {**POLICIES, **bare})
        assert alone.keys == ()
        assert {view.state for view in alone.views.values()} == {"partial"}
        assert all("carries no label cluster" in view.detail for view in alone.views.values())
        assert any("carry no label cluster" in sentence for sentence in alone.errors)
        assert {key[0] for key in both.keys} == {"default/web"}
        assert {view.state for view in both.views.values()} == {"complete"}
        assert any("bare_requests_total" in sentence for sentence in both.errors)

    asyncio.run(run())


@pytest.mark.parametrize("kind", KINDS)
def test_the_number_of_queries_does_not_depend_on_the_number_of_workloads(world: World, kind: str) -> None:
    async def run() -> None:
        asked: list[str] = []
        async with telemetry(world, kind, lambda _backend, outcome, _s: asked.append(outcome)) as tele:
            await until(tele, lambda a: int(np.isfinite(a.latest).sum()) == 2, "one workload in two clusters")
            asked.clear()
            await demand(tele)
            count = len(asked)
            world.exporter.services = ("web", *(f"more-{index}" for index in range(199)))
            many = await until(tele, lambda a: int(np.isfinite(a.latest).sum()) >= 400, "200 workloads")
            asked.clear()
            again = await demand(tele)
        assert len(many.keys) == 400
        assert len(again.keys) == 400
        assert len(asked) == count
        # Demand now, its new slots, its peaks, who is seen, since when, CPU, what hides some of it; Thanos' stores.
        per_backend = 8 if kind == "thanos" else 7
        assert count == per_backend * len(world.backends(kind))

    try:
        asyncio.run(run())
    finally:
        world.exporter.services = ("web",)


@pytest.mark.parametrize("kind", KINDS)
def test_a_cluster_whose_metrics_die_is_named_with_since_when_and_the_others_go_on(world: World, kind: str) -> None:
    lost = "eu-1"

    async def run() -> None:
        async with telemetry(world, kind) as tele:
            before = await until(tele, lambda a: all(v.complete for v in a.views.values()), "all complete")
            killed = time.time()
            world.lose(kind, lost)
            after = await until(tele, lambda a: not a.views[lost].complete, f"{lost} is missed")
            assert time.time() - killed < 15
            view = after.views[lost]
            assert view.state in ("stale", "failed")
            assert view.since_s is not None
            assert killed - 10 <= view.since_s <= killed + 2, "the newest sample that was seen, at most max_age before"
            assert view.detail
            for name in ("us-1", "ap-1"):
                assert after.views[name].complete, after.views
            now = dict(zip(after.keys, after.latest, strict=True))
            assert now["default/web", "us-east4", "us-1"] == pytest.approx(20.0, rel=0.05)
            assert ("default/web", "europe-west1", lost) in now, "its history is kept"
            row = after.keys.index(("default/web", "europe-west1", lost))
            assert np.isfinite(after.values[row]).sum() >= np.isfinite(before.values[row]).sum() - 2
            raw = await tele.counters(ERRORS, [m.name for m in MEMBERS], time.time() - 10, time.time())
            assert not raw.views[lost].complete
            assert raw.views["us-1"].complete
            async with telemetry(world, kind) as restarted:
                anew = (await demand(restarted)).views[lost]
            assert not anew.complete
            if kind in ("prometheus-3.9", "prometheus-2.42"):
                assert anew.since_s == pytest.approx(killed, abs=35), "a restart knows since when"
            world.bring_back(lost)
            healed = await until(tele, lambda a: all(v.complete for v in a.views.values()), "all complete again")
            assert healed.errors == ()

    try:
        asyncio.run(run())
    finally:
        world.bring_back(lost)


@pytest.mark.parametrize("kind", KINDS)
def test_the_recordings_of_a_lost_cluster_age_instead_of_vanishing(world: World, kind: str) -> None:
    lost = "ap-1"

    async def run() -> None:
        async with telemetry(world, kind) as tele:
            assert (await tele.network(time.time())).map.cells[lost, "us-1"].state == "lossy"
            world.lose(kind, lost)
            end = time.monotonic() + 30
            while True:
                answer = await tele.network(time.time() + (150 if "cluster" not in kind and kind != "thanos" else 0))
                cell = answer.map.cells[lost, "us-1"]
                if cell.state != "lossy" or cell.source != "direct":
                    break
                assert time.monotonic() < end, cell
                await asyncio.sleep(0.2)  # a poll of other processes: there is nothing to await
            assert cell.rtt_mean_s == pytest.approx(RTT_S, rel=0.05), "the other direction's, or the last known"

    try:
        asyncio.run(run())
    finally:
        world.bring_back(lost)


def test_unknown_room_says_what_to_do(world: World) -> None:
    async def run() -> None:
        world.fleet.prometheus["us-1"].process.kill()
        async with telemetry(world, "prometheus-per-cluster") as tele:
            answer = await tele.room()
        room = answer.clusters["us-1"]
        assert isinstance(room, Unknown)
        assert "can't be reached" in room.detail
        assert answer.clusters["eu-1"] == {"cpu": (8.0, 2.5)}

    try:
        asyncio.run(run())
    finally:
        world.bring_back("us-1")
