"""From the solver's answer to actions: scale first, then the moves that pay, each within its budget."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from rebalancer.core import moves
from rebalancer.core.model import Action, MoveKind, MoveRecord, Placement, SetReplicas, Shadow
from rebalancer.core.placement import Item, Placed, evaluate
from rebalancer.core.planning.draft import Draft
from rebalancer.core.planning.ground import Ground
from rebalancer.core.planning.terms import mean_ms, move_dollars, terms
from rebalancer.core.planning.why import room_gain, why
from rebalancer.core.policy import resolve_count

FORCED = frozenset({"drain", "taint-no-execute", "residency"})
DRIFT_RATIO = "10%"
"""A drift takes at most this share of a workload's replicas in one step, so that its effect is seen before the next."""


@dataclass(frozen=True, slots=True)
class _Pair:
    """A candidate move, what it is worth, also to its workload alone, and who waits for the room that it leaves."""

    source: str
    target: str
    replicas: int
    gain: float
    before_ms: float
    after_ms: float
    reason: str
    forced: bool
    makes_room: str
    own: float


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
        if step and draft.now[cluster] + step < draft.policy.gang:
            # A part of it would do nothing; what stands elsewhere goes once it is not wanted any more.
            step = adds[cluster]
        if step:
            actions.append(_scale(draft, cluster, step, reason))
            growth, adds[cluster] = max(0, growth - step), adds[cluster] - step
    for cluster, step in _taken(draft, cuts, shrink).items():
        actions.append(_scale(draft, cluster, -step, draft.wanted.reason or "demand-down"))
        cuts[cluster] -= step
    return actions, {c: n for c, n in adds.items() if n}, {c: n for c, n in cuts.items() if n > 0}


def _taken(draft: Draft, cuts: Mapping[str, int], shrink: int) -> dict[str, int]:
    """Where a decrease takes replicas: first those that are not ready, though their cluster should keep some of them.

    The ready ones of the other clusters do their work meanwhile; the disruption budget would hold them back anyway.
    """
    unready = {c: max(0, draft.placements[c].wanted - draft.placements[c].ready) for c in cuts}
    taken = dict.fromkeys(cuts, 0)
    for most in (unready, cuts):
        for cluster in sorted(cuts, key=lambda c: (c not in draft.leave, -most[c], c)):
            step = min(max(0, most[cluster] - taken[cluster]), shrink)
            taken[cluster], shrink = taken[cluster] + step, shrink - step
    return {c: n for c, n in taken.items() if n}


def _scale(draft: Draft, cluster: str, change: int, reason: str) -> Action:
    before = draft.placements[cluster].wanted
    after = before + change
    if reason == "above-max":
        told = f"replicas.max is {draft.policy.max_replicas}"
    elif math.isfinite(draft.demand) and math.isfinite(draft.capacity):
        told = f"{draft.demand:.4g} {draft.unit} at {draft.capacity:.4g} each"
    else:
        told = f"{draft.wanted.replicas} wanted in total"
    text = f"{cluster} {before} -> {after}: {told}"
    return Action("scale", draft.workload, (SetReplicas(cluster, before, after),), reason, text,
                  target=cluster, replicas=change)  # fmt: skip


def exchange(
    draft: Draft, item: Item, ground: Ground, base: Mapping[str, int], adds: Mapping[str, int], cuts: Mapping[str, int],
    shadow: Mapping[str, Shadow],
) -> list[Action]:  # fmt: skip
    """Begins the moves that pay, best first, within budgets; notes why the others wait.

    Args:
        draft: the workload.
        item: what the solver was given.
        ground: common ground.
        base: replicas by cluster after scaling.
        adds: cluster -> replicas that should come.
        cuts: cluster -> replicas that should go.
        shadow: cluster -> what its room is worth.
    """
    now, policy = ground.snapshot.at_s, draft.policy
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
            _weigh(draft, item, base, base_placed, before, s, t, min(adds[t], cuts[s]), left)
            for s in sorted(cuts) for t in sorted(adds)
        ]  # fmt: skip
        best = max(pairs, key=lambda p: (p.forced, p.makes_room != "", p.gain))
        name = f"{best.replicas} replica(s) {best.source} -> {best.target}"
        reason = _held(draft, best, result, left, slots - len(result), ground)
        if reason:
            draft.refuse(reason, best.target, f"{name}, worth {best.gain:.3g} $/h")
        else:
            wanted = min(adds[best.target], cuts[best.source])
            told = why(draft, item, base, before, best.source, best.target, best.replicas, wanted, left, shadow)
            action = replace(_begin(draft, best, best.replicas, now, base), why=told)
            result.append(action)
            left -= action.replicas
        for side, cluster in ((adds, best.target), (cuts, best.source)):
            side[cluster] -= best.replicas
            if side[cluster] <= 0:
                del side[cluster]
        if reason and len(draft.refusals) > 50:
            break
    return result


def _held(draft: Draft, best: _Pair, begun: list[Action], left: int, slots: int, ground: Ground) -> str:
    """Why the best move does not begin now; empty if it does."""
    now = ground.snapshot.at_s
    if not best.forced and best.gain <= 0:
        return "gain-too-small"
    if slots <= 0:
        return "move-in-flight"
    if left <= 0 or (draft.policy.gang and left < best.replicas):
        return "move-budget"
    if moves.timed_out(draft.placements, best.source, best.target, now):
        return "unschedulable"
    each, settings = best.gain / best.replicas, ground.settings.moves
    if not best.forced and moves.cooling(draft.placements, best.source, best.target, each, now, settings):
        return "cool-down"
    if not best.forced and moves.unsettled(draft.placements, best.target, now):
        return "not-settled"
    if any(best.source in (a.source, a.target) or best.target in (a.source, a.target) for a in begun):
        return "move-in-flight"
    return ""


def _weigh(
    draft: Draft, item: Item, base: Mapping[str, int], base_placed: Placed, before: Mapping[str, float],
    source: str, target: str, count: int, left: int,
) -> _Pair:  # fmt: skip
    """What one candidate move of up to `count` replicas would be worth by itself, within what may still move."""
    total = sum(base.values())
    forced = draft.leave.get(source, "") in FORCED
    if not forced and base[source] > count and not draft.policy.gang:
        count = min(count, resolve_count(DRIFT_RATIO, total, at_least=1))
    if not draft.policy.gang:
        count = min(count, max(1, left))
    after_replicas = {**base, source: base[source] - count, target: base[target] + count}
    after_placed = evaluate(item, after_replicas)
    after = terms(item, draft, after_placed)
    saved = {k: before[k] - after[k] for k in before}
    gain = sum(saved.values()) - move_dollars(count)
    room, own = draft.makes_room.get(source), gain
    gain += room_gain(draft, source, count, own)
    makes_room = room.waiting if room else ""
    return _Pair(
        source, target, count, gain, mean_ms(draft, base_placed.traffic), mean_ms(draft, after_placed.traffic),
        draft.leave[source] if forced else "makes-room" if makes_room and own <= 0 else _reason(draft, saved), forced,
        makes_room, own,
    )  # fmt: skip


def _reason(draft: Draft, saved: Mapping[str, float]) -> str:
    """Names the term that gains most."""
    if draft.policy.strategy == "Weighted":
        return "better-weighted"
    gains = {"latency": saved["latency"], "cost": saved["cost"] + saved["egress"], "spread": saved["spread"]}
    best = max(gains, key=lambda k: gains[k])
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
        gain=0.0 if pair.forced else round(pair.gain / count, 6),
    )
    text = f"{count} replica(s) {pair.source} -> {pair.target}"
    if math.isfinite(pair.before_ms) and math.isfinite(pair.after_ms):
        text += f": traffic-weighted latency {pair.before_ms:.1f} -> {pair.after_ms:.1f} ms"
    text += f", gain {pair.own:.3g} $/h" if not pair.forced else f" ({pair.reason})"
    if pair.makes_room:
        text += f", and makes room for {pair.makes_room}"
        text += f", to whom it is worth {pair.gain - pair.own:.3g} $/h" if pair.gain - pair.own > 0 else ""
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
