"""Every metric name, once: kind, labels, help and producer.

Standard library only, so that the probe image can import it. README table, rules, boards and tests are generated from
this list or checked against it. Names carry base units; counters end in `_total`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram", "summary", "info"]

PREFIX = "rebalancer_"
PAIR = ("src_cluster", "dst_cluster", "proto")
PROBE_OUTCOMES = (
    "ok", "lost_forward", "lost_backward", "lost_unknown", "late", "refused", "unreachable",
    "auth_failed", "send_error", "self_drop", "resolve_error",
)  # fmt: skip
"""How a probe can settle. Only ok, late, lost_* and unreachable say something about the path."""
PATH_OUTCOMES = ("ok", "late", "lost_forward", "lost_backward", "lost_unknown", "unreachable")
LOST_OUTCOMES = ("lost_forward", "lost_backward", "lost_unknown", "unreachable")
PHASES = ("observe", "forecast", "plan", "act", "record")
COMPLETENESS = ("complete", "partial", "stale", "failed")


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric family.

    Attributes:
        name: full name with prefix and unit.
        kind: Prometheus type; `info` is a gauge that is always 1.
        labels: bounded labels in exposition order.
        help: one sentence.
        producer: the room that exports it.
    """

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str
    producer: str


@dataclass(frozen=True, slots=True)
class Recorded:
    """One recorded series (a recording rule's output): name, labels and meaning."""

    name: str
    labels: tuple[str, ...]
    help: str


def _m(name: str, kind: Kind, labels: tuple[str, ...] | str, help_: str, producer: str) -> Metric:
    names = tuple(labels.split()) if isinstance(labels, str) else labels
    return Metric(PREFIX + name, kind, names, help_, producer)


PROBE_METRICS: tuple[Metric, ...] = (
    _m("probe_probes_total", "counter", (*PAIR, "outcome"), "Settled probes by outcome.", "probes"),
    _m("probe_rtt_seconds", "histogram", PAIR, "Round-trip time of answered probes.", "probes"),
    _m("probe_ipdv_seconds", "summary", PAIR, "Absolute difference of consecutive round-trip times.", "probes"),
    _m("probe_rtt_min_seconds", "gauge", PAIR, "Smallest round-trip time of the last 60 s.", "probes"),
    _m("probe_duplicates_total", "counter", PAIR, "Replies received more than once.", "probes"),
    _m("probe_reordered_total", "counter", PAIR, "Replies whose reflector sequence went back.", "probes"),
    _m("probe_flow_loss_ratio_max", "gauge", PAIR, "Loss of the worst flow in the last 60 s.", "probes"),
    _m("probe_last_ok_timestamp_seconds", "gauge", PAIR, "When the last good reply came.", "probes"),
    _m("probe_last_sent_timestamp_seconds", "gauge", PAIR, "When the last probe was sent.", "probes"),
    _m("probe_target_info", "info", "src_cluster dst_cluster proto dst_region dst_addr flows",
       "A target and its address.", "probes"),
    _m("probe_reflector_packets_total", "counter", "src_cluster result", "Packets seen by the reflector.", "probes"),
    _m("probe_loop_lag_seconds", "histogram", "", "How late the probe's own loop runs.", "probes"),
    _m("probe_socket_drops_total", "counter", "", "Packets dropped at the own socket.", "probes"),
    _m("probe_clock_steps_total", "counter", "", "Steps of the wall clock seen.", "probes"),
    _m("probe_kernel_timestamps_missing_total", "counter", "", "Packets without a kernel time stamp.", "probes"),
    _m("probe_targets", "gauge", "", "Targets in the configuration in force.", "probes"),
    _m("probe_config_last_reload_successful", "gauge", "", "1 if the last reload worked.", "probes"),
    _m("probe_config_last_reload_success_timestamp_seconds", "gauge", "", "When a reload last worked.", "probes"),
    _m("probe_sick", "gauge", "src_cluster", "1 while the agent distrusts itself; its paths are unknown.", "probes"),
    _m("probe_active", "gauge", "", "1 while the agent probes, 0 while it only reflects.", "probes"),
    _m("probe_reached", "gauge", "", "1 while probes of peers arrive, 0 while they answer but don't arrive.", "probes"),
    _m("probe_build_info", "info", "version", "Version of the probe.", "probes"),
    _m("probe_self_rtt_seconds", "gauge", "", "Round-trip time to the own loopback reflector.", "probes"),
)  # fmt: skip

CONTROLLER_METRICS: tuple[Metric, ...] = (
    _m("cycle_duration_seconds", "histogram", "phase", "Time spent in each phase of a cycle.", "cycle"),
    _m("cycles_total", "counter", "outcome", "Cycles by outcome: ok, partial, failed, skipped.", "cycle"),
    _m("last_cycle_timestamp_seconds", "gauge", "", "When the last cycle ended.", "service"),
    _m("leader", "gauge", "", "1 while this process holds the lease.", "service"),
    _m("acting", "gauge", "", "1 while the controller may act, 0 while it only observes.", "service"),
    _m("paused", "gauge", "", "1 while everything is paused.", "service"),
    _m("schedule_missed_total", "counter", "job cause", "Runs missed: misfire, overlap, error.", "service"),
    _m("decision_latency_seconds", "histogram", "action", "First sight of the need until the replica is ready.",
       "moves"),
    _m("view_completeness", "gauge", "cluster state", "1 for the state in force of a cluster's view.", "telemetry"),
    _m("view_age_seconds", "gauge", "cluster signal", "Age of demand, room and network data.", "telemetry"),
    _m("queries_total", "counter", "backend outcome", "Queries sent to a backend by outcome.", "telemetry"),
    _m("query_duration_seconds", "histogram", "backend outcome", "Duration of queries.", "telemetry"),
    _m("region_info", "info", "region latitude longitude", "A region and where it is.", "exporter"),
    _m("cluster_info", "info", "cluster region provider version", "A member cluster.", "kubernetes"),
    _m("cluster_sight", "gauge", "cluster region", "Ready 1, suspect 0.5, lost 0.", "kubernetes"),
    _m("cluster_room", "gauge", "cluster resource", "What still fits, cores or bytes.", "room"),
    _m("cluster_capacity", "gauge", "cluster resource", "What is allocatable, cores or bytes.", "room"),
    _m("cluster_storage_room_bytes", "gauge", "cluster", "Storage that still fits.", "room"),
    _m("cluster_taint", "gauge", "cluster key value effect", "1 while the taint is in force.", "network"),
    _m("link_rtt_seconds", "gauge", "src_cluster dst_cluster source", "Round-trip time in the latency map.", "network"),
    _m("link_loss_ratio", "gauge", "src_cluster dst_cluster", "Loss in the latency map.", "network"),
    _m("link_state", "gauge", "src_cluster dst_cluster state", "1 for the state in force of a pair.", "network"),
    _m("demand", "gauge", "workload origin", "Offered load, requests/s or cores.", "telemetry"),
    _m("forecast_demand", "gauge", "workload origin quantile horizon", "Forecast demand.", "forecast"),
    _m("forecast_scaled_error_mean", "gauge", "workload", "Error of a day over the naive forecast's.", "forecast"),
    _m("forecast_coverage_ratio", "gauge", "workload", "Share of the last day under the 95 % quantile.", "forecast"),
    _m("forecast_trusted", "gauge", "workload", "1 while the forecast is trusted.", "forecast"),
    _m("forecast_age_seconds", "gauge", "workload", "Age of the newest sample behind the forecast.", "forecast"),
    _m("forecast_refits_total", "counter", "outcome", "Refits of the forecaster.", "forecast"),
    _m("capacity_per_replica", "gauge", "workload", "Demand units one ready replica serves at target.", "scaling"),
    _m("start_delay_seconds", "gauge", "workload", "Created to ready.", "scaling"),
    _m("replicas", "gauge", "workload cluster state", "Replicas: ready, wanted, planned, in_flight.", "cycle"),
    _m("served_latency_seconds", "gauge", "workload", "Traffic-weighted latency.", "placement"),
    _m("plan_actions", "gauge", "kind", "Actions of the last plan.", "placement"),
    _m("plan_gap_ratio", "gauge", "", "Distance of the last plan to its bound.", "placement"),
    _m("plan_cost_dollars_per_hour", "gauge", "term", "Cost of the last plan by term.", "placement"),
    _m("actions_total", "counter", "kind reason outcome", "Actions carried out.", "cycle"),
    _m("refusals", "gauge", "reason", "Refusals of the last plan.", "cycle"),
    _m("moves_in_flight", "gauge", "workload", "Moves under way.", "moves"),
    _m("budget_remaining", "gauge", "workload", "Replicas that may still move this hour.", "moves"),
    _m("apply_conflicts_total", "counter", "cluster verb outcome", "Writes that met a conflict.", "kubernetes"),
    _m("api_requests_total", "counter", "cluster verb outcome", "Requests to member API servers.", "kubernetes"),
    _m("traffic_weight", "gauge", "workload origin cluster", "Wanted share of an origin's traffic.", "traffic"),
    _m("rollout_phase", "gauge", "rollout cluster phase", "1 for the phase in force.", "rollout"),
    _m("rollout_weight", "gauge", "rollout cluster", "Share of traffic on the canary.", "rollout"),
    _m("rollout_evidence", "gauge", "rollout cluster kind", "Log evidence, kind bad or good.", "rollout"),
    _m("rollouts_total", "counter", "outcome", "Ended rollouts.", "rollout"),
    _m("rollback_duration_seconds", "histogram", "", "First bad request seen until traffic is back.", "rollout"),
    _m("build_info", "info", "version", "Version of the controller.", "exporter"),
)  # fmt: skip

METRICS: dict[str, Metric] = {m.name: m for m in (*PROBE_METRICS, *CONTROLLER_METRICS)}

_P = "pair:rebalancer_probe_"
RECORDED: dict[str, Recorded] = {
    r.name: r
    for r in (
        Recorded(_P + "samples:increase2m", PAIR, "Probes of the last 2 min that say something about the path."),
        Recorded(_P + "loss:ratio2m", PAIR, "Loss over 2 min, settled probes only."),
        Recorded(_P + "loss_forward:ratio2m", PAIR, "Loss on the way out over 2 min."),
        Recorded(_P + "refused:increase2m", PAIR, "Probes of the last 2 min whose host says that no process listens."),
        Recorded(_P + "send_errors:increase2m", PAIR, "Probes of the last 2 min that the own host could not send."),
        Recorded(_P + "rtt_seconds:mean2m", PAIR, "Mean round-trip time over 2 min."),
        Recorded(_P + "rtt_seconds:p50_2m", PAIR, "Median round-trip time over 2 min."),
        Recorded(_P + "rtt_seconds:p99_2m", PAIR, "99th percentile of the round-trip time over 2 min."),
        Recorded(_P + "jitter_seconds:mean2m", PAIR, "Mean jitter over 2 min."),
        Recorded(_P + "last_ok_age_seconds:min", PAIR, "Age of the last good reply."),
    )
}


def metric(short: str) -> Metric:
    """Returns the metric `rebalancer_<short>`.

    Raises:
        KeyError: the catalogue has no such name; add it here and in the README table.
    """
    return METRICS[PREFIX + short]
