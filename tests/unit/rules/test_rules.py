"""Rules: what is committed is what the code generates, promtool agrees, and every name is in the catalogue."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import promql_parser
import pytest
import yaml

from rebalancer.catalog import METRICS, RECORDED
from rebalancer.core import reasons
from rules.__main__ import HERE, generate
from rules.alerts import WANTED_REFUSALS, alert_groups
from rules.model import Alert
from rules.recording import recording_groups
from tests.stack.fixtures import program

ALERTS = [rule for group in alert_groups() for rule in group.rules if isinstance(rule, Alert)]
NATIVE = recording_groups(native=True)
RULES = [*ALERTS, *(rule for group in (*recording_groups(), *NATIVE) for rule in group.rules)]


@pytest.mark.parametrize("name", sorted(generate()))
def test_the_committed_file_is_what_the_code_generates(name: str) -> None:
    assert (HERE / name).read_text(encoding="utf-8") == generate()[name], "run `python -m rules` and commit"


def test_no_generated_file_is_left_over() -> None:
    committed = (*HERE.glob("*.yaml"), *HERE.glob("*.md"))
    assert {path.name for path in committed} == set(generate())


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name if isinstance(rule, Alert) else rule.record)
def test_every_metric_is_in_the_catalogue(rule: Alert) -> None:
    promql_parser.parse(rule.expr)
    names = re.findall(r"(?:pair:)?rebalancer_\w+(?::\w+)?", rule.expr)
    for name in names:
        base = re.sub(r"_(bucket|sum|count)$", "", name)
        assert name in RECORDED or name in METRICS or base in METRICS, name
    assert names or "up{" in rule.expr


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name if isinstance(rule, Alert) else rule.record)
def test_labels_in_selectors_and_aggregations_exist(rule: Alert) -> None:
    for name, selector in re.findall(r"(rebalancer_\w+)\{([^}]*)\}", rule.expr):
        labels = METRICS[re.sub(r"_(bucket|sum|count)$", "", name)].labels
        assert set(re.findall(r"(\w+)[=!]", selector)) <= set(labels), rule.expr


@pytest.mark.parametrize("native", [False, True])
def test_both_variants_record_all_names_of_the_catalogue(native: bool) -> None:
    groups = recording_groups(native=native)
    assert {rule.record for group in groups for rule in group.rules if not isinstance(rule, Alert)} == set(RECORDED)


def test_the_native_variant_needs_no_classic_series_of_the_round_trip_time() -> None:
    assert not re.search(r"probe_rtt_seconds_(bucket|sum|count)", generate()["rebalancer-recording-native.yaml"])


def test_twelve_alerts_with_all_that_a_person_needs() -> None:
    assert len({alert.name for alert in ALERTS}) == len(ALERTS) == 12
    for alert in ALERTS:
        assert re.fullmatch(r"Rebalancer[A-Z][A-Za-z]+", alert.name)
        assert "{{" not in alert.summary, "the summary is the same for every series, so that alerts group"
        assert len(alert.description) > 60
        assert alert.runbook_url.endswith(f"/rules/RUNBOOK.md#{alert.name.lower()}")
        assert f"\n## {alert.name}\n" in generate()["RUNBOOK.md"], "the link leads to a section"


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_templates_use_labels_that_the_expression_keeps(alert: Alert) -> None:
    for label in re.findall(r"\$labels\.(\w+)", alert.description):
        kept = [METRICS[n].labels for n in re.findall(r"\brebalancer_\w+", alert.expr) if n in METRICS]
        kept += [RECORDED[n].labels for n in re.findall(r"pair:\w+:\w+", alert.expr)]
        known = {name for labels in kept for name in labels} | {"instance", "job"}
        assert label in known, label


def test_wanted_refusals_are_reason_ids() -> None:
    text = Path(str(reasons.__file__)).read_text(encoding="utf-8")
    for reason in WANTED_REFUSALS.split("|"):
        assert f'"{reason}"' in text, reason


def test_promtool_accepts_the_files() -> None:
    files = [str(HERE / name) for name in generate() if name.endswith(".yaml")]
    done = subprocess.run(
        [program("promtool"), "check", "rules", "--lint=all", *files], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", sorted(path.name for path in (HERE / "tests").glob("*.yml")))
def test_promtool_tests_pass(name: str) -> None:
    done = subprocess.run(
        [program("promtool"), "test", "rules", name], cwd=HERE / "tests", capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_promtool_test_that_fires_and_one_that_is_silent() -> None:
    tests = yaml.safe_load((HERE / "tests" / "alerts.yml").read_text(encoding="utf-8"))["tests"]
    cases = [case for test in tests for case in test["alert_rule_test"]]
    assert {case["alertname"] for case in cases if case["exp_alerts"]} == {alert.name for alert in ALERTS}
    assert {case["alertname"] for case in cases if not case["exp_alerts"]} == {alert.name for alert in ALERTS}


def test_a_broken_rule_fails_its_promtool_test(tmp_path: Path) -> None:
    for name in generate():
        text = (HERE / name).read_text(encoding="utf-8")
        (tmp_path / name).write_text(text.replace("lost_forward|", ""), encoding="utf-8")
    (tmp_path / "tests").mkdir()
    test = tmp_path / "tests" / "recording.yml"
    test.write_text((HERE / "tests" / "recording.yml").read_text(encoding="utf-8"), encoding="utf-8")
    done = subprocess.run(
        [program("promtool"), "test", "rules", test.name], cwd=test.parent, capture_output=True, text=True, timeout=60
    )
    assert done.returncode != 0, "the tests would not notice"
