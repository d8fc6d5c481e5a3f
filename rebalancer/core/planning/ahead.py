"""How much demand one workload is planned for, from what is seen and what is forecast."""

from __future__ import annotations

import math

from rebalancer.core import forecast as fc
from rebalancer.core import scaling
from rebalancer.core.model import Demand, Forecast
from rebalancer.core.policy import Policy


def look(
    policy: Policy, demand: Demand, forecast: Forecast, row: int | None, lead_s: float, room: float
) -> tuple[float, str]:
    """Looks ahead.

    Args:
        policy: quantile and target.
        demand: what is seen; its total is finite.
        forecast: of all workloads.
        row: of this workload's total; None without a forecast.
        lead_s: how far replicas that begin now are from being ready.
        room: demand that today's replicas serve at target; NaN if unknown.

    Returns:
        The demand to plan for, and a line for the reader.
    """
    lead, calm, told, trusted = math.nan, math.nan, "no forecast", False
    if row is not None:
        lead, calm = (fc.at_quantile(forecast, row, policy.quantile, s) for s in (lead_s, max(lead_s, scaling.CALM_S)))
        trusted = forecast.trusted[row]
        told = forecast.method[row] if trusted else f"not trusted: {forecast.why[row]}"
    burst = _burst(policy, demand)
    planned = scaling.planned(policy, burst * demand.total, burst * lead, burst * calm, room, trusted=trusted)
    return planned, (
        f"demand {demand.total:.4g} {demand.unit} now, {planned:.4g} at quantile {policy.quantile:g} within "
        f"{lead_s:.0f} s ({told})"
    )


def _burst(policy: Policy, demand: Demand) -> float:
    """What the open windows multiply the total demand by, each origin by its share; 1 without them."""
    shares = policy.demand.origin_shares or demand.by_origin
    known = {origin: share for origin, share in shares.items() if share > 0}
    total = sum(known.values())
    if not policy.origin_factors or not total > 0:
        return 1.0
    return sum(share * policy.origin_factors.get(origin, 1.0) for origin, share in known.items()) / total
