"""From the solver's answer to actions: scale first, then the moves that pay, each within its budget."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass

from rebalancer.core import moves
from rebalancer.core.model import Action, MoveKind, MoveRecord, Placement, SetReplicas
from rebalancer.core.placement import (
    AMORTISATION_H,
    MOVE_DOLLARS,
    REMOVE_DOLLARS,
    SHORTFALL_DOLLARS,
    SPREAD_DOLLARS,
    UNSERVED_DOLLARS,
    Item,
    Placed,
    evaluate,
    shortfall,
)
from rebalancer.core.planning.draft import Draft
from rebalancer.core.planning.ground import Ground
from rebalancer.core.policy import resolve_count

FORCED = frozenset({"drain", "taint-no-execute", "residency"})
DRIFT_RATIO = "10%"
"""A drift takes at most this share of a workload's replicas in one step, so that its effect is seen before the next."""


def terms(item: Item, draft: Draft, placed: Placed) -> dict[str, float]:
    """Cost of a placement in dollars per hour (or equivalents) by term.

    Args:
        item: what the solver was given.
        draft: the workload.
        placed: replicas and traffic.

    Returns:
        latency (with the distance to the data), cost (with data paid per replica), spread (with what is missed of
        the policy's bounds), unserved.
    """
    latency = sum(item.serve.get(k, 0.0) * v for k, v in placed.traffic.items())
    cost = sum(item.run.get(c, 0.0) * n for c, n in placed.replicas.items())
    peak = max(placed.replicas.values(), default=0)
    spread = draft.policy.weights.spread * SPREAD_DOLLARS * len(item.clusters) * peak
    spread += SHORTFALL_DOLLARS * shortfall(item, placed.replicas)
    unserved = UNSERVED_DOLLARS * max(0.0, placed.unserved - 1e-6)
    return {"latency": latency, "cost": cost, "spread": spread, "unserved": unserved}


def mean_ms(draft: Draft, traffic: Mapping[tuple[str, str], float]) -> float:
    """Traffic-weighted latency in ms of what is known; NaN if nothing is."""
    known = {k: v for k, v in traffic.items() if k in draft.distance}
    total = sum(known.values())
    return sum(draft.distance[k] * v for k, v in known.items()) / total if total > 0 else math.nan


@dataclass(frozen=True, slots=True)
class _Pair:
    """A candidate move and what it is worth."""

    source: str
    target: str
    replicas: int
    gain: float
    before_ms: float
    after_ms: float
    reason: str
    forced: bool


def scale(draft: Draft, target: Mapping[str, int]) -> tuple[list[Action], dict[str, int], dict[str, int]]:
    """Takes growth and shrinking out of the difference to the target.

    Args:
        draft: the workload.
        target: replicas by cluster as the solver wants them.

    Returns:
        (scale actions, additions left, removals left); what is left is exchanged by moves.
    """
    adds = {c: target[c] - n for c, n in draft.now.items() if target[c] > n}
    cuts = {c: n - target[c] for c, n in draft.now.items() if target[c] < n}
    current, wanted = sum(draft.now.values()), draft.wanted.replicas
    growth = max(0, min(wanted, sum(target.values())) - current)
    shrink = max(0, current - wanted)
    actions = []
    reason = draft.wanted.reason or "demand-up"
    if draft.lost and growth:
        reason = "failover"
    for cluster in sorted(adds, key=lambda c: (-adds[c], c)):
        step = min(adds[cluster], growth)
        if step:
            actions.append(_scale(draft, cluster, step, reason))
            growth, adds[cluster] = growth - step, adds[cluster] - step
    for cluster in sorted(cuts, key=lambda c: (c not in draft.leave, -cuts[c], c)):
        step = min(cuts[cluster], shrink)
        if step:
            actions.append(_scale(draft, cluster, -step, draft.wanted.reason or "demand-down"))
            shrink, cuts[cluster] = shrink - step, cuts[cluster] - step
    return actions, {c: n for c, n in adds.items() if n}, {c: n for c, n in cuts.items() if n}


def _scale(draft: Draft, cluster: str, change: int, reason: str) -> Action:
    before = draft.placements[cluster].wanted
    after = before + change
    text = f"{cluster} {before} -> {after}: {draft.demand:.4g} {draft.unit} at {draft.capacity:.4g} each"
    if not (math.isfinite(draft.demand) and math.isfinite(draft.capacity)):
        text = f"{cluster} {before} -> {after}: {draft.wanted.replicas} wanted in total"
    return Action("scale", draft.workload, (SetReplicas(cluster, before, after),), reason, text,
                  target=cluster, replicas=change)  # fmt: skip


def exchange(
    draft: Draft, item: Item, ground: Ground, base: Mapping[str, int], adds: Mapping[str, int], cuts: Mapping[str, int]
) -> list[Action]:
    """Begins the moves that pay, best first, within budgets; notes why the others wait.

    Args:
        draft: the workload.
        item: what the solver was given.
        ground: common ground.
        base: replicas by cluster after scaling.
        adds: cluster -> replicas that should come.
        cuts: cluster -> replicas that should go.
    """
    now, policy, settings = ground.snapshot.at_s, draft.policy, ground.settings.moves
    stuck = {c: n for c, n in cuts.items() if c in draft.leave}
    if not adds:
        for cluster, count in stuck.items():
            draft.refuse(
                "no-room", cluster, f"{count} replica(s) must leave ({draft.leave[cluster]}), but nowhere fits"
            )
        return []
    slots = policy.max_concurrent_moves - len(moves.records(draft.placements))
    left = moves.budget_left(policy, draft.placements, now)
    base_placed = evaluate(item, base)
    before = terms(item, draft, base_placed)
    adds, cuts = dict(adds), dict(cuts)
    result: list[Action] = []
    while adds and cuts:
        pairs = [
            _weigh(draft, item, base, base_placed, before, s, t, adds, cuts) for s in sorted(cuts) for t in sorted(adds)
        ]
        best = max(pairs, key=lambda p: (p.forced, p.gain))
        name = f"{best.replicas} replica(s) {best.source} -> {best.target}"
        reason = ""
        if not best.forced and best.gain <= 0:
            reason = "gain-too-small"
        elif slots - len(result) <= 0:
            reason = "move-in-flight"
        elif left <= 0 or (draft.policy.gang and left < best.replicas):
            reason = "move-budget"
        elif moves.timed_out(draft.placements, best.source, best.target, now):
            reason = "unschedulable"
        elif not best.forced and moves.cooling(draft.placements, best.source, best.target, now, settings):
            reason = "cool-down"
        elif any(best.source in (a.source, a.target) or best.target in (a.source, a.target) for a in result):
            reason = "move-in-flight"
        if reason:
            draft.refuse(reason, best.target, f"{name}, worth {best.gain:.3g} $/h")
        else:
            action = _begin(draft, best, min(best.replicas, left), now, base)
            result.append(action)
            left -= action.replicas
        for side, cluster in ((adds, best.target), (cuts, best.source)):
            side[cluster] -= best.replicas
            if side[cluster] <= 0:
                del side[cluster]
        if reason and len(draft.refusals) > 50:
            break
    return result


def _weigh(
    draft: Draft, item: Item, base: Mapping[str, int], base_placed: Placed, before: Mapping[str, float],
    source: str, target: str, adds: Mapping[str, int], cuts: Mapping[str, int],
) -> _Pair:  # fmt: skip
    """What one candidate move would be worth by itself."""
    total = sum(base.values())
    count = min(adds[target], cuts[source])
    forced = draft.leave.get(source, "") in FORCED
    if not forced and base[source] > count and not draft.policy.gang:
        count = min(count, resolve_count(DRIFT_RATIO, total, at_least=1))
    after_replicas = {**base, source: base[source] - count, target: base[target] + count}
    after_placed = evaluate(item, after_replicas)
    after = terms(item, draft, after_placed)
    moving = count * (MOVE_DOLLARS + REMOVE_DOLLARS) / AMORTISATION_H
    saved = {k: before[k] - after[k] for k in before}
    gain = sum(saved.values()) - moving
    return _Pair(
        source, target, count, gain, mean_ms(draft, base_placed.traffic), mean_ms(draft, after_placed.traffic),
        draft.leave[source] if forced else _reason(draft, saved), forced,
    )  # fmt: skip


def _reason(draft: Draft, saved: Mapping[str, float]) -> str:
    """Names the term that gains most."""
    if draft.policy.strategy == "Weighted":
        return "better-weighted"
    best = max(("latency", "cost", "spread"), key=lambda k: saved[k])
    if draft.policy.strategy == "DataLocality":
        return "closer-to-data"
    return {"latency": "closer-to-users", "cost": "cheaper", "spread": "spread"}[best]


def _begin(draft: Draft, pair: _Pair, count: int, now: float, base: Mapping[str, int]) -> Action:
    """The action that begins a move: intents first, then the target's replicas; numbers are those after scaling."""
    source, target = base[pair.source], base[pair.target]
    kind: MoveKind = "migrate" if pair.forced or count == source else "drift"
    key = f"{draft.workload}|{pair.source}|{pair.target}|{count}|{source}|{target}|{now:.3f}"
    record = MoveRecord(
        id=hashlib.sha256(key.encode()).hexdigest()[:10],
        kind=kind,
        source=pair.source,
        target=pair.target,
        replicas=count,
        source_before=source,
        target_before=target,
        reason=pair.reason,
        started_s=now,
        deadline_s=now + draft.policy.move_timeout_s,
    )
    text = f"{count} replica(s) {pair.source} -> {pair.target}"
    if math.isfinite(pair.before_ms) and math.isfinite(pair.after_ms):
        text += f": traffic-weighted latency {pair.before_ms:.1f} -> {pair.after_ms:.1f} ms"
    text += f", gain {pair.gain:.3g} $/h" if not pair.forced else f" ({pair.reason})"
    return Action(kind, draft.workload, moves.begin(record, draft.scene), pair.reason, text,
                  gain=pair.gain, source=pair.source, target=pair.target, replicas=count)  # fmt: skip


def after(placements: Mapping[str, Placement], actions: list[Action]) -> dict[str, int]:
    """Replicas by cluster once the actions of this plan are written."""
    result = {c: p.wanted for c, p in placements.items()}
    for action in actions:
        for step in action.steps:
            if isinstance(step, SetReplicas):
                result[step.cluster] = step.replicas
    return result
