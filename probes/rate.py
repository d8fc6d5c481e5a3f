"""When which path sends: a base rate, more after a change, never above one budget, and a fair share for all. Pure.

The time is an argument, so that a test can play hours in milliseconds. What holds for every window of a second or more:
no more probes than the budget allows. A wish that does not fit is cut for those that wish for more, never for others.
"""

from __future__ import annotations

import heapq
import math
from typing import Generic, TypeVar

MAX_PPS = 10_000.0
"""Probes per second that no configuration can exceed: about what one core sends and settles."""
BOOST = 10.0
"""How much faster a path is probed after a change: 1 % loss is then sure within 30 s instead of five minutes."""
BOOST_S = 60.0
_SLACK = 0.02
"""Share of the budget that may leave at once; it is taken off the steady rate, so that no window holds more."""
_FLOOR_CHANGE_S = 0.0002
"""A smaller move of the round trip is the noise of a busy node, however short the path."""
_RATIO_CHANGE = 0.05

P = TypeVar("P")


def shares(base_pps: float, budget_pps: float, calm: int, boosted: int) -> tuple[float, float]:
    """Returns the rates (calm, boosted) of one path each, in probes per second.

    Args:
        base_pps: what every path gets when the budget allows, > 0.
        budget_pps: what all together may send, > 0.
        calm: paths at the base rate.
        boosted: paths that changed lately.
    """
    paths = calm + boosted
    base = min(base_pps, budget_pps / paths) if paths else base_pps
    if not boosted:
        return base, base
    spare = max(0.0, budget_pps - base * paths)
    return base, min(BOOST * base_pps, base + spare / boosted)


def changed(*, ok: int, lost: int, rtt_min_s: float | None, rtt_min_before_s: float | None) -> bool:
    """Returns whether a path did something new, so that a closer look is worth its probes.

    A path that gives no answer at all is no news after its first half minute, and more probes would not tell more.

    Args:
        ok: answered probes of the last 30 s.
        lost: lost ones.
        rtt_min_s: smallest round trip of the last minute, None where there is none.
        rtt_min_before_s: the same 30 s ago.
    """
    if ok and lost:
        return True
    if rtt_min_s is None or rtt_min_before_s is None:
        return False
    move = abs(rtt_min_s - rtt_min_before_s)
    return move > _RATIO_CHANGE * rtt_min_before_s and move > _FLOOR_CHANGE_S


class Schedule(Generic[P]):
    """Which path is due. Whoever waits longest goes first, so that a short budget is shared by turns.

    Args:
        interval_s: mean time between two probes of a calm path.
        budget_pps: hard limit over all paths, at least 2.
    """

    def __init__(self, interval_s: float, budget_pps: float) -> None:
        self._base_pps = 1.0 / interval_s
        self._burst = max(1.0, _SLACK * budget_pps)
        self._rate_pps = budget_pps - self._burst
        self._tokens = self._burst
        self._filled_s: float | None = None
        self._heap: list[float] = []
        self._planned: dict[float, P] = {}
        self._latest_pause_s = 0.0
        self._present: set[P] = set()
        self._boosted: dict[P, float] = {}
        self._interval_s = self._boosted_interval_s = interval_s
        self._shared_s = float("-inf")

    def __len__(self) -> int:
        return len(self._present)

    def add(self, path: P, due_s: float) -> None:
        """Takes a path whose first probe is due at a monotonic time."""
        self._present.add(path)
        heapq.heappush(self._heap, self._plan(path, due_s))
        self._shared_s = float("-inf")

    def remove(self, path: P) -> None:
        """Drops a path."""
        self._present.discard(path)
        self._boosted.pop(path, None)
        self._shared_s = float("-inf")

    def boost(self, path: P, now_s: float) -> None:
        """Looks closer at a path for a minute, from its next probe on."""
        if path not in self._present:
            return
        fresh = path not in self._boosted
        self._boosted[path] = now_s + BOOST_S
        if fresh:
            self._shared_s = float("-inf")

    def next_in_s(self, now_s: float) -> float | None:
        """Returns after how many seconds `take` can give something, None while there is no path."""
        self._prune()
        if not self._heap:
            return None
        self._fill(now_s)
        return max(self._heap[0] - now_s, (1.0 - self._tokens) / self._rate_pps, 0.0)

    def take(self, now_s: float, jitter: float = 1.0) -> P | None:
        """Returns the path that sends now and plans its next probe; None when none is due or the budget is used up.

        Args:
            now_s: monotonic time, never before that of the last call.
            jitter: factor on the interval to the next probe, about 1.
        """
        heap = self._heap
        planned = self._planned
        if heap and planned[heap[0]] not in self._present:
            self._prune()
        if now_s != self._filled_s:  # once for all that leave together
            self._fill(now_s)
        if not heap or heap[0] > now_s or self._tokens < 1.0:
            return None
        if now_s - self._shared_s >= 1.0:  # anew when paths came, went or calmed down, else once a second
            self._share(now_s)
        due_s = heap[0]
        path = planned.pop(due_s)
        self._tokens -= 1.0
        step_s = (self._boosted_interval_s if path in self._boosted else self._interval_s) * jitter
        # After a pause the missed probes are not made up for: a burst would measure itself.
        next_s = due_s + step_s
        if next_s < now_s:
            next_s = self._latest_pause_s = max(now_s, math.nextafter(self._latest_pause_s, math.inf))
        heapq.heapreplace(heap, self._plan(path, next_s))
        return path

    def _plan(self, path: P, due_s: float) -> float:
        """Returns the time at which a path is due, moved by less than a nanosecond where another has that time.

        So a time names its path, and the heap need not compare anything else.
        """
        while due_s in self._planned:
            due_s = math.nextafter(due_s, math.inf)
        self._planned[due_s] = path
        return due_s

    def _prune(self) -> None:
        while self._heap and self._planned[self._heap[0]] not in self._present:
            del self._planned[heapq.heappop(self._heap)]

    def _fill(self, now_s: float) -> None:
        if self._filled_s is not None:
            self._tokens = min(self._burst, self._tokens + max(0.0, now_s - self._filled_s) * self._rate_pps)
        self._filled_s = now_s

    def _share(self, now_s: float) -> None:
        """Sets the intervals."""
        self._shared_s = now_s
        for path in [path for path, until_s in self._boosted.items() if until_s <= now_s]:
            del self._boosted[path]
        boosted = len(self._boosted)
        calm_pps, boosted_pps = shares(self._base_pps, self._rate_pps, len(self._present) - boosted, boosted)
        self._interval_s, self._boosted_interval_s = 1.0 / calm_pps, 1.0 / boosted_pps
