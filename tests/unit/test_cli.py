"""The door: light at the start, one clear sentence for a mistake."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from rebalancer import __version__
from rebalancer.adapters.telemetry.recording import read
from rebalancer.cli import main
from rebalancer.core.reasons import REASONS
from tests.unit.adapters.telemetry.servers import always, serving, success
from tests.unit.adapters.telemetry.test_view import fake

ROOT = Path(__file__).resolve().parents[2]
HEAD = {"apiVersion": "rebalancer.dev/v1alpha1", "metadata": {"name": "one"}}
KUBECONFIG = {
    "apiVersion": "v1", "kind": "Config", "current-context": "x", "users": [{"name": "x", "user": {"token": "t"}}],
    "clusters": [{"name": "x", "cluster": {"server": "http://127.0.0.1:9"}}],
    "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
}  # fmt: skip

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


@pytest.mark.parametrize("rest", [["--full", "shop/web"], ["shop/web", "--full"]])
def test_a_rollout_is_named_before_or_behind_an_option(
    rest: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rollout", "promote", *rest, "--config", str(tmp_path / "none.yaml")]) == 1
    assert "can't be read" in capsys.readouterr().err


@pytest.mark.parametrize("rest", [["--fulll", "shop/web"], ["shop/web", "shop/api"], ["--full", "a/b", "c/d"]])
def test_what_is_no_argument_of_a_rollout_is_still_an_error(
    rest: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["rollout", "promote", *rest])
    assert end.value.code == 2
    assert "unrecognized arguments" in capsys.readouterr().err


LOGIN = b"<!doctype html><html><title>Log in</title></html>"
BACKENDS = {
    "a login page": (always(200, LOGIN), "does not answer as Prometheus does"),
    "401": (always(401, b"no"), "401"),
    "no word at all": (None, "can't be reached"),
}


@pytest.mark.slow
@pytest.mark.parametrize("command", ["plan", "run"])
@pytest.mark.parametrize("answer", BACKENDS)
def test_a_backend_that_is_no_prometheus_ends_the_start(answer: str, command: str, tmp_path: Path) -> None:
    behaviour, word = BACKENDS[answer]
    with serving(behaviour or always(200, b"")) as server:
        url = server.url
        if behaviour is None:
            url = "http://127.0.0.1:9"
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(yaml.safe_dump(KUBECONFIG))
        config = tmp_path / "c.yaml"
        config.write_text(yaml.safe_dump_all([
            {**HEAD, "kind": "RebalancerConfig", "spec": {
                "telemetry": {"backends": [{"url": url, "timeout": "1s"}], "history": "1h"}, "listen": "127.0.0.1:0"}},
            {**HEAD, "kind": "MemberCluster", "spec": {
                "region": "eu", "connection": {"kubeconfigPath": str(kubeconfig)}}},
        ]))  # fmt: skip
        argv = [sys.executable, "-m", "rebalancer", command, "--config", str(config)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=90, check=False, cwd=ROOT)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert word in done.stderr and url.removeprefix("http://") in done.stderr, done.stderr


def test_the_history_of_demand_is_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kubeconfig, config, out = tmp_path / "kubeconfig", tmp_path / "c.yaml", tmp_path / "history.npz"
    kubeconfig.write_text(yaml.safe_dump(KUBECONFIG))
    with serving(fake({"one": 5.0}, time.time)) as server:
        config.write_text(yaml.safe_dump_all([
            {**HEAD, "kind": "RebalancerConfig", "spec": {
                "telemetry": {"backends": [{"url": server.url}], "history": "1h"}}},
            {**HEAD, "kind": "MemberCluster", "spec": {
                "region": "eu", "connection": {"kubeconfigPath": str(kubeconfig)}}},
            {**HEAD, "kind": "SchedulingPolicy", "spec": {
                "podSelector": {"matchLabels": {"app": "web"}}, "strategy": {"type": "CostOptimized"},
                "demand": {"query": "requests_total"}}},
        ]))  # fmt: skip
        assert main(["record", str(out), "--config", str(config)]) == 0
        assert capsys.readouterr().out == f"{out}: 1 series\n"
        server.behaviour = always(200, success([]))
        assert main(["record", str(tmp_path / "none.npz"), "--config", str(config)]) == 1
    assert "requests_total has no series at any backend" in capsys.readouterr().err
    found = read(out)
    assert (found.grid.slots, found.units) == (12, {"default/web": "requests/s"})
    told = {key: set(values.tolist()) for key, values in found.rows.items()}
    assert told == {("default/web", "", "one"): {5.0}, ("default/web", "*", ""): {5.0}}, "the counter, and its peaks"


def test_a_package_that_only_the_controller_needs_is_named_with_the_way_to_get_it() -> None:
    code = "import sys\nsys.modules['msgspec'] = None\nfrom rebalancer.cli import main\nsys.exit(main(['plan']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == (
        "`rebalancer plan` needs the controller's packages (msgspec is missing): pip install "
        "'fleet-rebalancer[controller]', or in a checkout pip install -e '.[controller]'\n"
    )
