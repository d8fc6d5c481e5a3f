"""The common ground: which clusters are tainted by their links, and what a link counts."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from rebalancer.core.model import Cluster, ClusterState, Demand, Snapshot, Unknown
from rebalancer.core.network import LatencyMap, measured_cell
from rebalancer.core.planning import PlanMemory, PlanSettings
from rebalancer.core.planning.ground import lay
from tests.unit.core.fleet import NOW

REGIONS = {"ap-1": "ap", "eu-1": "eu", "sa-1": "sa", "us-1": "us"}
USUAL_S = 0.1
BAD = (("ap-1", "eu-1"), ("eu-1", "sa-1"))
"""Two of the three links of eu-1."""


def fleet(
    at_s: float, slow: tuple[tuple[str, str], ...], demand: Mapping[str, Demand | Unknown], *, usual: bool = True
) -> Snapshot:
    cells = {}
    for a in REGIONS:
        for b in REGIONS:
            if a != b:
                cells[a, b] = measured_cell(4 * USUAL_S if (min(a, b), max(a, b)) in slow else USUAL_S)
    known = {(a, b): USUAL_S for a in REGIONS for b in REGIONS if a < b} if usual else {}
    clusters = {n: ClusterState(Cluster(n, r), at_s, (), 0.0, 0.0) for n, r in REGIONS.items()}
    return Snapshot(at_s, clusters, {}, {}, demand, LatencyMap(cells, REGIONS), {}, usual_rtt_s=known)


def users(**rates: float) -> dict[str, Demand | Unknown]:
    return {"shop/web": Demand("requests/s", sum(rates.values()), rates)}


def tainted(demand: Mapping[str, Demand | Unknown], *, usual: bool = True) -> dict[str, str]:
    """Taints after three minutes of the same."""
    memory = PlanMemory()
    for step in range(0, 181, 30):
        ground = lay(fleet(NOW + step, BAD, demand, usual=usual), memory, PlanSettings())
        memory = PlanMemory(clocks=ground.clocks, network=ground.network_memory)
    return dict(memory.network.taints)


@pytest.mark.parametrize(
    ("what", "demand", "expected"),
    [
        ("without origins the links count alike", {}, {"eu-1": "poor"}),
        ("demand of no known origin is no weight", {"shop/web": Unknown("demand-unknown")}, {"eu-1": "poor"}),
        ("cores are no requests", {"shop/web": Demand("cores", 9.0, {"us": 9.0})}, {"eu-1": "poor"}),
        ("the bad links are where the users are", users(ap=100.0, sa=50.0), {"eu-1": "poor"}),
        ("the users are behind the good link", users(us=100.0, ap=1.0), {}),
    ],
)
def test_a_cluster_is_tainted_by_the_links_that_its_users_need(
    what: str, demand: dict[str, Demand | Unknown], expected: dict[str, str]
) -> None:
    assert tainted(demand) == expected, what


def test_slow_links_taint_only_where_it_is_known_what_is_usual() -> None:
    assert tainted({}, usual=False) == {}


def test_where_the_users_are_served_changes_nothing_so_that_moving_them_lifts_no_taint() -> None:
    rates = {"ap": 100.0, "us": 20.0}
    here = {"w": Demand("requests/s", 120.0, rates, {("ap", "eu-1"): 100.0, ("us", "eu-1"): 20.0})}
    away = {"w": Demand("requests/s", 120.0, rates, {("ap", "us-1"): 100.0, ("us", "us-1"): 20.0})}
    assert tainted(here) == tainted(away) == {"eu-1": "poor"}
