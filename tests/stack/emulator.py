"""Users and ingress of the test fleet, as a process of its own: `python -m tests.stack.emulator CONFIG.json`.

kwok's pods serve nothing, so this sends each origin's requests where the steering in force would, over the endpoints
that are really ready, and exports per cluster what an ingress would count. Its own truth is at GET /truth.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
from numpy.typing import NDArray

from tests.stack import traffic
from tests.stack.control import JSON, Handler, Text, serve
from tests.stack.ingress import Ingress
from tests.stack.sightings import Pod, Sight
from tests.stack.truth import Truth

TICK_S = 0.2
_IDLE_CORES = 0.001


@dataclass
class Service:
    """One emulated service and how its users are steered. Rates are requests/s by origin."""

    namespace: str
    name: str
    capacity_per_replica: float
    cpu_per_request_s: float = 0.005
    service_time_ms: float = 20.0
    base_error: float = 0.0
    steering: str = "external"
    shares: dict[str, dict[str, float]] = field(default_factory=dict)
    rate_specs: dict[str, Any] = field(default_factory=dict)
    rates: dict[str, traffic.Rate] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """namespace/name."""
        return f"{self.namespace}/{self.name}"

    def set_rates(self, specs: dict[str, Any], started_s: float) -> None:
        """Sets the rates of some origins; the others stay."""
        made = {origin: traffic.rate_of(spec, origin, started_s) for origin, spec in specs.items()}
        self.rate_specs.update(specs)
        self.rates.update(made)

    def steer(self, mode: str, shares: dict[str, dict[str, float]] | None) -> None:
        """Changes the steering. Raises ValueError for an unknown mode."""
        if mode not in traffic.MODES:
            raise ValueError(f"steering is one of {traffic.MODES}")
        self.steering = mode
        if shares is not None:
            self.shares = shares


@dataclass(frozen=True)
class Rule:
    """An error ratio for what it selects, from a moment on (Unix seconds); empty fields select all."""

    ratio: float
    at: float
    cluster: str = ""
    service: str = ""
    hash: str = ""
    image: str = ""

    def applies(self, cluster: str, service: str, pod: Pod, now: float) -> bool:
        """Whether it is in force for a pod. `image` is a whole image or its tag."""
        return (
            now >= self.at
            and self.cluster in ("", cluster)
            and self.service in ("", service)
            and self.hash in ("", pod.arm)
            and (not self.image or pod.image == self.image or pod.image.endswith(":" + self.image))
        )


class Emulator:
    """The whole: ticks in one thread, answers scrapes and orders in others. One lock guards settings and truth."""

    def __init__(self, config: JSON) -> None:
        self.started_s = time.time()
        self.rng = np.random.default_rng(int(config.get("seed", 0)))
        self.rtt: dict[str, dict[str, float]] = config["rtt_ms"]
        self.regions = {cluster["name"]: str(cluster["region"]) for cluster in config["clusters"]}
        self.sights = {c["name"]: Sight(c["server"], c["token"], Path(c["ca"])) for c in config["clusters"]}
        self.ingresses = {name: Ingress() for name in self.regions}
        self.services: dict[str, Service] = {}
        for entry in config["services"]:
            rates = entry.pop("rates", {})
            service = Service(**entry)
            service.set_rates(rates, self.started_s)
            self.services[service.key] = service
        self.rules: list[Rule] = []
        self.down: set[str] = set()
        self.metrics_down: set[str] = set()
        self.vanished: list[dict[str, str]] = []
        self.avoid: dict[str, float] = {}
        self.truth = Truth()
        self.lock = threading.Lock()
        self._last = time.monotonic()

    def run(self) -> None:
        """Ticks for ever, once every cluster has been seen."""
        while not all(sight.synced for sight in self.sights.values()):
            time.sleep(0.05)
        self._last = time.monotonic()
        while True:
            began = time.monotonic()
            with self.lock:
                self.tick()
            time.sleep(max(0.0, TICK_S - (time.monotonic() - began)))

    def tick(self) -> None:
        """Sends the requests of the time since the last tick."""
        now, elapsed = time.time(), time.monotonic() - self._last
        self._last += elapsed
        ready = {name: sight.ready() for name, sight in self.sights.items()}
        for service in self.services.values():
            pods = {name: ready[name].get((service.namespace, service.name), []) for name in self.regions}
            self.truth.saw_ready(service.key, now, {name: len(found) for name, found in pods.items()})
            self._send(service, pods, now, elapsed)
        for name, sight in self.sights.items():
            self.ingresses[name].forget_pods({(pod.namespace, pod.name) for pod in sight.pods.items()})

    def _send(self, service: Service, pods: dict[str, list[Pod]], now: float, elapsed: float) -> None:
        origins, clusters = list(service.rates), list(self.regions)
        # Nobody has heard of a service that never had an endpoint; later, none left means failed requests.
        if not origins or not self.truth.known(service.key):
            return
        rates = np.array([max(0.0, service.rates[origin](now)) for origin in origins])
        rtt = np.array([[self._rtt(origin, cluster) for cluster in clusters] for origin in origins])
        steered = self._steered(service, rates, rtt, pods)
        counts = self.rng.poisson(steered * elapsed)
        self.truth.sent(service.key, now, counts, rtt)
        for column, cluster in enumerate(clusters):
            found = [] if cluster in self.down else pods[cluster]
            load = self._serve(service, cluster, found, origins, counts[:, column], rtt[:, column], now)
            self._burn(service, cluster, pods[cluster], load, elapsed)

    def _rtt(self, origin: str, cluster: str) -> float:
        return self.rtt[origin][self.regions[cluster]]

    def _steered(
        self, service: Service, rates: traffic.Array, rtt: traffic.Array, pods: dict[str, list[Pod]]
    ) -> traffic.Array:
        clusters = list(self.regions)
        ready = np.array([0.0 if name in self.down else len(pods[name]) for name in clusters])
        avoid = np.array([[self.avoid.get(f"{o}|{c}", 0.0) for c in clusters] for o in service.rates])
        external = traffic.nearest_first(rates, rtt + avoid, ready * service.capacity_per_replica)
        if service.steering == "external":
            return external
        return traffic.by_weights(rates, list(service.rates), clusters, service.shares, external)

    def _serve(
        self, service: Service, cluster: str, pods: list[Pod], origins: list[str],
        counts: NDArray[np.int64], rtt: traffic.Array, now: float,
    ) -> dict[str, int]:  # fmt: skip
        """Spreads one cluster's requests over its ready pods, draws errors and durations; requests by pod."""
        ingress = self.ingresses[cluster]
        load: dict[str, int] = {}
        for origin, count, way_ms in zip(origins, counts.tolist(), rtt.tolist(), strict=True):
            if not count:
                continue
            if not pods:
                ingress.requests(service.namespace, service.name, origin, "", "503", count)
                self.truth.unserved(service.key, cluster, count)
                continue
            seconds = way_ms / 1000 + self.rng.exponential(service.service_time_ms / 1000, count)
            ingress.durations(service.namespace, service.name, origin, seconds)
            arms: dict[str, tuple[Pod, int]] = {}
            split = self.rng.multinomial(count, np.full(len(pods), 1 / len(pods)))
            for pod, share in zip(pods, split.tolist(), strict=True):
                arms[pod.arm] = (pod, arms.get(pod.arm, (pod, 0))[1] + share)
                load[pod.name] = load.get(pod.name, 0) + share
            for arm, (pod, total) in arms.items():
                bad = int(self.rng.binomial(total, self._error_ratio(service, cluster, pod, now)))
                for code, amount in (("200", total - bad), ("500", bad)):
                    if amount:
                        ingress.requests(service.namespace, service.name, origin, arm, code, amount)
                self.truth.served(service.key, cluster, arm, pod.image, total, bad, now)
        return load

    def _error_ratio(self, service: Service, cluster: str, pod: Pod, now: float) -> float:
        found = [rule.ratio for rule in self.rules if rule.applies(cluster, service.key, pod, now)]
        return found[-1] if found else service.base_error

    def _burn(self, service: Service, cluster: str, pods: list[Pod], load: dict[str, int], elapsed: float) -> None:
        for pod in pods:
            wanted = load.get(pod.name, 0) * service.cpu_per_request_s + _IDLE_CORES * elapsed
            bound = pod.cpu_limit * elapsed
            self.ingresses[cluster].cpu(pod, min(wanted, bound), elapsed, wanted > bound)

    def metrics(self, path: str) -> Text:
        """GET /<cluster>/metrics."""
        cluster = path.strip("/").split("/")[0]
        if cluster not in self.sights:
            return 404, f"no cluster {cluster}"
        if cluster in self.metrics_down or cluster in self.down:
            return 503, "down on purpose"
        sight = self.sights[cluster]
        rules = [rule for rule in self.vanished if rule.get("cluster", cluster) == cluster]

        def hidden(family: str, labels: Any) -> bool:
            return any(_vanishes(rule, family, labels) for rule in rules)

        return 200, self.ingresses[cluster].render(sight.pods.items(), sight.nodes.items(), hidden)

    def control(self, _: str, orders: JSON) -> JSON:
        """POST /control. Raises KeyError or ValueError for orders it does not know; then nothing is changed."""
        if unknown := set(orders) - set(_ORDERS):
            raise ValueError(f"unknown orders {sorted(unknown)}; known are {sorted(_ORDERS)}")
        with self.lock:
            for name, value in orders.items():
                _ORDERS[name](self, value)
        return {"now": time.time()}

    def _set_rates(self, value: dict[str, dict[str, Any]]) -> None:
        for key, specs in value.items():
            self.services[key].set_rates(specs, time.time())

    def _set_steering(self, value: dict[str, JSON]) -> None:
        for key, steering in value.items():
            self.services[key].steer(steering["mode"], steering.get("shares"))

    def _set_errors(self, value: list[JSON]) -> None:
        self.rules = [Rule(**{"at": time.time(), **rule}) for rule in value]

    def _set_service(self, value: dict[str, dict[str, float]]) -> None:
        for key, changes in value.items():
            for name, number in changes.items():
                if name not in ("capacity_per_replica", "cpu_per_request_s", "service_time_ms", "base_error"):
                    raise ValueError(f"cannot set {name}")
                setattr(self.services[key], name, float(number))

    def _reset_counters(self, value: list[str]) -> None:
        for cluster in value:
            self.ingresses[cluster] = Ingress()

    def answer_truth(self, path: str, _: JSON) -> JSON:
        """GET /truth?window=SECONDS (default 60)."""
        window = float(parse_qs(urlsplit(path).query).get("window", ["60"])[0])
        with self.lock:
            return {
                "now": time.time(),
                "synced": {name: sight.synced for name, sight in self.sights.items()},
                "rates": {
                    key: {origin: rate(time.time()) for origin, rate in service.rates.items()}
                    for key, service in self.services.items()
                },
                **self.truth.document(time.time(), window),
            }


_ORDERS: dict[str, Any] = {
    "rates": Emulator._set_rates,
    "steering": Emulator._set_steering,
    "errors": Emulator._set_errors,
    "service": Emulator._set_service,
    "reset_counters": Emulator._reset_counters,
    "down": lambda self, value: setattr(self, "down", set(value)),
    "metrics_down": lambda self, value: setattr(self, "metrics_down", set(value)),
    "vanish": lambda self, value: setattr(self, "vanished", list(value)),
    "avoid": lambda self, value: setattr(self, "avoid", {str(k): float(v) for k, v in value.items()}),
    "mark": lambda self, _: self.truth.mark(time.time()),
}


def _vanishes(rule: dict[str, str], family: str, labels: dict[str, str]) -> bool:
    """Whether a rule {cluster, family, service: namespace/name, hash} hides a series; it must name one of the last."""
    tests = {
        "family": family,
        "service": f"{labels.get('namespace')}/{labels.get('service')}",
        "hash": labels.get("pod_template_hash"),
    }
    named = [name for name in tests if name in rule]
    return bool(named) and all(rule[name] == tests[name] for name in named)


def main(argv: list[str]) -> None:
    """Serves until it is killed."""
    config = json.loads(Path(argv[0]).read_text())
    emulator = Emulator(config)
    handlers: dict[str, Handler] = {
        "POST /control": emulator.control,
        "GET /truth": emulator.answer_truth,
        "GET /": lambda path, _: emulator.metrics(path),
    }
    serve(int(config["port"]), handlers)
    emulator.run()


if __name__ == "__main__":
    main(sys.argv[1:])
