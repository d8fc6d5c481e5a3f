"""What a placement costs, by term."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rebalancer.core.placement import (
    AMORTISATION_H,
    MOVE_DOLLARS,
    REMOVE_DOLLARS,
    SHORTFALL_DOLLARS,
    SPREAD_DOLLARS,
    UNSERVED_DOLLARS,
    Item,
    Placed,
    shortfall,
)
from rebalancer.core.planning.draft import Draft


def terms(item: Item, draft: Draft, placed: Placed) -> dict[str, float]:
    """Cost of a placement in dollars per hour (or equivalents) by term.

    Args:
        item: what the solver was given.
        draft: the workload.
        placed: replicas and traffic.

    Returns:
        latency (with the distance to the data), cost (with data paid per replica), egress, spread (with what is missed
        of the policy's bounds), unserved.
    """
    latency = sum(item.serve.get(k, 0.0) * v for k, v in placed.traffic.items())
    cost = sum(item.run.get(c, 0.0) * n for c, n in placed.replicas.items())
    if draft.origins:
        egress = sum(draft.egress.get(c, 0.0) * v for (_, c), v in placed.traffic.items())
        latency -= egress
    else:
        egress = sum(draft.egress.get(c, 0.0) * n for c, n in placed.replicas.items())
        cost -= egress
    peak = max(placed.replicas.values(), default=0)
    spread = draft.policy.weights.spread * SPREAD_DOLLARS * len(item.clusters) * peak
    spread += SHORTFALL_DOLLARS * shortfall(item, placed.replicas)
    unserved = UNSERVED_DOLLARS * max(0.0, placed.unserved - 1e-6)
    return {"latency": latency, "cost": cost, "egress": egress, "spread": spread, "unserved": unserved}


def mean_ms(draft: Draft, traffic: Mapping[tuple[str, str], float]) -> float:
    """Traffic-weighted latency in ms of what is known; NaN if nothing is."""
    known = {k: v for k, v in traffic.items() if k in draft.distance}
    total = sum(known.values())
    return sum(draft.distance[k] * v for k, v in known.items()) / total if total > 0 else math.nan


def move_dollars(count: int) -> float:
    """What moving replicas costs, in $/h over the time in which a move has to pay."""
    return count * (MOVE_DOLLARS + REMOVE_DOLLARS) / AMORTISATION_H
