"""Peaks within slots, from a real Prometheus: what a minute of the sum reached, not what each cluster reached alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import numpy as np
import pytest

from rebalancer.adapters.telemetry import MetricsTelemetry
from rebalancer.api.cluster import MemberCluster
from rebalancer.api.controller import TelemetrySpec
from rebalancer.core.model import Floats
from rebalancer.core.policy import DemandSpec, Policy
from rebalancer.core.series import assemble
from rebalancer.ports import DemandAnswer, DemandWindow
from tests.stack.fixtures import require
from tests.stack.metrics import Prometheus

pytestmark = [pytest.mark.stack]
STEP_S, SLOTS, WINDOW_S, SCRAPE_S = 300.0, 24, 120.0, 15.0
BASE, BURST = 10.0, 50.0
BURST_MINUTE = {"eu-1": 1, "us-1": 3}
"""Minute of each slot in which a cluster's users all come at once."""
STRETCHED = 0.08
"""A window holds one interval less than it has samples, and Prometheus stretches what it saw."""
WEB = {"shop/web": Policy("web", "shop", workload_name="web", demand=DemandSpec("requests_total", "service"))}


class Clock:
    """Stands at the end of the history."""

    def __init__(self, at: float) -> None:
        self.at = at

    def now(self) -> float:
        return self.at

    async def sleep(self, seconds: float) -> None:
        self.at += seconds


def rate(cluster: str, at_s: Floats) -> Floats:
    """True rate within the step before a time."""
    minute = ((at_s - SCRAPE_S / 2) % STEP_S) // 60
    return np.where(minute == BURST_MINUTE[cluster], BURST, BASE)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Prometheus, float]]:
    require(("prometheus", "promtool"))
    folder = tmp_path_factory.mktemp("peaks")
    end_s = time.time() // STEP_S * STEP_S - STEP_S
    times = end_s - SCRAPE_S * np.arange((SLOTS + 2) * STEP_S / SCRAPE_S, -1.0, -1.0, dtype=np.float64)
    lines = ["# TYPE requests counter\n"]
    for cluster in BURST_MINUTE:
        counts = np.cumsum(rate(cluster, times) * SCRAPE_S)
        head = f'requests_total{{cluster="{cluster}",namespace="shop",service="web"}}'
        lines += [f"{head} {count:.0f} {at:.0f}\n" for count, at in zip(counts, times, strict=True)]
    history = folder / "history.txt"
    history.write_text("".join([*lines, "# EOF\n"]))
    prometheus = Prometheus("peaks", folder / "prometheus")
    prometheus.backfill(history)
    try:
        yield prometheus.start(), end_s
    finally:
        prometheus.stop()


def test_the_peak_is_that_of_the_sum(filled: tuple[Prometheus, float]) -> None:
    prometheus, end_s = filled

    async def run() -> DemandAnswer:
        clusters = {
            name: MemberCluster.model_validate(
                {"metadata": {"name": name}, "spec": {"region": "eu-west", "connection": {"context": name}}}
            )
            for name in BURST_MINUTE
        }
        spec = TelemetrySpec.model_validate({"backends": [{"url": prometheus.url}], "rateWindow": f"{WINDOW_S:g}s"})
        tele = MetricsTelemetry(spec, clusters, Clock(end_s))
        answer = await tele.demand(DemandWindow(end_s - SLOTS * STEP_S, end_s, STEP_S), WEB)
        await tele.close()
        return answer

    answer = asyncio.run(run())
    # Two minutes of both clusters hold one burst, the whole slot holds two.
    window, mean = (BASE + BURST + 2 * BASE) / 2, (2 * (BASE + BURST) + 3 * 2 * BASE) / 5
    np.testing.assert_allclose(answer.peaks["shop/web"], np.full(SLOTS, window / mean), rtol=STRETCHED)
    history = assemble(answer.keys, answer.values, end_s - (SLOTS - 1) * STEP_S, STEP_S, peaks=answer.peaks)
    np.testing.assert_allclose(history.values, np.full((1, SLOTS), window), rtol=STRETCHED)
