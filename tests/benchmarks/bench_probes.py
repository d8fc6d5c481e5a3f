"""Figures of the probes on this machine: `python -m tests.benchmarks.bench_probes [--short]`.

Each line is `name value unit bound ok|SHORT`. The sender and the reflector are processes of their own; the paths go
over loopback, so nothing is lost on the way, and whatever is missing was lost by the probe itself. Each has a core and,
as root, goes before all other processes there: what others do meanwhile is not the probe's cost.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import random
import resource
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from probes import memory, sockets
from probes.exposition import AgentState, Histogram, Series, render
from probes.protobuf import render_protobuf
from probes.reflector import Limits, Reflector
from probes.sender import Sender, SenderSettings
from probes.stats import BUCKET_BOUNDS_S, OUTCOME_INDEX, PeerStats
from tests.benchmarks.figures import line
from tests.benchmarks.roles import OTHER_CORE, PROBER_CORE, place

RATE_UNLIMITED = Limits(source_pps=1e9, total_pps=1e9)


def reflect(port: int, *, deaf: bool) -> None:
    """Runs a reflector until it is ended; a deaf one reads and answers nothing."""

    place(OTHER_CORE, fifo=True)

    async def main() -> None:
        sock = sockets.open_udp(socket.AF_INET, "127.0.0.1", port)
        reflector = Reflector(
            sock, keys=None, allows=lambda _host: not deaf, name_of=lambda _host: "bench", limits=RATE_UNLIMITED
        )
        asyncio.get_running_loop().add_reader(sock, reflector.on_readable)
        await asyncio.Event().wait()

    asyncio.run(main())


def send(port: int, paths: int, pps: float, seconds: float, out: str) -> None:
    """Sends and writes what it cost to a file."""

    place(PROBER_CORE, fifo=True)
    memory.calm()  # as the agent does

    async def main() -> dict[str, float]:
        sender = Sender(SenderSettings(interval_s=1 / pps, total_pps=1e9))
        sender.start(asyncio.get_running_loop())
        stats = [PeerStats() for _ in range(paths)]
        for index in range(paths):
            sender.add(str(index), stats[index]).place(socket.AF_INET, ("127.0.0.1", port))
        await asyncio.sleep(2)
        before, begun = time.process_time(), time.monotonic()
        memory_before = _rss_mb()
        await asyncio.sleep(seconds)
        cpu = (time.process_time() - before) / (time.monotonic() - begun)
        sender.close()
        total = [sum(item.outcomes[i] for item in stats) for i in range(len(OUTCOME_INDEX))]
        lost = sum(total[OUTCOME_INDEX[name]] for name in ("lost_forward", "lost_backward", "lost_unknown"))
        count = sum(item.rtt_count for item in stats)
        return {
            "cpu_percent": 100 * cpu, "rss_mb": _rss_mb(), "grown_mb": _rss_mb() - memory_before, "lost": lost,
            "ok_pps": count / (seconds + 2), "rtt_p99_us": 1e6 * _quantile(stats, 0.99),
            "self_drop": total[OUTCOME_INDEX["self_drop"]],
        }  # fmt: skip

    Path(out).write_text(json.dumps(asyncio.run(main())))


def _rss_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6


def _quantile(stats: list[PeerStats], quantile: float) -> float:
    counts = [sum(item.buckets[i] for item in stats) for i in range(len(BUCKET_BOUNDS_S) + 1)]
    below = 0
    for bound, count in zip((*BUCKET_BOUNDS_S, float("inf")), counts, strict=True):
        below += count
        if below >= quantile * sum(counts):
            return bound
    return float("nan")


def run(paths: int, pps: float, seconds: float, directory: Path, *, deaf: bool = False) -> dict[str, float]:
    """Runs a reflector and a sender; returns the sender's figures."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        port = int(sock.getsockname()[1])
    out = directory / "figures.json"
    context = multiprocessing.get_context("spawn")
    reflector = context.Process(target=reflect, args=(port,), kwargs={"deaf": deaf}, daemon=True)
    sender = context.Process(target=send, args=(port, paths, pps, seconds, str(out)))
    reflector.start()
    sender.start()
    sender.join(seconds + 60)
    reflector.terminate()
    reflector.join(10)
    return dict(json.loads(out.read_text()))


def scrape_ms(peers: int, expose: Callable[[Sequence[Series], AgentState, float], bytes]) -> float:
    """Returns the CPU time of one exposition in ms, the best of five; each peer has news for each."""
    generator = random.Random(1)
    stats = [PeerStats() for _ in range(peers)]
    for item in stats:
        _probed(item, generator.uniform(0.001, 0.2), 200, generator)
    series = [Series("a", f"cluster-{i}", "udp", item, ("192.0.2.1:8620",), "eu", 13) for i, item in enumerate(stats)]
    best = float("inf")
    for _ in range(5):
        for item in stats:
            _probed(item, item.last_rtt_s or 0.0, 15, generator)
        begun = time.process_time()
        expose(series, AgentState({}, "1", "a", Histogram()), 0.0)
        best = min(best, time.process_time() - begun)
    return 1e3 * best


def _probed(stats: PeerStats, rtt_s: float, probes: int, generator: random.Random) -> None:
    for index in range(probes):
        stats.observe(rtt_s * generator.uniform(0.9, 1.1), rtt_s, now_s=0.0, unix_s=1.0)
        stats.flow_loss.add(0.0, index % 13, lost=False)


def main() -> int:
    """Prints all figures; the exit code is 1 if one is short."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="5 s a run instead of 20")
    seconds = 5.0 if parser.parse_args().short else 20.0
    directory = Path(tempfile.mkdtemp())
    memory.calm()
    good = [
        line("probes_scrape_1000_peers_text", scrape_ms(1000, render), "ms", 30),
        line("probes_scrape_1000_peers_protobuf", scrape_ms(1000, render_protobuf), "ms", 30),
    ]
    figures = run(1000, 1, seconds, directory)
    good += [
        line("probes_1000x1pps_cpu", figures["cpu_percent"], "%", 15),
        line("probes_1000x1pps_rss", figures["rss_mb"], "MB", 60),
        line("probes_1000x1pps_lost", figures["lost"], "probes", 0),
        line("probes_1000x1pps_loopback_rtt_p99", figures["rtt_p99_us"], "us", 200),
    ]
    figures = run(1000, 10, seconds, directory)
    good += [
        line("probes_10000pps_cpu", figures["cpu_percent"], "%", 50),
        line("probes_10000pps_lost", figures["lost"], "probes", 0),
        line("probes_10000pps_missing", 10_000 - figures["ok_pps"], "pps", 1_500),
    ]
    figures = run(200, 10, seconds, directory, deaf=True)
    good.append(line("probes_all_lost_memory_growth", figures["grown_mb"], "MB", 8))
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
