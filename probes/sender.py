"""The session-sender: one small set of shared UDP sockets for all paths, kernel time stamps, one timer.

One socket per path would let every socket's wake-ups and buffers grow with the fleet; a few source ports (flows) are
enough to see each ECMP path. It runs on the standard event loop: uvloop stops reading when the error queue, where the
transmit stamps arrive, has something.

What it costs is system calls and wake-ups, so both go in batches of 10 ms, only sockets that have something are read,
and where probes leave all the time answers wait for the next of these batches. The kernel's stamps make that free of
error; where the kernel gives none, answers are read at once. Sending many with one call (`sendmmsg`) gained 1 us of 5
in a probe's hand-over at best, and each probe would lose the clock reading just before it leaves.
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
from probes.batch import Batch, Datagram, address_key
from probes.keys import SSID_BITS, KeyRing
from probes.rate import BOOST_S, MAX_PPS, Schedule
from probes.session import MAX_PENDING, Answer, PathSession, Pending
from probes.stats import PeerStats

SWEEP_S = 0.25
_BATCH = 256
_TICK_S = 0.01
"""Probes due within it leave together: fewer wake-ups, and the stamps are the kernel's anyway."""
_SHORTEST, _SPREAD = 0.9, 0.2
"""Factors on the interval between two probes of a path: +-10 %, so that agents don't probe in step."""
_ROUNDS = 4
"""After so many rounds over all sockets the loop gets its turn."""
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
        key: the address as `batch.Batch` reads it, empty while there is none.
        session: its probes.
    """

    __slots__ = ("address", "family", "key", "name", "session")

    def __init__(self, name: str, session: PathSession) -> None:
        self.name = name
        self.session = session
        self.address: sockets.SocketAddress | None = None
        self.family: int = socket.AF_INET
        self.key = b""

    def place(self, family: int, address: sockets.SocketAddress) -> None:
        """Sets where it sends to."""
        self.family, self.address, self.key = family, address, address_key(address)


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
        self._by_number: dict[int, tuple[socket.socket, Batch]] = {}
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
        for sock, _batch in self._by_number.values():
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
        self.rest(path)
        self._paths.pop(path.session.ssid, None)

    def rest(self, path: Path) -> None:
        """Sends no more on a path; what it has under way still settles."""
        self._schedule.remove(path)

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
        batch = Batch(authenticated=self.keys is not None)
        for sock in opened:
            self._by_number[sock.fileno()] = (sock, batch)
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
        answers_wait = not self._listening and self._collector is None
        if answers_wait:
            self._read(_ROUNDS)
        now_s = time.monotonic()
        used: set[int] = set()
        take = self._schedule.take
        for _ in range(_BATCH):
            path = take(now_s, _SHORTEST + _SPREAD * random.random())
            if path is None:
                break
            outcome = self._send(path, used)
            if outcome is not None:
                path.session.stats.count(outcome)
                path.session.last_error = outcome
        # Most links stamp while the packet is handed over; fetched now, the stamps wake nobody.
        for number in used:
            self._drain_echoes(number)
        self._arm()
        if answers_wait and not self._ticks_soon():
            self._listen()

    def _ticks_soon(self) -> bool:
        """Returns whether answers may wait for the next tick: then neither they nor a timer of theirs wake the loop."""
        if self._timer is None or self._loop is None or self._stampless:
            return False
        return self._timer.when() - self._loop.time() <= 2 * _TICK_S

    def _send(self, path: Path, used: set[int]) -> str | None:
        """Sends one probe and adds its socket to the used ones; returns the outcome of one that never left."""
        session = path.session
        address = path.address
        if address is None:
            return "resolve_error"
        if len(session.under_way) >= MAX_PENDING:
            return "self_drop"
        flows = self._sockets.get(path.family)
        if flows is None:
            try:
                flows = self._open_flows(path.family)
            except OSError:
                return "send_error"
        seq = session.next_seq
        flow = seq % len(flows)
        sock = flows[flow]
        ssid = session.ssid
        key = self.keys.for_ssid(ssid) if self.keys is not None else None
        m1_s = time.monotonic()
        t1_ns = time.time_ns()
        t1 = stamp.nonce_from_ns(t1_ns, random.getrandbits(stamp.NONCE_BITS))
        data = stamp.pack_request((seq, t1, 1, ssid), key)
        try:
            sock.sendto(data, address)
        except OSError as error:
            outcome = self._hand_over_again(sock, data, address, error)
            if outcome is not None:
                return outcome
        session.sent(Pending(seq, flow, t1, t1_ns, m1_s))
        used.add(sock.fileno())
        return None

    def _hand_over_again(
        self, sock: socket.socket, data: bytes, address: sockets.SocketAddress, error: OSError
    ) -> str | None:
        if error.errno in _OWN_QUEUE_FULL:
            return "self_drop"
        # With IP_RECVERR the kernel reports an earlier probe's ICMP error at the next call: not this one's.
        self._drain_echoes(sock.fileno())
        try:
            sock.sendto(data, address)
        except OSError as second:
            return "self_drop" if second.errno in _OWN_QUEUE_FULL else "send_error"
        return None

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
        if not self._ticks_soon():
            self._collector = self._loop.call_later(_TICK_S, self._collect)

    def _collect(self) -> None:
        self._collector = None
        self._read(_ROUNDS)
        self._listen()

    def _read(self, rounds: int) -> None:
        for _ in range(rounds):
            ready = self._ready.poll(0)
            if not ready:
                return
            for number, events in ready:
                if events & select.EPOLLERR:  # before the data: a stamp belongs to an answer that may be here too
                    self._drain_echoes(number)
                received = self._by_number[number][1].receive(number)
                m4_s = time.monotonic()  # after it: what is read is bracketed by the two monotonic times
                self._take(number, received, m4_s)

    def _drain_echoes(self, number: int) -> None:
        sock, batch = self._by_number[number]
        echoes = batch.receive_echoes(number)
        if not echoes:
            sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)  # an error without a message stays set else
        for seq, ssid, stamp_ns, outcome in echoes:
            path = self._paths.get(ssid)
            probe = path.session.pending(seq) if path is not None else None
            if path is None or probe is None:
                continue
            if outcome is not None:
                path.session.failed(seq, outcome)
            # A stamp before the clock was read, or long after, is of another clock setting.
            elif stamp_ns is not None and 0 <= stamp_ns - probe.t1_ns < 10**9:
                probe.t1_ns = stamp_ns
                probe.stamped = True

    def _take(self, number: int, received: list[Datagram], m4_s: float) -> None:
        paths, keys = self._paths, self.keys
        for data, sender, t4_ns, drops in received:
            if drops is not None:
                self._watch_drops(number, drops, m4_s)
            self._stampless = t4_ns is None
            if t4_ns is None:
                self.stamps_missing += 1
                t4_ns = time.time_ns()
            reply = stamp.unpack_reply(data, authenticated=keys is not None)
            path = paths.get(reply.ssid) if reply is not None else None
            if reply is None or path is None or sender != path.key:
                continue
            session = path.session
            if keys is not None:
                key = keys.for_ssid(session.ssid)
                if key is None or not stamp.is_genuine(data, key):
                    session.doubted(reply.sender_seq)
                    continue
            probe = session.pending(reply.sender_seq)
            if probe is None or reply.t1 != probe.t1_wire:
                continue  # settled, or made up by someone who never saw the request
            if not probe.stamped:  # the link stamps late: its stamp may be here by now
                self._drain_echoes(number)
            turnaround_ns, t2_s = stamp.reflector_times(reply)
            answer = tuple.__new__(Answer, (reply.seq, t2_s, turnaround_ns, t4_ns, m4_s))  # as in stamp
            self.clock_steps += session.answered(probe, answer)

    def _watch_drops(self, number: int, drops: int, now_s: float) -> None:
        new = (drops - self._socket_drops.get(number, 0)) & 0xFFFFFFFF
        if new:
            self._socket_drops[number] = drops
            self.drops += new
            self._own_drop_s = now_s
