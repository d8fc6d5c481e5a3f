"""One reconcile cycle: observe -> forecast -> plan -> act -> record. Knows ports only."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import tzinfo
from typing import Literal, TypeVar

import numpy as np

from rebalancer.core import series
from rebalancer.core.forecast import ForecastMemory, Zone, forecasting
from rebalancer.core.model import (
    Action,
    Demand,
    Forecast,
    History,
    Placement,
    Plan,
    Refusal,
    Snapshot,
    Step,
    Unknown,
    View,
)
from rebalancer.core.network import LatencyMap
from rebalancer.core.planning import PlanMemory, PlanSettings, planning
from rebalancer.core.policy import Policy
from rebalancer.core.reasons import words
from rebalancer.errors import RebalancerError
from rebalancer.ports import (
    Actuator,
    Clock,
    DemandAnswer,
    DemandWindow,
    FleetState,
    Journal,
    NetworkAnswer,
    Notifier,
    Outcome,
    Telemetry,
)

_T = TypeVar("_T")
CycleOutcome = Literal["ok", "partial", "failed"]
MAX_PARALLEL_WRITES = 16


@dataclass(frozen=True, slots=True)
class CycleSettings:
    """Settings of the cycle.

    Attributes:
        history_s, step_s: grid of demand.
        horizons_s: how far ahead demand is forecast.
        clocks: time zone by origin region, in whose wall time its habits lie; the others are UTC.
        observe_deadline_s: total deadline of each port's observation.
        plan: the planner's settings.
    """

    history_s: float = 14 * 86400.0
    step_s: float = 300.0
    horizons_s: tuple[float, ...] = (300.0, 600.0, 1800.0, 3600.0)
    clocks: Mapping[str, tzinfo] = field(default_factory=dict)
    observe_deadline_s: float = 20.0
    plan: PlanSettings = PlanSettings()


@dataclass(frozen=True, slots=True)
class Done:
    """One step of an action and how it ended."""

    action: Action
    step: Step
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class CycleReport:
    """What one cycle saw, planned and did.

    Attributes:
        durations_s: by phase: observe, forecast, plan, act, record.
        errors: one sentence per part that could not be seen.
        done: steps that were carried out; empty while only observing.
        withheld: actions that were planned, but not carried out because the controller may not act.
    """

    at_s: float
    outcome: CycleOutcome
    plan: Plan
    snapshot: Snapshot
    forecast: Forecast
    history: History
    durations_s: Mapping[str, float]
    errors: tuple[str, ...] = ()
    done: tuple[Done, ...] = ()
    withheld: tuple[Action, ...] = ()


@dataclass(slots=True)
class Memory:
    """What the next cycle needs; see core.planning and core.forecast for what survives a restart."""

    forecast: ForecastMemory = field(default_factory=ForecastMemory)
    plan: PlanMemory = field(default_factory=PlanMemory)


@dataclass(frozen=True, slots=True)
class Ports:
    """What a world plugs in."""

    clock: Clock
    telemetry: Telemetry
    actuator: Actuator
    journal: Journal
    notifier: Notifier
    may_act: Callable[[], bool]


class Cycle:
    """Runs cycles over the ports of one world."""

    def __init__(
        self, ports: Ports, clusters: Sequence[str], settings: CycleSettings, memory: Memory | None = None
    ) -> None:
        """Takes the ports, the names of all configured clusters, the settings, and memory that survived."""
        self.ports = ports
        self.settings = settings
        self.memory = memory or Memory()
        self._clusters = tuple(clusters)

    async def run(
        self,
        policies: Mapping[str, Policy],
        rollouts: frozenset[str] = frozenset(),
        allows: Callable[[Placement], bool] = lambda placement: True,
    ) -> CycleReport:
        """Runs one cycle.

        Args:
            policies: by `namespace/name`.
            rollouts: workloads under a running rollout.
            allows: whether propagation lets a workload stand in a cluster.
        """
        now = self.ports.clock.now()
        marks = [time.perf_counter()]
        demand, network, fleet, errors = await self._observe(policies, now)
        marks.append(time.perf_counter())
        history, snapshot = self._assemble(demand, network, fleet, now)
        allowed = {w: frozenset(c for c, p in found.items() if allows(p)) for w, found in snapshot.placements.items()}
        snapshot = replace(snapshot, rollouts=rollouts, allowed=allowed)
        horizons = self.settings.horizons_s
        zones = {r: Zone.between(c, history.start_s, now + max(horizons)) for r, c in self.settings.clocks.items()}
        forecast, self.memory.forecast = await asyncio.to_thread(
            forecasting, history, self.memory.forecast, now, horizons, zones=zones
        )
        marks.append(time.perf_counter())
        plan, self.memory.plan = await asyncio.to_thread(
            planning, snapshot, forecast, policies, self.memory.plan, self.settings.plan
        )
        marks.append(time.perf_counter())
        acting = self.ports.may_act()
        done = await self._act(plan, snapshot) if acting else ()
        withheld = () if acting else plan.actions
        if withheld:
            told = tuple(Refusal(a.workload, "observe-only", a.target, a.explanation) for a in withheld)
            plan = replace(plan, refusals=(*plan.refusals, *told))
        marks.append(time.perf_counter())
        outcome: CycleOutcome = "ok" if all(v.complete for v in snapshot.views.values()) and not errors else "partial"
        if all(v.state == "failed" for v in snapshot.views.values()):
            outcome = "failed"
        await self._record(plan, done, now)
        marks.append(time.perf_counter())
        phases = ("observe", "forecast", "plan", "act", "record")
        durations = {p: marks[i + 1] - marks[i] for i, p in enumerate(phases)}
        return CycleReport(
            now, outcome, plan, snapshot, forecast, history, durations, tuple(errors), done, tuple(withheld)
        )  # fmt: skip

    async def _observe(
        self, policies: Mapping[str, Policy], now: float
    ) -> tuple[DemandAnswer, NetworkAnswer, FleetState, list[str]]:
        """Asks all ports at once; what fails becomes Unknown, with a sentence."""
        step = self.settings.step_s
        end = now // step * step
        window = DemandWindow(end - self.settings.history_s, end, step)
        errors: list[str] = []

        async def within(call: Awaitable[_T], name: str) -> _T | None:
            try:
                async with asyncio.timeout(self.settings.observe_deadline_s):
                    return await call
            except (TimeoutError, RebalancerError) as error:
                what = str(error) or f"no answer within {self.settings.observe_deadline_s:g} s"
                errors.append(f"{name}: {what}")
                return None

        demand, network, fleet = await asyncio.gather(
            within(self.ports.telemetry.demand(window, policies), "demand"),
            within(self.ports.telemetry.network(now), "network"),
            within(self.ports.actuator.observe(list(policies.values()), now), "clusters"),
        )
        if demand is None:
            failed = {c: View("failed", None, errors[0]) for c in self._clusters}
            slots = round((window.end_s - window.start_s) / step)
            demand = DemandAnswer((), {}, np.empty((0, slots)), np.empty(0), failed)
        network = network or NetworkAnswer(LatencyMap())
        fleet = fleet or FleetState({}, {}, {})
        errors += [*demand.errors, *network.errors, *fleet.problems]
        errors += [f"cluster {n}: {s.error}" for n, s in fleet.clusters.items() if s.error]
        return demand, network, fleet, errors

    def _assemble(
        self, demand: DemandAnswer, network: NetworkAnswer, fleet: FleetState, now: float
    ) -> tuple[History, Snapshot]:
        step = self.settings.step_s
        slots = demand.values.shape[1]
        start = now // step * step - (slots - 1) * step
        complete = {c for c, v in demand.views.items() if v.complete}
        history = series.assemble(demand.keys, demand.values, start, step, complete=complete, peaks=demand.peaks)
        never = View("failed", None, "nothing was asked")
        views = {c: demand.views.get(c, never) for c in self._clusters}
        unseen = {c: v.since_s for c, v in views.items() if not v.complete}
        found = series.current(demand.keys, demand.values, demand.latest, demand.units, unseen, now, step)
        cpu: dict[str, dict[str, float]] = {}
        for (workload, cluster), cores in demand.cpu.items():
            cpu.setdefault(workload, {})[cluster] = cores
        hidden: dict[str, dict[str, str]] = {}
        for (workload, cluster), why in sorted(demand.censored.items()):
            hidden.setdefault(workload, {})[cluster] = why
        known: dict[str, Demand | Unknown] = {
            w: replace(d, cpu_cores=cpu.get(w, {}), censored=hidden.get(w, {}), peaks_known=w not in demand.peakless)
            for w, d in found.items()
        }
        missing = Unknown("demand-unknown", detail="; ".join(demand.errors) or "no series of this workload was found")
        snapshot = Snapshot(
            at_s=now,
            clusters=fleet.clusters,
            views=views,
            placements={w: p for w, p in fleet.placements.items() if p},
            demand={w: known.get(w, missing) for w in fleet.placements},
            network=network.map,
            policies=fleet.policies,
            usual_rtt_s=network.usual_rtt_s,
        )
        return history, snapshot

    async def _act(self, plan: Plan, snapshot: Snapshot) -> tuple[Done, ...]:
        """Carries out the actions: those of one workload in order, workloads side by side."""
        by_workload: dict[str, list[Action]] = {}
        for action in plan.actions:
            by_workload.setdefault(action.workload, []).append(action)
        gate = asyncio.Semaphore(MAX_PARALLEL_WRITES)

        async def one(actions: Sequence[Action]) -> list[Done]:
            async with gate:
                return [d for action in actions for d in await self._carry_out(action, snapshot)]

        nested = await asyncio.gather(*(one(a) for a in by_workload.values()))
        return tuple(d for part in nested for d in part)

    async def _carry_out(self, action: Action, snapshot: Snapshot) -> list[Done]:
        """Carries out the steps of one action; the first that fails ends it, the next cycle goes on from there."""
        result = []
        for step in action.steps:
            if not self.ports.may_act():
                break
            placement = snapshot.placements[action.workload][step.cluster]
            outcome = await self.ports.actuator.apply(action.workload, step, placement)
            result.append(Done(action, step, outcome))
            if not outcome.ok:
                break
        return result

    async def _record(self, plan: Plan, done: Sequence[Done], now: float) -> None:
        """Writes the journal and the Events."""
        ended: dict[int, Done] = {id(d.action): d for d in done}
        for last in ended.values():
            action, outcome = last.action, last.outcome
            text = f"{action.kind} ({action.reason}): {action.explanation}"
            if not outcome.ok:
                text += f"; {outcome.kind}: {outcome.detail}"
            data = {"plan": plan.id, "reason": action.reason, "outcome": outcome.kind, "source": action.source,
                    "target": action.target, "replicas": action.replicas}  # fmt: skip
            await self.ports.journal.write(now, action.kind, action.workload, text, data)
            # Both ends of a move are told: where replicas come, and where they go.
            for cluster in dict.fromkeys(c for c in (action.target or last.step.cluster, action.source) if c):
                await self.ports.notifier.event(
                    action.workload, cluster, _camel(action.reason), f"{text}. {words(action.reason)}",
                    warning=not outcome.ok, at_s=now,
                )  # fmt: skip


def _camel(reason: str) -> str:
    """Event reasons are CamelCase by convention."""
    return "".join(part.capitalize() for part in reason.split("-"))
