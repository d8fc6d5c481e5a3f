"""The exposition as protobuf: delimited `io.prometheus.client.MetricFamily` messages, the only form in which Prometheus
takes native histograms from a scrape.

Only what these messages need of the wire format is here: varints, little-endian doubles and octets behind their length.
Field numbers are those of metrics.proto (io.prometheus.client).
"""

from __future__ import annotations

import functools
import itertools
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from probes.exposition import MAX_PEERS, AgentState, Series, pair_values
from probes.stats import BUCKET_BOUNDS_S, NATIVE_SCHEMA, NATIVE_ZERO_INDEX, NATIVE_ZERO_S
from rebalancer.catalog import PAIR, PROBE_OUTCOMES, Metric, metric

PROTOBUF_CONTENT_TYPE = "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
_TYPES = {"counter": 0, "gauge": 1, "summary": 2, "histogram": 4, "info": 1}
_VALUE_FIELDS = {"counter": 3, "gauge": 2, "info": 2}
_SUMMARY, _HISTOGRAM = 4, 7
_METRIC = 4
_DOUBLE = struct.Struct("<d")


_TWO = 1 << 14
_VARINTS = tuple(bytes((value,)) if value < 0x80 else bytes((value & 0x7F | 0x80, value >> 7)) for value in range(_TWO))
_CONTINUED = tuple(bytes((value & 0x7F | 0x80, value >> 7 | 0x80)) for value in range(_TWO))
"""Fourteen bits of a longer number. Most of a message are varints, so they are looked up."""


def varint(value: int) -> bytes:
    """Returns an unsigned number, seven bits an octet, the lowest first."""
    if value < _TWO:
        return _VARINTS[value]
    return _CONTINUED[value & _TWO - 1] + varint(value >> 14)


def varints(values: Iterable[int]) -> bytes:
    """Returns unsigned numbers one behind the other."""
    return b"".join([_VARINTS[value] if value < _TWO else varint(value) for value in values])


def zigzags(values: Iterable[int]) -> bytes:
    """Returns signed numbers as sint32 and sint64 are written: 0, -1, 1, -2, ... become 0, 1, 2, 3, ..."""
    return varints([2 * value if value >= 0 else -2 * value - 1 for value in values])


def octets(field: int, content: bytes) -> bytes:
    """Returns a field of octets: a string, a message inside a message, or packed numbers."""
    return varint(field << 3 | 2) + varint(len(content)) + content


def double(field: int, value: float) -> bytes:
    """Returns a field of type double."""
    return varint(field << 3 | 1) + _DOUBLE.pack(value)


def number(field: int, value: int) -> bytes:
    """Returns a field of an unsigned number."""
    return varint(field << 3) + varint(value)


def _labels(names: Iterable[str], values: Iterable[str]) -> bytes:
    return b"".join(
        octets(1, octets(1, name.encode()) + octets(2, value.encode()))
        for name, value in zip(names, values, strict=True)
    )


def _plain_head(labels: bytes, kind: str) -> bytes:
    """Returns a counter or gauge up to its value; that is a double, so all before it is the same in every scrape."""
    value = octets(_VALUE_FIELDS[kind], double(1, 0.0))
    return varint(_METRIC << 3 | 2) + varint(len(labels) + len(value)) + labels + value[: -_DOUBLE.size]


class _Pair(NamedTuple):
    """What of a pair stays the same from scrape to scrape.

    Attributes:
        labels: its labels.
        outcomes: heads of its settled probes by outcome.
        heads: kind -> head of its plain numbers.
    """

    labels: bytes
    outcomes: tuple[bytes, ...]
    heads: dict[str, bytes]


@functools.lru_cache(maxsize=MAX_PEERS)
def _pair(src_cluster: str, dst_cluster: str, proto: str) -> _Pair:
    labels = _labels(PAIR, (src_cluster, dst_cluster, proto))
    outcomes = tuple(_plain_head(labels + _labels(("outcome",), (name,)), "counter") for name in PROBE_OUTCOMES)
    return _Pair(labels, outcomes, {kind: _plain_head(labels, kind) for kind in ("counter", "gauge")})


@functools.lru_cache(maxsize=MAX_PEERS)
def _target_head(pair: bytes, region: str, address: str, flows: int) -> bytes:
    rest = _labels(("dst_region", "dst_addr", "flows"), (region, address, str(flows)))
    return _plain_head(pair + rest, "info")


def _family(item: Metric, parts: Iterable[bytes]) -> bytes:
    metrics = b"".join(parts)
    if not metrics:
        return b""
    head = octets(1, item.name.encode()) + octets(2, item.help.encode()) + number(3, _TYPES[item.kind])
    return varint(len(head) + len(metrics)) + head + metrics


def _plain(item: Metric, heads: Iterable[bytes], values: Iterable[float]) -> bytes:
    # The inner loop of a scrape, so it is left to the library.
    return _family(item, itertools.chain.from_iterable(zip(heads, map(_DOUBLE.pack, values), strict=True)))


def _spans(counts: Mapping[int, int]) -> bytes:
    # A run of neighbouring buckets is a span (distance from the end of the one before, length); each count is the
    # difference to the one before.
    indexes = sorted(counts)
    if indexes and indexes[0] == NATIVE_ZERO_INDEX:
        del indexes[0]
    if not indexes:
        return b""
    if indexes[-1] - indexes[0] < len(indexes):  # one run: what a path without jitter to speak of has
        runs = [(indexes[0], len(indexes))]
    else:
        starts = [place for place, index in enumerate(indexes) if not place or indexes[place - 1] + 1 != index]
        runs = [
            (indexes[start] - (indexes[start - 1] + 1 if start else 0), end - start)
            for start, end in zip(starts, [*starts[1:], len(indexes)], strict=True)
        ]
    written = b"".join([octets(12, b"\x08" + zigzags((before,)) + b"\x10" + varint(length)) for before, length in runs])
    values = [counts[index] for index in indexes]
    deltas = map(int.__sub__, values, [0, *values])
    return written + octets(13, zigzags(deltas))


_RTT_BOUNDS = tuple(double(2, bound) for bound in (*BUCKET_BOUNDS_S, float("inf")))


def _buckets(counts: Sequence[int], bounds: Sequence[bytes]) -> bytes:
    # Most buckets of a path are empty: those between two others differ in their bound only.
    out = []
    below = begun = 0
    head = _bucket_head(0)
    for place in [place for place, count in enumerate(counts) if count]:
        out.append(head.join((b"", *bounds[begun:place])))
        below += counts[place]
        begun = place
        head = _bucket_head(below)
    out.append(head.join((b"", *bounds[begun:])))
    return b"".join(out)


def _bucket_head(below: int) -> bytes:
    count = varint(below)
    return _BUCKET_HEADS[len(count)] + count  # the bound follows


_BUCKET_HEADS = tuple(b"\x1a" + varint(1 + size + 1 + _DOUBLE.size) + b"\x08" for size in range(11))
"""Of a bucket whose number has so many octets: field 3, its length, field 1."""


_NATIVE_SHAPE = varint(5 << 3) + zigzags((NATIVE_SCHEMA,)) + double(6, NATIVE_ZERO_S) + varint(7 << 3)
"""Ends with the head of the zero bucket's number."""


_COUNT, _SUM = varint(1 << 3), varint(2 << 3 | 1)


def _rtt(item: Series) -> bytes:
    stats = item.stats
    return b"".join(
        (
            _COUNT + varint(stats.rtt_count) + _SUM,
            _DOUBLE.pack(stats.rtt_sum_s),
            _buckets(stats.buckets, _RTT_BOUNDS),
            _NATIVE_SHAPE,
            varint(stats.native.get(NATIVE_ZERO_INDEX, 0)),
            _spans(stats.native),
        )
    )


def _ipdv(item: Series) -> bytes:
    return _COUNT + varint(item.stats.ipdv_count) + _SUM + _DOUBLE.pack(item.stats.ipdv_sum_s)


def render_protobuf(series: Sequence[Series], state: AgentState, now_s: float) -> bytes:
    """Returns the whole exposition; the round-trip times have native and classic buckets in one message.

    Args:
        series: all peers.
        state: the agent itself.
        now_s: monotonic time, for the sliding windows.
    """
    pairs = [_pair(item.src_cluster, item.dst_cluster, item.proto) for item in series]
    both = list(zip(pairs, series, strict=True))
    chain = itertools.chain.from_iterable
    rtt = (octets(_METRIC, pair.labels + octets(_HISTOGRAM, _rtt(item))) for pair, item in both)
    jitter = (octets(_METRIC, pair.labels + octets(_SUMMARY, _ipdv(item))) for pair, item in both)
    targets = [
        _target_head(pair.labels, item.region, address, item.flows) for pair, item in both for address in item.addresses
    ]
    out = [
        _plain(
            metric("probe_probes_total"),
            chain(pair.outcomes for pair in pairs),
            chain(item.stats.outcomes for item in series),
        ),
        _family(metric("probe_rtt_seconds"), rtt),
        _family(metric("probe_ipdv_seconds"), jitter),
    ]
    for family, values in pair_values(series, now_s):
        heads = [pair.heads[family.kind] for pair, value in zip(pairs, values, strict=True) if value is not None]
        out.append(_plain(family, heads, [value for value in values if value is not None]))
    return b"".join([*out, _plain(metric("probe_target_info"), targets, [1.0] * len(targets)), *_agent(state)])


def _agent(state: AgentState) -> Iterable[bytes]:
    packets = sorted(state.reflector.items())
    names = ("src_cluster", "result")
    yield _plain(
        metric("probe_reflector_packets_total"),
        (_plain_head(_labels(names, key), "counter") for key, _count in packets),
        (count for _key, count in packets),
    )
    bounds = tuple(double(2, bound) for bound in (*state.lag.bounds, float("inf")))
    lag = number(1, sum(state.lag.counts)) + double(2, state.lag.total) + _buckets(state.lag.counts, bounds)
    yield _family(metric("probe_loop_lag_seconds"), [octets(_METRIC, octets(_HISTOGRAM, lag))])
    source = _labels(("src_cluster",), (state.cluster,))
    yield _plain(metric("probe_sick"), [_plain_head(source, "gauge")], [float(state.sick)])
    version = _labels(("version",), (state.version,))
    yield _plain(metric("probe_build_info"), [_plain_head(version, "info")], [1.0])
    for short, value in state.values.items():
        if value is not None:
            item = metric(short)
            yield _plain(item, [_plain_head(b"", item.kind)], [value])
