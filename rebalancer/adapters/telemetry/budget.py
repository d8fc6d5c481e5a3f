"""How much one query may read: large histories are asked for in shards by workload, none of which a server minds.

One giant query has killed servers, and a timeout does not always stop one. So before a backfill the counter's size is
asked for (one cheap query), and each query stays within a budget of raw samples and of points in its answer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from rebalancer.adapters.telemetry import promql
from rebalancer.adapters.telemetry.decode import Series
from rebalancer.adapters.telemetry.promql import Selector

SAMPLES = 5_000_000
"""Raw samples that one query reads at most; Prometheus itself gives up at 50 million."""
POINTS = 2_000 * 288
"""Points in one answer at most: 2,000 series of a day in 5 minutes, some 19 MB."""
CHUNK_POINTS = 5 * POINTS
"""Points of one chunk of a backfill over all its shards: some seconds, so that a deadline loses little."""
_RATE_WINDOW_S = 300.0

Matcher = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Size:
    """How large a counter is, by the values of one label.

    Attributes:
        label: by which it can be divided.
        series: series by value; the empty value stands for series without the label.
        samples_per_s: raw samples per second by value.
    """

    label: str
    series: Mapping[str, int] = field(default_factory=dict)
    samples_per_s: Mapping[str, float] = field(default_factory=dict)

    def slots(self, step_s: float) -> int:
        """Returns how many slots a chunk may have, at least one."""
        total = sum(self.series.values())
        # The largest value can't be divided, so that it alone must be within a query's budget.
        largest, densest = max(self.series.values(), default=0), max(self.samples_per_s.values(), default=0.0)
        bounds = [CHUNK_POINTS / total if total else math.inf, POINTS / largest if largest else math.inf]
        bounds.append((SAMPLES / densest - step_s) / step_s if densest > 0 else math.inf)
        least = min(bounds)
        return max(1, int(least)) if math.isfinite(least) else 2**31

    def shards(self, slots: int, span_s: float) -> tuple[tuple[Matcher, ...], ...]:
        """Divides a query into shards; every series is in exactly one, also one that was born since the size was asked.

        Args:
            slots: points per series.
            span_s: time from the oldest sample that is read to the newest.

        Returns:
            For each shard the matchers that narrow the selector to it.
        """
        bins: list[list[str]] = [[]]
        points, samples = 0.0, 0.0
        for value in sorted(self.series):
            more, dense = self.series[value] * slots, self.samples_per_s.get(value, 0.0) * span_s
            if bins[-1] and (points + more > POINTS or samples + dense > SAMPLES):
                bins.append([])
                points, samples = 0.0, 0.0
            bins[-1].append(value)
            points, samples = points + more, samples + dense
        if len(bins) == 1:
            return ((),)
        # The last takes whatever is in no other; `sorted` puts series without the label first, and a regular
        # expression with an empty alternative finds them.
        named = [value for one in bins[:-1] for value in one]
        rest: tuple[Matcher, ...] = ((self.label, "!~", promql.one_of(named)),)
        return (*(((self.label, "=~", promql.one_of(one)),) for one in bins[:-1]), rest)


def query(selector: Selector, label: str) -> str:
    """Series and samples of the last five minutes by a label, in one query."""
    return promql.size(selector, label, _RATE_WINDOW_S)


def read(label: str, found: Iterable[Series]) -> Size:
    """Reads the answer to `query`."""
    series: dict[str, int] = {}
    samples: dict[str, float] = {}
    for one in found:
        value, amount = one.labels.get(label, ""), float(one.values[0])
        if not math.isfinite(amount):
            continue
        if one.labels.get("kind") == "samples":
            samples[value] = amount / _RATE_WINDOW_S
        else:
            series[value] = int(amount)
    return Size(label, series, samples)
