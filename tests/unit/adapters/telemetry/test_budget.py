"""Large histories are asked for in shards: each within its budget, together the whole."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rebalancer.adapters.telemetry import budget
from rebalancer.adapters.telemetry.budget import POINTS, SAMPLES, Size
from rebalancer.adapters.telemetry.decode import Series
from rebalancer.ports import DemandAnswer, DemandWindow
from tests.unit.adapters.telemetry.servers import Handler, always, failure, serving, success
from tests.unit.adapters.telemetry.test_view import NOW, WEB, Clock, telemetry

NAMES = st.text(st.sampled_from("ab-.|(*"), max_size=4)


def takes(shard: tuple[tuple[str, str, str], ...], value: str) -> bool:
    """What a server does with a shard's matchers: anchored regular expressions."""
    return all((re.fullmatch(text, value) is not None) == (operator == "=~") for _, operator, text in shard)


@given(st.dictionaries(NAMES, st.integers(1, 3000), max_size=12), NAMES, st.integers(1, 1440))
def test_every_series_is_in_exactly_one_shard_also_one_that_was_just_born(
    series: dict[str, int], born: str, slots: int
) -> None:
    shards = Size("service", series, {value: count / 15 for value, count in series.items()}).shards(slots, slots * 300)
    for value in {*series, born}:
        assert sum(takes(shard, value) for shard in shards) == 1, (value, shards)


@given(st.dictionaries(NAMES, st.integers(1, 3000), min_size=1, max_size=12), st.sampled_from([60.0, 300.0]))
def test_a_shard_of_a_chunk_is_within_its_budget(series: dict[str, int], step_s: float) -> None:
    size = Size("service", series, {value: count / 15 for value, count in series.items()})
    slots = min(1440, size.slots(step_s))
    for shard in size.shards(slots, (slots + 1) * step_s):
        inside = [value for value in series if takes(shard, value)]
        assert sum(series[value] for value in inside) * slots <= POINTS or slots == 1
        read = sum(size.samples_per_s[value] for value in inside) * (slots + 1) * step_s
        assert read <= SAMPLES * (1 + 1e-9) or slots == 1


def test_what_is_small_is_one_query_without_a_matcher() -> None:
    assert Size("service", {"a": 10}, {"a": 1.0}).shards(288, 86_400) == ((),)
    assert Size("service").shards(288, 86_400) == ((),)
    assert Size("service").slots(300.0) > 1_000_000


def test_the_answer_is_read_by_kind_and_what_is_no_number_is_left_out() -> None:
    def one(value: str, kind: str, amount: float) -> Series:
        return Series({"service": value, "kind": kind}, np.array([1.0]), np.array([amount]))

    found = [one("a", "series", 4), one("a", "samples", 600), one("b", "series", float("nan"))]
    assert budget.read("service", found) == Size("service", {"a": 4}, {"a": 2.0})


MANY = 3000


def large(handler: Handler) -> None:
    """A counter of 30 workloads with a hundred series each, as a server with a limit would answer for it."""
    form = handler.form
    names = [f"w-{index}" for index in range(30)]
    if "count_over_time" in form["query"]:
        result: list[Any] = [
            {"metric": {"service": name, "kind": kind}, "value": [NOW, str(amount)]}
            for name in names for kind, amount in (("series", MANY), ("samples", MANY * 20))
        ]  # fmt: skip
        handler.answer(200, success(result))
    elif "step" in form:
        found = re.search(r'service(=~|!~)"([^"]*)"', form["query"])
        assert found is not None, "nobody asks for all of it at once"
        inside = [n for n in names if takes((("service", found[1], found[2].replace("\\\\", "\\")),), n)]
        ends = np.arange(float(form["start"]), float(form["end"]) + 1, float(form["step"]))
        if len(inside) * MANY * (ends[-1] - ends[0] + 300) / 15 > SAMPLES * 1.01:
            always(422, failure("execution", "query processing would load too many samples into memory"))(handler)
            return
        result = [
            {"metric": {"cluster": "eu-1", "namespace": "default", "service": n}, "values": [[t, "2"] for t in ends]}
            for n in inside
        ]
        handler.answer(200, success(result, "matrix"))
    else:
        handler.answer(200, success([]))


def test_a_backfill_that_is_too_large_for_one_query_is_whole_in_the_end() -> None:
    clock = Clock()
    window = DemandWindow(NOW - 86_400, NOW, 300.0)

    async def work(url: str) -> DemandAnswer:
        tele = telemetry(clock, {"url": url})
        answer = await tele.demand(window, WEB)
        await tele.close()
        return answer

    with serving(large) as server:
        answer = asyncio.run(work(server.url))
    assert len(answer.keys) == 30
    np.testing.assert_equal(answer.values, np.full((30, 288), 2.0))
