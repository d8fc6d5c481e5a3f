"""Boards: what is committed is what the code generates, and a new Grafana reads all of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import promql_parser
import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as sdk

from dashboards.__main__ import HERE, generate
from rebalancer.catalog import METRICS, RECORDED

BOARDS: dict[str, dict[str, Any]] = {name: json.loads(text) for name, text in generate().items()}
ALL = [(name, panel) for name, board in BOARDS.items() for panel in board["panels"]]
PANELS = [pytest.param(name, panel, id=f"{name}:{panel['title']}") for name, panel in ALL if panel["type"] != "row"]


def expressions() -> Iterator[Any]:
    for name, panel in ALL:
        for target in panel.get("targets", []):
            yield pytest.param(target["expr"], panel["type"], id=f"{name}:{panel['title']}:{target['refId']}")


def plain(expr: str) -> str:
    """The expression with Grafana's variables filled in."""
    return re.sub(r"\$\w+", ".+", expr.replace("$__rate_interval", "5m"))


@pytest.mark.parametrize("name", sorted(BOARDS))
def test_the_committed_file_is_what_the_code_generates(name: str) -> None:
    assert (HERE / name).read_text(encoding="utf-8") == generate()[name], "run `python -m dashboards` and commit"


def test_no_generated_file_is_left_over() -> None:
    assert {path.name for path in HERE.glob("*.json")} == set(BOARDS)


@pytest.mark.parametrize(("expr", "kind"), list(expressions()))
def test_expressions_are_promql_over_the_catalogue(expr: str, kind: str) -> None:
    promql_parser.parse(plain(expr))
    names = re.findall(r"(?:pair:)?rebalancer_\w+(?::\w+)?", expr)
    assert names
    for name in names:
        assert name in RECORDED or name in METRICS or re.sub(r"_(bucket|sum|count)$", "", name) in METRICS, name
    for call in re.findall(r"(?:rate|increase)\(([^)]*)\)", expr):
        assert "[$__rate_interval]" in call, "a fixed window is wrong for some zoom or scrape interval"
    for name in names:
        if METRICS.get(name) is not None and METRICS[name].kind == "counter":
            assert f"rate({name}" in expr, f"{name} is a counter"


@pytest.mark.parametrize(("expr", "kind"), list(expressions()))
def test_selectors_and_groupings_use_labels_that_exist(expr: str, kind: str) -> None:
    known = {label for item in METRICS.values() for label in item.labels} | {"le", "instance"}
    for grouping in re.findall(r"(?:by|on) \(([^)]*)\)", expr):
        assert {label.strip() for label in grouping.split(",")} <= known
    for name, selector in re.findall(r"((?:pair:)?rebalancer_\w+(?::\w+)?)\{([^}]*)\}", expr):
        family = re.sub(r"_(bucket|sum|count)$", "", name)
        labels = RECORDED[name].labels if name in RECORDED else METRICS[family].labels
        assert set(re.findall(r"(\w+)[=!]", selector)) <= set(labels), name


@pytest.mark.parametrize(("name", "panel"), PANELS)
def test_every_panel_says_what_it_shows(name: str, panel: dict[str, Any]) -> None:
    assert panel["title"]
    assert len(panel["description"]) >= 8
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["targets"]
    refs = [target["refId"] for target in panel["targets"]]
    assert len(set(refs)) == len(refs)
    assert all(target["datasource"]["uid"] == "${datasource}" for target in panel["targets"])
    assert panel.get("maxDataPoints") is None, "a hundred points are a blocky graph"
    if panel["type"] in ("table", "geomap"):
        assert all(target["instant"] and target["format"] == "table" for target in panel["targets"])


@pytest.mark.parametrize("name", sorted(BOARDS))
def test_ids_are_unique_and_nothing_overlaps(name: str) -> None:
    panels = BOARDS[name]["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells


@pytest.mark.parametrize("name", sorted(BOARDS))
def test_a_board_is_of_the_present_and_small(name: str) -> None:
    board = BOARDS[name]
    assert board["schemaVersion"] >= 39, "below it Grafana runs its migrations over the board"
    assert board["uid"] == f"rebalancer-{name.removesuffix('.json')}"
    assert board["tags"] == ["rebalancer"]
    assert board["editable"] is False
    assert len(generate()[name]) < 1 << 20, "the limit of a ConfigMap"
    variables = {item["name"]: item for item in board["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert all(
        item["allValue"] == ".+" and item["refresh"] == 2 for key, item in variables.items() if key != "datasource"
    )
    used = set(re.findall(r"\$(\w+)", json.dumps([p.get("targets") for p in board["panels"]]))) - {"__rate_interval"}
    assert used == set(variables) - {"datasource"}, "every variable is used, and every used one is there"


def differences(ours: Any, theirs: Any, where: str = "") -> Iterator[str]:
    if isinstance(ours, dict):
        for key, value in ours.items():
            if not isinstance(theirs, dict) or key not in theirs:
                yield f"{where}.{key}"
            else:
                yield from differences(value, theirs[key], f"{where}.{key}")
    elif isinstance(ours, list):
        if not isinstance(theirs, list) or len(ours) != len(theirs):
            yield where
        else:
            for index, (a, b) in enumerate(zip(ours, theirs, strict=True)):
                yield from differences(a, b, f"{where}[{index}]")
    elif ours != theirs:
        yield f"{where}: {ours!r} != {theirs!r}"


@pytest.mark.parametrize("name", sorted(BOARDS))
def test_grafana_s_own_schema_knows_every_key(name: str) -> None:
    read = sdk.Dashboard.from_json(json.loads(json.dumps(BOARDS[name])))
    back = json.loads(JSONEncoder(sort_keys=True).encode(read))
    assert list(differences(BOARDS[name], back)) == []
