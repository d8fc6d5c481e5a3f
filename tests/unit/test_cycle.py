"""One cycle over ports: what cannot be seen is told and is no obstacle, what fails stops its own action only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rebalancer.core.model import Demand, EndIntent, Placement, PutIntent, SetReplicas, Step, View
from rebalancer.core.network import LatencyMap
from rebalancer.core.policy import Policy
from rebalancer.cycle import Cycle, CycleReport, CycleSettings, Ports
from rebalancer.errors import ClusterError, TelemetryError
from rebalancer.ports import (
    CounterAnswer,
    DemandAnswer,
    DemandWindow,
    FleetState,
    NetworkAnswer,
    Outcome,
    RoomAnswer,
    Selection,
)
from rebalancer.sim.ports import MemoryJournal, SilentNotifier
from tests.unit.core.fleet import NOW, POLICY, REGIONS, WEB, cluster_state, latency, placement

SETTINGS = CycleSettings(history_s=2 * 86_400.0, observe_deadline_s=0.2)
SLOTS = 576
ORIGINS = {"eu": "eu-1", "us": "us-1", "ap": "ap-1"}


@dataclass
class World:
    """Ports in memory; `broken` names what does not work."""

    replicas: Mapping[str, int]
    load: Mapping[str, float]
    broken: str = ""
    unit: str = "requests/s"
    censored: Mapping[tuple[str, str], str] = field(default_factory=dict)
    applied: list[Step] = field(default_factory=list)
    outcome: Callable[[Step], Outcome] = lambda _: Outcome("done")

    def now(self) -> float:
        return NOW

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("a cycle does not sleep")

    async def demand(self, window: DemandWindow, policies: Mapping[str, Policy]) -> DemandAnswer:
        if self.broken == "demand":
            raise TelemetryError("timeout", "prometheus: no answer within 10 s")
        if self.broken == "hang":
            await asyncio.Event().wait()
        keys = tuple((WEB, origin, ORIGINS[origin]) for origin in self.load)
        values = np.array([[v] * SLOTS for v in self.load.values()])
        views = {c: View("complete", NOW) for c in REGIONS}
        return DemandAnswer(keys, {WEB: self.unit}, values, values[:, -1], views, censored=self.censored)

    async def room(self) -> RoomAnswer:
        return RoomAnswer({})

    async def network(self, now: float) -> NetworkAnswer:
        if self.broken == "network":
            raise TelemetryError("upstream", "thanos: 503")
        return NetworkAnswer(LatencyMap(latency().cells, dict(REGIONS)))

    async def counters(
        self, selection: Selection, clusters: Sequence[str], since_s: float, now: float
    ) -> CounterAnswer:
        raise AssertionError("a cycle reads no raw counters")

    async def observe(self, policies: Sequence[Policy], now: float) -> FleetState:
        if self.broken == "clusters":
            raise ClusterError("unreachable", "hub: connection refused")
        found = {c: placement(c, n) for c, n in self.replicas.items()}
        return FleetState({c: cluster_state(c) for c in REGIONS}, {WEB: found}, {WEB: "shop/web"})

    async def apply(self, workload: str, step: Step, placement: Placement) -> Outcome:
        self.applied.append(step)
        return self.outcome(step)


def run(
    world: World, *, acting: bool = True, rollouts: frozenset[str] = frozenset()
) -> tuple[CycleReport, MemoryJournal]:
    journal = MemoryJournal()
    ports = Ports(world, world, world, journal, SilentNotifier(), lambda: acting)
    cycle = Cycle(ports, list(REGIONS), SETTINGS)
    return asyncio.run(cycle.run({"shop/web": POLICY}, rollouts)), journal


FAR = {"eu-1": 8, "us-1": 0, "ap-1": 0}
LOAD = {"eu": 38.0, "ap": 38.0}


def test_a_regions_time_zone_reaches_its_forecast_and_the_others_stay_in_utc() -> None:
    world = World(FAR, LOAD)
    ports = Ports(world, world, world, MemoryJournal(), SilentNotifier(), lambda: False)
    cycle = Cycle(ports, list(REGIONS), replace(SETTINGS, clocks={"ap": ZoneInfo("Asia/Singapore")}))
    asyncio.run(cycle.run({"shop/web": POLICY}))
    memory = cycle.memory.forecast
    assert memory.engine is not None
    ahead = {origin: zone.offset_s for (_, origin), zone in zip(memory.keys, memory.engine.zones, strict=True)}
    assert ahead == {"*": (0.0,), "eu": (0.0,), "ap": (8 * 3600.0,)}


def test_a_cycle_observes_plans_acts_and_writes_it_down() -> None:
    world = World(FAR, LOAD)
    report, journal = run(world)
    assert report.outcome == "ok"
    assert [type(s) for s in world.applied] == [PutIntent, PutIntent, SetReplicas]
    assert len(report.done) == 3
    assert [(kind, workload) for _, kind, workload, _ in journal.entries] == [("drift", WEB)]
    assert set(report.durations_s) == {"observe", "forecast", "plan", "act", "record"}


def test_demand_that_telemetry_calls_censored_is_so_in_the_plan() -> None:
    hidden = {(WEB, "eu-1"): "its pods are throttled", ("a/b", "eu-1"): "not ours"}
    report, _ = run(World(FAR, LOAD, unit="cores", censored=hidden))
    demand = report.snapshot.demand[WEB]
    assert isinstance(demand, Demand)
    assert demand.censored == {"eu-1": "its pods are throttled"}
    assert any("its pods are throttled" in line for line in report.plan.workloads[WEB].lines)


@pytest.mark.slow
@settings(max_examples=5, deadline=None)
@given(replicas=st.tuples(*[st.integers(0, 8)] * 3), load=st.tuples(*[st.floats(0.0, 60.0)] * 3))
def test_observing_and_acting_differ_only_in_what_is_written(
    replicas: tuple[int, ...], load: tuple[float, ...]
) -> None:
    here, users = dict(zip(REGIONS, replicas, strict=True)), dict(zip(ORIGINS, load, strict=True))
    dry, real = World(here, users), World(here, users)
    (observed, _), (acted, _) = run(dry, acting=False), run(real)
    assert observed.plan.actions == acted.plan.actions
    assert dry.applied == []
    assert real.applied == [step for action in acted.plan.actions for step in action.steps]


def test_an_observer_writes_nothing_and_says_what_it_would_do() -> None:
    world = World(FAR, LOAD)
    report, journal = run(world, acting=False)
    assert world.applied == []
    assert journal.entries == []
    assert len(report.withheld) == 1
    assert "observe-only" in {r.reason for r in report.plan.refusals}


@pytest.mark.parametrize("kind", ["conflict", "forbidden", "unreachable", "failed"])
def test_a_step_that_fails_ends_its_action(kind: str) -> None:
    world = World(FAR, LOAD, outcome=lambda _: Outcome(kind, "why"))  # type: ignore[arg-type]  # a table of literals
    report, journal = run(world)
    assert len(world.applied) == 1
    assert [d.outcome.kind for d in report.done] == [kind]
    assert f"{kind}: why" in journal.entries[0][3]


def test_no_intent_no_replica() -> None:
    """The second intent fails: nothing may be scaled."""
    world = World(FAR, LOAD)
    world.outcome = lambda _: Outcome("done") if len(world.applied) < 2 else Outcome("conflict")
    run(world)
    assert not [s for s in world.applied if isinstance(s, SetReplicas | EndIntent)]


@pytest.mark.parametrize(
    ("broken", "sentence", "outcome"),
    [
        ("demand", "demand: prometheus: no answer within 10 s", "failed"),
        ("hang", "demand: no answer within 0.2 s", "failed"),
        ("network", "network: thanos: 503", "partial"),
        ("clusters", "clusters: hub: connection refused", "partial"),
    ],
)
def test_what_cannot_be_seen_is_one_sentence_and_decreases_nothing(broken: str, sentence: str, outcome: str) -> None:
    world = World({"eu-1": 4, "us-1": 4, "ap-1": 4}, {"eu": 1.0}, broken=broken)
    report, _ = run(world)
    assert sentence in report.errors
    assert report.outcome == outcome
    assert not [s for s in world.applied if isinstance(s, SetReplicas) and s.replicas < s.expected]


def test_demand_that_cannot_be_asked_for_is_unknown_and_the_bounds_still_hold() -> None:
    world = World({"eu-1": 1, "us-1": 0, "ap-1": 0}, LOAD, broken="demand")
    report, _ = run(world)
    assert "demand-unknown" in {r.reason for r in report.plan.refusals}
    assert [(a.kind, a.reason) for a in report.plan.actions] in ([], [("scale", "below-min")])


def test_a_workload_under_a_rollout_is_left_alone() -> None:
    world = World(FAR, LOAD)
    report, _ = run(world, rollouts=frozenset({WEB}))
    assert world.applied == []
    assert {r.reason for r in report.plan.refusals} == {"rollout-in-progress"}
