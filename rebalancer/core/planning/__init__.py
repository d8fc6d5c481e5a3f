"""Snapshot, forecast and policies to a plan: a pure function of values.

Order: common ground, moves in flight, drafts, where the fleet should stand, what of it may begin, scaling, moves that
pay, and the guardrails last.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import replace

from rebalancer.core import guardrails, moves, placement, starts, windows
from rebalancer.core.model import Action, Forecast, Plan, Refusal, SetReplicas, Sight, Unknown, WorkloadPlan
from rebalancer.core.model import Snapshot as Snapshot
from rebalancer.core.planning import actions as act
from rebalancer.core.planning.draft import Draft, begin, rows_of
from rebalancer.core.planning.ground import Ground, PlanMemory, PlanSettings, lay
from rebalancer.core.planning.step import starts_left, within_budgets
from rebalancer.core.planning.target import aim
from rebalancer.core.planning.terms import mean_ms, terms
from rebalancer.core.planning.waves import next_wave
from rebalancer.core.planning.weigh import item
from rebalancer.core.policy import Policy

__all__ = ["PlanMemory", "PlanSettings", "planning"]


def planning(
    snapshot: Snapshot,
    forecast: Forecast,
    policies: Mapping[str, Policy],
    memory: PlanMemory,
    settings: PlanSettings,
) -> tuple[Plan, PlanMemory]:
    """Plans one cycle.

    Args:
        snapshot: what was seen; its `at_s` is the time of planning.
        forecast: bands of demand.
        policies: by `namespace/name`.
        memory: what the last call returned, or what status gave back after a restart.
        settings: settings that are not a policy's.

    Returns:
        The plan and the new memory. The same arguments give the same plan.
    """
    ground, rows = lay(snapshot, memory, settings), rows_of(forecast)
    policies = {key: windows.in_force(policy, snapshot.at_s) for key, policy in policies.items()}
    refusals: list[Refusal] = []
    drafts: dict[str, Draft] = {}
    planned: dict[str, list[Action]] = {}
    for workload in sorted(snapshot.placements):
        policy = policies[snapshot.policies[workload]]
        owner = _owned(snapshot, workload, policy)
        if owner:
            refusals.append(owner)
            continue
        draft = begin(workload, policy, ground, forecast, rows.get(workload, {}), memory)
        drafts[workload] = draft
        planned[workload] = _guard(draft, _flying(draft, ground), [], ground)
    _decrease_after_moves(drafts, ground)
    target = aim(drafts, ground, memory.warm)
    starts = starts_left(drafts, ground, target.solution, planned)
    step = within_budgets(drafts, ground, target, starts)
    steps = next_wave(drafts, ground, step, starts)
    workloads = {}
    for workload, draft in drafts.items():
        kept = planned[workload] = _changes(draft, steps, step.items[workload], planned[workload], ground)
        workloads[workload] = _picture(draft, target.items[workload], target.solution.items[workload], kept, ground)
        refusals += _refusals(draft)
    ordered = tuple(a for w in sorted(planned) for a in planned[w])
    plan = Plan(
        id=_id(snapshot.at_s, ordered, refusals),
        at_s=snapshot.at_s,
        actions=ordered,
        refusals=tuple(refusals),
        workloads=workloads,
        views=snapshot.views,
        sight=_sights(drafts, ground),
        taints=ground.taints,
        gap_ratio=target.solution.gap_ratio,
        shadow=target.solution.shadow,
    )
    return plan, _kept(memory, drafts, ground, target.warm)


def _kept(memory: PlanMemory, drafts: Mapping[str, Draft], ground: Ground, warm: placement.Warm | None) -> PlanMemory:
    """What the next cycle needs of this one."""
    return PlanMemory(
        clocks=ground.clocks,
        network=ground.network_memory,
        recommendations={w: d.recommendations for w, d in drafts.items()},
        starts={w: d.starts for w, d in drafts.items()},
        capacity={**memory.capacity, **{w: d.learned for w, d in drafts.items() if d.learned.recent.weight}},
        warm=warm,
    )


def _changes(
    draft: Draft, steps: placement.Solution, given: placement.Item, flying: list[Action], ground: Ground
) -> list[Action]:
    """What the guardrails let through of scaling and moves, after what the moves in flight need."""
    placed = steps.items[draft.workload]
    if draft.workload in steps.unsolved:
        draft.refuse("no-solution", "", f"the solver said: {steps.unsolved[draft.workload]}")
        return flying
    _shortfall(draft, placed)
    scaling, adds, cuts = act.scale(draft, placed.replicas)
    kept = _guard(draft, scaling, flying, ground)
    # Moves begin from the numbers that the scaling of the same cycle leaves.
    scaled = {s.cluster: s.replicas for a in scaling if a in kept for s in a.steps if isinstance(s, SetReplicas)}
    moving = act.exchange(draft, given, ground, {**draft.now, **scaled}, adds, cuts, steps.shadow)
    return _guard(draft, moving, kept, ground)


def _sights(drafts: Mapping[str, Draft], ground: Ground) -> dict[str, Sight]:
    """The fleet's own picture is that of the least patient policy."""
    patience = min((d.policy.lost_after_s for d in drafts.values()), default=math.inf)
    return {c: ground.sight_of(c, patience) for c in ground.snapshot.clusters}


def _owned(snapshot: Snapshot, workload: str, policy: Policy) -> Refusal | None:
    """Whether somebody else owns the workload's replicas now."""
    if workload in snapshot.rollouts:
        return Refusal(workload, "rollout-in-progress")
    for cluster, found in snapshot.placements[workload].items():
        if found.owner == "hpa":
            return Refusal(workload, "hpa-no-traffic-control", cluster)
        if found.owner == "rollout":
            return Refusal(workload, "rollout-in-progress", cluster)
    return Refusal(workload, "paused") if policy.paused else None


def _flying(draft: Draft, ground: Ground) -> list[Action]:
    """What the moves in flight need now."""
    result = []
    for record in sorted(moves.records(draft.placements).values(), key=lambda r: (r.started_s, r.id)):
        scene = replace(draft.scene, replicas=draft.wanted.replicas)
        step = moves.advance(record, scene, ground.snapshot.at_s, ground.settings.moves)
        if isinstance(step, Refusal):
            draft.refusals.append(step)
        elif step.steps:
            result.append(step)
    return result


def _decrease_after_moves(drafts: Mapping[str, Draft], ground: Ground) -> None:
    """Lets a decrease take only what it would take if no move in flight held its ends.

    Otherwise all of it falls on the other clusters, whose users get a replica back by a move as soon as the ends are
    free again. The guardrails go on asking only for what would do, so that a replica that never becomes ready blocks
    neither the move nor, through it, its own end.
    """
    held, items = {}, []
    for workload, draft in drafts.items():
        if draft.wanted.reason == "demand-down" and moves.records(draft.placements):
            held[workload] = {c for c in draft.frozen if draft.barred.get(c) == "move-in-flight"}
            given = item(draft, ground)
            items.append(replace(given, frozen=given.frozen - held[workload]))
    ideal, _ = placement.solve(items, *ground.free(), kernels=ground.settings.kernels, seed=ground.settings.seed)
    for workload, ends in held.items():
        draft, best = drafts[workload], ideal.items[workload].replicas
        stay = sum(n if c in draft.frozen or c in ends else min(n, best[c]) for c, n in draft.now.items())
        would_do, keep = draft.wanted.replicas, min(stay, sum(draft.now.values()))
        if keep > would_do:
            draft.refuse("move-in-flight", "", f"{would_do} replicas would do, {keep} stay until the move ends")
            reason = draft.wanted.reason if keep < sum(draft.now.values()) else ""
            draft.wanted, draft.suffice = replace(draft.wanted, replicas=keep, reason=reason), would_do


def _shortfall(draft: Draft, placed: placement.Placed) -> None:
    """Notes replicas that found no place, and the first reason of each cluster that could not take them."""
    unplaced = placed.unplaced - draft.waits
    if unplaced > 0:
        why = ", ".join(f"{c}: {r}" for c, r in sorted(draft.barred.items())) or "no cluster has the room"
        reason = "residency-empty" if all(r == "residency" for r in draft.barred.values()) and draft.now.keys() <= (
            draft.barred.keys()
        ) else "no-room"  # fmt: skip
        if reason == "no-room" and draft.policy.gang:
            reason, why = "gang-does-not-fit", f"at least {draft.policy.gang} together; {why}"
        draft.refuse(reason, "", f"{unplaced} of {draft.wanted.replicas} replicas have no place ({why})")


def _refusals(draft: Draft) -> list[Refusal]:
    """The draft's refusals, and one for each cluster that is barred for a reason worth knowing."""
    told = ("cluster-suspect", "view-partial", "room-unknown", "rtt-unknown", "taint-not-tolerated", "cluster-lost",
            "quota-unknown", "quota-full")  # fmt: skip
    noted = {(r.reason, r.cluster) for r in draft.refusals}
    extra = [
        Refusal(draft.workload, reason, cluster, "nothing new goes there")
        for cluster, reason in sorted(draft.barred.items())
        if reason in told and (reason, cluster) not in noted
    ]
    return [*draft.refusals, *extra]


def _guard(draft: Draft, wanted: list[Action], before: list[Action], ground: Ground) -> list[Action]:
    """Lets the guardrails look at each action, after those that they let through before; returns all that are kept."""
    demand = draft.scene.demand
    scene = guardrails.Guarded(
        policy=draft.policy,
        placements=draft.placements,
        views=ground.snapshot.views,
        sight=draft.scene.sight,
        paused_clusters=draft.scene.untouchable,
        brake=ground.brake,
        demand_complete=not isinstance(demand, Unknown) and not demand.missing,
        wanted=int(min(draft.wanted.replicas, draft.suffice)),
    )
    kept = list(before)
    for action in wanted:
        veto = guardrails.check(action, replace(scene, allowed=tuple(kept)))
        if veto is None:
            kept.append(action)
        else:
            draft.refusals.append(veto)
    return kept


def _picture(
    draft: Draft, given: placement.Item, placed: placement.Placed, kept: list[Action], ground: Ground
) -> WorkloadPlan:
    """Everything a reader wants to know of one workload."""
    today = placement.evaluate(given, draft.now)
    demand = draft.scene.demand
    served = {} if isinstance(demand, Unknown) else demand.served
    known = {k: v for k, v in served.items() if k in draft.distance}
    latency = mean_ms(draft, known) if known else mean_ms(draft, today.traffic)
    totals = {o: sum(v for (r, _), v in placed.traffic.items() if r == o) for o in draft.origins}
    lines = list(draft.lines)
    unpriced = sorted(c for c in draft.now if ground.cluster(c).price.cpu_core_hour is None)
    lines.extend(f"price of {cluster} unknown: it takes no part in cost" for cluster in unpriced)
    return WorkloadPlan(
        workload=draft.workload,
        policy=draft.policy.key,
        now={c: p.wanted for c, p in draft.placements.items()},
        planned=act.after(draft.placements, kept),
        target={**dict.fromkeys(draft.lost, 0), **placed.replicas},
        wanted=draft.wanted.replicas,
        demand=draft.demand,
        unit=draft.unit,
        capacity=draft.capacity,
        start_delay_s=starts.delay_s(draft.starts),
        latency_ms=latency,
        target_latency_ms=mean_ms(draft, placed.traffic),
        terms=terms(given, draft, placed),
        terms_now=terms(given, draft, today),
        traffic={(o, c): v / totals[o] for (o, c), v in placed.traffic.items() if totals[o] > 0},
        barred=dict(draft.barred),
        lines=tuple(lines),
    )


def _id(at_s: float, ordered: tuple[Action, ...], refusals: list[Refusal]) -> str:
    # What is done and what is not; the reasons behind it may differ in the last digit.
    text = f"{at_s:.3f}{tuple(replace(a, why=None) for a in ordered)!r}{refusals!r}"
    return hashlib.sha256(text.encode()).hexdigest()[:10]
