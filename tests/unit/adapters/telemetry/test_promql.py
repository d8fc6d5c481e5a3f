"""Selectors: nothing of a user's text gets into PromQL unparsed."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rebalancer.adapters.telemetry.errors import AnswerError
from rebalancer.adapters.telemetry.promql import POD_OF_DEPLOYMENT, Selector, one_of, parse, quote

GOOD = {
    "requests_total": "requests_total",
    ' job:x:rate5m { a = "b" , c!~"d|e", } ': 'job:x:rate5m{a="b",c!~"d|e"}',
    '{__name__="x"}': '{__name__="x"}',
    'x{a="}\\""}': 'x{a="}\\""}',
    "x{a='b',c=`d`}": "x{a='b',c=`d`}",
    "x{}": "x",
}
BAD = ["", "sum(x)", "x[5m]", "x or vector(1)", 'x{a="b"} or y', 'x{a="b"', "x{a=b}", 'x{="b"}', '{a="b"}',
       'x{a="b"}{c="d"}', 'x offset 5m', '1x', 'x{a="b" c="d"}', "x{a=\"b\n\"}", 'x # }']  # fmt: skip


@pytest.mark.parametrize("text", GOOD)
def test_a_selector_is_parsed_and_rendered(text: str) -> None:
    assert str(parse(text)) == GOOD[text]


@pytest.mark.parametrize("text", BAD)
def test_anything_else_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(AnswerError, match="write it as metric") as got:
        parse(text)
    assert got.value.kind == "bad-query"


@given(st.text())
def test_no_value_leaves_its_quotes(value: str) -> None:
    text = str(Selector("x").where(("a", "=", value), ("b", "=", "c")))
    assert parse(text).matchers[1] == ("b", "=", '"c"')
    assert quote(value).count("\n") == 0


@given(st.lists(st.text("ab.-+*|()[]{}^$\\", min_size=1), min_size=1, max_size=4), st.text("ab.-+|", min_size=1))
def test_an_alternation_fits_its_values_only(values: list[str], other: str) -> None:
    pattern = re.compile(one_of(values))
    assert all(pattern.fullmatch(value) for value in values)
    assert bool(pattern.fullmatch(other)) == (other in values)


@pytest.mark.parametrize(
    ("pod", "deployment"),
    [
        ("web-5d4f7c9b8-x2vbn", "web"), ("my-api-v2-6c6d5f9f4d-zzzzz", "my-api-v2"), ("db-0", None), ("web", None),
        ("agent-x2vbn", None), ("web-canary-7b9f8-4mzq8", "web-canary"),
    ],
)  # fmt: skip
def test_a_pod_names_its_deployment(pod: str, deployment: str | None) -> None:
    found = re.fullmatch(POD_OF_DEPLOYMENT, pod)
    assert (found.group(1) if found else None) == deployment
