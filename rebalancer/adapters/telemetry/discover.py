"""What one metrics backend knows of a fleet that nobody has described yet."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from rebalancer.adapters.telemetry import promql
from rebalancer.adapters.telemetry.backend import Backend
from rebalancer.adapters.telemetry.errors import AnswerError
from rebalancer.adapters.telemetry.promql import Selector
from rebalancer.adapters.telemetry.recipes import RECIPES, Recipe
from rebalancer.api.controller import BackendSpec

CLUSTER_LABELS = ("cluster", "k8s_cluster", "kubernetes_cluster", "cluster_name", "k8s_cluster_name", "cluster_id")
"""Labels by which people tell clusters apart, the most common first."""
_REGION = "label_topology_kubernetes_io_region"


@dataclass(frozen=True, slots=True)
class Discovered:
    """What was found.

    Attributes:
        kind: prometheus or thanos.
        label: label by which clusters are told apart; empty if there is none.
        regions: value of that label -> region of most of its nodes; empty where it is not known.
        recipes: known request counters that have series.
        missing: sentences on what was looked for and not found.
    """

    kind: str
    label: str = ""
    regions: Mapping[str, str] = field(default_factory=dict)
    recipes: tuple[Recipe, ...] = ()
    missing: tuple[str, ...] = ()


async def discover(spec: BackendSpec, now: float) -> Discovered:
    """Asks a backend what it knows.

    Args:
        spec: the backend; its type is found out.
        now: Unix seconds.

    Raises:
        AnswerError: it gives no usable answer.
    """
    backend = Backend(spec, {})
    try:
        kind = "thanos" if await has_stores(backend) else "prometheus"
        label, values = await _clusters(backend, now)
        regions = await _regions(backend, label, now) if label else {}
        names = promql.one_of(recipe.metric for recipe in RECIPES)
        found = await backend.query(f'count by (__name__) ({{__name__=~"{names}"}})', now)
        there = {one.labels.get("__name__", "") for one in found.series}
        missing = [text for metric, text in _NEEDED.items() if not await _there(backend, metric, now)]
    finally:
        await backend.close()
    known = tuple(recipe for recipe in RECIPES if recipe.metric in there)
    return Discovered(kind, label, {value: regions.get(value, "") for value in values}, known, tuple(missing))


_NEEDED = {
    promql.CPU: "the pods' CPU (container_cpu_usage_seconds_total): scrape the kubelets' /metrics/cadvisor",
    "kube_node_status_allocatable": "room (kube_node_status_allocatable): scrape kube-state-metrics",
    "rebalancer_probe_probes_total": "the network between clusters: run rebalancer-probe and load rules/",
}


async def has_stores(backend: Backend) -> bool:
    """Says whether a backend is a Thanos: only that has a list of stores."""
    try:
        await backend.get("/api/v1/stores")
    except AnswerError:
        return False
    return True


async def _clusters(backend: Backend, now: float) -> tuple[str, list[str]]:
    """The label that most targets carry, and its values."""
    found = (await backend.query(f"count by ({', '.join(CLUSTER_LABELS)}) (up)", now)).series
    carried = {
        label: sum(float(one.values[0]) for one in found if one.labels.get(label)) for label in CLUSTER_LABELS
    }  # fmt: skip
    label = max(CLUSTER_LABELS, key=lambda name: carried[name])
    values = sorted({one.labels[label] for one in found if one.labels.get(label)})
    return (label, values) if values else ("", [])


async def _regions(backend: Backend, label: str, now: float) -> dict[str, str]:
    query = f"count by ({label}, {_REGION}) ({Selector('kube_node_labels').where((_REGION, '!=', ''))})"
    nodes: dict[str, dict[str, float]] = {}
    for one in (await backend.query(query, now)).series:
        nodes.setdefault(one.labels.get(label, ""), {})[one.labels.get(_REGION, "")] = float(one.values[0])
    return {value: max(counts, key=lambda region: counts[region]) for value, counts in nodes.items()}


async def _there(backend: Backend, metric: str, now: float) -> bool:
    return bool((await backend.query(f"count({metric})", now)).series)


def matching(name: str, contexts: Mapping[str, str]) -> str:
    """Returns the one context that is a cluster's by its name: the same, or one that carries it as a part.

    Args:
        name: value of the cluster's label.
        contexts: names of contexts -> their cluster in the kubeconfig.
    """
    whole = re.compile(rf"(?:^|[^A-Za-z0-9-]){re.escape(name)}(?:$|[^A-Za-z0-9-])")
    same = [context for context, cluster in contexts.items() if name in (context, cluster)]
    part = [context for context, cluster in contexts.items() if whole.search(context) or whole.search(cluster)]
    return same[0] if len(same) == 1 else part[0] if not same and len(part) == 1 else ""
