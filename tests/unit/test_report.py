"""A plan and the network as people and programs read them, against golden files; pages escape what others wrote.

After a wanted change: `UPDATE_GOLDEN=1 pytest tests/unit/test_report.py`, and look at the difference.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest

from rebalancer.core.model import Action, Plan, Refusal, SetReplicas, View, WorkloadPlan
from rebalancer.core.network import Cell, Gap, LatencyMap, Throughput, measured_cell
from rebalancer.core.planning import PlanMemory
from rebalancer.report import svg
from rebalancer.report.network import as_json as network_json
from rebalancer.report.network import render as render_network
from rebalancer.report.page import cards, page, table
from rebalancer.report.plan import as_json, clock, exit_code, explain, number, render, summary, to_text
from tests.unit.core.fleet import NOW, REGIONS, WEB, cluster_state, demand, plan, snapshot

GOLDEN = Path(__file__).parents[1] / "golden"


def golden(name: str, text: str) -> None:
    file = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN"):
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")


def small() -> Plan:
    """Users in Asia, replicas in Europe, and a cluster in America whose metrics are gone."""
    origins = {"eu": 38.0, "ap": 38.0}
    seen = snapshot(
        {"eu-1": 8, "us-1": 2, "ap-1": 0},
        origins,
        views={"us-1": View("failed", NOW - 90, "its Prometheus does not answer")},
        seen=demand(origins, missing=("us-1",)),
        states={"ap-1": cluster_state("ap-1", room_cpu=4.0)},
    )
    return plan(seen, origins, memory=PlanMemory())[0]


def test_the_table() -> None:
    golden("plan.txt", "\n".join(line.rstrip() for line in to_text(render(small())).splitlines()) + "\n")


def test_the_json() -> None:
    golden("plan.json", as_json(small(), ("prometheus us-1: timeout",)) + "\n")


def test_the_explanation() -> None:
    golden("explain.txt", "\n".join(explain(small(), WEB)) + "\n")


def test_table_json_and_explanation_say_the_same() -> None:
    found = small()
    body, text, why = json.loads(as_json(found)), to_text(render(found), 400), "\n".join(explain(found, WEB))
    for action in found.actions:
        assert action.explanation in text
        assert action.explanation in why
    assert [a["explanation"] for a in body["actions"]] == [a.explanation for a in found.actions]
    for refusal in found.refusals:
        assert refusal.reason in text
        assert refusal.reason in why
    assert body["summary"] in text


EMPTY = WorkloadPlan("shop/api", "shop/api", {"eu-1": 1}, {}, {}, None, math.nan)


def bare(**changes: object) -> Plan:
    base = Plan("id", NOW, (), (), {}, {}, {}, {})
    return replace(base, **changes)  # type: ignore[arg-type]  # test helper


def test_what_is_unknown_is_told_as_unknown_and_null() -> None:
    found = bare(workloads={"shop/api": EMPTY}, gap_ratio=math.nan, views={"eu-1": View("failed", None, "never")})
    body = json.loads(as_json(found))
    assert body["gapRatio"] is None
    assert body["workloads"]["shop/api"]["demand"] is None
    assert body["workloads"]["shop/api"]["latencyMs"] is None
    text = to_text(render(found))
    assert "demand unknown" in text
    assert "latency unknown -> unknown ms" in text
    assert "failed since never" in text
    assert "nan" not in text + "".join(explain(found, "shop/api"))


def test_words_of_others_are_shown_as_they_are() -> None:
    detail = "[/red] missing: [bold]eu-1[/bold] " + "x" * 500
    found = bare(
        refusals=(Refusal("shop/[web]", "view-partial", "eu-1", detail),) * 2,
        actions=(Action("scale", "shop/[/]", (SetReplicas("eu-1", 1, 2),), "demand-up", "[link=x]why[/link]"),),
    )
    text = to_text(render(found), 2000)
    assert f"{detail} (x2)" in text
    assert "shop/[web]" in text
    assert "[link=x]why[/link]" in text
    for width in (20, 80, 140):
        assert to_text(render(found), width)


def test_no_such_workload() -> None:
    with pytest.raises(KeyError):
        explain(bare(), "shop/none")


ACTION = Action("scale", WEB, (), "demand-up", "x", replicas=1)


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (bare(), 0),
        (bare(actions=(ACTION,)), 2),
        (bare(refusals=(Refusal(WEB, "stabilising"), Refusal(WEB, "gain-too-small"), Refusal(WEB, "at-min"))), 0),
        (bare(refusals=(Refusal(WEB, "no-room"),)), 3),
        (bare(views={"eu-1": View("stale", NOW)}), 3),
        (bare(views={"eu-1": View("complete", NOW)}), 0),
        (bare(actions=(ACTION,), refusals=(Refusal(WEB, "no-room"),)), 2),
    ],
)
def test_the_exit_code(found: Plan, code: int) -> None:
    assert exit_code(found) == code


def test_small_words() -> None:
    assert clock(None) == "never"
    assert clock(0.0) == "1970-01-01 00:00:00Z"
    assert (number(math.nan), number(math.inf), number(1234.5)) == ("unknown", "unknown", "1.23e+03")
    assert summary(bare(actions=(ACTION,))) == "Plan: 1 up, 0 down, 0 moves, 0 unchanged, 0 refusals."


EVIL = "<script>alert(1)</script>\"'&"


def test_pages_escape_what_others_wrote() -> None:
    body = (
        table((EVIL,), ((EVIL, "b"),))
        + cards(((EVIL, EVIL),))
        + svg.lines([0, 1], {EVIL: [1, math.nan]}, EVIL, [(0.5, EVIL)])
        + svg.stacked([0, 1], {EVIL: [1, 2]}, EVIL, [(0.5, EVIL)])
        + svg.world({EVIL: (1.0, 2.0)}, {EVIL: 1}, {EVIL: 1.0}, (1, 1.0), EVIL)
    )
    whole = page(EVIL, body)
    assert "<script" not in whole
    assert whole.count("&lt;script&gt;") >= 9


def test_pages_need_no_network() -> None:
    assert "http" not in page("t", svg.lines([0, 1], {"a": [1, 2]}, "ms"))


@pytest.mark.parametrize("values", [[0.0, 0.0], [math.nan, math.nan], [1e-9, 1e12]])
def test_charts_of_odd_numbers_are_charts(values: list[float]) -> None:
    drawn = svg.lines([0.0, 1.0], {"a": values}, "ms")
    assert "nan" not in drawn
    assert "inf" not in drawn


def paths() -> LatencyMap:
    """One path of each kind."""
    sure = measured_cell(0.0853, loss=0.002, samples=1200, loss_forward=0.001)
    back = Gap(3 * 3600.0, 1500.0, 10_800.0, 0.25)
    return LatencyMap({
        ("eu-1", "us-1"): sure,
        ("us-1", "eu-1"): replace(sure, source="reverse"),
        ("eu-1", "ap-1"): replace(measured_cell(None, loss=1.0), age_s=95.0),
        ("ap-1", "eu-1"): Cell(rtt_mean_s=0.16, rtt_p50_s=0.159, age_s=4.0, state="udp_blocked", proto="tcp"),
        ("us-1", "ap-1"): Cell(rtt_mean_s=0.2, rtt_p50_s=0.2, error_s=0.031, source="predicted"),
        ("ap-1", "us-1"): Cell(age_s=None, gap=back),
    }, REGIONS)  # fmt: skip


CARRIED = {"eu-1": Throughput(125e6, 2.5e6), "us-1": Throughput(math.nan, 1e6)}


def test_the_map_of_the_network() -> None:
    shown = render_network(paths(), CARRIED, ("network: us-1 does not answer",))
    golden("network.txt", "\n".join(line.rstrip() for line in to_text(shown, 180).splitlines()) + "\n")


def test_the_map_as_json_has_null_where_nothing_is_known() -> None:
    found = json.loads(network_json(paths(), CARRIED, cluster="ap-1"))
    assert {(p["from"], p["to"]) for p in found["paths"]} == {p for p in paths().cells if "ap-1" in p}
    unknown = next(p for p in found["paths"] if (p["from"], p["to"]) == ("ap-1", "us-1"))
    assert (unknown["rtt_p50_s"], unknown["loss"], unknown["gap"]["loss"]) == (None, None, 0.25)
    assert found["throughput"]["us-1"] == {"in_bytes_s": None, "out_bytes_s": 1e6}


def test_a_narrow_terminal_gets_fewer_columns_and_none_is_folded() -> None:
    text = to_text(render_network(paths(), CARRIED, width=100), 100)
    assert "jitter" not in text
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 100
