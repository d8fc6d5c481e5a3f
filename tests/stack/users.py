"""The test's end of the traffic emulator: starts it, gives it orders, asks for its truth."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.stack.control import JSON, Client
from tests.stack.control_plane import ControlPlane
from tests.stack.faults import ROOT
from tests.stack.processes import Process, free_port, wait_for
from tests.stack.traffic import rate_of

Rates = Mapping[str, Any]
"""By origin region, requests/s: a number, points, a file of points, or {"shape": mean}; see traffic.rate_of."""


@dataclass(frozen=True)
class Service:
    """A service for the emulator to send users to.

    Attributes:
        name: Of the Kubernetes Service.
        rates: Requests/s by origin region.
        namespace: Of the Service.
        capacity_per_replica: Requests/s one ready replica takes before `external` steering spills.
        cpu_per_request_s: Core seconds one request burns.
        service_time_ms: Mean of the exponential time in the pod, on top of the round trip.
        base_error: Share of requests that fail anyway.
        steering: external, pinned or weights.
        shares: Origin (or `*`) -> cluster -> weight, for pinned and weights.
        daily_past: Whether the past in Prometheus follows the day; else it is as constant as the rates, so that what a
            controller foresees does not hang on the hour at which the test runs.
    """

    name: str
    rates: Rates
    namespace: str = "default"
    capacity_per_replica: float = 20.0
    cpu_per_request_s: float = 0.005
    service_time_ms: float = 20.0
    base_error: float = 0.0
    steering: str = "external"
    shares: dict[str, dict[str, float]] = field(default_factory=dict)
    daily_past: bool = True

    @property
    def key(self) -> str:
        """namespace/name."""
        return f"{self.namespace}/{self.name}"

    def mean_rates(self) -> dict[str, float]:
        """Mean requests/s by origin, for a past that fits; points count with their first rate."""
        return {origin: _mean(spec) for origin, spec in self.rates.items()}


def _without_past(service: Service) -> JSON:
    """What the emulator needs to know of a service."""
    document = asdict(service)
    del document["daily_past"]
    return document


def _mean(spec: Any) -> float:
    if isinstance(spec, Mapping):
        return float(spec["shape"]) if "shape" in spec else rate_of(spec, "", 0.0)(0.0)
    return float(spec)


class Users:
    """The running emulator. Raises ValueError for orders it refuses."""

    def __init__(
        self,
        folder: Path,
        regions: Mapping[str, str],
        services: tuple[Service, ...],
        rtt_ms: Mapping[str, Mapping[str, float]],
        *,
        seed: int = 0,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.regions, self.services = folder, dict(regions), services
        self._rtt_ms, self._seed = rtt_ms, seed
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.control = Client(self.url)
        argv = [sys.executable, "-m", "tests.stack.emulator", str(folder / "emulator.json")]
        self.process = Process("emulator", argv, folder / "emulator.log", cwd=ROOT)

    def metrics_url(self, cluster: str) -> str:
        """Where one cluster's metrics are scraped."""
        return f"{self.url}/{cluster}/metrics"

    def start(self, planes: Mapping[str, ControlPlane], timeout_s: float = 20.0) -> Users:
        """Starts it on running planes and waits until it has seen all of them."""
        clusters = [
            {
                "name": name,
                "region": region,
                "server": planes[name].server,
                "token": planes[name].credentials.tokens["emulator"],
                "ca": str(planes[name].credentials.ca),
            }
            for name, region in self.regions.items()
        ]
        document = {
            "port": self.port,
            "seed": self._seed,
            "rtt_ms": self._rtt_ms,
            "clusters": clusters,
            "services": [_without_past(service) for service in self.services],
        }
        (self.folder / "emulator.json").write_text(json.dumps(document, indent=1))
        self.process.start()
        wait_for(lambda: all(self.truth()["synced"].values()), "emulator in sync", timeout_s, owner=self.process)
        return self

    def stop(self) -> None:
        """Kills it."""
        self.control.close()
        self.process.kill()

    def order(self, **orders: Any) -> None:
        """Sends orders as they are: rates, steering, errors, service, down, metrics_down, vanish, avoid, ..."""
        self.control.post("/control", orders)

    def set_rates(self, service: str, rates: Rates) -> None:
        """Changes the rates of some origins of namespace/name; points count from now."""
        self.order(rates={service: dict(rates)})

    def steer(self, service: str, mode: str, shares: Mapping[str, Mapping[str, float]] | None = None) -> None:
        """Changes how users of namespace/name are sent."""
        self.order(steering={service: {"mode": mode, "shares": shares}})

    def set_errors(self, *rules: JSON) -> None:
        """Sets all error rules {ratio, at (Unix s), cluster, service, hash, image}; the last that fits wins."""
        self.order(errors=list(rules))

    def down(self, *clusters: str) -> None:
        """Clusters that no user can reach, and whose metrics answer 503; none for all well."""
        self.order(down=list(clusters))

    def metrics_down(self, *clusters: str) -> None:
        """Clusters whose metrics answer 503 while users are served; none for all well."""
        self.order(metrics_down=list(clusters))

    def vanish(self, *rules: dict[str, str]) -> None:
        """Hides series: rules of {cluster, family, service, hash}; none for all shown."""
        self.order(vanish=list(rules))

    def truth(self, window_s: float = 60.0) -> JSON:
        """The whole truth; see truth.Truth.document."""
        return self.control.get(f"/truth?window={window_s}")

    def service_truth(self, service: str, window_s: float = 60.0) -> JSON:
        """The truth on one service (namespace/name). Raises KeyError before it was first seen."""
        found: JSON = self.truth(window_s)["services"][service]
        return found

    def wait_requests(self, service: str, count: int, timeout_s: float = 20.0) -> None:
        """Waits until so many requests have been answered since the start, by all clusters and arms."""

        def enough() -> bool:
            arms = self.service_truth(service)["arms"].values()
            return count <= sum(int(arm["requests"]) for cluster in arms for arm in cluster.values())

        wait_for(enough, f"{count} requests to {service}", timeout_s, poll_s=0.1, owner=self.process)

    def avoid(self, **extra_ms: float) -> None:
        """What the load balancer adds to a way in its choice, as one that sees losses does: {"origin|cluster": ms}."""
        self.order(avoid=extra_ms)

    def mark(self) -> float:
        """Begins a new period for `min_total_ready`; returns now."""
        self.order(mark=True)
        return time.time()
