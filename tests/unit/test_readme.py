"""What the README says is what the code does. `python -m tests.unit.test_readme` writes the generated parts anew.

With `--demo` the demo's output is written anew as well, which runs the demo.
"""

from __future__ import annotations

import ast
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import StringIO
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest
from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from rich.console import Console

from probes.agent import main as probe_main
from probes.config import load_config
from probes.targets import load_targets
from rebalancer import catalog, cli, config, demo
from rebalancer.adapters.telemetry.recipes import RECIPES
from rebalancer.api import rollout as rollout_api
from rebalancer.api.base import parse_count_or_percent, parse_duration, parse_percent
from rebalancer.config import words
from rebalancer.core.policy import SETTINGS
from rebalancer.core.reasons import REASONS

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
HOW = "run `python -m tests.unit.test_readme` and look at the difference"
BLOCK = re.compile(r"(<!-- generated: (?P<name>[\w.:-]+) -->\n)(?P<text>.*?)(<!-- end of generated -->)", re.DOTALL)
FENCE = re.compile(r"^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
_PLACES = {
    "spec": "spec", "canary": "spec.strategy.canary", "metric": "spec.strategy.canary.analysis.metrics[]",
    "placement": "spec.placement",
}  # fmt: skip
_PARSED = {parse_duration: "duration", parse_percent: "percentage", parse_count_or_percent: "number or percentage"}


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """A Markdown table."""
    cells = [head, tuple("---" for _ in head), *rows]
    return "".join("| " + " | ".join(c.replace("|", "\\|") for c in row) + " |\n" for row in cells)


def duration(seconds: float) -> str:
    """Seconds as a user writes them."""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size and seconds % size == 0:
            return f"{seconds / size:g}{unit}"
    return f"{seconds:g}s"


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """Models in an annotation, through lists, options and Annotated."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models(part)


def _how_parsed(field: FieldInfo) -> str:
    parsers = [getattr(m, "func", None) for m in field.metadata]
    parsers += [getattr(m, "func", None) for a in get_args(field.annotation) for m in getattr(a, "__metadata__", ())]
    return next((_PARSED[p] for p in parsers if p in _PARSED), "")


def _type(annotation: Any) -> str:
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(parts[0])
    if origin in (Union, UnionType):
        return " or ".join(_type(p) for p in parts if p is not type(None))
    if origin is Literal:
        return ", ".join(str(p) for p in parts)
    if origin is dict:
        return "map"
    if origin in (list, tuple):
        return f"list of {_type(parts[0])}"
    names = {str: "text", bool: "true or false", int: "whole number", float: "number"}
    if isinstance(annotation, type) and not issubclass(annotation, BaseModel) and hasattr(annotation, "__members__"):
        return ", ".join(str(m.value) for m in annotation)  # type: ignore[attr-defined]  # an enumeration
    return names.get(annotation, "object")


def _bound(value: Any, how: str) -> str:
    if value is None:
        return "-"
    if how == "percentage":
        return f"{value * 100:g}%"
    return duration(value) if how == "duration" else f"{value:,g}" if isinstance(value, float) else f"{value:,}"


def _bounds(field: FieldInfo, how: str) -> str:
    """Bounds, wherever in the annotation they stand."""
    found = list(field.metadata)
    found += [m for a in (field.annotation, *get_args(field.annotation)) for m in getattr(a, "__metadata__", ())]
    for one in [m for m in found if isinstance(m, FieldInfo)]:
        found += one.metadata
    shown = []
    for kind, attribute, sign in ((Ge, "ge", "≥"), (Gt, "gt", ">"), (Le, "le", "≤"), (Lt, "lt", "<")):
        shown += [f"{sign} {_bound(getattr(m, attribute), how)}" for m in found if isinstance(m, kind)]
    return ", ".join(dict.fromkeys(shown))


def _default(field: FieldInfo, how: str, within: bool) -> str:
    value = field.default
    if field.is_required():
        return "required there" if within else "required"
    if value is PydanticUndefined or value in (None, "", (), [], {}) or isinstance(value, tuple | BaseModel):
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    return _bound(value, how) if isinstance(value, int | float) else str(value)


def fields(model: type[BaseModel], prefix: str, *, within: bool = False) -> Iterator[tuple[str, str, str, str]]:
    """Every field below a model: path, type, default and bounds; `within` an object that may be left out."""
    for name, field in model.model_fields.items():
        path, how = f"{prefix}.{field.alias or name}", _how_parsed(field)
        inner = list(_models(field.annotation))
        if inner:
            many = get_origin(field.annotation) in (list, tuple) or "tuple" in str(field.annotation)
            yield from fields(inner[0], path + "[]" * many, within=within or many or not field.is_required())
        else:
            yield f"`{path}`", how or _type(field.annotation), _default(field, how, within), _bounds(field, how) or "-"


def kind_table(kind: str) -> str:
    """The fields of one kind."""
    (spec,) = _models(config.KINDS[kind].model_fields["spec"].annotation)
    return table(("field", "type", "default", "bounds"), list(fields(spec, "spec")))


def settings_table() -> str:
    """The settings of a policy that have a reasoned default."""
    rows = []
    how = {path.strip("`"): kind for path, kind, _, _ in fields(_spec("SchedulingPolicy"), "spec")}
    for one in SETTINGS.values():
        kind = how[f"spec.{one.field}"]
        kind = "" if isinstance(one.default, str) or kind == "number or percentage" else kind
        low, high = (None if v is None else _bound(v, kind) for v in (one.low, one.high))
        bounds = f"{low} to {high}" if high is not None else f"at least {low}"
        default = one.default if isinstance(one.default, str) else _bound(one.default, kind)
        rows.append((f"`spec.{one.field}`", default, bounds, one.why))
    return table(("setting", "default", "bounds", "why this default"), rows)


def _spec(kind: str) -> type[BaseModel]:
    (found,) = _models(config.KINDS[kind].model_fields["spec"].annotation)
    return found


def refused() -> dict[str, list[str]]:
    """Fields that are designed, but refused in this version, by kind."""
    found = {kind: sorted(paths) for kind, paths in words.PLANNED.items()}
    found["CanaryRollout"] = [f"{_PLACES[where]}.{n}" for where, names in rollout_api._PLANNED.items() for n in names]
    return found


def refused_table() -> str:
    """The refused fields."""
    return table(("kind", "field"), [(kind, f"`{path}`") for kind, paths in refused().items() for path in paths])


def reasons_table(kind: str) -> str:
    """Reason ids of one kind."""
    chosen = [r for r in REASONS.values() if r.kind == kind]
    if kind == "act":
        return table(("id", "what it means"), [(f"`{r.id}`", r.sentence) for r in chosen])
    return table(("id", "what it means", "next step"), [(f"`{r.id}`", r.sentence, r.next_step or "-") for r in chosen])


def _named_in_code() -> set[str]:
    """All string constants of the code that exports metrics, which is where a metric's name stands if it is used."""
    found: set[str] = set()
    for room in ("rebalancer", "probes"):
        for path in (ROOT / room).rglob("*.py"):
            if path.name != "catalog.py":
                tree = ast.parse(path.read_text(encoding="utf-8"))
                found |= {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    return found


def metrics_table(metrics: tuple[catalog.Metric, ...]) -> str:
    """Metrics; one that no code names is not filled yet."""
    used = _named_in_code()
    rows = []
    for one in metrics:
        later = "" if one.name.removeprefix(catalog.PREFIX) in used else " *Not filled yet.*"
        rows.append((f"`{one.name}`", one.kind, ", ".join(one.labels) or "-", one.help + later))
    return table(("metric", "type", "labels", "meaning"), rows)


def recorded_table() -> str:
    """Recorded series."""
    return table(("series", "meaning"), [(f"`{r.name}`", r.help) for r in catalog.RECORDED.values()])


def example(name: str) -> str:
    """A file of examples/ as a block."""
    return f"```yaml\n{(ROOT / 'examples' / name).read_text(encoding='utf-8')}```\n"


def help_text() -> str:
    """`rebalancer --help` at 100 columns."""
    return f"```text\n{cli._parser().format_help()}```\n"


def recipes_table() -> str:
    """Settings by source of requests."""
    rows = []
    for one in RECIPES:
        query = f"`{one.query}`" if one.query else f"- (`{one.metric}`)"
        label = f"`{one.workload_label}`: " if one.workload_label else ""
        rows.append((one.source, query, label + one.workload, one.origin))
    return table(("source", "`demand.query`", "`demand.workloadLabel`", "origin"), rows)


GENERATORS: Mapping[str, Callable[[], str]] = {
    "help": help_text,
    "reasons-act": lambda: reasons_table("act"),
    "reasons-refuse": lambda: reasons_table("refuse"),
    "settings": settings_table,
    "recipes": recipes_table,
    "refused": refused_table,
    "metrics-controller": lambda: metrics_table(catalog.CONTROLLER_METRICS),
    "metrics-probe": lambda: metrics_table(catalog.PROBE_METRICS),
    "metrics-recorded": recorded_table,
    **{f"fields-{kind}": lambda kind=kind: kind_table(kind) for kind in config.KINDS},  # type: ignore[misc]
    **{f"example:{n}": lambda n=n: example(n)  # type: ignore[misc]
       for n in ("fleet.yaml", "policy.yaml", "rollout.yaml", "probe.yaml", "probe-targets.yaml")},
}  # fmt: skip


def told(folder: Path) -> str:
    """What the demo prints, without the progress bar and with the page's name only."""
    out = StringIO()
    page = folder / "rebalancer-demo.html"
    assert demo.run(page, 1, Console(file=out, width=400, force_terminal=False)) == 0
    lines = [line.rstrip() for line in out.getvalue().splitlines() if not re.match(r"\d\d:\d\d UTC ", line)]
    return "\n".join(lines).replace(str(page.resolve()), page.name) + "\n"


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """A width and no colours, so that help looks the same everywhere."""
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")


def text() -> str:
    return README.read_text(encoding="utf-8")


def block(name: str) -> str:
    found = {m["name"]: m["text"] for m in BLOCK.finditer(text())}
    return found[name]


@pytest.mark.parametrize("name", GENERATORS)
def test_a_generated_part_is_what_the_code_generates(name: str) -> None:
    assert block(name).strip() == GENERATORS[name]().strip(), HOW


def test_every_marker_is_known_and_closed() -> None:
    names = [m["name"] for m in BLOCK.finditer(text())]
    assert sorted(names) == sorted([*GENERATORS, "demo"])
    assert text().count("<!-- generated: ") == len(names) == text().count("<!-- end of generated -->")


def commands(language: str) -> list[list[str]]:
    """Command lines of fenced blocks, without what a shell does to their output."""
    found = []
    for fence in FENCE.finditer(text()):
        if fence["language"] == language:
            found += [shlex.split(line, comments=True) for line in fence["text"].splitlines()]
    cut = (next((i for i, word in enumerate(line) if word in ("|", ">", "&&")), len(line)) for line in found)
    return [line[:end] for line, end in zip(found, cut, strict=True) if line]


def test_every_command_parses() -> None:
    ours = [line[1:] for line in commands("sh") if line[0] == "rebalancer"]
    assert len(ours) > 10
    for arguments in ours:
        cli._parser().parse_args(arguments)


def test_every_command_named_in_the_text_exists() -> None:
    usage = cli._parser().format_help()
    for name in re.findall(r"`rebalancer ([a-z]+)[^`]*`", text()):
        assert re.search(rf"^    {name} ", usage, re.MULTILINE), name


def test_every_option_of_the_probe_exists(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        probe_main(["--help"])
    usage = capsys.readouterr().out
    named = [w for line in commands("sh") if line[0] == "rebalancer-probe" for w in line if w.startswith("--")]
    assert named and all(option in usage for option in named)


def test_every_make_target_exists() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(re.findall(r"`make ([a-z-]+)`", text())) <= set(targets)


def test_every_path_named_in_the_text_exists() -> None:
    named = set(re.findall(r"`((?:rebalancer|tests|rules|dashboards|probes|examples)/[\w/.-]*)`", text()))
    assert named
    assert not [path for path in sorted(named) if not (ROOT / path).exists()]


def test_the_examples_fit_together() -> None:
    names = ("fleet.yaml", "policy.yaml", "rollout.yaml")
    documents = [d for n in names for d in config.parse((ROOT / "examples" / n).read_text(encoding="utf-8"), n)]
    found = config.load(documents)
    assert found.controller is not None and found.clusters and found.policies and found.rollouts
    for one in found.policies.values():
        one.resolve()
    for rollout in found.rollouts.values():
        clusters = {c for wave in rollout.to_spec().waves for c in wave.clusters}
        assert clusters <= set(found.clusters)


def test_the_examples_of_the_probe_load_and_name_clusters_of_the_fleet() -> None:
    agent = load_config(ROOT / "examples" / "probe.yaml")
    peers = load_targets(ROOT / "examples" / "probe-targets.yaml")
    fleet = config.load(config.read_files([ROOT / "examples" / "fleet.yaml"])).clusters
    for name, region in ((agent.cluster, agent.region), *((p.cluster, p.region) for p in peers)):
        assert fleet[name].spec.region == region


def test_every_document_of_the_readme_loads() -> None:
    seen = 0
    for fence in FENCE.finditer(text()):
        if fence["language"] == "yaml" and "apiVersion: rebalancer.dev" in fence["text"]:
            config.load(config.parse(fence["text"], "README.md"))
            seen += 1
    assert seen >= 4


def test_refused_values_are_refused() -> None:
    for field, value in (("type", "Histogram"), ("type", "Threshold")):
        with pytest.raises(ValueError, match="not honoured yet"):
            rollout_api.RatioMetric.model_validate({"name": "m", "total": "a", "bad": "b", field: value})
    for value in ("AbortWave", "AbortCluster"):
        with pytest.raises(ValueError, match="not honoured yet"):
            rollout_api.Placement.model_validate({"onClusterFailure": value})
    for value in ("Histogram", "Threshold", "AbortWave", "AbortCluster"):
        assert f"`{value}`" in text()


def _numbers_of_facts(lines: list[str]) -> list[float]:
    """The first number of each line of the day's figures, which begin after the last line with a time."""
    facts = [line for line in lines if not re.match(r"\d\d:\d\d  |pictures", line)]
    return [float(found[0].replace(",", "")) for line in facts if (found := re.search(r"[\d,.]+(?=%| ms|$)", line))]


@pytest.mark.slow
def test_the_demo_tells_what_the_readme_shows(tmp_path: Path) -> None:
    """The same story at the same times; counts may differ a little after a change of the planner."""
    how = "run `python -m tests.unit.test_readme --demo` and look at the difference"
    shown, now = (t.strip().removeprefix("```text\n").removesuffix("```").splitlines()
                  for t in (block("demo"), told(tmp_path)))  # fmt: skip
    blur = re.compile(r"(?<!^)\b([0-9a-f]{10}|[\d,.]+(e[+-]\d+)?)(?![:\d])")
    assert [line[:5] + blur.sub("#", line[5:]) for line in shown] == [
        line[:5] + blur.sub("#", line[5:]) for line in now
    ], how
    assert _numbers_of_facts(shown) == pytest.approx(_numbers_of_facts(now), rel=0.25), how


def main(arguments: list[str]) -> None:
    """Writes the generated parts anew."""
    import os
    import tempfile

    os.environ.update(COLUMNS="100", NO_COLOR="1")
    fresh = {name: make() for name, make in GENERATORS.items()}
    if "--demo" in arguments:
        with tempfile.TemporaryDirectory() as folder:
            fresh["demo"] = f"```text\n{told(Path(folder))}```\n"

    def put(match: re.Match[str]) -> str:
        return match[1] + fresh.get(match["name"], match["text"]) + match[4]

    README.write_text(BLOCK.sub(put, text()), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
