"""Windows of time that come again and again: when one is open, and what it changes of a policy or a price.

A window begins when its cron schedule fires in its time zone and stays open for its duration of real time. At the
change of the clocks it follows cron: a start in the hour that is skipped happens right after it, one in the hour that
comes twice happens once, the first time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from cronsim import CronSim

from rebalancer.core.model import Price, PriceWindow, Window
from rebalancer.core.policy import Policy

_BEFORE_S = 3 * 3600.0


def is_open(window: Window, now: float) -> bool:
    """Says whether the window is open at a time (Unix seconds); its last moment is no part of it."""
    oldest = now - window.duration_s
    # From well before: a search that begins in the second of two like hours finds a start there as well.
    for start in CronSim(window.schedule, datetime.fromtimestamp(oldest - _BEFORE_S, window.zone)):
        if start.timestamp() > oldest:
            return start.timestamp() <= now
    return False


def in_force(policy: Policy, now: float) -> Policy:
    """Returns the policy with what its open windows change; of two that change the same, the later in the list wins."""
    for one in policy.windows:
        if not is_open(one.window, now):
            continue
        policy = replace(
            policy,
            weights=one.weights or policy.weights,
            strategy=one.strategy or policy.strategy,
            min_replicas=one.min_replicas if one.min_replicas is not None else policy.min_replicas,
            frozen=policy.frozen or one.freeze,
            origin_factors={**policy.origin_factors, **one.origin_factors},
            open_windows=(*policy.open_windows, f"{one.window.schedule} {one.window.zone}"),
        )
    return policy


def price_at(price: Price, windows: Iterable[PriceWindow], now: float) -> Price:
    """Returns the price with the factors of all windows that are open; what is unknown stays unknown."""
    factor = math.prod(one.factor for one in windows if is_open(one.window, now))

    def scaled(value: float | None) -> float | None:
        return None if value is None else value * factor

    # What leaves the cluster is billed by the byte, at any hour.
    return Price(scaled(price.cpu_core_hour), scaled(price.memory_gib_hour), price.egress_gib)
