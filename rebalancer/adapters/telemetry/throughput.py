"""Passive throughput of a cluster: what its nodes' interfaces carry, from metrics that the user has anyway.

Bandwidth is not probed: a probe that fills a link is an outage of its own making.
"""

from __future__ import annotations

import math

from rebalancer.adapters.telemetry import promql
from rebalancer.adapters.telemetry.backend import Backend
from rebalancer.adapters.telemetry.errors import AnswerError
from rebalancer.adapters.telemetry.promql import Selector
from rebalancer.core.network import Throughput

_VIRTUAL = "lo|veth.*|cali.*|cilium.*|lxc.*|cni.*|docker.*|flannel.*|br-.*|virbr.*|tun.*|kube-.*|nodelocaldns|dummy.*"
"""Interfaces that carry each byte of a real one once more."""
WAYS = {"in": "node_network_receive_bytes_total", "out": "node_network_transmit_bytes_total"}
"""Metrics of the node exporter; the kubelet's own count pods on the host network many times over."""


def query(backend: Backend) -> str:
    """Bytes per second over 5 min by cluster; `kind` tells the way."""
    by = ", ".join(backend.by)
    parts = {}
    for way, metric in WAYS.items():
        chosen = Selector(metric).where(("device", "!~", _VIRTUAL), *backend.matchers())
        parts[way] = f"sum by ({by}) (rate({chosen}[5m]))"
    return promql.either(parts)


async def read(backend: Backend, now: float) -> tuple[dict[str, Throughput], list[str]]:
    """Reads what each cluster's nodes carry; never raises, problems come as sentences.

    A cluster without a node exporter is not in the answer.
    """
    try:
        answer = await backend.query(query(backend), now)
    except AnswerError as error:
        return {}, [f"throughput: {error}"]
    found: dict[str, dict[str, float]] = {}
    for series in answer.series:
        cluster, value = backend.cluster_of(series.labels), float(series.values[0])
        if cluster and math.isfinite(value) and value >= 0:
            found.setdefault(cluster, {})[series.labels.get("kind", "")] = value
    return {name: Throughput(one.get("in", math.nan), one.get("out", math.nan)) for name, one in found.items()}, []
