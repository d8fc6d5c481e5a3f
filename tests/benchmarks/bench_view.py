"""Figures of the global view on a real Prometheus: `python -m tests.benchmarks.bench_view [--series N]`.

Each line is `name value unit bound ok|SHORT`. A Prometheus is filled with a day of request counters (10,000 series at
60 s, a gigabyte and a half of disk in a temporary folder); then the controller's own telemetry brings 288 points of
each into an array, and prometheus-api-client with its data frame does the same with the same query. Each client is a
fresh process: CPU is that of the reading alone, the peak is the whole process with its imports.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.benchmarks.figures import line, rival
from tests.stack import binaries
from tests.stack.metrics import Prometheus

STEP_S, SLOTS, SCRAPE_S = 300.0, 288, 60.0
CLUSTERS, ORIGINS = 20, ("eu-west", "us-east", "ap-south", "sa-east")
WINDOW_S = 300.0
QUERY = "sum by (cluster,namespace,service,origin) (rate(ingress_requests_total[5m]))"
CPU_BOUND_S, PEAK_BOUND_MB = 1.6, 300.0
QUIET_SHARE_BOUND = 0.03
"""Three of 288 slots, the new one and two again, and each series' labels once."""


@dataclass
class Clock:
    """Stands where the bench puts it."""

    at: float

    def now(self) -> float:
        return self.at

    async def sleep(self, seconds: float) -> None:
        self.at += seconds


def write_history(path: Path, series: int, end_s: float) -> None:
    """Writes counters of `series` workloads as OpenMetrics text up to `end_s`."""
    count = int((SLOTS * STEP_S + 2 * WINDOW_S) / SCRAPE_S) + 1
    times = [f" {end_s - (count - 1 - i) * SCRAPE_S:.0f}\n" for i in range(count)]
    with path.open("w", encoding="ascii") as out:
        out.write("# TYPE ingress_requests counter\n")
        for index in range(series):
            labels = (
                f'cluster="c-{index % CLUSTERS}",namespace="shop",service="workload-{index // CLUSTERS}",'
                f'origin="{ORIGINS[index % len(ORIGINS)]}",job="ingress"'
            )
            head, rate = f"ingress_requests_total{{{labels}}} ", 7 + index % 13
            out.write("".join([f"{head}{rate * i * 60 + (i * i) % 53}{at}" for i, at in enumerate(times)]))
        out.write("# EOF\n")


def ours(url: str, end_s: float) -> dict[str, float]:
    """The first cycle and a quiet one, through the telemetry port."""
    from rebalancer.adapters.telemetry import MetricsTelemetry
    from rebalancer.api.cluster import MemberCluster
    from rebalancer.api.controller import TelemetrySpec
    from rebalancer.core.policy import DemandSpec, Policy
    from rebalancer.ports import DemandAnswer, DemandWindow

    names = [f"c-{index}" for index in range(CLUSTERS)]
    clusters = {
        name: MemberCluster.model_validate(
            {"metadata": {"name": name}, "spec": {"region": "eu-west", "connection": {"context": name}}}
        )
        for name in names
    }
    policies = {"shop/all": Policy("all", "shop", demand=DemandSpec("ingress_requests_total", "service", "origin"))}
    spec = TelemetrySpec.model_validate({"backends": [{"url": url, "timeout": "60s"}], "maxAge": "10m"})

    async def run() -> dict[str, float]:
        clock = Clock(end_s)
        asked: list[str] = []
        tele = MetricsTelemetry(spec, clusters, clock, lambda _b, outcome, _s: asked.append(outcome), deadline_s=120)

        async def cycle(at_s: float) -> tuple[DemandAnswer, float, float]:
            clock.at = at_s
            before, began = time.process_time(), time.monotonic()
            answer = await tele.demand(DemandWindow(at_s - SLOTS * STEP_S, at_s, STEP_S), policies)
            return answer, time.process_time() - before, time.monotonic() - began

        full, cpu, wall = await cycle(end_s - STEP_S)
        queries, peak = len(asked), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        marks = {"queries": float(queries), **{f"full_{k}": v for k, v in server(url).items()}}
        quiet, quiet_cpu, quiet_wall = await cycle(end_s)
        await tele.close()
        assert full.errors == () and quiet.errors == (), (full.errors, quiet.errors)
        import numpy as np

        return {
            **marks, "cpu_s": cpu, "wall_s": wall, "peak_mb": peak, "rows": float(full.values.shape[0]),
            "known_share": float(np.isfinite(full.values).mean()), "quiet_cpu_s": quiet_cpu,
            "quiet_wall_s": quiet_wall, "quiet_known_share": float(np.isfinite(quiet.values).mean()),
            "quiet_queries": float(len(asked) - queries),
        }  # fmt: skip

    return asyncio.run(run())


def theirs(url: str, end_s: float) -> dict[str, float]:
    """prometheus-api-client as its manual says: a range query into a data frame, then a matrix."""
    from prometheus_api_client import MetricRangeDataFrame, PrometheusConnect

    client = PrometheusConnect(url=url)
    end = datetime.fromtimestamp(end_s - STEP_S, UTC)
    start = datetime.fromtimestamp(end_s - SLOTS * STEP_S, UTC)
    before, began = time.process_time(), time.monotonic()
    found = client.custom_query_range(QUERY, start, end, f"{STEP_S:.0f}", timeout=300)
    frame = MetricRangeDataFrame(found)
    frame["value"] = frame["value"].astype(float)
    labels = ["cluster", "namespace", "service", "origin"]
    matrix = frame.pivot_table(index=labels, columns=frame.index, values="value", sort=False).to_numpy()
    cpu, wall = time.process_time() - before, time.monotonic() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"cpu_s": cpu, "wall_s": wall, "peak_mb": peak, "rows": float(matrix.shape[0])}


def server(url: str) -> dict[str, float]:
    """What the Prometheus says of itself: CPU seconds, and bytes of its answers to range queries."""
    import httpx

    found = {"cpu_s": 0.0, "range_bytes": 0.0}
    for text in httpx.get(f"{url}/metrics", trust_env=False, timeout=30).text.splitlines():
        name, _, value = text.rpartition(" ")
        if name == "process_cpu_seconds_total":
            found["cpu_s"] = float(value)
        elif name.startswith('prometheus_http_response_size_bytes_sum{handler="/api/v1/query_range"'):
            found["range_bytes"] += float(value)
    return found


ROLES: dict[str, Callable[[str, float], dict[str, float]]] = {"ours": ours, "theirs": theirs}


def fresh(role: str, url: str, end_s: float) -> tuple[dict[str, float], dict[str, float]]:
    """Runs a client in a process of its own; its figures, and what the server spent meanwhile."""
    before = server(url)
    argv = [sys.executable, "-m", "tests.benchmarks.bench_view", "--role", role, "--url", url, "--end", repr(end_s)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    after = server(url)
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures, {"before_bytes": before["range_bytes"], "before_cpu": before["cpu_s"],
                     **{name: after[name] - before[name] for name in after}}  # fmt: skip


def figures(url: str, end_s: float) -> bool:
    """Prints all figures; returns whether all are within their bounds."""
    runs = [fresh("ours", url, end_s) for _ in range(3)]
    one, spent = min(runs, key=lambda run: run[0]["cpu_s"])
    other, other_spent = fresh("theirs", url, end_s)
    full_bytes = one["full_range_bytes"] - spent["before_bytes"]
    quiet_bytes = spent["range_bytes"] - full_bytes
    good = [
        line("view_client_cpu", one["cpu_s"], "s", CPU_BOUND_S),
        line("view_client_peak", one["peak_mb"], "MB", PEAK_BOUND_MB),
        line("view_unknown_share", 1 - one["known_share"], "ratio", 0.0),
        line("view_quiet_unknown_share", 1 - one["quiet_known_share"], "ratio", 0.0),
        line("view_quiet_bytes_per_full", quiet_bytes / full_bytes, "ratio", QUIET_SHARE_BOUND),
    ]
    full_server = one["full_cpu_s"] - spent["before_cpu"]
    for name, value, unit in (
        ("view_rows", one["rows"], "rows"), ("view_queries", one["queries"], "queries"),
        ("view_quiet_queries", one["quiet_queries"], "queries"), ("view_wall", one["wall_s"], "s"),
        ("view_bytes", full_bytes / 1e6, "MB"), ("view_quiet_bytes", quiet_bytes / 1e6, "MB"),
        ("view_server_cpu", full_server, "s"), ("view_quiet_server_cpu", spent["cpu_s"] - full_server, "s"),
        ("view_quiet_client_cpu", one["quiet_cpu_s"], "s"), ("view_quiet_wall", one["quiet_wall_s"], "s"),
        ("machine_load", os.getloadavg()[0], "processes"),
    ):  # fmt: skip
        print(f"{name} {value:.3g} {unit} - told", flush=True)
    for name, value, unit in (
        ("dataframe_client_cpu", other["cpu_s"], "s"), ("dataframe_client_peak", other["peak_mb"], "MB"),
        ("dataframe_wall", other["wall_s"], "s"), ("dataframe_server_cpu", other_spent["cpu_s"], "s"),
        ("dataframe_cpu_per_ours", other["cpu_s"] / one["cpu_s"], "times"),
        ("dataframe_peak_per_ours", other["peak_mb"] / one["peak_mb"], "times"),
    ):  # fmt: skip
        rival(name, value, unit)
    return all(good)


def main() -> int:
    """Runs the bench, or one of its clients."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--series", type=int, default=10_000)
    parser.add_argument("--folder", type=Path, help="where the data goes (default: a temporary folder)")
    parser.add_argument("--role", choices=tuple(ROLES))
    parser.add_argument("--url")
    parser.add_argument("--end", type=float)
    arguments = parser.parse_args()
    if arguments.role:
        print(json.dumps(ROLES[arguments.role](arguments.url, arguments.end)))
        return 0
    if binaries.missing(("prometheus", "promtool")):
        print(binaries.HOW, file=sys.stderr)
        return 1
    folder = Path(tempfile.mkdtemp(prefix="bench-view-", dir=arguments.folder))
    prometheus = Prometheus("bench-view", folder / "prometheus")
    try:
        end_s = time.time() // STEP_S * STEP_S
        history = folder / "history.txt"
        write_history(history, arguments.series, end_s)
        prometheus.backfill(history, timeout_s=1800)
        history.unlink()
        prometheus.start(timeout_s=120)
        return 0 if figures(prometheus.url, end_s) else 1
    finally:
        prometheus.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
