"""The transitions that several rules use: start, begin a step, roll back, complete."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from rebalancer.core.evidence import MetricEvidence
from rebalancer.core.rollout.decision import Event
from rebalancer.core.rollout.model import PROMOTED, Batch, ClusterStatus, Observed, Spec, State, Status
from rebalancer.core.rollout.waves import canary_replicas

_ABORTED_KEPT = 10

Moved = tuple[Status, list[Event]]


def enter(status: Status, state: State, now: float) -> Status:
    """Goes to a state with its clock at 0."""
    return replace(status, state=state, entered_s=now, elapsed_s=0.0, hold="", hold_since_s=None)


def _fresh(cluster: ClusterStatus) -> ClusterStatus:
    return replace(
        cluster, weight=0, target=0, ready_since_s=None, was_ready=False, unready_since_s=None, promoted=False
    )


def start(spec: Spec, status: Status, revision: str, batches: tuple[Batch, ...], now: float) -> Moved:
    """Begins a revision with fresh evidence; waves are fixed from here on."""
    attempt = status.attempt + 1 if status.revision == revision else 1
    fresh = Status(
        revision=revision,
        attempt=attempt,
        batches=batches,
        started_s=now,
        ticked_s=now,
        aborted=status.aborted,
        clusters={name: _fresh(c) for name, c in status.clusters.items()},
        handled_request=status.handled_request,
        observed_generation=status.observed_generation,
        workload=status.workload,
    )
    text = f"revision {revision} begins in {len(batches)} batches, attempt {attempt}"
    return replace(enter(fresh, State.PREFLIGHT, now), message=text), [Event("RolloutUpdated", text)]


def begin_step(spec: Spec, status: Status, observed: Observed, step: int, now: float) -> Moved:
    """Sets the weight and targets of a step in the clusters of the batch, and opens its evidence."""
    weight = spec.step(step).weight
    clusters: dict[str, ClusterStatus] = dict(status.clusters)
    takers: list[str] = []
    for name in status.current:
        seen, cluster = observed.clusters.get(name), clusters.get(name)
        if seen is None or seen.stable is None or cluster is None or cluster.stable in ("", status.revision):
            continue
        target = canary_replicas(seen.stable.wanted, weight)
        since = cluster.ready_since_s if target <= cluster.target else None
        clusters[name] = replace(cluster, weight=weight, target=target, ready_since_s=since)
        takers.append(name)
    fleet = sum(len(b.clusters) for b in status.batches)
    evidence: Mapping[str, MetricEvidence] = {
        m.name: status.evidence.get(m.name, MetricEvidence(fleet=fleet)).begin_step(takers) for m in spec.metrics
    }
    status = replace(status, clusters=clusters, evidence=evidence, step=step)
    text = f"{status.here.wave}: step {step + 1}/{len(spec.steps)}, weight {weight} in {', '.join(takers)}"
    return replace(enter(status, State.SCALING_CANARY, now), message=text), [Event("TrafficWeightUpdated", text)]


def roll_back(
    status: Status, reason: str, text: str, outcome: Literal["rolled_back", "aborted", "superseded"], now: float
) -> Moved:
    """Takes the canary out of all clusters; one that was aborted stays out until `retry`."""
    aborted = status.aborted
    if outcome != "superseded" and status.revision not in aborted:
        aborted = (*aborted, status.revision)[-_ABORTED_KEPT:]
    status = replace(
        enter(status, State.ROLLING_BACK, now),
        restore=status.restore or status.state in PROMOTED,
        pause="",
        message=text,
        outcome=outcome,
        aborted=aborted,
        no_data_since_s=None,
        clusters={name: _fresh(c) for name, c in status.clusters.items()},
    )
    return status, [Event(reason, text, warning=outcome != "superseded")]


def complete(status: Status, now: float) -> Moved:
    """Makes the new revision the stable one."""
    clusters = dict(status.clusters)
    for name in status.begun:
        c = clusters.get(name)
        if c is not None and c.stable and c.stable != status.revision:
            clusters[name] = replace(_fresh(c), previous=c.stable, stable=status.revision)
    text = f"revision {status.revision} is promoted in {', '.join(status.begun)}"
    status = replace(
        enter(status, State.COMPLETED, now), clusters=clusters, message=text, outcome="completed", ended_s=now,
        ticked_s=None, restore=False, evidence={}, sampled_s={}, bad_since_s=None, no_data_since_s=None,
    )  # fmt: skip
    return status, [Event("RolloutCompleted", text)]


def rolled_back(status: Status, now: float) -> Moved:
    """Ends a rollback; after a superseded revision the next one may begin at once."""
    superseded = status.outcome == "superseded"
    state = State.IDLE if superseded else State.ROLLED_BACK
    text = status.message + (" (traffic is back on the promoted revision)" if not superseded else "")
    status = replace(
        enter(status, state, now), message=text, ended_s=now, ticked_s=None, restore=status.restore and not superseded,
        evidence={}, sampled_s={},
    )  # fmt: skip
    return status, [Event("RolloutAborted", text, warning=not superseded)]
