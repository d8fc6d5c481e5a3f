"""Target files: what is read, what the sentence says when it can't be, and what a reload leaves alone."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path

import pytest

from probes import targets
from probes.targets import Target, TargetError


def load(path: Path, text: str) -> list[Target]:
    path.write_text(text)
    return targets.load_targets(path)


JSON = json.dumps(
    [
        {"targets": ["198.51.100.7:8620", "[2001:db8::7]:8620"], "labels": {"cluster": "eu-1", "region": "eu-west"}},
        {"targets": ["probe.example:1"], "labels": {"cluster": "us-1", "draining": "true"}},
    ]
)
EXPECTED = [
    Target("eu-1", "eu-west", "198.51.100.7", 8620),
    Target("eu-1", "eu-west", "2001:db8::7", 8620),
    Target("us-1", "", "probe.example", 1, draining=True),
]


def test_json_and_yaml_in_file_sd_shape_say_the_same(tmp_path: Path) -> None:
    yaml_text = """\
- targets: ["198.51.100.7:8620", "[2001:db8::7]:8620"]
  labels: {cluster: eu-1, region: eu-west}
- targets: [probe.example:1]
  labels: {cluster: us-1, draining: true}
"""
    assert load(tmp_path / "t.json", JSON) == EXPECTED
    assert load(tmp_path / "t.yaml", yaml_text) == EXPECTED
    assert load(tmp_path / "t.yaml", "[]") == []


@pytest.mark.parametrize(
    ("sentence", "text", "words"),
    [
        ("broken syntax has its line", "- targets: [a:1\n- b", "t.yaml:2:"),
        ("a mapping is no list", "targets: []", "expected a list"),
        ("an empty file is no list", "", "expected a list"),
        ("no cluster", "- targets: ['1.1.1.1:1']", "t.yaml:1: labels.cluster"),
        ("no port", "[]\n#\n" * 0 + "- labels: {cluster: a}\n  targets: [1.1.1.1]", "'1.1.1.1' is not `host:port`"),
        ("a port too high", "- {labels: {cluster: a}, targets: ['a:70000']}", "'a:70000' is not `host:port`"),
        ("IPv6 without brackets", "- {labels: {cluster: a}, targets: ['2001:db8::1:80']}", "IPv6 goes in brackets"),
        ("a number as address", "- {labels: {cluster: a}, targets: [8620]}", "8620 is not `host:port`"),
        ("an unknown field", "- {labels: {cluster: a}, targets: [], port: 1}", "port: unknown field"),
        ("a drain mark that is no flag", "- {labels: {cluster: a, draining: soon}, targets: []}", "'soon' is neither"),
        ("a tag with nonsense", "- {targets: [!!float ''], labels: {cluster: a}}", "t.yaml:1: not a group of targets"),
        ("a flag that is none", "- {targets: [], labels: {cluster: !!bool zz}}", "t.yaml:1: not a group of targets"),
        ("a date that is none", "- {targets: [], labels: {cluster: !!timestamp x}}", "t.yaml:1: not a group of"),
        ("a port of 5000 digits", f"- {{labels: {{cluster: a}}, targets: ['a:{'9' * 5000}']}}", "is not `host:port`"),
        ("a list in a list in a list", "[" * 100_000, "nested too deeply"),
        ("half a character", '- {labels: {cluster: "\\ud800"}, targets: []}', "labels.cluster: '\\ud800' is no name"),
        ("the same address twice", "- {labels: {cluster: a}, targets: ['b:1', 'b:1']}", "a has b:1 twice"),
    ],
)
def test_a_bad_file_is_one_sentence_and_no_half_list(sentence: str, text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(TargetError) as caught:
        load(tmp_path / "t.yaml", text)
    assert words in str(caught.value), sentence
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"none\.yaml: the target file can't be read"):
        targets.load_targets(tmp_path / "none.yaml")


def test_a_reload_names_only_what_changed() -> None:
    kept, gone, came = Target("a", "r", "h", 1), Target("b", "r", "h", 2), Target("c", "r", "h", 3)
    drained = Target("d", "r", "h", 4)
    change = targets.diff([kept, gone, drained], [came, kept, Target("d", "r", "h", 4, draining=True)])
    assert change.added == (came,)
    assert change.removed == (gone,)
    assert [target.cluster for target in change.changed] == ["d"]


def test_literal_addresses_need_no_resolver() -> None:
    assert targets.literal_address("192.0.2.1", 5) == (socket.AF_INET, ("192.0.2.1", 5))
    assert targets.literal_address("2001:db8::1", 5) == (socket.AF_INET6, ("2001:db8::1", 5, 0, 0))
    assert targets.literal_address("localhost", 5) is None


def test_names_resolve_and_a_name_that_does_not_exist_is_none() -> None:
    async def both() -> tuple[object, object]:
        return await targets.resolve("localhost", 5), await targets.resolve("no such name.invalid", 5)

    found, missing = asyncio.run(both())
    assert found in ((socket.AF_INET, ("127.0.0.1", 5)), (socket.AF_INET6, ("::1", 5, 0, 0)))
    assert missing is None
