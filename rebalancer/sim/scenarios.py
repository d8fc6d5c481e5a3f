"""Scenarios of the simulated world: who runs where at the start, and what happens when."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rebalancer.core.model import Cluster, Price
from rebalancer.core.policy import DemandSpec, Policy
from rebalancer.core.rollout.model import Metric, Spec, Wave
from rebalancer.sim.demand import Earth
from rebalancer.sim.plant import Plant, Service
from rebalancer.sim.rollouts import CONTAINER

START_S = 1_788_220_800.0
"""2026-09-01 00:00 UTC, a Tuesday."""
HOUR_S = 3600.0
API, SEARCH = "shop/api", "shop/search"
FAILED_CLUSTER = "us-east4"
LOSSY = ("asia-southeast1", "asia-south1")
SMALL_CLUSTER = "asia-south1"
"""Too small for its users: the rest of them is served over the link that gets lossy."""
BAD_IMAGE = "v2-bad"


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happens in a scenario.

    Attributes:
        at_h: hours after the start.
        text: what a reader is told.
        do: changes the plant.
    """

    at_h: float
    text: str
    do: Callable[[Plant], None]


@dataclass(frozen=True, slots=True)
class Scenario:
    """A day of a fleet's life."""

    start_s: float
    clusters: Mapping[str, Cluster]
    services: Mapping[str, Service]
    replicas: Mapping[tuple[str, str], int]
    policies: Mapping[str, Policy]
    policy_of: Mapping[str, str]
    events: tuple[Event, ...]
    node_cpu: Mapping[str, float]
    rollout: Spec
    rollout_at_h: float


def clusters_of(earth: Earth) -> dict[str, Cluster]:
    """One cluster in each region, named as its region; the first one to get releases is labelled so."""
    return {
        name: Cluster(
            name,
            name,
            labels={"region": name, "tier": "first" if name == "europe-west1" else "rest"},
            price=Price(cpu_core_hour=region.cpu_core_hour),
        )
        for name, region in earth.regions.items()
    }


def _policy(name: str, capacity: float) -> Policy:
    return Policy(
        name=name,
        namespace="shop",
        workload_name=name,
        demand=DemandSpec(query="ingress_requests_total", origin_label="origin"),
        capacity_per_replica=capacity,
        min_replicas=6,
        min_clusters=2,
        max_moves_per_hour="50%",
        max_concurrent_moves=3,
        lost_after_s=300.0,
        failback_after_s=1800.0,
    )


def rollout() -> Spec:
    """The demo's bad release: one region first, then the others."""
    selector = f'requests_total{{workload="{SEARCH}"}}'
    metric = Metric("error-rate", selector, selector, "image")
    waves = (Wave("first", ("europe-west1",), bake_s=60.0), Wave("rest", labels={"tier": "rest"}))
    return Spec("shop", "search", "search", images={CONTAINER: BAD_IMAGE}, metrics=(metric,), waves=waves)


def day(earth: Earth) -> Scenario:
    """The demo's day: the sun moves, a link gets lossy, a cluster fails; the canary is the demo's own."""

    def lossy(plant: Plant) -> None:
        plant.link_loss[LOSSY] = 0.2

    def clean(plant: Plant) -> None:
        plant.link_loss.clear()

    def bad(plant: Plant) -> None:
        plant.error_ratio[BAD_IMAGE] = 0.1

    def fail(plant: Plant) -> None:
        plant.down.add(FAILED_CLUSTER)

    def recover(plant: Plant) -> None:
        plant.down.discard(FAILED_CLUSTER)

    services = {API: Service(API, peak=9000.0, capacity=120.0), SEARCH: Service(SEARCH, peak=2400.0, capacity=60.0)}
    # Everything stands where somebody once put it: on the two clusters of the first year.
    replicas = {
        (API, "us-east4"): 40,
        (API, "europe-west1"): 20,
        (SEARCH, "us-east4"): 20,
        (SEARCH, "europe-west1"): 12,
    }
    return Scenario(
        start_s=START_S,
        clusters=clusters_of(earth),
        services=services,
        replicas=replicas,
        policies={"shop/api": _policy("api", 120.0), "shop/search": _policy("search", 60.0)},
        policy_of={API: "shop/api", SEARCH: "shop/search"},
        events=(
            Event(6.0, f"the link {LOSSY[0]} - {LOSSY[1]} begins to lose 20 % of its packets", lossy),
            Event(8.0, "the link is clean again", clean),
            Event(11.0, f"the cluster {FAILED_CLUSTER} fails: pods, API and metrics are gone", fail),
            Event(12.5, f"{FAILED_CLUSTER} is back", recover),
            Event(16.0, f"release {BAD_IMAGE} of {SEARCH} begins; it fails one request in ten", bad),
        ),
        node_cpu={n: 4.0 if n == SMALL_CLUSTER else 64.0 for n in earth.regions},
        rollout=rollout(),
        rollout_at_h=16.0,
    )
