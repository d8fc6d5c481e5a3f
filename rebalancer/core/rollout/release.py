"""A deleted rollout: it is rolled back, gives the Deployments back as they run, and only then goes."""

from __future__ import annotations

from dataclasses import replace

from rebalancer.core.rollout.actions import empty_canary
from rebalancer.core.rollout.decision import Action, Decision, Event, ReleaseStable
from rebalancer.core.rollout.model import RESTING, ClusterSeen, ClusterStatus, Observed, Status
from rebalancer.core.rollout.moves import Moved, roll_back
from rebalancer.core.rollout.sight import stable_template


def stop(status: Status, now: float) -> Moved:
    """Deleting a rollout under way is aborting it."""
    if status.state in RESTING or status.outcome:
        return status, []
    return roll_back(status, "RolloutAborted", f"revision {status.revision}: the rollout was deleted", "aborted", now)


def _of_cluster(seen: ClusterSeen, cluster: ClusterStatus) -> tuple[list[Action], str]:
    """Returns what is to be done in a cluster, and why it has to wait if nothing can be."""
    if not seen.reachable:
        return [], f"{seen.name} can't be reached"
    if seen.canary is not None and seen.canary.ours:
        return empty_canary(seen), ""
    stable = seen.stable
    if stable is None or not stable.held:
        return [], ""
    # Unpaused with another template, a revision that nobody checked would roll out at once.
    if cluster.stable and stable.revision != cluster.stable:
        template = stable_template(seen, cluster)
        if template is None:
            return [], f"{seen.name}: the template of {cluster.stable}, which runs, is nowhere to be found; put it back"
        return [ReleaseStable(seen.name, template, stable.resource_version)], ""
    return [ReleaseStable(seen.name, None, stable.resource_version)], ""


def release(status: Status, observed: Observed, events: list[Event]) -> Decision:
    """Takes the rollout's traces out of every cluster.

    Args:
        status: of a rollout at rest.
        observed: all clusters.
        events: told with it.

    Returns:
        A decision that is `released` when nothing is left to do anywhere.
    """
    actions: list[Action] = []
    waits: list[str] = []
    for name, seen in sorted(observed.clusters.items()):
        mine, why = _of_cluster(seen, status.clusters.get(name, ClusterStatus()))
        actions += mine
        waits += [why] if why else []
    text = f"deleted; waits: {'; '.join(waits)}" if waits else "deleted; the Deployments are given back"
    status = replace(status, message=text)
    return Decision(status, tuple(actions), tuple(events), released=not actions and not waits)
