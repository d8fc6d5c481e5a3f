"""The network as measured: the latency map, and `network-quality` of pairs and clusters."""

from rebalancer.core.network.heritage import Heritage, Pair
from rebalancer.core.network.latency import (
    INTRA_REGION_RTT_S,
    Cell,
    CellState,
    Gap,
    LatencyMap,
    MapSettings,
    Samples,
    Throughput,
    build_map,
    measured_cell,
    origin_rtt,
    wilson,
)
from rebalancer.core.network.quality import (
    Level,
    NetworkMemory,
    NetworkSettings,
    Quality,
    TaintValue,
    judge,
    undirected,
)

__all__ = [
    "INTRA_REGION_RTT_S",
    "Cell",
    "CellState",
    "Gap",
    "Heritage",
    "LatencyMap",
    "Level",
    "MapSettings",
    "NetworkMemory",
    "NetworkSettings",
    "Pair",
    "Quality",
    "Samples",
    "TaintValue",
    "Throughput",
    "build_map",
    "judge",
    "measured_cell",
    "origin_rtt",
    "undirected",
    "wilson",
]
