"""What has to be done so that the clusters become what the status says. Level-triggered: nothing to do is no action."""

from __future__ import annotations

from rebalancer.core.rollout.decision import Action, DeleteCanary, EnsureCanary, PauseStable, ScaleCanary, SetTemplate
from rebalancer.core.rollout.model import (
    PROMOTED,
    SHARING,
    ClusterSeen,
    ClusterStatus,
    Observed,
    Spec,
    StableSeen,
    State,
    Status,
)
from rebalancer.core.rollout.sight import adoptable, desired, stable_template


def empty_canary(seen: ClusterSeen) -> list[Action]:
    """First no pods, then no Deployment: emptying takes its pods out of the Service at once."""
    canary = seen.canary
    if canary is None or not canary.ours:
        return []
    if canary.wanted > 0:
        return [ScaleCanary(seen.name, 0, canary.resource_version)]
    return [DeleteCanary(seen.name, canary.resource_version)] if canary.pods == 0 else []


def _keep_canary(spec: Spec, status: Status, seen: ClusterSeen, cluster: ClusterStatus) -> list[Action]:
    """The canary has the status' target; without its template nothing is written."""
    canary = seen.canary
    if canary is not None and not canary.ours:
        return []
    if cluster.target == 0:
        return empty_canary(seen)
    if canary is not None and canary.revision == status.revision and canary.wanted == cluster.target:
        return []
    template = seen.templates.get(status.revision)
    wanted = desired(spec, seen, cluster)
    if wanted is not None and wanted[0] == status.revision:
        template = wanted[1]
    if template is None:
        return []
    version = canary.resource_version if canary is not None else ""
    return [EnsureCanary(seen.name, status.revision, template, cluster.target, version)]


def _pause(seen: ClusterSeen, stable: StableSeen) -> list[Action]:
    """Pauses a Deployment whose pods are complete; half-way through a roll it would freeze a mixture."""
    if stable.paused or not adoptable(stable):
        return []
    return [PauseStable(seen.name, stable.resource_version)]


def _promote(spec: Spec, status: Status, seen: ClusterSeen, stable: StableSeen, cluster: ClusterStatus) -> list[Action]:
    if cluster.promoted:
        return _pause(seen, stable)
    if stable.revision == status.revision and not stable.paused:
        return []  # it rolls
    template = seen.templates.get(status.revision)
    wanted = desired(spec, seen, cluster)
    if wanted is not None and wanted[0] == status.revision:
        template = wanted[1]
    if template is None:
        return []
    return [SetTemplate(seen.name, status.revision, template, paused=False, expected=stable.resource_version)]


def _roll_back(status: Status, seen: ClusterSeen, cluster: ClusterStatus) -> list[Action]:
    """Before promotion the canary goes; after it the promoted template comes back first, then the canary goes."""
    stable = seen.stable
    # Somebody may have unpaused the Deployment by hand, and the rejected revision runs where no canary ever was.
    touched = stable is not None and (status.restore or status.revision in stable.pods)
    if not touched or stable is None or not cluster.stable:
        return empty_canary(seen)
    if stable.runs_only(cluster.stable):
        return [*_pause(seen, stable), *empty_canary(seen)]
    if stable.revision == cluster.stable and not stable.paused:
        return []  # it rolls back; the canary keeps its capacity until that is done
    template = stable_template(seen, cluster)
    if template is None:
        return []
    return [SetTemplate(seen.name, cluster.stable, template, paused=False, expected=stable.resource_version)]


def _of_cluster(spec: Spec, status: Status, seen: ClusterSeen, cluster: ClusterStatus) -> list[Action]:
    stable = seen.stable
    if stable is None:
        return empty_canary(seen)
    if status.state is State.ROLLING_BACK:
        return _roll_back(status, seen, cluster)
    if status.state in PROMOTED and seen.name in status.begun:
        return [*_promote(spec, status, seen, stable, cluster), *_keep_canary(spec, status, seen, cluster)]
    out = _pause(seen, stable)
    if status.state in SHARING or status.state is State.PREFLIGHT:
        return [*out, *_keep_canary(spec, status, seen, cluster)]
    return [*out, *empty_canary(seen)]


def actions_for(spec: Spec, status: Status, observed: Observed) -> tuple[Action, ...]:
    """Returns what to do now, cluster by cluster; nothing where the cluster can't be seen."""
    out: list[Action] = []
    for name, seen in sorted(observed.clusters.items()):
        if seen.reachable:
            out += _of_cluster(spec, status, seen, status.clusters.get(name, ClusterStatus()))
    return tuple(out)


def undo_actions(status: Status, observed: Observed) -> tuple[Action, ...]:
    """Puts the promoted template back (after a rollback), or the one before it (after completion), still paused."""
    out: list[Action] = []
    for name, seen in sorted(observed.clusters.items()):
        cluster = status.clusters.get(name, ClusterStatus())
        if not seen.reachable or seen.stable is None or not cluster.stable:
            continue
        back = cluster.previous if status.state is State.COMPLETED else cluster.stable
        template = seen.templates.get(back)
        if back and template is not None and seen.stable.revision != back and seen.stable.paused:
            out.append(SetTemplate(name, back, template, paused=True, expected=seen.stable.resource_version))
    return tuple(out)
