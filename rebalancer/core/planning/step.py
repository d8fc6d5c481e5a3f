"""From the target to the best next step: no more moves than policies allow, no more starts than clusters bear."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from rebalancer.core import moves, placement
from rebalancer.core.model import Action, SetReplicas
from rebalancer.core.planning.draft import Draft
from rebalancer.core.planning.ground import Ground
from rebalancer.core.planning.target import Aim


def within_budgets(
    drafts: Mapping[str, Draft], ground: Ground, target: Aim, starts: Mapping[str, float]
) -> Aim:  # fmt: skip
    """The best next target within the budgets; the target itself where it is within them.

    Args:
        drafts: by workload.
        ground: common ground.
        target: the optimum.
        starts: as from `starts_left`.
    """
    solution, items = target.solution, target.items
    limits = _moves(drafts, ground, solution)
    short = set(limits)
    full = {c for c, left in starts.items() if sum(_more(d, solution, c) for d in drafts.values()) > left}
    for workload, draft in drafts.items():
        if any(_more(draft, solution, c) for c in full):
            # It looks for another place, but moves no more than it would have.
            limits.setdefault(workload, exchanges(draft, solution))
    if not limits:
        return target
    stepped = {w: replace(items[w], max_exchanges=0 if d.hold else limits.get(w)) for w, d in drafts.items()}
    settings = ground.settings
    # From the optimum on: where prices are known, only the workloads that are beyond their budgets are planned again.
    best, _ = placement.solve(
        list(stepped.values()), *target.room, starts,
        kernels=settings.kernels, warm=target.warm, seed=settings.seed, refine=False,
    )  # fmt: skip
    met = full | {c for c, left in starts.items() if sum(_more(d, best, c) for d in drafts.values()) >= left}
    for workload, draft in drafts.items():
        draft.waits = max(0, best.items[workload].unplaced - solution.items[workload].unplaced)
        for cluster in sorted(met) if draft.waits or workload not in short else ():
            waiting = _more(draft, solution, cluster) - _more(draft, best, cluster)
            if waiting > 0:
                most = ground.cluster(cluster).max_starts
                draft.refuse("start-limit", cluster, f"{waiting} replica(s) wait: at most {most} begin in a cycle")
    return replace(target, solution=best, items=stepped)


def _moves(drafts: Mapping[str, Draft], ground: Ground, solution: placement.Solution) -> dict[str, int]:
    """Most exchanges of the workloads whose optimum is beyond their hourly budget."""
    limits = {}
    for workload, draft in drafts.items():
        count = exchanges(draft, solution)
        left = moves.budget_left(draft.policy, draft.placements, ground.snapshot.at_s)
        if draft.policy.gang and count > left:
            limits[workload] = 0
            draft.refuse("move-budget", "", f"the gang moves whole: {count} replicas, {left} may move now")
        elif count > max(1, left):
            limits[workload] = max(1, left)
    return limits


def exchanges(draft: Draft, solution: placement.Solution) -> int:
    """Replicas that the optimum moves: those that come, as far as others go."""
    found = solution.items[draft.workload].replicas
    come = sum(max(0, found[c] - n) for c, n in draft.now.items())
    return min(come, sum(max(0, n - found[c]) for c, n in draft.now.items()))


def _more(draft: Draft, solution: placement.Solution, cluster: str) -> int:
    """Replicas that would begin in a cluster."""
    return max(0, solution.items[draft.workload].replicas.get(cluster, 0) - draft.now.get(cluster, 0))


def starts_left(
    drafts: Mapping[str, Draft], ground: Ground, solution: placement.Solution, flying: Mapping[str, Iterable[Action]]
) -> dict[str, float]:
    """How many replicas may still begin in this cycle, by cluster that bounds it.

    A gang that is larger than the bound would never begin: it may in a cycle in which nothing else has begun there.

    Args:
        drafts: by workload.
        ground: common ground.
        solution: the optimum.
        flying: what moves in flight do in this cycle, by workload.
    """
    clusters = (state.cluster for state in ground.snapshot.clusters.values())
    left = {c.name: float(c.max_starts) for c in clusters if c.max_starts is not None}
    for action in (a for found in flying.values() for a in found):
        for step in action.steps:
            if isinstance(step, SetReplicas) and step.cluster in left:
                left[step.cluster] -= max(0, step.replicas - step.expected)
    for cluster, most in left.items():
        gang = max((_more(d, solution, cluster) for d in drafts.values() if d.policy.gang), default=0)
        left[cluster] = max(0.0, most) if most < (ground.cluster(cluster).max_starts or 0) else max(most, float(gang))
    return left
