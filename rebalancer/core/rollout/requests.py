"""Verbs: what somebody asked for, once per request id, acknowledged in the status."""

from __future__ import annotations

import re
from dataclasses import replace

from rebalancer.core.rollout.actions import undo_actions
from rebalancer.core.rollout.decision import Action, Event
from rebalancer.core.rollout.forward import next_step, promote
from rebalancer.core.rollout.model import RESTING, SHARING, Observed, Request, Spec, State, Status, Verb
from rebalancer.core.rollout.moves import Moved, roll_back

_NOTICE = re.compile(r"^\w+ ignored: [^;]*(; )?")
_UNDONE = "the template is put back on request"
Handled = tuple[Status, list[Event], tuple[Action, ...]]


def handle(spec: Spec, status: Status, observed: Observed, now: float) -> Handled:
    """Handles a request that was not handled yet.

    Only `undo` gives actions of its own; it is acknowledged when nothing of it is left to do, so that a controller
    killed in between does it again.
    """
    request = observed.request
    if request is None or not request.id or request.id == status.handled_request:
        return status, [], ()
    if request.verb == "undo":
        return _undo(status, observed, request)
    moved, events = _change(spec, status, observed, request, now)
    if moved == status:
        text = ignored(status, request.verb, _why(status, request.verb))
        # An Event, too: a rollout under way has its next message at once.
        moved, events = replace(status, message=text), [Event("RolloutUpdated", text, warning=True)]
    return replace(moved, handled_request=request.id), events, ()


def ignored(status: Status, verb: Verb, why: str) -> str:
    """Returns the message with a notice before it that a verb had no effect; one notice at a time."""
    before = _NOTICE.sub("", status.message)
    return f"{verb} ignored: {why}" + (f"; {before}" if before else "")


def _why(status: Status, verb: Verb) -> str:
    if verb == "retry":
        return "there is no rolled-back revision to try again"
    if status.state in RESTING:
        return "nothing is under way"
    if status.state is State.ROLLING_BACK:
        return "a rollback is under way"
    if verb == "resume":
        return "spec.paused is true, set it to false" if status.pause == "Spec" else "it is not paused"
    return "it is paused already" if verb == "pause" else f"{status.state.value} ends by itself"


def _change(spec: Spec, status: Status, observed: Observed, request: Request, now: float) -> Moved:
    match request.verb:
        case "abort":
            return _abort(status, now)
        case "pause":
            return _pause(status)
        case "resume":
            return _resume(status)
        case "promote":
            return _promote(spec, status, observed, request, now)
        case _:
            return _retry(status)


def _abort(status: Status, now: float) -> Moved:
    if status.state in RESTING or status.state is State.ROLLING_BACK:
        return status, []
    return roll_back(status, "RolloutAborted", f"revision {status.revision} aborted on request", "aborted", now)


def _pause(status: Status) -> Moved:
    if status.state in RESTING or status.state is State.ROLLING_BACK:
        return status, []
    return replace(status, pause="User", message="paused on request"), [Event("RolloutPaused", "paused on request")]


def _resume(status: Status) -> Moved:
    if not status.pause or status.pause == "Spec":
        return status, []
    # An inconclusive step gets its full time again; missing data its full patience.
    elapsed = 0.0 if status.pause == "Inconclusive" else status.elapsed_s
    text = f"resumed on request (was paused: {status.pause})"
    resumed = replace(status, pause="", elapsed_s=elapsed, no_data_since_s=None, message=text)
    return resumed, [Event("RolloutResumed", text)]


def _promote(spec: Spec, status: Status, observed: Observed, request: Request, now: float) -> Moved:
    if status.state in RESTING or status.state is State.ROLLING_BACK:
        return status, []
    status = replace(status, pause="" if status.pause != "Spec" else status.pause)
    if request.full and (status.state in SHARING or status.state is State.PREFLIGHT):
        return promote(status, now)
    if status.state is State.ANALYSING:
        return next_step(spec, replace(status, message="step skipped on request"), observed, now)
    if status.state is State.BAKING:
        return replace(status, elapsed_s=max(status.elapsed_s, status.here.bake_s)), []
    return status, []


def _retry(status: Status) -> Moved:
    if status.state is not State.ROLLED_BACK or status.revision not in status.aborted:
        return status, []
    text = f"revision {status.revision} may run again on request"
    left = tuple(r for r in status.aborted if r != status.revision)
    return replace(status, aborted=left, message=text, state=State.IDLE), [Event("RolloutRetried", text)]


def _undo(status: Status, observed: Observed, request: Request) -> Handled:
    done = replace(status, handled_request=request.id)
    if status.state not in RESTING:
        return replace(done, message="undo refused: abort the rollout first"), [], ()
    actions = undo_actions(status, observed)
    if actions:
        return replace(status, message=_UNDONE), [Event("RolloutUndone", _UNDONE)], actions
    if status.message != _UNDONE:
        done = replace(done, message="undo: the template stands as it would be put back; nothing was changed")
    return done, [], ()
