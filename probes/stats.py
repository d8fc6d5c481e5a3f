"""What is counted about one peer cluster: counters that only grow, and small windows. No clock: `now` is given."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from math import frexp

from rebalancer.catalog import PROBE_OUTCOMES

BUCKET_BOUNDS_S: tuple[float, ...] = tuple(float(f"{1e-4 * 2 ** (i / 2):.4g}") for i in range(28))
"""Upper bounds of the classic histogram: 28 steps of sqrt(2), 100 us to 1.16 s (a factor of 2 is coarse)."""
NATIVE_SCHEMA = 4
"""Native histogram: 16 buckets per factor of 2, so that a quantile is off by 4.4 % at the very most."""
_NATIVE_STEPS = 1 << NATIVE_SCHEMA
_NATIVE_FRACTIONS = tuple(0.5 * 2 ** (i / _NATIVE_STEPS) for i in range(_NATIVE_STEPS))
NATIVE_ZERO_S = 2.0**-20
"""At and below it (0.95 us, no path is that short) a round-trip time is in the native histogram's zero bucket."""
NATIVE_ZERO_INDEX = -20 * _NATIVE_STEPS
NATIVE_MAX_INDEX = 6 * _NATIVE_STEPS
"""The last bucket ends at 64 s, above the longest timeout; so a peer has at most 417 buckets, whatever it measures."""
OUTCOME_INDEX: dict[str, int] = {name: index for index, name in enumerate(PROBE_OUTCOMES)}
_LOST = tuple(OUTCOME_INDEX[name] for name in ("lost_forward", "lost_backward", "lost_unknown", "unreachable"))
_SEEN = tuple(OUTCOME_INDEX[name] for name in ("ok", "late"))
WINDOW_S = 60.0
_SLOTS = 6
_MIN_FLOW_PROBES = 30


def native_index(value_s: float) -> int:
    """Returns the index of a value's native bucket: above 2^((index-1)/16), up to and with 2^(index/16) seconds."""
    if value_s <= NATIVE_ZERO_S:
        return NATIVE_ZERO_INDEX
    fraction, exponent = frexp(value_s)  # a logarithm would put values on a bound into one bucket or the other
    return min(bisect_left(_NATIVE_FRACTIONS, fraction) + (exponent - 1) * _NATIVE_STEPS, NATIVE_MAX_INDEX)


class RollingMin:
    """Smallest value of the last 60 s, in six slots of 10 s: constant memory, however fast the probes are.

    Attributes:
        end_s: monotonic time at which the present slot ends; a value before it changes nothing unless it is the least.
        least: smallest value of the present slot.
    """

    __slots__ = ("_slots", "end_s", "least")

    def __init__(self) -> None:
        self._slots: list[tuple[int, float]] = []
        self.least = 0.0
        self.end_s = float("-inf")

    def add(self, now_s: float, value: float) -> None:
        """Takes a value at a monotonic time in seconds that never goes back."""
        if now_s >= self.end_s:
            slot = int(now_s / (WINDOW_S / _SLOTS))
            self._slots = [*self._slots[-_SLOTS:], (slot, value)]
            self.end_s = (slot + 1) * (WINDOW_S / _SLOTS)
            self.least = value
        elif value < self.least:
            self._slots[-1] = (self._slots[-1][0], value)
            self.least = value

    def get(self, now_s: float) -> float | None:
        """Returns the smallest value of the last 60 s, None where there is none."""
        oldest = int(now_s / (WINDOW_S / _SLOTS)) - _SLOTS
        return min([value for slot, value in self._slots if slot > oldest], default=None)


class FlowLoss:
    """Loss per flow (source port) over one to two minutes, to show an ECMP path that loses while the others don't."""

    __slots__ = ("_lost", "_lost_before", "_sent", "_sent_before", "_since_s")

    def __init__(self) -> None:
        # Every probe touches the numbers of settled ones, so they are in one small list; losses are few.
        self._sent: list[int] = []
        self._sent_before: list[int] = []
        self._lost: Counter[int] = Counter()
        self._lost_before: Counter[int] = Counter()
        self._since_s = 0.0

    def add(self, now_s: float, flow: int, *, lost: bool) -> None:
        """Takes a settled probe of a flow."""
        if now_s - self._since_s > WINDOW_S:
            # After a longer silence the finished window is no longer of the last minutes.
            recent = now_s - self._since_s <= 2 * WINDOW_S
            self._sent_before = self._sent if recent else [0] * len(self._sent)
            self._lost_before = self._lost if recent else Counter()
            self._sent, self._lost, self._since_s = [0] * len(self._sent), Counter(), now_s
        if flow >= len(self._sent):
            more = [0] * (flow + 1 - len(self._sent))
            self._sent += more
            self._sent_before += more
        self._sent[flow] += 1
        if lost:
            self._lost[flow] += 1

    def worst(self) -> float | None:
        """Returns the highest loss ratio of a flow with at least 30 probes, None where no flow has that many."""
        sent = list(map(int.__add__, self._sent, self._sent_before))
        if max(sent, default=0) < _MIN_FLOW_PROBES:
            return None
        lost = self._lost + self._lost_before if self._lost or self._lost_before else {}
        return max((count / sent[flow] for flow, count in lost.items() if sent[flow] >= _MIN_FLOW_PROBES), default=0.0)


class PeerStats:
    """Everything exported about one peer cluster and protocol; all paths (addresses) to it share one of these.

    Attributes:
        outcomes: settled probes in the order of `catalog.PROBE_OUTCOMES`.
        buckets: answered probes per bucket, not cumulative; the last one is above all bounds.
        native: index of a native bucket -> answered probes in it; only those that have any.
        rtt_sum_s, rtt_count: sum and number of round-trip times of `ok` probes.
        ipdv_sum_s, ipdv_count: sum and number of |difference| of consecutive round-trip times of a path.
        last_ok_s, last_sent_s: Unix time; None before the first one.
        last_rtt_s: newest round-trip time, None before the first one.
    """

    __slots__ = (
        "buckets", "duplicates", "flow_loss", "ipdv_count", "ipdv_sum_s", "last_ok_s", "last_rtt_s", "last_sent_s",
        "native", "outcomes", "reordered", "rtt_count", "rtt_min", "rtt_sum_s",
    )  # fmt: skip

    def __init__(self) -> None:
        self.outcomes = [0] * len(PROBE_OUTCOMES)
        self.buckets = [0] * (len(BUCKET_BOUNDS_S) + 1)
        self.native: dict[int, int] = {}
        self.rtt_sum_s = 0.0
        self.rtt_count = 0
        self.ipdv_sum_s = 0.0
        self.ipdv_count = 0
        self.duplicates = 0
        self.reordered = 0
        self.last_ok_s: float | None = None
        self.last_sent_s: float | None = None
        self.last_rtt_s: float | None = None
        self.rtt_min = RollingMin()
        self.flow_loss = FlowLoss()

    def count(self, outcome: str) -> None:
        """Counts one settled probe."""
        self.outcomes[OUTCOME_INDEX[outcome]] += 1

    def observe(self, rtt_s: float, previous_s: float | None, now_s: float, unix_s: float) -> None:
        """Takes the round-trip time of an answered probe.

        Args:
            rtt_s: round-trip time in seconds, >= 0.
            previous_s: the path's round-trip time before, None for its first.
            now_s: monotonic time.
            unix_s: wall clock time.
        """
        self.outcomes[0] += 1
        self.buckets[bisect_left(BUCKET_BOUNDS_S, rtt_s)] += 1
        index = native_index(rtt_s)
        self.native[index] = self.native.get(index, 0) + 1
        self.rtt_sum_s += rtt_s
        self.rtt_count += 1
        if previous_s is not None:
            self.ipdv_sum_s += abs(rtt_s - previous_s)
            self.ipdv_count += 1
        self.last_ok_s = unix_s
        self.last_rtt_s = rtt_s
        least = self.rtt_min
        if now_s >= least.end_s or rtt_s < least.least:
            least.add(now_s, rtt_s)

    def path_samples(self) -> tuple[int, int]:
        """Returns (samples, lost): probes that say something about the path, and those of them that were lost."""
        lost = sum(self.outcomes[i] for i in _LOST)
        return lost + sum(self.outcomes[i] for i in _SEEN), lost
