"""Scenes of the planner: many workloads at once, one workload in a calm fleet, and what a plan starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from rebalancer.core.forecast import DEFAULT_QUANTILES
from rebalancer.core.model import TOTAL, ClusterState, Demand, Forecast, Placement, Plan, SetReplicas, View
from rebalancer.core.planning import PlanMemory, PlanSettings, planning
from rebalancer.core.policy import DemandSpec, Policy
from rebalancer.core.sight import Clock
from tests.unit.core.fleet import NOW, POLICY, REGIONS, WEB, cluster_state, placement, plan, snapshot

CALM = PlanMemory(
    clocks={c: Clock(NOW, NOW - 86_400) for c in REGIONS}, recommendations={WEB: ((NOW - 700, 1), (NOW - 200, 1))}
)
CPU = replace(POLICY, demand=DemandSpec(), strategy="CostOptimized", max_moves_per_hour="100%", min_replicas=0)


def many(
    workloads: Mapping[str, Mapping[str, int]], wanted: Mapping[str, int], states: Mapping[str, ClusterState],
    *, kernels: bool = False, policies: Mapping[str, Policy] | None = None,
    allowed: Mapping[str, frozenset[str]] | None = None, cores: Mapping[str, float] | None = None,
) -> Plan:  # fmt: skip
    """Plans workloads of one core each; `wanted` replicas by demand of one unit each.

    Args:
        workloads: cluster -> replicas, by workload.
        wanted: by workload.
        states: clusters.
        kernels: see `PlanSettings`.
        policies: by workload; others have the plain one.
        allowed: workload -> clusters that its propagation lets it into.
        cores: of one replica, by workload.
    """
    base = snapshot(dict.fromkeys(states, 0), {}, states=states)
    plain = replace(CPU, capacity_per_replica=1.0)
    own = {w: replace((policies or {}).get(w, plain), name=w.replace("/", "-")) for w in workloads}
    placements = {
        w: {
            c: replace(placement(c, found.get(c, 0)), workload=w, cpu=(cores or {}).get(w, 1.0), memory=0.0)
            for c in states
        }
        for w, found in workloads.items()
    }
    demand = {w: Demand("requests/s", float(n), as_of_s=NOW) for w, n in wanted.items()}
    seen = replace(base, clusters=dict(states), views={c: View("complete", NOW) for c in states},
                   placements=placements, demand=demand, policies={w: p.key for w, p in own.items()},
                   allowed=allowed or {})  # fmt: skip
    keys = tuple((w, TOTAL) for w in workloads)
    bands = np.array([[[float(wanted[w])] * len(DEFAULT_QUANTILES)] * 2 for w in workloads])
    forecast = Forecast(NOW, np.array([300.0, 600.0]), np.array(DEFAULT_QUANTILES), keys, bands, (True,) * len(keys),
                        np.zeros(len(keys)), ("mixture",) * len(keys))  # fmt: skip
    memory = replace(CALM, recommendations=dict.fromkeys(workloads, ((NOW - 700, 1), (NOW - 200, 1))))
    return planning(seen, forecast, {p.key: p for p in own.values()}, memory, PlanSettings(kernels=kernels))[0]


def started(found: Plan) -> dict[str, int]:
    """Replicas that begin, by cluster."""
    result: dict[str, int] = {}
    for action in found.actions:
        for step in action.steps:
            if isinstance(step, SetReplicas) and step.replicas > step.expected:
                result[step.cluster] = result.get(step.cluster, 0) + step.replicas - step.expected
    return result


def room(**cores: float) -> dict[str, ClusterState]:
    return {c.replace("_", "-"): cluster_state(c.replace("_", "-"), room_cpu=n, reserve_ratio=0.0)
            for c, n in cores.items()}  # fmt: skip


def one(
    replicas: Mapping[str, int | Placement], load: Mapping[str, float], policy: Policy = POLICY, **scene: object
) -> Plan:
    return plan(snapshot(replicas, load, **scene), load, policy, CALM)[0]  # type: ignore[arg-type]  # keywords of a table
