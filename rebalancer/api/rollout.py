"""The kind CanaryRollout: what a user writes, its bounds, and its way into the core.

Fields of the kind that are planned and not honoured yet are refused by name: accepted in silence they would make a
user believe in a guard that is not there.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, model_validator
from pydantic.config import JsonDict

from rebalancer.api.base import API_VERSION, CountOrPercent, LabelSelector, Metadata, Model, Name, WorkloadRef
from rebalancer.api.base import Duration as DurationText
from rebalancer.core import evidence
from rebalancer.core.rollout import model as core

_LABEL_LENGTH, _NAME_LENGTH = 63, 253
_PLANNED: dict[str, tuple[str, ...]] = {
    "spec": ("revisionHistoryLimit",),
    "canary": (
        "stableService", "canaryService", "trafficRouting", "dynamicStableScale", "abortScaleDownDelaySeconds",
    ),
    "metric": ("buckets", "query", "successCondition", "failureLimit", "joinBy"),
    "placement": ("maxFailoverCanaryShare",),
}  # fmt: skip


def _refuse_planned(where: str, data: Any) -> Any:
    if isinstance(data, dict):
        for name in _PLANNED[where]:
            if name in data:
                raise ValueError(f"{name} is planned and not honoured yet: leave it out")
    return data


def _only(known: str, planned: tuple[str, ...]) -> BeforeValidator:
    """A validator that takes `known` and says of `planned` values that they are not honoured yet."""

    def check(value: object) -> object:
        if value in planned:
            raise ValueError(f"{value} is planned and not honoured yet: use {known}")
        return value

    return BeforeValidator(check)


def _rule(rule: str, message: str) -> JsonDict:
    """A rule for API servers; the same is checked here, or by the controller."""
    return {"x-kubernetes-validations": [{"rule": rule, "message": message}]}


Selector = Annotated[str, Field(min_length=1, max_length=2000)]


class Pause(Model):
    """Waits before the next step; without a duration until somebody promotes."""

    duration: DurationText | None = None


class Step(Model):
    """One step: a weight, or a pause after the weight before it."""

    set_weight: Annotated[int, Field(ge=1, le=100)] | None = None
    pause: Pause | None = None

    @model_validator(mode="after")
    def _one(self) -> Step:
        if (self.set_weight is None) == (self.pause is None):
            raise ValueError("a step has exactly one of setWeight and pause")
        return self


class RatioMetric(Model):
    """Bad requests of all requests, from two raw counters.

    `bad` counts a part of what `total` counts, with the same version label: it names the pods' pod-template-hash.
    """

    name: Name
    type: Annotated[Literal["Ratio"], _only("Ratio", ("Histogram", "Threshold"))] = "Ratio"
    total: Selector
    bad: Selector
    version_label: Annotated[str, Field(pattern=r"^[a-zA-Z_][a-zA-Z0-9_]*$")] = "pod_template_hash"
    tolerance: Annotated[float, Field(ge=1.0, le=10.0)] = 1.1
    max_error_rate: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.01

    @model_validator(mode="before")
    @classmethod
    def _planned(cls, data: Any) -> Any:
        return _refuse_planned("metric", data)


class OnNoData(Model):
    """Missing data holds at once; after the timeout it pauses or goes on holding. It never rolls back."""

    timeout_seconds: Annotated[float, Field(ge=1.0, le=86400.0)] = 900.0
    then: Literal["Pause", "Hold"] = "Pause"


class Analysis(Model):
    """When a revision is good enough to go on, and when bad enough to go back. No metrics: pods and time only."""

    warmup_seconds: Annotated[float, Field(ge=0.0, le=3600.0)] = 30.0
    min_step_seconds: Annotated[float, Field(ge=1.0, le=86400.0)] = 30.0
    max_step_seconds: Annotated[float, Field(ge=1.0, le=604800.0)] = 1800.0
    false_rollback_rate: Annotated[float, Field(gt=0.0, le=0.2)] = 0.05
    confidence: Annotated[float, Field(ge=0.5, lt=1.0)] = 0.95
    min_detectable_ratio: Annotated[float, Field(gt=1.0, le=100.0)] = 2.0
    min_bad_requests: Annotated[int, Field(ge=1, le=1000)] = 3
    on_inconclusive: Literal["Pause", "Hold"] = "Pause"
    on_no_data: OnNoData = OnNoData()
    metrics: Annotated[tuple[RatioMetric, ...], Field(max_length=10)] = ()

    @model_validator(mode="after")
    def _fits(self) -> Analysis:
        if self.max_step_seconds < self.min_step_seconds:
            raise ValueError(
                f"maxStepSeconds ({self.max_step_seconds:g}) is less than minStepSeconds ({self.min_step_seconds:g})"
            )
        names = [m.name for m in self.metrics]
        if len(names) != len(set(names)):
            raise ValueError("two metrics have the same name")
        for m in self.metrics:
            if m.tolerance >= self.min_detectable_ratio:
                raise ValueError(
                    f"tolerance of {m.name} ({m.tolerance:g}) must be less than minDetectableRatio "
                    f"({self.min_detectable_ratio:g})"
                )
        return self


_STEPS = (Step(set_weight=5), Step(set_weight=20), Step(set_weight=50), Step(set_weight=100))


class Canary(Model):
    """The steps and their analysis."""

    model_config = ConfigDict(
        json_schema_extra=_rule(
            "!has(self.steps) || self.steps.exists(s, has(s.setWeight) && s.setWeight == 100)",
            "the last setWeight must be 100",
        )
    )

    steps: Annotated[tuple[Step, ...], Field(min_length=1, max_length=20)] = _STEPS
    analysis: Analysis = Analysis()
    scale_down_delay_seconds: Annotated[float, Field(ge=0.0, le=86400.0)] = 300.0

    @model_validator(mode="before")
    @classmethod
    def _planned(cls, data: Any) -> Any:
        return _refuse_planned("canary", data)

    @model_validator(mode="after")
    def _rise(self) -> Canary:
        weights = [s.set_weight for s in self.steps if s.set_weight is not None]
        if self.steps[0].set_weight is None:
            raise ValueError("the first step must be a setWeight")
        if weights != sorted(set(weights)):
            raise ValueError(f"the weights of steps must rise, they are {', '.join(map(str, weights))}")
        if weights[-1] != 100:
            raise ValueError(f"the last setWeight must be 100, it is {weights[-1]}")
        return self


class Strategy(Model):
    """How the new revision comes in; a canary is the only way."""

    canary: Canary = Canary()


class Wave(Model):
    """Clusters that begin together."""

    name: Name
    clusters: Annotated[tuple[Name, ...], Field(max_length=1000)] = ()
    cluster_selector: LabelSelector | None = None
    max_concurrent: CountOrPercent | None = None
    bake_seconds: Annotated[float, Field(ge=0.0, le=2592000.0)] = 0.0

    @model_validator(mode="after")
    def _some(self) -> Wave:
        if bool(self.clusters) == (self.cluster_selector is not None):
            raise ValueError(f"wave {self.name} needs exactly one of clusters and clusterSelector")
        if self.max_concurrent is not None and float(str(self.max_concurrent).rstrip("%")) <= 0:
            raise ValueError(f"maxConcurrent of wave {self.name} must be above 0")
        return self


class Placement(Model):
    """In which clusters, and in which order."""

    waves: Annotated[tuple[Wave, ...], Field(max_length=20)] = ()
    on_cluster_failure: Annotated[Literal["AbortAll"], _only("AbortAll", ("AbortWave", "AbortCluster"))] = "AbortAll"
    on_cluster_unreachable: Literal["Hold"] = "Hold"

    @model_validator(mode="before")
    @classmethod
    def _planned(cls, data: Any) -> Any:
        return _refuse_planned("placement", data)

    @model_validator(mode="after")
    def _once(self) -> Placement:
        named = [c for w in self.waves for c in w.clusters]
        twice = sorted({c for c in named if named.count(c) > 1})
        if twice:
            raise ValueError(f"clusters in more than one wave: {', '.join(twice)}")
        names = [w.name for w in self.waves]
        if len(names) != len(set(names)):
            raise ValueError("two waves have the same name")
        return self


class CanaryRolloutSpec(Model):
    """What is rolled out, how and where."""

    workload_ref: Annotated[
        WorkloadRef,
        Field(
            json_schema_extra=_rule(
                "self.name == oldSelf.name",
                "workloadRef can't be changed: delete the rollout, and make one for the other",
            )
        ),
    ]
    images: Annotated[dict[str, Annotated[str, Field(min_length=1)]], Field(max_length=50)] = Field(
        default_factory=dict
    )
    paused: bool = False
    progress_deadline_seconds: Annotated[float, Field(ge=10.0, le=86400.0)] = 600.0
    strategy: Strategy = Strategy()
    placement: Placement = Placement()

    @model_validator(mode="before")
    @classmethod
    def _planned(cls, data: Any) -> Any:
        return _refuse_planned("spec", data)


class CanaryRollout(Model):
    """A new revision of one Deployment, carried through many clusters in waves, judged by what its users see."""

    api_version: Literal["rebalancer.dev/v1alpha1"] = API_VERSION
    kind: Literal["CanaryRollout"] = "CanaryRollout"
    metadata: Metadata
    spec: CanaryRolloutSpec
    status: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _names(self) -> CanaryRollout:
        if len(self.metadata.name) > _LABEL_LENGTH:
            raise ValueError(f"the name is longer than {_LABEL_LENGTH} characters: canary pods carry it as a label")
        if len(self.spec.workload_ref.name) > _NAME_LENGTH - len("-canary"):
            raise ValueError(f"<workload>-canary would be longer than {_NAME_LENGTH} characters")
        other = self.spec.workload_ref.namespace
        if other is not None and other != self.metadata.namespace:
            raise ValueError(
                f"workloadRef.namespace is {other}: it must be the rollout's own, {self.metadata.namespace}"
            )
        return self

    def to_spec(self) -> core.Spec:
        """Returns the core's frozen spec."""
        spec, canary, analysis = self.spec, self.spec.strategy.canary, self.spec.strategy.canary.analysis
        return core.Spec(
            namespace=self.metadata.namespace,
            name=self.metadata.name,
            workload=spec.workload_ref.name,
            images=dict(spec.images),
            paused=spec.paused,
            progress_deadline_s=spec.progress_deadline_seconds,
            steps=_steps(canary.steps),
            metrics=tuple(_metric(m, analysis) for m in analysis.metrics),
            warmup_s=analysis.warmup_seconds,
            min_step_s=analysis.min_step_seconds,
            max_step_s=analysis.max_step_seconds,
            on_inconclusive=analysis.on_inconclusive,
            no_data_timeout_s=analysis.on_no_data.timeout_seconds,
            on_no_data=analysis.on_no_data.then,
            scale_down_delay_s=canary.scale_down_delay_seconds,
            waves=tuple(_wave(w) for w in spec.placement.waves),
            generation=self.metadata.generation,
        )


def _steps(steps: tuple[Step, ...]) -> tuple[core.Step, ...]:
    """Hangs each pause on the weight before it."""
    out: list[core.Step] = []
    for step in steps:
        if step.set_weight is not None:
            out.append(core.Step(step.set_weight))
        elif step.pause is not None:
            last = out.pop()
            manual = last.manual or step.pause.duration is None
            out.append(core.Step(last.weight, last.pause_s + (step.pause.duration or 0.0), manual))
    return tuple(out)


def _metric(metric: RatioMetric, analysis: Analysis) -> core.Metric:
    rule = evidence.Rule(
        false_rollback_rate=analysis.false_rollback_rate,
        confidence=analysis.confidence,
        tolerance=metric.tolerance,
        min_detectable_ratio=analysis.min_detectable_ratio,
        max_error_rate=metric.max_error_rate,
        min_bad_requests=analysis.min_bad_requests,
    )
    return core.Metric(metric.name, metric.total, metric.bad, metric.version_label, rule)


def _wave(wave: Wave) -> core.Wave:
    labels = dict(wave.cluster_selector.match_labels) if wave.cluster_selector is not None else {}
    return core.Wave(wave.name, wave.clusters, labels, wave.max_concurrent, wave.bake_seconds)
