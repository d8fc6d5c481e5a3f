"""The tick: order of writes, counting over kills and gaps, hanging neighbours, and the kind a user writes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
from pydantic import ValidationError

from rebalancer.api.rollout import CanaryRollout
from rebalancer.core.model import View
from rebalancer.core.rollout import ClusterSeen, Request, Spec, State, Status, Stored, counters
from rebalancer.core.rollout.decision import Action
from rebalancer.core.rollout.verbs import REQUEST_ANNOTATION, parse_request, render_list, render_status, request_patch
from rebalancer.errors import TelemetryError
from rebalancer.ports import Counter, CounterAnswer, Outcome, Selection, Telemetry
from rebalancer.rollouts import Limits, MemoryStore, Rollouts, TickReport
from tests.unit.core.test_rollout_plant import METRIC, NEW, R_NEW, R_OLD, Plant, fleet, spec


class PlantWorld:
    """Ports on a plant: clock, actuator and raw counters that a scraper read every second."""

    def __init__(self, plant: Plant, rates: dict[tuple[str, str], float] | None = None) -> None:
        self.plant, self.rates = plant, rates or {}
        self.log: list[str] = []
        self.hang: set[str] = set()
        self.broken = False
        self.fails: set[str] = set()
        self.refuses: set[str] = set()
        self.values: dict[tuple[str, str, str], list[tuple[float, float]]] = {}

    def now(self) -> float:
        return self.plant.now

    async def sleep(self, seconds: float) -> None:
        self.plant.step(seconds)

    async def observe(self, told: Spec, cluster: str) -> ClusterSeen:
        if cluster in self.fails:
            raise KeyError("spec")
        if cluster in self.hang:
            await asyncio.Event().wait()
        return self.plant.observe().clusters[cluster]

    async def apply(self, told: Spec, action: Action) -> Outcome:
        self.log.append(type(action).__name__)
        if action.cluster in self.refuses:
            raise KeyError("spec")
        return Outcome("done") if self.plant.apply(action) else Outcome("unreachable", "gone")

    def scrape(self) -> None:
        for name, site in self.plant.sites.items():
            for revision in site.templates:
                n = 200.0 * self.plant.new_share(site, revision)
                if n:
                    self._add(name, revision, "total", n)
                    self._add(name, revision, "bad", n * self.rates.get((name, revision), 0.001))

    def _add(self, *key: Any) -> None:
        points = self.values.setdefault(key[:3], [])
        points.append((self.plant.now, (points[-1][1] if points else 0.0) + key[3]))

    async def counters(self, sel: Selection, clusters: Sequence[str], since_s: float, now: float) -> CounterAnswer:
        if self.broken:
            raise TelemetryError("timeout", "the backend is slow")
        found: dict[str, list[Counter]] = {"total": [], "bad": []}
        for (cluster, revision, kind), points in self.values.items():
            kept = [p for p in points if p[0] >= since_s]
            if kept and cluster in clusters:
                labels = {"cluster": cluster, sel.version_label: revision}
                found[kind].append(Counter(labels, tuple(t for t, _ in kept), tuple(v for _, v in kept)))
        return CounterAnswer(tuple(found["total"]), tuple(found["bad"]), {c: View("complete", now) for c in clusters})


class LoggedStore(MemoryStore):
    def __init__(self, specs: Sequence[Spec], log: list[str]) -> None:
        super().__init__(specs)
        self.log, self.conflict, self.fails = log, False, set[str]()

    async def save(self, stored: Stored, status: Status) -> Outcome:
        if stored.spec.name in self.fails:
            raise IndexError("tuple index out of range")
        self.log.append(f"save {status.state.value}")
        return Outcome("conflict", "moved on") if self.conflict else await super().save(stored, status)


class Harness:
    def __init__(self, rates: dict[tuple[str, str], float] | None = None, **changes: Any) -> None:
        self.world = PlantWorld(fleet(), rates)
        self.store = LoggedStore([spec(**changes)], self.world.log)
        self.fresh()

    def fresh(self) -> None:
        """A new process: all caches are cold."""
        labels: Mapping[str, Mapping[str, str]] = {n: {} for n in self.world.plant.sites}
        telemetry = cast("Telemetry", self.world)
        self.rollouts = Rollouts(
            self.store, self.world, telemetry, self.world, lambda: labels, limits=Limits(observe_s=0.05, late_s=0.001)
        )

    @property
    def status(self) -> Status:
        return self.store.status("shop/web")

    async def tick(self) -> TickReport:
        self.world.scrape()
        report = await self.rollouts.tick()
        await self.world.sleep(1.0)
        return report

    async def until(self, state: State, ticks: int = 400) -> TickReport:
        for _ in range(ticks):
            report = await self.tick()
            if self.status.state is state:
                return report
        raise AssertionError(f"{self.status.shown} {self.status.message}")

    async def begin(self) -> None:
        for _ in range(3):
            await self.tick()
        self.world.plant.edit(NEW)


def test_a_rollout_goes_through_on_raw_counters_and_the_planner_is_told() -> None:
    async def run() -> None:
        h = Harness()
        await h.begin()
        report = await h.until(State.ANALYSING)
        assert report.owned == {"shop/web"}
        assert {m.name for m in report.measures} == {"rollout_phase", "rollout_weight", "rollout_evidence"}
        report = await h.until(State.COMPLETED)
        assert report.owned == frozenset()
        assert report.rollouts[0].ended == "completed"

    asyncio.run(run())


def test_an_advance_is_stored_before_it_is_done_and_a_rollback_done_before_it_is_stored() -> None:
    async def run() -> None:
        h = Harness({("b", R_NEW): 0.1, ("c", R_NEW): 0.1})
        await h.begin()
        await h.until(State.SCALING_CANARY)
        assert h.world.log.index("save ScalingCanary") < h.world.log.index("EnsureCanary")
        report = await h.until(State.ROLLED_BACK)
        assert h.world.log.index("ScaleCanary") < h.world.log.index("save RollingBack")
        took = report.rollouts[0].rollback_s
        assert took is not None
        assert took <= 30.0

    asyncio.run(run())


def test_a_status_that_was_not_stored_counts_nothing_and_does_nothing() -> None:
    async def run() -> None:
        h = Harness()
        await h.begin()
        await h.until(State.ANALYSING)
        before, writes = h.status, len(h.world.plant.writes)
        h.store.conflict = True
        for _ in range(5):
            await h.tick()
        h.store.conflict = False
        assert h.status == before
        assert len(h.world.plant.writes) == writes
        await h.tick()
        counted = h.status.evidence[METRIC.name].clusters["a"].counts
        assert counted.canary_requests > before.evidence[METRIC.name].clusters["a"].counts.canary_requests

    asyncio.run(run())


def test_a_new_process_counts_on_where_the_old_one_ended() -> None:
    async def run(restart: bool) -> float:
        h = Harness(min_step_s=200.0)
        await h.begin()
        await h.until(State.ANALYSING)
        for _ in range(40):
            if restart:
                h.fresh()
            await h.tick()
        return h.status.evidence[METRIC.name].clusters["a"].counts.canary_requests

    assert asyncio.run(run(True)) == pytest.approx(asyncio.run(run(False)))


def test_a_backend_that_fails_is_a_hold_and_never_a_rollback() -> None:
    async def run() -> None:
        h = Harness()
        await h.begin()
        await h.until(State.ANALYSING)
        h.world.broken = True
        for _ in range(20):
            await h.tick()
        assert h.status.shown == "Holding(NoData)"
        assert "slow" in h.status.message

    asyncio.run(run())


def test_a_cluster_that_hangs_is_out_of_reach_and_delays_the_others_once() -> None:
    async def run() -> None:
        h = Harness()
        await h.begin()
        await h.until(State.ANALYSING)
        h.world.hang = {"c"}
        loop = asyncio.get_running_loop()
        await h.tick()
        began = loop.time()
        for _ in range(5):
            await h.tick()
        assert loop.time() - began < 5 * 0.05
        assert not h.status.clusters["c"].reachable
        assert h.status.clusters["a"].reachable
        h.world.hang = set()
        await h.rollouts.close()
        await h.until(State.COMPLETED)

    asyncio.run(run())


def test_only_observing_writes_nothing() -> None:
    async def run() -> None:
        h = Harness()
        h.rollouts = Rollouts(
            h.store, h.world, cast("Telemetry", h.world), h.world, lambda: {"a": {}}, acting=lambda: False
        )
        await h.begin()
        await h.tick()
        assert h.world.log == []

    asyncio.run(run())


def test_a_second_rollout_of_a_workload_waits_and_its_status_says_so() -> None:
    async def run() -> None:
        h = Harness()
        h.store.put(spec(name="aaa"))
        report = await h.tick()
        assert "belongs to the rollout shop/web" in report.rollouts[0].problem
        assert "belongs to the rollout shop/web" in h.store.status("shop/aaa").told
        await h.tick()
        assert h.world.log.count("save Idle") == 2  # each one's first, and no more of the one that waits

    asyncio.run(run())


def test_a_rollout_whose_status_cannot_be_read_keeps_the_planner_off_and_is_neither_written_nor_let_go() -> None:
    async def run() -> None:
        h = Harness()
        (one,) = await h.store.load()
        h.store.load = lambda: blind(one)  # type: ignore[method-assign]  # a store whose status is damaged
        h.store.delete("shop/web")
        report = await h.tick()
        assert report.owned == {"shop/web"}
        assert h.world.log == []
        assert h.store.keys() == ["shop/web"]

    async def blind(one: Stored) -> list[Stored]:
        return [replace(one, problem="the status can't be read", waits=True, blind=True, deleting=True)]

    asyncio.run(run())


def test_a_verb_for_a_rollout_that_waits_is_acknowledged_and_not_done_later() -> None:
    async def run() -> None:
        h = Harness()
        h.store.put(spec(name="aaa"))
        h.store.ask("shop/aaa", Request("1", "undo"))
        await h.tick()
        assert h.store.status("shop/aaa").handled_request == "1"
        assert h.store.status("shop/aaa").message == "undo ignored: this rollout waits"

    asyncio.run(run())


def test_a_newcomer_does_not_take_a_running_canary_over_and_goes_without_a_trace() -> None:
    async def run() -> None:
        h = Harness({("a", R_NEW): 0.3})
        await h.begin()
        await h.until(State.SHIFTING)
        h.store.put(spec(name="aaa"))
        h.store.delete("shop/aaa")
        report = await h.tick()
        assert [r.spec.name for r in report.rollouts] == ["aaa", "web"]
        assert h.store.keys() == ["shop/web"]
        h.store.put(spec(name="aaa"))
        await h.until(State.ROLLED_BACK)
        h.store.delete("shop/web")
        for _ in range(5):
            await h.tick()
        assert h.store.keys() == ["shop/aaa"]
        assert h.store.status("shop/aaa").told == ""

    asyncio.run(run())


def test_a_deleted_rollout_with_traces_gives_back_although_another_one_owns_the_workload() -> None:
    async def run() -> None:
        h = Harness()
        await h.begin()
        await h.until(State.ANALYSING)
        # Both under way, as when an older controller let the second one take over.
        h.store.put(spec(name="aaa"))
        await h.store.save(next(s for s in await h.store.load() if s.spec.name == "aaa"), h.status)
        h.store.delete("shop/aaa")
        await h.tick()
        assert h.store.status("shop/aaa").state is State.ROLLING_BACK
        assert h.status.state is State.ANALYSING

    asyncio.run(run())


def test_what_goes_wrong_in_one_rollout_is_its_problem_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        h = Harness()
        h.store.put(spec(name="aaa", workload="other"))
        h.store.fails = {"aaa"}
        await h.begin()
        report = await h.until(State.ANALYSING)
        assert [r.problem for r in report.rollouts] == ["its tick failed: IndexError: tuple index out of range", ""]
        assert report.owned == {"shop/web"}
        assert len([r for r in caplog.records if r.exc_info]) == 1
        h.store.fails = set()
        report = await h.tick()
        assert report.rollouts[0].problem == ""
        assert "ticks again, after" in caplog.text

    asyncio.run(run())


def test_a_cluster_that_cannot_be_understood_does_not_keep_a_rollback_out_of_the_others() -> None:
    async def run() -> None:
        h = Harness()
        await h.begin()
        while (h.status.state.value, h.status.batch) != ("Analysing", 1):
            await h.tick()
        assert h.world.plant.sites["a"].canary is not None
        h.world.fails, h.world.refuses = {"c"}, {"b"}
        h.store.ask("shop/web", Request("1", "abort"))
        report = await h.tick()
        assert report.rollouts[0].problem == ""
        assert h.status.state is State.ROLLING_BACK
        assert h.status.clusters["c"].note == "unreachable: can't be understood: KeyError: 'spec'"
        assert [o.detail for a, o in report.rollouts[0].outcomes if a.cluster == "b"] == ["KeyError: 'spec'"]
        for _ in range(5):
            await h.tick()
        assert h.world.plant.sites["a"].canary is None
        h.world.fails = h.world.refuses = set()
        await h.until(State.ROLLED_BACK)

    asyncio.run(run())


def test_a_tick_that_is_called_during_a_tick_waits_for_its_end() -> None:
    async def run() -> None:
        h = Harness()
        h.world.hang = {"a"}
        first, second = asyncio.ensure_future(h.rollouts.tick()), asyncio.ensure_future(h.rollouts.tick())
        await asyncio.wait({first, second}, return_when=asyncio.FIRST_COMPLETED)
        assert first.done()
        assert not second.done()
        await second
        await h.rollouts.close()

    asyncio.run(run())


def test_a_workload_that_is_changed_half_way_is_judged_on_and_given_back_at_the_end() -> None:
    async def run() -> None:
        h = Harness({("b", R_NEW): 0.3, ("c", R_NEW): 0.3})
        await h.begin()
        await h.until(State.ANALYSING)
        h.store.put(spec(workload="other"))
        report = await h.tick()
        assert "from web to other" in report.rollouts[0].problem
        assert h.status.told.startswith("workloadRef was changed from web to other; ")
        assert report.owned == {"shop/web"}
        await h.until(State.ROLLED_BACK)
        h.store.delete("shop/web")
        for _ in range(10):
            await h.tick()
        assert h.store.keys() == []
        assert not any(site.paused or site.canary for site in h.world.plant.sites.values())

    asyncio.run(run())


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([(1, 10), (2, 15), (3, 21)], 11.0),
        ([(1, 10), (2, 3), (3, 4)], 4.0),
        ([(1, 1000), (2, 990), (3, 1001), (4, 991)], 1.0),
        ([(1, 10), (2, float("nan")), (3, 12)], 2.0),
    ],
)
def test_resets_count_from_zero_and_two_replicas_taking_turns_are_no_reset(
    points: list[tuple[float, float]], expected: float
) -> None:
    series = Counter({}, tuple(t for t, _ in points), tuple(v for _, v in points))
    assert counters.increase(series, None, 1.0, 10.0, born_at_zero=True)[0] == pytest.approx(expected)


def seen_with(*revisions: str) -> ClusterSeen:
    return ClusterSeen("a", pod_hashes={r: r for r in revisions})


def test_the_first_error_of_a_new_series_counts() -> None:
    total = Counter({"cluster": "a", "version": R_NEW}, (1.0, 2.0), (50.0, 90.0))
    bad = Counter({"cluster": "a", "version": R_NEW, "code": "500"}, (2.0,), (37.0,))
    answer = counters.Answer((total,), (bad,))
    sample, _ = counters.sample(METRIC, answer, seen_with(R_NEW, R_OLD), R_NEW, 1.0, {}, 2.5)
    assert (sample.counts.canary_requests, sample.counts.canary_bad) == (40.0, 37.0)


def test_requests_without_any_error_series_are_no_errors() -> None:
    total = Counter({"cluster": "a", "version": R_OLD}, (1.0, 2.0), (50.0, 90.0))
    sample, _ = counters.sample(METRIC, counters.Answer((total,), ()), seen_with(R_OLD), R_NEW, 1.0, {}, 2.5)
    assert (sample.gap, sample.counts.stable_requests, sample.counts.stable_bad) == ("", 40.0, 0.0)


def test_a_wrong_version_label_is_said_and_not_taken_for_health() -> None:
    total = Counter({"cluster": "a", "hash": R_OLD}, (1.0, 2.0), (50.0, 90.0))
    sample, _ = counters.sample(METRIC, counters.Answer((total,), ()), seen_with(R_OLD), R_NEW, 1.0, {}, 2.5)
    assert "label version" in sample.gap


def document(**changes: Any) -> dict[str, Any]:
    told: dict[str, Any] = {"workloadRef": {"name": "web"}, **changes}
    return {"apiVersion": "rebalancer.dev/v1alpha1", "kind": "CanaryRollout", "metadata": {"name": "web"}, "spec": told}


def canary(**fields: Any) -> dict[str, Any]:
    return {"strategy": {"canary": fields}}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (canary(trafficRouting={}), "trafficRouting is planned and not honoured yet"),
        (canary(steps=[{"setWeight": 50}, {"setWeight": 20}, {"setWeight": 100}]), "must rise"),
        (canary(steps=[{"setWeight": 50}]), "must be 100"),
        (canary(steps=[{"pause": {}}, {"setWeight": 100}]), "first step"),
        (canary(steps=[{"setWeight": 5, "pause": {}}]), "exactly one"),
        (canary(analysis={"metrics": [{"name": "x", "type": "Histogram", "total": "a", "bad": "b"}]}), "Histogram is"),
        (canary(analysis={"minStepSeconds": 60, "maxStepSeconds": 30}), "maxStepSeconds"),
        ({"placement": {"onClusterFailure": "AbortWave"}}, "AbortWave is planned"),
        ({"placement": {"waves": [{"name": "w"}]}}, "exactly one of clusters"),
        ({"placement": {"waves": [{"name": "w", "clusters": ["a"], "maxConcurrent": 0}]}}, "above 0"),
        ({"revisionHistoryLimit": 5}, "revisionHistoryLimit is planned"),
        ({"workloadRef": {"name": "web", "namespace": "other"}}, "the rollout's own"),
        ({"workloadRef": {"name": "w" * 250}}, "longer than"),
    ],
)  # fmt: skip
def test_a_kind_that_would_not_do_what_it_says_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        CanaryRollout.model_validate(document(**changes))


def test_pauses_hang_on_the_weight_before_them() -> None:
    steps = [{"setWeight": 5}, {"pause": {"duration": "10m"}}, {"setWeight": 50}, {"pause": {}}, {"setWeight": 100}]
    told = CanaryRollout.model_validate(document(**canary(steps=steps))).to_spec()
    assert [(s.weight, s.pause_s, s.manual) for s in told.steps] == [
        (5, 600.0, False),
        (50, 0.0, True),
        (100, 0.0, False),
    ]


def test_a_verb_is_written_and_read_back_and_rubbish_is_no_request() -> None:
    patch = cast("dict[str, Any]", request_patch("promote", "7", full=True))
    assert parse_request(patch["metadata"]["annotations"]) == Request("7", "promote", full=True)
    assert parse_request({REQUEST_ANNOTATION: "{"}) is None
    assert parse_request({REQUEST_ANNOTATION: '{"id": "1", "verb": "destroy"}'}) is None
    with pytest.raises(ValueError, match="unknown verb"):
        request_patch(cast("Any", "destroy"), "1")


def test_a_status_is_shown_with_its_numbers() -> None:
    async def run() -> None:
        h = Harness()
        await h.begin()
        await h.until(State.ANALYSING)
        await h.tick()
        text = "\n".join(render_status(spec(), h.status))
        assert "step 1/4, weight 5" in text
        assert "actual 9.1 %" in text
        assert "shop/web" in render_list([(spec(), h.status)])[1]

    asyncio.run(run())
