"""A real Prometheus scrapes native histograms from the agent's exposition; its quantiles are those of the samples."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from probes.exposition import AgentState, Histogram, Series
from probes.http import Response, Server
from probes.negotiation import choose, expose
from probes.stats import PeerStats
from rebalancer.adapters.telemetry.access import Access
from rebalancer.adapters.telemetry.transports import PromApi
from rebalancer.catalog import RECORDED
from rules.__main__ import HERE as RULES
from rules.recording import RTT_MEAN, RTT_P50, RTT_P99
from tests.stack.fixtures import require
from tests.stack.metrics import Prometheus, Query, Target
from tests.stack.processes import free_port, wait_for

pytestmark = [pytest.mark.stack]
PATHS_S = {"near": 0.0003, "region": 0.0015, "coast": 0.02, "land": 0.076, "ocean": 0.15, "globe": 0.25}
SAMPLES = 20_000
QUANTILES = {0.5: 0.03, 0.99: 0.05}
"""Quantile -> how far it may be from the truth, as a share of it."""


def draw(base_s: float, rng: random.Random) -> list[float]:
    """Round-trip times of a path: a floor, a narrow body, and a tail of queues."""
    return [
        base_s * (1 + rng.expovariate(1 / 0.02) + (rng.expovariate(1 / 0.3) if rng.random() < 0.03 else 0.0))
        for _ in range(SAMPLES)
    ]


class Exposed:
    """The exposition of known samples, served as an agent serves it, in a thread with its own loop."""

    def __init__(self, port: int) -> None:
        self.stats = {name: PeerStats() for name in PATHS_S}
        self.forms: set[str] = set()
        self._loop = asyncio.new_event_loop()
        self._server = Server({"/metrics": self._metrics})
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._server.start("127.0.0.1", port), self._loop).result(10)

    def observe(self, samples: dict[str, list[float]]) -> None:
        async def take() -> None:
            for name, rtts_s in samples.items():
                for rtt_s in rtts_s:
                    self.stats[name].observe(rtt_s, None, now_s=time.monotonic(), unix_s=time.time())

        asyncio.run_coroutine_threadsafe(take(), self._loop).result(30)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._server.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _metrics(self, accept: str) -> Response:
        self.forms.add(choose(accept))
        series = [Series("here", name, "udp", stats, ("192.0.2.1:1",), "eu", 13) for name, stats in self.stats.items()]
        return Response("200 OK", *expose(accept, series, AgentState({}, "1", "here", Histogram()), time.monotonic()))


@contextmanager
def prometheus(directory: Path, target: int) -> Iterator[Prometheus]:
    server = Prometheus("native", directory / "prometheus", rule_files=[RULES / "rebalancer-recording-native.yaml"])
    options = {"scrape_native_histograms": True, "always_scrape_classic_histograms": True}
    server.scrape(Target("rebalancer-probe", f"http://127.0.0.1:{target}/metrics", options=options))
    try:
        yield server.start()
    finally:
        server.stop()


def decoded(url: str, expression: str) -> dict[str, float]:
    """What the controller's own client makes of an answer of native histograms."""

    async def ask() -> dict[str, float]:
        transport = PromApi(Access(url))
        try:
            answer = await transport.query(expression, {}, 5.0)
        finally:
            await transport.close()
        return {one.labels["dst_cluster"]: float(one.values[0]) for one in answer.series}

    return asyncio.run(ask())


def truth(samples: list[float], quantile: float) -> float:
    return sorted(samples)[int(quantile * len(samples))]


def by_path(query: Query, expression: str) -> dict[str, float]:
    return {labels["dst_cluster"]: value for labels, value in query.vector(expression)}


def test_quantiles_of_native_histograms_are_those_of_the_samples(tmp_path: Path) -> None:
    require(("prometheus",))
    rng = random.Random(7)
    samples = {name: draw(base_s, rng) for name, base_s in PATHS_S.items()}
    port = free_port()
    exposed = Exposed(port)
    try:
        with prometheus(tmp_path, port) as server:
            query = server.query
            empty = "histogram_count(rebalancer_probe_rtt_seconds) == 0"
            wait_for(lambda: len(query.vector(empty)) == len(PATHS_S), "paths without a sample are scraped", 60)
            exposed.observe(samples)
            full = f"histogram_count(rebalancer_probe_rtt_seconds) == {SAMPLES}"
            wait_for(lambda: len(query.vector(full)) == len(PATHS_S), "all samples are scraped", 60)
            assert exposed.forms == {"protobuf"}
            wait_for(lambda: len(by_path(query, f"{RTT_P50} > 0")) == len(PATHS_S), "the rules have seen them", 60)
            for quantile, bound in QUANTILES.items():
                name = {0.5: RTT_P50, 0.99: RTT_P99}[quantile]
                raw = by_path(query, f"histogram_quantile({quantile}, rebalancer_probe_rtt_seconds)")
                for found in (raw, by_path(query, name)):
                    for path, rtts_s in samples.items():
                        assert found[path] == pytest.approx(truth(rtts_s, quantile), rel=bound), (quantile, path)
            counts = decoded(server.url, "sum by (dst_cluster) (rebalancer_probe_rtt_seconds)")
            assert counts == dict.fromkeys(PATHS_S, SAMPLES), "a demand query on them counts observations"
            means = by_path(query, RTT_MEAN)
            for path, rtts_s in samples.items():
                assert means[path] == pytest.approx(sum(rtts_s) / SAMPLES, rel=1e-6), path
            classic = by_path(query, 'rebalancer_probe_rtt_seconds_bucket{le="+Inf"}')
            assert set(classic.values()) == {SAMPLES}, "the classic buckets come in the same scrape"
            recorded = {labels["__name__"] for labels, _value in query.vector('{__name__=~"pair:.*"}')}
            assert recorded >= {name for name in RECORDED if "rtt" in name or "samples" in name}
    finally:
        exposed.close()
