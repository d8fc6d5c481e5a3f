"""The session-sender: one small set of shared UDP sockets for all paths, kernel time stamps, one timer.

One socket per path would let every socket's wake-ups and buffers grow with the fleet; a few source ports (flows) are
enough to see each ECMP path. It runs on the standard event loop: uvloop stops reading when the error queue, where the
transmit stamps arrive, has something.

What it costs is system calls and wake-ups, so both go in batches of 10 ms, and only sockets that have something are
read. The kernel's stamps make that free of error; where the kernel gives none, answers are read at once.
"""

from __future__ import annotations

import asyncio
import errno
import random
import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from probes import sockets, stamp
from probes.keys import SSID_BITS, KeyRing
from probes.rate import BOOST_S, MAX_PPS, Schedule
from probes.session import MAX_PENDING, Answer, PathSession, Pending
from probes.stats import PeerStats

SWEEP_S = 0.25
_BATCH = 256
_TICK_S = 0.01
"""Probes due within it leave together: fewer wake-ups, and the stamps are the kernel's anyway."""
_JITTER = 0.1
_ROUNDS = 64
"""One datagram per socket and round; after so many the loop gets its turn."""
_OWN_QUEUE_FULL = (errno.EAGAIN, errno.EWOULDBLOCK, errno.ENOBUFS, errno.ENOMEM)


@dataclass(frozen=True, slots=True)
class SenderSettings:
    """How probes are sent.

    Attributes:
        interval_s: mean time between two probes of one path, 0.01 to 60.
        timeout_s: an answer after it is `late`.
        grace_s: how long a lost probe may wait for the answer that tells its direction.
        flows: source ports per address family; 13 see four equal ECMP paths with 90 %.
        total_pps: hard cap over all paths, whatever happens; `rate.Schedule` shares it.
        bind: local address to send from, empty for the kernel's choice.
    """

    interval_s: float = 1.0
    timeout_s: float = 2.0
    grace_s: float = 3.0
    flows: int = 13
    total_pps: float = MAX_PPS
    bind: str = ""


class Path:
    """One address of a peer cluster.

    Attributes:
        name: the peer's cluster, for people.
        address: resolved socket address, None while the name has never been resolved.
        session: its probes.
        active: False stops its sending for good.
    """

    __slots__ = ("active", "address", "family", "name", "session")

    def __init__(self, name: str, session: PathSession) -> None:
        self.name = name
        self.session = session
        self.address: sockets.SocketAddress | None = None
        self.family: int = socket.AF_INET
        self.active = True


class Sender:
    """Sends probes to all paths and settles them.

    Args:
        settings: rates and times.
        keys: keys of the authenticated mode, or None.
        on_lag: is told by how many seconds the sweep came late, four times a second.
    """

    def __init__(
        self, settings: SenderSettings, *, keys: KeyRing | None = None, on_lag: Callable[[float], None] | None = None
    ) -> None:
        self.settings = settings
        self.keys = keys
        self.clock_steps = 0
        self.stamps_missing = 0
        self.drops = 0
        self._on_lag = on_lag
        self._paths: dict[int, Path] = {}
        self._sockets: dict[int, list[socket.socket]] = {}
        self._by_number: dict[int, socket.socket] = {}
        self._ready = select.epoll()
        self._listening = False
        self._stampless = False
        self._socket_drops: dict[int, int] = {}
        self._own_drop_s = float("-inf")
        self._schedule: Schedule[Path] = Schedule(settings.interval_s, settings.total_pps)
        self._timer: asyncio.TimerHandle | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._collector: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Starts the timers on a loop; sockets are opened with the first path of their family."""
        self._loop = loop
        self._listen()
        self._sweep(loop.time())

    def close(self) -> None:
        """Stops everything and closes the sockets."""
        for timer in (self._timer, self._sweeper, self._collector):
            if timer is not None:
                timer.cancel()
        if self._loop is not None and self._listening:
            self._loop.remove_reader(self._ready)
        self._loop = None
        for sock in self._by_number.values():
            sock.close()
        self._by_number.clear()
        self._sockets.clear()
        self._ready.close()

    def add(self, name: str, stats: PeerStats) -> Path:
        """Adds a path with a random SSID and a random phase; it sends once it has an address.

        Raises:
            RuntimeError: no SSID is free (8 191 paths).
        """
        settings = self.settings
        session = PathSession(self._free_ssid(), stats, timeout_s=settings.timeout_s, grace_s=settings.grace_s)
        path = Path(name, session)
        self._paths[session.ssid] = path
        phase = random.random() * settings.interval_s
        self._schedule.add(path, time.monotonic() + phase)
        self._arm()
        return path

    def remove(self, path: Path) -> None:
        """Removes a path; what it had under way is never counted."""
        path.active = False
        self._schedule.remove(path)
        self._paths.pop(path.session.ssid, None)

    def boost(self, path: Path, now_s: float) -> None:
        """Probes a path more often for a minute; not while the own socket drops, which that would only worsen."""
        if now_s - self._own_drop_s > BOOST_S:
            self._schedule.boost(path, now_s)

    def rekey(self, keys: KeyRing) -> None:
        """Takes new keys: sessions of another key begin anew under the active one; their counters go on."""
        self.keys = keys
        for path in self.paths():
            old = path.session
            if old.ssid >> SSID_BITS != keys.active:
                del self._paths[old.ssid]
                ssid = self._free_ssid()
                path.session = PathSession(
                    ssid, old.stats, timeout_s=self.settings.timeout_s, grace_s=self.settings.grace_s
                )
                self._paths[ssid] = path

    def paths(self) -> list[Path]:
        """Returns all paths in the order of their addition."""
        return list(self._paths.values())

    def _free_ssid(self) -> int:
        limit = (1 << SSID_BITS) - 1
        if len(self._paths) >= limit:
            raise RuntimeError(f"{len(self._paths)} paths are the most that one agent can probe; split the target list")
        while True:
            number = random.randint(1, limit)
            ssid = self.keys.tag_ssid(number) if self.keys else number
            if ssid not in self._paths:
                return ssid

    def _open_flows(self, family: int) -> list[socket.socket]:
        bind = self.settings.bind
        host = bind if bind and (":" in bind) == (family == socket.AF_INET6) else ""
        opened = [sockets.open_udp(family, host, 0, transmit_stamps=True) for _ in range(max(1, self.settings.flows))]
        self._sockets[family] = opened
        for sock in opened:
            self._by_number[sock.fileno()] = sock
            self._ready.register(sock, select.EPOLLIN)
        return opened

    def _arm(self) -> None:
        wait_s = self._schedule.next_in_s(time.monotonic())
        if self._loop is None or wait_s is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(max(_TICK_S, wait_s), self._tick)

    def _tick(self) -> None:
        self._timer = None
        now_s = time.monotonic()
        used: list[socket.socket] = []
        for _ in range(_BATCH):
            path = self._schedule.take(now_s, random.uniform(1 - _JITTER, 1 + _JITTER))
            if path is None:
                break
            sock = self._send(path)
            if sock is not None:
                used.append(sock)
        for sock in used:
            # Most links stamp while the packet is handed over; fetched now, the stamp wakes nobody.
            echo = sockets.receive_echo(sock)
            if echo is not None:
                self._heard(echo)
        self._arm()

    def _send(self, path: Path) -> socket.socket | None:
        session = path.session
        if path.address is None:
            session.stats.count("resolve_error")
            return None
        if len(session) >= MAX_PENDING:
            session.stats.count("self_drop")
            return None
        flows = self._sockets.get(path.family)
        if flows is None:
            try:
                flows = self._open_flows(path.family)
            except OSError:
                session.stats.count("send_error")
                return None
        seq = session.next_seq
        flow = seq % len(flows)
        key = self.keys.for_ssid(session.ssid) if self.keys else None
        m1_s = time.monotonic()
        t1_ns = time.time_ns()
        t1 = stamp.with_nonce(stamp.ntp_from_ns(t1_ns), random.getrandbits(12))
        data = stamp.pack_request(stamp.Request(seq, t1, 1, session.ssid), key)
        outcome = self._hand_over(flows[flow], data, path.address)
        if outcome is not None:
            session.stats.count(outcome)
            session.last_error = outcome
            return None
        session.sent(Pending(seq, flow, t1, t1_ns, m1_s))
        return flows[flow]

    def _hand_over(self, sock: socket.socket, data: bytes, address: sockets.SocketAddress) -> str | None:
        for attempt in (1, 2):
            try:
                sock.sendto(data, address)
            except OSError as error:
                if error.errno in _OWN_QUEUE_FULL:
                    return "self_drop"
                # With IP_RECVERR the kernel reports an earlier probe's ICMP error at the next call: not this one's.
                if attempt == 2:
                    return "send_error"
                self._drain_echoes(sock)
            else:
                return None
        return "send_error"

    def _sweep(self, due_s: float) -> None:
        if self._loop is None:
            return
        now_s = self._loop.time()
        if self._on_lag is not None:
            self._on_lag(max(0.0, now_s - due_s))
        self._read(rounds=100_000)  # all of it: an answer that is here already must not expire
        monotonic_s = time.monotonic()
        limit_s = monotonic_s - self.settings.timeout_s
        for path in self._paths.values():
            if path.session.has_older(limit_s):  # of many peers, most have nothing to settle in a quarter of a second
                path.session.expire(monotonic_s, self._own_drop_s)
        # Never in the past, or a long stall would be followed by a burst of sweeps.
        due_s = max(due_s + SWEEP_S, now_s + SWEEP_S / 2)
        self._sweeper = self._loop.call_at(due_s, self._sweep, due_s)

    def _listen(self) -> None:
        if self._loop is not None and not self._listening:
            self._loop.add_reader(self._ready, self._on_ready)
            self._listening = True

    def _on_ready(self) -> None:
        if self._stampless or self._loop is None:
            self._read(_ROUNDS)
            return
        # More will come in a moment: a fleet's answers are spread over the whole second.
        self._loop.remove_reader(self._ready)
        self._listening = False
        self._collector = self._loop.call_later(_TICK_S, self._collect)

    def _collect(self) -> None:
        self._read(_ROUNDS)
        self._listen()

    def _read(self, rounds: int) -> None:
        for _ in range(rounds):
            ready = self._ready.poll(0)
            if not ready:
                return
            for number, events in ready:
                sock = self._by_number[number]
                if events & select.EPOLLERR:  # before the data: a stamp belongs to an answer that may be here too
                    self._drain_echoes(sock)
                if events & select.EPOLLIN:
                    received = sockets.receive(sock)
                    if received is not None:
                        self._take(sock, received)

    def _drain_echoes(self, sock: socket.socket) -> None:
        for count in range(_BATCH):
            echo = sockets.receive_echo(sock)
            if echo is None:
                if count == 0:
                    sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)  # an error without a message stays set else
                return
            self._heard(echo)

    def _heard(self, echo: sockets.Echo) -> None:
        octets = stamp.PLAIN_OCTETS if self.keys is None else stamp.AUTH_OCTETS
        if echo.outcome is not None:
            self._failed(echo.data, echo.outcome)
        elif echo.stamp_ns is not None and len(echo.data) >= octets:
            self._stamped(echo.data[-octets:], echo.stamp_ns)  # the payload follows the headers of all layers

    def _request_of(self, data: bytes) -> tuple[Path, Pending] | None:
        ssid = stamp.peek_ssid(data, authenticated=self.keys is not None)
        path = self._paths.get(ssid) if ssid is not None else None
        probe = path.session.pending(int.from_bytes(data[:4], "big")) if path else None
        return (path, probe) if path and probe else None

    def _stamped(self, data: bytes, stamp_ns: int) -> None:
        found = self._request_of(data)
        # A stamp before the clock was read, or long after, is of another clock setting.
        if found and 0 <= stamp_ns - found[1].t1_ns < 10**9:
            found[1].t1_ns = stamp_ns

    def _failed(self, data: bytes, outcome: str) -> None:
        found = self._request_of(data)
        if found:
            found[0].session.failed(found[1].seq, outcome)

    def _take(self, sock: socket.socket, received: sockets.Received) -> None:
        m4_s = time.monotonic()
        self._watch_drops(sock, received, m4_s)
        t4_ns = received.stamp_ns
        self._stampless = t4_ns is None
        if t4_ns is None:
            self.stamps_missing += 1
            t4_ns = time.time_ns()
        ssid = stamp.peek_ssid(received.data, authenticated=self.keys is not None)
        path = self._paths.get(ssid) if ssid is not None else None
        if path is None or path.address is None or received.address[:2] != path.address[:2]:
            return
        session = path.session
        key = self.keys.for_ssid(session.ssid) if self.keys else None
        reply = stamp.parse_reply(received.data, key)
        if isinstance(reply, stamp.Rejection):
            if reply is stamp.Rejection.AUTH:
                session.doubted(int.from_bytes(received.data[48:52], "big"))
            return
        probe = session.pending(reply.sender_seq)
        if probe is None or reply.t1 != probe.t1_wire:
            return  # settled, or made up by someone who never saw the request
        ptp = stamp.is_ptp(reply.error_estimate)
        turnaround_ns = stamp.difference_ns(reply.t3, reply.t2, ptp=ptp)
        t2_ns = stamp.to_ns(reply.t2, ptp=ptp)
        answer = Answer(reply.sender_seq, reply.seq, t2_ns, turnaround_ns, t4_ns, m4_s)
        self.clock_steps += session.answered(answer)

    def _watch_drops(self, sock: socket.socket, received: sockets.Received, now_s: float) -> None:
        if received.drops is None:
            return
        new = (received.drops - self._socket_drops.get(sock.fileno(), 0)) & 0xFFFFFFFF
        if new:
            self._socket_drops[sock.fileno()] = received.drops
            self.drops += new
            self._own_drop_s = now_s
