"""What is done and what is not: steps, actions, refusals, and the plan that holds them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from rebalancer.core.model.declared import Taint
from rebalancer.core.model.seen import Moved, MoveRecord, Sight, View


@dataclass(frozen=True, slots=True)
class SetReplicas:
    """Write the scale subresource, with the observed number and resourceVersion as preconditions."""

    cluster: str
    expected: int
    replicas: int


@dataclass(frozen=True, slots=True)
class PutIntent:
    """Write a move's intent to an object before anything else happens."""

    cluster: str
    record: MoveRecord


@dataclass(frozen=True, slots=True)
class EndIntent:
    """Take a move's intent off an object and remember its end there."""

    cluster: str
    move_id: str
    moved: Moved


Step = SetReplicas | PutIntent | EndIntent
ActionKind = Literal["scale", "migrate", "drift"]


@dataclass(frozen=True, slots=True)
class Shadow:
    """What room of a cluster is worth: the fall of the plan's cost, $/h, for one more unit of it; each at least 0.

    Attributes:
        cpu_core: $/h per free core more.
        memory_gib: $/h per free GiB more.
        addition: $/h per replica more that may be added in a cycle.
    """

    cpu_core: float = 0.0
    memory_gib: float = 0.0
    addition: float = 0.0


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another target of a move.

    Attributes:
        gain: what the move would be worth with it, $/h.
        reason: why not: an id in core.reasons, or gains-less, room-wanted (others pay more for its room) or
            target-in-steps (the plan goes there later).
    """

    cluster: str
    gain: float
    reason: str


@dataclass(frozen=True, slots=True)
class Why:
    """Why a move, by exact evaluation of its workload.

    Attributes:
        terms: $/h saved by term, with what moving costs; they sum to the action's gain.
        binding: what bounds it: move-budget, drift-step, room, target-reached.
        room: what others would pay for the room that it takes, $/h.
        alternatives: the next best targets, best first.
    """

    terms: Mapping[str, float]
    binding: str
    room: float
    alternatives: tuple[Alternative, ...] = ()


@dataclass(frozen=True, slots=True)
class Action:
    """One thing to do for one workload; its steps are carried out in order and stop at the first failure.

    Attributes:
        reason: id in core.reasons.
        explanation: the reason with its numbers, one line.
        gain: what it is worth per hour in the objective's units; NaN if it is not optional.
        why: the gain in its parts; None for what demand or a move in flight asks for.
    """

    kind: ActionKind
    workload: str
    steps: tuple[Step, ...]
    reason: str
    explanation: str
    gain: float = float("nan")
    source: str = ""
    target: str = ""
    replicas: int = 0
    why: Why | None = None

    @property
    def forced(self) -> bool:
        """Whether it is done although it gains nothing: `reason` says for what."""
        return not self.gain > 0


@dataclass(frozen=True, slots=True)
class Refusal:
    """One thing that is not done, and why.

    Attributes:
        reason: id in core.reasons.
        cluster: the cluster concerned; empty for the whole workload.
        detail: the numbers, one line.
    """

    workload: str
    reason: str
    cluster: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class WorkloadPlan:
    """What the plan says of one workload.

    Attributes:
        now, target: replicas by cluster; target is the optimum that the moves work towards.
        planned: replicas by cluster after this plan's actions.
        wanted: replicas wanted in total; None if unknown.
        demand: the quantile of total demand planned for; NaN if unknown.
        latency_ms, target_latency_ms: traffic-weighted RTT now and at the target; NaN if unknown.
        terms: cost terms at the target, per hour: latency, data, cost, move, unplaced.
        terms_now: the same for today's placement.
        traffic: (origin, cluster) -> share of the origin's demand at the target.
        barred: cluster -> reason id why it may receive no new replicas.
        lines: explanation, a line each.
    """

    workload: str
    policy: str
    now: Mapping[str, int]
    planned: Mapping[str, int]
    target: Mapping[str, int]
    wanted: int | None
    demand: float
    unit: str = ""
    capacity: float = float("nan")
    start_delay_s: float = float("nan")
    latency_ms: float = float("nan")
    target_latency_ms: float = float("nan")
    terms: Mapping[str, float] = field(default_factory=dict)
    terms_now: Mapping[str, float] = field(default_factory=dict)
    traffic: Mapping[tuple[str, str], float] = field(default_factory=dict)
    barred: Mapping[str, str] = field(default_factory=dict)
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """Ordered actions, refusals, and the picture behind them.

    Attributes:
        gap_ratio: how far the target costs more than the proven bound at most; NaN if unknown.
        shadow: cluster -> what its room is worth; empty if unknown.
    """

    id: str
    at_s: float
    actions: tuple[Action, ...]
    refusals: tuple[Refusal, ...]
    workloads: Mapping[str, WorkloadPlan]
    views: Mapping[str, View]
    sight: Mapping[str, Sight]
    taints: Mapping[str, tuple[Taint, ...]]
    gap_ratio: float = float("nan")
    shadow: Mapping[str, Shadow] = field(default_factory=dict)
