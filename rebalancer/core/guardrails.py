"""Vetoes: always last, not pluggable. Each looks at one action and the whole scene, and names its reason.

A veto stops a change; it never makes one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rebalancer.core.model import Action, Placement, Refusal, SetReplicas, Sight, View
from rebalancer.core.policy import Policy, resolve_count


@dataclass(frozen=True, slots=True)
class Guarded:
    """What the vetoes may look at.

    Attributes:
        policy: of the action's workload.
        placements: of the action's workload, by cluster.
        views, sight: by cluster.
        paused_clusters: clusters that nobody may touch.
        brake: whether the fleet brake holds.
        demand_complete: whether all parts of the demand are known.
        wanted: replicas wanted in total; None if unknown.
        allowed: actions of the workload that were let through before in the same cycle.
    """

    policy: Policy
    placements: Mapping[str, Placement]
    views: Mapping[str, View]
    sight: Mapping[str, Sight]
    paused_clusters: frozenset[str]
    brake: bool
    demand_complete: bool
    wanted: int | None
    allowed: tuple[Action, ...] = ()

    @property
    def standing(self) -> dict[str, Placement]:
        """Placements that count: those of a lost cluster are gone, whatever was last read there."""
        return {c: p for c, p in self.placements.items() if self.sight.get(c) is not Sight.LOST}


Veto = Callable[[Action, Guarded], Refusal | None]


def _changes(action: Action) -> list[SetReplicas]:
    return [s for s in action.steps if isinstance(s, SetReplicas)]


def _lower(action: Action) -> list[SetReplicas]:
    return [s for s in _changes(action) if s.replicas < s.expected]


def _observe_only(action: Action, scene: Guarded) -> Refusal | None:
    if scene.policy.observe_only:
        return Refusal(action.workload, "observe-only", "", action.explanation)
    return None


def _paused(action: Action, scene: Guarded) -> Refusal | None:
    if scene.policy.paused:
        return Refusal(action.workload, "paused", "", action.explanation)
    for step in action.steps:
        if step.cluster in scene.paused_clusters:
            return Refusal(action.workload, "paused", step.cluster, action.explanation)
    return None


def _seen(action: Action, scene: Guarded) -> Refusal | None:
    for step in action.steps:
        sight = scene.sight.get(step.cluster, Sight.SUSPECT)
        if sight is not Sight.READY:
            reason = "cluster-lost" if sight is Sight.LOST else "cluster-suspect"
            return Refusal(action.workload, reason, step.cluster, action.explanation)
    return None


def _braked(action: Action, scene: Guarded) -> Refusal | None:
    if scene.brake and (_lower(action) or action.kind != "scale"):
        return Refusal(action.workload, "fleet-brake", "", action.explanation)
    return None


def _view(action: Action, scene: Guarded) -> Refusal | None:
    for step in _lower(action):
        view = scene.views.get(step.cluster)
        if view is None or not view.complete:
            return Refusal(action.workload, "view-partial", step.cluster, view.detail if view else "never seen")
    if action.kind == "scale" and _lower(action) and not scene.demand_complete:
        return Refusal(action.workload, "demand-partial", "", action.explanation)
    return None


def _bounds(action: Action, scene: Guarded) -> Refusal | None:
    total = sum(p.wanted for p in scene.standing.values())
    total += sum(s.replicas - s.expected for a in scene.allowed for s in _changes(a))
    change = sum(s.replicas - s.expected for s in _changes(action))
    policy = scene.policy
    if change < 0 and total + change < policy.min_replicas:
        return Refusal(action.workload, "at-min", "", f"{total} {change:+d} would be below {policy.min_replicas}")
    high = policy.max_replicas
    if action.kind == "scale" and change > 0 and high is not None and total + change > high:
        return Refusal(action.workload, "at-max", "", f"{total} {change:+d} would be above {high}")
    return None


def _disruption(action: Action, scene: Guarded) -> Refusal | None:
    """Ready replicas after a decrease: what is wanted, less what may be unavailable; unready ones go for free."""
    standing = scene.standing
    ready = sum(p.ready for p in standing.values())
    ready -= sum(_taken(s, scene) for a in scene.allowed for s in _lower(a))
    wanted = scene.wanted if scene.wanted is not None else sum(p.wanted for p in standing.values())
    floor = max(wanted - resolve_count(scene.policy.max_unavailable, wanted), _kept_by_budgets(standing, wanted))
    for step in _lower(action):
        gone = _taken(step, scene)
        if gone and ready - gone < floor:
            return Refusal(action.workload, "disruption-budget", step.cluster,
                           f"{ready} ready, {gone} would go, {floor} must stay")  # fmt: skip
        ready -= gone
    return None


def _kept_by_budgets(standing: Mapping[str, Placement], wanted: int) -> int:
    """Ready replicas that PodDisruptionBudgets keep, counted over the fleet and rounded up as Kubernetes does.

    All where nobody can read them.
    """
    floor = 0
    for placement in standing.values():
        if placement.budgets is None:
            return wanted
        for one in placement.budgets:
            if one.min_available is not None:
                floor = max(floor, resolve_count(one.min_available, wanted, up=True))
            if one.max_unavailable is not None:
                floor = max(floor, wanted - resolve_count(one.max_unavailable, wanted, up=True))
    return floor


def _taken(step: SetReplicas, scene: Guarded) -> int:
    """Ready replicas that a decrease takes away; unready ones go first."""
    placement = scene.placements[step.cluster]
    unready = max(0, placement.wanted - placement.ready)
    return max(0, step.expected - step.replicas - unready)


VETOES: tuple[Veto, ...] = (_observe_only, _paused, _seen, _braked, _view, _bounds, _disruption)


def check(action: Action, scene: Guarded) -> Refusal | None:
    """Returns the first veto, or None where the action may be carried out."""
    for veto in VETOES:
        refusal = veto(action, scene)
        if refusal is not None:
            return refusal
    return None
