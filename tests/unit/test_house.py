"""The house rules that a machine can hold."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rebalancer import catalog
from tests.lanes import LANES

ROOT = Path(__file__).parents[2]
ROOMS = ("rebalancer", "probes", "rules", "dashboards")
MAX_LINES, MAX_FUNCTION = 400, 60


def product() -> list[Path]:
    return [file for room in ROOMS for file in sorted((ROOT / room).rglob("*.py"))]


def tracked() -> list[Path]:
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if done.returncode:
        pytest.skip("not a git work tree")
    return [ROOT / name for name in done.stdout.decode().split("\0") if name and (ROOT / name).is_file()]


def test_imports_run_one_way() -> None:
    # In a process of its own: import-linter sets logging up for itself and silences the loggers of other tests.
    command = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    done = subprocess.run([sys.executable, "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_files_stay_readable() -> None:
    long = {f.relative_to(ROOT): n for f in product() if (n := len(f.read_text("utf-8").splitlines())) > MAX_LINES}
    assert long == {}


def test_functions_stay_readable() -> None:
    long = {}
    for file in product():
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
                lines = node.end_lineno - node.lineno + 1
                if lines > MAX_FUNCTION:
                    long[f"{file.relative_to(ROOT)}:{node.name}"] = lines
    assert long == {}


def test_metric_names_are_unique_and_well_formed() -> None:
    metrics = (*catalog.PROBE_METRICS, *catalog.CONTROLLER_METRICS)
    names = [m.name for m in metrics]
    assert len(names) == len(set(names))
    for metric in metrics:
        assert re.fullmatch(r"rebalancer_[a-z0-9]+(_[a-z0-9]+)*", metric.name), metric.name
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        assert not metric.name.endswith(("_ms", "_milliseconds", "_percent", "_kb", "_mb")), metric.name
        assert all(re.fullmatch(r"[a-z][a-z0-9_]*", label) for label in metric.labels), metric.name
        assert len(metric.labels) == len(set(metric.labels)), metric.name
        assert metric.help.endswith("."), metric.name


def test_no_path_of_a_machine_is_tracked() -> None:
    # Put together here, so that this file does not find itself.
    paths = re.compile("|".join(f"/{top}/[a-z.]" for top in ("work", "root", "home/[a-z]+", "Users")))
    found = []
    for file in tracked():
        try:
            text = file.read_text("utf-8")
        except UnicodeDecodeError:
            continue
        found += [f"{file.relative_to(ROOT)}: {m.group()}" for m in paths.finditer(text)]
    assert found == []


def test_every_lane_names_files_that_exist() -> None:
    assert [name for name in LANES if not (ROOT / name).is_file()] == []
