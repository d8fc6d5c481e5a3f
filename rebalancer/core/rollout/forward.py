"""How a rollout moves on by itself, one state at a time."""

from __future__ import annotations

from dataclasses import replace

from rebalancer.core.rollout.decision import Event
from rebalancer.core.rollout.judge import Judgement
from rebalancer.core.rollout.model import ClusterStatus, Observed, Spec, State, Status
from rebalancer.core.rollout.moves import Moved, begin_step, complete, enter, rolled_back
from rebalancer.core.rollout.sight import desired, settled_back, settled_forward

SETTLE_S = 15.0
"""How long a step waits for the first canary request before it is judged without one."""


def _cluster(status: Status, name: str) -> ClusterStatus:
    return status.clusters.get(name, ClusterStatus())


def _stopped_by(status: Status, observed: Observed, judged: Judgement) -> tuple[str, str]:
    """Returns (hold reason, sentence) of what stops the clock; both empty if nothing does."""
    if status.state is State.SCALING_DOWN and not any(c.weight for c in status.clusters.values()):
        return "", ""  # only tidying up is left
    lost = [n for n in status.begun if n in observed.clusters and not observed.clusters[n].reachable]
    if lost:
        return "Unreachable", f"{', '.join(lost)} can't be reached; nothing moves on until it is seen again"
    if judged.gaps:
        return "NoData", f"no data: {'; '.join(judged.gaps[:3])}"
    if status.state in (State.ANALYSING, State.BAKING):
        waiting = [n for n in status.begun if _cluster(status, n).target and _cluster(status, n).ready_since_s is None]
        if waiting:
            return "NotReady", f"canary pods of {', '.join(waiting)} are not all ready"
    return "", ""


def _hold(spec: Spec, status: Status, observed: Observed, judged: Judgement, now: float) -> Moved:
    """Sets or lifts the hold; data that is missing for too long becomes a pause."""
    hold, text = _stopped_by(status, observed, judged)
    since = None if not hold else status.hold_since_s if hold == status.hold else now
    no_data = None
    if hold == "NoData":
        no_data = status.no_data_since_s if status.no_data_since_s is not None else now
    events: list[Event] = []
    if hold and hold != status.hold:
        events.append(Event("RolloutPaused", f"holds: {text}", warning=True))
    status = replace(
        status, hold=hold, hold_since_s=since, no_data_since_s=no_data, message=text if hold else status.message
    )
    overdue = no_data is not None and now - no_data >= spec.no_data_timeout_s
    if overdue and spec.on_no_data == "Pause" and not status.pause:
        status = replace(status, pause="NoData", message=f"paused: {text}, for {spec.no_data_timeout_s:.0f} s")
        events.append(Event("RolloutPaused", status.message, warning=True))
    return status, events


def _spec_pause(spec: Spec, status: Status) -> Status:
    if spec.paused and not status.pause:
        return replace(status, pause="Spec", message="paused: spec.paused is true")
    if not spec.paused and status.pause == "Spec":
        return replace(status, pause="")
    return status


def advance(spec: Spec, status: Status, observed: Observed, judged: Judgement, now: float) -> Moved:
    """Makes at most one transition of an active rollout."""
    if status.state is State.ROLLING_BACK:
        return _rolling_back(status, observed, now)
    if status.state is State.PREFLIGHT and now <= (status.entered_s or now):
        return status, []  # the samples of this tick were read for what ran before
    status, events = _hold(spec, _spec_pause(spec, status), observed, judged, now)
    if status.hold or status.pause:
        return status, events
    moved, more = {
        State.PREFLIGHT: _preflight,
        State.SCALING_CANARY: _scaling,
        State.SHIFTING: _shifting,
        State.ANALYSING: _analysing,
        State.BAKING: _baking,
        State.PROMOTING: _promoting,
        State.SCALING_DOWN: _scaling_down,
    }[status.state](spec, status, observed, judged, now)
    return moved, [*events, *more]


def _blocked(spec: Spec, status: Status, observed: Observed, name: str) -> str:
    """Says why a cluster can't take its first step yet, empty if it can or needs none."""
    cluster, seen = _cluster(status, name), observed.clusters.get(name)
    if seen is None or seen.stable is None or cluster.stable == status.revision:
        return ""
    stable = seen.stable
    if not cluster.stable:
        return cluster.note or "not taken over yet"
    if seen.canary is not None and not seen.canary.ours:
        return f"a Deployment {spec.canary} exists that is not ours"
    if not stable.paused:
        return f"{spec.workload} is not paused yet"
    wanted = desired(spec, seen, cluster)
    if wanted is None:
        return "the promoted template is not found, or spec.images names a container that it lacks"
    if wanted[0] != status.revision:
        return (
            f"{spec.workload} has no template of revision {status.revision} yet (templates must be the same everywhere)"
        )
    if not all(r == cluster.stable for r in stable.pods) or stable.ready.get(cluster.stable, 0) < stable.wanted:
        return f"not all pods of {spec.workload} are ready on revision {cluster.stable}"
    return ""


def _preflight(spec: Spec, status: Status, observed: Observed, judged: Judgement, now: float) -> Moved:
    for name in status.current:
        why = _blocked(spec, status, observed, name)
        if why:
            return replace(status, message=f"preflight: {name}: {why}"), []
    if all(_cluster(status, n).stable in ("", status.revision) for n in status.current):
        return _next_batch(status, now)
    return begin_step(spec, status, observed, 0, now)


def _scaling(spec: Spec, status: Status, observed: Observed, judged: Judgement, now: float) -> Moved:
    waiting = [n for n in status.current if _cluster(status, n).target and _cluster(status, n).ready_since_s is None]
    return (status, []) if waiting else (enter(status, State.SHIFTING, now), [])


def _shifting(spec: Spec, status: Status, observed: Observed, judged: Judgement, now: float) -> Moved:
    if status.entered_s is None or now <= status.entered_s:
        return status, []
    seen = all(
        name in e.clusters and e.clusters[name].counts.canary_requests > 0
        for e in status.evidence.values()
        for name in status.current
        if _cluster(status, name).target
    )
    return (enter(status, State.ANALYSING, now), []) if seen or status.elapsed_s >= SETTLE_S else (status, [])


def _analysing(spec: Spec, status: Status, observed: Observed, judged: Judgement, now: float) -> Moved:
    step = spec.step(status.step)
    at = min(status.step + 1, len(spec.steps))
    text = f"{status.here.wave}: step {at}/{len(spec.steps)}, weight {step.weight}: {judged.text}"
    status = replace(status, message=text)
    if status.entered_s is None or now <= status.entered_s or status.elapsed_s < max(spec.min_step_s, step.pause_s):
        return status, []
    if judged.verdict == "advance":
        if not step.manual:
            return next_step(spec, status, observed, now)
        return replace(status, pause="Step", message=f"waits for promote: {text}"), [Event("RolloutPaused", text)]
    if status.elapsed_s >= max(spec.max_step_s, step.pause_s) and spec.on_inconclusive == "Pause":
        text = f"paused: no verdict within maxStepSeconds ({spec.max_step_s:.0f} s): {text}"
        return replace(status, pause="Inconclusive", message=text), [Event("RolloutPaused", text, warning=True)]
    return status, []


def next_step(spec: Spec, status: Status, observed: Observed, now: float) -> Moved:
    """Goes to the next step of the batch, or lets it bake."""
    done = Event("RolloutStepCompleted", status.message)
    # Steps that were shortened half-way end with their last one all the same, even if the index is beyond it.
    if status.step + 1 < len(spec.steps) or status.step >= len(spec.steps):
        moved, events = begin_step(spec, status, observed, min(status.step + 1, len(spec.steps) - 1), now)
        return moved, [done, *events]
    return enter(status, State.BAKING, now), [done]


def _next_batch(status: Status, now: float) -> Moved:
    if status.batch + 1 < len(status.batches):
        status = replace(status, batch=status.batch + 1, step=0)
        text = f"wave {status.here.wave} begins: {', '.join(status.current)}"
        return replace(enter(status, State.PREFLIGHT, now), message=text), [Event("RolloutUpdated", text)]
    return promote(status, now)


def promote(status: Status, now: float) -> Moved:
    """Lets the new template into the user's Deployments everywhere."""
    text = f"revision {status.revision} is being promoted"
    status = replace(status, batch=max(len(status.batches) - 1, 0), message=text)
    return enter(status, State.PROMOTING, now), [Event("RolloutUpdated", text)]


def _baking(spec: Spec, status: Status, observed: Observed, judged: Judgement, now: float) -> Moved:
    batch = status.here
    status = replace(status, message=f"{batch.wave}: bakes for {batch.bake_s:.0f} s: {judged.text}")
    if status.entered_s is None or now <= status.entered_s or status.elapsed_s < batch.bake_s:
        return status, []
    return _next_batch(status, now)


def _promoting(spec: Spec, status: Status, observed: Observed, judged: Judgement, now: float) -> Moved:
    waiting = [
        n for n in status.begun
        if n in observed.clusters and observed.clusters[n].stable is not None and not _cluster(status, n).promoted
    ]  # fmt: skip
    if waiting:
        return replace(status, message=f"promoting in {', '.join(waiting)}: {judged.text}"), []
    return enter(status, State.SCALING_DOWN, now), []


def _scaling_down(spec: Spec, status: Status, observed: Observed, judged: Judgement, now: float) -> Moved:
    if settled_forward(status, observed):
        return complete(status, now)
    waits = status.elapsed_s < spec.scale_down_delay_s and not _another_wanted(spec, status, observed)
    if waits:
        return replace(status, message=f"promoted; the canary stays for scaleDownDelaySeconds: {judged.text}"), []
    clusters = {n: replace(c, weight=0, target=0) for n, c in status.clusters.items()}
    return replace(status, clusters=clusters, message="promoted; the canary goes"), []


def _another_wanted(spec: Spec, status: Status, observed: Observed) -> bool:
    """Whether the next revision is waiting already, so that the canary of this one need not stay."""
    for name in status.begun:
        seen = observed.clusters.get(name)
        wanted = desired(spec, seen, _cluster(status, name)) if seen is not None and seen.reachable else None
        if wanted is not None and wanted[0] != status.revision:
            return True
    return False


def _rolling_back(status: Status, observed: Observed, now: float) -> Moved:
    if settled_back(status, observed):
        return rolled_back(status, now)
    lost = tuple(n for n in status.begun if n in observed.clusters and not observed.clusters[n].reachable)
    hold = "Unreachable" if lost else ""
    return (replace(status, hold=hold, hold_since_s=now) if hold != status.hold else status), []
