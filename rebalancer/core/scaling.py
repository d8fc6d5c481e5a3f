"""From the quantile of the total demand to replicas, with stabilisation and tolerance as in HPA's behavior."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from rebalancer.core.policy import Policy


@dataclass(frozen=True, slots=True)
class ScalingSettings:
    """How calmly replicas follow demand.

    Attributes:
        stabilization_s: a decrease waits until nothing higher was recommended for this long (HPA's default, 300 s).
        up_stabilization_s: an increase goes as far as the lowest recommendation of this long (HPA's default, 0 s).
        tolerance: relative distance from the current number within which nothing changes (HPA's default, 0.1).
        max_drop_ratio: the largest share of a workload's replicas that one cycle takes away.
    """

    stabilization_s: float = 300.0
    up_stabilization_s: float = 0.0
    tolerance: float = 0.1
    max_drop_ratio: float = 0.3


def behaviour(policy: Policy, settings: ScalingSettings) -> ScalingSettings:
    """The settings with what the policy says for itself."""
    down_s = policy.scale_down_stabilization_s
    return replace(
        settings,
        stabilization_s=settings.stabilization_s if down_s is None else down_s,
        up_stabilization_s=policy.scale_up_stabilization_s,
    )


@dataclass(frozen=True, slots=True)
class Wanted:
    """Replicas wanted in total.

    Attributes:
        replicas: the number to place now.
        raw: what demand alone asks for, before bounds, tolerance and stabilisation.
        reason: demand-up, demand-down, below-min, above-max, or empty when nothing changes.
        held: refusal ids that keep the number where it is.
    """

    replicas: int
    raw: int
    reason: str
    held: tuple[str, ...] = ()


TRUSTED_UTILIZATION, REACTIVE_UTILIZATION = 0.9, 0.7
"""How far today's demand may fill a replica: nearly, where a trusted forecast leaves headroom; else as an HPA does."""
CALM_S = 900.0
"""A decrease also leaves room for what is forecast for so long: a replica costs minutes to bring back."""


def planned(policy: Policy, observed: float, lead: float, calm: float, room: float, *, trusted: bool) -> float:
    """Demand to plan for: the forecast's quantile, and never less than what today's demand needs.

    Args:
        policy: target utilisation.
        observed: demand now; finite.
        lead: the quantile's largest demand over the lead time; NaN if unknown.
        calm: the same over at least CALM_S.
        room: demand that today's replicas serve at target; NaN if unknown.
        trusted: whether the forecast may be planned on; else today's demand alone fills replicas to 70 %.

    Returns:
        Demand at target utilisation, finite.
    """
    target = policy.target_utilization
    floor = observed * (target / TRUSTED_UTILIZATION if trusted else max(1.0, target / REACTIVE_UTILIZATION))
    if not math.isfinite(lead):
        return max(floor, observed)
    wanted = max(lead, floor)
    # Below what there is, the farther look counts as well, but it asks for nothing new.
    return max(wanted, min(calm, room)) if wanted < room and calm > wanted else wanted


Recommendations = tuple[tuple[float, int], ...]


def remember(past: Recommendations, now: float, raw: int, settings: ScalingSettings) -> Recommendations:
    """Adds a recommendation and forgets those that are older than the longer stabilisation window."""
    window_s = max(settings.stabilization_s, settings.up_stabilization_s)
    kept = tuple((t, n) for t, n in past if now - t <= window_s)
    # One entry before the window's start proves that the whole window was watched.
    earlier = [entry for entry in past if now - entry[0] > window_s]
    return (*earlier[-1:], *kept, (now, raw))


def wanted(
    policy: Policy,
    demand: float,
    capacity: float,
    current: int,
    past: Recommendations,
    now: float,
    settings: ScalingSettings,
    *,
    may_decrease: bool,
    why_not: str = "demand-partial",
) -> Wanted:
    """Says how many replicas are wanted in total.

    Args:
        policy: bounds.
        demand: the quantile of total demand over the lead time; must be finite.
        capacity: demand one ready replica serves at target; above 0.
        current: replicas wanted at present.
        past: recommendations, `now`'s included.
        now: time.
        settings: stabilisation and tolerance.
        may_decrease: False while demand data is partial, or a cluster that came back is not trusted yet.
        why_not: refusal id where it is False.

    Returns:
        The number, bounded by the policy, with the reason.
    """
    raw = math.ceil(demand / capacity - 1e-9)
    high = policy.max_replicas if policy.max_replicas is not None else math.inf
    bounded = int(min(max(raw, policy.min_replicas), high))
    if current > high:
        # Only down to the maximum: what lies below it is a decrease like any other.
        return Wanted(int(high), raw, "above-max", ("at-max",) if raw > high else ())
    if current < policy.min_replicas:
        return Wanted(max(bounded, policy.min_replicas), raw, "below-min")
    if bounded > current:
        if demand / capacity <= current * (1.0 + settings.tolerance) and bounded - current <= 1:
            return Wanted(current, raw, "")
        return _risen(bounded, raw, current, high, past, now, settings)
    if bounded == current:
        return Wanted(current, raw, "", ("at-max",) if raw > high else ("at-min",) if raw < policy.min_replicas else ())
    if demand / capacity >= current * (1.0 - settings.tolerance):
        return Wanted(current, raw, "")
    if not may_decrease:
        return Wanted(current, raw, "", (why_not,))
    window_watched = any(now - t >= settings.stabilization_s for t, _ in past)
    highest = max((n for t, n in past if now - t <= settings.stabilization_s), default=current)
    floor = max(bounded, min(current, highest))
    if not window_watched or floor >= current:
        return Wanted(current, raw, "", ("stabilising",))
    step = max(1, math.floor(current * settings.max_drop_ratio))
    return Wanted(max(floor, current - step), raw, "demand-down", ("large-drop",) if current - step > floor else ())


def _risen(
    bounded: int, raw: int, current: int, high: float, past: Recommendations, now: float, settings: ScalingSettings
) -> Wanted:
    """An increase, as far as demand has asked for it over the whole window; a cold memory delays nothing."""
    lowest = min((n for t, n in past if now - t < settings.up_stabilization_s), default=bounded)
    replicas = min(bounded, max(current, lowest))
    held = (("at-max",) if raw > high else ()) + (("stabilising",) if replicas < bounded else ())
    return Wanted(replicas, raw, "demand-up" if replicas > current else "", held)
