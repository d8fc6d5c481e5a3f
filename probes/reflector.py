"""The session-reflector: answers STAMP requests, never with more octets than it was sent, and counts who asks.

Its own sequence number per session is what lets the sender tell on which way a probe was lost.
"""

from __future__ import annotations

import errno
import functools
import ipaddress
import socket
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass

from probes import sockets, stamp
from probes.keys import KeyRing

IDLE_S = 300.0
MAX_SESSIONS = 65_536
MAX_SOURCES = 4_096
_BATCH = 128
_REPLAY_WINDOW = 1024
_UNKNOWN_TTL = 255
_LEARN_EVERY = 16
_LAGS = 15
_MAX_LAG_NS = 1_000_000


@dataclass(frozen=True, slots=True)
class Limits:
    """How much the reflector answers.

    Attributes:
        source_pps: answers per second to one /24 (IPv4) or /56 (IPv6).
        total_pps: answers per second altogether; Python reflects about 5 000 authenticated packets/s per core.
        burst_s: seconds of either rate that may come at once.
    """

    source_pps: float = 2_000.0
    total_pps: float = 10_000.0
    burst_s: float = 2.0


class Sessions:
    """Sequence numbers per session, bounded: the session idle for longest makes room.

    A session is (address, SSID); senders that know RFC 8762 only have SSID 0 and are told apart by their port. The port
    is no part of it otherwise, because our senders rotate source ports within one session.
    """

    def __init__(self, capacity: int = MAX_SESSIONS, idle_s: float = IDLE_S) -> None:
        self._capacity = capacity
        self._idle_s = idle_s
        self._table: OrderedDict[tuple[str, int, int], list[float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._table)

    def next(self, host: str, port: int, request: stamp.Request, now_s: float, *, replay_safe: bool) -> int | None:
        """Counts a request.

        Args:
            host: the sender's address.
            port: the sender's port.
            request: the request.
            now_s: monotonic time.
            replay_safe: whether old packets must be refused (authenticated mode).

        Returns:
            The reflector's sequence number, or None for a replay.
        """
        key = (host, request.ssid, 0 if request.ssid else port)
        entry = self._table.get(key)
        if entry is None or now_s - entry[1] > self._idle_s:
            entry = [0, now_s, request.seq, request.t1]
            self._table[key] = entry
            if len(self._table) > self._capacity:
                self._table.popitem(last=False)
        elif replay_safe and request.seq <= entry[2] - _REPLAY_WINDOW and request.t1 <= entry[3]:
            # A sender that restarted under the same SSID also begins low, but with newer stamps.
            return None
        if request.t1 > entry[3]:
            entry[2], entry[3] = request.seq, request.t1
        self._table.move_to_end(key)
        number = int(entry[0])
        entry[0] = (number + 1) & 0xFFFFFFFF
        entry[1] = now_s
        return number


class Buckets:
    """Token buckets per source prefix and one for all, bounded by the least recently used."""

    def __init__(self, limits: Limits, capacity: int = MAX_SOURCES) -> None:
        self._limits = limits
        self._capacity = capacity
        self._total = [limits.total_pps * limits.burst_s, 0.0]
        self._sources: OrderedDict[str, list[float]] = OrderedDict()

    def take(self, prefix: str, now_s: float) -> bool:
        """Returns whether one more answer to this prefix is within both rates, and takes it."""
        burst = self._limits.source_pps * self._limits.burst_s
        bucket = self._sources.get(prefix)
        if bucket is None:
            bucket = self._sources[prefix] = [burst, now_s]
            if len(self._sources) > self._capacity:
                self._sources.popitem(last=False)
        self._sources.move_to_end(prefix)
        self._fill(bucket, now_s, self._limits.source_pps, burst)
        self._fill(self._total, now_s, self._limits.total_pps, self._limits.total_pps * self._limits.burst_s)
        if bucket[0] < 1 or self._total[0] < 1:
            return False
        bucket[0] -= 1
        self._total[0] -= 1
        return True

    @staticmethod
    def _fill(bucket: list[float], now_s: float, rate: float, burst: float) -> None:
        bucket[0] = min(burst, bucket[0] + max(0.0, now_s - bucket[1]) * rate)
        bucket[1] = now_s


@functools.lru_cache(maxsize=MAX_SOURCES)
def source_prefix(host: str) -> str:
    """Returns the /24 or /56 an address belongs to, as text."""
    address = ipaddress.ip_address(host.partition("%")[0])
    bits = 24 if address.version == 4 else 56
    return str(ipaddress.ip_network((address, bits), strict=False))


class SendLag:
    """How long an answer takes from the last reading of the clock to the wire, learnt from one answer in sixteen.

    T3 has to be in the packet before the packet is sent. Left out, these microseconds are in every round-trip time that
    the other side reports; of a path of 1 ms they are some per cent.
    """

    def __init__(self) -> None:
        self.ns = 0
        self.usable = True
        self._recent: deque[int] = deque(maxlen=_LAGS)
        self._count = 0

    def due(self) -> bool:
        """Returns whether the stamp of the next answer is wanted; at first that of every one."""
        self._count += 1
        return self.usable and (len(self._recent) < _LAGS or self._count % _LEARN_EVERY == 0)

    def learn(self, lag_ns: int) -> None:
        """Takes the time between a reading of the clock and the departure; a clock step or a long stall is no lag."""
        if 0 <= lag_ns <= _MAX_LAG_NS:
            self._recent.append(lag_ns)
            # The median: an answer that was kept waiting for once says nothing about the others.
            self.ns = sorted(self._recent)[len(self._recent) // 2]


class Reflector:
    """Answers on one socket.

    Args:
        sock: a socket of `sockets.open_udp`.
        keys: keys of the authenticated mode; None answers unauthenticated requests from allowed addresses.
        allows: whether an address may ask (only asked without keys: a valid HMAC says more than an address).
        name_of: the cluster an address belongs to, or "unknown".
        limits: the rates.
    """

    def __init__(
        self,
        sock: socket.socket,
        *,
        keys: KeyRing | None,
        allows: Callable[[str], bool],
        name_of: Callable[[str], str],
        limits: Limits | None = None,
    ) -> None:
        self.keys = keys
        self.packets: Counter[tuple[str, str]] = Counter()
        self.drops = 0
        self.stamps_missing = 0
        self._sock = sock
        self._allows = allows
        self._name_of = name_of
        self._sessions = Sessions()
        self._buckets = Buckets(limits or Limits())
        self._estimate = stamp.error_estimate()
        self._lag = SendLag()

    def on_readable(self) -> None:
        """Answers what is there, at most 128 packets, so that the own probes are not kept waiting."""
        for count in range(_BATCH):
            received = sockets.receive(self._sock)
            if received is None:
                if count == 0:  # woken by a transmit stamp that came late; left there it would wake again and again
                    sockets.receive_echo(self._sock)
                return
            if received.drops is not None:
                self.drops = max(self.drops, received.drops)
            self.packets[(self._name_of(received.address[0]), self._answer(received))] += 1

    def forget(self, names: set[str]) -> None:
        """Drops the counters of all clusters but these, so that a removed peer leaves no series behind."""
        for key in [key for key in self.packets if key[0] not in names]:
            del self.packets[key]

    def _answer(self, received: sockets.Received) -> str:
        host, port = received.address[:2]
        if self.keys is None and not self._allows(host):
            return "acl"
        request = stamp.parse_request(received.data, self.keys)
        if isinstance(request, stamp.Rejection):
            return request.value
        now_s = time.monotonic()
        if not self._buckets.take(source_prefix(host), now_s):
            return "rate"
        number = self._sessions.next(host, port, request, now_s, replay_safe=self.keys is not None)
        if number is None:
            return "replay"
        return "ok" if self._send(received, request, number) else "send_error"

    def _send(self, received: sockets.Received, request: stamp.Request, number: int) -> bool:
        t2_ns = received.stamp_ns
        if t2_ns is None:
            self.stamps_missing += 1
            t2_ns = time.time_ns()
        read_ns = time.time_ns()
        t3_ns = read_ns + self._lag.ns
        reply = stamp.Reply(
            seq=number,
            # A clock step between the two stamps must not turn into a negative turnaround.
            t3=stamp.ntp_from_ns(max(t3_ns, t2_ns)),
            error_estimate=self._estimate,
            ssid=request.ssid,
            t2=stamp.ntp_from_ns(t2_ns),
            sender_seq=request.seq,
            t1=request.t1,
            sender_error_estimate=request.error_estimate,
            ttl=received.ttl if received.ttl is not None else _UNKNOWN_TTL,
        )
        key = self.keys.for_ssid(request.ssid) if self.keys else None
        data = stamp.pack_reply(received.data, reply, key)
        asks = self._lag.due()
        if not self._hand_over(data, received, asks=asks):
            return False
        if asks:
            echo = sockets.receive_echo(self._sock)
            if echo is not None and echo.stamp_ns is not None and echo.data.endswith(data):
                self._lag.learn(echo.stamp_ns - read_ns)
        return True

    def _hand_over(self, data: bytes, received: sockets.Received, *, asks: bool) -> bool:
        control = [received.local] if received.local else []
        try:
            self._sock.sendmsg([data], [*control, sockets.ASK_STAMP] if asks else control, 0, received.address)
        except OSError as error:
            if not asks or error.errno != errno.EINVAL:
                return False
            self._lag.usable = False  # a kernel that can't be asked for one packet's stamp
            return self._hand_over(data, received, asks=False)
        return True
