"""Builds a simulated or live world and drives it: cycles and rollout ticks, interleaved on one clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from rebalancer.core.planning import PlanSettings
from rebalancer.cycle import Cycle, CycleReport, CycleSettings, Ports
from rebalancer.sim.demand import Earth
from rebalancer.sim.plant import Plant, Tick
from rebalancer.sim.ports import MemoryJournal, SilentNotifier, SimActuator, SimClock, SimTelemetry
from rebalancer.sim.scenarios import Event, Scenario

SIM_CYCLE_S = 600.0
SIM_TICK_S = 60.0
SIM_HISTORY_S = 7 * 86400.0


@dataclass(slots=True)
class Story:
    """Everything that a simulated day leaves behind.

    Attributes:
        ticks, baseline: the truth by minute, with the rebalancer and with the replicas left where they were.
        reports: one per cycle.
        told: (time, text) of what happened, events of the scenario and of the rebalancer.
    """

    ticks: list[Tick] = field(default_factory=list)
    baseline: list[Tick] = field(default_factory=list)
    reports: list[CycleReport] = field(default_factory=list)
    told: list[tuple[float, str]] = field(default_factory=list)


class SimulatedWorld:
    """A fleet on a virtual clock, with the same core as a live one."""

    def __init__(self, earth: Earth, scenario: Scenario, seed: int) -> None:
        """Builds two plants with the same users: one is rebalanced, the other keeps its replicas where they are."""
        self.scenario = scenario
        arguments = (earth, scenario.clusters, scenario.services, scenario.replicas, scenario.start_s, seed)
        self.plant = Plant(*arguments)
        self.baseline = Plant(*arguments)
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
        settings = CycleSettings(history_s=SIM_HISTORY_S, horizons_s=(300.0, 900.0, 1800.0), plan=PlanSettings())
        self.cycle = Cycle(ports, list(scenario.clusters), settings)
        self.story = Story()
        self._events = sorted(scenario.events, key=lambda e: e.at_h)

    async def drive(self, hours: float, on_cycle: Callable[[CycleReport], None]) -> Story:
        """Lets the world live.

        Args:
            hours: how long.
            on_cycle: called after each cycle, for progress.
        """
        end = self.scenario.start_s + hours * 3600.0
        while self.plant.now < end - 1e-6:
            self._happen()
            to = min(end, self.plant.now + SIM_CYCLE_S)
            while self.plant.now < to - 1e-6:
                tick = self.plant.advance(min(to, self.plant.now + SIM_TICK_S), SIM_TICK_S)
                self.telemetry.note(tick)
                self.story.ticks.append(tick)
                self.story.baseline.append(self.baseline.advance(tick.at_s, SIM_TICK_S))
            report = await self.cycle.run(self.scenario.policies)
            self.story.reports.append(report)
            on_cycle(report)
        return self.story

    def _happen(self) -> None:
        """Begins the events whose time has come, in both plants."""
        while self._events and self._due(self._events[0]):
            event = self._events.pop(0)
            event.do(self.plant)
            event.do(self.baseline)
            self.story.told.append((self.plant.now, event.text))

    def _due(self, event: Event) -> bool:
        return self.plant.now >= self.scenario.start_s + event.at_h * 3600.0 - 1e-6
