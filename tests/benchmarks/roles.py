"""The programs under measurement, each a process of its own: `python -m tests.benchmarks.roles ROLE SETTINGS OUT`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from probes import sockets, tcp
from probes.reflector import Limits, Reflector
from probes.sender import Path as ProbePath
from probes.sender import Sender, SenderSettings
from probes.session import Answer, PathSession, Pending
from probes.stats import OUTCOME_INDEX, PeerStats
from rebalancer.core.network.latency import wilson
from tests.benchmarks.truth_relay import PORT

PROBER_CORE, OTHER_CORE = 0, 1
SETTLE_S = 6.0
_DETECT_EVERY_S = 0.25


@dataclass(frozen=True)
class Load:
    """What a prober does.

    Attributes:
        host: whom it asks.
        paths: number of paths, all to that host.
        pps: probes per second and path.
        seconds: how long.
        fifo: whether it has the processor before all others (a quiet machine), or shares it.
    """

    host: str
    paths: int = 20
    pps: float = 10.0
    seconds: float = 10.0
    fifo: bool = True

    def dump(self) -> str:
        """Returns it as an argument."""
        return json.dumps(asdict(self))


def place(core: int, *, fifo: bool) -> None:
    """Pins this process to a core; where the machine forbids that, or has one core only, it runs as it is."""
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, {core})
    if fifo:
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))


class Recording(PathSession):
    """A session that also keeps every sample: (SSID, number, round trip, turnaround in ns)."""

    samples: list[tuple[int, int, int, int]]

    def answered(self, probe: Pending, answer: Answer) -> bool:
        """Takes a reply and keeps what was measured."""
        before = self.stats.rtt_count
        stepped = super().answered(probe, answer)
        if self.stats.rtt_count != before and self.last_rtt_s is not None:
            self.samples.append((self.ssid, probe.seq, round(self.last_rtt_s * 1e9), max(0, answer.turnaround_ns)))
        return stepped


def record(path: ProbePath, samples: list[tuple[int, int, int, int]]) -> None:
    """Makes a path that has sent nothing yet keep its samples in a list."""
    session = Recording(path.session.ssid, path.session.stats)
    session.samples = samples
    path.session = session


async def probe(load: Load) -> dict[str, Any]:
    """Probes, lets everything settle, and returns what was measured."""
    sender = Sender(SenderSettings(interval_s=1 / load.pps, total_pps=1e9))
    sender.start(asyncio.get_running_loop())
    samples: list[tuple[int, int, int, int]] = []
    paths = [sender.add(str(index), PeerStats()) for index in range(load.paths)]
    for path in paths:
        record(path, samples)
        path.place(socket.AF_INET, (load.host, PORT))
    begun_s = time.monotonic()
    detected: dict[int, float] = {}
    while (now_s := time.monotonic() - begun_s) < load.seconds:
        for path in paths:
            n, lost = path.session.stats.path_samples()
            if path.session.ssid not in detected and lost and wilson(lost / n, n)[0] > 0:
                detected[path.session.ssid] = now_s
        await asyncio.sleep(_DETECT_EVERY_S)
    sent = sum(path.session.next_seq for path in paths)
    for path in paths:
        sender.rest(path)
    await asyncio.sleep(SETTLE_S)
    outcomes = {
        name: sum(path.session.stats.outcomes[index] for path in paths) for name, index in OUTCOME_INDEX.items()
    }
    native: dict[int, int] = {}
    for path in paths:
        for bucket, count in path.session.stats.native.items():
            native[bucket] = native.get(bucket, 0) + count
    sender.close()
    return {
        "samples": samples, "sent": sent, "outcomes": outcomes, "native": sorted(native.items()),
        "detected": list(detected.values()), "stamps_missing": sender.stamps_missing,
    }  # fmt: skip


async def connect(load: Load) -> dict[str, Any]:
    """Connects over TCP one after the other; a sample is the n-th connect's time in ns."""
    samples = []
    for _ in range(int(load.pps * load.seconds)):
        outcome, rtt_s = await tcp.connect_once(socket.AF_INET, (load.host, PORT))
        samples.append(round(rtt_s * 1e9) if outcome == "ok" and rtt_s is not None else None)
        await asyncio.sleep(1 / load.pps)
    return {"samples": samples}


async def reflect() -> None:
    """Answers on UDP and TCP until it is ended."""
    sock = sockets.open_udp(socket.AF_INET, "0.0.0.0", PORT)
    limits = Limits(source_pps=1e9, total_pps=1e9)
    reflector = Reflector(sock, keys=None, allows=lambda _host: True, name_of=lambda _host: "bench", limits=limits)
    asyncio.get_running_loop().add_reader(sock, reflector.on_readable)
    async with await tcp.listen("0.0.0.0", PORT):
        print("ready", flush=True)
        await asyncio.Event().wait()


def main() -> None:
    """Entry point."""
    role = sys.argv[1]
    if role == "reflect":
        place(OTHER_CORE, fifo=True)
        asyncio.run(reflect())
        return
    load = Load(**json.loads(sys.argv[2]))
    place(PROBER_CORE, fifo=load.fifo)
    found = asyncio.run(probe(load) if role == "probe" else connect(load))
    Path(sys.argv[3]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
