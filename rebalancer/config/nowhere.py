"""Policies that the clusters can't fulfil: residency and propagation leave none, or bounds ask for more of them."""

from __future__ import annotations

from collections.abc import Iterable

from rebalancer.api.cluster import MemberCluster
from rebalancer.api.policy import SchedulingPolicy
from rebalancer.api.propagation import PropagationPolicy
from rebalancer.config.documents import Document

Written = tuple[object, Document]


def nowhere(objects: Iterable[Written], *, bounds: bool) -> list[str]:
    """One sentence per policy whose workload no MemberCluster may hold, and per bound that these can't fulfil.

    Propagation counts where a policy names its workload and the propagation selects it by name alone: labels are only
    known in the clusters, and the planner says `residency-empty` there.

    Args:
        objects: all that was written.
        bounds: whether bounds are looked at as well.
    """
    every = list(objects)
    clusters = [o for o, _ in every if isinstance(o, MemberCluster)]
    spreads = [(o, d) for o, d in every if isinstance(o, PropagationPolicy)]
    if not clusters:
        return []
    problems = []
    for policy, document in every:
        if isinstance(policy, SchedulingPolicy):
            left, took = _left(policy, clusters, spreads)
            found = _problem(policy, document, clusters, left, took)
            problems += [found] if found else _too_few(policy, document, left) if bounds else []
    return problems


def _left(
    policy: SchedulingPolicy, clusters: list[MemberCluster], spreads: list[tuple[PropagationPolicy, Document]]
) -> tuple[list[MemberCluster], list[tuple[PropagationPolicy, Document]]]:
    """The clusters that may hold the workload, and the propagation policies that took part."""
    residency = policy.spec.residency
    labels = residency.cluster_selector.match_labels if residency.cluster_selector else {}
    left = [c for c in clusters if not residency.regions or c.spec.region in residency.regions]
    left = [c for c in left if all(c.spec.labels.get(k) == v for k, v in labels.items())]
    name = policy.spec.workload_ref.name if policy.spec.workload_ref else ""
    took = [(o, d) for o, d in spreads if name and o.selects(policy.metadata.namespace, name, {})]
    for spread, _ in took:
        left = [c for c in left if spread.allows(c.metadata.name, c.spec.region, dict(c.spec.labels))]
    return left, took


def _too_few(policy: SchedulingPolicy, document: Document, left: list[MemberCluster]) -> list[str]:
    """Bounds that ask for more clusters or regions than may hold the workload."""
    spec = policy.spec
    stand = ", ".join(sorted(c.metadata.name for c in left))
    regions = {c.spec.region for c in left}
    most = spec.per_cluster.max
    asked: list[tuple[tuple[str | int, ...], int, int, str]] = [
        (("spec", "spread", "minClusters"), spec.spread.min_clusters, len(left), f"only {stand} may hold it"),
        (("spec", "spread", "minRegions"), spec.spread.min_regions, len(regions),
         f"only clusters in {', '.join(sorted(regions))} may hold it"),
    ]  # fmt: skip
    if most is not None:
        room = f"perCluster.max {most} in {stand} leaves {most * len(left)}"
        asked.append((("spec", "replicas", "min"), spec.replicas.min, most * len(left), room))
    told = [
        f"{document.at(path)}: {'.'.join(map(str, path))} is {wanted}, but {why}; lower it or allow more"
        for path, wanted, there, why in asked if wanted > there
    ]  # fmt: skip
    return told + _too_thin(policy, document, stand, len(left))


def _too_thin(policy: SchedulingPolicy, document: Document, stand: str, count: int) -> list[str]:
    """Bounds of each cluster that all clusters together can't fulfil."""
    spec, told = policy.spec, []
    least, high, share = spec.per_cluster.min, spec.replicas.max, spec.spread.max_share
    if high is not None and least * count > high:
        told.append(
            f"{document.at(('spec', 'perCluster', 'min'))}: spec.perCluster.min is {least}, in {stand} together "
            f"{least * count}, but replicas.max is {high}; lower it or raise replicas.max"
        )
    if count > 1 and share * count < 1.0 - 1e-9:
        told.append(
            f"{document.at(('spec', 'spread', 'maxShare'))}: spec.spread.maxShare is {share:.0%}, in {stand} together "
            f"{share * count:.0%} of the replicas; raise it or allow more clusters"
        )
    return told


def _problem(
    policy: SchedulingPolicy,
    document: Document,
    clusters: list[MemberCluster],
    left: list[MemberCluster],
    took: list[tuple[PropagationPolicy, Document]],
) -> str:
    residency = policy.spec.residency
    labels = residency.cluster_selector.match_labels if residency.cluster_selector else {}
    if left or not (residency.regions or labels or took):
        return ""
    asked = [f"regions {', '.join(residency.regions)}"] if residency.regions else []
    asked += [f"{k}={v}" for k, v in sorted(labels.items())]
    parts = [f"spec.residency ({'; '.join(asked)})"] if asked else []
    parts += [f"PropagationPolicy {o.metadata.name} at {d.at(('spec', 'placement'))} ({_asked(o)})" for o, d in took]
    stand = ", ".join(sorted(c.metadata.name for c in clusters))
    where = document.at(("spec", "residency") if asked else ("metadata", "name"))
    return f"{where}: no MemberCluster ({stand}) fulfils {' and '.join(parts)} together; relax one of them"


def _asked(spread: PropagationPolicy) -> str:
    placement = spread.spec.placement
    asked = [f"clusterNames {', '.join(placement.cluster_names)}"] if placement.cluster_names else []
    asked += [f"regions {', '.join(placement.regions)}"] if placement.regions else []
    labels = placement.cluster_selector.match_labels if placement.cluster_selector else {}
    return "; ".join([*asked, *(f"{k}={v}" for k, v in sorted(labels.items()))])
