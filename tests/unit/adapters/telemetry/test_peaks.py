"""Peaks within slots: what several sources know together, and what is asked for."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rebalancer.adapters.telemetry.peaks import together
from rebalancer.core.model import Floats
from rebalancer.ports import DemandAnswer, DemandWindow
from tests.unit.adapters.telemetry.servers import Handler, always, failure, serving, success
from tests.unit.adapters.telemetry.test_view import NOW, WEB, WINDOW, Clock, fake, one_demand, telemetry

NAN = np.nan
ONE, TWO = ("shop/web", "", "eu-1"), ("shop/web", "", "us-1")


def row(*values: float) -> Floats:
    return np.array(values)


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        pytest.param([({ONE: row(5, 5)}, {"shop/web": row(2, NAN)})], (2, NAN), id="one source speaks for itself"),
        pytest.param(
            [({ONE: row(10, 10)}, {"shop/web": row(2, 2)}), ({TWO: row(30, 0)}, {"shop/web": row(1, 3)})],
            (1.25, 2),
            id="two sources weigh by their means, as if their peaks coincided",
        ),
        pytest.param(
            [({ONE: row(10, 10)}, {"shop/web": row(2, NAN)}), ({TWO: row(10, NAN)}, {"shop/web": row(NAN, NAN)})],
            (1.5, NAN),
            id="a source that does not know counts as flat, and none as unknown",
        ),
        pytest.param(
            [({ONE: row(0, 0)}, {"shop/web": row(2, 2)}), ({TWO: row(0, 0)}, {"shop/web": row(2, 2)})],
            (1, 1),
            id="no demand has no peak",
        ),
        pytest.param([({ONE: row(5, 5)}, {})], None, id="nothing is known of a workload without an answer"),
    ],
)  # fmt: skip
def test_peaks_of_several_sources(parts, expected) -> None:  # type: ignore[no-untyped-def]  # rows of the table
    found = together(parts)
    if expected is None:
        assert found == {}
    else:
        np.testing.assert_allclose(found["shop/web"], expected)


@given(st.lists(st.tuples(st.floats(0, 1e9), st.floats(1, 5)), min_size=1, max_size=4))
def test_the_common_peak_lies_between_the_least_and_the_largest_ratio(known: list[tuple[float, float]]) -> None:
    parts = [({("shop/web", "", str(i)): row(mean)}, {"shop/web": row(ratio)}) for i, (mean, ratio) in enumerate(known)]
    found = float(together(parts)["shop/web"][0])
    assert 1.0 - 1e-9 <= found <= max(ratio for _, ratio in known) + 1e-9


@pytest.mark.parametrize(
    ("step_s", "queries"),
    [
        pytest.param(300.0, 2, id="a slot of five minutes is looked at, beside its mean"),
        pytest.param(120.0, 1, id="a slot as short as the rate's window has no peak"),
    ],
)
def test_what_is_asked_for(step_s: float, queries: int) -> None:
    clock = Clock()
    with serving(fake({"eu-1": 3.0, "us-1": 3.0}, clock.now, origin="eu")) as server:

        async def work() -> DemandAnswer:
            tele = telemetry(clock, {"url": server.url})
            end_s = NOW // step_s * step_s
            answer = await tele.demand(DemandWindow(end_s - 10 * step_s, end_s, step_s), WEB)
            await tele.close()
            return answer

        answer = asyncio.run(work())
        ranged = [form["query"] for path, form, _ in server.requests if path.endswith("query_range")]
    assert answer.errors == ()
    assert len(ranged) == queries
    assert sum("max_over_time" in query for query in ranged) == queries - 1
    if queries == 1:
        assert answer.peaks == {}
    else:
        np.testing.assert_array_equal(answer.peaks["default/web"], np.full(10, 3.0))


@pytest.mark.parametrize(
    ("answer", "unknown"),
    [
        pytest.param("served", False, id="peaks that are answered are known"),
        pytest.param("refused", True, id="a query that fails says nothing of peaks"),
        pytest.param("empty", True, id="an empty answer says nothing where there is demand"),
        pytest.param("nan", True, id="a peak that is no number is not known"),
    ],
)
def test_where_peaks_are_not_known_it_is_said(answer: str, unknown: bool) -> None:
    clock = Clock()
    usual = fake({"eu-1": 3.0, "us-1": 3.0}, clock.now, origin="eu")

    def behave(handler: Handler) -> None:
        if "max_over_time((" not in handler.form["query"] or answer == "served":
            usual(handler)
        elif answer == "refused":
            always(422, failure("execution", "query processing would load too many samples into memory"))(handler)
        else:
            ends = np.arange(float(handler.form["start"]), float(handler.form["end"]) + 1, float(handler.form["step"]))
            series = {"metric": {"namespace": "default", "service": "web"}, "values": [[t, "NaN"] for t in ends]}
            handler.answer(200, success([series] if answer == "nan" else [], "matrix"))

    with serving(behave) as server:
        found = asyncio.run(one_demand(clock, {"url": server.url}))
    assert found.peakless == (frozenset({"default/web"}) if unknown else frozenset())
    assert all(view.complete for view in found.views.values())
    assert any("peaks of demand" in error for error in found.errors) is (answer == "refused")
    np.testing.assert_array_equal(found.values, np.full((2, 10), 3.0))


def test_peaks_move_with_the_window_while_nothing_is_answered() -> None:
    clock = Clock()
    usual = fake({"eu-1": 3.0, "us-1": 3.0}, clock.now, origin="eu")
    peak_s = WINDOW.end_s - 1500

    def behave(handler: Handler) -> None:
        if "max_over_time((" in handler.form["query"]:
            ends = np.arange(float(handler.form["start"]), float(handler.form["end"]) + 1, float(handler.form["step"]))
            values = [[t, "4" if t == peak_s else "1"] for t in ends]
            series = {"metric": {"namespace": "default", "service": "web"}, "values": values}
            handler.answer(200, success([series], "matrix"))
        elif "step" not in handler.form and "rate(" in handler.form["query"] and clock.at > NOW:
            always(503, b"")(handler)
        else:
            usual(handler)

    async def work(url: str) -> list[DemandAnswer]:
        tele = telemetry(clock, {"url": url})
        answers = [await tele.demand(WINDOW, WEB)]
        clock.at += 600
        answers.append(await tele.demand(DemandWindow(WINDOW.start_s + 600, WINDOW.end_s + 600, 300.0), WEB))
        await tele.close()
        return answers

    with serving(behave) as server:
        first, second = asyncio.run(work(server.url))
    assert list(np.flatnonzero(first.peaks["default/web"] > 1)) == [4]
    assert list(np.flatnonzero(second.peaks["default/web"] > 1)) == [2], "two slots later, at the same time"
