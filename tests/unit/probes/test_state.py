"""The state file, and the firewall print."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from probes import state
from probes.config import AgentConfig
from probes.exposition import Series
from probes.firewall import allow_list
from probes.stats import PeerStats, native_index
from probes.targets import Target


def series() -> list[Series]:
    stats = PeerStats()
    stats.observe(0.02, 0.01, now_s=0, unix_s=5.0)
    stats.count("lost_forward")
    return [Series("a", "b", "udp", stats, (), "", 1)]


def test_counters_survive_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    state.save(path, state.dump("a", series()))
    stats = state.load(path, "a")["b", "udp"]
    before = series()[0].stats
    assert (stats.outcomes, stats.buckets, stats.rtt_sum_s) == (before.outcomes, before.buckets, before.rtt_sum_s)
    assert stats.native == before.native == {native_index(0.02): 1}
    assert (stats.ipdv_count, stats.last_ok_s, stats.last_sent_s) == (1, 5.0, None)
    assert list(tmp_path.iterdir()) == [], "a crash after this start begins at 0, not with counts of before"


def edited(**change: object) -> str:
    document = json.loads(state.dump("a", series()))
    document["peers"][0] |= change
    return json.dumps(document)


@pytest.mark.parametrize(
    ("sentence", "text"),
    [
        ("no JSON", "{"),
        ("another cluster's", state.dump("z", series()).decode()),
        ("another version's", '{"version": 99, "cluster": "a", "peers": []}'),
        ("other buckets", edited(buckets=[1, 2])),
        ("native buckets that hold another number", edited(native=[[-90, 2]])),
        ("native buckets out of range", edited(native=[[9000, 1]])),
        ("native buckets of another shape", edited(native=[1])),
        ("negative counts", edited(duplicates=-1)),
        ("text for numbers", edited(rtt_sum_s="1")),
        ("a time that is no number", edited(last_ok_s=float("nan"))),
        ("a sum that is no number", edited(rtt_sum_s=float("nan"))),
        ("a sum that is missing", edited(rtt_sum_s=None)),
        ("a time that no clock shows", edited(last_ok_s=10**400)),
        ("counts that nobody reaches", edited(outcomes=[10**400] * 10)),
        ("a list at the root", "[]"),
        ("a list in a list in a list", "[" * 200_000),
    ],
)
def test_an_unusable_file_is_an_empty_beginning(sentence: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text(text)
    assert state.load(path, "a") == {}, sentence
    assert state.load(tmp_path / "none", "a") == {}


def test_the_firewall_list_names_both_directions_of_every_peer() -> None:
    config = AgentConfig("a", "eu", ("0.0.0.0", 8620), ("0.0.0.0", 8621), Path("t"), advertise=("192.0.2.1", 30620))
    text = allow_list(config, [Target("b", "us", "192.0.2.9", 8620), Target("a", "eu", "192.0.2.1", 30620)])
    assert text.splitlines()[0] == "# a is reached at 192.0.2.1:30620"
    rows = [line.split() for line in text.splitlines()[2:]]
    assert rows == [
        ["b", "out", "udp", "192.0.2.9", "8620"], ["b", "in", "udp", "192.0.2.9", "30620"],
        ["b", "out", "tcp", "192.0.2.9", "8620"], ["b", "in", "tcp", "192.0.2.9", "30620"],
    ]  # fmt: skip
