"""The protobuf exposition: the same numbers as the text, and native buckets that hold what was measured."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.exposition import AgentState, Histogram, Series, render
from probes.protobuf import render_protobuf, varint, varints, zigzags
from probes.stats import BUCKET_BOUNDS_S, NATIVE_MAX_INDEX, NATIVE_ZERO_INDEX, PeerStats, native_index
from rebalancer.catalog import METRICS, PROBE_METRICS
from tests.unit.probes import protobuf_reader as reader
from tests.unit.probes.test_exposition import VALUES, measured

TYPES = {"counter": 0, "gauge": 1, "summary": 2, "histogram": 4, "info": 1}
FIELDS = {"counter": 3, "gauge": 2, "summary": 4, "histogram": 7, "info": 2}
RTT = "rebalancer_probe_rtt_seconds"


def state() -> AgentState:
    lag = Histogram()
    lag.observe(0.003)
    return AgentState(VALUES, "1", "a", lag, {("b", "ok"): 300})


def series(stats: PeerStats, dst: str = "b") -> list[Series]:
    return [Series("a", dst, "udp", stats, ("192.0.2.1:8620",), "eu", 13)]


def exposed(stats: PeerStats, dst: str = "b") -> dict[str, reader.Family]:
    return reader.families(render_protobuf(series(stats, dst), state(), 0.0))


def observed(*rtts_s: float) -> PeerStats:
    stats = PeerStats()
    for rtt_s in rtts_s:
        stats.observe(rtt_s, None, now_s=0.0, unix_s=1.0)
    return stats


def test_every_family_has_the_name_kind_help_and_labels_of_the_catalogue() -> None:
    found = exposed(measured())
    assert set(found) == {item.name for item in PROBE_METRICS}
    for name, family in found.items():
        item = METRICS[name]
        assert (family.type, family.help) == (TYPES[item.kind], item.help), name
        for sample in family.samples:
            assert tuple(sample.labels) == item.labels, name
            assert sample.kind == FIELDS[item.kind], name


def test_the_numbers_are_those_of_the_text() -> None:
    text = render(series(measured()), state(), 0.0).decode()
    lines = re.findall(r"^(\w+?)(?:\{(.*)\})? (\S+)$", text, flags=re.M)
    wanted = [
        (name, dict(re.findall(r'(\w+)="([^"]*)"', labels)), float(value))
        for name, labels, value in lines
        if name in METRICS
    ]
    plain = [family for family in exposed(measured()).values() if family.type in (TYPES["counter"], TYPES["gauge"])]
    assert [(family.name, sample.labels, sample.body[1][0]) for family in plain for sample in family.samples] == wanted
    assert len(wanted) > 20


def test_one_message_has_classic_and_native_buckets_and_a_sum() -> None:
    (sample,) = exposed(observed(0.020, 0.021, 5.0))[RTT].samples
    body = sample.body
    assert (body[1], body[2]) == ([3], [pytest.approx(5.041)])
    classic = [(bucket[2][0], bucket[1][0]) for bucket in map(reader.message, body[3])]
    assert [bound for bound, _count in classic] == [*BUCKET_BOUNDS_S, math.inf]
    assert [count for _bound, count in classic][-2:] == [2, 3]
    assert reader.signed(body[5][0]) == 4
    assert reader.native_counts(body) == {native_index(0.020): 1, native_index(0.021): 1, native_index(5.0): 1}


def test_nothing_measured_is_an_empty_native_histogram_and_not_a_classic_one() -> None:
    (sample,) = exposed(PeerStats())[RTT].samples
    assert sample.body[6][0] > 0, "the width of the zero bucket tells a reader that it is native"
    assert (sample.body[1], sample.body[7], reader.native_counts(sample.body)) == ([0], [0], {})


@given(st.lists(st.floats(0, 100), max_size=60))
def test_native_buckets_hold_every_sample_once_and_between_their_bounds(rtts_s: list[float]) -> None:
    (sample,) = exposed(observed(*rtts_s))[RTT].samples
    counts = reader.native_counts(sample.body)
    assert sum(counts.values()) + sample.body[7][0] == len(rtts_s) == sample.body[1][0]
    for index, count in counts.items():
        low, high = 2 ** ((index - 1) / 16), 2 ** (index / 16)
        if index < NATIVE_MAX_INDEX:
            assert count == sum(low < rtt_s <= high for rtt_s in rtts_s), index


@pytest.mark.parametrize("power", [-19, -10, -1, 0, 5])
def test_a_value_on_a_native_bound_belongs_to_the_bucket_below(power: int) -> None:
    assert native_index(2.0**power) == power * 16
    assert native_index(math.nextafter(2.0**power, math.inf)) == power * 16 + 1


def test_the_native_buckets_are_bounded_whatever_is_measured() -> None:
    assert native_index(0.0) == native_index(1e-9) == NATIVE_ZERO_INDEX
    assert native_index(64.0) == native_index(1e9) == NATIVE_MAX_INDEX


@given(st.integers(0, 2**64 - 1), st.integers(-(2**62), 2**62))
def test_numbers_survive_the_wire(unsigned: int, signed: int) -> None:
    assert reader.read_varint(varint(unsigned), 0) == (unsigned, len(varint(unsigned)))
    assert reader.signed(reader.read_varint(zigzags((signed,)), 0)[0]) == signed
    assert varints((unsigned, 1)) == varint(unsigned) + varint(1)


@given(st.text(max_size=300))
def test_every_label_value_survives(dst: str) -> None:
    (sample,) = exposed(PeerStats(), dst)[RTT].samples
    assert sample.labels["dst_cluster"] == dst


def test_no_peer_leaves_no_empty_family() -> None:
    found = reader.families(render_protobuf([], AgentState({}, "1", "a", Histogram()), 0.0))
    assert set(found) == {"rebalancer_probe_loop_lag_seconds", "rebalancer_probe_build_info", "rebalancer_probe_sick"}
