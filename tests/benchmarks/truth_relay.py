"""Carries frames between two links, does to them what a bad network does, and writes down the truth of each.

A probe's true round trip is what the wire had for that very packet: from the kernel's stamp of its arrival here to the
kernel's stamp of its answer's departure. So it does not matter how exactly a delay is kept, and the error of a tool is
the tool's own. Run as `python -m tests.benchmarks.truth_relay SETTINGS OUT` inside the relay's namespace; it says
`ready`, and ends and writes OUT when its standard input is closed.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import json
import random
import select
import socket
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from probes import sockets

FORWARD, BACKWARD = 0, 1
PORT = 8620
_ALL_PROTOCOLS = 0x0003
_OUTGOING = 4
_RX_TX_SOFTWARE = 1 << 1 | 1 << 3 | 1 << 4 | 1 << 11  # transmit and receive stamps, without the packet itself
_SYN, _ACK = 2, 16


@dataclass(frozen=True)
class Way:
    """What one direction does.

    Attributes:
        delay_s: constant part of the delay.
        jitter_s: standard deviation of a normal part.
        loss: share of lost packets.
        burst: mean length of a burst of losses (Gilbert's model); 0 loses each packet on its own.
        duplicate: share of packets that arrive twice.
        reorder: share of packets that are held for `hold_s` longer.
        hold_s: how long.
    """

    delay_s: float = 0.0
    jitter_s: float = 0.0
    loss: float = 0.0
    burst: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    hold_s: float = 0.15


@dataclass(frozen=True)
class Scenario:
    """Both ways and when they are bad.

    Attributes:
        name: for people.
        forward, backward: from the prober, and to it.
        from_s, until_s: seconds since the first probe between which packets are lost, doubled or held.
    """

    name: str
    forward: Way = Way()
    backward: Way = Way()
    from_s: float = 0.0
    until_s: float = 1e9

    def dump(self) -> str:
        """Returns it as an argument."""
        return json.dumps(asdict(self))


def load_scenario(text: str) -> Scenario:
    """Returns what `Scenario.dump` wrote."""
    found: dict[str, Any] = json.loads(text)
    return Scenario(**found | {name: Way(**found[name]) for name in ("forward", "backward")})


@dataclass(frozen=True)
class Crossing:
    """A probe or an answer that came to the relay.

    Attributes:
        kind: `stamp`, `icmp` or `tcp`.
        stream, seq: which one: SSID, ICMP id or client's port, and the sender's number (0 for TCP).
        host: the probed address.
        way: FORWARD or BACKWARD.
        in_ns: kernel's stamp of its arrival.
        out_ns: kernel's stamps of its departures: none if it was lost, two if it was doubled.
    """

    kind: str
    stream: int
    seq: int
    host: str
    way: int
    in_ns: int
    out_ns: list[int]


def identify(frame: bytes, way: int) -> tuple[Literal["stamp", "icmp", "tcp"], int, int, str] | None:
    """Returns (kind, stream, seq, probed address) of a frame that is a probe or an answer, None for all others."""
    if frame[12:14] != b"\x08\x00":
        return None
    at = 14 + 4 * (frame[14] & 15)
    host = socket.inet_ntoa(frame[30:34] if way == FORWARD else frame[26:30])
    protocol = frame[23]
    number = int.from_bytes
    if protocol == socket.IPPROTO_UDP:
        port = number(frame[at + 2 : at + 4] if way == FORWARD else frame[at : at + 2], "big")
        if port != PORT:
            return None
        data = frame[at + 8 :]
        seq = data[:4] if way == FORWARD else data[24:28]
        return "stamp", number(data[14:16], "big"), number(seq, "big"), host
    if protocol == socket.IPPROTO_ICMP and frame[at] in (0, 8):
        return "icmp", number(frame[at + 4 : at + 6], "big"), number(frame[at + 6 : at + 8], "big"), host
    if protocol == socket.IPPROTO_TCP and frame[at + 13] & (_SYN | _ACK) == (_SYN if way == FORWARD else _SYN | _ACK):
        client = frame[at : at + 2] if way == FORWARD else frame[at + 2 : at + 4]
        return "tcp", number(client, "big"), 0, host
    return None


class Relay:
    """Carries frames until it is told to stop.

    Args:
        scenario: what to do to them.
        interfaces: the prober's link and the reflector's.
    """

    def __init__(self, scenario: Scenario, interfaces: tuple[str, str]) -> None:
        self.crossings: list[Crossing] = []
        self.stamps_missing = 0
        self._scenario = scenario
        self._sockets = [self._open(name) for name in interfaces]
        self._heap: list[tuple[float, int, int, bytes, Crossing | None]] = []
        self._order = itertools.count()
        self._rng = random.Random(11)
        self._bad = [False, False]
        self._first_s: float | None = None

    @staticmethod
    def _open(interface: str) -> socket.socket:
        sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_NONBLOCK, socket.htons(_ALL_PROTOCOLS))
        sock.bind((interface, _ALL_PROTOCOLS))
        sock.setsockopt(socket.SOL_SOCKET, sockets.SO_TIMESTAMPING, _RX_TX_SOFTWARE)
        sock.setsockopt(socket.SOL_SOCKET, sockets.SO_RCVBUFFORCE, 16 << 20)
        return sock

    def run(self, stop: int) -> None:
        """Carries until the descriptor `stop` is readable or closed."""
        poll = select.poll()
        poll.register(stop, select.POLLIN)
        ways = {sock.fileno(): way for way, sock in enumerate(self._sockets)}
        for number in ways:
            poll.register(number, select.POLLIN)
        while True:
            wait_ms = None
            if self._heap:
                # Rounded down, and the last millisecond is waited in a loop: poll would come up to one too late.
                wait_ms = max(0, int(1e3 * (self._heap[0][0] - time.monotonic())))
            for number, _events in poll.poll(wait_ms):
                if number == stop:
                    return
                self._take(ways[number])
            self._give()

    def _take(self, way: int) -> None:
        for _ in range(64):
            try:
                data, ancillary, _flags, address = self._sockets[way].recvmsg(2048, 512)
            except BlockingIOError:
                return
            if address[2] == _OUTGOING:
                continue
            stamps = [
                sockets.parse_stamp(value) for _level, kind, value in ancillary if kind == sockets.SO_TIMESTAMPING
            ]
            self._decide(way, data, stamps[0] if stamps else None)

    def _decide(self, way: int, data: bytes, in_ns: int | None) -> None:
        now_s = time.monotonic()
        found = identify(data, way)
        if found is None:
            heapq.heappush(self._heap, (now_s, next(self._order), 1 - way, data, None))
            return
        if in_ns is None:
            self.stamps_missing += 1
            in_ns = time.time_ns()
        crossing = Crossing(*found, way, in_ns, [])
        self.crossings.append(crossing)
        self._first_s = now_s if self._first_s is None else self._first_s
        rules = self._scenario.forward if way == FORWARD else self._scenario.backward
        bad = self._scenario.from_s <= now_s - self._first_s < self._scenario.until_s
        if bad and self._loses(way, rules):
            return
        for _ in range(1 + (bad and self._rng.random() < rules.duplicate)):
            due_s = now_s + rules.delay_s + max(-rules.delay_s, self._rng.gauss(0, rules.jitter_s))
            if bad and self._rng.random() < rules.reorder:
                due_s += rules.hold_s
            heapq.heappush(self._heap, (due_s, next(self._order), 1 - way, data, crossing))

    def _loses(self, way: int, rules: Way) -> bool:
        if not rules.burst:
            return self._rng.random() < rules.loss
        leave = 1 / rules.burst
        enter = rules.loss * leave / (1 - rules.loss) if rules.loss else 0.0
        self._bad[way] = self._rng.random() >= leave if self._bad[way] else self._rng.random() < enter
        return self._bad[way]

    def _give(self) -> None:
        while self._heap and self._heap[0][0] <= time.monotonic():
            _due, _order, side, data, crossing = heapq.heappop(self._heap)
            sock = self._sockets[side]
            with contextlib.suppress(OSError):
                sock.send(data)
            echo = sockets.receive_echo(sock)  # the link stamps inside of send, so the stamp is here already
            if crossing is None:
                continue
            if echo is None or echo.stamp_ns is None:
                self.stamps_missing += 1
            crossing.out_ns.append(echo.stamp_ns if echo and echo.stamp_ns else time.time_ns())


def main() -> None:
    """Entry point."""
    relay = Relay(load_scenario(sys.argv[1]), ("wa", "wb"))
    print("ready", flush=True)
    relay.run(sys.stdin.fileno())
    document = {"stamps_missing": relay.stamps_missing, "crossings": [list(vars(c).values()) for c in relay.crossings]}
    part = Path(sys.argv[2] + ".part")
    part.write_text(json.dumps(document))
    part.replace(sys.argv[2])


if __name__ == "__main__":
    main()
