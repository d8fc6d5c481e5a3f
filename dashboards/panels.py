"""Panels and boards on top of grafanalib, without the keys that make new Grafanas migrate a board from 2016.

grafanalib 0.7.1 knows neither geomap nor the present heatmap, stat and table options, and writes dead keys into rows;
`Panel` and `layout` write those as Grafana does now. Stock classes are used where they are right
(time series), and `clean` drops what Grafana no longer reads.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from grafanalib import core
from grafanalib._gen import DashboardEncoder

SCHEMA_VERSION = 39
COLUMNS = 24
TAG = "rebalancer"
DATASOURCE: Mapping[str, str] = {"type": "prometheus", "uid": "${datasource}"}
_DEAD_KEYS = frozenset(
    (
        "cacheTimeout", "editable", "error", "height", "hideTimeOverride", "minSpan", "span", "maxPerRow", "metric",
        "target", "step", "intervalFactor", "hide", "hideControls", "gnetId", "inputs", "rows", "sharedCrosshair",
        "style", "useTags", "tagsQuery", "tagValuesQuery", "time_options", "repeatDirection", "showTitle", "collapse",
        "interval",
    )
)  # fmt: skip
"""Keys of old Grafanas; `hide` and `interval` only ever have their defaults here."""


@dataclass(frozen=True, slots=True)
class Query:
    """One PromQL query of a panel.

    Attributes:
        expr: PromQL; names only from the catalogue.
        legend: legend template.
        instant: whether only the newest value is asked for (tables, maps).
    """

    expr: str
    legend: str = ""
    instant: bool = False


@dataclass(frozen=True)
class Panel:
    """A panel as Grafana stores it.

    Attributes:
        kind: Grafana's panel type.
        title, description: what it shows and how to read it.
        queries: refId A, B, ... in this order.
        unit: Grafana's unit id; "short" for plain numbers.
        width: columns of 24; height in grid rows.
        options, defaults, custom: the panel's options, its field defaults and the type's own part of these.
        overrides, transformations: as in Grafana.
        thresholds: (value, colour); the first value is None for the base.
    """

    kind: str
    title: str
    description: str
    queries: Sequence[Query]
    unit: str = "short"
    width: int = 12
    height: int = 8
    options: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    custom: Mapping[str, Any] = field(default_factory=dict)
    overrides: Sequence[Mapping[str, Any]] = ()
    transformations: Sequence[Mapping[str, Any]] = ()
    thresholds: Sequence[tuple[float | None, str]] = ((None, "green"),)

    def targets(self) -> list[core.Target]:
        """Returns the queries as grafanalib's targets."""
        return [
            core.Target(
                expr=query.expr,
                legendFormat=query.legend,
                refId=chr(ord("A") + index),
                instant=query.instant,
                format="table" if query.instant and self.kind in ("table", "geomap") else "time_series",
                datasource=dict(DATASOURCE),
            )
            for index, query in enumerate(self.queries)
        ]

    def build(self, number: int, x: int, y: int) -> Any:
        """Returns the grafanalib panel at a place of the grid."""
        position = core.GridPos(h=self.height, w=self.width, x=x, y=y)
        if self.kind == "timeseries":
            return core.TimeSeries(
                title=self.title, description=self.description, dataSource=dict(DATASOURCE), targets=self.targets(),
                unit=self.unit, id=number, gridPos=position, maxDataPoints=None, legendDisplayMode="table",
                legendPlacement="right", legendCalcs=["lastNotNull", "max"], tooltipMode="multi", tooltipSort="desc",
                showPoints="never", fillOpacity=8, thresholds=self._steps(),
                extraJson={"fieldConfig": {"defaults": dict(self.defaults)}},
            )  # fmt: skip
        return _Raw(self._document(number, position))

    def _steps(self) -> list[dict[str, Any]]:
        return [{"color": colour} | ({} if value is None else {"value": value}) for value, colour in self.thresholds]

    def _document(self, number: int, position: Any) -> dict[str, Any]:
        defaults = {
            "unit": self.unit,
            "thresholds": {"mode": "absolute", "steps": self._steps()},
            "custom": dict(self.custom),
            **self.defaults,
        }
        return {
            "id": number,
            "type": self.kind,
            "title": self.title,
            "description": self.description,
            "datasource": dict(DATASOURCE),
            "gridPos": position,
            "targets": self.targets(),
            "options": dict(self.options),
            "fieldConfig": {"defaults": defaults, "overrides": list(self.overrides)},
            "transformations": list(self.transformations),
        }


class _Raw:
    """A panel that is written as it is; grafanalib's encoder asks it for its JSON."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document

    def to_json_data(self) -> dict[str, Any]:
        return self._document


def stat(title: str, description: str, expr: str, **more: Any) -> Panel:
    """Returns a single number."""
    return Panel(
        "stat", title, description, [Query(expr, instant=True)], width=4, height=4,
        options={
            "colorMode": "value", "graphMode": "none", "textMode": "auto", "justifyMode": "auto",
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        },
        **more,
    )  # fmt: skip


def matrix(title: str, description: str, expr: str, **more: Any) -> Panel:
    """Returns a table with source clusters as rows and destination clusters as columns."""
    return Panel(
        "table", title, description, [Query(expr, instant=True)], width=12, height=9,
        options={"showHeader": True, "cellHeight": "sm"},
        custom={"align": "center", "cellOptions": {"type": "color-background", "mode": "basic"}},
        transformations=[
            {
                "id": "groupingToMatrix",
                "options": {"columnField": "dst_cluster", "rowField": "src_cluster", "valueField": "Value"},
            }
        ],
        **more,
    )  # fmt: skip


def variable(name: str, query: str, label: str) -> core.Template:
    """Returns a variable of label values; "All" also matches what the variable does not know yet."""
    return core.Template(
        name=name, query=query, label=label, dataSource=dict(DATASOURCE), includeAll=True, multi=True, allValue=".+",
        default="All", refresh=2,
    )  # fmt: skip


def layout(rows: Sequence[tuple[str, Sequence[Panel]]]) -> Iterator[Any]:
    """Places rows of panels from left to right, wrapping at 24 columns, with ids from 1."""
    numbers = itertools.count(1)
    y = 0
    for title, panels in rows:
        place = core.GridPos(h=1, w=COLUMNS, x=0, y=y)
        yield _Raw(
            {"id": next(numbers), "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}
        )
        y += 1
        x = line = 0
        for panel in panels:
            if x + panel.width > COLUMNS:
                x, y, line = 0, y + line, 0
            yield panel.build(next(numbers), x, y)
            x += panel.width
            line = max(line, panel.height)
        y += line


def board(
    uid: str,
    title: str,
    description: str,
    variables: Sequence[core.Template],
    rows: Sequence[tuple[str, Sequence[Panel]]],
) -> str:
    """Returns the board's JSON text: deterministic, without nulls and dead keys."""
    datasource = core.Template(
        name="datasource", type="datasource", query="prometheus", label="Data source", default="default"
    )
    dashboard = core.Dashboard(
        uid=uid, title=title, description=description, tags=[TAG], timezone="utc", editable=False, refresh="30s",
        schemaVersion=SCHEMA_VERSION, graphTooltip=1, time=core.Time("now-6h", "now"), panels=list(layout(rows)),
        templating=core.Templating([datasource, *variables]),
        links=[_link()],
    )  # fmt: skip
    raw = json.loads(json.dumps(dashboard, cls=DashboardEncoder, sort_keys=True))
    raw["editable"] = False
    return json.dumps(clean(raw, top=True), indent=2, sort_keys=True) + "\n"


def _link() -> _Raw:
    return _Raw(
        {
            "type": "dashboards", "tags": [TAG], "title": "Rebalancer", "asDropdown": True, "includeVars": True,
            "keepTime": True, "targetBlank": False, "icon": "external link", "tooltip": "", "url": "",
        }
    )  # fmt: skip


def clean(value: Any, *, top: bool = False) -> Any:
    """Drops nulls and the keys that Grafana no longer reads."""
    if isinstance(value, list):
        return [clean(item) for item in value]
    if not isinstance(value, dict):
        return value
    dead = _DEAD_KEYS - {"editable"} if top else _DEAD_KEYS
    kept = {key: clean(item) for key, item in value.items() if item is not None and key not in dead}
    if top:
        kept["timepicker"] = {}
        kept.pop("__inputs", None)  # only boards that are shared on grafana.com ask for these
        kept["annotations"] = {"list": []}
        for item in kept["templating"]["list"]:
            # Without a current value Grafana takes the default data source or the first value by itself.
            item.pop("current", None)
            item.pop("options", None)
            item.pop("auto", None)
            item.pop("auto_count", None)
            item.pop("auto_min", None)
    return kept
