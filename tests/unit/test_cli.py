"""The door: light at the start, one clear sentence for a mistake."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rebalancer import __version__
from rebalancer.cli import main
from rebalancer.core.reasons import REASONS

HEAVY = ("numpy", "pandas", "kubernetes", "pydantic", "statsmodels", "rich", "yaml", "httpx", "highspy")


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["plan", "--help"], ["demo", "--help"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys\nfrom rebalancer.cli import main\n"
        f"try:\n    main({arguments!r})\nexcept SystemExit as end:\n    assert end.code == 0\n"
        f"print([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    assert done.stdout


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out.strip() == __version__


def test_all_reasons_and_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reasons"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(REASONS)
    assert main(["reasons", "no-room"]) == 0
    assert REASONS["no-room"].sentence in capsys.readouterr().out
    assert main(["reasons", "nonsense"]) == 1
    assert "no such reason id" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["plan"], ["check"], ["explain", "shop/web"], ["run"]])
def test_a_missing_configuration_is_one_sentence(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "none.yaml"
    assert main([command[0], "--config", str(missing), *command[1:]]) == 1
    told = capsys.readouterr()
    assert (
        told.err.strip() == f"{missing}: can't be read: No such file or directory; check the path and its permissions"
    )
    assert told.out == ""


@pytest.mark.parametrize("command", ["plan", "check", "run"])
def test_a_mistake_in_the_configuration_is_told_and_nothing_begins(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(
        "apiVersion: rebalancer.dev/v1alpha1\nkind: SchedulingPolicy\nmetadata: {name: web}\nspec:\n"
        "  podSelector: {matchLabels: {app: web}}\n  strategy: {type: LatencyFirst}\n  replicas: {min: 5, max: 3}\n",
        encoding="utf-8",
    )
    assert main([command, "--config", str(file)]) == 1
    assert f"{file}:7: spec.replicas: min 5 is above max 3; lower min or raise max" in capsys.readouterr().err


def test_an_unknown_command_names_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["plann"])
    assert end.value.code == 2
    assert "plan" in capsys.readouterr().err
