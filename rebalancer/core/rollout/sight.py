"""What is seen of the clusters goes into the status: adoption, readiness, actual weight, targets that follow stable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rebalancer.core.rollout.model import (
    PROMOTED,
    SHARING,
    CanarySeen,
    ClusterSeen,
    ClusterStatus,
    Observed,
    Spec,
    StableSeen,
    Status,
    Template,
)
from rebalancer.core.rollout.revision import missing_containers, revision_of, with_images
from rebalancer.core.rollout.waves import actual_weight, batches, canary_replicas

_NO_WAVE = "stands in no wave and keeps the old revision, paused; a last wave without a selector takes all the rest"


def stable_template(seen: ClusterSeen, cluster: ClusterStatus) -> Template | None:
    """Returns the promoted template, wherever it is still found; None if nowhere."""
    if seen.stable is not None and seen.stable.revision == cluster.stable:
        return seen.stable.template
    return seen.templates.get(cluster.stable)


def desired(spec: Spec, seen: ClusterSeen, cluster: ClusterStatus) -> tuple[str, Template] | None:
    """Returns the revision and template that somebody wants in this cluster; None while that is not known."""
    if seen.stable is None:
        return None
    if not spec.images:
        return seen.stable.revision, seen.stable.template
    base = stable_template(seen, cluster)
    if base is None or missing_containers(base, spec.images):
        return None
    template = with_images(base, spec.images)
    return revision_of(template), template


def adoptable(stable: StableSeen) -> str:
    """Returns the one revision whose pods are all there and ready, empty while there is none.

    A Deployment that was created paused has no pods at all: there is nothing to compare a canary with.
    """
    if stable.wanted == 0:
        return stable.revision if not stable.pods and stable.settled else ""
    running = [r for r, n in stable.pods.items() if n > 0]
    if len(running) != 1 or not stable.settled or stable.ready.get(running[0], 0) < stable.wanted:
        return ""
    # Unpaused with another template, its next ReplicaSet is about to appear.
    return running[0] if stable.paused or stable.revision == running[0] else ""


def _why_not_adopted(spec: Spec, seen: ClusterSeen) -> str:
    stable = seen.stable
    if stable is None:
        return f"there is no Deployment {spec.workload}"
    if not stable.pods and stable.paused:
        return f"{spec.workload} was created paused and so has no pods: unpause it once, then it is adopted"
    return f"{spec.workload} is taken over when all its pods run one revision and are ready"


def _canary_ready(canary: CanarySeen | None, revision: str) -> int:
    return canary.ready if canary is not None and canary.ours and canary.revision == revision else 0


def _weights(status: Status, seen: ClusterSeen) -> float | None:
    """Share of ready pods with the new revision, wherever they run."""
    if not status.revision or seen.stable is None:
        return None
    new = _canary_ready(seen.canary, status.revision) + seen.stable.ready.get(status.revision, 0)
    old = sum(n for r, n in seen.stable.ready.items() if r != status.revision)
    return actual_weight(new, old)


def _readiness(cluster: ClusterStatus, seen: ClusterSeen, revision: str, now: float) -> ClusterStatus:
    ready = _canary_ready(seen.canary, revision)
    full = cluster.target > 0 and ready >= cluster.target
    ready_since = (cluster.ready_since_s if cluster.ready_since_s is not None else now) if full else None
    was_ready = cluster.target > 0 and (full or cluster.was_ready)
    gone = was_ready and ready == 0
    unready_since = (cluster.unready_since_s if cluster.unready_since_s is not None else now) if gone else None
    return replace(cluster, ready_since_s=ready_since, unready_since_s=unready_since, was_ready=was_ready)


def _look(spec: Spec, status: Status, name: str, seen: ClusterSeen, now: float) -> ClusterStatus:
    """Updates one cluster's status from what is seen there; keeps the last known where nothing is."""
    cluster = status.clusters.get(name, ClusterStatus())
    if not seen.reachable:
        return replace(cluster, reachable=False, note=f"unreachable: {seen.error}" if seen.error else "unreachable")
    cluster = replace(cluster, reachable=True, note="", actual_weight=_weights(status, seen))
    if seen.stable is None:
        return replace(cluster, weight=0, target=0, note=_why_not_adopted(spec, seen))
    if not status.active:
        found = adoptable(seen.stable)
        if seen.stable.wanted == 0 and cluster.stable:
            return cluster  # without pods the template says nothing about what ran last
        if found in status.aborted and found != cluster.stable:
            cluster = replace(cluster, note=f"runs the rejected revision {found}; put the promoted template back")
        elif found and found != cluster.stable:
            cluster = replace(cluster, stable=found)
        elif not found:
            cluster = replace(cluster, note=_why_not_adopted(spec, seen) if not cluster.stable else "")
        missing = missing_containers(seen.stable.template, spec.images)
        if missing:
            cluster = replace(
                cluster, note=f"spec.images names containers that {spec.workload} lacks: {', '.join(missing)}"
            )
        return cluster
    if not cluster.stable and cluster.weight == 0:
        cluster = replace(cluster, stable=adoptable(seen.stable), note=_why_not_adopted(spec, seen))
    if seen.canary is not None and not seen.canary.ours:
        cluster = replace(cluster, note=f"a Deployment {spec.canary} exists that is not ours")
    if status.state in SHARING or status.state in PROMOTED:
        if cluster.weight > 0:
            cluster = replace(cluster, target=canary_replicas(seen.stable.wanted, cluster.weight))
        cluster = _readiness(cluster, seen, status.revision, now)
    if status.state in PROMOTED:
        # Without pods only the template tells; once promoted, a template that is edited again waits its turn.
        here = seen.stable.revision == status.revision or cluster.promoted
        cluster = replace(cluster, promoted=here and seen.stable.runs_only(status.revision))
    return cluster


def members(observed: Observed) -> Mapping[str, Mapping[str, str]]:
    """Labels of the clusters that have the workload, or may have it because they can't be seen."""
    return {
        name: observed.labels.get(name, {})
        for name, seen in sorted(observed.clusters.items())
        if not seen.reachable or seen.stable is not None
    }


def look(spec: Spec, status: Status, observed: Observed, now: float) -> Status:
    """Returns the status with every declared cluster as it is seen now; undeclared ones are forgotten."""
    there = members(observed)
    waved = {name for batch in batches(spec.waves, there) for name in batch.clusters}
    clusters = {}
    for name, seen in sorted(observed.clusters.items()):
        cluster = _look(spec, status, name, seen, now)
        if name in there and name not in waved and not cluster.note:
            cluster = replace(cluster, note=_NO_WAVE)
        clusters[name] = cluster
    return replace(status, clusters=clusters)


def dead(status: Status, observed: Observed, now: float, grace_s: float) -> str:
    """Says which cluster's canary is dead: none ready and all failing, or none ready for too long; empty if none.

    A cluster that can't be seen is never dead.
    """
    if status.state not in SHARING | PROMOTED:
        return ""
    for name in status.begun:
        seen, cluster = observed.clusters.get(name), status.clusters.get(name)
        if seen is None or cluster is None or not seen.reachable or cluster.target == 0 or seen.canary is None:
            continue
        canary = seen.canary
        if canary.revision != status.revision or canary.ready > 0:
            continue
        if canary.pods > 0 and canary.failing >= canary.pods:
            return f"{name}: none of {canary.pods} canary pods can start"
        if cluster.unready_since_s is not None and now - cluster.unready_since_s >= grace_s:
            return f"{name}: no canary pod is ready any more, for {now - cluster.unready_since_s:.0f} s"
    return ""


def settled_back(status: Status, observed: Observed) -> bool:
    """Whether a rollback is complete: no canary anywhere, and stable on its promoted revision where it was touched."""
    for name, seen in observed.clusters.items():
        begun = name in status.begun
        if begun and (not seen.reachable or (seen.canary is not None and seen.canary.ours)):
            return False
        rejected = seen.stable is not None and status.revision in seen.stable.pods
        cluster = status.clusters.get(name, ClusterStatus())
        touched = bool(cluster.stable) and (rejected or (begun and status.restore))
        stable = seen.stable
        if touched and stable is not None and not (stable.paused and stable.runs_only(cluster.stable)):
            return False
    return True


def settled_forward(status: Status, observed: Observed) -> bool:
    """Whether promotion is complete everywhere: no canary, the Deployment paused with the new revision."""
    for name in status.begun:
        seen = observed.clusters.get(name)
        if seen is None:
            continue
        if not seen.reachable or (seen.canary is not None and seen.canary.ours):
            return False
        if seen.stable is not None and not (seen.stable.paused and status.clusters[name].promoted):
            return False
    return True
