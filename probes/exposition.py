"""Prometheus and OpenMetrics text of everything the agent knows, by an own renderer.

`prometheus_client` needs 0.9 s for a thousand peers and holds the loop meanwhile, so that probes would go out late;
with the label text of a peer made once and plain integers it is about 15 ms. A series exists exactly as long as its
peer is in the target list.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from probes.stats import BUCKET_BOUNDS_S, PeerStats
from rebalancer.catalog import PROBE_OUTCOMES, Metric, metric

TEXT_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
MAX_PEERS = 8_192
LAG_BOUNDS_S = (0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 5.0)


class Histogram:
    """A small classic histogram of the agent itself.

    Args:
        bounds: upper bounds in ascending order.
    """

    def __init__(self, bounds: Sequence[float] = LAG_BOUNDS_S) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Takes one value."""
        index = next((i for i, bound in enumerate(self.bounds) if value <= bound), len(self.bounds))
        self.counts[index] += 1
        self.total += value


@dataclass(frozen=True, slots=True)
class Series:
    """One peer and protocol to be rendered.

    Attributes:
        src_cluster, dst_cluster, proto: the labels of the pair.
        stats: its counters.
        addresses: its addresses (host:port).
        region: its region.
        flows: source ports used.
    """

    src_cluster: str
    dst_cluster: str
    proto: str
    stats: PeerStats
    addresses: tuple[str, ...]
    region: str
    flows: int


@dataclass(frozen=True, slots=True)
class AgentState:
    """What the agent says about itself.

    Attributes:
        values: short catalogue name -> value of gauges and counters without labels; None leaves the metric out.
        version: of the probe.
        lag: how late the loop runs.
        reflector: (source cluster, result) -> packets.
        cluster: own cluster.
        sick: whether nothing that it measures counts.
    """

    values: Mapping[str, float | None]
    version: str
    cluster: str
    lag: Histogram
    reflector: Mapping[tuple[str, str], int] = field(default_factory=dict)
    sick: bool = False


def escape(value: str) -> str:
    """Returns a label value as the text format wants it."""
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def labels(**pairs: str) -> str:
    """Returns `name="value",...` without braces."""
    return ",".join(f'{name}="{escape(value)}"' for name, value in pairs.items())


def number(value: float) -> str:
    """Returns a value in the text format: whole numbers without a fraction."""
    return str(int(value)) if value == int(value) and abs(value) < 2**53 else repr(value)


_LE = (*(f'le="{bound!r}"' for bound in BUCKET_BOUNDS_S), 'le="+Inf"')
_OUTCOMES = tuple(f'outcome="{name}"' for name in PROBE_OUTCOMES)
_Pairs = Sequence[tuple["_Pair", Series]]


class _Text:
    """Collects the lines of one exposition."""

    def __init__(self, *, openmetrics: bool) -> None:
        self.out: list[str] = []
        self._openmetrics = openmetrics

    def head(self, item: Metric) -> str:
        """Writes what precedes a family's samples; returns the name of the samples."""
        name, kind = item.name, item.kind
        if self._openmetrics:
            # There the family is named without the suffix that its samples have.
            name = name.removesuffix("_total" if kind == "counter" else "_info" if kind == "info" else "")
        elif kind == "info":
            kind = "gauge"
        self.out.append(f"# HELP {name} {item.help}\n# TYPE {name} {kind}\n")
        return item.name


def render(series: Sequence[Series], state: AgentState, now_s: float, *, openmetrics: bool = False) -> bytes:
    """Returns the whole exposition.

    Args:
        series: all peers.
        state: the agent itself.
        now_s: monotonic time, for the sliding windows.
        openmetrics: whether OpenMetrics 1.0.0 instead of Prometheus text 0.0.4.
    """
    pairs = [(_pair_text(item.src_cluster, item.dst_cluster, item.proto), item) for item in series]
    text = _Text(openmetrics=openmetrics)
    _render_outcomes(text, pairs)
    _render_histograms(text, pairs)
    for family, values in pair_values(series, now_s):
        name = text.head(family)
        written: Callable[[float], str] = str if family.kind == "counter" else number
        text.out += [
            f"{name}{{{pair.labels}}} {written(value)}\n"
            for (pair, _item), value in zip(pairs, values, strict=True)
            if value is not None
        ]
    _render_info(text, pairs)
    _render_agent(text, state)
    if openmetrics:
        text.out.append("# EOF\n")
    return "".join(text.out).encode()


def pair_values(series: Sequence[Series], now_s: float) -> Iterator[tuple[Metric, list[float | None]]]:
    """Yields the families of one plain number per pair; None is no sample, since a zero would be a measurement."""
    stats = [item.stats for item in series]
    yield metric("probe_rtt_min_seconds"), [item.rtt_min.get(now_s) for item in stats]
    yield metric("probe_duplicates_total"), [item.duplicates for item in stats]
    yield metric("probe_reordered_total"), [item.reordered for item in stats]
    yield metric("probe_flow_loss_ratio_max"), [item.flow_loss.worst() for item in stats]
    yield metric("probe_last_ok_timestamp_seconds"), [item.last_ok_s for item in stats]
    yield metric("probe_last_sent_timestamp_seconds"), [item.last_sent_s for item in stats]


class _Pair(NamedTuple):
    """What of a pair's text stays the same from scrape to scrape.

    Attributes:
        labels: its labels.
        outcomes: the lines of its settled probes, with places for the numbers.
        buckets: the lines of its round-trip buckets, each without its number.
        rtt, ipdv: the lines of sum and count, with places for the numbers.
    """

    labels: str
    outcomes: str
    buckets: tuple[str, ...]
    rtt: str
    ipdv: str


@functools.lru_cache(maxsize=MAX_PEERS)
def _pair_text(src_cluster: str, dst_cluster: str, proto: str) -> _Pair:
    pair = labels(src_cluster=src_cluster, dst_cluster=dst_cluster, proto=proto)
    outcomes = metric("probe_probes_total").name
    rtt = metric("probe_rtt_seconds").name
    ipdv = metric("probe_ipdv_seconds").name
    safe = pair.replace("%", "%%")
    return _Pair(
        labels=pair,
        outcomes="".join(f"{outcomes}{{{safe},{outcome}}} %d\n" for outcome in _OUTCOMES),
        buckets=tuple(f"{rtt}_bucket{{{pair},{le}}}" for le in _LE),
        rtt=f"{rtt}_sum{{{safe}}} %r\n{rtt}_count{{{safe}}} %d\n",
        ipdv=f"{ipdv}_sum{{{safe}}} %r\n{ipdv}_count{{{safe}}} %d\n",
    )


def _render_outcomes(text: _Text, pairs: _Pairs) -> None:
    text.head(metric("probe_probes_total"))
    text.out += [pair.outcomes % tuple(item.stats.outcomes) for pair, item in pairs]


def _render_histograms(text: _Text, pairs: _Pairs) -> None:
    text.head(metric("probe_rtt_seconds"))
    for pair, item in pairs:
        stats = item.stats
        text.out += _cumulated(stats.buckets, pair.buckets)
        text.out.append(pair.rtt % (stats.rtt_sum_s, stats.rtt_count))
    text.head(metric("probe_ipdv_seconds"))
    text.out += [pair.ipdv % (item.stats.ipdv_sum_s, item.stats.ipdv_count) for pair, item in pairs]


def _cumulated(counts: Sequence[int], heads: Sequence[str]) -> Iterator[str]:
    # Most buckets of a path are empty, and those between two others have the same number: it joins them.
    below = begun = 0
    for place in [place for place, count in enumerate(counts) if count]:
        yield f" {below}\n".join((*heads[begun:place], ""))
        below += counts[place]
        begun = place
    yield f" {below}\n".join((*heads[begun:], ""))


def _render_info(text: _Text, pairs: _Pairs) -> None:
    name = text.head(metric("probe_target_info"))
    for pair, item in pairs:
        text.out.extend(
            f"{name}{{{pair.labels},{_target(item.region, address, item.flows)}}} 1\n" for address in item.addresses
        )


@functools.lru_cache(maxsize=MAX_PEERS)
def _target(region: str, address: str, flows: int) -> str:
    return labels(dst_region=region, dst_addr=address, flows=str(flows))


def _render_agent(text: _Text, state: AgentState) -> None:
    out = text.out
    name = text.head(metric("probe_reflector_packets_total"))
    for (cluster, result), count in sorted(state.reflector.items()):
        out.append(f"{name}{{{labels(src_cluster=cluster, result=result)}}} {count}\n")
    name = text.head(metric("probe_loop_lag_seconds"))
    below = 0
    for bound, count in zip((*(repr(b) for b in state.lag.bounds), "+Inf"), state.lag.counts, strict=True):
        below += count
        out.append(f'{name}_bucket{{le="{bound}"}} {below}\n')
    out.append(f"{name}_sum {state.lag.total!r}\n{name}_count {below}\n")
    name = text.head(metric("probe_sick"))
    out.append(f"{name}{{{labels(src_cluster=state.cluster)}}} {int(state.sick)}\n")
    name = text.head(metric("probe_build_info"))
    out.append(f"{name}{{{labels(version=state.version)}}} 1\n")
    for short, value in state.values.items():
        if value is not None:
            name = text.head(metric(short))
            out.append(f"{name} {number(value)}\n")
