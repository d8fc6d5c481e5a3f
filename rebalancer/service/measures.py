"""From reports to metrics: names of the catalogue, values as they were seen. What is unknown is not exported."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from rebalancer import __version__
from rebalancer.adapters.exporter import Exporter, Labels
from rebalancer.catalog import COMPLETENESS
from rebalancer.core import moves
from rebalancer.core.model import TOTAL, Demand, Sight
from rebalancer.core.policy import Policy
from rebalancer.core.reasons import REASONS
from rebalancer.cycle import CycleReport
from rebalancer.rollouts import TickReport

Values = list[tuple[Labels, float]]
SIGHT = {Sight.READY: 1.0, Sight.SUSPECT: 0.5, Sight.LOST: 0.0}
QUALITY_STATES = ("ok", "lossy", "peer_down", "cluster_down", "path_down", "uplink_down", "udp_blocked",
                  "maintenance", "unknown")  # fmt: skip


def begin(exporter: Exporter, *, acting: bool) -> None:
    """Creates what must exist before its first event."""
    exporter.set("build_info", 1.0, {"version": __version__})
    exporter.set("acting", float(acting))
    for outcome in ("ok", "partial", "failed", "skipped"):
        exporter.add("cycles_total", {"outcome": outcome}, 0.0)
    for outcome in ("completed", "rolled_back", "aborted", "superseded"):
        exporter.add("rollouts_total", {"outcome": outcome}, 0.0)
    for job in ("cycle", "cron", "rollouts"):
        for cause in ("misfire", "overlap", "error"):
            exporter.add("schedule_missed_total", {"job": job, "cause": cause}, 0.0)


def _finite(values: Iterable[tuple[Labels, float]]) -> Values:
    return [(labels, value) for labels, value in values if math.isfinite(value)]


def of_cycle(exporter: Exporter, report: CycleReport, policies: dict[str, Policy]) -> None:
    """Exports one cycle."""
    plan, snapshot, now = report.plan, report.snapshot, report.at_s
    for phase, seconds in report.durations_s.items():
        exporter.observe("cycle_duration_seconds", seconds, {"phase": phase})
    exporter.add("cycles_total", {"outcome": report.outcome})
    exporter.set("last_cycle_timestamp_seconds", now)
    exporter.replace("view_completeness", [
        ({"cluster": c, "state": s}, float(v.state == s)) for c, v in snapshot.views.items() for s in COMPLETENESS
    ])  # fmt: skip
    exporter.replace("view_age_seconds", [
        ({"cluster": c, "signal": "demand"}, max(0.0, now - v.since_s) if not v.complete else 0.0)
        for c, v in snapshot.views.items() if v.since_s is not None
    ])  # fmt: skip
    _clusters(exporter, report)
    _network(exporter, report)
    _workloads(exporter, report, policies)
    exporter.replace(
        "plan_actions", [({"kind": k}, float(n)) for k, n in Counter(a.kind for a in plan.actions).items()]
    )
    if math.isfinite(plan.gap_ratio):
        exporter.set("plan_gap_ratio", plan.gap_ratio)
    cost: Counter[str] = Counter()
    for item in plan.workloads.values():
        cost.update(item.terms)
    exporter.replace("plan_cost_dollars_per_hour", _finite(({"term": t}, v) for t, v in cost.items()))
    refused = Counter(r.reason for r in plan.refusals)
    ids = [r.id for r in REASONS.values() if r.kind == "refuse"]
    exporter.replace("refusals", [({"reason": r}, float(refused.get(r, 0))) for r in ids])
    for done in report.done:
        labels = {"kind": done.action.kind, "reason": done.action.reason, "outcome": done.outcome.kind}
        exporter.add("actions_total", labels)
        if done.outcome.kind == "conflict":
            verb = type(done.step).__name__
            exporter.add("apply_conflicts_total", {"cluster": done.step.cluster, "verb": verb, "outcome": "conflict"})


def _clusters(exporter: Exporter, report: CycleReport) -> None:
    states = report.snapshot.clusters
    exporter.replace("cluster_info", [
        ({"cluster": n, "region": s.cluster.region, "provider": s.cluster.provider, "version": s.version}, 1.0)
        for n, s in states.items()
    ])  # fmt: skip
    exporter.replace("cluster_sight", [
        ({"cluster": n, "region": s.cluster.region}, SIGHT[report.plan.sight[n]]) for n, s in states.items()
    ])  # fmt: skip
    capacity, room = [], []
    for name, state in states.items():
        for resource, value in (("cpu", state.allocatable_cpu), ("memory", state.allocatable_memory)):
            capacity.append(({"cluster": name, "resource": resource}, value))
        if isinstance(state.nodes, tuple):
            room.append(({"cluster": name, "resource": "cpu"}, sum(n.free_cpu for n in state.nodes)))
            room.append(({"cluster": name, "resource": "memory"}, sum(n.free_memory for n in state.nodes)))
    exporter.replace("cluster_capacity", _finite(capacity))
    exporter.replace("cluster_room", _finite(room))
    exporter.replace("cluster_taint", [
        ({"cluster": c, "key": t.key, "value": t.value, "effect": t.effect.value}, 1.0)
        for c, taints in report.plan.taints.items() for t in taints
    ])  # fmt: skip


def _network(exporter: Exporter, report: CycleReport) -> None:
    rtt: Values = []
    loss: Values = []
    state: Values = []
    for (src, dst), cell in report.snapshot.network.cells.items():
        pair = {"src_cluster": src, "dst_cluster": dst}
        if cell.rtt_mean_s is not None:
            rtt.append(({**pair, "source": cell.source}, cell.rtt_mean_s))
        if cell.loss is not None:
            loss.append((pair, cell.loss))
        state += [({**pair, "state": s}, float(s == cell.state)) for s in QUALITY_STATES]
    exporter.replace("link_rtt_seconds", _finite(rtt))
    exporter.replace("link_loss_ratio", _finite(loss))
    exporter.replace("link_state", state)


def _workloads(exporter: Exporter, report: CycleReport, policies: dict[str, Policy]) -> None:
    plan, snapshot, now = report.plan, report.snapshot, report.at_s
    demand, replicas, flying, budget = Values(), Values(), Values(), Values()
    for workload, placements in snapshot.placements.items():
        seen = snapshot.demand.get(workload)
        if isinstance(seen, Demand):
            demand.append(({"workload": workload, "origin": TOTAL}, seen.total))
            demand += [({"workload": workload, "origin": o}, v) for o, v in seen.by_origin.items()]
        item = plan.workloads.get(workload)
        for cluster, found in placements.items():
            labels = {"workload": workload, "cluster": cluster}
            replicas.append(({**labels, "state": "ready"}, float(found.ready)))
            replicas.append(({**labels, "state": "wanted"}, float(found.wanted)))
            if item is not None:
                replicas.append(({**labels, "state": "planned"}, float(item.planned.get(cluster, found.wanted))))
        flying.append(({"workload": workload}, float(len(moves.records(placements)))))
        policy = policies.get(snapshot.policies.get(workload, ""))
        if policy is not None:
            budget.append(({"workload": workload}, float(moves.budget_left(policy, placements, now))))
    exporter.replace("demand", _finite(demand))
    exporter.replace("replicas", replicas)
    exporter.replace("moves_in_flight", flying)
    exporter.replace("budget_remaining", budget)
    items = plan.workloads
    exporter.replace("capacity_per_replica", _finite(({"workload": w}, i.capacity) for w, i in items.items()))
    exporter.replace("start_delay_seconds", _finite(({"workload": w}, i.start_delay_s) for w, i in items.items()))
    exporter.replace(
        "served_latency_seconds", _finite(({"workload": w}, i.latency_ms / 1000.0) for w, i in items.items())
    )
    _forecast(exporter, report)


def _forecast(exporter: Exporter, report: CycleReport) -> None:
    forecast = report.forecast
    bands, trusted, age, coverage, error = Values(), Values(), Values(), Values(), Values()
    for row, (workload, origin) in enumerate(forecast.keys):
        if workload not in report.snapshot.placements:
            continue
        for q, quantile in enumerate(forecast.quantiles):
            labels = {"workload": workload, "origin": origin, "quantile": f"{quantile:g}",
                      "horizon": f"{forecast.horizons_s[0]:g}"}  # fmt: skip
            bands.append((labels, float(forecast.bands[row, 0, q])))
        if origin == TOTAL:
            trusted.append(({"workload": workload}, float(forecast.trusted[row])))
            age.append(({"workload": workload}, float(forecast.age_s[row])))
            coverage.append(({"workload": workload}, float(forecast.coverage_ratio[row])))
            error.append(({"workload": workload}, float(forecast.scaled_error[row])))
    exporter.replace("forecast_demand", _finite(bands))
    exporter.replace("forecast_trusted", trusted)
    exporter.replace("forecast_age_seconds", _finite(age))
    exporter.replace("forecast_coverage_ratio", _finite(coverage))
    exporter.replace("forecast_scaled_error_mean", _finite(error))
    for outcome, count in forecast.refits.items():
        exporter.add("forecast_refits_total", {"outcome": outcome}, float(count))


def of_tick(exporter: Exporter, report: TickReport) -> None:
    """Exports one tick of the rollouts."""
    families: dict[str, Values] = {"rollout_phase": [], "rollout_weight": [], "rollout_evidence": []}
    for measure in report.measures:
        families.setdefault(measure.name, []).append((measure.labels, measure.value))
    for name, values in families.items():
        exporter.replace(name, _finite(values))
    for one in report.rollouts:
        if one.ended:
            exporter.add("rollouts_total", {"outcome": one.ended})
        if one.rollback_s is not None:
            exporter.observe("rollback_duration_seconds", one.rollback_s)
