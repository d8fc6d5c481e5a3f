"""A whole fleet: a hub, members in regions, their metrics and their users. Start only the parts a test needs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from tests.stack import history
from tests.stack.control_plane import ControlPlane, PlaneSpec
from tests.stack.faults import Relay
from tests.stack.metrics import Alertmanager, Prometheus, Sidecar, Target, ThanosQuery
from tests.stack.processes import Process, StackError, Workdir
from tests.stack.users import Service, Users

T = TypeVar("T")
Part = Literal["hub", "members", "prometheus", "thanos", "global", "alertmanager", "users", "relay"]
CONTROL_PLANES: frozenset[Part] = frozenset({"hub", "members"})
ALL: frozenset[Part] = frozenset({"hub", "members", "prometheus", "thanos", "users"})


@dataclass(frozen=True)
class Member:
    """A member cluster: name, region of the carried RTT matrix, and its nodes."""

    name: str
    region: str
    nodes: int = 3
    node_cpu: str = "8"
    node_memory: str = "32Gi"


MEMBERS = (Member("eu-1", "europe-west1"), Member("us-1", "us-east4"), Member("ap-1", "asia-southeast1"))


@dataclass(frozen=True)
class FleetSpec:
    """What to start.

    Attributes:
        parts: hub, members; prometheus (one per member), thanos (sidecars and query over them), global (one Prometheus
            that scrapes all members); alertmanager; users (the traffic emulator, needs members); relay.
        members: The member clusters.
        services: What users use.
        history_days: Length of the services' past in Prometheus, days; 0 for none.
        history_step_s: Between the past's samples, seconds.
        start_delay_s: From a pod's scheduling to its readiness, seconds.
        scrape_interval_s: Seconds.
        rule_files: Loaded by every Prometheus.
        targets: More scrape targets by member name.
        apiserver_args, kcm_args: Added to every plane's.
        prometheus_program: Another Prometheus, such as Debian's 2.42.
        webhook_url: Where Alertmanager sends.
        seed: Of all draws.
    """

    parts: frozenset[Part] = ALL
    members: tuple[Member, ...] = MEMBERS
    services: tuple[Service, ...] = ()
    history_days: float = 0.0
    history_step_s: float = 60.0
    start_delay_s: float = 0.0
    scrape_interval_s: float = 1.0
    rule_files: tuple[Path, ...] = ()
    targets: dict[str, tuple[Target, ...]] = field(default_factory=dict)
    apiserver_args: tuple[str, ...] = ()
    kcm_args: tuple[str, ...] = ()
    prometheus_program: Path | None = None
    webhook_url: str = ""
    seed: int = 0


class Fleet:
    """The running fleet. Parts that were not asked for raise StackError when they are used."""

    def __init__(self, spec: FleetSpec, folder: Path) -> None:
        self.spec = spec
        self.folder = folder
        self.planes: dict[str, ControlPlane] = {}
        self.prometheus: dict[str, Prometheus] = {}
        self.sidecars: dict[str, Sidecar] = {}
        self._hub: ControlPlane | None = None
        self._query: ThanosQuery | None = None
        self._global: Prometheus | None = None
        self._alertmanager: Alertmanager | None = None
        self._users: Users | None = None
        self._relay: Relay | None = None
        self.started_in_s = 0.0
        self.keep_logs = False
        self.phases_s: dict[str, float] = {}

    @classmethod
    @contextmanager
    def start(cls, spec: FleetSpec | None = None, **changes: Any) -> Iterator[Fleet]:
        """Starts a fleet and ends it at the end of the block; logs are kept when the block fails.

        Args:
            spec: What to start; default is everything but global, alertmanager and relay.
            changes: Fields of FleetSpec to change, such as parts=CONTROL_PLANES.

        Raises:
            StackError: A part did not start in time.
        """
        chosen = replace(spec or FleetSpec(), **changes)
        work = Workdir("fleet")
        fleet = cls(chosen, work.path)
        failed = True
        try:
            fleet._bring_up()
            yield fleet
            failed = False
        finally:
            fleet._tear_down()
            work.close(failed=failed or fleet.keep_logs)

    @property
    def hub(self) -> ControlPlane:
        """The hub's control plane."""
        return _there(self._hub, "hub")

    @property
    def thanos(self) -> ThanosQuery:
        """Thanos Query over all members."""
        return _there(self._query, "thanos")

    @property
    def global_prometheus(self) -> Prometheus:
        """The single Prometheus that scrapes all members."""
        return _there(self._global, "global")

    @property
    def alertmanager(self) -> Alertmanager:
        """Alertmanager."""
        return _there(self._alertmanager, "alertmanager")

    @property
    def users(self) -> Users:
        """The traffic emulator."""
        return _there(self._users, "users")

    @property
    def relay(self) -> Relay:
        """TCP proxies and UDP relays."""
        return _there(self._relay, "relay")

    @property
    def regions(self) -> dict[str, str]:
        """Region by member name."""
        return {member.name: member.region for member in self.spec.members}

    def rtt_ms(self, origin: str, cluster: str) -> float:
        """Measured round trip from a region to a member, milliseconds."""
        return history.rtt_ms()[origin][self.regions[cluster]]

    def deploy(self, obj: dict[str, Any], clusters: tuple[str, ...] | None = None) -> None:
        """Server-side-applies an object to members (default: all)."""
        for name in clusters or tuple(self.planes):
            self.planes[name].api.apply(obj)

    def proxy_plane(self, name: str) -> str:
        """Puts the relay's TCP proxy `api-<name>` in front of a member's API server; returns the URL to use."""
        plane = self.planes[name]
        return f"https://127.0.0.1:{self.relay.tcp(f'api-{name}', '127.0.0.1', plane.port)}"

    def processes(self) -> list[Process]:
        """Every process of the fleet."""
        planes = [*self.planes.values(), *([self._hub] if self._hub else [])]
        found = [part for plane in planes for part in plane.parts.values()]
        found += [server.process for server in self._servers() if hasattr(server, "process")]
        return found + [part.process for part in (self._users, self._relay) if part is not None]

    def _servers(self) -> list[Prometheus | Sidecar | ThanosQuery | Alertmanager]:
        single = [server for server in (self._query, self._global, self._alertmanager) if server is not None]
        return [*self.sidecars.values(), *self.prometheus.values(), *single]

    def _bring_up(self) -> None:
        began = time.monotonic()
        parts = self.spec.parts
        if "users" in parts and "members" not in parts:
            raise StackError("users need members")
        self._prepare()
        with ThreadPoolExecutor(max_workers=8) as pool:
            planes = [*self.planes.values(), *([self._hub] if self._hub else [])]
            waiting: list[Future[Any]] = [pool.submit(self._timed, plane.name, plane.start) for plane in planes]
            waiting += [pool.submit(self._timed, f"metrics {p.name}", self._start_metrics(p)) for p in self._scrapers()]
            for part in (self._alertmanager, self._relay):
                if part is not None:
                    waiting.append(pool.submit(part.start))
            for done in waiting:
                done.result()
        if self._users is not None:
            self._timed("users", lambda: _there(self._users, "users").start(self.planes))
        if "thanos" in parts:
            self._query = ThanosQuery(
                self.folder / "thanos-query", [sidecar.grpc for sidecar in self.sidecars.values()]
            )
            self._timed("thanos query", self._query.start)
        self.started_in_s = time.monotonic() - began

    def _timed(self, name: str, act: Callable[[], Any]) -> None:
        began = time.monotonic()
        act()
        self.phases_s[name] = time.monotonic() - began

    def _prepare(self) -> None:
        spec, parts = self.spec, self.spec.parts
        if "hub" in parts:
            self._hub = ControlPlane(self._plane_spec("hub", member=False), self.folder / "hub")
        if "members" in parts:
            for member in spec.members:
                plane = self._plane_spec(member.name, member=True)
                self.planes[member.name] = ControlPlane(plane, self.folder / member.name)
        if "users" in parts:
            self._users = Users(self.folder / "users", self.regions, spec.services, history.rtt_ms(), seed=spec.seed)
        if "relay" in parts:
            self._relay = Relay(self.folder / "relay", seed=spec.seed)
        if "alertmanager" in parts:
            self._alertmanager = Alertmanager(self.folder / "alertmanager", webhook_url=spec.webhook_url)
        if parts & {"prometheus", "thanos"}:
            for member in spec.members:
                self.prometheus[member.name] = self._scraper(f"prometheus-{member.name}", member.name)
                self.prometheus[member.name].scrape(*self._targets(member.name))
        if "global" in parts:
            self._global = self._scraper("prometheus-global", "")
            for member in spec.members:
                self._global.scrape(*self._targets(member.name), cluster=member.name)

    def _plane_spec(self, name: str, *, member: bool) -> PlaneSpec:
        spec = self.spec
        return PlaneSpec(
            name,
            member=member,
            start_delay_s=spec.start_delay_s,
            apiserver_args=spec.apiserver_args,
            kcm_args=spec.kcm_args,
        )

    def _scraper(self, name: str, cluster: str) -> Prometheus:
        return Prometheus(
            name,
            self.folder / name,
            cluster=cluster,
            interval_s=self.spec.scrape_interval_s,
            rule_files=self.spec.rule_files,
            alertmanager_url=self._alertmanager.url if self._alertmanager else "",
            program=self.spec.prometheus_program,
        )

    def _scrapers(self) -> list[Prometheus]:
        return [*self.prometheus.values(), *([self._global] if self._global else [])]

    def _targets(self, member: str) -> tuple[Target, ...]:
        more = self.spec.targets.get(member, ())
        if self._users is None:
            return more
        # The instance is the ingress', not its port, so that history and live series are one.
        return (Target("ingress", self._users.metrics_url(member), {"instance": f"{member}-ingress"}), *more)

    def _start_metrics(self, prometheus: Prometheus) -> Callable[[], None]:
        def start() -> None:
            self._backfill(prometheus)
            prometheus.start()
            if "thanos" in self.spec.parts and prometheus.cluster:
                sidecar = Sidecar(prometheus, self.folder / f"sidecar-{prometheus.cluster}")
                self.sidecars[prometheus.cluster] = sidecar
                sidecar.start()

        return start

    def _backfill(self, prometheus: Prometheus) -> None:
        if not self.spec.history_days:
            return
        clusters = [prometheus.cluster] if prometheus.cluster else list(self.regions)
        for cluster in clusters:
            past = [service for service in self._past(cluster) if service.rates]
            if past:
                path = prometheus.folder / f"history-{cluster}.txt"
                days, step_s = self.spec.history_days, self.spec.history_step_s
                history.write(path, cluster, past, end_s=time.time() - 1, days=days, step_s=step_s)
                prometheus.backfill(path)
                path.unlink()

    def _past(self, cluster: str) -> list[history.PastService]:
        """Each service's past in a cluster: that of the origins it is nearest to."""
        rtt = history.rtt_ms()

        def nearest(origin: str) -> str:
            return min(self.regions, key=lambda name: rtt[origin][self.regions[name]])

        return [
            history.PastService(
                service.namespace,
                service.name,
                {origin: rate for origin, rate in service.mean_rates().items() if nearest(origin) == cluster},
                daily=service.daily_past,
            )
            for service in self.spec.services
        ]

    def add_nodes(self) -> None:
        """Gives every member its nodes."""
        for member in self.spec.members:
            self.planes[member.name].add_nodes(
                member.nodes,
                cpu=member.node_cpu,
                memory=member.node_memory,
                labels={"topology.kubernetes.io/region": member.region},
            )

    def _tear_down(self) -> None:
        stops: list[Callable[[], None]] = [part.stop for part in (self._users, self._relay) if part is not None]
        stops += [server.stop for server in self._servers()]
        stops += [plane.stop for plane in [*self.planes.values(), *([self._hub] if self._hub else [])]]
        errors = []
        for stop in stops:
            try:
                stop()
            except Exception as error:  # noqa: BLE001 - every part gets its end; the first error is raised after
                errors.append(error)
        if errors:
            raise errors[0]


def _there(part: T | None, name: str) -> T:
    if part is None:
        raise StackError(f"this fleet was started without {name}")
    return part
