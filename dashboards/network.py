"""The board `network`: what the probes measured between the clusters, and how healthy the probes are."""

from __future__ import annotations

from dashboards.panels import Panel, Query, board, matrix, variable
from rebalancer.catalog import metric
from rules.recording import (
    JITTER,
    LAST_OK_AGE,
    LOSS,
    LOSS_FORWARD,
    RTT_MEAN,
    RTT_P50,
    RTT_P99,
    SAMPLES,
)

PAIR = 'src_cluster=~"$src_cluster",dst_cluster=~"$dst_cluster"'
LEGEND = "{{src_cluster}} -> {{dst_cluster}} ({{proto}})"


def _m(short: str) -> str:
    return metric(short).name


def _lines(title: str, description: str, unit: str, *queries: Query, **more: object) -> Panel:
    return Panel("timeseries", title, description, queries, unit, **more)  # type: ignore[arg-type]  # passed on


def matrices() -> list[Panel]:
    """Returns the two matrices, source by destination."""
    return [
        matrix(
            "Round trip, source by destination",
            "Mean over 2 min. An empty field is unknown: no probe was answered lately.",
            f"max by (src_cluster, dst_cluster) ({RTT_MEAN}{{{PAIR}}})",
            unit="s",
            thresholds=((None, "green"), (0.1, "yellow"), (0.2, "orange"), (0.3, "red")),
        ),
        matrix(
            "Loss, source by destination",
            "Share of probes lost over 2 min. An empty field is unknown, not zero.",
            f"max by (src_cluster, dst_cluster) ({LOSS}{{{PAIR}}})",
            unit="percentunit",
            thresholds=((None, "green"), (0.01, "yellow"), (0.05, "red")),
        ),
        Panel(
            "state-timeline",
            "State of each pair",
            "The state in force in the latency map of the rebalancer.",
            [Query(f"{_m('link_state')}{{{PAIR}}} == 1", "{{src_cluster}} -> {{dst_cluster}} {{state}}")],
            width=24,
            options={"mergeValues": True, "showValue": "never", "alignValue": "left", "rowHeight": 0.9,
                     "legend": {"displayMode": "list", "placement": "bottom", "showLegend": False},
                     "tooltip": {"mode": "single", "sort": "none"}},
            custom={"fillOpacity": 70, "lineWidth": 0},
        ),
    ]  # fmt: skip


def paths() -> list[Panel]:
    """Returns the time series per pair."""
    buckets = f"sum by (le) (rate({_m('probe_rtt_seconds')}_bucket{{{PAIR}}}[$__rate_interval]))"
    return [
        _lines("Round trip, median", "Median over 2 min.", "s", Query(f"{RTT_P50}{{{PAIR}}}", LEGEND)),
        _lines("Round trip, 99th percentile", "Over 2 min.", "s", Query(f"{RTT_P99}{{{PAIR}}}", LEGEND)),
        _lines("Loss", "Over 2 min, settled probes only.", "percentunit", Query(f"{LOSS}{{{PAIR}}}", LEGEND)),
        _lines("Loss on the way out", "The part of the loss that happened before the reflector.", "percentunit",
               Query(f"{LOSS_FORWARD}{{{PAIR}}}", LEGEND)),
        _lines("Jitter", "Mean difference of consecutive round trips.", "s", Query(f"{JITTER}{{{PAIR}}}", LEGEND)),
        _lines("Loss of the worst flow", "One of several parallel links may be lossy.", "percentunit",
               Query(f"{_m('probe_flow_loss_ratio_max')}{{{PAIR}}}", LEGEND)),
        Panel(
            "heatmap",
            "Distribution of round trips",
            "All selected pairs together; several bands are several pairs or routes.",
            [Query(buckets, "{{le}}")],
            unit="s",
            options={"calculate": False, "cellGap": 1, "color": {"mode": "scheme", "scheme": "Oranges", "steps": 64},
                     "yAxis": {"unit": "s"}, "tooltip": {"mode": "single", "yHistogram": False},
                     "legend": {"show": True}, "rowsFrame": {"layout": "auto"}},
        ),
        _lines("Age of the last good reply", "Grows while a pair gives no answer.", "s",
               Query(f"{LAST_OK_AGE}{{{PAIR}}}", LEGEND)),
        _lines("Samples", "Probes of 2 min that say something about the path: the weight of all above.", "short",
               Query(f"{SAMPLES}{{{PAIR}}}", LEGEND)),
        _lines("Probes by outcome", "Own failures (send_error, self_drop, resolve_error) are no path loss.", "pps",
               Query(f"sum by (outcome) (rate({_m('probe_probes_total')}{{{PAIR}}}[$__rate_interval]))",
                     "{{outcome}}")),
        _lines("Duplicates and reordering", "Replies received twice, and replies that overtook others.", "pps",
               Query(f"sum(rate({_m('probe_duplicates_total')}{{{PAIR}}}[$__rate_interval]))", "duplicates"),
               Query(f"sum(rate({_m('probe_reordered_total')}{{{PAIR}}}[$__rate_interval]))", "reordered")),
    ]  # fmt: skip


def probes() -> list[Panel]:
    """Returns the probes' own health."""
    lag = f"sum by (le, instance) (rate({_m('probe_loop_lag_seconds')}_bucket[$__rate_interval]))"
    return [
        _lines("Reflected packets", "Who probes this cluster, and what was refused and why.", "pps",
               Query(f"sum by (src_cluster, result) (rate({_m('probe_reflector_packets_total')}[$__rate_interval]))",
                     "{{src_cluster}} {{result}}")),
        _lines("Loop lag, 99th percentile", "Above 1 s an agent calls itself sick and its cells are unknown.", "s",
               Query(f"histogram_quantile(0.99, {lag})", "{{instance}}")),
        _lines("Own drops and clock steps", "Packets the agent itself lost, and steps of its wall clock.", "cps",
               Query(f"sum by (instance) (rate({_m('probe_socket_drops_total')}[$__rate_interval]))",
                     "drops {{instance}}"),
               Query(f"sum by (instance) (rate({_m('probe_clock_steps_total')}[$__rate_interval]))",
                     "steps {{instance}}")),
        _lines("Targets and reloads", "Targets in force; a failed reload keeps the old list.", "short",
               Query(_m("probe_targets"), "targets {{instance}}"),
               Query(_m("probe_config_last_reload_successful"), "reload ok {{instance}}")),
    ]  # fmt: skip


def network_board() -> str:
    """Returns the JSON of the board."""
    sent = _m("probe_last_sent_timestamp_seconds")
    return board(
        "rebalancer-network",
        "Rebalancer / Network",
        "Round trip, loss and jitter between all clusters, as rebalancer-probe measured them.",
        [
            variable("src_cluster", f"label_values({sent}, src_cluster)", "From"),
            variable("dst_cluster", f"label_values({sent}, dst_cluster)", "To"),
        ],
        [("Now", matrices()), ("Paths", paths()), ("Probes", probes())],
    )
