"""The text exposition: catalogue names only, all outcomes from 0, nothing where nothing was measured."""

from __future__ import annotations

import math
import re

from hypothesis import given
from hypothesis import strategies as st

from probes.exposition import AgentState, Histogram, Series, number, render
from probes.stats import PeerStats
from rebalancer.catalog import METRICS, PROBE_METRICS, PROBE_OUTCOMES

LINE = re.compile(r'([a-z_]+)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\.)*",?)*)\})? (\S+)')
VALUES = {
    name.removeprefix("rebalancer_"): 1.0
    for name in (
        "probe_socket_drops_total", "probe_clock_steps_total", "probe_kernel_timestamps_missing_total", "probe_targets",
        "probe_config_last_reload_successful", "probe_config_last_reload_success_timestamp_seconds",
        "probe_self_rtt_seconds",
        "probe_active",
        "probe_reached",
    )
}  # fmt: skip


def exposition(dst: str = "b", stats: PeerStats | None = None) -> str:
    series = [Series("a", dst, "udp", stats or PeerStats(), ("192.0.2.1:8620",), "eu", 13)]
    state = AgentState(VALUES, "1", "a", Histogram(), {("b", "ok"): 3})
    return render(series, state, now_s=0.0).decode()


def measured() -> PeerStats:
    stats = PeerStats()
    for rtt in (0.020, 0.021, 5.0):
        stats.observe(rtt, 0.020, now_s=0, unix_s=1_700_000_000.5)
    stats.last_sent_s = 1.0
    for flow in range(40):
        stats.flow_loss.add(0.0, 0, lost=flow == 0)
    return stats


def test_every_family_is_in_the_catalogue_with_its_kind_and_every_probe_metric_is_exposed() -> None:
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", exposition(stats=measured()), flags=re.M))
    for name, kind in types.items():
        expected = METRICS[name].kind
        assert kind == ("gauge" if expected == "info" else expected), name
    assert set(types) == {item.name for item in PROBE_METRICS}


def test_every_sample_has_exactly_the_labels_of_the_catalogue() -> None:
    for line in exposition(stats=measured()).splitlines():
        if line.startswith("#"):
            continue
        match = LINE.fullmatch(line)
        assert match, line
        name = re.sub(r"_(bucket|sum|count)$", "", match[1])
        found = tuple(label for label in re.findall(r'([a-z_]+)="', match[2] or "") if label != "le")
        assert found == METRICS[name].labels, line


def test_all_outcomes_are_there_from_the_start() -> None:
    found = re.findall(r'probes_total\{.*outcome="(\w+)"\} 0', exposition())
    assert tuple(found) == PROBE_OUTCOMES


def test_what_was_not_measured_has_no_line() -> None:
    text = exposition()
    for name in ("rtt_min_seconds{", "last_ok_timestamp_seconds{", "flow_loss_ratio_max{", "last_sent_timestamp"):
        assert f"\nrebalancer_probe_{name}" not in text, name


def test_buckets_are_cumulative_and_end_in_the_count() -> None:
    counts = [int(n) for n in re.findall(r"rtt_seconds_bucket\{.*\} (\d+)", exposition(stats=measured()))]
    assert counts == sorted(counts)
    assert (len(counts), counts[-2], counts[-1]) == (29, 2, 3)
    assert 'rtt_seconds_count{src_cluster="a",dst_cluster="b",proto="udp"} 3' in exposition(stats=measured())


def test_a_peer_that_is_gone_has_no_series() -> None:
    state = AgentState({}, "1", "a", Histogram())
    assert "dst_cluster=" not in render([], state, 0.0).decode()


@given(st.text(max_size=20))
def test_no_label_value_breaks_a_line(dst: str) -> None:
    for line in exposition(dst).split("\n")[:-1]:
        assert line.startswith("# ") or LINE.fullmatch(line), line


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_survive(value: float) -> None:
    assert math.isclose(float(number(value)), value, rel_tol=1e-15)
