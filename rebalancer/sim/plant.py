"""The simulated plant: clusters whose pods take time to start, users who are sent to the nearest ready replica.

Everything here is deterministic for a seed. The plant knows the truth; what the controller sees of it goes through the
simulated ports, which hide what is down.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from rebalancer.core.model import Cluster, Moved, MoveRecord
from rebalancer.sim.demand import NOISE, Earth

TARGET = 0.7
"""A replica's declared capacity is what it serves at this utilisation; beyond 1 it fails requests."""


@dataclass(frozen=True, slots=True)
class Service:
    """A simulated workload.

    Attributes:
        key: `namespace/name`.
        peak: world-wide peak demand, requests/s.
        capacity: requests/s one replica serves at target utilisation.
        cpu, memory: what a replica requests, cores and bytes.
        start_delay_s: created to ready.
        base_error_ratio: share of requests that fail anyway.
    """

    key: str
    peak: float
    capacity: float
    cpu: float = 0.5
    memory: float = 512 * 2.0**20
    start_delay_s: float = 90.0
    base_error_ratio: float = 0.001


@dataclass(slots=True)
class Pod:
    """A pod: its image, when it becomes ready, and when it was made (None: before the world began)."""

    image: str
    ready_s: float
    made_s: float | None = None


@dataclass(slots=True)
class Deployment:
    """A Deployment of the plant.

    Attributes:
        image: of the template; pods keep the image they were made with.
        paused: a template edit makes no pods then; scaling goes on with `running_image`.
    """

    wanted: int
    image: str
    running_image: str
    paused: bool = False
    pods: list[Pod] = field(default_factory=list)
    move: MoveRecord | None = None
    moved: tuple[Moved, ...] = ()
    version: int = 1

    def ready(self, now: float) -> list[Pod]:
        """Ready pods."""
        return [p for p in self.pods if p.ready_s <= now]


@dataclass(slots=True)
class Tally:
    """Requests and errors of one image of a workload in one cluster, ever growing."""

    total: float = 0.0
    bad: float = 0.0


@dataclass(frozen=True, slots=True)
class Tick:
    """The truth of one moment, for pictures and scorecards.

    Attributes:
        latency_ms: workload -> traffic-weighted latency; NaN without traffic.
        demand, served, ready: (workload, origin), (workload, origin, cluster), (workload, cluster) -> value.
        failed: workload -> requests/s that fail.
    """

    at_s: float
    latency_ms: Mapping[str, float]
    demand: Mapping[tuple[str, str], float]
    served: Mapping[tuple[str, str, str], float]
    ready: Mapping[tuple[str, str], int]
    failed: Mapping[str, float]


class Plant:
    """Clusters, pods and traffic on a virtual clock."""

    def __init__(
        self,
        earth: Earth,
        clusters: Mapping[str, Cluster],
        services: Mapping[str, Service],
        replicas: Mapping[tuple[str, str], int],
        start_s: float,
        seed: int,
        node_cpu: Mapping[str, float],
    ) -> None:
        """Starts with all replicas ready.

        Args:
            earth: regions and distances.
            clusters: by name; each in a region of `earth`.
            services: by key.
            replicas: (workload, cluster) -> replicas at the start.
            start_s: time.
            seed: of the noise.
            node_cpu: cores by cluster, in one node.
        """
        self.earth, self.clusters, self.services = earth, clusters, services
        self.now, self.node_cpu = start_s, dict(node_cpu)
        self.down: set[str] = set()
        self.link_loss: dict[tuple[str, str], float] = {}
        self.error_ratio: dict[str, float] = {}
        self.tallies: dict[tuple[str, str, str], Tally] = {}
        self.seen_s: dict[str, float] = dict.fromkeys(clusters, start_s)
        # Users and errors have a source of their own each, so that two plants with one seed have the same users.
        self._users, self._errors = np.random.default_rng([seed, 0]), np.random.default_rng([seed, 1])
        self.deployments: dict[tuple[str, str], Deployment] = {}
        for workload in services:
            for cluster in clusters:
                count = replicas.get((workload, cluster), 0)
                deployment = Deployment(count, "v1", "v1", pods=[Pod("v1", start_s - 3600.0) for _ in range(count)])
                self.deployments[workload, cluster] = deployment
        self.canaries: dict[tuple[str, str], Deployment] = {}

    def free_cpu(self, cluster: str) -> float:
        """Cores that no pod of the cluster asks for."""
        used = sum(
            len(d.pods) * self.services[w].cpu
            for group in (self.deployments, self.canaries)
            for (w, c), d in group.items()
            if c == cluster
        )
        return self.node_cpu[cluster] - used

    def loss(self, a: str, b: str) -> float:
        """Loss ratio between the regions of two clusters."""
        return self.link_loss.get((a, b), self.link_loss.get((b, a), 0.0))

    def advance(self, to_s: float, step_s: float) -> Tick:
        """Moves the plant on and returns the truth at the end."""
        tick = self._tick(0.0)
        while self.now < to_s - 1e-9:
            step = min(step_s, to_s - self.now)
            self.now += step
            self._reconcile()
            tick = self._tick(step)
        return tick

    def _reconcile(self) -> None:
        """What Deployment controllers and schedulers do: pods follow spec.replicas, as far as there is room."""
        for group in (self.deployments, self.canaries):
            for (workload, cluster), deployment in group.items():
                if cluster in self.down:
                    continue
                service = self.services[workload]
                if not deployment.paused:
                    deployment.running_image = deployment.image
                while len(deployment.pods) > deployment.wanted:
                    # Pods that are not ready go first, as in Kubernetes.
                    worst = max(range(len(deployment.pods)), key=lambda i: deployment.pods[i].ready_s)
                    deployment.pods.pop(worst)
                while len(deployment.pods) < deployment.wanted and self.free_cpu(cluster) >= service.cpu:
                    deployment.pods.append(Pod(deployment.running_image, self.now + service.start_delay_s, self.now))
                self._roll(deployment, service)

    def _roll(self, deployment: Deployment, service: Service) -> None:
        """Replaces one old pod at a time, make-before-break, once the replacement before is ready."""
        old = [p for p in deployment.pods if p.image != deployment.running_image]
        if old and all(p.ready_s <= self.now for p in deployment.pods):
            old[0].image = deployment.running_image

    def _tick(self, step_s: float) -> Tick:
        """Sends the traffic of one step."""
        latency, failed = {}, {}
        demands: dict[tuple[str, str], float] = {}
        served: dict[tuple[str, str, str], float] = {}
        ready: dict[tuple[str, str], int] = {}
        for key, service in self.services.items():
            pods = {c: self._ready_pods(key, c) for c in self.clusters}
            for cluster, alive in pods.items():
                ready[key, cluster] = len(alive)
            rates = {}
            for region in self.earth.regions:
                mean = float(self.earth.demand(region, service.peak, np.array(self.now)))
                rates[region] = max(0.0, mean * (1.0 + NOISE * float(self._users.standard_normal())))
                demands[key, region] = rates[region]
            shares, over = self._route(service, rates, {c: len(p) for c, p in pods.items()})
            weight = sum(shares.values())
            latency[key] = (
                sum(v * self._latency_ms(o, c) for (o, c), v in shares.items()) / weight if weight else float("nan")
            )
            failed[key] = over
            for (origin, cluster), rate in shares.items():
                served[key, origin, cluster] = rate
            failed[key] += self._count(key, service, shares, pods, step_s)
        return Tick(self.now, latency, demands, served, ready, failed)

    def _ready_pods(self, workload: str, cluster: str) -> list[Pod]:
        if cluster in self.down:
            return []
        canary = self.canaries.get((workload, cluster))
        extra = canary.ready(self.now) if canary is not None else []
        return [*self.deployments[workload, cluster].ready(self.now), *extra]

    def _latency_ms(self, origin: str, cluster: str) -> float:
        region = self.clusters[cluster].region
        rtt = self.earth.rtt_ms[origin, region]
        loss = self.link_loss.get((origin, region), self.link_loss.get((region, origin), 0.0))
        return rtt + 10.0 * loss * max(200.0, 2.0 * rtt)

    def _route(
        self, service: Service, rates: Mapping[str, float], ready: Mapping[str, int]
    ) -> tuple[dict[tuple[str, str], float], float]:
        """A global load balancer: nearest cluster with room first, then the next; overload goes to all alike.

        Returns:
            ((origin, cluster) -> requests/s, requests/s beyond what all replicas can serve).
        """
        left = dict(rates)
        room = {c: n * service.capacity / TARGET for c, n in ready.items()}
        shares: dict[tuple[str, str], float] = {}
        pairs = sorted((self._latency_ms(o, c), o, c) for o in rates for c in ready if ready[c])
        for _, origin, cluster in pairs:
            take = min(left[origin], room[cluster])
            if take > 0:
                shares[origin, cluster] = take
                left[origin] -= take
                room[cluster] -= take
        over = sum(left.values())
        total = sum(ready.values())
        for origin, rest in left.items():
            for cluster, count in ready.items():
                if rest > 1e-9 and total and count:
                    shares[origin, cluster] = shares.get((origin, cluster), 0.0) + rest * count / total
        return shares, over

    def _count(
        self, key: str, service: Service, shares: Mapping[tuple[str, str], float],
        pods: Mapping[str, list[Pod]], step_s: float,
    ) -> float:  # fmt: skip
        """Counts requests and errors by image, and returns the rate of errors."""
        errors = 0.0
        for cluster, alive in pods.items():
            rate = sum(v for (_, c), v in shares.items() if c == cluster)
            for image in sorted({p.image for p in alive}):  # a set's order differs from run to run
                part = rate * sum(1 for p in alive if p.image == image) / len(alive)
                ratio = self.error_ratio.get(image, service.base_error_ratio)
                tally = self.tallies.setdefault((key, cluster, image), Tally())
                requests = part * step_s
                tally.total += requests
                bad = float(self._errors.binomial(int(requests), ratio)) if requests >= 1 else 0.0
                tally.bad += bad
                errors += bad / step_s if step_s else 0.0
        return errors
