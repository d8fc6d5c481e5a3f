"""One cluster's metrics as its ingress, kubelets and kube-state-metrics would export them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tests.stack.sightings import Node, Pod

BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0)
_UNITS = {"cpu": "core", "memory": "byte", "pods": "integer"}
_TYPES = {
    "ingress_requests_total": "counter",
    "container_cpu_usage_seconds_total": "counter",
    "container_cpu_cfs_periods_total": "counter",
    "container_cpu_cfs_throttled_periods_total": "counter",
    "kube_node_status_allocatable": "gauge",
    "kube_node_status_condition": "gauge",
    "kube_node_spec_unschedulable": "gauge",
    "kube_pod_container_resource_requests": "gauge",
}
Labels = tuple[tuple[str, str], ...]
Hidden = Callable[[str, Mapping[str, str]], bool]
"""Whether a series (family, labels) is not shown."""


@dataclass
class _Histogram:
    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(len(BUCKETS_S) + 1, dtype=np.int64))
    total_s: float = 0.0


class Ingress:
    """Counters of one cluster. A series is born at its first event, as in a real ingress."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counters: dict[str, dict[Labels, float]] = {}
        self._durations: dict[Labels, _Histogram] = {}

    def requests(self, namespace: str, service: str, origin: str, arm: str, code: str, count: int) -> None:
        """Counts requests."""
        labels = (
            ("namespace", namespace), ("service", service), ("origin", origin),
            ("pod_template_hash", arm), ("code", code),
        )  # fmt: skip
        self._add("ingress_requests_total", labels, count)

    def durations(self, namespace: str, service: str, origin: str, seconds: NDArray[np.float64]) -> None:
        """Observes request durations (seconds)."""
        labels = (("namespace", namespace), ("service", service), ("origin", origin))
        places = np.bincount(np.searchsorted(BUCKETS_S, seconds), minlength=len(BUCKETS_S) + 1)
        with self._lock:
            histogram = self._durations.setdefault(labels, _Histogram())
            histogram.counts += places
            histogram.total_s += float(seconds.sum())

    def cpu(self, pod: Pod, seconds: float, elapsed_s: float, throttled: bool) -> None:
        """Counts a pod's CPU seconds, and its CFS periods of 100 ms."""
        labels = (("namespace", pod.namespace), ("pod", pod.name), ("container", pod.container))
        self._add("container_cpu_usage_seconds_total", labels, seconds)
        self._add("container_cpu_cfs_periods_total", labels, elapsed_s * 10)
        self._add("container_cpu_cfs_throttled_periods_total", labels, elapsed_s * 10 if throttled else 0.0)

    def forget_pods(self, alive: set[tuple[str, str]]) -> None:
        """Ends the series of pods that are gone."""
        with self._lock:
            for family in self._counters:
                if family.startswith("container_"):
                    series = self._counters[family]
                    for labels in [labels for labels in series if (labels[0][1], labels[1][1]) not in alive]:
                        del series[labels]

    def _add(self, family: str, labels: Labels, amount: float) -> None:
        with self._lock:
            series = self._counters.setdefault(family, {})
            series[labels] = series.get(labels, 0.0) + amount

    def render(self, pods: Iterable[Pod], nodes: Iterable[Node], hidden: Hidden) -> str:
        """The page in Prometheus' text format."""
        with self._lock:
            families = {name: dict(series) for name, series in self._counters.items()}
            durations = {labels: (h.counts.copy(), h.total_s) for labels, h in self._durations.items()}
        families.update(_state_metrics(pods, nodes))
        lines: list[str] = []
        for family, series in families.items():
            lines.append(f"# TYPE {family} {_TYPES[family]}")
            lines += [
                f"{family}{_text(ls)} {value:.12g}" for ls, value in series.items() if not hidden(family, dict(ls))
            ]
        family = "ingress_request_duration_seconds"
        lines.append(f"# TYPE {family} histogram")
        for labels, (counts, total_s) in durations.items():
            if not hidden(family, dict(labels)):
                lines += _histogram_lines(family, labels, counts, total_s)
        return "\n".join(lines) + "\n"


def _histogram_lines(family: str, labels: Labels, counts: NDArray[np.int64], total_s: float) -> list[str]:
    running = counts.cumsum()
    bounds = [f"{bound:g}" for bound in BUCKETS_S] + ["+Inf"]
    lines = [
        f"{family}_bucket{_text((*labels, ('le', le)))} {value}" for le, value in zip(bounds, running, strict=True)
    ]
    return [*lines, f"{family}_sum{_text(labels)} {total_s:.6f}", f"{family}_count{_text(labels)} {running[-1]}"]


def _state_metrics(pods: Iterable[Pod], nodes: Iterable[Node]) -> dict[str, dict[Labels, float]]:
    allocatable: dict[Labels, float] = {}
    condition: dict[Labels, float] = {}
    cordoned: dict[Labels, float] = {}
    requests: dict[Labels, float] = {}
    for node in nodes:
        for resource, amount in node.allocatable:
            allocatable[("node", node.name), ("resource", resource), ("unit", _UNITS[resource])] = amount
        for status, value in (("true", node.ready), ("false", not node.ready), ("unknown", False)):
            condition[("node", node.name), ("condition", "Ready"), ("status", status)] = float(value)
        cordoned[(("node", node.name),)] = float(node.unschedulable)
    for pod in pods:
        if pod.done:
            continue
        head = (("namespace", pod.namespace), ("pod", pod.name))
        for container, resource, amount in pod.requests:
            labels = (
                *head, ("container", container), ("node", pod.node), ("resource", resource), ("unit", _UNITS[resource])
            )  # fmt: skip
            requests[labels] = amount
    return {
        "kube_node_status_allocatable": allocatable,
        "kube_node_status_condition": condition,
        "kube_node_spec_unschedulable": cordoned,
        "kube_pod_container_resource_requests": requests,
    }


def _text(labels: Labels) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels) + "}"
