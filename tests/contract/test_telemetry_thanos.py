"""Thanos as people run it: a sidecar, a receiver, a store gateway over a bucket, and a ruler.

One cluster has a sidecar, one writes to a receiver. The first cluster's older days are in the bucket, and of its oldest
only downsampled blocks are left. The ruler records what the probes count.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rebalancer.adapters.telemetry import MetricsTelemetry
from rebalancer.api.cluster import MemberCluster
from rebalancer.api.controller import TelemetrySpec
from rebalancer.core.policy import DemandSpec, Policy
from rebalancer.ports import DemandAnswer, DemandWindow
from tests.contract.test_telemetry_conformance import RATES, RULES, Exporter, SystemClock, exporting
from tests.stack import binaries, history
from tests.stack.fixtures import require
from tests.stack.metrics import Prometheus, Sidecar, Target, Thanos, ThanosQuery
from tests.stack.processes import Process, free_port, wait_for

pytestmark = [pytest.mark.stack]
HOUR_S = 3600.0
BLOCK_H = 54
LEAST_MS = 40 * 3600 * 1000
"""Shorter blocks are not downsampled."""
STEP_S, DAYS = 600.0, 5.0
RATE = 30.0
WEB = {"default/web": Policy("web", demand=DemandSpec("ingress_requests_total", "service", "origin"))}
CLUSTERS = {"eu-1": "europe-west1", "us-1": "us-east4"}


@dataclass
class World:
    """What runs."""

    query: ThanosQuery
    prometheus: dict[str, Prometheus]
    exporter: Exporter
    raw_begins_s: float


def blocks(folder: Path) -> list[tuple[Path, dict[str, Any]]]:
    """Blocks with their metadata, the oldest first."""
    found = [(path.parent, json.loads(path.read_text())) for path in folder.glob("*/meta.json")]
    return sorted(found, key=lambda one: one[1]["minTime"])


def resolution(meta: dict[str, Any]) -> int:
    """Milliseconds between the samples of a block; 0 for raw ones."""
    return int(meta["thanos"]["downsample"]["resolution"])


def downsample(folder: Path, bucket: Path, config: str) -> None:
    """Has every block that is long enough for it downsampled; the program itself goes on for ever."""
    wanted = sum(meta["maxTime"] - meta["minTime"] >= LEAST_MS for _, meta in blocks(bucket))
    argv = [
        binaries.path("thanos"),
        "tools",
        "bucket",
        "downsample",
        f"--objstore.config={config}",
        f"--data-dir={folder / 'coarse'}",
    ]
    process = Process("thanos-downsample", [*argv, f"--http-address=127.0.0.1:{free_port()}"], folder / "log").start()
    try:
        wait_for(
            lambda: sum(resolution(meta) > 0 for _, meta in blocks(bucket)) == wanted > 0, "downsampled blocks", 60,
            owner=process,
        )  # fmt: skip
    finally:
        process.kill()


def make_bucket(folder: Path, end_s: float) -> tuple[str, float]:
    """Fills a bucket with eu-1's past up to `end_s`; returns its configuration, and where raw samples begin in it."""
    bucket, data = folder / "bucket", folder / "past"
    bucket.mkdir()
    config = json.dumps({"type": "FILESYSTEM", "config": {"directory": str(bucket)}})
    path = folder / "past.txt"
    past = [history.PastService("default", "web", {"europe-west1": RATE}, daily=False)]
    # From where a block begins, so that the first two are whole and long enough to be downsampled.
    begin_s = (end_s - DAYS * 86400 - 2 * HOUR_S) // (BLOCK_H * HOUR_S) * BLOCK_H * HOUR_S
    history.write(path, "eu-1", past, end_s=end_s // 60 * 60, days=(end_s - begin_s) / 86400, step_s=60)
    command = [binaries.path("promtool"), "tsdb", "create-blocks-from", "openmetrics"]
    command.append(f"--max-block-duration={BLOCK_H}h")
    subprocess.run([*command, "--quiet", str(path), str(data)], capture_output=True, timeout=120, check=True)
    for block, meta in blocks(data):
        meta["thanos"] = {"labels": {"cluster": "eu-1", "replica": "a"}, "downsample": {"resolution": 0}, "source": "x"}
        (block / "meta.json").write_text(json.dumps(meta))
        shutil.move(block, bucket)
    downsample(folder, bucket, config)
    # What a compactor does when raw samples are kept for less time than downsampled ones.
    end_of_raw = sorted(meta["maxTime"] for _, meta in blocks(bucket) if resolution(meta) > 0)[1]
    for block, meta in blocks(bucket):
        if resolution(meta) == 0 and meta["minTime"] < end_of_raw:
            shutil.rmtree(block)
    return config, end_of_raw / 1000


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    require(("prometheus", "promtool", "thanos"))
    folder, now = tmp_path_factory.mktemp("thanos"), time.time()
    config, raw_begins_s = make_bucket(folder, now - 2 * HOUR_S)
    running: list[Prometheus | Sidecar | Thanos | ThanosQuery] = []
    with exporting() as exporter:
        try:
            receive = Thanos(
                "receive", folder / "receive", f"--tsdb.path={folder / 'receive'}", '--label=receiver="one"',
                "--tsdb.out-of-order.time-window=6h", f"--remote-write.address=127.0.0.1:{(port := free_port())}",
            )  # fmt: skip
            running.append(receive.start())
            write = {"remote_write": [{"url": f"http://127.0.0.1:{port}/api/v1/receive"}]}
            servers = {
                name: Prometheus(name, folder / name, cluster=name, config=write if name == "us-1" else None)
                for name in CLUSTERS
            }
            for name, server in servers.items():
                server.scrape(Target("ingress", f"http://127.0.0.1:{exporter.port}/{name}/metrics"))
                running.append(server.start())
            sidecar = Sidecar(servers["eu-1"], folder / "sidecar")
            store = Thanos("store", folder / "store", f"--data-dir={folder / 'store'}", f"--objstore.config={config}")
            running += [sidecar.start(), store.start()]
            query = ThanosQuery(folder / "query", [sidecar.grpc, receive.grpc, store.grpc])
            rule = Thanos(
                "rule", folder / "rule", f"--data-dir={folder / 'rule'}", f"--rule-file={RULES}",
                "--eval-interval=1s", f"--query={query.url.removeprefix('http://')}", '--label=ruler="one"',
            )  # fmt: skip
            query.endpoints.append(rule.grpc)
            running += [rule.start(), query.start_without_waiting()]
            wait_for(lambda: query.query.scalar("min(count_over_time(up[1h]))") > 15, "scrapes", 90, 0.5)
            yield World(query, servers, exporter, raw_begins_s)
        finally:
            for one in reversed(running):
                one.stop()


@asynccontextmanager
async def telemetry(world: World) -> AsyncIterator[MetricsTelemetry]:
    spec = {
        "backends": [{"type": "thanos", "url": world.query.url}], "rateWindow": "10s", "maxAge": "10s",
        "history": f"{DAYS:.0f}d", "historyStep": f"{STEP_S:.0f}s",
    }  # fmt: skip
    clusters = {
        name: MemberCluster.model_validate(
            {"metadata": {"name": name}, "spec": {"region": region, "connection": {"context": name}}}
        )
        for name, region in CLUSTERS.items()
    }
    made = MetricsTelemetry(TelemetrySpec.model_validate(spec), clusters, SystemClock())
    try:
        yield made
    finally:
        await made.close()


async def demand(tele: MetricsTelemetry) -> DemandAnswer:
    end = time.time() // STEP_S * STEP_S
    return await tele.demand(DemandWindow(end - DAYS * 86400, end, STEP_S), WEB)


def test_a_sidecar_and_a_receiver_make_one_complete_view(world: World) -> None:
    expected = pytest.approx({("default/web", o, name): RATES[o] for name, o in CLUSTERS.items()}, rel=0.03)

    async def run() -> None:
        until = time.monotonic() + 180
        async with telemetry(world) as tele:
            while True:
                answer = await demand(tele)
                now = dict(zip(answer.keys, answer.latest, strict=True))
                # Scrapes that a busy machine missed are out of the rate's window after two minutes.
                if now == expected or time.monotonic() > until:
                    break
                await asyncio.sleep(1.0)  # a poll of other processes: there is nothing to await
        assert {name: view.state for name, view in answer.views.items()} == dict.fromkeys(CLUSTERS, "complete")
        assert now == expected

    asyncio.run(run())


def test_history_comes_from_the_bucket_and_where_raw_samples_are_gone_from_coarser_ones(world: World) -> None:
    async def run() -> None:
        async with telemetry(world) as tele:
            first, second = await demand(tele), await demand(tele)
            found = await tele.check(WEB)
        row = first.values[first.keys.index(("default/web", "europe-west1", "eu-1"))]
        end = time.time() // STEP_S * STEP_S
        ends = end - np.arange(len(row))[::-1] * STEP_S
        past = ends < time.time() - 3 * HOUR_S
        assert np.isfinite(row[past]).mean() > 0.98, "the window is whole, but for the seams"
        off = np.abs(row[past & np.isfinite(row)] / RATE - 1)
        # Where one of Thanos' downsampled chunks ends (every eleven hours), a rate has fewer samples to go by.
        assert (off < 0.05).mean() > 0.97
        assert off.max() < 0.2
        assert (ends < world.raw_begins_s).sum() > 20, "some of it is older than the raw samples"
        [told] = [text for text in first.errors if "downsampled to 5m" in text]
        assert "shorter peaks are missing" in told
        assert second.errors == (), "it is told when it is read"
        [history_finding] = [one for one in found if one.what == "history"]
        assert history_finding.state == "degraded"
        assert "only in data downsampled to 5m" in history_finding.sentence

    asyncio.run(run())


def test_the_rulers_recordings_are_the_network(world: World) -> None:
    async def run() -> None:
        async with telemetry(world) as tele:
            end = time.monotonic() + 60
            while True:
                answer = await tele.network(time.time())
                if any(cell.source == "direct" for cell in answer.map.cells.values()):
                    break
                assert time.monotonic() < end, answer
                await asyncio.sleep(0.5)  # a poll of other processes: there is nothing to await
        assert answer.errors == ()
        assert {pair for pair in answer.map.cells if set(pair) <= set(CLUSTERS)} == {("eu-1", "us-1"), ("us-1", "eu-1")}

    asyncio.run(run())


def test_a_cluster_that_stops_writing_to_the_receiver_is_missed(world: World) -> None:
    async def run() -> None:
        world.prometheus["us-1"].process.kill()
        killed = time.time()
        async with telemetry(world) as tele:
            end = time.monotonic() + 60
            while True:
                view = (await demand(tele)).views
                if not view["us-1"].complete:
                    break
                assert time.monotonic() < end, view
                await asyncio.sleep(0.5)  # a poll of other processes: there is nothing to await
        assert view["eu-1"].complete
        assert view["us-1"].since_s == pytest.approx(killed, abs=15)

    try:
        asyncio.run(run())
    finally:
        world.prometheus["us-1"].restart()
