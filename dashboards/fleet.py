"""The board `global`: the fleet, its demand, what the rebalancer does about it and what it refuses."""

from __future__ import annotations

from dashboards.panels import Panel, Query, board, stat, variable
from rebalancer.catalog import metric

CLUSTER = 'cluster=~"$cluster"'
WORKLOAD = 'workload=~"$workload"'


def _m(short: str) -> str:
    return metric(short).name


def _lines(title: str, description: str, unit: str, *queries: Query) -> Panel:
    return Panel("timeseries", title, description, queries, unit)


def headline() -> list[Panel]:
    """Returns the row of numbers."""
    age = f"time() - max({_m('last_cycle_timestamp_seconds')})"
    incomplete = f'sum(max by (cluster, state) ({_m("view_completeness")}{{state!="complete"}}))'
    return [
        stat("Clusters in sight", "Clusters whose API answers; others keep their last state.",
             f"count(max by (cluster) ({_m('cluster_sight')}) == 1)"),
        stat("Views incomplete", "Clusters whose metrics are partial, stale or failed: nothing is decreased there.",
             incomplete, thresholds=((None, "green"), (1, "orange"))),
        stat("Last cycle", "How long ago a reconcile cycle ended.", age, unit="s",
             thresholds=((None, "green"), (180, "orange"), (300, "red"))),
        stat("Acting", "1: the rebalancer may act. 0: it only observes.", f"max({_m('acting')})",
             defaults={"mappings": [{"type": "value", "options": {"0": {"text": "observing", "index": 0},
                                                                  "1": {"text": "acting", "index": 1}}}]}),
        stat("Moves in flight", "Replicas that are on their way between clusters.", f"sum({_m('moves_in_flight')})"),
        stat("Refusals", "Wanted changes that the last plan refused; the reasons are below.", f"sum({_m('refusals')})"),
    ]  # fmt: skip


def places() -> list[Panel]:
    """Returns the map and the table of clusters."""
    per_region = f"count by (region) (max by (cluster, region) ({_m('cluster_sight')}) > 0)"
    geomap = f"{per_region} * on (region) group_right () max by (region, latitude, longitude) ({_m('region_info')})"
    convert = [{"targetField": name, "destinationType": "number"} for name in ("latitude", "longitude")]
    return [
        Panel(
            "geomap",
            "Regions",
            "Clusters in sight per region. A region without coordinates is not drawn.",
            [Query(geomap, instant=True)],
            height=11,
            options={
                "basemap": {"type": "default", "name": "Basemap"},
                "view": {"id": "zero", "lat": 20, "lon": 0, "zoom": 1},
                "controls": {"showZoom": True, "mouseWheelZoom": False, "showAttribution": True},
                "layers": [{
                    "type": "markers", "name": "Regions", "tooltip": True,
                    "location": {"mode": "coords", "latitude": "latitude", "longitude": "longitude"},
                    "config": {
                        "style": {"size": {"fixed": 8, "min": 4, "max": 20, "field": "Value"}}, "showLegend": False,
                    },
                }],
            },
            transformations=[{"id": "convertFieldType", "options": {"conversions": convert, "fields": {}}}],
        ),
        Panel(
            "table",
            "Clusters",
            "Sight: 1 ready, 0.5 suspect, 0 lost. Room is what still fits, in cores.",
            [
                Query(f"max by (cluster, region) ({_m('cluster_sight')}{{{CLUSTER}}})", instant=True),
                Query(f'max by (cluster) ({_m("cluster_room")}{{{CLUSTER},resource="cpu"}})', instant=True),
                Query(f"max by (cluster, key, value) ({_m('cluster_taint')}{{{CLUSTER}}}) > 0", instant=True),
            ],
            height=11,
            options={"showHeader": True, "cellHeight": "sm"},
            custom={"align": "auto", "cellOptions": {"type": "auto"}},
            transformations=[{"id": "merge", "options": {}}],
        ),
    ]  # fmt: skip


def workloads() -> list[Panel]:
    """Returns demand, forecast, replicas and latency."""
    forecast = f'sum by (workload, quantile) ({_m("forecast_demand")}{{{WORKLOAD},origin="*"}})'
    return [
        _lines("Demand and its forecast", "Demand now, and the forecast band over the lead time.", "short",
               Query(f"sum by (workload) ({_m('demand')}{{{WORKLOAD}}})", "{{workload}}"),
               Query(forecast, "{{workload}} forecast q{{quantile}}")),
        _lines("Demand by origin", "Where the users are.", "short",
               Query(f"sum by (origin) ({_m('demand')}{{{WORKLOAD}}})", "{{origin}}")),
        _lines("Replicas", "Ready, wanted and in flight.", "short",
               Query(f'sum by (workload, cluster) ({_m("replicas")}{{{WORKLOAD},{CLUSTER},state="ready"}})',
                     "{{workload}} in {{cluster}}"),
               Query(f'sum by (workload) ({_m("replicas")}{{{WORKLOAD},{CLUSTER},state="wanted"}})',
                     "{{workload}} wanted")),
        _lines("Served latency", "Traffic-weighted network latency of each workload.", "s",
               Query(f"max by (workload) ({_m('served_latency_seconds')}{{{WORKLOAD}}})", "{{workload}}")),
    ]  # fmt: skip


def decisions() -> list[Panel]:
    """Returns what the rebalancer did and refused, and how its cycle runs."""
    cycle = f"sum by (le, phase) (rate({_m('cycle_duration_seconds')}_bucket[$__rate_interval]))"
    return [
        _lines("Actions", "Carried out, by kind and outcome.", "cps",
               Query(f"sum by (kind, outcome) (rate({_m('actions_total')}[$__rate_interval]))",
                     "{{kind}} {{outcome}}")),
        _lines("Refusals by reason", "`rebalancer explain` names the workload and the next step.", "short",
               Query(f"sum by (reason) ({_m('refusals')})", "{{reason}}")),
        _lines("Cycle duration, 95th percentile", "By phase.", "s",
               Query(f"histogram_quantile(0.95, {cycle})", "{{phase}}")),
        _lines("Cycles", "By outcome.", "cps",
               Query(f"sum by (outcome) (rate({_m('cycles_total')}[$__rate_interval]))", "{{outcome}}")),
        Panel(
            "state-timeline",
            "Canary rollouts",
            "The phase in force of each rollout.",
            [Query(f"max by (rollout, cluster, phase) ({_m('rollout_phase')}{{{CLUSTER}}}) == 1",
                   "{{rollout}} {{cluster}} {{phase}}")],
            options={"mergeValues": True, "showValue": "never", "alignValue": "left", "rowHeight": 0.9,
                     "legend": {"displayMode": "list", "placement": "bottom", "showLegend": False},
                     "tooltip": {"mode": "single", "sort": "none"}},
            custom={"fillOpacity": 70, "lineWidth": 0},
        ),
        _lines("Age of the view", "How old the data are that decisions stand on.", "s",
               Query(f"max by (cluster, signal) ({_m('view_age_seconds')}{{{CLUSTER}}})", "{{cluster}} {{signal}}")),
    ]  # fmt: skip


def global_board() -> str:
    """Returns the JSON of the board."""
    return board(
        "rebalancer-global",
        "Rebalancer / Global",
        "The fleet at a glance: who is in sight, where demand is, what is moved, and what is refused and why.",
        [
            variable("cluster", f"label_values({_m('cluster_sight')}, cluster)", "Cluster"),
            variable("workload", f"label_values({_m('replicas')}, workload)", "Workload"),
        ],
        [("Now", headline()), ("Fleet", places()), ("Workloads", workloads()), ("Decisions", decisions())],
    )
