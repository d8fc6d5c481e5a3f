"""From raw counters to requests by arm: own reset logic, and birth at zero.

`increase()` of a query language drops the first value of a series, and an error series is born with its first error:
it loses most of a canary's errors. Here the raw values are read, and a series of the canary counts from 0.

Two replicas of Prometheus behind a deduplicating query can alternate, so that a value falls a little and rises again;
that is no restart. A fall below half is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from rebalancer.core.evidence import Counts
from rebalancer.core.rollout.model import ClusterSeen, Metric, Sample

LOOKBACK_S = 60.0
"""How far before the last counted sample is read, so that series with a short gap find their old value."""
COLD_LOOKBACK_S = 3600.0
"""The same after a restart, when no old values are in memory; not further back than the rollout's begin."""
STALE_SCRAPES = 3.0
MIN_STALE_S, MAX_STALE_S = 5.0, 60.0
SKIP_AFTER_S = 10.0
"""An interval with more bad requests than requests is read again with the next one; after this long it is left out."""
_RESET_BELOW = 0.5

Arm = Literal["canary", "stable"]
Key = tuple[str, ...]


class Series(Protocol):
    """Raw values of one series, ascending times."""

    @property
    def labels(self) -> Mapping[str, str]:
        """Labels with `cluster`."""

    @property
    def times_s(self) -> tuple[float, ...]:
        """Unix seconds."""

    @property
    def values(self) -> tuple[float, ...]:
        """Counter values."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far a series has been counted: time and highest value since its last restart."""

    time_s: float
    value: float


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of the telemetry about one metric.

    Attributes:
        gaps: cluster -> why its part is not complete.
    """

    total: Sequence[Series]
    bad: Sequence[Series]
    gaps: Mapping[str, str] = field(default_factory=dict)


def _key(metric: str, selector: str, labels: Mapping[str, str]) -> Key:
    return (metric, selector, *(f"{k}={v}" for k, v in sorted(labels.items())))


def increase(
    series: Series, cursor: Cursor | None, after_s: float, until_s: float, *, born_at_zero: bool
) -> tuple[float, Cursor | None]:
    """Counts one series in (after_s, until_s].

    Args:
        series: its raw values, from some time before `after_s` on.
        cursor: how far it was counted; None looks for its value at `after_s`.
        after_s: where the last interval ended.
        until_s: where this one ends.
        born_at_zero: a series without any value until `after_s` counts from 0; else its first value is only a start.

    Returns:
        The increase and the new cursor, None while nothing of the series was seen.
    """
    points = [(t, v) for t, v in zip(series.times_s, series.values, strict=True) if math.isfinite(v) and t <= until_s]
    if cursor is None:
        before = [p for p in points if p[0] <= after_s]
        if before:
            cursor = Cursor(*before[-1])
        elif born_at_zero:
            cursor = Cursor(after_s, 0.0)
        elif points:
            cursor = Cursor(*points[0])
        else:
            return 0.0, None
    total, high, last = 0.0, cursor.value, cursor.time_s
    for t, v in points:
        if t <= last:
            continue
        last = t
        if v >= high:
            total, high = total + (v - high), v
        elif v < high * _RESET_BELOW:
            total, high = total + v, v
    return total, Cursor(last, high)


def scrape_interval(series: Iterable[Series]) -> float:
    """Median distance of samples of the first series that has two; NaN if none has."""
    for one in series:
        if len(one.times_s) >= 2:
            steps = sorted(b - a for a, b in zip(one.times_s, one.times_s[1:], strict=False))
            return steps[len(steps) // 2]
    return math.nan


def arm_of(hashed: str, seen: ClusterSeen, revision: str) -> Arm | None:
    """Says which arm a pod-template-hash belongs to; None for a hash nobody here knows."""
    known = seen.pod_hashes.get(hashed)
    if known is None:
        return None
    return "canary" if known == revision else "stable"


@dataclass(frozen=True, slots=True)
class _Cut:
    """The series of one cluster by arm, and how far they reach."""

    total: tuple[tuple[Arm, Series], ...]
    bad: tuple[tuple[Arm, Series], ...]

    def newest(self, arm: Arm) -> float:
        """Newest sample of an arm's totals; -inf without any."""
        return max((s.times_s[-1] for a, s in self.total if a == arm and s.times_s), default=-math.inf)


def _cut(metric: Metric, answer: Answer, seen: ClusterSeen, revision: str) -> _Cut:
    def armed(many: Sequence[Series]) -> tuple[tuple[Arm, Series], ...]:
        out: list[tuple[Arm, Series]] = []
        for s in many:
            if s.labels.get("cluster") == seen.name:
                arm = arm_of(s.labels.get(metric.version_label, ""), seen, revision)
                if arm is not None:
                    out.append((arm, s))
        return tuple(out)

    return _Cut(armed(answer.total), armed(answer.bad))


def _gap(metric: Metric, answer: Answer, seen: ClusterSeen, cut: _Cut, need: Iterable[Arm], now: float) -> str:
    """Says why the cluster's data can't be judged, empty if it can."""
    if seen.name in answer.gaps:
        return answer.gaps[seen.name]
    own = [s for s in answer.total if s.labels.get("cluster") == seen.name]
    if not own:
        return f"no series of `{metric.total}`"
    if not any(s.labels.get(metric.version_label) for s in own):
        return f"no series of `{metric.total}` has the label {metric.version_label}"
    scrape = scrape_interval(own)
    stale = min(max(STALE_SCRAPES * (scrape if math.isfinite(scrape) else 0.0), MIN_STALE_S), MAX_STALE_S)
    for arm in need:
        newest = cut.newest(arm)
        if newest == -math.inf:
            return f"no series of the {arm} pods"
        if now - newest > stale:
            return f"newest sample of the {arm} pods is {now - newest:.0f} s old"
    return ""


def _needed(seen: ClusterSeen, revision: str, ready_since_s: float | None, now: float) -> tuple[Arm, ...]:
    """Says which arms must have fresh series: those with ready pods, the canary's after its first few seconds."""
    out: list[Arm] = []
    if seen.stable is not None and any(n for r, n in seen.stable.ready.items() if r != revision):
        out.append("stable")
    canary = seen.canary is not None and seen.canary.ready > 0 and seen.canary.revision == revision
    if canary and ready_since_s is not None and now - ready_since_s > MIN_STALE_S:
        out.append("canary")
    return tuple(out)


def sample(
    metric: Metric,
    answer: Answer,
    seen: ClusterSeen,
    revision: str,
    after_s: float | None,
    cursors: Mapping[Key, Cursor],
    now: float,
    ready_since_s: float | None = None,
) -> tuple[Sample, dict[Key, Cursor]]:
    """Counts one metric of one cluster since its last interval.

    Args:
        metric: which counters.
        answer: raw counters from `read_from` on.
        seen: the cluster, for its pod-template-hashes.
        revision: the new revision; its pods are the canary arm, all others of the workload the stable arm.
        after_s: end of the last interval that counted; None before the first.
        cursors: how far each series was counted; may be empty after a restart.
        now: Unix seconds.
        ready_since_s: since when the canary here is complete; None while it is not.

    Returns:
        The sample, and the cursors that changed: to be kept only once the sample is part of a stored status.
    """
    cut = _cut(metric, answer, seen, revision)
    gap = _gap(metric, answer, seen, cut, _needed(seen, revision, ready_since_s, now), now)
    newest = max(cut.newest("canary"), cut.newest("stable"))
    if gap or newest == -math.inf:
        return Sample(seen.name, metric.name, after_s, after_s or 0.0, gap=gap or "no series of its pods"), {}
    if after_s is not None and newest <= after_s:
        return Sample(seen.name, metric.name, after_s, after_s), {}
    start = newest if after_s is None else after_s
    sums = {("canary", "total"): 0.0, ("canary", "bad"): 0.0, ("stable", "total"): 0.0, ("stable", "bad"): 0.0}
    moved: dict[Key, Cursor] = {}
    for selector, many in (("total", cut.total), ("bad", cut.bad)):
        for arm, series in many:
            key = _key(metric.name, selector, series.labels)
            # A stable pod's unknown total may be an old series back from a gap: counting it from 0 would be absurd.
            born = after_s is not None and (arm == "canary" or selector == "bad")
            more, cursor = increase(series, cursors.get(key), start, newest, born_at_zero=born)
            sums[arm, selector] += more
            if cursor is not None:
                moved[key] = cursor
    counts = Counts(*(sums[a, s] for a in ("canary", "stable") for s in ("total", "bad")))
    if not counts.usable():
        why = "more bad requests than requests: is `bad` a part of `total`?"
        if after_s is not None and newest - after_s < SKIP_AFTER_S:
            return Sample(seen.name, metric.name, after_s, after_s), {}  # two targets scraped at different moments
        return Sample(seen.name, metric.name, after_s, newest, gap=why), moved
    return Sample(seen.name, metric.name, after_s, newest, counts), moved


def read_from(sampled_s: Iterable[float], started_s: float | None, now: float, *, cold: bool) -> float:
    """Says from when raw counters have to be read."""
    oldest = min(sampled_s, default=now)
    if cold and started_s is not None:
        return max(min(oldest, started_s) - LOOKBACK_S, oldest - COLD_LOOKBACK_S)
    return oldest - LOOKBACK_S
