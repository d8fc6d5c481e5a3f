"""The simulated ports: what the controller sees of the plant. They never wait, so a simulated day is deterministic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rebalancer.core.model import (
    ClusterState,
    EndIntent,
    Floats,
    NodeRoom,
    Placement,
    PutIntent,
    SetReplicas,
    Step,
    View,
)
from rebalancer.core.network import Cell, LatencyMap, measured_cell
from rebalancer.core.policy import Policy
from rebalancer.ports import (
    Counter,
    CounterAnswer,
    DemandAnswer,
    DemandWindow,
    FleetState,
    NetworkAnswer,
    Outcome,
    RoomAnswer,
    Selection,
)
from rebalancer.sim.plant import Plant, Tick

KEEP_MOVED = 50


class SimClock:
    """The plant's time."""

    def __init__(self, plant: Plant) -> None:
        """Reads the plant."""
        self._plant = plant

    def now(self) -> float:
        """Returns the plant's time."""
        return self._plant.now

    async def sleep(self, seconds: float) -> None:
        """Returns at once: the world moves the plant on."""


class SimTelemetry:
    """Metrics of the plant: demand on a grid, the latency map, raw counters."""

    def __init__(self, plant: Plant, history_s: float, step_s: float) -> None:
        """Lays a history of demand before the plant's start, as if the users had always been there.

        Args:
            plant: the plant at its start.
            history_s: how far back.
            step_s: the grid.
        """
        self._plant, self._step_s = plant, step_s
        self._slots = round(history_s / step_s)
        self._end = plant.now // step_s * step_s
        self._rows: dict[tuple[str, str, str], Floats] = {}
        self._filling: dict[tuple[str, str, str], float] = {}
        self._scrapes: dict[str, int] = {}
        self._latest: dict[tuple[str, str, str], float] = {}
        self._counters: dict[tuple[str, str, str], list[tuple[float, float, float]]] = {}
        times: Floats = np.asarray(self._end - np.arange(self._slots, dtype=np.float64)[::-1] * step_s)
        for key, service in plant.services.items():
            homes = [c for c in plant.clusters if plant.deployments[key, c].wanted]
            for region in plant.earth.regions:
                home = min(homes, key=lambda c: plant.earth.rtt_ms[region, plant.clusters[c].region])
                self._rows[key, region, home] = plant.earth.demand(region, service.peak, times)

    def note(self, tick: Tick) -> None:
        """Takes the truth of a moment into the metrics, as far as they can be scraped."""
        end = tick.at_s // self._step_s * self._step_s
        if end > self._end:
            self._roll(end)
        self._latest = {k: v for k, v in tick.served.items() if k[2] not in self._plant.down}
        for cluster in self._plant.clusters:
            self._scrapes[cluster] = self._scrapes.get(cluster, 0) + (cluster not in self._plant.down)
        for key, value in self._latest.items():
            self._filling[key] = self._filling.get(key, 0.0) + value
        for (workload, cluster, image), tally in self._plant.tallies.items():
            if cluster not in self._plant.down:
                line = self._counters.setdefault((workload, cluster, image), [])
                line.append((tick.at_s, tally.total, tally.bad))
                del line[:-400]

    def _roll(self, end: float) -> None:
        """Closes the slots up to `end`."""
        shift = min(self._slots, round((end - self._end) / self._step_s))
        self._end = end
        for key in {*self._rows, *self._filling}:
            row = self._rows.get(key)
            old = row if row is not None else np.full(self._slots, np.nan)
            # A counter that stands still is scraped all the same: zero where its cluster was up, else a gap.
            scrapes = self._scrapes.get(key[2], 0)
            fresh = self._filling.get(key, 0.0) / scrapes if scrapes else np.nan
            self._rows[key] = np.concatenate([old[shift:], np.full(shift - 1, np.nan), [fresh]])
        self._filling, self._scrapes = {}, {}

    def _views(self) -> dict[str, View]:
        plant = self._plant
        return {
            c: View("failed", plant.seen_s[c], "its Prometheus does not answer") if c in plant.down
            else View("complete", plant.now)
            for c in plant.clusters
        }  # fmt: skip

    async def demand(self, window: DemandWindow, policies: Mapping[str, Policy]) -> DemandAnswer:
        """Returns demand as an ingress would have counted it."""
        keys = tuple(sorted({*self._rows, *self._latest}))
        blank = np.full(self._slots, np.nan)
        values = np.array([self._rows.get(k, blank) for k in keys]).reshape(len(keys), self._slots)
        latest = np.array([self._latest.get(k, np.nan) for k in keys])
        return DemandAnswer(keys, dict.fromkeys(self._plant.services, "requests/s"), values, latest, self._views())

    async def room(self) -> RoomAnswer:
        """The plant's room is read from its nodes."""
        return RoomAnswer({})

    async def network(self, now: float) -> NetworkAnswer:
        """Returns what probes between all clusters would have measured."""
        plant = self._plant
        cells: dict[tuple[str, str], Cell] = {}
        for a, left in plant.clusters.items():
            for b, right in plant.clusters.items():
                if a == b or a in plant.down:
                    continue
                rtt = plant.earth.rtt_ms[left.region, right.region] / 1000.0
                loss = plant.loss(left.region, right.region)
                cells[a, b] = measured_cell(None if b in plant.down else rtt, loss=loss)
        return NetworkAnswer(LatencyMap(cells, {c: d.region for c, d in plant.clusters.items()}))

    async def counters(
        self, selection: Selection, clusters: Sequence[str], since_s: float, now: float
    ) -> CounterAnswer:
        """Returns raw counters by image; the selection's total names the workload as `workload="namespace/name"`."""
        total, bad = [], []
        for (workload, cluster, image), line in sorted(self._counters.items()):
            if cluster not in clusters or f'"{workload}"' not in selection.total:
                continue
            kept = [p for p in line if since_s < p[0] <= now]
            labels = {"cluster": cluster, selection.version_label: image}
            times = tuple(p[0] for p in kept)
            total.append(Counter(labels, times, tuple(p[1] for p in kept)))
            if any(p[2] > 0 for p in kept):  # as a real ingress: a series is born at its first event
                bad.append(Counter(labels, times, tuple(p[2] for p in kept)))
        return CounterAnswer(tuple(total), tuple(bad), {c: v for c, v in self._views().items() if c in clusters})


class SimActuator:
    """The plant's API servers."""

    def __init__(self, plant: Plant, policies: Mapping[str, str]) -> None:
        """Takes the plant and which workload has which policy."""
        self._plant, self._policies = plant, policies
        self._last: dict[str, tuple[ClusterState, dict[str, Placement]]] = {}

    async def observe(self, policies: Sequence[Policy], now: float) -> FleetState:
        """Reads the clusters that are up; of the others the last known state."""
        plant = self._plant
        for name in plant.clusters:
            if name not in plant.down:
                plant.seen_s[name] = now
                self._last[name] = (self._state(name, now), {w: self._placement(w, name, now) for w in plant.services})
        clusters, placements = {}, dict[str, dict[str, Placement]]()
        for name, (state, found) in self._last.items():
            clusters[name] = state
            for workload, placement in found.items():
                placements.setdefault(workload, {})[name] = placement
        return FleetState(clusters, placements, self._policies)

    def _state(self, name: str, now: float) -> ClusterState:
        plant = self._plant
        node = NodeRoom(f"{name}-node", plant.free_cpu(name), 2.0**40, 10_000)
        return ClusterState(plant.clusters[name], now, (node,), plant.node_cpu[name], 2.0**40, "v1.36.0")

    def _placement(self, workload: str, cluster: str, now: float) -> Placement:
        deployment = self._plant.deployments[workload, cluster]
        service = self._plant.services[workload]
        return Placement(
            workload=workload,
            cluster=cluster,
            wanted=deployment.wanted,
            ready_since_s=tuple(sorted(p.ready_s for p in deployment.ready(now))),
            cpu=service.cpu,
            memory=service.memory,
            move=deployment.move,
            moved=deployment.moved,
            resource_version=str(deployment.version),
            observed_s=now,
            unavailable_pods=len(deployment.pods) - len(deployment.ready(now)),
            starts=tuple((p.ready_s, p.ready_s - p.made_s) for p in deployment.ready(now) if p.made_s is not None),
        )

    async def apply(self, workload: str, step: Step, placement: Placement) -> Outcome:
        """Carries out one step, with the same rules as on a real cluster."""
        if step.cluster in self._plant.down:
            return Outcome("unreachable", f"{step.cluster} does not answer")
        deployment = self._plant.deployments[workload, step.cluster]
        if isinstance(step, SetReplicas):
            if deployment.wanted == step.replicas:
                return Outcome("unchanged")
            if deployment.wanted != step.expected:
                return Outcome("conflict", f"{deployment.wanted} replicas found, {step.expected} expected")
            deployment.wanted = step.replicas
        elif isinstance(step, PutIntent):
            deployment.move = step.record
        elif isinstance(step, EndIntent):
            if deployment.move is not None and deployment.move.id == step.move_id:
                deployment.move = None
            deployment.moved = (*deployment.moved, step.moved)[-KEEP_MOVED:]
        deployment.version += 1
        return Outcome("done", resource_version=str(deployment.version))


class MemoryJournal:
    """A journal in memory: (time, kind, workload, text)."""

    def __init__(self) -> None:
        """Starts empty."""
        self.entries: list[tuple[float, str, str, str]] = []

    async def write(self, at_s: float, kind: str, workload: str, text: str, data: Mapping[str, object]) -> None:
        """Appends one entry."""
        self.entries.append((at_s, kind, workload, text))


class SilentNotifier:
    """Simulated objects have no Events."""

    async def event(self, workload: str, cluster: str, reason: str, text: str, *, warning: bool, at_s: float) -> None:
        """Does nothing."""
