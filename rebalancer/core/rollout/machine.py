"""The state machine: decide() looks, judges, moves on, and says what to do.

Precedence: harm > abort > new revision > pause > promote > automatic. Missing data, an unreachable cluster and a pause
stop the clock of a step; none of them rolls back and none of them advances.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rebalancer.core.rollout import release, requests
from rebalancer.core.rollout.actions import actions_for
from rebalancer.core.rollout.decision import Decision, Event
from rebalancer.core.rollout.forward import advance
from rebalancer.core.rollout.judge import Judgement, fold, judge
from rebalancer.core.rollout.model import (
    PROMOTED,
    RESTING,
    SHARING,
    ClusterStatus,
    Observed,
    Sample,
    Spec,
    State,
    Status,
)
from rebalancer.core.rollout.moves import roll_back, start
from rebalancer.core.rollout.sight import dead, desired, look, members
from rebalancer.core.rollout.waves import batches

UNREADY_GRACE_S = 10.0
"""A canary that was ready and has no ready pod for this long is dead."""
MAX_TICK_S = 60.0
"""A longer gap between two ticks counts as this much step time: nobody watched."""
_MAX_MOVES = 8
"""Transitions in one decision; a chain ends by itself, this bounds a mistake."""


def _candidate(spec: Spec, status: Status, observed: Observed) -> str:
    """The new revision that somebody wants: the first cluster of the first wave that has one says it."""
    for batch in batches(spec.waves, members(observed)):
        for name in batch.clusters:
            cluster = status.clusters.get(name, ClusterStatus())
            seen = observed.clusters[name]
            wanted = desired(spec, seen, cluster) if seen.reachable and cluster.stable else None
            if wanted is not None and wanted[0] != cluster.stable:
                return wanted[0]
    return ""


def _tick(spec: Spec, status: Status, now: float) -> Status:
    """Counts the time since the last tick, unless something stopped the clock."""
    status = replace(status, observed_generation=spec.generation, workload=spec.workload)
    if not status.active:
        return replace(status, ticked_s=None)
    since = status.ticked_s if status.ticked_s is not None else now
    counted = 0.0 if status.hold or status.pause else min(max(now - since, 0.0), MAX_TICK_S)
    return replace(status, ticked_s=now, elapsed_s=round(status.elapsed_s + counted, 3))


def _harm(spec: Spec, status: Status, observed: Observed, judged: Judgement, now: float) -> tuple[str, str]:
    """Returns (Argo reason, sentence) of what asks for a rollback, both empty if nothing does."""
    if status.state not in SHARING | PROMOTED:
        return "", ""
    if judged.verdict == "rollback":
        return "AnalysisRunFailed", f"rolled back on evidence: {judged.text}"
    gone = dead(status, observed, now, UNREADY_GRACE_S)
    if gone:
        return "RolloutAborted", f"rolled back: {gone}"
    waiting = (State.SCALING_CANARY, State.SHIFTING, State.PROMOTING)
    if status.state in waiting and status.elapsed_s > spec.progress_deadline_s:
        limit = f"progressDeadlineSeconds ({spec.progress_deadline_s:.0f} s)"
        return "RolloutAborted", f"rolled back: {status.state.value} took longer than {limit}"
    if status.state in SHARING and _unready_for(status) > spec.progress_deadline_s:
        return "RolloutAborted", "rolled back: canary pods were not all ready for longer than progressDeadlineSeconds"
    return "", ""


def _unready_for(status: Status) -> float:
    """Seconds since when a step that was complete lacks canary pods; 0 while it has them or can't be seen."""
    if status.hold != "NotReady" or status.hold_since_s is None or status.ticked_s is None:
        return 0.0
    return status.ticked_s - status.hold_since_s


def _superseded(spec: Spec, status: Status, observed: Observed) -> str:
    """Returns what is wanted instead of the revision under way; empty while it is still wanted."""
    # Once promoted everywhere, another revision waits for the end instead of undoing this one.
    if status.state in RESTING or status.state in (State.ROLLING_BACK, State.SCALING_DOWN):
        return ""
    for name in status.begun:
        seen, cluster = observed.clusters.get(name), status.clusters.get(name)
        if seen is None or cluster is None or not seen.reachable or cluster.stable == "":
            continue
        wanted = desired(spec, seen, cluster)
        if wanted is not None and wanted[0] not in (status.revision, _tolerated(status, cluster)):
            return wanted[0]
    return ""


def _tolerated(status: Status, cluster: ClusterStatus) -> str:
    """A cluster whose template has not been edited yet still wants its stable revision; a batch waits for that.

    Once the cluster lets the new revision in, going back to stable is a wish.
    """
    return cluster.stable if status.state is State.PREFLIGHT and cluster.weight == 0 else ""


def _nowhere(spec: Spec, status: Status, observed: Observed) -> Status:
    """Says that every cluster was seen and none has the Deployment; a typing mistake looks like peace otherwise."""
    text = f"there is no Deployment {spec.workload} in any cluster"
    if observed.clusters and all(seen.reachable and seen.stable is None for seen in observed.clusters.values()):
        return replace(status, message=text)
    return replace(status, message="") if status.message == text else status


def _begin(spec: Spec, status: Status, observed: Observed, now: float) -> tuple[Status, list[Event]]:
    """At rest: starts a revision that is wanted, unless it was aborted."""
    wanted = _candidate(spec, status, observed)
    if not wanted:
        # Where we put the promoted template back ourselves, that nothing else is wanted is no sign of peace.
        ours = status.restore and not spec.images
        if status.state is State.ROLLED_BACK and not ours:
            return replace(status, state=State.IDLE, message="", hold=""), []
        return _nowhere(spec, status, observed), []
    if wanted in status.aborted:
        if status.revision == wanted and status.message:
            return status, []
        text = f"revision {wanted} was rolled back before and stays out; `retry` tries it again"
        return replace(status, state=State.ROLLED_BACK, revision=wanted, message=text), []
    if spec.paused:
        text = f"revision {wanted} waits: spec.paused is true"
        return (status, []) if status.message == text else (replace(status, message=text), [])
    return start(spec, status, wanted, batches(spec.waves, members(observed)), now)


def _interrupt(
    spec: Spec, status: Status, observed: Observed, judged: Judgement, now: float
) -> tuple[Status, list[Event]]:
    """What stops a rollout: harm, then another revision."""
    reason, text = _harm(spec, status, observed, judged, now)
    if reason:
        return roll_back(status, reason, text, "rolled_back", now)
    other = _superseded(spec, status, observed)
    if other:
        text = f"revision {status.revision} is no longer wanted: {other} is"
        return roll_back(status, "RolloutUpdated", text, "superseded", now)
    return status, []


def decide(spec: Spec, status: Status, observed: Observed, samples: Sequence[Sample], now: float) -> Decision:
    """One tick of a rollout: a pure function, safe to repeat and to replay.

    Args:
        spec: what is wanted.
        status: what was stored last; the only memory.
        observed: every declared cluster as seen now.
        samples: new counts; those that the status has already are left out.
        now: Unix seconds.

    Returns:
        The decision. With `act_first` the actions go before the status is written, else after it.
    """
    status = fold(spec, look(spec, _tick(spec, status, now), observed, now), observed, samples, now)
    judged = judge(spec, status, samples)
    status, events = _interrupt(spec, status, observed, judged, now)
    if observed.deleting:
        status, more = release.stop(status, now)
        events += more
        if status.state in RESTING:
            return release.release(status, observed, events)
    status, more, extra = requests.handle(spec, status, observed, now)
    events += more
    for _ in range(_MAX_MOVES):
        old = status
        if status.state in RESTING and observed.deleting:
            break  # the next tick gives the Deployments back
        if status.state in RESTING:
            status, more = _begin(spec, status, observed, now)
        else:
            status, more = advance(spec, status, observed, judge(spec, status, samples), now)
        events += more
        status = look(spec, status, observed, now)
        if status == old:
            break
    actions = actions_for(spec, status, observed)
    taken = {a.cluster for a in extra}
    actions = (*extra, *(a for a in actions if a.cluster not in taken))
    return Decision(status, actions, tuple(events), act_first=status.state is State.ROLLING_BACK)
