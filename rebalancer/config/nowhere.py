"""Policies that leave a workload no cluster at all: residency and propagation together, each named."""

from __future__ import annotations

from collections.abc import Iterable

from rebalancer.api.cluster import MemberCluster
from rebalancer.api.policy import SchedulingPolicy
from rebalancer.api.propagation import PropagationPolicy
from rebalancer.config.documents import Document

Written = tuple[object, Document]


def nowhere(objects: Iterable[Written]) -> list[str]:
    """One sentence per policy whose workload no MemberCluster may hold.

    Propagation counts where a policy names its workload and the propagation selects it by name alone: labels are only
    known in the clusters, and the planner says `residency-empty` there.
    """
    every = list(objects)
    clusters = [o for o, _ in every if isinstance(o, MemberCluster)]
    spreads = [(o, d) for o, d in every if isinstance(o, PropagationPolicy)]
    if not clusters:
        return []
    return [
        problem for o, d in every if isinstance(o, SchedulingPolicy) and (problem := _problem(o, d, clusters, spreads))
    ]


def _problem(
    policy: SchedulingPolicy,
    document: Document,
    clusters: list[MemberCluster],
    spreads: list[tuple[PropagationPolicy, Document]],
) -> str:
    residency = policy.spec.residency
    labels = residency.cluster_selector.match_labels if residency.cluster_selector else {}
    left = [c for c in clusters if not residency.regions or c.spec.region in residency.regions]
    left = [c for c in left if all(c.spec.labels.get(k) == v for k, v in labels.items())]
    name = policy.spec.workload_ref.name if policy.spec.workload_ref else ""
    took = [(o, d) for o, d in spreads if name and o.selects(policy.metadata.namespace, name, {})]
    for spread, _ in took:
        left = [c for c in left if spread.allows(c.metadata.name, c.spec.region, dict(c.spec.labels))]
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
