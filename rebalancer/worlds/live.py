"""The live world: real clusters, real metrics, the system clock."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from rebalancer import config as cfg
from rebalancer.adapters.clock import SystemClock
from rebalancer.adapters.journal import SqliteJournal
from rebalancer.adapters.kubernetes.actuator import KubernetesActuator
from rebalancer.adapters.kubernetes.clients import Clients, ClusterClient, hub_client
from rebalancer.adapters.kubernetes.events import KubernetesNotifier
from rebalancer.adapters.kubernetes.hub import KubernetesHub, read_clocks
from rebalancer.adapters.kubernetes.kubeconfigs import check_files
from rebalancer.adapters.kubernetes.permissions import Finding
from rebalancer.adapters.kubernetes.rollouts import HubRollouts, KubernetesRollouts
from rebalancer.adapters.telemetry.backend import Counts
from rebalancer.adapters.telemetry.demand import NEXT_CYCLE
from rebalancer.adapters.telemetry.grid import of_window
from rebalancer.adapters.telemetry.recording import Recording, write
from rebalancer.adapters.telemetry.view import DEADLINE_S, MetricsTelemetry
from rebalancer.api.base import API_VERSION
from rebalancer.api.controller import RebalancerConfigSpec
from rebalancer.core.model import TOTAL, Placement
from rebalancer.core.moves import MoveSettings
from rebalancer.core.network import NetworkSettings
from rebalancer.core.planning import PlanMemory, PlanSettings
from rebalancer.core.policy import Policy
from rebalancer.core.rollout.model import Verb
from rebalancer.core.rollout.ownership import settle
from rebalancer.core.rollout.stored import Stored
from rebalancer.core.rollout.verbs import request_patch
from rebalancer.core.scaling import ScalingSettings
from rebalancer.core.sight import Clock as SightClock
from rebalancer.cycle import Cycle, CycleReport, CycleSettings, Memory, Ports
from rebalancer.errors import ConfigError, RebalancerError
from rebalancer.ports import DemandWindow, Outcome, RolloutStore
from rebalancer.rollouts import MemoryStore, Rollouts, TickReport
from rebalancer.worlds.kernels import Kernels

ASK_S = 10.0
TELEMETRY_SHARE = 0.8
"""Share of the cycle's deadline in which the metrics must have answered."""
RECORD_CALLS = 40
"""Each has its own deadline and goes on where the last one stopped."""


@dataclass(frozen=True, slots=True)
class Live:
    """The documents a live world is built from.

    Attributes:
        documents: of the files.
        config: what they say by themselves; the hub's objects come on top.
        spec: how the controller runs.
    """

    documents: tuple[cfg.Document, ...]
    config: cfg.Config
    spec: RebalancerConfigSpec


def settings_of(spec: RebalancerConfigSpec) -> CycleSettings:
    """Turns the controller's configuration into the cycle's settings."""
    network, scaling, telemetry = spec.network, spec.scaling, spec.telemetry
    plan = PlanSettings(
        scaling=ScalingSettings(scaling.stabilization, scaling.tolerance),
        moves=MoveSettings(scaling.cool_down, telemetry.rate_window),
        network=NetworkSettings(
            degraded_loss=network.degraded_loss,
            poor_loss=network.poor_loss,
            enter_after_s=network.enter_after,
            leave_after_s=network.leave_after,
            degraded_rtt_factor=network.degraded_rtt_factor,
            poor_rtt_factor=network.poor_rtt_factor,
            degraded_rtt_extra_s=network.degraded_rtt_extra,
            poor_rtt_extra_s=network.poor_rtt_extra,
        ),
    )
    return CycleSettings(
        history_s=telemetry.history,
        step_s=telemetry.history_step,
        clocks={region: ZoneInfo(zone) for region, zone in telemetry.time_zones.items()},
        observe_deadline_s=spec.cycle.deadline,
        plan=plan,
    )


def read(documents: Sequence[cfg.Document]) -> Live:
    """Checks the files of a live world.

    Raises:
        ConfigError: something is wrong or missing; every problem is named.
    """
    config = cfg.load(documents)
    if config.controller is None:
        raise ConfigError(["no RebalancerConfig was found in the files given; it says where metrics come from"])
    if not config.clusters and config.controller.spec.hub is None:
        raise ConfigError(["no MemberCluster was found; declare the clusters in the files, or name a hub in spec.hub"])
    if config.rollouts and config.controller.spec.hub is not None:
        names = ", ".join(sorted(config.rollouts))
        raise ConfigError(
            [
                f"CanaryRollout {names} stands in a file, but spec.hub is set: their status lives on the hub; "
                "apply them there and take them out of the files"
            ]
        )
    check_files(config.clusters, config.controller.spec.hub)
    return Live(tuple(documents), config, config.controller.spec)


class LiveWorld:
    """Drives cycles and rollout ticks over real ports."""

    def __init__(
        self,
        live: Live,
        hub: ClusterClient | None,
        config: cfg.Config,
        clocks: Mapping[str, SightClock],
        may_act: Callable[[], bool],
        counts: Counts | None = None,
    ) -> None:
        """Plugs the adapters in; use `open_world`.

        Args:
            live: the files.
            hub: the hub's client, or None.
            config: files and hub together.
            clocks: sight clocks that survived in status.
            may_act: asked before every write.
            counts: told of each metrics query: backend, outcome, seconds.
        """
        self.live, self.config, self.hub_client = live, config, hub
        self.hub = KubernetesHub(hub) if hub is not None else None
        self.clock = SystemClock()
        self.clients = Clients(config.clusters, hub)
        self.actuator = KubernetesActuator(config.clusters, self.clients)
        # What is answered late must not cost what was answered in time.
        deadline_s = min(DEADLINE_S, TELEMETRY_SHARE * live.spec.cycle.deadline)
        self.telemetry = MetricsTelemetry(
            live.spec.telemetry, config.clusters, self.clock, counts, deadline_s=deadline_s
        )
        self.journal = SqliteJournal(live.spec.journal or ":memory:")
        self.notifier = KubernetesNotifier(self.clients.members, self.actuator.uid_of)
        self.problems: list[str] = []
        self.mistakes: tuple[str, ...] = ()
        """What was wrong with objects of the hub at the start; they are left out."""
        if config.rollouts and hub is None:
            self.problems.append("rollouts of files keep their status in memory: a restart begins them anew; use a hub")
        ports = Ports(self.clock, self.telemetry, self.actuator, self.journal, self.notifier, may_act)
        memory = Memory(plan=PlanMemory(clocks=clocks))
        self.cycle = Cycle(ports, sorted(config.clusters), settings_of(live.spec), memory)
        self.kernels = Kernels(self.cycle)
        self._owned: frozenset[str] = frozenset()
        self._ticked = False
        self.on_hub: frozenset[tuple[str, str]] = frozenset()
        self._hub_rollouts = HubRollouts(hub.api) if hub is not None else None
        self._memory_rollouts = MemoryStore([r.to_spec() for r in config.rollouts.values()])
        store: RolloutStore = self._hub_rollouts or self._memory_rollouts
        self._members = KubernetesRollouts(self.clients.apis())
        self.rollouts = Rollouts(
            store, self._members, self.telemetry, self.clock,
            lambda: {n: dict(c.spec.labels) for n, c in self.config.clusters.items()},
            self.notifier, acting=may_act,
        )  # fmt: skip

    async def refresh(self) -> None:
        """Reads the hub's documents again; one that is wrong is left out with its sentence, the others go on."""
        if self.hub is None:
            return
        try:
            raw = await self.hub.documents()
        except RebalancerError as error:
            self.problems = [str(error)]
            return
        self.on_hub = _names(raw)
        config, self.problems = cfg.load_each(_documents(self.live, raw))
        if set(config.clusters) != set(self.config.clusters):
            self.problems.append("the list of MemberClusters changed; restart the controller to take it over")
            config = cfg.Config(
                config.controller, self.config.clusters, config.policies, config.propagation, config.rollouts
            )  # fmt: skip
        self.config = config

    def policies(self) -> dict[str, Policy]:
        """The policies in force, by `namespace/name`."""
        return {key: p.resolve() for key, p in self.config.policies.items()}

    def _allows(self, placement: Placement) -> bool:
        """Whether the propagation policies that select a workload let it stand in a cluster."""
        namespace, _, name = placement.workload.partition("/")
        cluster = self.config.clusters[placement.cluster].spec
        labels = dict(placement.labels)
        return all(
            p.allows(placement.cluster, cluster.region, dict(cluster.labels))
            for p in self.config.propagation.values()
            if p.selects(namespace, name, labels)
        )

    async def check_hub(self) -> tuple[Finding, ...]:
        """What `rebalancer check` says of the hub; nothing where there is none."""
        return await self.hub.check() if self.hub is not None else ()

    async def demand_usable(self) -> None:
        """Looks at the metrics backends once, before anything runs.

        Raises:
            RebalancerError: none of them can be used; what each said.
        """
        found = [f for f in await self.telemetry.check(self.policies()) if f.what == "backend"]
        if found and all(f.state == "missing" for f in found):
            raise RebalancerError("\n".join(f.sentence for f in found))

    async def run_cycle(self) -> CycleReport:
        """Runs one cycle."""
        await self.refresh()
        if not self._ticked:
            # Before the first tick the stored status says which workloads a rollout owns.
            with contextlib.suppress(RebalancerError):
                self._owned = frozenset(s.spec.workload_key for s in await self.stored_rollouts() if s.active)
        report = await self.cycle.run(self.policies(), self._owned, self._allows)
        self.telemetry.owners = report.snapshot.policies
        return report

    async def record(self, path: Path) -> int:
        """Writes the history of demand to a file; returns the number of series.

        Raises:
            RebalancerError: there is no history, or the file can't be written.
        """
        spec = self.live.spec.telemetry
        end = self.clock.now() // spec.history_step * spec.history_step
        window = DemandWindow(end - spec.history, end, spec.history_step)
        for _ in range(RECORD_CALLS):
            answer = await self.telemetry.demand(window, self.policies())
            if not any(NEXT_CYCLE in text for text in answer.errors):
                break
        if not answer.keys:
            raise RebalancerError("\n".join(answer.errors) or "no policy's demand has a series; run `rebalancer check`")
        grid = of_window(window.start_s, window.end_s, window.step_s)
        rows = dict(zip(answer.keys, answer.values, strict=True))
        rows |= {(workload, TOTAL, ""): ratio for workload, ratio in answer.peaks.items()}
        write(path, Recording(grid, answer.units, rows))
        return len(answer.keys)

    async def tick(self) -> TickReport:
        """Ticks all rollouts once."""
        report = await self.rollouts.tick()
        self._owned, self._ticked = report.owned, True
        return report

    async def stored_rollouts(self) -> Sequence[Stored]:
        """All rollouts with their status; those of files have none before a controller runs."""
        return settle(await (self._hub_rollouts or self._memory_rollouts).load())

    async def ask(self, rollout: str, verb: Verb, request_id: str, *, full: bool) -> None:
        """Asks for a verb on a rollout of the hub.

        Raises:
            ClusterError: the hub did not take it.
            ConfigError: the rollout stands in a file, where nobody can be asked.
        """
        hub = self.hub_client
        if hub is None:
            raise ConfigError([f"{rollout} stands in a file; verbs need a hub, set spec.hub in RebalancerConfig"])
        namespace, _, name = rollout.partition("/")
        path = f"/apis/{API_VERSION}/namespaces/{namespace}/canaryrollouts/{name}"
        until = time.monotonic() + ASK_S
        await hub.writes.run(
            lambda: hub.request(
                "PATCH", path, until=until, body=request_patch(verb, request_id, full=full),
                content_type="application/merge-patch+json",
            ),
            ASK_S + 0.5,
        )  # fmt: skip

    async def write_status(self, kind: str, namespace: str, name: str, status: Mapping[str, object]) -> Outcome:
        """Writes one status to the hub; without a hub there is nowhere to write it."""
        if self.hub is None:
            return Outcome("unchanged")
        return await self.hub.write_status(kind, namespace, name, status)

    async def close(self) -> None:
        """Closes everything, in the order of use."""
        await self.kernels.close()
        await self.rollouts.close()
        self._members.close()
        if self._hub_rollouts is not None:
            self._hub_rollouts.close()
        await self.telemetry.close()
        self.journal.close()
        await asyncio.to_thread(self.clients.close)


def _names(raw: Sequence[Mapping[str, Any]]) -> frozenset[tuple[str, str]]:
    """(kind, name or `namespace/name`) of the hub's objects: only these have a status to write."""
    found = set()
    for one in raw:
        meta = one.get("metadata", {})
        space = "" if one.get("kind") == "MemberCluster" else f"{meta.get('namespace', '')}/"
        found.add((str(one.get("kind")), f"{space}{meta.get('name', '')}"))
    return frozenset(found)


def _documents(live: Live, raw: Sequence[dict[str, Any]]) -> list[cfg.Document]:
    """Files and hub, clusters first: looked at one by one, nothing may name a cluster that comes later."""
    every = [*live.documents, *cfg.from_hub(raw)]
    return sorted(every, key=lambda d: d.data.get("kind") not in ("RebalancerConfig", "MemberCluster"))


def at_start(live: Live, raw: Sequence[dict[str, Any]]) -> tuple[cfg.Config, list[str]]:
    """Checks files and hub together at the start.

    A wrong object of the hub is left out with its sentence, as later on: anybody who may write there could keep the
    controller from starting. Files are their reader's own and strict, and so are clusters: without one of them a
    rollback would be complete too early.

    Raises:
        ConfigError: the files or the clusters are wrong.
    """
    clusters = [o for o in raw if o.get("kind") == "MemberCluster"]
    cfg.load([*live.documents, *cfg.from_hub(clusters)])
    return cfg.load_each(_documents(live, raw))


async def open_world(live: Live, may_act: Callable[[], bool], counts: Counts | None = None) -> LiveWorld:
    """Opens a live world.

    Raises:
        ConfigError: the hub's clusters are wrong.
        ClusterError: the hub can't be read.
    """
    hub, raw = None, list[dict[str, Any]]()
    if live.spec.hub is not None:
        hub = hub_client(live.spec.hub.kubeconfig_path, live.spec.hub.context)
        raw = await KubernetesHub(hub).documents()
    config, mistakes = at_start(live, raw)
    if not config.clusters:
        raise ConfigError(["no MemberCluster was found in the files or on the hub; declare the clusters"])
    check_files(config.clusters, live.spec.hub)
    world = LiveWorld(live, hub, config, read_clocks(raw), may_act, counts)
    world.mistakes = tuple(mistakes)
    world.problems += [*mistakes, *(f"{name}: {problem}" for name, problem in (await world.clients.connect()).items())]
    return world
