"""The port over fake backends: who is named, what is held, what is asked again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import numpy as np
import pytest

from rebalancer.adapters.telemetry import MetricsTelemetry
from rebalancer.api.cluster import MemberCluster
from rebalancer.api.controller import TelemetrySpec
from rebalancer.core.model import Unknown
from rebalancer.core.policy import DemandSpec, Policy
from rebalancer.ports import DemandAnswer, DemandWindow, Selection
from tests.unit.adapters.telemetry.servers import Behaviour, Handler, always, failure, hang, serving, success

NOW = 1_800_000_000.0
WINDOW = DemandWindow(NOW - 3000, NOW, 300.0)
WEB = {"default/p": Policy("p", demand=DemandSpec("requests_total", "service", "origin"))}


class Clock:
    """Stands still."""

    def __init__(self) -> None:
        self.at = NOW

    def now(self) -> float:
        return self.at

    async def sleep(self, seconds: float) -> None:
        self.at += seconds


def cluster(name: str, region: str = "eu", **spec: Any) -> MemberCluster:
    body = {"region": region, "connection": {"context": name}, **spec}
    return MemberCluster.model_validate({"metadata": {"name": name}, "spec": body})


def telemetry(
    clock: Clock, *backends: dict[str, Any], names: tuple[str, ...] = ("eu-1", "us-1"), **more: Any
) -> MetricsTelemetry:
    spec = TelemetrySpec.model_validate({"backends": list(backends), "maxAge": "60s"})
    return MetricsTelemetry(spec, {name: more.get(name) or cluster(name) for name in names}, clock, more.get("counts"))


def fake(rates: dict[str, float], at: Callable[[], float], **labels: str) -> Behaviour:
    """Answers each kind of query as a Prometheus with one counter of `web` per cluster would."""

    def answer(handler: Handler) -> None:
        query, form = handler.form["query"], handler.form
        result: list[Any]
        now = at()
        by = {name: {"cluster": name, "namespace": "default", "service": "web", **labels} for name in rates}
        if "step" in form:
            ends = np.arange(float(form["start"]), float(form["end"]) + 1, float(form["step"]))
            result = [{"metric": m, "values": [[t, str(rates[n])] for t in ends]} for n, m in by.items()]
            handler.answer(200, success(result, "matrix"))
            return
        if "up" in query:
            result = [
                {"metric": {"cluster": n, "job": "i", "kind": "seen"}, "value": [now, str(now - 5)]} for n in rates
            ]
        elif "timestamp" in query:
            result = [{"metric": {"cluster": n, "job": "i"}, "value": [now, str(now - 5)]} for n in rates]
        elif "container_cpu" in query:
            result = []
        else:
            result = [{"metric": m, "value": [now, str(rates[n])]} for n, m in by.items()]
        handler.answer(200, success(result))

    return answer


def run(work: Coroutine[Any, Any, DemandAnswer]) -> DemandAnswer:
    return asyncio.run(work)


async def one_demand(
    clock: Clock, *backends: dict[str, Any], policies: Mapping[str, Policy] = WEB, **more: Any
) -> DemandAnswer:
    """What a port answers that is asked once."""
    tele = telemetry(clock, *backends, **more)
    answer = await tele.demand(WINDOW, policies)
    await tele.close()
    return answer


def test_a_backend_that_dies_fails_its_clusters_only_and_their_history_is_kept() -> None:
    clock = Clock()
    with serving(fake({"eu-1": 5.0}, clock.now)) as first, serving(fake({"us-1": 7.0}, clock.now)) as second:

        async def work() -> DemandAnswer:
            tele = telemetry(clock, {"url": first.url, "clusters": ["eu-1"]}, {"url": second.url, "clusters": ["us-1"]})
            await tele.demand(WINDOW, WEB)
            first.behaviour = always(500, failure("internal", "boom"))
            answer = await tele.demand(WINDOW, WEB)
            await tele.close()
            return answer

        answer = run(work())
    assert answer.keys == (("default/web", "", "eu-1"), ("default/web", "", "us-1"))
    assert answer.views["us-1"].complete
    assert answer.views["eu-1"].state == "failed"
    assert answer.views["eu-1"].since_s == NOW - 5
    assert "boom" in answer.views["eu-1"].detail
    np.testing.assert_equal(answer.latest, [np.nan, 7.0])
    np.testing.assert_equal(answer.values, [[5.0] * 10, [7.0] * 10])


def test_demand_that_is_no_number_is_not_known_and_its_cluster_is_named() -> None:
    clock = Clock()
    with serving(fake({"eu-1": float("nan"), "us-1": 7.0}, clock.now)) as server:
        answer = run(one_demand(clock, {"url": server.url}))
    assert answer.views["eu-1"].state == "partial"
    assert "no numbers" in answer.views["eu-1"].detail
    assert answer.views["us-1"].complete


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf"])
def test_a_time_that_is_no_number_leaves_its_cluster_unseen_and_ends_nothing(value: str) -> None:
    clock = Clock()

    def senseless(handler: Handler) -> None:
        if "step" in handler.form:
            handler.answer(200, success([], "matrix"))
        else:
            at = value if {"up", "timestamp"} & set(handler.form["query"].replace("(", " ").split()) else "4"
            metric = {"cluster": "eu-1", "namespace": "default", "service": "web", "job": "i", "kind": "seen"}
            handler.answer(200, success([{"metric": metric, "value": [NOW, at]}]))

    with serving(senseless) as server:

        async def work() -> list[DemandAnswer]:
            tele = telemetry(clock, {"url": server.url})
            first = await tele.demand(WINDOW, WEB)
            server.behaviour = lambda handler: handler.answer(200, success([]))
            answers = [first, await tele.demand(WINDOW, WEB)]
            await tele.close()
            return answers

        answers = asyncio.run(work())
    assert all(not a.views["eu-1"].complete for a in answers)


@pytest.mark.slow
def test_a_backend_that_hangs_does_not_delay_the_others_beyond_its_timeout() -> None:
    clock = Clock()
    with serving(hang) as first, serving(fake({"us-1": 7.0}, clock.now)) as second:

        async def work() -> DemandAnswer:
            tele = telemetry(
                clock,
                {"url": first.url, "clusters": ["eu-1"], "timeout": "1s"},
                {"url": second.url, "clusters": ["us-1"]},
            )
            answer = await tele.demand(WINDOW, WEB)
            await tele.close()
            return answer

        answer = run(work())
    assert answer.views["eu-1"].state == "failed"
    assert "within 1 s" in answer.views["eu-1"].detail
    assert answer.views["us-1"].complete


def test_series_without_cluster_label_are_the_only_cluster_of_a_backend_that_serves_one() -> None:
    clock = Clock()

    def bare(handler: Handler) -> None:
        now = NOW
        if "step" in handler.form:
            handler.answer(200, success([], "matrix"))
        elif "up" in handler.form["query"]:
            handler.answer(200, success([{"metric": {"job": "i", "kind": "seen"}, "value": [now, str(now)]}]))
        else:
            metric = {"namespace": "default", "service": "web"}
            value = str(now) if "timestamp" in handler.form["query"] else "4"
            handler.answer(200, success([{"metric": metric, "value": [now, value]}]))

    with serving(bare) as server:
        answer = run(one_demand(clock, {"url": server.url, "clusters": ["eu-1"]}))
    assert answer.keys == (("default/web", "", "eu-1"),)
    assert answer.views["eu-1"].complete
    assert answer.views["us-1"].state == "failed"
    assert "no backend serves us-1" in answer.views["us-1"].detail


def test_a_cluster_is_found_by_its_own_label_and_entry_clusters_give_the_origin() -> None:
    clock = Clock()
    entry = {"default/p": Policy("p", demand=DemandSpec("requests_total", "service", entry_cluster=True))}
    with serving(fake({"x": 5.0}, clock.now, k8s="blue")) as server:
        own = cluster("eu-1", "europe", metricsLabel={"k8s": "blue"})
        answer = run(one_demand(clock, {"url": server.url}, policies=entry, names=("eu-1",), **{"eu-1": own}))
        queries = [form["query"] for _, form, _ in server.requests if "query" in form]
    assert answer.keys == (("default/web", "europe", "eu-1"),)
    assert any('k8s=~"blue"' in query for query in queries)


def test_a_query_that_is_no_selector_costs_its_own_workloads_only() -> None:
    clock = Clock()
    policies = {**WEB, "other/q": Policy("q", "other", demand=DemandSpec("x or vector(1)"))}
    with serving(fake({"eu-1": 5.0, "us-1": 7.0}, clock.now)) as server:
        answer = run(one_demand(clock, {"url": server.url}, policies=policies))
        assert not any("vector(1)" in form.get("query", "") for _, form, _ in server.requests)
    assert {key[0] for key in answer.keys} == {"default/web"}
    assert all(view.complete for view in answer.views.values())
    assert any("is no selector" in sentence for sentence in answer.errors)


def test_owners_decide_where_two_policies_of_a_namespace_count_differently() -> None:
    clock = Clock()
    policies = {
        "default/a": Policy("a", demand=DemandSpec("a_total")),
        "default/b": Policy("b", demand=DemandSpec("b_total")),
    }
    with serving(fake({"eu-1": 5.0, "us-1": 7.0}, clock.now)) as server:

        async def work() -> DemandAnswer:
            tele = telemetry(clock, {"url": server.url})
            first = await tele.demand(WINDOW, policies)
            assert len(first.keys) == 2, "never counted twice"
            tele.owners = {"default/web": "default/elsewhere"}
            answer = await tele.demand(WINDOW, policies)
            await tele.close()
            return answer

        assert run(work()).keys == ()


def test_a_later_cycle_fetches_new_slots_only() -> None:
    clock = Clock()
    with serving(fake({"eu-1": 5.0, "us-1": 7.0}, clock.now)) as server:

        async def work() -> DemandAnswer:
            tele = telemetry(clock, {"url": server.url})
            await tele.demand(WINDOW, WEB)
            server.requests.clear()
            clock.at += 300
            answer = await tele.demand(DemandWindow(NOW - 2700, NOW + 300, 300.0), WEB)
            await tele.close()
            return answer

        answer = run(work())
        ranged = [form for path, form, _ in server.requests if path.endswith("query_range")]
    spans = [float(form["end"]) - float(form["start"]) for form in ranged]
    assert spans == [600.0, 600.0], "the new slot and two again, of means and of peaks"
    assert not np.isnan(answer.values).any()


def test_overload_is_tried_again_within_the_deadline_and_a_bad_query_is_not() -> None:
    outcomes: list[str] = []
    clock = Clock()
    good = fake({"eu-1": 5.0, "us-1": 7.0}, clock.now)

    def sometimes(handler: Handler) -> None:
        # Every other query, once: side by side they come in any order, and none is to fail each time.
        # A retry has less time left, which stands in its form.
        asked = [(path, {**form, "timeout": ""}) for path, form, _ in handler.server.requests]
        mine = (handler.path, {**handler.form, "timeout": ""})
        fails = asked.count(mine) == 1 and len(asked) % 2
        always(503, b"warming up")(handler) if fails else good(handler)

    async def work(url: str) -> DemandAnswer:
        tele = telemetry(clock, {"url": url}, counts=lambda _b, outcome, _s: outcomes.append(outcome))
        answer = await tele.demand(WINDOW, WEB)
        await tele.close()
        return answer

    with serving(sometimes) as server:
        assert all(view.complete for view in run(work(server.url)).views.values())
    assert set(outcomes) == {"ok"}
    outcomes.clear()
    with serving(always(400, failure("bad_data", "no"))) as server:
        answer = run(work(server.url))
        assert len(server.requests) == len(outcomes)
    assert set(outcomes) == {"bad-query"}
    assert {view.state for view in answer.views.values()} == {"failed"}


def test_counters_of_a_dead_backend_fail_with_its_sentence() -> None:
    async def work(url: str) -> None:
        tele = telemetry(Clock(), {"url": url})
        answer = await tele.counters(Selection("a_total", "b_total", "hash"), ["eu-1"], NOW - 10, NOW)
        await tele.close()
        assert answer.views["eu-1"].state == "failed"
        assert "HTTP 401" in answer.errors[0]
        assert set(answer.views) == {"eu-1"}

    with serving(always(401, b"")) as server:
        asyncio.run(work(server.url))


def test_check_of_a_login_page_is_one_finding_with_the_next_step() -> None:
    async def work(url: str) -> None:
        tele = telemetry(Clock(), {"url": url})
        [finding] = await tele.check(WEB)
        await tele.close()
        assert (finding.state, finding.what) == ("missing", "backend")
        assert "does not answer as Prometheus does" in finding.sentence
        assert finding.degrades == "Nothing is known of eu-1, us-1."
        assert "url" in finding.next_step

    with serving(always(200, b"<html>Sign in</html>", content_type="text/html")) as server:
        asyncio.run(work(server.url))


@pytest.mark.parametrize("restarted", [False, True])
def test_an_empty_answer_for_a_metric_that_was_there_is_not_believed(restarted: bool) -> None:
    clock, gone = Clock(), False
    good = fake({"eu-1": 5.0, "us-1": 7.0}, clock.now)

    def renamed(handler: Handler) -> None:
        query = handler.form["query"]
        if gone and "requests_total" in query and "max_over_time" not in query:
            handler.answer(200, success([], "matrix" if "step" in handler.form else "vector"))
        else:
            good(handler)

    with serving(renamed) as server:

        async def work() -> DemandAnswer:
            nonlocal gone
            tele = telemetry(clock, {"url": server.url})
            before = await tele.demand(WINDOW, WEB)
            assert all(view.complete for view in before.views.values())
            gone = True
            if restarted:
                await tele.close()
                tele = telemetry(clock, {"url": server.url})
            answer = await tele.demand(WINDOW, WEB)
            await tele.close()
            return answer

        answer = run(work())
    assert {view.state for view in answer.views.values()} == {"partial"}
    assert all("has no series at all, and had some until" in view.detail for view in answer.views.values())
    assert any("has no series at any backend" in sentence for sentence in answer.errors)


def test_a_metric_that_never_was_is_named_and_nobody_is_blamed() -> None:
    clock = Clock()
    good = fake({"eu-1": 5.0, "us-1": 7.0}, clock.now)

    def without(handler: Handler) -> None:
        good(handler) if "up" in handler.form["query"] else handler.answer(200, success([]))

    with serving(without) as server:
        answer = run(one_demand(clock, {"url": server.url}))
    assert answer.keys == ()
    assert any("requests_total has no series at any backend; correct demand.query" in text for text in answer.errors)
    assert all(view.complete for view in answer.views.values())


def test_a_thanos_without_stores_knows_nothing_whatever_it_answers() -> None:
    clock = Clock()
    good = fake({"eu-1": 5.0, "us-1": 7.0}, clock.now)

    def empty(handler: Handler) -> None:
        if handler.path == "/api/v1/stores":
            handler.answer(200, b'{"status": "success", "data": {}}')
        else:
            good(handler)

    with serving(empty) as server:
        answer = run(one_demand(clock, {"url": server.url, "type": "thanos"}))
    assert {view.state for view in answer.views.values()} == {"failed"}
    assert all("has no stores at all" in view.detail for view in answer.views.values())


def test_several_sums_where_one_is_expected_are_no_room() -> None:
    def doubled(handler: Handler) -> None:
        labels = {"cluster": "eu-1", "resource": "cpu", "kind": "allocatable"}
        other = {**labels, "cluster": "us-1"}
        result = [
            {"metric": m, "value": [NOW, str(n)]} for m, n in ((labels, 8), ({**labels, "k8s": "x"}, 4), (other, 2))
        ]
        handler.answer(200, success(result))

    async def work(url: str) -> None:
        tele = telemetry(Clock(), {"url": url})
        answer = await tele.room()
        await tele.close()
        assert answer.clusters["us-1"] == {"cpu": (2.0, 0.0)}
        room = answer.clusters["eu-1"]
        assert isinstance(room, Unknown)
        assert "several sums for eu-1" in room.detail

    with serving(doubled) as server:
        asyncio.run(work(server.url))


def test_several_recordings_of_one_pair_that_differ_are_no_measurement() -> None:
    def doubled(handler: Handler) -> None:
        pair = {"src_cluster": "eu-1", "dst_cluster": "us-1", "proto": "udp"}
        if "timestamp" in handler.form["query"]:
            handler.answer(200, success([{"metric": pair, "value": [NOW, str(NOW - 5)]}]))
        else:
            mean = {"__name__": "pair:rebalancer_probe_rtt_seconds:mean2m"}
            samples = {"__name__": "pair:rebalancer_probe_samples:increase2m"}
            back = {**pair, "src_cluster": "us-1", "dst_cluster": "eu-1"}
            result: list[Any] = [
                {"metric": {**name, **one, "job": job}, "value": [NOW, str(value)]}
                for name, one, job, value in (
                    (mean, pair, "a", 0.02), (mean, pair, "b", 0.9),
                    (samples, pair, "a", 100), (samples, pair, "b", 100),
                    (mean, back, "a", 0.03), (samples, back, "a", 100),
                )
            ]  # fmt: skip
            handler.answer(200, success(result))

    async def work(url: str) -> None:
        tele = telemetry(Clock(), {"url": url})
        answer = await tele.network(NOW)
        await tele.close()
        assert any(
            "several series of pair:rebalancer_probe_rtt_seconds:mean2m from eu-1 to us-1" in e for e in answer.errors
        )
        assert 0.9 not in {cell.rtt_mean_s for cell in answer.map.cells.values()}

    with serving(doubled) as server:
        asyncio.run(work(server.url))
