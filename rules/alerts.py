"""The twelve alerts, per component; each says what it means and what to do."""

from __future__ import annotations

from rebalancer.catalog import metric
from rules.model import Alert, Group
from rules.recording import LAST_OK_AGE, LOSS, REFUSED, SAMPLES

JOB = 'job=~".*rebalancer-probe.*"'
"""Scrape jobs of the probes; the only label that the alert on a vanished agent can go by."""


WANTED_REFUSALS = "paused|observe-only|cool-down|stabilising|gain-too-small|rollout-in-progress"
"""Refusals that the user asked for, or that are the planner's ordinary calm: no news however long they last."""


def _m(short: str) -> str:
    return metric(short).name


def probe_alerts() -> tuple[Alert, ...]:
    """Returns the alerts on the network and its probes."""
    loss_limit, enough = 0.05, 100
    return (
        Alert(
            name="RebalancerProbePacketLossHigh",
            # At 100 % it is LinkDown's turn; a hundred samples bound 5 % well enough for a person to look.
            expr=f"{LOSS} > {loss_limit} and {LOSS} < 1 and {SAMPLES} > {enough}",
            hold="2m",
            severity="warning",
            component="probe",
            summary="A path between two clusters loses packets.",
            description=(
                "{{ $value | humanizePercentage }} of the probes from {{ $labels.src_cluster }} to"
                " {{ $labels.dst_cluster }} ({{ $labels.proto }}) are lost. Compare"
                " pair:rebalancer_probe_loss_forward:ratio2m to see on which way, and the worst flow to see whether"
                " one of several parallel links is at fault."
            ),
        ),
        Alert(
            name="RebalancerProbeLinkDown",
            expr=f"({LOSS} == 1 or {REFUSED} > 0) and {LAST_OK_AGE} > 60",
            hold="1m",
            severity="critical",
            component="probe",
            summary="A path between two clusters gives no answer at all.",
            description=(
                "No probe from {{ $labels.src_cluster }} to {{ $labels.dst_cluster }} ({{ $labels.proto }}) was"
                " answered for more than a minute, though it worked before. Look at /debug/peers of the agent: it"
                " tells a dead peer process from a cut path."
            ),
        ),
        Alert(
            name="RebalancerProbeAgentDown",
            expr=f"up{{{JOB}}} == 0",
            hold="3m",
            severity="warning",
            component="probe",
            summary="A probe agent can't be scraped.",
            description=(
                "Prometheus gets no answer from {{ $labels.instance }}. Its cluster's links are unknown to the"
                " rebalancer meanwhile, not bad: nothing is moved because of it."
            ),
        ),
    )


def agent_alerts() -> tuple[Alert, ...]:
    """Returns the alerts on what a probe agent says of itself."""
    return (
        Alert(
            name="RebalancerProbeSick",
            expr=f"{_m('probe_sick')} == 1",
            hold="5m",
            severity="warning",
            component="probe",
            summary="A probe agent distrusts itself.",
            description=(
                "{{ $labels.instance }} in {{ $labels.src_cluster }} finds its own loopback, loop, socket or key at"
                " fault, so its paths count as unknown. Look at /debug/peers there: mostly its node lacks CPU, its own"
                " queues are full, or its keys_file is not that of the other clusters."
            ),
        ),
        Alert(
            name="RebalancerProbeNotReached",
            expr=f"{_m('probe_reached')} == 0",
            hold="10m",
            severity="warning",
            component="probe",
            summary="Probes of the other clusters do not arrive at an agent.",
            description=(
                "Peers answer {{ $labels.instance }}, but none of their probes arrives at it: the address of"
                " `advertise`, or of the target lists of the others, leads elsewhere, or a firewall is closed inwards."
                " `rebalancer-probe --print-firewall` prints what has to be open."
            ),
        ),
    )


def view_alerts() -> tuple[Alert, ...]:
    """Returns the alerts on the global view and the cycle."""
    cycle_age = f"time() - {_m('last_cycle_timestamp_seconds')}"
    failed = f'sum without (outcome) (increase({_m("cycles_total")}{{outcome="failed"}}[15m]))'
    every = f"sum without (outcome) (increase({_m('cycles_total')}[15m]))"
    return (
        Alert(
            name="RebalancerViewPartial",
            expr=f'max by (cluster, state) ({_m("view_completeness")}{{state=~"partial|stale|failed"}}) > 0',
            hold="5m",
            severity="warning",
            component="controller",
            summary="A cluster is missing from the global view, or seen in part only.",
            description=(
                "The view of cluster {{ $labels.cluster }} is {{ $labels.state }}. Nothing is decreased there"
                " until it is complete again. `rebalancer check` says what is missing."
            ),
        ),
        Alert(
            name="RebalancerCycleStalled",
            # A paused or following replica also ends its cycles; only the leader's silence is one.
            expr=f"({cycle_age}) > 300 and on (job, instance) {_m('leader')} == 1",
            hold="1m",
            severity="critical",
            component="controller",
            summary="The leader's reconcile cycle does not end.",
            description=(
                "The last cycle of {{ $labels.instance }} ended {{ $value | humanizeDuration }} ago. Look at"
                " /healthz and the log; a restart loses nothing."
            ),
        ),
        Alert(
            name="RebalancerCyclesFailing",
            expr=f"{failed} / ({every} > 0) > 0.5",
            hold="10m",
            severity="warning",
            component="controller",
            summary="More than half of the reconcile cycles fail.",
            description=(
                "{{ $value | humanizePercentage }} of the cycles of the last 15 minutes failed on"
                " {{ $labels.instance }}. Replicas stay as they are; the log names the failing phase."
            ),
        ),
        Alert(
            name="RebalancerRefusalsPersist",
            expr=(f'min_over_time({_m("refusals")}{{reason!~"' + WANTED_REFUSALS + '"}[30m]) > 0'),
            hold="30m",
            severity="info",
            component="controller",
            summary="The planner has refused for the same reason for an hour.",
            description=(
                "{{ $value }} wanted changes are refused with reason {{ $labels.reason }} and stay so."
                " `rebalancer explain` names the workloads and the next step."
            ),
        ),
    )


def move_alerts() -> tuple[Alert, ...]:
    """Returns the alerts on moves, rollouts and forecasts."""
    return (
        Alert(
            name="RebalancerMoveStuck",
            # min_over_time: one that ends and another that begins are not one that is stuck.
            expr=f"min_over_time({_m('moves_in_flight')}[15m]) > 0",
            hold="15m",
            severity="warning",
            component="controller",
            summary="A move of replicas does not end.",
            description=(
                "{{ $labels.workload }} has had moves in flight for half an hour. New replicas that do not become"
                " ready keep the old ones: no capacity is lost. Look at the pods in the destination cluster."
            ),
        ),
        Alert(
            name="RebalancerRolloutRolledBack",
            expr=f'sum without (instance) (increase({_m("rollouts_total")}{{outcome="rolled_back"}}[10m])) > 0',
            hold="0s",
            severity="warning",
            component="controller",
            summary="A canary rollout was rolled back.",
            description=(
                "A new revision failed its evidence test and traffic is back on the old one."
                " `rebalancer rollout get` shows the verdict; the revision is not tried again by itself."
            ),
        ),
        Alert(
            name="RebalancerForecastUntrusted",
            expr=f"max_over_time({_m('forecast_trusted')}[30m]) == 0",
            hold="30m",
            severity="info",
            component="controller",
            summary="A workload's forecast has not been trusted for an hour.",
            description=(
                "Demand of {{ $labels.workload }} is not forecast well enough; replicas follow today's level with"
                " more headroom. `rebalancer explain` says how the band came about."
            ),
        ),
    )


def alert_groups() -> tuple[Group, ...]:
    """Returns all alerts in groups that can be kept or dropped one by one."""
    return (
        Group("rebalancer-probe-alerts", "", (*probe_alerts(), *agent_alerts())),
        Group("rebalancer-view-alerts", "", view_alerts()),
        Group("rebalancer-move-alerts", "", move_alerts()),
    )
