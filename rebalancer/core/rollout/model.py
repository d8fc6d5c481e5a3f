"""The nouns of a canary rollout: what is wanted, what was, what is seen, and what is to be done.

All values are immutable. Times are Unix seconds, weights whole percent, a template is a pod template as JSON values,
a revision is the hash of a template (`revision.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from rebalancer.core.evidence import Counts, MetricEvidence, Rule

Template = Mapping[str, object]
OnTimeout = Literal["Pause", "Hold"]
Verb = Literal["abort", "promote", "pause", "resume", "retry", "undo"]
VERBS: tuple[Verb, ...] = ("abort", "promote", "pause", "resume", "retry", "undo")


class State(StrEnum):
    """Where a rollout stands. Holding and paused lie over these: `Status.hold` and `Status.pause`."""

    IDLE = "Idle"
    PREFLIGHT = "Preflight"
    SCALING_CANARY = "ScalingCanary"
    SHIFTING = "Shifting"
    ANALYSING = "Analysing"
    BAKING = "Baking"
    PROMOTING = "Promoting"
    SCALING_DOWN = "ScalingDown"
    COMPLETED = "Completed"
    ROLLING_BACK = "RollingBack"
    ROLLED_BACK = "RolledBack"


RESTING = frozenset({State.IDLE, State.COMPLETED, State.ROLLED_BACK})
SHARING = frozenset({State.SCALING_CANARY, State.SHIFTING, State.ANALYSING, State.BAKING})
"""States in which canary and stable pods share the traffic and no stable pod is touched."""
PROMOTED = frozenset({State.PROMOTING, State.SCALING_DOWN})
"""States in which the user's Deployment already has the new template."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a wave.

    Attributes:
        weight: percent of a cluster's traffic.
        pause_s: the step lasts at least this long.
        manual: it ends only by `promote`.
    """

    weight: int
    pause_s: float = 0.0
    manual: bool = False


@dataclass(frozen=True, slots=True)
class Metric:
    """One ratio of raw counters that is judged."""

    name: str
    total: str
    bad: str
    version_label: str
    rule: Rule = field(default_factory=Rule)


@dataclass(frozen=True, slots=True)
class Wave:
    """Clusters that begin together: named, or chosen by labels.

    Attributes:
        max_concurrent: clusters at a time, a number or a percentage of the wave; None is all.
        bake_s: how long each batch runs after its last step before the next begins.
    """

    name: str
    clusters: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    max_concurrent: int | str | None = None
    bake_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Spec:
    """A CanaryRollout as the core sees it; defaults and bounds are those of `rebalancer.api.rollout`.

    Attributes:
        workload: name of the Deployment, same namespace.
        images: container -> image; empty takes the Deployment's own edited template as the new revision.
        waves: empty is one wave with all clusters.
    """

    namespace: str
    name: str
    workload: str
    images: Mapping[str, str] = field(default_factory=dict)
    paused: bool = False
    progress_deadline_s: float = 600.0
    steps: tuple[Step, ...] = (Step(5), Step(20), Step(50), Step(100))
    metrics: tuple[Metric, ...] = ()
    warmup_s: float = 30.0
    min_step_s: float = 30.0
    max_step_s: float = 1800.0
    on_inconclusive: OnTimeout = "Pause"
    no_data_timeout_s: float = 900.0
    on_no_data: OnTimeout = "Pause"
    scale_down_delay_s: float = 300.0
    waves: tuple[Wave, ...] = ()
    generation: int = 0

    @property
    def key(self) -> str:
        """`namespace/name` of the rollout."""
        return f"{self.namespace}/{self.name}"

    @property
    def workload_key(self) -> str:
        """`namespace/name` of the workload, as the planner knows it."""
        return f"{self.namespace}/{self.workload}"

    @property
    def canary(self) -> str:
        """Name of the canary's Deployment."""
        return f"{self.workload}-canary"

    def step(self, index: int) -> Step:
        """Returns a step; an index beyond the end, of steps that were shortened half-way, is the last one."""
        return self.steps[min(index, len(self.steps) - 1)]


@dataclass(frozen=True, slots=True)
class Request:
    """A verb somebody asked for; `full` makes promote skip all remaining steps."""

    id: str
    verb: Verb
    full: bool = False


@dataclass(frozen=True, slots=True)
class StableSeen:
    """The user's Deployment as observed.

    Attributes:
        wanted: spec.replicas.
        template, revision: of spec.template, which may wait there while the Deployment is paused.
        pods: revision -> replicas of its ReplicaSets, only those that have any.
        ready: revision -> ready replicas.
        settled: the Deployment controller has seen the last change of the spec.
        resource_version: precondition for writes.
        held: it bears this rollout's mark: what is paused or set aside in it was done by us.
    """

    wanted: int
    paused: bool
    template: Template
    revision: str
    pods: Mapping[str, int]
    ready: Mapping[str, int]
    settled: bool = True
    resource_version: str = ""
    held: bool = False

    def runs_only(self, revision: str) -> bool:
        """Says whether all wanted pods run and are ready with this revision, and no others exist."""
        return self.settled and set(self.pods) <= {revision} and self.ready.get(revision, 0) >= self.wanted


@dataclass(frozen=True, slots=True)
class CanarySeen:
    """The canary's Deployment as observed.

    Attributes:
        wanted: spec.replicas.
        pods: pods that exist, terminating ones included.
        ready: ready pods of `revision`.
        failing: pods that can't start (CrashLoopBackOff, ImagePullBackOff and the like).
        ours: it carries this rollout's label; a foreign Deployment of the same name is never touched.
    """

    wanted: int
    revision: str
    pods: int
    ready: int
    failing: int = 0
    ours: bool = True
    resource_version: str = ""


@dataclass(frozen=True, slots=True)
class ClusterSeen:
    """One cluster as observed; what is None is absent, and nothing is known while `reachable` is False.

    Attributes:
        pod_hashes: pod-template-hash -> revision, of all ReplicaSets of both Deployments.
        templates: revision -> template, of the same.
        error: why it is not reachable.
    """

    name: str
    reachable: bool = True
    stable: StableSeen | None = None
    canary: CanarySeen | None = None
    pod_hashes: Mapping[str, str] = field(default_factory=dict)
    templates: Mapping[str, Template] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True, slots=True)
class Observed:
    """All clusters under one rollout.

    Attributes:
        clusters: every declared cluster, also those that can't be reached.
        labels: of every declared cluster, for the waves.
        request: the verb found on the object.
        deleting: somebody deleted the rollout; it goes when every cluster is as it would be without it.
    """

    clusters: Mapping[str, ClusterSeen]
    labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    request: Request | None = None
    deleting: bool = False


@dataclass(frozen=True, slots=True)
class Sample:
    """Counts of one cluster and metric in (after_s, until_s].

    Attributes:
        after_s: where the last one ended; None for the first, which only sets the baseline.
        gap: why there is no usable data; empty when there is.
    """

    cluster: str
    metric: str
    after_s: float | None
    until_s: float
    counts: Counts = field(default_factory=Counts)
    gap: str = ""


@dataclass(frozen=True, slots=True)
class Batch:
    """Clusters that take the steps together: a wave, or a part of it under maxConcurrent."""

    wave: str
    clusters: tuple[str, ...]
    bake_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """What is remembered of one cluster.

    Attributes:
        stable: the promoted revision; empty before adoption.
        previous: the one before it, for `undo`.
        weight: percent that was let in.
        target: canary replicas that may run.
        actual_weight: share of ready pods that run the new revision, in percent; None if unknown.
        ready_since_s: since when the canary has all its target; None while it has not.
        was_ready: the canary has been complete at least once.
        unready_since_s: since when a canary that was ready has no ready pod.
        promoted: the user's Deployment runs only the new revision.
        note: what stands in the way here, one sentence.
    """

    stable: str = ""
    previous: str = ""
    weight: int = 0
    target: int = 0
    actual_weight: float | None = None
    ready_since_s: float | None = None
    was_ready: bool = False
    unready_since_s: float | None = None
    promoted: bool = False
    reachable: bool = True
    note: str = ""


@dataclass(frozen=True, slots=True)
class Status:
    """The only memory of a rollout.

    Attributes:
        hold: reason id why it waits by itself: NoData, Unreachable, NotReady, Inconclusive.
        hold_since_s: since when.
        pause: reason id why it waits for somebody: User, Spec, NoData, Inconclusive, Step.
        message: the last decision with its numbers.
        problem: what is wrong with the rollout itself, whatever was decided; empty if nothing is.
        revision: the new revision.
        attempt: counts starts of the same revision.
        elapsed_s: time in this state that counted: not paused, not held.
        no_data_since_s: since when data is missing; None while it is complete.
        bad_since_s: first bad canary request of the current run of evidence against it.
        ended_s: when traffic was back, or the rollout complete.
        aborted: revisions that never run again without `retry`, newest last.
        restore: the rollback has to put the promoted template back.
        sampled_s: `cluster/metric` -> end of the last interval that counted.
        workload: the Deployment that is governed; empty before the first tick.
    """

    state: State = State.IDLE
    hold: str = ""
    hold_since_s: float | None = None
    pause: str = ""
    message: str = ""
    problem: str = ""
    revision: str = ""
    attempt: int = 0
    batches: tuple[Batch, ...] = ()
    batch: int = 0
    step: int = 0
    started_s: float | None = None
    entered_s: float | None = None
    elapsed_s: float = 0.0
    ticked_s: float | None = None
    no_data_since_s: float | None = None
    bad_since_s: float | None = None
    ended_s: float | None = None
    aborted: tuple[str, ...] = ()
    restore: bool = False
    outcome: Literal["", "completed", "rolled_back", "aborted", "superseded"] = ""
    clusters: Mapping[str, ClusterStatus] = field(default_factory=dict)
    evidence: Mapping[str, MetricEvidence] = field(default_factory=dict)
    sampled_s: Mapping[str, float] = field(default_factory=dict)
    handled_request: str = ""
    observed_generation: int = 0
    workload: str = ""

    @property
    def active(self) -> bool:
        """Whether the rollout owns the workload now."""
        return self.state not in RESTING

    @property
    def told(self) -> str:
        """What the reader is told: the problem first, then the last decision."""
        return "; ".join(text for text in (self.problem, self.message) if text)

    @property
    def shown(self) -> str:
        """The state for the reader: paused and holding win over what they stopped."""
        if self.active and self.pause:
            return "Paused"
        if self.active and self.hold and self.state is not State.ROLLING_BACK:
            return f"Holding({self.hold})"
        return self.state.value

    @property
    def phase(self) -> str:
        """The state in Argo's words, which health checks know."""
        if self.state is State.ROLLED_BACK or self.state is State.ROLLING_BACK:
            return "Degraded"
        if not self.active:
            return "Healthy"
        return "Paused" if self.pause else "Progressing"

    @property
    def begun(self) -> tuple[str, ...]:
        """Clusters whose batch has begun."""
        return tuple(c for b in self.batches[: self.batch + 1] for c in b.clusters)

    @property
    def here(self) -> Batch:
        """The current batch; batches are those of the start, whatever the waves in the spec became since."""
        return self.batches[min(self.batch, len(self.batches) - 1)] if self.batches else Batch("", ())

    @property
    def current(self) -> tuple[str, ...]:
        """Clusters of the current batch."""
        return self.here.clusters
