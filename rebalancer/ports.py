"""The ports: what a world must offer. Live, simulated and replayed worlds differ only in what is plugged in here.

All ports are async and run on one event loop; each call has a total deadline of its own. They raise only
`rebalancer.errors`; a part that can't be seen comes back as Unknown, never as a number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from rebalancer.core.model import (
    ClusterState,
    Floats,
    Placement,
    Step,
    Unknown,
    View,
)
from rebalancer.core.network import LatencyMap
from rebalancer.core.policy import Policy
from rebalancer.core.rollout.decision import Action
from rebalancer.core.rollout.model import ClusterSeen, Spec, Status
from rebalancer.core.rollout.stored import Stored

OutcomeKind = Literal["done", "unchanged", "conflict", "forbidden", "unreachable", "failed"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a write ended.

    Attributes:
        kind: done, unchanged (it already was so), conflict, forbidden, unreachable, failed.
        detail: one sentence; empty when done.
        resource_version: the object's version after the write; empty if unknown.
    """

    kind: OutcomeKind
    detail: str = ""
    resource_version: str = ""

    @property
    def ok(self) -> bool:
        """Whether the next step of the same action may follow."""
        return self.kind in ("done", "unchanged")


class Clock(Protocol):
    """Where time comes from."""

    def now(self) -> float:
        """Returns Unix seconds."""

    async def sleep(self, seconds: float) -> None:
        """Waits; virtual clocks return at once after moving on."""


@dataclass(frozen=True, slots=True)
class DemandWindow:
    """The grid that demand is asked for: slots (start, end] of `step_s`, end on the grid."""

    start_s: float
    end_s: float
    step_s: float


@dataclass(frozen=True, slots=True)
class DemandAnswer:
    """Demand of all workloads on one grid.

    Attributes:
        keys: (workload, origin, cluster) per row; origin is empty where unknown, cluster is where it was counted.
        units: workload -> requests/s or cores.
        values: shape (rows, slots), NaN where unknown; a gap is never zero.
        latest: shape (rows,), demand over the last minutes; NaN where unknown.
        cpu: (workload, cluster) -> cores used now by all its pods there.
        views: by configured cluster.
        errors: one sentence per query that failed.
        censored: (workload, cluster) -> why its CPU hides some of what was wanted.
        peaks: workload -> shape (slots,), the largest short rate within each slot relative to its mean, at least 1;
            NaN where unknown.
        peakless: workloads whose newest peaks are not known, though they were asked for.
    """

    keys: tuple[tuple[str, str, str], ...]
    units: Mapping[str, str]
    values: Floats
    latest: Floats
    views: Mapping[str, View]
    cpu: Mapping[tuple[str, str], float] = field(default_factory=dict)
    errors: tuple[str, ...] = ()
    censored: Mapping[tuple[str, str], str] = field(default_factory=dict)
    peaks: Mapping[str, Floats] = field(default_factory=dict)
    peakless: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class NetworkAnswer:
    """The latency map with the view behind it.

    Attributes:
        usual_rtt_s: pair of clusters, the lesser name first -> 7-day median of its median round trip in s.
    """

    map: LatencyMap
    errors: tuple[str, ...] = ()
    usual_rtt_s: Mapping[tuple[str, str], float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RoomAnswer:
    """Room by cluster as metrics see it: (allocatable, requested) by resource `cpu` (cores) and `memory` (bytes)."""

    clusters: Mapping[str, Mapping[str, tuple[float, float]] | Unknown]
    errors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Selection:
    """Which raw counters to read.

    Attributes:
        total, bad: selectors of counters (`metric{matchers}`); bad events are a part of the total.
        version_label: label that carries the pod-template-hash.
    """

    total: str
    bad: str
    version_label: str


@dataclass(frozen=True, slots=True)
class Counter:
    """The raw values of one series since a time, ascending; values may fall at a reset."""

    labels: Mapping[str, str]
    times_s: tuple[float, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class CounterAnswer:
    """Raw counters with the completeness of the answer.

    Attributes:
        total, bad: series by selector, each with its `cluster` label.
        views: by cluster that was asked for.
        errors: one sentence per failure.
    """

    total: tuple[Counter, ...]
    bad: tuple[Counter, ...]
    views: Mapping[str, View]
    errors: tuple[str, ...] = ()


class Telemetry(Protocol):
    """The global view. It speaks of meaning, not of PromQL."""

    async def demand(self, window: DemandWindow, policies: Mapping[str, Policy]) -> DemandAnswer:
        """Asks for the demand of all workloads of all policies, with a number of queries that workloads don't raise."""

    async def room(self) -> RoomAnswer:
        """Asks for the room of all clusters."""

    async def network(self, now: float) -> NetworkAnswer:
        """Asks for the latency map."""

    async def counters(
        self, selection: Selection, clusters: Sequence[str], since_s: float, now: float
    ) -> CounterAnswer:
        """Reads raw counters from `since_s` on; raw, because `increase()` loses the first event of a series."""


@dataclass(frozen=True, slots=True)
class FleetState:
    """What the clusters' API servers say.

    Attributes:
        clusters: by name, every configured cluster, also those that can't be reached.
        placements: workload -> cluster -> placement; of a cluster out of sight the last known ones.
        policies: workload -> policy name.
        problems: one sentence each, for example two policies on one workload.
    """

    clusters: Mapping[str, ClusterState]
    placements: Mapping[str, Mapping[str, Placement]]
    policies: Mapping[str, str]
    problems: tuple[str, ...] = ()


class Actuator(Protocol):
    """The clusters: what runs there, and the writes."""

    async def observe(self, policies: Sequence[Policy], now: float) -> FleetState:
        """Reads all clusters; one that can't be reached does not delay the others beyond its deadline."""

    async def apply(self, workload: str, step: Step, placement: Placement) -> Outcome:
        """Carries out one step with the placement's resourceVersion as precondition; equal writes are skipped."""


class Journal(Protocol):
    """History for people; recovery never reads it."""

    async def write(self, at_s: float, kind: str, workload: str, text: str, data: Mapping[str, object]) -> None:
        """Appends one entry."""


class Notifier(Protocol):
    """Events on the objects concerned."""

    async def event(self, workload: str, cluster: str, reason: str, text: str, *, warning: bool, at_s: float) -> None:
        """Writes one Event; failing to write it is counted, never raised."""


class Lease(Protocol):
    """Who may write."""

    def is_leader(self) -> bool:
        """Says whether this process may write now, by its own monotonic deadline."""


class Hub(Protocol):
    """Where policies live and where status goes."""

    async def documents(self) -> list[dict[str, object]]:
        """Returns the raw custom resources of all our kinds."""

    async def write_status(self, kind: str, namespace: str, name: str, status: Mapping[str, object]) -> Outcome:
        """Replaces the status of one custom resource; an equal status is not written."""


class RolloutActuator(Protocol):
    """The clusters as a rollout needs them."""

    async def observe(self, spec: Spec, cluster: str) -> ClusterSeen:
        """Reads one cluster.

        Raises:
            ClusterError: it can't be read.
        """

    async def apply(self, spec: Spec, action: Action) -> Outcome:
        """Carries out one action; doing it twice is a no-op, a stale `expected` is a conflict."""


class RolloutStore(Protocol):
    """Where rollouts and their status live."""

    async def load(self) -> Sequence[Stored]:
        """Returns all rollouts, read now."""

    async def save(self, stored: Stored, status: Status) -> Outcome:
        """Writes the status with `stored.version` as precondition."""

    async def guard(self, stored: Stored) -> Outcome:
        """Sees to it that a deleted rollout stays until it is released."""

    async def release(self, stored: Stored) -> Outcome:
        """Lets a deleted rollout go."""
