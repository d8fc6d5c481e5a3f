"""Prometheus text of everything the agent knows, by an own renderer.

`prometheus_client` needs 0.9 s for a thousand peers and holds the loop meanwhile, so that probes would go out late;
with the label text of a peer made once and plain integers it is about 13 ms. A series exists exactly as long as its
peer is in the target list.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from probes.stats import BUCKET_BOUNDS_S, PeerStats
from rebalancer.catalog import PROBE_OUTCOMES, Metric, metric

TEXT_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
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


def _head(out: list[str], item: Metric) -> str:
    kind = "gauge" if item.kind == "info" else item.kind
    out.append(f"# HELP {item.name} {item.help}\n# TYPE {item.name} {kind}\n")
    return item.name


def render(series: Iterable[Series], state: AgentState, now_s: float) -> bytes:
    """Returns the whole exposition.

    Args:
        series: all peers.
        state: the agent itself.
        now_s: monotonic time, for the sliding windows.
    """
    pairs = [
        (labels(src_cluster=item.src_cluster, dst_cluster=item.dst_cluster, proto=item.proto), item) for item in series
    ]
    out: list[str] = []
    _render_outcomes(out, pairs)
    _render_histograms(out, pairs)
    _render_simple(out, pairs, now_s)
    _render_info(out, pairs)
    _render_agent(out, state)
    return "".join(out).encode()


@functools.lru_cache(maxsize=MAX_PEERS)
def _templates(pair: str) -> tuple[str, str, str]:
    """Returns the lines of a pair's outcomes, buckets with sum and count, and jitter, with places for the numbers."""
    outcomes = metric("probe_probes_total").name
    rtt = metric("probe_rtt_seconds").name
    ipdv = metric("probe_ipdv_seconds").name
    safe = pair.replace("%", "%%")
    return (
        "".join(f"{outcomes}{{{safe},{outcome}}} %d\n" for outcome in _OUTCOMES),
        "".join(f"{rtt}_bucket{{{safe},{le}}} %d\n" for le in _LE)
        + f"{rtt}_sum{{{safe}}} %r\n{rtt}_count{{{safe}}} %d\n",
        f"{ipdv}_sum{{{safe}}} %r\n{ipdv}_count{{{safe}}} %d\n",
    )


def _render_outcomes(out: list[str], pairs: list[tuple[str, Series]]) -> None:
    _head(out, metric("probe_probes_total"))
    out.extend(_templates(pair)[0] % tuple(item.stats.outcomes) for pair, item in pairs)


def _render_histograms(out: list[str], pairs: list[tuple[str, Series]]) -> None:
    _head(out, metric("probe_rtt_seconds"))
    for pair, item in pairs:
        stats = item.stats
        numbers = (*itertools.accumulate(stats.buckets), stats.rtt_sum_s, stats.rtt_count)
        out.append(_templates(pair)[1] % numbers)
    _head(out, metric("probe_ipdv_seconds"))
    out.extend(_templates(pair)[2] % (item.stats.ipdv_sum_s, item.stats.ipdv_count) for pair, item in pairs)


def _render_simple(out: list[str], pairs: list[tuple[str, Series]], now_s: float) -> None:
    # What has no value yet has no line: a zero would be read as a measurement.
    for short, values in (
        ("probe_rtt_min_seconds", [(pair, item.stats.rtt_min.get(now_s)) for pair, item in pairs]),
        ("probe_duplicates_total", [(pair, item.stats.duplicates) for pair, item in pairs]),
        ("probe_reordered_total", [(pair, item.stats.reordered) for pair, item in pairs]),
        ("probe_flow_loss_ratio_max", [(pair, item.stats.flow_loss.worst()) for pair, item in pairs]),
        ("probe_last_ok_timestamp_seconds", [(pair, item.stats.last_ok_s) for pair, item in pairs]),
        ("probe_last_sent_timestamp_seconds", [(pair, item.stats.last_sent_s) for pair, item in pairs]),
    ):
        name = _head(out, metric(short))
        out.extend(f"{name}{{{pair}}} {number(value)}\n" for pair, value in values if value is not None)


def _render_info(out: list[str], pairs: list[tuple[str, Series]]) -> None:
    name = _head(out, metric("probe_target_info"))
    for pair, item in pairs:
        for address in item.addresses:
            rest = labels(dst_region=item.region, dst_addr=address, flows=str(item.flows))
            out.append(f"{name}{{{pair},{rest}}} 1\n")


def _render_agent(out: list[str], state: AgentState) -> None:
    name = _head(out, metric("probe_reflector_packets_total"))
    for (cluster, result), count in sorted(state.reflector.items()):
        out.append(f"{name}{{{labels(src_cluster=cluster, result=result)}}} {count}\n")
    name = _head(out, metric("probe_loop_lag_seconds"))
    below = 0
    for bound, count in zip((*(repr(b) for b in state.lag.bounds), "+Inf"), state.lag.counts, strict=True):
        below += count
        out.append(f'{name}_bucket{{le="{bound}"}} {below}\n')
    out.append(f"{name}_sum {state.lag.total!r}\n{name}_count {below}\n")
    name = _head(out, metric("probe_sick"))
    out.append(f"{name}{{{labels(src_cluster=state.cluster)}}} {int(state.sick)}\n")
    name = _head(out, metric("probe_build_info"))
    out.append(f"{name}{{{labels(version=state.version)}}} 1\n")
    for short, value in state.values.items():
        if value is not None:
            name = _head(out, metric(short))
            out.append(f"{name} {number(value)}\n")
