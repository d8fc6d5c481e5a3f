"""From here to there: make-before-break moves that survive a kill at any point, within budgets and cool-downs.

A move is a record on both objects. Where it stands is read off the replicas, never remembered: source and target both
at their old numbers means begin, target up means wait and then cut the source, source down means done. All numbers are
absolute, so that a step done twice is a no-op.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass

from rebalancer.core.model import (
    Action,
    Demand,
    EndIntent,
    Moved,
    MoveRecord,
    Placement,
    PutIntent,
    Refusal,
    SetReplicas,
    Sight,
    Step,
    Unknown,
    View,
)
from rebalancer.core.policy import Policy, resolve_count

HOUR_S = 3600.0
FOLLOW_RATIO = 0.1
"""New replicas must get at least this share of the load of an average replica to count as followed by traffic."""
FOLLOW_AFTER_S = 120.0
"""Longest rate window that request counters are usually read with: after it, no traffic means no traffic."""
FOLLOW_BLOCK_S = 3600.0
SKEW_S = 60.0
"""How far two clocks may differ."""
REVERSE_RATIO = 2.0
"""A move that undoes another one during its cool-down must be worth so many times as much."""
SETTLE_S = 3600.0
FAILED = ("timed-out", "not-followed")
QUARANTINE_COUNT, QUARANTINE_S = 3, 21_600.0
"""So many failed moves in a row keep a workload back for as long as its objects remember them."""
NOT_FOLLOWED = "traffic-did-not-follow"


@dataclass(frozen=True, slots=True)
class MoveSettings:
    """Times of the move machine.

    Attributes:
        cool_down_s: how long what a move brought stays, and what it emptied is not filled again.
        follow_after_s: how long ready replicas may stay without traffic before the move is undone.
    """

    cool_down_s: float = 600.0
    follow_after_s: float = FOLLOW_AFTER_S


@dataclass(frozen=True, slots=True)
class Scene:
    """What the move machine needs to know of one workload.

    Attributes:
        placements: cluster -> placement.
        sight, views: by cluster.
        untouchable: clusters where nothing may be written, for example paused ones.
        forbidden: clusters that the workload has to leave.
        replicas: wanted in total; None if unknown.
    """

    policy: Policy
    placements: Mapping[str, Placement]
    demand: Demand | Unknown
    sight: Mapping[str, Sight]
    views: Mapping[str, View]
    untouchable: frozenset[str] = frozenset()
    forbidden: frozenset[str] = frozenset()
    replicas: int | None = None


def records(placements: Mapping[str, Placement]) -> dict[str, MoveRecord]:
    """Returns the moves in flight by id, from whatever object carries them."""
    found: dict[str, MoveRecord] = {}
    for placement in placements.values():
        record = placement.move
        # Where only one end was marked as not followed before a kill, the mark holds.
        if record is not None and (record.id not in found or record.reason == NOT_FOLLOWED):
            found[record.id] = record
    return found


def ended(placements: Mapping[str, Placement]) -> dict[str, Moved]:
    """Returns the ended moves by id, from whatever object remembers them."""
    return {m.id: m for p in placements.values() for m in p.moved}


def _recent(moved: Moved, now: float, span_s: float) -> bool:
    """Whether a move ended within the span; a time further ahead than clocks differ was not written by us."""
    return -SKEW_S <= now - moved.ended_s < span_s


def effective(placements: Mapping[str, Placement]) -> dict[str, int]:
    """Replicas by cluster as they will be when the moves in flight are through."""
    result = {c: p.wanted for c, p in placements.items()}
    for record in records(placements).values():
        source, target = placements.get(record.source), placements.get(record.target)
        if source is None or target is None or record.reason == NOT_FOLLOWED:
            continue  # one end is out of sight, so the move waits; or it is being undone
        if source.wanted == record.source_before:
            result[record.source] = record.source_before - record.replicas
        if target.wanted == record.target_before and not _cut(record, placements):
            result[record.target] = record.target_before + record.replicas
    return result


def _cut(record: MoveRecord, placements: Mapping[str, Placement]) -> bool:
    source = placements.get(record.source)
    return source is not None and source.wanted <= record.source_before - record.replicas


def budget_left(policy: Policy, placements: Mapping[str, Placement], now: float) -> int:
    """Replicas that may still begin to move within the rolling hour."""
    total = sum(p.wanted for p in placements.values())
    some = policy.max_moves_per_hour != 0 and resolve_count(policy.max_moves_per_hour, 1_000_000) > 0
    allowed = resolve_count(policy.max_moves_per_hour, total, at_least=1 if some else 0)
    used = sum(m.replicas for m in ended(placements).values() if _recent(m, now, HOUR_S))
    used += sum(r.replicas for r in records(placements).values())
    return max(0, allowed - used)


def cooling(
    placements: Mapping[str, Placement], source: str, target: str, gain: float, now: float, settings: MoveSettings
) -> bool:
    """Says whether a move ended a short time ago that brought replicas to `source`, or took some from `target`.

    Both ends cool down: a move on from where replicas just came, or into where they just left, undoes a decision as
    the plain reverse does, only by way of a third cluster. The same direction again is no reversal. A move that gains
    much more than what it undoes is no flapping: each next one would have to gain as much more again.

    Args:
        placements: of the workload, by cluster.
        source: where replicas would leave.
        target: where they would go.
        gain: what each replica's move would be worth, $/h.
        now: time.
        settings: how long ends cool down.
    """
    undone = [
        m for m in ended(placements).values()
        if (m.target == source or m.source == target) and _recent(m, now, settings.cool_down_s)
    ]  # fmt: skip
    return any(m.outcome != "done" or not m.gain > 0 or gain < REVERSE_RATIO * m.gain for m in undone)


def unsettled(placements: Mapping[str, Placement], target: str, now: float) -> bool:
    """Says whether a move ended in `target` within the last hour whose replicas are not all ready any more.

    A move counts by where replicas are ready, not by what was written: until they are, no more follow there.
    """
    place = placements.get(target)
    if place is None or place.ready >= place.wanted:
        return False
    return any(
        m.outcome == "done" and m.target == target and _recent(m, now, SETTLE_S) for m in ended(placements).values()
    )


def timed_out(placements: Mapping[str, Placement], source: str, target: str, now: float) -> bool:
    """Says whether the same move ended within the last hour because its new replicas did not become ready."""
    return any(
        m.outcome == "timed-out" and (m.source, m.target) == (source, target) and _recent(m, now, FOLLOW_BLOCK_S)
        for m in ended(placements).values()
    )


def quarantined(placements: Mapping[str, Placement], now: float) -> tuple[Moved, ...]:
    """Returns the failed moves for which the workload makes no voluntary one; empty if it may move.

    It is kept back once so many of its moves failed in a row; a move that was done begins the count anew.
    """
    recent = sorted((m for m in ended(placements).values() if _recent(m, now, QUARANTINE_S)), key=lambda m: m.ended_s)
    last_done = max((i for i, m in enumerate(recent) if m.outcome == "done"), default=-1)
    failed = tuple(m for m in recent[last_done + 1 :] if m.outcome in FAILED)
    return failed if len(failed) >= QUARANTINE_COUNT else ()


def not_followed(placements: Mapping[str, Placement], now: float) -> Moved | None:
    """Returns the newest move of the last hour whose new replicas got no traffic, if there is one."""
    found = [m for m in ended(placements).values() if m.outcome == "not-followed" and _recent(m, now, FOLLOW_BLOCK_S)]
    return max(found, key=lambda m: m.ended_s, default=None)


def follows(scene: Scene, cluster: str) -> bool | None:
    """Says whether traffic reaches the replicas of a cluster; None where nobody can tell.

    The load of a ready replica there is compared with the mean load of all ready replicas.
    """
    demand = scene.demand
    if isinstance(demand, Unknown) or demand.unit != "requests/s" or not demand.served:
        return None
    view = scene.views.get(cluster)
    if view is None or not view.complete or cluster in demand.missing:
        return None
    ready = {c: p.ready for c, p in scene.placements.items() if p.ready}
    if cluster not in ready or not math.isfinite(demand.total) or demand.total <= 0:
        return None
    here = sum(v for (_, c), v in demand.served.items() if c == cluster) / ready[cluster]
    return here >= FOLLOW_RATIO * demand.total / sum(ready.values())


def _end(record: MoveRecord, scene: Scene, now: float, outcome: str) -> tuple[Step, ...]:
    """Takes the intent off every object that carries it."""
    moved = Moved(
        record.id, now, record.source, record.target, record.replicas,
        outcome,  # type: ignore[arg-type]  # callers pass literals
        record.gain,
    )  # fmt: skip
    return tuple(
        EndIntent(cluster, record.id, moved)
        for cluster in (record.target, record.source)
        if (p := scene.placements.get(cluster)) is not None and p.move is not None and p.move.id == record.id
    )


def _action(record: MoveRecord, workload: str, steps: tuple[Step, ...], reason: str, text: str) -> Action:
    return Action(
        record.kind, workload, steps, reason, text,
        source=record.source, target=record.target, replicas=record.replicas,
    )  # fmt: skip


def advance(record: MoveRecord, scene: Scene, now: float, settings: MoveSettings) -> Action | Refusal:
    """Says what a move in flight needs now.

    Args:
        record: the intent.
        scene: the workload as observed.
        now: time.
        settings: times.

    Returns:
        The next steps, or why it waits.
    """
    source, target = scene.placements.get(record.source), scene.placements.get(record.target)
    workload = next(iter(scene.placements.values())).workload
    name = f"{record.replicas} replica(s) {record.source} -> {record.target}"
    for cluster, placement in ((record.source, source), (record.target, target)):
        if cluster not in scene.sight:
            return _action(record, workload, _end(record, scene, now, "cancelled"), "move-cancelled",
                           f"{name}: no MemberCluster is called {cluster} any more")  # fmt: skip
        if scene.sight.get(cluster) is not Sight.READY or cluster in scene.untouchable:
            reason = "cluster-suspect" if scene.sight.get(cluster) is not Sight.LOST else "cluster-lost"
            return Refusal(workload, reason, cluster, f"the move of {name} waits")
        if placement is None:
            return _action(record, workload, _end(record, scene, now, "cancelled"), "move-cancelled",
                           f"{name}: the workload is gone from {cluster}")  # fmt: skip
    assert source is not None and target is not None  # narrowed above
    goal_source, goal_target = record.source_before - record.replicas, record.target_before + record.replicas
    if source.wanted <= goal_source:
        return _action(record, workload, _end(record, scene, now, "done"), "finish-move", f"{name}: done")
    if source.wanted != record.source_before or target.wanted not in (record.target_before, goal_target):
        return _action(record, workload, _end(record, scene, now, "cancelled"), "move-cancelled",
                       f"{name}: somebody else set {source.wanted} in {record.source}, "
                       f"{target.wanted} in {record.target}")  # fmt: skip
    if target.wanted == record.target_before:
        if record.target in scene.forbidden:
            return _action(record, workload, _end(record, scene, now, "cancelled"), "move-cancelled",
                           f"{name}: the workload may not stand in {record.target} any more")  # fmt: skip
        if now >= record.deadline_s:
            outcome = "not-followed" if record.reason == NOT_FOLLOWED else "timed-out"
            return _action(record, workload, _end(record, scene, now, outcome), "move-timed-out",
                           f"{name}: undone")  # fmt: skip
        return _action(record, workload, begin(record, scene), "continue-move", f"{name}: the target is raised")
    return _wait_or_cut(record, scene, now, settings, source, target)


def begin(record: MoveRecord, scene: Scene) -> tuple[Step, ...]:
    """The first steps of a move: the intent on both objects, then the target's replicas."""
    marks = tuple(
        PutIntent(cluster, record)
        for cluster in (record.target, record.source)
        if (p := scene.placements[cluster]).move is None or p.move.id != record.id
    )
    goal = record.target_before + record.replicas
    return (*marks, SetReplicas(record.target, record.target_before, goal))


def _wait_or_cut(
    record: MoveRecord, scene: Scene, now: float, settings: MoveSettings, source: Placement, target: Placement
) -> Action | Refusal:
    """The target is up: wait until it is ready and gets traffic, then cut the source; or undo at the deadline."""
    name = f"{record.replicas} replica(s) {record.source} -> {record.target}"
    goal_target = record.target_before + record.replicas
    policy = scene.policy
    ready = target.ready_for(policy.min_ready_s, now)
    blind = [c for c in (record.source, record.target) if not scene.views[c].complete]
    forbidden = record.target in scene.forbidden
    if forbidden or record.reason == NOT_FOLLOWED or (ready < goal_target and now >= record.deadline_s):
        if blind:
            return Refusal(target.workload, "view-partial", blind[0], f"the undoing of {name} waits for its metrics")
        undo: tuple[Step, ...] = (SetReplicas(record.target, goal_target, record.target_before),)
        outcome = "cancelled" if forbidden else "not-followed" if record.reason == NOT_FOLLOWED else "timed-out"
        reason = "move-timed-out" if outcome == "timed-out" else "move-cancelled"
        return _action(record, target.workload, undo + _end(record, scene, now, outcome), reason,
                       f"{name}: {ready} of {goal_target} ready; the source stays")  # fmt: skip
    if ready < goal_target:
        return Refusal(target.workload, "move-in-flight", record.target,
                       f"{name}: {ready} of {goal_target} ready for {policy.min_ready_s:g} s")  # fmt: skip
    if blind:
        return Refusal(target.workload, "view-partial", blind[0], f"the cut of {name} waits for its metrics")
    if policy.demand.query and (isinstance(scene.demand, Unknown) or not math.isfinite(scene.demand.total)):
        return Refusal(target.workload, "demand-unknown", record.target, f"the cut of {name} waits for its requests")
    all_ready_s = now - target.ready_since_s[goal_target - 1]
    # A replica that has to leave leaves, whether or not users prefer the place it goes to.
    followed = None if record.source in scene.forbidden else follows(scene, record.target)
    if all_ready_s < policy.drain_wait_s or (followed is False and all_ready_s < settings.follow_after_s):
        return Refusal(target.workload, "move-in-flight", record.source,
                       f"{name}: ready, sessions drain and traffic is awaited")  # fmt: skip
    if followed is False:
        marked = dataclasses.replace(record, reason=NOT_FOLLOWED, deadline_s=now)
        steps: tuple[Step, ...] = tuple(PutIntent(c, marked) for c in (record.target, record.source))
        return _action(marked, target.workload, steps, "move-cancelled",
                       f"{name}: no traffic on the new replicas for {all_ready_s:.0f} s")  # fmt: skip
    spare = _spare(record, scene)
    if spare < record.replicas:
        name += f", of which {record.replicas - spare} more stay as replicas are short"
    cut = (SetReplicas(record.source, record.source_before, record.source_before - spare),) if spare else ()
    return _action(record, target.workload, (*cut, *_end(record, scene, now, "done")), "finish-move",
                   f"{name}: {ready} ready, the source is cut")  # fmt: skip


def _spare(record: MoveRecord, scene: Scene) -> int:
    """How many of a move's replicas its source may lose.

    A workload that became short of replicas meanwhile keeps them: its disruption budget would let none go, and the
    move would hold both clusters for good.
    """
    if scene.replicas is None or record.source in scene.forbidden:
        return record.replicas
    standing = sum(p.wanted for c, p in scene.placements.items() if scene.sight.get(c) is not Sight.LOST)
    return max(0, min(record.replicas, standing - scene.replicas))
