"""One path (one address of a peer): which probes are under way, and how each settles. Pure: no clock, no socket.

A probe is counted once, when it settles. An unanswered one is held after its timeout until a later probe of the path is
answered, because the reflector's own sequence numbers then tell on which way it was lost; at the latest it settles
after `grace_s` as `lost_unknown`. So loss is never the difference of two counters read at different moments.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import NamedTuple

from probes.stats import PeerStats

MAX_PENDING = 4096
"""Probes under way on one path: 400 s at 10/s; beyond it a probe settles as self_drop instead of being sent."""
_RESTART_S = 0.05
"""A reflector's sequence number that went back although its clock went on by this much: it restarted."""
_MAX_CARRY = 4
"""Replies missing without a lost probe (a lost duplicate) that are remembered against the next block of losses."""
CLOCK_TOLERANCE_NS = 1_000_000


class Pending:
    """A probe under way or unsettled.

    Attributes:
        seq: sequence number of the path, without gaps.
        flow: index of the socket it left by.
        t1_wire: stamp in the packet; the reply must echo it.
        t1_ns: Unix time of sending, the kernel's once it is known (`stamped`).
        m1_s: monotonic time just before sending.
        outcome: None while nothing is known; `ok`, `late` or an error once it has settled.
        doubted: whether an answer to it came that failed its HMAC.
        reflector_seq: the reflector's number of its answer in this epoch, -1 before it.
    """

    __slots__ = ("doubted", "flow", "m1_s", "outcome", "reflector_seq", "seq", "stamped", "t1_ns", "t1_wire")

    def __init__(self, seq: int, flow: int, t1_wire: int, t1_ns: int, m1_s: float) -> None:
        self.seq = seq
        self.flow = flow
        self.t1_wire = t1_wire
        self.t1_ns = t1_ns
        self.m1_s = m1_s
        self.outcome: str | None = None
        self.doubted = False
        self.stamped = False
        self.reflector_seq = -1


class Answer(NamedTuple):
    """What a reply says, with differences already taken on one clock each.

    Attributes:
        reflector_seq: the reflector's sequence number.
        t2_s: reflector's receive time since an arbitrary origin of that reflector, in seconds.
        turnaround_ns: T3 - T2.
        t4_ns: Unix time of reception (kernel, where known).
        m4_s: monotonic time at which the reply was read.
    """

    reflector_seq: int
    t2_s: float
    turnaround_ns: int
    t4_ns: int
    m4_s: float


class Direction:
    """Counts, between answered probes, what the reflector received and what of its replies came back.

    R = highest reflector seq + 1 - base is what arrived there; distinct reflector seqs seen here are what came back;
    the difference was lost on the way back. Whatever else is missing never arrived (design 2.2).
    """

    __slots__ = (
        "_ahead", "_assigned", "_base", "_closed_top", "_extra", "_heap", "_passed", "_run_top", "_top", "_top_t2_s",
    )  # fmt: skip

    def __init__(self) -> None:
        self._restart(0, 0.0)
        self._base: int | None = None

    def _restart(self, reflector_seq: int, t2_s: float) -> None:
        self._base = reflector_seq  # an epoch begins with its first answer
        self._top = reflector_seq
        self._top_t2_s = t2_s
        self._closed_top = reflector_seq
        self._run_top = reflector_seq  # all numbers from the closed ones up to it came back
        self._ahead: set[int] = set()  # what came back beyond a hole, in the heap too
        self._heap: list[int] = []
        self._passed = 1
        self._extra = 0
        self._assigned = 0

    def see(self, reflector_seq: int, t2_s: float, extra: bool) -> tuple[bool, bool]:
        """Takes a reply's sequence number.

        Args:
            reflector_seq: the reflector's number.
            t2_s: when the reflector received the request, on its clock.
            extra: whether the same probe has been answered before.

        Returns:
            (reordered, new epoch).
        """
        top = self._top
        if self._base is None or (reflector_seq <= top and t2_s > self._top_t2_s + _RESTART_S):
            self._restart(reflector_seq, t2_s)
            return False, True
        if reflector_seq == top + 1 == self._run_top + 1:  # in order and without a hole: what nearly always happens
            self._top = self._run_top = reflector_seq
            self._top_t2_s = t2_s
            self._extra += extra
            return False, False
        if (
            reflector_seq < self._base
            or reflector_seq in self._ahead
            or self._closed_top < reflector_seq <= self._run_top
        ):
            return False, False
        if reflector_seq > top:
            self._top, self._top_t2_s = reflector_seq, t2_s
        if reflector_seq > self._closed_top:
            self._ahead.add(reflector_seq)
            heapq.heappush(self._heap, reflector_seq)
            self._lengthen()
        else:
            self._passed += 1
        self._extra += extra
        return reflector_seq < top, False

    def _lengthen(self) -> None:
        while self._heap and self._heap[0] == self._run_top + 1:
            self._run_top = heapq.heappop(self._heap)
            self._ahead.discard(self._run_top)

    def close(self, reflector_seq: int) -> None:
        """Says that the probe answered under this number, and all sent before it, are past their timeout."""
        if self._base is None or reflector_seq <= self._closed_top:
            return
        self._passed += max(0, min(self._run_top, reflector_seq) - self._closed_top)
        self._closed_top = reflector_seq
        if reflector_seq <= self._run_top:
            return
        self._run_top = reflector_seq
        while self._heap and self._heap[0] <= reflector_seq:
            self._ahead.discard(heapq.heappop(self._heap))
            self._passed += 1
        self._lengthen()

    def split(self, lost: int, given_up: int = 0) -> int:
        """Gives a block of losses its directions.

        Args:
            lost: probes of this epoch, all sent before the last closed answer, that nobody answered.
            given_up: probes that settled as `lost_unknown` since the last call; as many holes are theirs.

        Returns:
            How many of the `lost` were lost on the way back; the others never arrived.
        """
        if self._base is None:
            return 0
        arrived = self._closed_top - self._base + 1
        missing = arrived - self._passed
        # A request that was duplicated on its way and lost one of its two replies leaves a hole without a lost probe.
        ratio = max(0.0, missing / arrived)
        missing -= round(2 * self._extra * ratio)
        self._assigned += min(given_up, max(0, missing - self._assigned))
        backward = min(max(0, missing - self._assigned), lost)
        self._assigned = max(self._assigned + backward, missing - _MAX_CARRY)
        return backward


class PathSession:
    """The probes of one address under one SSID.

    Args:
        ssid: session id, 16 bits.
        stats: where settled probes are counted.
        timeout_s: an answer after it is `late`.
        grace_s: how long after its timeout an unanswered probe may wait for a later answer.

    Attributes:
        key_differs: whether the peer has other keys, so that silence says nothing about the path.
        under_way: its probes in the order of sending, until they have settled and their timeout is over.
    """

    __slots__ = (
        "_epoch_seq", "_given_up", "_grace_s", "_timeout_ns", "_timeout_s", "direction", "key_differs", "last_error",
        "last_reply_m_s", "last_rtt_s", "next_seq", "ssid", "stats", "under_way",
    )  # fmt: skip

    def __init__(self, ssid: int, stats: PeerStats, *, timeout_s: float = 2.0, grace_s: float = 3.0) -> None:
        self.ssid = ssid
        self.stats = stats
        self.next_seq = 0
        self.last_rtt_s: float | None = None
        self.last_reply_m_s: float | None = None
        self.last_error: str | None = None
        self.direction = Direction()
        self._timeout_s = timeout_s
        self._timeout_ns = timeout_s * 1e9
        self._grace_s = grace_s
        self.key_differs = False
        self._epoch_seq = 0
        self._given_up = 0
        self.under_way: deque[Pending] = deque()

    def has_older(self, sent_s: float) -> bool:
        """Returns whether a probe sent at that monotonic time or before is still unsettled or held."""
        return bool(self.under_way) and self.under_way[0].m1_s <= sent_s

    def pending(self, seq: int) -> Pending | None:
        """Returns the unsettled or recently answered probe of a number."""
        # Numbers have no gaps, so the place follows from the number; a table beside it would be cold memory per probe.
        held = self.under_way
        place = (seq - held[0].seq) & 0xFFFFFFFF if held else 0
        return held[place] if place < len(held) else None

    def sent(self, probe: Pending) -> None:
        """Takes a probe that was handed to the kernel."""
        self.next_seq = (probe.seq + 1) & 0xFFFFFFFF
        self.under_way.append(probe)
        self.stats.last_sent_s = probe.t1_ns / 1e9

    def answered(self, probe: Pending, answer: Answer) -> bool:
        """Takes a reply that passed all checks of authenticity.

        Args:
            probe: what it answers, from `pending`; one settled long ago is not there any more, and stays lost.
            answer: what the reply says.

        Returns:
            Whether the wall clock had stepped while the probe was under way (the monotonic one was used then).
        """
        again = probe.outcome is not None and probe.outcome in ("ok", "late")
        reordered, new_epoch = self.direction.see(answer.reflector_seq, answer.t2_s, again)
        if new_epoch:
            self._epoch_seq = probe.seq  # the reflector's count says nothing about what was sent before
            for held in self.under_way:
                held.reflector_seq = -1
            self._given_up = 0
        stats = self.stats
        if probe.outcome is not None:
            stats.duplicates += again
            return False
        stats.reordered += reordered
        _seq, _t2_s, turnaround_ns, t4_ns, m4_s = answer
        self.last_reply_m_s = m4_s
        probe.reflector_seq = answer.reflector_seq
        # The monotonic bracket is wider than the truth (it has this process's delays in it), never narrower.
        bracket_ns = int((m4_s - probe.m1_s) * 1e9)
        outer_ns = t4_ns - probe.t1_ns
        stepped = not 0 <= outer_ns <= bracket_ns + CLOCK_TOLERANCE_NS
        if stepped:
            outer_ns = bracket_ns
        if outer_ns > self._timeout_ns:
            probe.outcome = "late"
            stats.count("late")
            return stepped
        probe.outcome = "ok"
        inner_ns = outer_ns - turnaround_ns if turnaround_ns > 0 else outer_ns
        rtt_s = inner_ns / 1e9 if inner_ns > 0 else 0.0
        stats.observe(rtt_s, self.last_rtt_s, m4_s, t4_ns / 1e9)
        stats.flow_loss.add(m4_s, probe.flow, lost=False)
        self.last_rtt_s = rtt_s
        return stepped

    def failed(self, seq: int, outcome: str) -> None:
        """Settles a probe by an error that names it (an ICMP message, a bad HMAC)."""
        probe = self.pending(seq)
        if probe is not None and probe.outcome is None:
            probe.outcome = outcome
            self.last_error = outcome
            self.stats.count(outcome)
            if outcome == "unreachable":
                self.stats.flow_loss.add(probe.m1_s, probe.flow, lost=True)

    def doubted(self, seq: int) -> None:
        """Notes an answer with a bad HMAC; a genuine one may still come, so the probe settles at its timeout."""
        probe = self.pending(seq)
        if probe is not None:
            probe.doubted = True

    def expire(self, now_s: float, own_drop_s: float) -> None:
        """Settles what can be settled.

        Args:
            now_s: monotonic time; all that the sockets had has been read before.
            own_drop_s: monotonic time of the last packet that the own socket had to drop (-inf if none).
        """
        limit = now_s - self._timeout_s
        self._let_go(limit)
        if not self.has_older(limit):
            return
        anchor = self._last_closed_answer(limit)
        lost: list[Pending] = []
        while self.under_way and self.under_way[0].m1_s <= limit:
            probe = self.under_way[0]
            overdue = probe.m1_s <= limit - self._grace_s
            if probe.outcome is None and probe.seq > anchor and not overdue:
                break
            self.under_way.popleft()
            if probe.reflector_seq >= 0:
                self.direction.close(probe.reflector_seq)
            if probe.outcome is None:
                if own_drop_s >= probe.m1_s:
                    self.stats.count("self_drop")  # the reply may have been here: nothing is known about the path
                elif probe.doubted or self.key_differs:
                    self.stats.count("auth_failed")
                elif probe.seq > anchor or probe.seq < self._epoch_seq:
                    self._lose(probe, "lost_unknown")
                    self._given_up += probe.seq > self._epoch_seq
                else:
                    lost.append(probe)
        self._settle(lost)

    def _let_go(self, limit: float) -> None:
        """Takes leave of the oldest probes as long as their outcome is known; mostly that is all of them."""
        top = -1
        while self.under_way and self.under_way[0].outcome is not None and self.under_way[0].m1_s <= limit:
            top = max(top, self.under_way.popleft().reflector_seq)
        if top >= 0:
            self.direction.close(top)

    def _last_closed_answer(self, limit: float) -> int:
        # Sequence number of the newest answered probe that is past its timeout, so that nothing before it is in flight.
        newest = -1
        for probe in self.under_way:
            if probe.m1_s > limit:
                break
            if probe.outcome in ("ok", "late"):
                newest = probe.seq
        return newest

    def _settle(self, lost: list[Pending]) -> None:
        if not lost:
            return
        backward = self.direction.split(len(lost), self._given_up)
        self._given_up = 0
        for index, probe in enumerate(lost):
            self._lose(probe, "lost_backward" if index < backward else "lost_forward")

    def _lose(self, probe: Pending, outcome: str) -> None:
        self.stats.count(outcome)
        self.stats.flow_loss.add(probe.m1_s + self._timeout_s, probe.flow, lost=True)
