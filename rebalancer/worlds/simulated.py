"""The simulated world: cycles and rollout ticks, interleaved on a virtual clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from rebalancer.core.network import NetworkSettings
from rebalancer.core.planning import PlanSettings
from rebalancer.core.rollout.model import Status
from rebalancer.cycle import Cycle, CycleReport, CycleSettings, Ports
from rebalancer.rollouts import MemoryStore, Rollouts
from rebalancer.sim.demand import Earth
from rebalancer.sim.plant import Plant, Tick
from rebalancer.sim.ports import MemoryJournal, SilentNotifier, SimActuator, SimClock, SimTelemetry
from rebalancer.sim.rollouts import SimRollouts
from rebalancer.sim.scenarios import Event, Scenario

SIM_CYCLE_S = 600.0
SIM_TICK_S = 60.0
SIM_ROLLOUT_S = 5.0
SIM_HISTORY_S = 7 * 86400.0


@dataclass(slots=True)
class Story:
    """Everything that a simulated day leaves behind.

    Attributes:
        ticks, baseline: the truth by minute, with the rebalancer and with the replicas left where they were.
        reports: one per cycle.
        rollout: (time, status) after each rollout tick.
        told: (time, text) of what happened, events of the scenario and of the rebalancer.
    """

    ticks: list[Tick] = field(default_factory=list)
    baseline: list[Tick] = field(default_factory=list)
    reports: list[CycleReport] = field(default_factory=list)
    told: list[tuple[float, str]] = field(default_factory=list)
    rollout: list[tuple[float, Status]] = field(default_factory=list)


class SimulatedWorld:
    """A fleet on a virtual clock, with the same core as a live one."""

    def __init__(self, earth: Earth, scenario: Scenario, seed: int) -> None:
        """Builds two plants with the same users: one is rebalanced, the other keeps its replicas where they are."""
        self.scenario = scenario
        arguments = (earth, scenario.clusters, scenario.services, scenario.replicas, scenario.start_s, seed)
        self.plant = Plant(*arguments, scenario.node_cpu)
        self.baseline = Plant(*arguments, scenario.node_cpu)
        self.telemetry = SimTelemetry(self.plant, SIM_HISTORY_S, 300.0)
        self.journal = MemoryJournal()
        ports = Ports(
            clock=SimClock(self.plant),
            telemetry=self.telemetry,
            actuator=SimActuator(self.plant, scenario.policy_of),
            journal=self.journal,
            notifier=SilentNotifier(),
            may_act=lambda: True,
        )
        # Two missed cycles of this slow world are no gap in the measurements.
        plan = PlanSettings(network=NetworkSettings(max_gap_s=2.0 * SIM_CYCLE_S))
        settings = CycleSettings(history_s=SIM_HISTORY_S, horizons_s=(300.0, 900.0, 1800.0), plan=plan)
        self.cycle = Cycle(ports, list(scenario.clusters), settings)
        self.store = MemoryStore()
        self.rollouts = Rollouts(
            self.store,
            SimRollouts(self.plant),
            self.telemetry,
            SimClock(self.plant),
            lambda: {n: c.labels for n, c in scenario.clusters.items()},
            SilentNotifier(),
        )
        self.story = Story()
        self._poor: set[tuple[str, str]] = set()
        self._unseen: set[str] = set()
        self._events = sorted(scenario.events, key=lambda e: e.at_h)

    async def drive(self, hours: float, on_cycle: Callable[[CycleReport], None]) -> None:
        """Lets the world live; `story` tells of it. Returned, asyncio would print it whole to put a signal back.

        Args:
            hours: how long.
            on_cycle: called after each cycle, for progress.
        """
        end = self.scenario.start_s + hours * 3600.0
        while self.plant.now < end - 1e-6:
            self._happen()
            to = min(end, self.plant.now + SIM_CYCLE_S)
            owned: frozenset[str] = frozenset()
            while self.plant.now < to - 1e-6:
                active = bool(owned) or self._rolling()
                step = SIM_ROLLOUT_S if active else SIM_TICK_S
                tick = self.plant.advance(min(to, self.plant.now + step), step)
                self.telemetry.note(tick)
                self.story.ticks.append(tick)
                self.story.baseline.append(self.baseline.advance(tick.at_s, step))
                if active:
                    owned = await self._roll()
            report = await self.cycle.run(self.scenario.policies, owned)
            self.story.reports.append(report)
            self._tell(report)
            on_cycle(report)

    def _rolling(self) -> bool:
        """Whether a rollout is to be looked at: from its begin until it has ended."""
        spec = self.scenario.rollout
        if self.plant.now < self.scenario.start_s + self.scenario.rollout_at_h * 3600.0 - 1e-6:
            return False
        if not self.story.rollout:
            self.store.put(spec)
            return True
        return self.story.rollout[-1][1].active

    async def _roll(self) -> frozenset[str]:
        """Ticks the rollouts, and notes what changed."""
        report = await self.rollouts.tick()
        for one in report.rollouts:
            before = self.story.rollout[-1][1] if self.story.rollout else None
            self.story.rollout.append((self.plant.now, one.status))
            if before is None or before.state != one.status.state:
                text = f"rollout {one.spec.key}: {one.status.state.value}"
                self.story.told.append(
                    (self.plant.now, f"{text}, {one.status.message}" if one.status.message else text)
                )
        return report.owned

    def _tell(self, report: CycleReport) -> None:
        """Notes what changed since the last cycle: quality of links, sight of clusters, failover."""
        poor = {pair for pair, levels in self.cycle.memory.plan.network.pairs.items() if levels[1].on}
        for a, b in sorted(poor - self._poor):
            self.story.told.append((report.at_s, f"link {a} - {b} is seen as poor"))
        for a, b in sorted(self._poor - poor):
            self.story.told.append((report.at_s, f"link {a} - {b} is seen as good again"))
        self._poor = poor
        unseen = {c for c, v in report.snapshot.views.items() if not v.complete}
        for name in sorted(unseen - self._unseen):
            self.story.told.append((report.at_s, f"the view of {name} is {report.snapshot.views[name].state}"))
        for name in sorted(self._unseen - unseen):
            self.story.told.append((report.at_s, f"the view of {name} is complete again"))
        self._unseen = unseen
        rescued = sum(a.replicas for a in report.plan.actions if a.reason == "failover")
        if rescued:
            self.story.told.append((report.at_s, f"failover: {rescued} replicas begin elsewhere"))

    def _happen(self) -> None:
        """Begins the events whose time has come, in both plants."""
        while self._events and self._due(self._events[0]):
            event = self._events.pop(0)
            event.do(self.plant)
            event.do(self.baseline)
            self.story.told.append((self.plant.now, event.text))

    def _due(self, event: Event) -> bool:
        return self.plant.now >= self.scenario.start_s + event.at_h * 3600.0 - 1e-6
