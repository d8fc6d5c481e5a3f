"""Why a move and not another: terms that sum to its gain, what bounds it, and where else it could have gone."""

from __future__ import annotations

from collections.abc import Mapping

from rebalancer.core.model import GIB, Alternative, Shadow, Why
from rebalancer.core.placement import Item, evaluate
from rebalancer.core.planning.draft import Draft
from rebalancer.core.planning.terms import move_dollars, terms

ALTERNATIVES = 3
SCARCE_DOLLARS = 1e-6
"""A shadow price below it is rounding of the solver."""


def why(
    draft: Draft, item: Item, base: Mapping[str, int], before: Mapping[str, float], source: str, target: str,
    count: int, wanted: int, budget_left: int, shadow: Mapping[str, Shadow],
) -> Why:  # fmt: skip
    """Explains one move by exact evaluations of its workload.

    Args:
        draft: the workload.
        item: what the solver was given.
        base: replicas by cluster before the move.
        before: their cost by term, $/h.
        source: where `count` replicas leave.
        target: where they go.
        count: how many.
        wanted: how many the target wanted from there.
        budget_left: replicas that may still move in this hour.
        shadow: what room is worth.

    Returns:
        Saved $/h by term, with the cost of moving and, where others wait for the room, what they gain by it; what
        bounds the move; the next best targets, best first.
    """
    saved = _saved(draft, item, base, before, source, target, count)
    others = sorted(
        (c for c in item.clusters if c not in (source, target)), key=lambda c: (_rough(item, c), c)
    )[:ALTERNATIVES]  # fmt: skip
    found = []
    for cluster in others:
        gain = sum(_saved(draft, item, base, before, source, cluster, count).values())
        reason = _why_not(draft, item, cluster, count, gain, sum(saved.values()), shadow)
        found.append(Alternative(cluster, gain, reason))
    return Why(
        terms=saved,
        binding=_binding(draft, target, count, wanted, budget_left, shadow),
        room=room_worth(item, shadow, target) * count,
        alternatives=tuple(sorted(found, key=lambda a: (-a.gain, a.cluster))),
    )


def _saved(
    draft: Draft, item: Item, base: Mapping[str, int], before: Mapping[str, float], source: str, target: str, count: int
) -> dict[str, float]:
    after = terms(item, draft, evaluate(item, {**base, source: base[source] - count, target: base[target] + count}))
    saved = {**{k: before[k] - after[k] for k in before}, "move": -move_dollars(count)}
    if worth := room_gain(draft, source, count, sum(saved.values())):
        saved["room"] = worth
    return saved


def room_gain(draft: Draft, source: str, count: int, own: float) -> float:
    """What others gain, $/h, by the room that a move leaves; 0 where nobody waits for it or the move pays by itself.

    Args:
        draft: the workload.
        source: where `count` replicas leave.
        count: how many.
        own: what the move is worth to its workload, $/h.
    """
    room = draft.makes_room.get(source)
    return room.worth * count if room and own <= 0 else 0.0


def _rough(item: Item, cluster: str) -> float:
    """$/h of a replica there that serves everybody alike; ranks clusters before they are looked at exactly."""
    total = sum(item.demand.values())
    ways = sum(d * item.serve.get((o, cluster), 1e3) for o, d in item.demand.items())
    return item.run.get(cluster, 0.0) + (ways / total if total > 0 else 0.0)


def room_worth(item: Item, shadow: Mapping[str, Shadow], cluster: str) -> float:
    """What others would pay, $/h, for the room of one replica."""
    worth = shadow.get(cluster, Shadow())
    return worth.cpu_core * item.cpu + worth.memory_gib * item.memory / GIB


def _why_not(
    draft: Draft, item: Item, cluster: str, count: int, gain: float, chosen: float, shadow: Mapping[str, Shadow]
) -> str:
    """The first reason that speaks against a cluster."""
    if cluster in draft.barred:
        return draft.barred[cluster]
    if item.add_max.get(cluster, 0) < count:
        return "no-room"
    if gain <= chosen:
        return "gains-less"
    return "room-wanted" if room_worth(item, shadow, cluster) > SCARCE_DOLLARS else "target-in-steps"


def _binding(draft: Draft, target: str, count: int, wanted: int, budget_left: int, shadow: Mapping[str, Shadow]) -> str:
    """What keeps the move from being larger, or the target from taking more."""
    if count < wanted:
        return "move-budget" if count >= budget_left else "drift-step"
    worth = shadow.get(target, Shadow())
    if max(worth.cpu_core, worth.memory_gib, worth.addition) > SCARCE_DOLLARS:
        return "room"
    return "target-reached" if draft.wanted.replicas else ""
