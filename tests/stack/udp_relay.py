"""Carries UDP between probes and reflectors, with delay, loss and cuts per direction."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import random
import selectors
import socket
import threading
import time
from dataclasses import dataclass, field, replace
from typing import Any

Address = tuple[str, int]


@dataclass(frozen=True)
class Way:
    """What happens to packets in one direction.

    Attributes:
        delay_ms: Added to each packet, milliseconds.
        jitter_ms: Up to this much more, drawn evenly; packets then overtake each other.
        loss: Share of packets that vanish, 0..1.
        duplicate: Share of packets that arrive twice, 0..1.
        cut: Nothing passes.
    """

    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    loss: float = 0.0
    duplicate: float = 0.0
    cut: bool = False

    def changed(self, changes: dict[str, Any]) -> Way:
        """A copy with some fields changed; TypeError for unknown fields, ValueError out of bounds."""
        way = replace(self, **changes)
        if not (0 <= way.loss <= 1 and 0 <= way.duplicate <= 1 and way.delay_ms >= 0 and way.jitter_ms >= 0):
            raise ValueError(f"out of bounds: {way}")
        return way


@dataclass
class Pair:
    """One relayed path: what arrives at `port` goes to `target`, and what comes back goes to whoever sent."""

    name: str
    target: Address
    listener: socket.socket
    rng: random.Random
    forward: Way = Way()
    back: Way = Way()
    upstreams: dict[Address, socket.socket] = field(default_factory=dict)
    carried: dict[str, int] = field(default_factory=lambda: {"forward": 0, "back": 0, "lost": 0})


class UdpRelay:
    """Many pairs in one process: one thread receives, one sends when a packet's time has come."""

    def __init__(self, seed: int = 0) -> None:
        self.pairs: dict[str, Pair] = {}
        self._seed = seed
        self._selector = selectors.DefaultSelector()
        self._due: list[tuple[float, int, socket.socket, bytes, Address | None]] = []
        self._order = itertools.count()
        self._wake = threading.Condition()
        # A socketpair interrupts the select when pairs are added from another thread.
        self._poke_out, poke_in = socket.socketpair()
        self._selector.register(poke_in, selectors.EVENT_READ, None)
        for target in (self._receive, self._send):
            threading.Thread(target=target, name=target.__name__, daemon=True).start()

    def add(self, name: str, port: int, target: Address) -> Pair:
        """Opens a pair on a loopback port. Raises OSError when the port is taken, ValueError for a known name."""
        if name in self.pairs:
            raise ValueError(f"{name} is there already")
        listener = _socket()
        listener.bind(("127.0.0.1", port))
        # Each pair draws from its own generator, so that one pair's traffic does not change another's luck.
        pair = Pair(name, target, listener, random.Random(f"{self._seed}/{name}"))
        self.pairs[name] = pair
        self._selector.register(listener, selectors.EVENT_READ, (pair, None))
        self._poke_out.send(b"x")
        return pair

    def _receive(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    assert isinstance(key.fileobj, socket.socket)
                    key.fileobj.recv(64)
                    continue
                pair, client = key.data
                assert isinstance(key.fileobj, socket.socket)
                self._drain(pair, client, key.fileobj)

    def _drain(self, pair: Pair, client: Address | None, source: socket.socket) -> None:
        for _ in range(64):
            try:
                data, sender = source.recvfrom(65535)
            except OSError:  # nothing left, or an ICMP "port unreachable" of a dead reflector
                return
            if client is None:
                self._carry(pair, "forward", pair.forward, self._upstream(pair, sender), data, None)
            else:
                self._carry(pair, "back", pair.back, pair.listener, data, client)

    def _upstream(self, pair: Pair, client: Address) -> socket.socket:
        """The socket that stands for one client, so that replies find back and flows stay flows."""
        if client not in pair.upstreams:
            upstream = _socket()
            upstream.bind(("127.0.0.1", 0))
            upstream.connect(pair.target)
            pair.upstreams[client] = upstream
            self._selector.register(upstream, selectors.EVENT_READ, (pair, client))
        return pair.upstreams[client]

    def _carry(
        self, pair: Pair, direction: str, way: Way, through: socket.socket, data: bytes, to: Address | None
    ) -> None:
        if way.cut or (way.loss and pair.rng.random() < way.loss):
            pair.carried["lost"] += 1
            return
        pair.carried[direction] += 1
        copies = 2 if way.duplicate and pair.rng.random() < way.duplicate else 1
        for _ in range(copies):
            delay_s = (way.delay_ms + (pair.rng.random() * way.jitter_ms if way.jitter_ms else 0.0)) / 1000
            if not delay_s:
                _emit(through, data, to)
                continue
            with self._wake:
                heapq.heappush(self._due, (time.monotonic() + delay_s, next(self._order), through, data, to))
                self._wake.notify()

    def _send(self) -> None:
        # A condition's timeout is exact to some 0.1 ms; an event loop on epoll rounds up to whole milliseconds.
        while True:
            with self._wake:
                while not self._due:
                    self._wake.wait()
                left = self._due[0][0] - time.monotonic()
                if left > 0:
                    self._wake.wait(left)
                    continue
                _, _, through, data, to = heapq.heappop(self._due)
            _emit(through, data, to)


def _socket() -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.setblocking(False)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    return made


def _emit(through: socket.socket, data: bytes, to: Address | None) -> None:
    # UDP promises nothing: a full buffer or a dead target is one more lost packet.
    with contextlib.suppress(OSError):
        if to is None:
            through.send(data)
        else:
            through.sendto(data, to)
