"""The simulated world: deterministic for a seed, true to its own rules, and better rebalanced than left alone."""

from __future__ import annotations

import asyncio
import math
import os
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from rebalancer import demo
from rebalancer.core.model import EndIntent, Moved, MoveRecord, PutIntent, SetReplicas
from rebalancer.core.rollout.model import State
from rebalancer.ports import DemandWindow
from rebalancer.sim.demand import Earth, earth
from rebalancer.sim.plant import TARGET, Plant, Service, Tick
from rebalancer.sim.ports import SimActuator, SimTelemetry
from rebalancer.sim.scenarios import API, BAD_IMAGE, FAILED_CLUSTER, HOUR_S, SEARCH, START_S, clusters_of, day
from rebalancer.worlds.simulated import SimulatedWorld, Story

WEB = "shop/web"
GOLDEN = Path(__file__).parents[1] / "golden" / "demo.txt"
NO_WINDOW = DemandWindow(0.0, 0.0, 300.0)


def live(seed: int, hours: float) -> Story:
    world = earth()
    sim = SimulatedWorld(world, day(world), seed)
    asyncio.run(sim.drive(hours, lambda _: None))
    return sim.story


@pytest.fixture(scope="module")
def world() -> Earth:
    return earth()


def small(world: Earth, seed: int = 1, replicas: int = 4) -> Plant:
    service = Service(WEB, peak=1000.0, capacity=100.0)
    return Plant(
        world, clusters_of(world), {WEB: service}, {(WEB, "us-east4"): replicas}, START_S, seed,
        dict.fromkeys(world.regions, 8.0),
    )  # fmt: skip


# --- a day


def test_the_same_seed_tells_the_same_story_to_the_byte_and_another_seed_another(world: Earth) -> None:
    one, two, other = live(7, 0.5), live(7, 0.5), live(8, 0.5)
    assert demo.facts(one) == demo.facts(two)
    assert one.told == two.told
    assert demo.html(world, one) == demo.html(world, two)
    assert [r.plan.id for r in one.reports] == [r.plan.id for r in two.reports]
    assert demo.html(world, one) != demo.html(world, other)


def what_the_demo_tells_is_what_stands_in_the_golden_file(whole_day: Story) -> None:
    lines = [f"{(at - START_S) / HOUR_S:05.2f}  {text}" for at, text in whole_day.told]
    text = "\n".join([*lines, *(f"{label:24} {value}" for label, value in demo.facts(whole_day))]) + "\n"
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8")


def both_plants_have_the_same_users_all_day(whole_day: Story) -> None:
    assert [t.demand for t in whole_day.ticks] == [t.demand for t in whole_day.baseline]


def after_three_hours_users_are_served_nearer_than_without_us(whole_day: Story) -> None:
    def by_hour(ticks: list[Tick], hour: int) -> float:
        inside = [t.latency_ms[API] for t in ticks if hour <= (t.at_s - START_S) / HOUR_S < hour + 1]
        return sum(inside) / len(inside)

    for hour in range(3, 24):
        assert by_hour(whole_day.ticks, hour) < by_hour(whole_day.baseline, hour), hour


def ready_replicas_serve_the_demand_all_day_but_in_the_minutes_of_the_failure(whole_day: Story) -> None:
    scenario = day(earth())
    for tick in whole_day.ticks:
        hour = (tick.at_s - START_S) / HOUR_S
        if 11.0 <= hour < 11.5:
            continue
        for key, service in scenario.services.items():
            ready = sum(n for (w, _), n in tick.ready.items() if w == key)
            need = sum(v for (w, _), v in tick.demand.items() if w == key)
            assert ready * service.capacity / TARGET >= need, (hour, key)


def moves_lower_nothing_on_the_way(whole_day: Story) -> None:
    """Outside of scaling and of the failure, a cycle's moves never leave fewer ready replicas than are wanted."""
    for before, after in zip(whole_day.reports, whole_day.reports[1:], strict=False):
        for key in (API, SEARCH):
            if any(not v.complete for r in (before, after) for v in r.snapshot.views.values()):
                continue
            if key in before.snapshot.rollouts | after.snapshot.rollouts or key not in before.plan.workloads:
                continue
            wanted = before.plan.workloads[key].wanted
            assert wanted is not None
            earlier = sum(p.ready for p in before.snapshot.placements[key].values())
            later = sum(p.ready for p in after.snapshot.placements[key].values())
            assert later >= min(earlier, wanted), (before.at_s, key)


def a_failed_cluster_is_replaced_and_nothing_is_written_there(whole_day: Story) -> None:
    first, last = START_S + 11.0 * HOUR_S, START_S + 12.5 * HOUR_S
    inside = [r for r in whole_day.reports if first < r.at_s <= last]
    assert any(a.reason == "failover" for r in inside for a in r.plan.actions)
    assert not [d for r in inside for d in r.done if d.step.cluster == FAILED_CLUSTER and d.outcome.ok]
    assert any("failover" in text for _, text in whole_day.told)


def the_bad_release_is_rolled_back_within_minutes_and_runs_nowhere(whole_day: Story) -> None:
    begin = next(t for t, _ in whole_day.rollout)
    end, status = whole_day.rollout[-1]
    assert status.state is State.ROLLED_BACK
    assert end - begin < 300
    assert not [text for _, text in whole_day.told if "Promoted" in text]
    assert BAD_IMAGE in next(text for _, text in whole_day.told if "release" in text)


def the_lossy_link_is_seen_and_clears_without_flapping(whole_day: Story) -> None:
    seen = [text for _, text in whole_day.told if "is seen as" in text]
    assert [text.rpartition(" as ")[2] for text in seen] == ["poor", "good again"]


def fewer_requests_fail_for_fewer_replica_hours(whole_day: Story) -> None:
    facts = dict(demo.facts(whole_day)[::2])
    rows = demo.facts(whole_day)
    values = [float(v.rstrip("% ms").replace(",", "")) for _, v in rows]
    latency, alone, failed, failed_alone, hours, hours_alone = values[:6]
    assert latency < alone / 4
    assert failed < failed_alone
    assert hours < hours_alone
    assert "latency of shop/api" in facts


def every_write_of_the_day_took(whole_day: Story) -> None:
    outcomes = {d.outcome.kind for r in whole_day.reports for d in r.done}
    assert outcomes <= {"done", "unchanged"}


PROMISES = (
    what_the_demo_tells_is_what_stands_in_the_golden_file,
    both_plants_have_the_same_users_all_day,
    after_three_hours_users_are_served_nearer_than_without_us,
    ready_replicas_serve_the_demand_all_day_but_in_the_minutes_of_the_failure,
    moves_lower_nothing_on_the_way,
    a_failed_cluster_is_replaced_and_nothing_is_written_there,
    the_bad_release_is_rolled_back_within_minutes_and_runs_nowhere,
    the_lossy_link_is_seen_and_clears_without_flapping,
    fewer_requests_fail_for_fewer_replica_hours,
    every_write_of_the_day_took,
)


@pytest.mark.slow
def test_a_whole_day_keeps_every_promise() -> None:
    """One test, so that the day is lived once however many workers there are."""
    story, broken = live(1, 24.0), []
    for promise in PROMISES:
        try:
            promise(story)
        except AssertionError as error:
            broken.append(f"{promise.__name__}: {error}")
    assert not broken, "\n\n".join(broken)


def test_a_page_that_cannot_be_written_is_told_and_not_thrown(tmp_path: Path, world: Earth) -> None:
    console = Console(file=StringIO(), width=200)
    assert demo.save(tmp_path / "no" / "such.html", "x", console) == 1
    assert demo.save(tmp_path / "page.html", "x", console) == 0
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == "x"


# --- its parts


def test_users_follow_the_sun(world: Earth) -> None:
    hours = START_S + np.arange(0, 24 * HOUR_S, HOUR_S)
    peaks = {r: int(np.argmax(world.demand(r, 1.0, hours))) for r in world.regions}
    assert len(set(peaks.values())) > 2
    for region, place in world.regions.items():
        assert abs((peaks[region] + place.utc_offset_h) % 24 - 13) < 4, region
        assert world.demand(region, 100.0, hours).max() <= 100.0 * place.share * (1 + 1e-9)


def test_round_trips_are_symmetric(world: Earth) -> None:
    for (a, b), ms in world.rtt_ms.items():
        assert world.rtt_ms[b, a] == ms >= 0


def test_pods_become_ready_after_their_delay_and_only_where_there_is_room(world: Earth) -> None:
    plant = small(world)
    plant.deployments[WEB, "europe-west1"].wanted = 100
    plant.advance(plant.now + 30.0, 5.0)
    assert len(plant.deployments[WEB, "europe-west1"].pods) == 16
    assert plant.free_cpu("europe-west1") == 0.0
    assert not plant.deployments[WEB, "europe-west1"].ready(plant.now)
    tick = plant.advance(plant.now + 90.0, 5.0)
    assert tick.ready[WEB, "europe-west1"] == 16


def test_unready_pods_go_first(world: Earth) -> None:
    plant = small(world)
    plant.deployments[WEB, "us-east4"].wanted = 6
    plant.advance(plant.now + 5.0, 5.0)
    plant.deployments[WEB, "us-east4"].wanted = 4
    assert plant.advance(plant.now + 5.0, 5.0).ready[WEB, "us-east4"] == 4


def test_a_failed_cluster_serves_nobody_and_requests_fail(world: Earth) -> None:
    plant = small(world)
    plant.down.add("us-east4")
    tick = plant.advance(plant.now + 5.0, 5.0)
    assert sum(tick.ready.values()) == 0
    assert math.isnan(tick.latency_ms[WEB])
    assert tick.failed[WEB] == pytest.approx(sum(tick.demand.values()))


def test_traffic_is_served_whole_and_within_what_replicas_can(world: Earth) -> None:
    plant = small(world, replicas=8)
    tick = plant.advance(plant.now + 60.0, 5.0)
    asked = sum(tick.demand.values())
    assert sum(tick.served.values()) == pytest.approx(asked)


def test_metrics_of_a_cluster_that_is_down_are_a_gap_and_of_an_idle_one_zero(world: Earth) -> None:
    plant = small(world)
    telemetry = SimTelemetry(plant, 86_400.0, 300.0)
    plant.deployments[WEB, "europe-west1"].wanted = 4

    def minutes(count: int) -> None:
        for _ in range(count):
            telemetry.note(plant.advance(plant.now + 60.0, 60.0))

    minutes(15)
    plant.deployments[WEB, "europe-west1"].wanted = 0
    minutes(11)
    answer = asyncio.run(telemetry.demand(NO_WINDOW, {}))
    idle = [answer.values[i, -1] for i, k in enumerate(answer.keys) if k[2] == "europe-west1"]
    assert idle
    assert set(idle) == {0.0}
    plant.down.add("us-east4")
    minutes(11)
    answer = asyncio.run(telemetry.demand(NO_WINDOW, {}))
    gone = [answer.values[i, -1] for i, k in enumerate(answer.keys) if k[2] == "us-east4"]
    assert gone
    assert np.isnan(gone).all()
    assert answer.views["us-east4"].state == "failed"
    assert answer.views["europe-west1"].state == "complete"


def test_a_slot_of_demand_is_the_mean_of_its_minutes(world: Earth) -> None:
    plant = small(world, replicas=16)
    telemetry = SimTelemetry(plant, 86_400.0, 300.0)
    asked: list[float] = []
    for _ in range(5):
        tick = plant.advance(plant.now + 60.0, 60.0)
        asked.append(sum(tick.served.values()))
        telemetry.note(tick)
    telemetry.note(plant.advance(plant.now + 300.0, 300.0))
    answer = asyncio.run(telemetry.demand(NO_WINDOW, {}))
    # The fifth minute ends on the grid and opens the next slot.
    assert np.nansum(answer.values[:, -2]) == pytest.approx(np.mean(asked[:4]), rel=1e-6)


def test_the_actuator_writes_as_a_cluster_does(world: Earth) -> None:
    plant = small(world)
    actuator = SimActuator(plant, {WEB: "shop/web"})
    fleet = asyncio.run(actuator.observe([], plant.now))
    here = fleet.placements[WEB]["us-east4"]

    def apply(step: SetReplicas | PutIntent | EndIntent) -> str:
        return asyncio.run(actuator.apply(WEB, step, here)).kind

    record = MoveRecord("m", "drift", "us-east4", "europe-west1", 1, 4, 0, "closer-to-users", 0.0, 600.0)
    assert apply(SetReplicas("us-east4", 3, 5)) == "conflict"
    assert apply(SetReplicas("us-east4", 3, 4)) == "unchanged"
    assert apply(SetReplicas("us-east4", 4, 5)) == "done"
    assert apply(PutIntent("us-east4", record)) == "done"
    assert plant.deployments[WEB, "us-east4"].move == record
    assert apply(EndIntent("us-east4", "m", Moved("m", 1.0, "us-east4", "europe-west1", 1, "done"))) == "done"
    assert plant.deployments[WEB, "us-east4"].move is None
    plant.down.add("us-east4")
    assert apply(SetReplicas("us-east4", 5, 6)) == "unreachable"


def test_of_a_cluster_that_is_down_the_last_known_state_stands(world: Earth) -> None:
    plant = small(world)
    actuator = SimActuator(plant, {WEB: "shop/web"})
    asyncio.run(actuator.observe([], plant.now))
    plant.down.add("us-east4")
    plant.now += 600
    fleet = asyncio.run(actuator.observe([], plant.now))
    assert fleet.clusters["us-east4"].seen_s == START_S
    assert fleet.placements[WEB]["us-east4"].wanted == 4
