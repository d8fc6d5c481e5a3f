"""Folds samples into the evidence, and says what the evidence means."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rebalancer.core.evidence import Evidence, MetricEvidence, Rule, increment, log_mean
from rebalancer.core.rollout.model import PROMOTED, SHARING, ClusterStatus, Observed, Sample, Spec, State, Status

Verdict = Literal["advance", "hold", "rollback"]


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the evidence says now.

    Attributes:
        log_bad, log_good: natural logs; NaN where no metric is judged.
        gaps: one sentence per cluster and metric without usable data.
        text: the numbers of the most telling metric.
    """

    verdict: Verdict
    log_bad: float
    log_good: float
    gaps: tuple[str, ...]
    text: str


def _is_warm(spec: Spec, status: Status, cluster: ClusterStatus, now: float) -> bool:
    """Whether a part of the new pods is younger than the warm-up.

    While promotion rolls the user's Deployment there always is; during the warm-up after it as well.
    """
    if status.state is State.PROMOTING or cluster.ready_since_s is None:
        return True
    if status.state is State.SCALING_DOWN and status.elapsed_s < spec.warmup_s:
        return True
    return now - cluster.ready_since_s < spec.warmup_s


def _is_full(observed: Observed, status: Status, name: str) -> bool:
    """Whether only new pods are left: seen by their owner, never inferred from a counter that is missing."""
    seen = observed.clusters.get(name)
    if status.state not in PROMOTED or seen is None or not seen.reachable or seen.stable is None:
        return False
    return seen.stable.settled and not any(n for r, n in seen.stable.pods.items() if r != status.revision)


def fold(spec: Spec, status: Status, observed: Observed, samples: Sequence[Sample], now: float) -> Status:
    """Adds samples to the evidence; one that does not follow the last counted interval is left out.

    Samples that were counted already, or that belong to a status that was never stored, change nothing: that makes
    a tick that was killed half-way harmless.
    """
    if not status.active or status.started_s == now:
        return status  # what was read before the begin belongs to nothing
    rules = {m.name: m.rule for m in spec.metrics}
    evidence, sampled = dict(status.evidence), dict(status.sampled_s)
    bad_since = status.bad_since_s
    judged = status.state in SHARING | PROMOTED
    for s in samples:
        key = f"{s.cluster}/{s.metric}"
        if s.metric not in rules or s.gap or sampled.get(key) != s.after_s or s.until_s == s.after_s:
            continue
        sampled[key] = s.until_s
        if s.after_s is None:
            continue
        current = evidence.get(s.metric, MetricEvidence(fleet=sum(len(b.clusters) for b in status.batches)))
        before = current.clusters.get(s.cluster, Evidence()).counts
        cluster = status.clusters.get(s.cluster, ClusterStatus())
        warm, full = _is_warm(spec, status, cluster, now), _is_full(observed, status, s.cluster)
        inc = increment(rules[s.metric], before, s.counts, warm=warm, full=full)
        if inc is None:
            continue
        good = judged and (s.cluster in status.current or status.state in PROMOTED)
        evidence[s.metric] = current.add(s.cluster, inc, good=good)
        if s.counts.canary_bad > 0 and bad_since is None:
            bad_since = s.until_s
    status = replace(status, evidence=evidence, sampled_s=sampled, bad_since_s=bad_since)
    if bad_since is not None and status.state is not State.ROLLING_BACK and log_bad(status.evidence) <= 0.0:
        status = replace(status, bad_since_s=None)
    return status


def log_bad(evidence: Mapping[str, MetricEvidence]) -> float:
    """Log of the mean E_bad over the metrics; 0 without any."""
    return log_mean([e.log_bad() for e in evidence.values()]) if evidence else 0.0


def gaps(spec: Spec, status: Status, samples: Sequence[Sample], clusters: Sequence[str]) -> tuple[str, ...]:
    """Says what data is missing in these clusters; a sample that was not taken is missing as well."""
    out: list[str] = []
    by_key = {(s.cluster, s.metric): s for s in samples}
    for metric in spec.metrics:
        for cluster in clusters:
            found = by_key.get((cluster, metric.name))
            if found is None:
                if f"{cluster}/{metric.name}" not in status.sampled_s:
                    out.append(f"{cluster}: {metric.name} was not read")
            elif found.gap:
                out.append(f"{cluster}: {metric.name}: {found.gap}")
    return tuple(out)


def _numbers(name: str, current: MetricEvidence, good: float) -> str:
    worst = max(current.clusters, key=lambda c: current.clusters[c].counts.canary_bad, default="")
    c = current.pooled.counts
    at = ""
    if worst:
        w = current.clusters[worst].counts
        at = f"; most in {worst}: {w.canary_bad:.0f} of {w.canary_requests:.0f}"
    return (
        f"{name}: canary {c.canary_bad:.0f} bad of {c.canary_requests:.0f}, "
        f"stable {c.stable_bad:.0f} of {c.stable_requests:.0f}{at}; "
        f"E_bad {_short(current.log_bad())}, E_good {_short(good)}"
    )


def _short(log_value: float) -> str:
    """An e-value for people; large ones as powers of ten."""
    return f"{math.exp(log_value):.2g}" if abs(log_value) < 12 else f"1e{log_value / math.log(10):.0f}"


def judge(spec: Spec, status: Status, samples: Sequence[Sample]) -> Judgement:
    """Turns the evidence into a verdict. Missing data is a hold at most, whatever the reason."""
    missing = gaps(spec, status, samples, status.begun)
    rules: Mapping[str, Rule] = {m.name: m.rule for m in spec.metrics}
    known = {name: e for name, e in status.evidence.items() if name in rules}
    if not known:
        if spec.metrics:
            return Judgement("hold", math.nan, math.nan, missing, "no requests were counted yet")
        return Judgement("advance", math.nan, math.nan, missing, "no metrics: pods and time only")
    worst = max(known, key=lambda name: known[name].log_bad())
    goods = {name: known[name].log_good(status.current) for name in known}
    bad, good = log_bad(known), min(goods.values())
    text = _numbers(worst, known[worst], goods[worst])
    rule = rules[worst]
    verdict: Verdict = "hold"
    if bad >= -math.log(rule.false_rollback_rate) and known[worst].enough_bad(rule):
        verdict = "rollback"
    elif (
        len(known) == len(rules)
        and not missing
        and all(goods[name] >= -math.log(1.0 - rules[name].confidence) for name in goods)
    ):
        verdict = "advance"
    return Judgement(verdict, bad, good, missing, text)
