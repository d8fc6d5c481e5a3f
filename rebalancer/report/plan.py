"""A plan as a table, as JSON and as an explanation. All three say the same."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from rebalancer.core.model import Action, Plan, Refusal, Sight, WorkloadPlan
from rebalancer.core.reasons import REASONS, words


def clock(at_s: float | None) -> str:
    """A time in UTC; `never` where there is none."""
    return "never" if at_s is None else datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def number(value: float, digits: int = 3) -> str:
    """A number, or `unknown` where it is not finite."""
    return f"{value:.{digits}g}" if math.isfinite(value) else "unknown"


def summary(plan: Plan) -> str:
    """The one line that says how much a plan would do."""
    up = sum(1 for a in plan.actions if a.kind == "scale" and a.replicas > 0)
    down = sum(1 for a in plan.actions if a.kind == "scale" and a.replicas < 0)
    moves = sum(1 for a in plan.actions if a.kind != "scale")
    touched = {a.workload for a in plan.actions}
    still = len(set(plan.workloads) - touched)
    return f"Plan: {up} up, {down} down, {moves} moves, {still} unchanged, {len(plan.refusals)} refusals."


def exit_code(plan: Plan) -> int:
    """0 nothing to do, 2 something to do, 3 nothing to do because something is not seen or refused."""
    if plan.actions:
        return 2
    unseen = any(s is not Sight.READY for s in plan.sight.values())
    blocked = (
        unseen
        or any(not v.complete for v in plan.views.values())
        or any(r.reason not in ("stabilising", "gain-too-small", "at-min") for r in plan.refusals)
    )
    return 3 if blocked else 0


def _grouped(refusals: tuple[Refusal, ...]) -> dict[tuple[str, str, str, str], int]:
    counts: dict[tuple[str, str, str, str], int] = {}
    for r in refusals:
        key = (r.workload, r.reason, r.cluster, r.detail)
        counts[key] = counts.get(key, 0) + 1
    return counts


def _placements(plan: Plan) -> Table:
    table = Table(title="Placements", title_justify="left", expand=False)
    for name in ("workload", "cluster", "now", "planned", "target", "note"):
        table.add_column(name, justify="right" if name in ("now", "planned", "target") else "left")
    for workload, item in plan.workloads.items():
        first = True
        for cluster in sorted(item.now):
            now, planned = item.now[cluster], item.planned.get(cluster, item.now[cluster])
            note = item.barred.get(cluster, "")
            change = f"{planned} ({planned - now:+d})" if planned != now else str(planned)
            style = "bold" if planned != now else ""
            cells = (workload if first else "", cluster, str(now), change, str(item.target.get(cluster, 0)), note)
            table.add_row(*map(Text, cells), style=style)
            first = False
    return table


def certainty(plan: Plan) -> list[str]:
    """How good the target surely is, and where another node would help most; nothing where it is unknown."""
    lines = []
    if plan.workloads and math.isfinite(plan.gap_ratio):
        lines.append(
            f"The target costs at most {100 * max(0.0, plan.gap_ratio):.2g} % more than the best there could be."
        )
    worth = sorted(((s.cpu_core, c) for c, s in plan.shadow.items() if s.cpu_core > 1e-6), reverse=True)
    if worth:
        told = ", ".join(f"{c} ({dollars:.3g} $/h per core)" for dollars, c in worth[:3])
        lines.append(f"Another node would help most in {told}.")
    return lines


def render(plan: Plan, errors: tuple[str, ...] = (), *, acting: bool = False) -> RenderableType:
    """Returns the plan for a terminal.

    Args:
        plan: the plan.
        errors: parts that could not be seen.
        acting: whether it is carried out.
    """
    mode = "acting" if acting else "observing only, nothing is changed"
    parts: list[RenderableType] = [Text(f"plan {plan.id} of {clock(plan.at_s)}, {mode}")]
    for cluster, view in sorted(plan.views.items()):
        if not view.complete:
            parts.append(
                Text(f"view of {cluster}: {view.state} since {clock(view.since_s)}: {view.detail}", "yellow")
            )  # fmt: skip
    parts += [Text(e, "yellow") for e in errors]
    parts.append(_placements(plan))
    for item in plan.workloads.values():
        parts.append(
            Text(
                f"{item.workload}: demand {number(item.demand, 4)} {item.unit}, {number(item.capacity, 4)} each, "
                f"{item.wanted} wanted; latency {number(item.latency_ms)} -> {number(item.target_latency_ms)} ms"
            )
        )  # fmt: skip
    if plan.actions:
        table = Table(title="Actions", title_justify="left")
        for name in ("kind", "workload", "reason", "what"):
            table.add_column(name)
        for action in plan.actions:
            table.add_row(*map(Text, (action.kind, action.workload, action.reason, action.explanation)))
        parts.append(table)
    grouped = _grouped(plan.refusals)
    if grouped:
        table = Table(title="Refusals", title_justify="left")
        for name in ("workload", "reason", "cluster", "detail"):
            table.add_column(name)
        for (workload, reason, cluster, detail), count in grouped.items():
            # As Text, because what others wrote may look like rich's markup.
            table.add_row(*map(Text, (workload, reason, cluster, f"{detail} (x{count})" if count > 1 else detail)))
        parts.append(table)
    parts += [Text(line) for line in certainty(plan)]
    parts.append(Text(summary(plan), "bold"))
    return Group(*parts)


def as_json(plan: Plan, errors: tuple[str, ...] = ()) -> str:
    """Returns the plan as JSON; unknown numbers are null."""
    body = {
        "id": plan.id,
        "at": clock(plan.at_s).replace(" ", "T"),
        "summary": summary(plan),
        "gapRatio": null(plan.gap_ratio),
        "views": {c: {"state": v.state, "since": clock(v.since_s), "detail": v.detail} for c, v in plan.views.items()},
        "sight": {c: s.value for c, s in plan.sight.items()},
        "taints": {c: [f"{t.key}={t.value}:{t.effect}" for t in ts] for c, ts in plan.taints.items() if ts},
        "workloads": {w: _workload(item) for w, item in plan.workloads.items()},
        "actions": [
            {"kind": a.kind, "workload": a.workload, "reason": a.reason, "explanation": a.explanation,
             "source": a.source, "target": a.target, "replicas": a.replicas, "gainDollarsPerHour": null(a.gain),
             "forced": a.forced, "why": _why(a)}
            for a in plan.actions
        ],
        "refusals": [
            {"workload": r.workload, "reason": r.reason, "cluster": r.cluster, "detail": r.detail,
             "nextStep": REASONS[r.reason].next_step}
            for r in plan.refusals
        ],
        "refusalCounts": dict(sorted(Counter(r.reason for r in plan.refusals).items())),
        "shadowDollarsPerHour": {
            c: {"cpuCore": s.cpu_core, "memoryGib": s.memory_gib, "addition": s.addition}
            for c, s in plan.shadow.items()
        },
        "errors": list(errors),
    }  # fmt: skip
    return json.dumps(body, indent=2, sort_keys=True, allow_nan=False)


def _why(action: Action) -> dict[str, Any] | None:
    if action.why is None:
        return None
    return {
        "terms": {k: null(v) for k, v in action.why.terms.items()},
        "binding": action.why.binding,
        "room": null(action.why.room),
        "alternatives": [
            {"cluster": a.cluster, "gainDollarsPerHour": null(a.gain), "reason": a.reason}
            for a in action.why.alternatives
        ],
    }


def null(value: float) -> float | None:
    """A number for JSON; null where it is not finite."""
    return float(value) if math.isfinite(value) else None


def _workload(item: WorkloadPlan) -> dict[str, Any]:
    return {
        "policy": item.policy,
        "now": dict(item.now),
        "planned": dict(item.planned),
        "target": dict(item.target),
        "wanted": item.wanted,
        "demand": null(item.demand),
        "unit": item.unit,
        "capacityPerReplica": null(item.capacity),
        "latencyMs": null(item.latency_ms),
        "targetLatencyMs": null(item.target_latency_ms),
        "termsNow": {k: null(v) for k, v in item.terms_now.items()},
        "termsTarget": {k: null(v) for k, v in item.terms.items()},
        "barred": dict(item.barred),
        "lines": list(item.lines),
    }


def explain(plan: Plan, workload: str) -> list[str]:
    """Says why a plan does what it does with one workload, a line each.

    Raises:
        KeyError: the plan knows no such workload.
    """
    refusals = [r for r in plan.refusals if r.workload == workload]
    if workload not in plan.workloads and not refusals:
        raise KeyError(workload)
    lines = [f"{workload} in plan {plan.id} of {clock(plan.at_s)}"]
    item = plan.workloads.get(workload)
    if item is not None:
        lines += _picture(item)
    for action in (a for a in plan.actions if a.workload == workload):
        lines.append(f"does: {action.kind} {action.explanation}")
        lines.append(f"  because {action.reason}: {words(action.reason)}")
        lines += _reasons(action)
    for (_, reason, cluster, detail), count in _grouped(tuple(refusals)).items():
        where = f" in {cluster}" if cluster else ""
        times = f" (x{count})" if count > 1 else ""
        lines.append(f"does not{where}: {reason}" + (f" ({detail})" if detail else "") + times)
        lines.append(f"  {words(reason)}")
    return lines


WHY_NOT = {
    "gains-less": "gains less",
    "room-wanted": "others pay more for its room",
    "target-in-steps": "the plan goes there later",
}
BINDING = {
    "move-budget": "the hourly move budget",
    "drift-step": "one step of a drift at a time",
    "room": "the room there",
    "target-reached": "nothing: the target is reached with it",
}


def _reasons(action: Action) -> list[str]:
    """The gain in its parts, what bounds the action, and where else the replicas could have gone."""
    if action.why is None:
        return []
    parts = ", ".join(f"{k} {v:+.4f}" for k, v in action.why.terms.items() if abs(v) > 5e-5)
    name = f"forced ({action.reason}), worth" if action.forced else "worth"
    lines = [f"  {name} {action.gain:+.4f} $/h: {parts or 'nothing'}"]
    if action.why.room > 1e-6:
        lines.append(f"  the room it takes is worth {action.why.room:.4f} $/h to others")
    lines.append(f"  bounded by {BINDING.get(action.why.binding, 'nothing')}")
    for other in action.why.alternatives:
        why = WHY_NOT.get(other.reason, other.reason)
        lines.append(f"  instead {other.cluster}: {other.gain:+.4f} $/h; not chosen: {why}")
    return lines


def _picture(item: WorkloadPlan) -> list[str]:
    lines = [f"policy {item.policy}", *item.lines]
    lines.append(
        f"one replica serves {number(item.capacity, 4)} {item.unit}; {item.wanted} replicas are wanted in total"
    )
    lines.append(
        f"traffic-weighted latency {number(item.latency_ms)} ms now, {number(item.target_latency_ms)} ms at the target"
    )
    for cluster in sorted(item.now):
        now, planned, target = item.now[cluster], item.planned.get(cluster, 0), item.target.get(cluster, 0)
        reason = item.barred.get(cluster, "")
        barred = f", nothing new: {reason}" if reason else ""
        if reason == "no-room" and max(planned, target) > now:
            barred = ", full until others have left"
        lines.append(f"  {cluster}: {now} now, {planned} planned, {target} at the target{barred}")
    lines += _terms("cost now", item.terms_now) + _terms("cost at the target", item.terms)
    return lines


def _terms(name: str, terms: Mapping[str, float]) -> list[str]:
    known = ", ".join(f"{k} {v:.4f}" for k, v in terms.items() if abs(v) > 5e-5)
    return [f"{name}, $/h or its equivalent: {known or 'none'}"]


def to_text(renderable: RenderableType, width: int = 140) -> str:
    """Renders without colour at a fixed width, for files and tests."""
    console = Console(width=width, no_color=True, force_terminal=False, legacy_windows=False)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


def without_observe_only(plan: Plan) -> Plan:
    """The plan as it would be carried out: without the refusals that only say that nobody acts."""
    return replace(plan, refusals=tuple(r for r in plan.refusals if r.reason != "observe-only"))
