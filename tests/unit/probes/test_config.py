"""The agent's configuration: what is read, and the one sentence for each mistake."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from probes.config import ConfigProblem, load_config

GOOD = """\
cluster: eu-1
region: eu-west
listen: 0.0.0.0:8620
http: "[::]:8621"
targets_file: targets.yaml
interval_s: 0.1
"""


def test_the_small_file_of_the_documentation_is_read(tmp_path: Path) -> None:
    path = tmp_path / "probe.yaml"
    path.write_text(GOOD)
    config = load_config(path)
    assert (config.cluster, config.listen, config.http) == ("eu-1", ("0.0.0.0", 8620), ("::", 8621))
    assert (config.interval_s, config.flows, config.keys_file) == (0.1, 13, None)


MISTAKES = [
    ("a typo names the field meant", GOOD.replace("interval_s", "intervall_s"), ":6: intervall_s", "`interval_s`?"),
    ("a unit is not allowed", GOOD.replace("0.1", "100ms"), ":6: interval_s: '100ms'", "0.05 to 60 seconds"),
    ("below the bound", GOOD.replace("0.1", "0.001"), ":6: interval_s: 0.001", "0.05 to 60"),
    ("not a number at all", GOOD.replace("0.1", ".nan"), ":6: interval_s: nan", "0.05 to 60"),
    ("a port is missing", GOOD.replace("0.0.0.0:8620", "0.0.0.0"), ":3: listen: '0.0.0.0'", "host:port"),
    ("a field is missing", GOOD.replace("region: eu-west\n", ""), ":1: region", "missing"),
    ("a field is there twice", GOOD + "region: x\n", ":7: region", "twice"),
    ("a number as name", GOOD.replace("eu-1", "7"), ":1: cluster: 7", "quotes"),
    ("a list as root", "- a\n", ":1:", "field: value"),
    ("broken syntax", "cluster: [\n", ":2:", "fix the syntax"),
    ("a network that is none", GOOD + "allow: [10.0.0.1/8]\n", ":7: allow", "10.0.0.0/8"),
    ("a budget above the cap", GOOD + "max_pps: 20000\n", ":7: max_pps: 20000", "10 to 10000 packets per second"),
    ("a Service without its namespace", GOOD + "election: probe\n", ":7: election: 'probe'", "`namespace/name`"),
    ("a flag that is none", GOOD + "tcp_fallback: maybe\n", ":7: tcp_fallback: 'maybe'", "true or false"),
]


@pytest.mark.parametrize(("sentence", "text", "where", "advice"), MISTAKES)
def test_a_mistake_is_one_sentence(sentence: str, text: str, where: str, advice: str, tmp_path: Path) -> None:
    path = tmp_path / "probe.yaml"
    path.write_text(text)
    with pytest.raises(ConfigProblem) as caught:
        load_config(path)
    assert f"{path}{where}" in str(caught.value), sentence
    assert advice in str(caught.value), sentence
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("sentence", "extra", "words"),
    [
        ("a typo", "intervall_s: 1\n", "did you mean `interval_s`?"),
        ("a key file that is not there", "keys_file: none.keys\n", "the key file can't be read"),
        ("an address that is not ours", "", "listen: 192.0.2.1:8620 can't be opened"),
    ],
)
def test_the_command_ends_with_one_line_and_exit_code_1(sentence: str, extra: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "probe.yaml"
    path.write_text(GOOD.replace("0.0.0.0", "192.0.2.1") + extra)
    done = subprocess.run(
        [sys.executable, "-m", "probes.agent", "--config", str(path)], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 1, sentence
    assert words in done.stderr, sentence
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
