"""Recording rules: per pair of clusters, what the latency map and the alerts are made of (window 2 min).

They come in two variants that record the same names: round-trip times from classic buckets, which every scrape brings,
and from native ones, whose quantiles are far finer.
"""

from __future__ import annotations

from rebalancer.catalog import LOST_OUTCOMES, PAIR, PATH_OUTCOMES, metric
from rules.model import Group, Recording

WINDOW = "2m"
BY = ", ".join(PAIR)
_P = "pair:rebalancer_probe_"
SAMPLES = _P + "samples:increase2m"
LOSS = _P + "loss:ratio2m"
LOSS_FORWARD = _P + "loss_forward:ratio2m"
SEND_ERRORS = _P + "send_errors:increase2m"
REFUSED = _P + "refused:increase2m"
RTT_MEAN = _P + "rtt_seconds:mean2m"
RTT_P50 = _P + "rtt_seconds:p50_2m"
RTT_P99 = _P + "rtt_seconds:p99_2m"
JITTER = _P + "jitter_seconds:mean2m"
LAST_OK_AGE = _P + "last_ok_age_seconds:min"


def _settled(outcomes: str) -> str:
    grown = f'increase({metric("probe_probes_total").name}{{outcome=~"{outcomes}"}}[{WINDOW}])'
    # What an agent counted while it distrusted itself says nothing about its paths: they become unknown.
    sick = f"max_over_time({metric('probe_sick').name}[{WINDOW}]) > 0"
    return f"sum by ({BY}) ({grown} unless on (src_cluster, instance) ({sick}))"


def _mean(short: str) -> str:
    name = metric(short).name
    # The denominator is guarded: no answer in two minutes means no value, not NaN and not 0.
    return f"sum by ({BY}) (rate({name}_sum[{WINDOW}])) / (sum by ({BY}) (rate({name}_count[{WINDOW}])) > 0)"


def _quantile(quantile: float) -> str:
    buckets = f"sum by ({BY}, le) (rate({metric('probe_rtt_seconds').name}_bucket[{WINDOW}]))"
    return f"histogram_quantile({quantile}, {buckets})"


def _native_rate() -> str:
    return f"sum by ({BY}) (rate({metric('probe_rtt_seconds').name}[{WINDOW}]))"


def _rtt_rules(*, native: bool) -> tuple[Recording, ...]:
    if not native:
        return (
            Recording(RTT_MEAN, _mean("probe_rtt_seconds")),
            Recording(RTT_P50, _quantile(0.5)),
            Recording(RTT_P99, _quantile(0.99)),
        )
    rate = _native_rate()
    return (
        Recording(RTT_MEAN, f"histogram_sum({rate}) / (histogram_count({rate}) > 0)"),
        Recording(RTT_P50, f"histogram_quantile(0.5, {rate})"),
        Recording(RTT_P99, f"histogram_quantile(0.99, {rate})"),
    )


def recording_groups(*, native: bool = False) -> tuple[Group, ...]:
    """Returns the one group of the pair recordings; samples come first, because the ratios read them.

    Args:
        native: whether the round-trip times are scraped as native histograms.
    """
    samples = f"({SAMPLES} > 0)"
    last_ok = metric("probe_last_ok_timestamp_seconds").name
    rules = (
        Recording(SAMPLES, _settled("|".join(PATH_OUTCOMES))),
        Recording(LOSS, f"{_settled('|'.join(LOST_OUTCOMES))} / {samples}"),
        Recording(LOSS_FORWARD, f"{_settled('lost_forward')} / {samples}"),
        Recording(REFUSED, _settled("refused")),
        Recording(SEND_ERRORS, _settled("send_error")),
        *_rtt_rules(native=native),
        Recording(JITTER, _mean("probe_ipdv_seconds")),
        Recording(LAST_OK_AGE, f"min by ({BY}) (time() - {last_ok})"),
    )
    return (Group("rebalancer-probe-pairs", "", rules),)
