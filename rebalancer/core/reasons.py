"""Every reason to act or to refuse: its id, one sentence, and the next step for the reader.

The ids are stable: they stand in `plan`, `explain`, Events, metrics and docs, all from this table. To add one: add a
row here, use it, and give it a test; the README table is checked against this list.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Reason:
    """A reason id with its words.

    Attributes:
        id: stable kebab-case id.
        kind: `act` for why something is done, `refuse` for why something is not done.
        sentence: what it means.
        next_step: what the reader can do about it; empty for `act`.
    """

    id: str
    kind: Literal["act", "refuse"]
    sentence: str
    next_step: str = ""


_ACT = (
    ("demand-up", "Forecast demand needs more replicas."),
    ("demand-down", "Forecast demand needs fewer replicas, and has for the whole stabilisation window."),
    ("closer-to-users", "The replicas serve the same demand with less traffic-weighted latency."),
    ("cheaper", "The replicas serve the same demand for less money."),
    ("closer-to-data", "The replicas move to the data they read."),
    ("better-weighted", "The weighted sum of latency, data, cost and spread falls."),
    ("drain", "The cluster is to be emptied."),
    ("taint-no-execute", "A NoExecute taint that the policy does not tolerate moves the replicas out."),
    ("residency", "The replicas stand where residency does not allow them."),
    ("spread", "The policy asks for more clusters, more regions or a smaller share in one cluster."),
    ("failover", "The cluster was lost for longer than lostAfter; its share is placed elsewhere."),
    ("below-min", "Fewer replicas than the policy's minimum are wanted now."),
    ("makes-room", "It costs its workload a little, and others gain more by the room that it leaves."),
    ("above-max", "More replicas than the policy's maximum are wanted now."),
    ("continue-move", "A move in flight goes on from where it stands."),
    ("finish-move", "The new replicas are ready; the old ones go."),
    ("move-timed-out", "The new replicas did not become ready in time; the move is undone and the source stays."),
    ("move-cancelled", "Somebody else changed the replicas, or the traffic did not follow; the move is undone."),
)

_REFUSE = (
    ("observe-only", "The controller only observes.", "Start it with --act, or set spec.observeOnly to false."),
    ("paused", "The workload or the cluster is paused.", "Set spec.paused to false."),
    ("freeze", "A freeze window is open: nothing moves and nothing is taken away; growth and failover go on.",
     "Wait for its end, or take it out of spec.windows."),
    ("origin-unknown", "Nobody knows where the demand comes from, so latency can't place it.",
     "Set demand.originLabel, demand.origin: entryCluster or demand.originShares."),
    ("not-steerable", "Steering is none: users would not follow the replicas.",
     "Set spec.steering to external once a load balancer or mesh follows the ready endpoints."),
    ("traffic-did-not-follow", "New replicas of an earlier move got no traffic.",
     "Check the load balancer or mesh, then wait until the replicas get traffic."),
    ("demand-unknown", "There is no demand data for the workload.",
     "Run `rebalancer check`, and name the request counter in demand.query."),
    ("demand-partial", "A part of the demand data is missing, so nothing is decreased because of it.",
     "Bring back the metrics of the clusters named."),
    ("capacity-unknown", "Nobody knows what one replica can serve.",
     "Set spec.capacityPerReplica, or let both CPU and request metrics be seen."),
    ("view-partial", "The view of the cluster is partial, stale or failed; nothing is decreased there.",
     "Run `rebalancer check` to see what is missing."),
    ("cluster-suspect", "The cluster's API was not reached lately; nothing is changed there.",
     "Check the connection to the cluster."),
    ("cluster-lost", "The cluster is lost; its last state stands until it is seen again.",
     "Check the cluster; after failbackAfter it is used again."),
    ("fleet-brake", "Too many clusters are out of sight at once: that is our own fault more likely than theirs.",
     "Check the controller's network and credentials."),
    ("volume-bound", "The pods claim a volume of their cluster, so none is added, moved or taken away there.",
     "Name the clusters where the data is in spec.data.clusters, or keep the workload out of the policy."),
    ("room-unknown", "The room of the cluster is unknown, so nothing new is placed there.",
     "Give the controller list rights on nodes and pods."),
    ("quota-unknown", "The ResourceQuotas of the cluster are unknown, so nothing new is placed there.",
     "Give the controller list rights on resourcequotas."),
    ("quota-full", "The ResourceQuotas of the namespace leave no room in the cluster.", "Raise the quota."),
    ("no-room", "No cluster that is allowed has room for the replicas.",
     "Add nodes, relax residency, or lower the demand of others."),
    ("awaits-room", "The best place is full; replicas of others leave it first, by moves of this cycle or in flight.",
     "Wait; nodes in the cluster would do as well."),
    ("start-limit", "The cluster begins no more replicas in one cycle; the others follow in the next ones.",
     "Wait, or raise spec.capacity.maxStartsPerCycle of the MemberCluster."),
    ("gang-does-not-fit", "The gang fits as a whole in no cluster that is allowed, so none of it is started.",
     "Add nodes to one cluster, or lower gang.minAvailable."),
    ("no-solution", "The solver gave no placement of the workload, so it stays as it is; the others are planned.",
     "Look at the policy's and the clusters' numbers; report it where they are sound."),
    ("rtt-unknown", "No round-trip time to the cluster was measured.", "Run rebalancer-probe in the cluster."),
    ("taint-not-tolerated", "A taint of the cluster is not tolerated.", "Add a toleration, or wait for its end."),
    ("residency-empty", "No cluster fulfils scheduling, propagation and residency together.",
     "Compare the selectors that are named."),
    ("peaks-unknown", "How far demand rises within the slots of its history is not known; its means alone are too low.",
     "See the errors of the cycle; with telemetry.rateWindow as long as historyStep no peaks are asked for."),
    ("at-max", "The policy's maximum is reached.", "Raise replicas.max or perCluster.max."),
    ("at-min", "The policy's minimum is reached.", "Lower replicas.min."),
    ("stabilising", "Demand changed too short a time ago for replicas to follow it.",
     "Wait for the stabilisation window, or shorten it in spec.behavior."),
    ("cool-down", "A move that is worth at least half as much brought replicas to the source, or took some from the "
     "target, a short time ago.", "Wait for the cool-down."),
    ("not-settled", "Replicas that a move brought to the cluster within the last hour are not all ready any more.",
     "Look at the pods' events there; moves to it go on once all of them are ready."),
    ("quarantine", "Several moves of the workload failed in a row, so it makes no voluntary one for six hours.",
     "Look at the pods' events in the targets named, and at how traffic is steered."),
    ("move-budget", "The hourly move budget is used up.", "Raise budget.maxMovesPerHour or wait."),
    ("move-in-flight", "A move of the workload is in flight.", "Wait until it ends."),
    ("disruption-budget", "The disruption budget, a PodDisruptionBudget or too few ready replicas forbid it.",
     "Wait until the replicas are ready."),
    ("gain-too-small", "The gain does not pay for the move.", ""),
    ("hpa-no-traffic-control", "An autoscaler owns the replicas, and its bounds are not ours to set yet.",
     "Remove the autoscaler, or keep the workload out of the policy."),
    ("rollout-in-progress", "A canary rollout owns the workload.", "Wait for its end, or abort it."),
    ("large-drop", "The plan would take away too much of the workload in one cycle.",
     "Look at the demand data; the next cycles go on in steps."),
    ("unschedulable", "The same move ended within the last hour because its replicas did not become ready.",
     "Look at the pods' events there."),
    ("conflict", "The object changed between plan and act.", "Nothing: the next cycle plans again."),
    ("forbidden", "The cluster denied the write.", "Apply the ClusterRole that `rebalancer install rbac` renders."),
    ("unreachable", "The cluster did not answer in time.", "Check the connection to the cluster."),
)  # fmt: skip

REASONS: dict[str, Reason] = {
    **{i: Reason(i, "act", s) for i, s in _ACT},
    **{i: Reason(i, "refuse", s, n) for i, s, n in _REFUSE},
}


def words(reason_id: str) -> str:
    """Returns the sentence of a reason with its next step.

    Raises:
        KeyError: the id is not in the table.
    """
    reason = REASONS[reason_id]
    return f"{reason.sentence} {reason.next_step}".strip()
