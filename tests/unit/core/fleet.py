"""A small fleet for tests of the planner: three regions with round numbers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rebalancer.core.forecast import DEFAULT_QUANTILES
from rebalancer.core.model import (
    TOTAL,
    Cluster,
    ClusterState,
    Demand,
    Forecast,
    NodeRoom,
    Placement,
    Plan,
    Price,
    Snapshot,
    Unknown,
    View,
)
from rebalancer.core.network import Cell, LatencyMap
from rebalancer.core.planning import PlanMemory, PlanSettings, planning
from rebalancer.core.policy import DemandSpec, Policy

NOW = 1_700_000_000.0
REGIONS = {"eu-1": "eu", "us-1": "us", "ap-1": "ap"}
RTT_MS = {("ap-1", "eu-1"): 160.0, ("ap-1", "us-1"): 220.0, ("eu-1", "us-1"): 90.0}
WEB = "shop/web"
POLICY = Policy(
    name="web",
    namespace="shop",
    workload_name="web",
    demand=DemandSpec(query="requests_total", origin_label="origin"),
    capacity_per_replica=10.0,
    max_moves_per_hour="100%",
)
PRICES = {"eu-1": 0.05, "us-1": 0.04, "ap-1": 0.06}


def cluster_state(name: str, *, room_cpu: float = 100.0, seen_s: float | None = NOW, **changes: object) -> ClusterState:
    nodes = (NodeRoom(f"{name}-n", room_cpu, 1e12, 1000),)
    declared = Cluster(name, REGIONS[name], price=Price(PRICES[name]), **changes)  # type: ignore[arg-type]  # test helper
    return ClusterState(declared, seen_s, nodes, room_cpu, 1e12)


def latency(changes: Mapping[tuple[str, str], float | None] | None = None) -> LatencyMap:
    cells = {}
    for (a, b), ms in {**RTT_MS, **(changes or {})}.items():
        if ms is None:
            continue
        for pair in ((a, b), (b, a)):
            cells[pair] = Cell(rtt_mean_s=ms / 1000, rtt_p50_s=ms / 1000, loss=0.0, samples=1000, age_s=0.0, state="ok",
                               source="direct")  # fmt: skip
    return LatencyMap(cells)


def placement(
    cluster: str, wanted: int, *, ready: int | None = None, since: float = NOW - 3600, **changes: object
) -> Placement:
    count = wanted if ready is None else ready
    return Placement(WEB, cluster, wanted, (since,) * count, cpu=0.5, memory=1e8, **changes)  # type: ignore[arg-type]  # test helper


def demand(
    by_origin: Mapping[str, float], served: Mapping[tuple[str, str], float] | None = None, missing: tuple[str, ...] = ()
) -> Demand:
    return Demand("requests/s", sum(by_origin.values()), by_origin, served or {}, missing, as_of_s=NOW)


def flat_forecast(by_origin: Mapping[str, float], now: float = NOW) -> Forecast:
    keys = ((WEB, TOTAL), *((WEB, o) for o in sorted(by_origin) if o))
    rows = [sum(by_origin.values()), *(by_origin[o] for o in sorted(by_origin) if o)]
    bands = np.array([[[v] * len(DEFAULT_QUANTILES)] * 2 for v in rows])
    known = len(keys)
    return Forecast(now, np.array([300.0, 600.0]), np.array(DEFAULT_QUANTILES), keys, bands, (True,) * known,
                    np.zeros(known), ("mixture",) * known)  # fmt: skip


def snapshot(
    replicas: Mapping[str, int | Placement],
    by_origin: Mapping[str, float],
    *,
    now: float = NOW,
    states: Mapping[str, ClusterState] | None = None,
    views: Mapping[str, View] | None = None,
    seen: Demand | Unknown | None = None,
    network: LatencyMap | None = None,
    rollouts: frozenset[str] = frozenset(),
) -> Snapshot:
    placements = {c: p if isinstance(p, Placement) else placement(c, p) for c, p in replicas.items()}
    return Snapshot(
        at_s=now,
        clusters={**{c: cluster_state(c, seen_s=now) for c in REGIONS}, **(states or {})},
        views={**{c: View("complete", now) for c in REGIONS}, **(views or {})},
        placements={WEB: placements},
        demand={WEB: seen if seen is not None else demand(by_origin)},
        network=network or latency(),
        policies={WEB: "shop/web"},
        rollouts=rollouts,
    )


def plan(
    seen: Snapshot,
    by_origin: Mapping[str, float],
    policy: Policy = POLICY,
    memory: PlanMemory | None = None,
    settings: PlanSettings | None = None,
) -> tuple[Plan, PlanMemory]:
    forecast = flat_forecast(by_origin, seen.at_s)
    return planning(seen, forecast, {"shop/web": policy}, memory or PlanMemory(), settings or PlanSettings())
