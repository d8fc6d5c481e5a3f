"""What of a target begins now: into room that is free, so that nothing leaves before its like is ready elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from rebalancer.core import placement
from rebalancer.core.planning.draft import Draft
from rebalancer.core.planning.ground import Ground
from rebalancer.core.planning.target import Aim
from rebalancer.core.planning.worth import awaited

Counts = dict[str, int]
NAMED = 3
"""So many of those who are to leave are named."""


def next_wave(
    drafts: Mapping[str, Draft], ground: Ground, target: Aim, starts: Mapping[str, float]
) -> placement.Solution:  # fmt: skip
    """The part of a target that fits now, and other places for what is missing and would have to wait.

    A replica that replaces another may begin in the reserve; what is put elsewhere may not, as it may stay there.

    Args:
        drafts: by workload; those who wait are told so, and those who leave for their sake.
        ground: common ground.
        target: within budgets.
        starts: as from `step.starts_left`.
    """
    found, settings = target.solution.items, ground.settings
    rows = [w for w, d in drafts.items() if any(found[w].replicas[c] > n for c, n in d.now.items())]
    if not rows or not placement.joint(len(drafts), kernels=settings.kernels):
        return target.solution
    items = [_lent(target.items[w], drafts[w], ground) for w in rows]
    clusters = placement.clusters_of(items)
    at = {c: i for i, c in enumerate(clusters)}
    problem = placement.encode(items, clusters, placement.capacity_of(clusters, *ground.free(lent=True), {}))
    wish = np.zeros(problem.now.shape, np.int32)
    for i, one in enumerate(items):
        for c in one.clusters:
            wish[i, at[c]] = found[rows[i]].replicas[c]
    plan = placement.follow(problem, wish)
    begun = {w: {c: int(plan[i, at[c]]) for c in items[i].clusters} for i, w in enumerate(rows)}
    steps = dict(found)
    for i, w in enumerate(rows):
        if begun[w] != found[w].replicas:
            steps[w] = placement.placed(items[i], begun[w], max(0, items[i].replicas - sum(begun[w].values())))
    # Who would have no place in the target either is not short of it now.
    short = {w: begun[w] for w in rows if steps[w].unplaced > found[w].unplaced}
    steps |= _elsewhere(drafts, ground, target, short, begun, starts)
    _waiting(drafts, target, steps, begun)
    _making_room(drafts, ground, target, steps, begun)
    return replace(target.solution, items=steps)


def _lent(one: placement.Item, draft: Draft, ground: Ground) -> placement.Item:
    """The item with what fits now, the reserve included."""
    fits = {}
    for cluster, most in one.add_max.items():
        shape = draft.shapes[cluster]
        here = min(most, ground.fits(cluster, shape, draft.lead_s, lent=True)) if most else 0
        fits[cluster] = ground.within_quota(cluster, draft.workload, shape, here) if here else 0
    return replace(one, add_max=fits, gives=False)


def _elsewhere(
    drafts: Mapping[str, Draft], ground: Ground, target: Aim, short: Mapping[str, Counts],
    begun: Mapping[str, Counts], starts: Mapping[str, float],
) -> dict[str, placement.Placed]:  # fmt: skip
    """Places for what is missing now, wherever there is room without anybody leaving."""
    if not short:
        return {}
    cpu, memory = ground.free()
    left = dict(starts)
    for workload, counts in begun.items():
        for cluster, count in counts.items():
            added, one = max(0, count - drafts[workload].now[cluster]), target.items[workload]
            if added and cluster in cpu:
                cpu[cluster], memory[cluster] = cpu[cluster] - added * one.cpu, memory[cluster] - added * one.memory
            if cluster in left:
                left[cluster] = max(0.0, left[cluster] - added)
    items = [_rest(target.items[w], drafts[w], ground, counts) for w, counts in short.items()]
    solved, _ = placement.solve(
        items, cpu, memory, left, kernels=ground.settings.kernels and len(items) > placement.SMALL_FLEET,
        seed=ground.settings.seed,
    )  # fmt: skip
    return dict(solved.items)


def _rest(one: placement.Item, draft: Draft, ground: Ground, begun: Mapping[str, int]) -> placement.Item:
    """A workload that stands as its step has it and is still short: nothing of it is exchanged."""
    missing = max(0, one.replicas - sum(begun.values()))
    now, fits = dict(begun), {}
    for cluster in sorted(one.leave - one.frozen):
        now[cluster] = min(one.now[cluster], missing)
        missing -= now[cluster]
    for cluster in one.clusters:
        shape, here = draft.shapes[cluster], 0
        if one.add_max[cluster]:
            here = ground.fits(cluster, shape, draft.lead_s) - max(0, begun[cluster] - one.now[cluster])
            here = ground.within_quota(cluster, draft.workload, shape, max(0, min(here, one.replicas)))
        fits[cluster] = here
    return replace(one, now=now, add_max=fits, gives=False, max_exchanges=0)


def _waiting(
    drafts: Mapping[str, Draft], target: Aim, steps: Mapping[str, placement.Placed], begun: Mapping[str, Counts]
) -> None:
    """Says who waits for room that others are to leave."""
    found = target.solution.items
    leaving: dict[str, list[str]] = {}
    for workload, draft in sorted(drafts.items()):
        for cluster, count in draft.now.items():
            if found[workload].replicas[cluster] < count:
                leaving.setdefault(cluster, []).append(workload)
    for workload, counts in begun.items():
        draft = drafts[workload]
        draft.waits += max(0, steps[workload].unplaced - found[workload].unplaced)
        for cluster, count in counts.items():
            waiting = found[workload].replicas[cluster] - count
            if waiting > 0:
                others = [w for w in leaving.get(cluster, ()) if w != workload]
                names = ", ".join(others[:NAMED]) + (f" and {len(others) - NAMED} more" if len(others) > NAMED else "")
                told = f"{waiting} replica(s) begin there when replicas of {names or 'others'} have left"
                draft.refuse("awaits-room", cluster, told)


def _making_room(
    drafts: Mapping[str, Draft], ground: Ground, target: Aim, steps: Mapping[str, placement.Placed],
    begun: Mapping[str, Counts],
) -> None:  # fmt: skip
    """Notes for whom a replica leaves a cluster in which less is free than the target brings there."""
    rooms = awaited(drafts, ground.free(), target, begun)
    for workload, draft in drafts.items():
        after = steps[workload].replicas
        for cluster, count in draft.now.items():
            if after[cluster] < count and (workload, cluster) in rooms:
                draft.makes_room[cluster] = rooms[workload, cluster]
