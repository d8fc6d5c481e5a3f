"""Canary verdicts that may be looked at after every scrape: e-processes on raw request counts.

For each interval, cluster and metric two arms are compared: the canary's requests and bad requests, and the stable
version's of the same interval. All evidence is a log-likelihood ratio that is a supermartingale while the canary is
fine, so the chance that it ever passes 1/alpha is at most alpha (Ville), however often one looks. Source of the
formulas: Ramdas et al., "Game-theoretic statistics and safe anytime-valid inference" (2023); the conditional
binomial form makes an incident that hits both arms alike carry no evidence.

Pooled over clusters the evidence is half the product of the clusters and half their mean, so that both a weak fault
everywhere and a strong one in one place are seen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

BAD_RATIOS = (1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0, 100.0)
"""How many times worse than tolerated the canary may be: the mixture that is bet on."""
RATE_FRACTIONS = (0.02, 0.1, 0.3, 0.5)
"""Canary error rates as fractions of `max_error_rate`, bet against a rate of `max_error_rate` or more."""
GOOD_RATIOS = (0.5, 1.0, 1.25)
"""Canary/stable ratios bet against a ratio of `min_detectable_ratio` or more."""
MAX_STARTS = 32
"""Start times kept; the capital of later ones stays unused, which costs power and never validity."""
_MAIN, _WARM, _FULL = 0.8, 0.1, 0.1
_DIGITS = 6
"""Decimals kept of every sum, so that a status written and read back is the same value."""

Row = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Rule:
    """What counts as bad and as good enough for one metric.

    Attributes:
        false_rollback_rate: alpha, the chance that a healthy revision is ever rolled back.
        confidence: 1 - beta, wanted of "not bad" before a step advances.
        tolerance: canary/stable ratio that is no regression.
        min_detectable_ratio: a step advances when a canary this many times worse than stable is ruled out ...
        max_error_rate: ... or one that fails this share of its requests.
        min_bad_requests: no rollback on fewer bad requests, unless more than half of all fail.
        overdispersion: phi >= 1, variance of the counts over that of independent requests.
        warm_ratio: tolerance while the canary's pods are cold.
        final_ratio: tolerance over the upper bound of the recorded stable rate when no control is left.
    """

    false_rollback_rate: float = 0.05
    confidence: float = 0.95
    tolerance: float = 1.1
    min_detectable_ratio: float = 2.0
    max_error_rate: float = 0.01
    min_bad_requests: int = 3
    overdispersion: float = 1.0
    warm_ratio: float = 8.0
    final_ratio: float = 3.0


@dataclass(frozen=True, slots=True)
class Counts:
    """Requests of one interval by arm; bad ones are a part of the requests. Fractions are allowed."""

    canary_requests: float = 0.0
    canary_bad: float = 0.0
    stable_requests: float = 0.0
    stable_bad: float = 0.0

    def usable(self) -> bool:
        """Says whether the numbers can be counts at all: finite, not negative, bad not above all."""
        values = (self.canary_requests, self.canary_bad, self.stable_requests, self.stable_bad)
        return (
            all(math.isfinite(v) and v >= 0.0 for v in values)
            and self.canary_bad <= self.canary_requests * 1.0001
            and self.stable_bad <= self.stable_requests * 1.0001
        )


_Z8: Row = (0.0,) * len(BAD_RATIOS)
_Z4: Row = (0.0,) * len(RATE_FRACTIONS)
_Z3: Row = (0.0,) * len(GOOD_RATIOS)
_NOTHING = Counts()


@dataclass(frozen=True, slots=True)
class Evidence:
    """Sums of log-likelihood ratios since the rollout began.

    Attributes:
        starts: shape (R, 8), one row per start time (a step begins), a column per ratio of BAD_RATIOS.
        warm: shape (8,), the same on samples of cold pods.
        full: shape (8,), against the recorded stable rate, while the canary takes all the traffic.
        rate: shape (4,), this step's evidence that the canary's error rate is below `max_error_rate`.
        ratio: shape (3,), this step's evidence that the canary is less than `min_detectable_ratio` times worse.
        counts: all requests since the rollout began.
    """

    starts: tuple[Row, ...] = (_Z8,)
    warm: Row = _Z8
    full: Row = _Z8
    rate: Row = _Z4
    ratio: Row = _Z3
    counts: Counts = _NOTHING


@dataclass(frozen=True, slots=True)
class Increment:
    """What one interval adds to an Evidence; rows of zeros where it says nothing."""

    counts: Counts
    main: Row = _Z8
    warm: Row = _Z8
    full: Row = _Z8
    rate: Row = _Z4
    ratio: Row = _Z3


def _conditional(counts: Counts, base: float, ratio: float) -> float:
    """Log-likelihood of `ratio` against `base` given the sum of bad requests; both are canary/stable ratios."""
    null = base * counts.canary_requests
    other = ratio * counts.canary_requests
    stable = counts.stable_requests
    # The ratio of the two is taken apart, so that it does not pass through a number too small for a float.
    shared = math.log((null + stable) / (other + stable))
    return counts.canary_bad * (math.log(ratio / base) + shared) + counts.stable_bad * shared


def _stable_upper_rate(before: Counts) -> float:
    """Upper bound of the stable version's bad rate as recorded so far; NaN when nothing was recorded."""
    if before.stable_requests <= 0.0:
        return math.nan
    return (before.stable_bad + 2.0 * math.sqrt(before.stable_bad + 1.0) + 2.0) / before.stable_requests


def increment(rule: Rule, before: Counts, counts: Counts, *, warm: bool, full: bool) -> Increment | None:
    """Weighs one interval of one cluster.

    Args:
        rule: the metric's rule.
        before: what this cluster counted until now; gives the recorded stable rate.
        counts: the interval's requests.
        warm: the canary's pods are younger than the warm-up.
        full: the canary takes all the traffic. Only the caller can know; a stable counter that is missing is no
            reason for it.

    Returns:
        The increment, or None when the numbers can't be counts.
    """
    if not counts.usable():
        return None
    phi = max(1.0, rule.overdispersion)
    out = Increment(counts)
    n, k = counts.canary_requests, counts.canary_bad
    if n <= 0.0:
        return out
    if full:
        bound = rule.final_ratio * _stable_upper_rate(before)
        if not math.isnan(bound):
            out = replace(out, full=tuple((k * math.log(g) - n * bound * (g - 1.0)) / phi for g in BAD_RATIOS))
    elif counts.stable_requests > 0.0:
        base = rule.warm_ratio if warm else rule.tolerance
        row = tuple(_conditional(counts, base, base * g) / phi for g in BAD_RATIOS)
        if warm:
            out = replace(out, warm=row)
        else:
            theta = rule.min_detectable_ratio
            good = tuple(_conditional(counts, theta, r) / phi for r in GOOD_RATIOS)
            out = replace(out, main=row, ratio=good)
    if not warm:
        delta = rule.max_error_rate
        out = replace(out, rate=tuple((k * math.log(r) + n * delta * (1.0 - r)) / phi for r in RATE_FRACTIONS))
    return out


def _sum(left: Row, right: Row) -> Row:
    return tuple(round(a + b, _DIGITS) for a, b in zip(left, right, strict=True))


def add(evidence: Evidence, inc: Increment, *, good: bool = True) -> Evidence:
    """Adds an interval. With `good` False it counts only as evidence of harm (a cluster outside the current step)."""
    c, d = evidence.counts, inc.counts
    return Evidence(
        starts=tuple(_sum(row, inc.main) for row in evidence.starts),
        warm=_sum(evidence.warm, inc.warm),
        full=_sum(evidence.full, inc.full),
        rate=_sum(evidence.rate, inc.rate) if good else evidence.rate,
        ratio=_sum(evidence.ratio, inc.ratio) if good else evidence.ratio,
        counts=Counts(
            round(c.canary_requests + d.canary_requests, _DIGITS),
            round(c.canary_bad + d.canary_bad, _DIGITS),
            round(c.stable_requests + d.stable_requests, _DIGITS),
            round(c.stable_bad + d.stable_bad, _DIGITS),
        ),
    )


def begin_step(evidence: Evidence) -> Evidence:
    """Opens a new start time and asks the new step for its own good evidence."""
    starts = evidence.starts
    if len(starts) < MAX_STARTS:
        starts = (*starts, _Z8)
    return replace(evidence, starts=starts, rate=_Z4, ratio=_Z3)


def log_sum(values: Iterable[float]) -> float:
    """Log of the sum of exponentials, without overflow."""
    items = list(values)
    top = max(items)
    return top + math.log(sum(math.exp(v - top) for v in items))


def log_mean(values: Sequence[float]) -> float:
    """Log of the mean of exponentials."""
    return log_sum(values) - math.log(len(values))


def log_bad(evidence: Evidence) -> float:
    """Log of E_bad: mixture over start times and ratios, cold pods, and the recorded rate. 0 is no evidence."""
    parts = [log_mean(row) - math.log((r + 1) * (r + 2)) for r, row in enumerate(evidence.starts)]
    parts.append(-math.log(len(evidence.starts) + 1))  # capital of start times not used yet
    return log_sum(
        (
            math.log(_MAIN) + log_sum(parts),
            math.log(_WARM) + log_mean(evidence.warm),
            math.log(_FULL) + log_mean(evidence.full),
        )
    )


def log_good(evidence: Evidence) -> float:
    """Log of E_good: half against a high error rate, half against a high ratio. 0 is no evidence."""
    return log_mean((log_mean(evidence.rate), log_mean(evidence.ratio)))


@dataclass(frozen=True, slots=True)
class MetricEvidence:
    """The evidence of one metric over all clusters of a rollout.

    Attributes:
        pooled: the clusters' increments summed: the product of their e-processes.
        clusters: by cluster that has begun.
        fleet: clusters the rollout has in total; those that have not begun hold their capital of 1.
    """

    pooled: Evidence = field(default_factory=Evidence)
    clusters: Mapping[str, Evidence] = field(default_factory=dict)
    fleet: int = 1

    def log_bad(self) -> float:
        """Log of half the product and half the mean over all clusters."""
        own = [log_bad(e) for e in self.clusters.values()]
        own += [0.0] * (max(self.fleet, 1) - len(own))
        return log_mean((log_bad(self.pooled), log_mean(own)))

    def log_good(self, clusters: Sequence[str]) -> float:
        """The same of good evidence, over the clusters of the current step."""
        own = [log_good(self.clusters[c]) for c in clusters if c in self.clusters]
        return log_mean((log_good(self.pooled), log_mean(own))) if own else 0.0

    def begin_step(self, clusters: Sequence[str]) -> MetricEvidence:
        """Opens a start time in the pool and in the clusters that take the step."""
        own = dict(self.clusters)
        for name in clusters:
            own[name] = begin_step(own.get(name, Evidence(starts=())))
        pooled = begin_step(self.pooled) if self.clusters else self.pooled  # the first start is open from the beginning
        return replace(self, pooled=pooled, clusters=own)

    def add(self, cluster: str, inc: Increment, *, good: bool) -> MetricEvidence:
        """Adds one cluster's interval to its own evidence and to the pool."""
        own = {**self.clusters, cluster: add(self.clusters.get(cluster, Evidence()), inc, good=good)}
        return replace(self, pooled=add(self.pooled, inc, good=good), clusters=own)

    def enough_bad(self, rule: Rule) -> bool:
        """Says whether enough bad canary requests were seen for a rollback: few do only if most requests fail."""
        c = self.pooled.counts
        return c.canary_bad >= rule.min_bad_requests or c.canary_bad > 0.5 * c.canary_requests


def overdispersion(splits: Iterable[Counts]) -> float:
    """Estimates phi from an A/A split: two halves of the stable pods in the place of the two arms.

    Args:
        splits: an interval each, one half's counts as canary, the other's as stable.

    Returns:
        phi >= 1; 1 without data. The 20s shrink towards independent requests while there is little data.
    """
    spread, expected = 20.0, 20.0
    for c in splits:
        requests = c.canary_requests + c.stable_requests
        if not c.usable() or requests <= 0.0:
            continue
        bad, q = c.canary_bad + c.stable_bad, c.canary_requests / requests
        spread += (c.canary_bad - q * bad) ** 2
        expected += bad * q * (1.0 - q)
    return max(1.0, spread / expected)


def to_dict(evidence: Evidence) -> dict[str, object]:
    """Turns evidence into JSON values for a status."""
    c = evidence.counts
    return {
        "starts": [list(row) for row in evidence.starts],
        "warm": list(evidence.warm),
        "full": list(evidence.full),
        "rate": list(evidence.rate),
        "ratio": list(evidence.ratio),
        "counts": [c.canary_requests, c.canary_bad, c.stable_requests, c.stable_bad],
    }


def _row(value: object, length: int) -> Row:
    if not isinstance(value, list) or len(value) != length:
        raise ValueError(f"evidence needs a list of {length} numbers")
    row = tuple(float(v) for v in value)
    if not all(math.isfinite(v) for v in row):
        raise ValueError("evidence must be finite")
    return row


def from_dict(data: Mapping[str, object]) -> Evidence:
    """Reads evidence back.

    Raises:
        ValueError: the data is not what `to_dict` wrote.
    """
    starts = data.get("starts")
    if not isinstance(starts, list) or not 0 < len(starts) <= MAX_STARTS:
        raise ValueError(f"evidence needs 1 to {MAX_STARTS} start times")
    return Evidence(
        starts=tuple(_row(r, len(BAD_RATIOS)) for r in starts),
        warm=_row(data.get("warm"), len(BAD_RATIOS)),
        full=_row(data.get("full"), len(BAD_RATIOS)),
        rate=_row(data.get("rate"), len(RATE_FRACTIONS)),
        ratio=_row(data.get("ratio"), len(GOOD_RATIOS)),
        counts=Counts(*_row(data.get("counts"), 4)),
    )
