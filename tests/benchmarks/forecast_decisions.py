"""Scaling on the forecast, minute by minute on real traces, beside plain HPA and a tuned Holt-Winters forecast.

A violation is a minute whose load is above what the ready replicas can do. Replica-hours are told relative to perfect
foresight (as many replicas as each minute needs), at one and the same share of violation minutes for every policy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rebalancer.core.model import Floats
from tests.benchmarks.forecast_walk import Walk, walk
from tests.benchmarks.traces import Trace, simulated

LEVEL = 0.003
"""The share of violation minutes at which policies are compared."""
TARGETS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
TAUS = (0.05, 0.5, 0.7, 0.8, 0.9, 0.95, 0.975, 0.99, 0.995)
REACTIVE, TOLERANCE, STABLE = 0.9, 0.1, 5
HOLD = 3
TEST_DAYS = 14
Target = Callable[[int, int, int], int]
"""(minute, ready, ready and pending) -> wanted replicas, from what was known a minute before."""


@dataclass(frozen=True)
class Score:
    """One policy with one setting on one trace: share of violations, replica-hours over foresight's, starts a day."""

    violations: float
    hours: float
    starts: float


@dataclass(frozen=True)
class Case:
    """One trace of the test region.

    Attributes:
        load: shape (minutes,).
        capacity: of one replica; 30 replicas serve the 99th percentile.
        bands: shape (slots, 3, Q), quantiles of the next slots' maxima; row k is known when slot k begins.
        smoothed: shape (slots,), Holt-Winters' maximum of the next two slots, likewise.
    """

    name: str
    load: Floats
    capacity: float
    bands: Floats
    smoothed: Floats


def cases() -> list[Case]:
    """Forecasts all traces; empty without the full data."""
    minutes = simulated()
    if not minutes:
        return []
    peaks = [Trace(t.name, t.values[: len(t.values) // 5 * 5].reshape(-1, 5).max(axis=1), 288) for t in minutes]
    walks = walk(peaks, TEST_DAYS, TAUS)
    return [_case(t.values, p.values, w) for t, p, w in zip(minutes, peaks, walks, strict=True)]


def _case(minutes: Floats, peaks: Floats, one: Walk) -> Case:
    count = len(one.origins) - 1
    # Origins count from the walk's begin; the trace ends where the walk does.
    first = one.origins.start + 1 - (len(one.values) - len(peaks))
    load = minutes[first * 5 : (first + count) * 5]
    bands = one.bands[one.origins.start : one.origins.start + count, :HOLD]
    smoothed = _holt_winters(peaks, first)[first - 1 : first - 1 + count]
    return Case(one.trace.name, load, float(np.percentile(minutes, 99)) / 30.0, bands, smoothed)


def _holt_winters(peaks: Floats, test: int) -> Floats:
    """Additive season of a day; the setting with the least error one step ahead before slot `test` wins."""
    grid = np.array([(a, b, g) for a in (0.1, 0.3, 0.6, 0.9) for b in (0.0, 0.02) for g in (0.05, 0.15, 0.35)]).T
    alpha, beta, gamma = grid
    level, trend = np.full(len(alpha), peaks[:288].mean()), np.zeros(len(alpha))
    season = np.repeat((peaks[:288] - peaks[:288].mean())[:, None], len(alpha), axis=1)
    missed, found = np.zeros(len(alpha)), np.zeros((len(peaks), len(alpha)))
    for slot, value in enumerate(peaks):
        here = season[slot % 288]
        if 288 <= slot < test:
            missed += np.abs(level + trend + here - value)
        before = level
        level = alpha * (value - here) + (1 - alpha) * (level + trend)
        trend = beta * (level - before) + (1 - beta) * trend
        season[slot % 288] = gamma * (value - level) + (1 - gamma) * here
        ahead = [level + n * trend + season[(slot + n) % 288] for n in (1, 2)]
        found[slot] = np.maximum(np.maximum(*ahead), 0.0)
    return np.asarray(found[:, int(missed.argmin())])


def live(case: Case, delay: int, target: Target) -> Score:
    """Lets replicas follow a policy; started ones are ready after `delay` minutes, stopped ones are gone at once."""
    load, capacity = case.load, case.capacity
    ready, pending = max(1, int(np.ceil(load[0] / capacity))), list[tuple[int, int]]()
    missed = paid = starts = 0
    for minute, wanted_load in enumerate(load):
        while pending and pending[0][0] <= minute:
            ready += pending.pop(0)[1]
        there = ready + sum(n for _, n in pending)
        wanted = max(1, target(minute, ready, there))
        if wanted > there:
            pending.append((minute + delay, wanted - there))
            starts += wanted - there
        surplus = max(0, there - wanted)
        while surplus and pending:  # the newest are cancelled first
            at, count = pending.pop()
            cut = min(count, surplus)
            surplus -= cut
            if count > cut:
                pending.append((at, count - cut))
        ready -= surplus
        missed += bool(wanted_load > ready * capacity * (1 + 1e-9))
        paid += ready + sum(n for _, n in pending)
    foresight = np.ceil(load / capacity - 1e-9).clip(1).sum()
    return Score(missed / len(load), paid / foresight, starts / (len(load) / 1440))


def hpa(case: Case, target: float) -> Target:
    """HorizontalPodAutoscaler: ratio of use to target, tolerance, the largest of the last minutes on the way down."""
    said: list[int] = []

    def wanted(minute: int, ready: int, there: int) -> int:
        if not minute:
            return there
        ratio = case.load[minute - 1] / (ready * case.capacity) / target
        found = there if abs(ratio - 1) <= TOLERANCE else int(np.ceil(ready * ratio - 1e-9))
        said.append(found)
        return max(found, *said[-STABLE:]) if found < there else found

    return wanted


def ahead(case: Case, need: Floats, hold: Floats) -> Target:
    """The larger of a forecast and HPA at 90 %; both of shape (slots,), `hold` for the way down."""
    reactive, state = hpa(case, REACTIVE), [0]
    needs, holds = (np.ceil(part / case.capacity - 1e-9).astype(int) for part in (need, hold))

    def wanted(minute: int, ready: int, there: int) -> int:
        slot = minute // 5
        if minute % 5 == 0:
            before = state[0]
            down = max(int(needs[slot]), min(before, int(holds[slot])))
            state[0] = int(needs[slot]) if needs[slot] >= before else down
        return max(state[0], reactive(minute, ready, there))

    return wanted


def curves(case: Case, delay: int) -> dict[str, list[Score]]:
    """All policies with all settings on one trace."""
    bands, smooth = case.bands, case.smoothed
    return {
        "forecast": [
            live(case, delay, ahead(case, bands[:, :2, q].max(axis=1), bands[:, :, q].max(axis=1)))
            for q in range(1, len(TAUS))
        ],
        "hpa": [live(case, delay, hpa(case, t)) for t in TARGETS],
        "holt-winters": [live(case, delay, ahead(case, smooth / t, smooth / t)) for t in TARGETS],
    }


def at_level(scores: Sequence[Score], level: float = LEVEL) -> Score:
    """What a policy costs at a share of violations, between its settings; NaN beyond them."""
    ordered = sorted(scores, key=lambda s: s.violations)
    shares = np.log([max(s.violations, 1e-6) for s in ordered])
    if not shares[0] <= np.log(level) <= shares[-1]:
        return Score(level, np.nan, np.nan)
    found = [float(np.interp(np.log(level), shares, [getattr(s, k) for s in ordered])) for k in ("hours", "starts")]
    return Score(level, *found)


def average(several: Sequence[Sequence[Score]]) -> list[Score]:
    """One global setting on all traces: means over the traces, setting by setting."""
    names = ("violations", "hours", "starts")
    return [Score(*(float(np.mean([getattr(s, n) for s in one])) for n in names)) for one in zip(*several, strict=True)]
