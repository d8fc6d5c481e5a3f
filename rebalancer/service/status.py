"""What the custom resources' status says after a cycle. Equal status is not written, so it holds no fine times."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

from rebalancer.adapters.kubernetes.hub import sight_status
from rebalancer.core.model import GIB, ClusterState, Plan, Sight, Unknown
from rebalancer.core.reasons import words
from rebalancer.core.sight import Clock

HEARTBEAT_S = 60.0
"""Times in status are rounded down to this, so that a fast cycle does not write the same news each time."""


def _time(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def of_policy(plan: Plan, policy: str, observed_generation: int) -> dict[str, object]:
    """Status of a SchedulingPolicy.

    Args:
        plan: the last plan.
        policy: `namespace/name`.
        observed_generation: of the spec that was planned with.
    """
    items = [i for i in plan.workloads.values() if i.policy == policy]
    names = {i.workload for i in items}
    refusals = [r for r in plan.refusals if r.workload in names]
    first = refusals[0] if refusals else None
    placed = all(i.planned == i.now and i.wanted == sum(i.now.values()) for i in items) and bool(items)
    conditions = [
        {"type": "Placed", "status": "True" if placed else "False",
         "reason": "AsPlanned" if placed else "Working" if items else "NoWorkload",
         "message": f"{len(items)} workload(s)"},
        {"type": "Refused", "status": "True" if first else "False",
         "reason": first.reason.title().replace("-", "") if first else "None",
         "message": words(first.reason) if first else ""},
    ]  # fmt: skip
    workloads = [
        {"workload": i.workload, "wanted": i.wanted, "placement": dict(i.now), "target": dict(i.target),
         "latencyMs": round(i.latency_ms) if math.isfinite(i.latency_ms) else None,
         "refusals": sorted({r.reason for r in refusals if r.workload == i.workload})}
        for i in items
    ]  # fmt: skip
    return {"observedGeneration": observed_generation, "conditions": conditions, "workloads": workloads,
            "lastPlanId": plan.id if any(a.workload in names for a in plan.actions) else ""}  # fmt: skip


def of_cluster(
    state: ClusterState, sight: Sight, clock: Clock, taints: Mapping[str, str], now: float
) -> dict[str, object]:
    """Status of a MemberCluster; `sight` in it is what a restarted controller goes on with."""
    conditions = [
        {"type": kind, "status": "True" if on else "False"}
        for kind, on in (
            ("Ready", sight is Sight.READY), ("Suspect", sight is Sight.SUSPECT), ("Lost", sight is Sight.LOST),
            ("Draining", state.cluster.drain),
        )
    ]  # fmt: skip
    beat = now // HEARTBEAT_S * HEARTBEAT_S
    room: dict[str, object] = {}
    if not isinstance(state.nodes, Unknown):
        room = {"cpu": round(sum(n.free_cpu for n in state.nodes), 1),
                "memoryGib": round(sum(n.free_memory for n in state.nodes) / GIB, 1)}  # fmt: skip
    # While the cluster is in sight its clock is the heartbeat; a loss keeps the exact time.
    kept = replace(clock, seen_s=beat) if sight is Sight.READY else clock
    return {
        "conditions": conditions,
        "version": state.version,
        "room": room,
        "networkQuality": taints.get(state.cluster.name, "good"),
        "message": state.error,
        "heartbeat": _time(beat),
        "sight": sight_status(kept),
    }
