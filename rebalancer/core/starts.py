"""How long new replicas take from created to ready, as measured: it sets how far ahead demand has to be known."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rebalancer.core.model import Placement
from rebalancer.core.policy import Policy

Starts = tuple[tuple[str, float, float], ...]
"""(cluster, when it became ready, seconds from created to ready), oldest first."""
KEEP = 50
MIN_STARTS = 3
QUANTILE = 0.95
UNKNOWN_LEAD_S = 300.0
"""Until enough starts were seen: two cycles and a slow image pull."""
BESIDE_S = 120.0
"""What passes beside the start itself: the age of the metrics, and the wait for the next cycle."""
MAX_LEAD_S = 7200.0


def remember(past: Starts, placements: Mapping[str, Placement]) -> Starts:
    """Adds the starts of the replicas that are there now; the newest KEEP remain.

    A replica that becomes ready again after a failed probe counts as started once more, so what is kept for the same
    replica can only grow: the lead gets longer, never too short.
    """
    seen = {(c, ready_s, delay_s) for c, p in placements.items() for ready_s, delay_s in p.starts}
    return tuple(sorted({*past, *seen}, key=lambda one: (one[1], one[0], one[2]))[-KEEP:])


def delay_s(starts: Starts) -> float:
    """The 95th percentile of the start delay in s; NaN while fewer than MIN_STARTS were seen."""
    if len(starts) < MIN_STARTS:
        return math.nan
    ordered = sorted(delay for _, _, delay in starts)
    return ordered[min(len(ordered) - 1, math.ceil(QUANTILE * len(ordered)) - 1)]


def lead_s(policy: Policy, starts: Starts) -> float:
    """How far ahead demand is looked at: what the policy says, else the measured start delay and what passes beside."""
    if policy.lead_s is not None:
        return policy.lead_s
    measured = delay_s(starts)
    return UNKNOWN_LEAD_S if math.isnan(measured) else min(MAX_LEAD_S, measured + BESIDE_S)
