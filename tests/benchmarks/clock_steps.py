"""Wall clocks that step by an hour while probes are under way, over loopback."""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import socket
import time
from multiprocessing.synchronize import Event
from types import ModuleType, SimpleNamespace
from unittest import mock

from probes import reflector, sender, sockets
from probes.batch import Batch, Datagram, ProbeEcho
from probes.session import CLOCK_TOLERANCE_NS, Answer, PathSession, Pending
from probes.stats import PeerStats
from tests.benchmarks.figures import line

HOUR_NS = 3600 * 10**9
_SECONDS = 8.0
_INTERVAL_S = 0.005
_ENOUGH = 100
_STEP_EVERY_S = 0.25


class Clock:
    """The wall clock of one process, readings and kernel stamps, with steps; the monotonic clock is left alone."""

    def __init__(self) -> None:
        self._offsets = itertools.cycle((HOUR_NS, 0, -HOUR_NS, 0))
        self._offset_ns = 0
        self._parse = sockets.parse_stamp

    def time_ns(self) -> int:
        """Returns Unix time in ns as this clock has it."""
        return time.time_ns() + self._offset_ns

    def _stamp(self, data: bytes) -> int | None:
        return self._shown(self._parse(data))

    def _shown(self, stamp_ns: int | None) -> int | None:
        return None if stamp_ns is None else stamp_ns + self._offset_ns

    async def step(self, module: ModuleType) -> None:
        """Takes the place of the clock of a module of probes, and steps until it is cancelled."""
        shown = SimpleNamespace(monotonic=time.monotonic, time_ns=self.time_ns)
        receive, receive_echoes = Batch.receive, Batch.receive_echoes

        def received(of: Batch, number: int) -> list[Datagram]:
            return [(data, key, self._shown(at), drops) for data, key, at, drops in receive(of, number)]

        def echoes(of: Batch, number: int) -> list[ProbeEcho]:
            return [(seq, ssid, self._shown(at), outcome) for seq, ssid, at, outcome in receive_echoes(of, number)]

        with (
            mock.patch.object(module, "time", shown),
            mock.patch.object(sockets, "parse_stamp", self._stamp),
            mock.patch.object(Batch, "receive", received),
            mock.patch.object(Batch, "receive_echoes", echoes),
        ):
            while True:
                await asyncio.sleep(_STEP_EVERY_S)
                self._offset_ns = next(self._offsets)


class Watching(PathSession):
    """A session that keeps how far each round trip is outside of what the monotonic clock allows."""

    bad = 0
    seen = 0

    def answered(self, probe: Pending, answer: Answer) -> bool:
        """Takes a reply and judges the sample it made."""
        before = self.stats.rtt_count
        stepped = super().answered(probe, answer)
        if self.stats.rtt_count != before and self.last_rtt_s is not None:
            self.seen += 1
            bracket_s = answer.m4_s - probe.m1_s
            self.bad += not 0 <= self.last_rtt_s <= bracket_s + CLOCK_TOLERANCE_NS / 1e9
        return stepped


def _reflect(port: int, stepping: bool, ready: Event) -> None:
    async def main() -> None:
        sock = sockets.open_udp(socket.AF_INET, "127.0.0.1", port)
        server = reflector.Reflector(sock, keys=None, allows=lambda _host: True, name_of=lambda _host: "bench")
        asyncio.get_running_loop().add_reader(sock, server.on_readable)
        ready.set()
        await (Clock().step(reflector) if stepping else asyncio.Event().wait())

    asyncio.run(main())


async def _probe(port: int, *, stepping: bool) -> Watching:
    client = sender.Sender(sender.SenderSettings(interval_s=_INTERVAL_S))
    client.start(asyncio.get_running_loop())
    path = client.add("bench", PeerStats())
    path.session = session = Watching(path.session.ssid, path.session.stats)
    path.place(socket.AF_INET, ("127.0.0.1", port))
    steps = asyncio.ensure_future(Clock().step(sender)) if stepping else None
    await asyncio.sleep(_SECONDS)
    if steps is not None:
        steps.cancel()
        await asyncio.wait({steps})
    client.close()
    return session


def figures() -> list[bool]:
    """Steps the sender's clock, then the reflector's, by an hour to and fro four times a second; prints the figures."""
    good = []
    for name in ("sender", "reflector"):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.bind(("127.0.0.1", 0))
            port = int(sock.getsockname()[1])
        context = multiprocessing.get_context("spawn")
        ready = context.Event()
        server = context.Process(target=_reflect, args=(port, name == "reflector", ready), daemon=True)
        server.start()
        ready.wait(60)
        session = asyncio.run(_probe(port, stepping=name == "sender"))
        server.terminate()
        server.join(10)
        # With hardly a sample nothing was shown, and NaN is within no bound.
        bad = session.bad if session.seen >= _ENOUGH else float("nan")
        good.append(line(f"probe_{name}_clock_steps_1h_bad_samples", bad, f"of_{session.seen}_samples", 0))
    return good
