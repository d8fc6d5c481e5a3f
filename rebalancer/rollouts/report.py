"""What a tick did, as values: for the log, the exporter and the planner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from rebalancer.core.rollout.decision import Action
from rebalancer.core.rollout.judge import log_bad
from rebalancer.core.rollout.model import Spec, State, Status
from rebalancer.ports import Outcome


@dataclass(frozen=True, slots=True)
class Measure:
    """One value for the exporter: short name of the catalogue, labels, value."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class RolloutReport:
    """What one tick did to one rollout.

    Attributes:
        status: as it stands after the tick.
        outcomes: actions with how they ended; empty when nothing was to be done or only observed.
        saved: how writing the status ended; None when it was equal.
        ended: outcome of a rollout that ended in this tick, else empty.
        blind: its status can't be read, so that it may be under way.
        rollback_s: first bad request of the evidence until traffic was back; None if no rollback ended.
    """

    spec: Spec
    status: Status
    outcomes: tuple[tuple[Action, Outcome], ...] = ()
    saved: Outcome | None = None
    ended: str = ""
    rollback_s: float | None = None
    problem: str = ""
    blind: bool = False


@dataclass(frozen=True, slots=True)
class TickReport:
    """What one tick did."""

    at_s: float
    rollouts: tuple[RolloutReport, ...]

    @property
    def owned(self) -> frozenset[str]:
        """Workloads under a running rollout: `Snapshot.rollouts`."""
        return frozenset(r.spec.workload_key for r in self.rollouts if r.blind or r.status.active)

    @property
    def measures(self) -> tuple[Measure, ...]:
        """Gauges of all rollouts; `ended` and `rollback_s` of the reports are the counter and the histogram."""
        return tuple(m for r in self.rollouts for m in _measures(r))


def _measures(report: RolloutReport) -> list[Measure]:
    key, status = report.spec.key, report.status
    out = []
    for name, cluster in sorted(status.clusters.items()):
        labels = {"rollout": key, "cluster": name}
        out.append(Measure("rollout_phase", {**labels, "phase": status.state.value}, 1.0))
        if cluster.actual_weight is not None and status.active:
            out.append(Measure("rollout_weight", labels, cluster.actual_weight / 100.0))
    if status.evidence:
        good = min(e.log_good(status.current) for e in status.evidence.values())
        labels = {"rollout": key, "cluster": ""}
        out.append(Measure("rollout_evidence", {**labels, "kind": "bad"}, log_bad(status.evidence)))
        out.append(Measure("rollout_evidence", {**labels, "kind": "good"}, good))
    return out


def ended(report: RolloutReport, before: Status) -> RolloutReport:
    """Adds to a report that the rollout ended in this tick, and how long a rollback took."""
    status = report.status
    if not before.active or status.active:
        return report
    took = None
    if before.state is State.ROLLING_BACK and status.ended_s is not None and before.bad_since_s is not None:
        took = status.ended_s - before.bad_since_s
    return replace(report, ended=status.outcome, rollback_s=took)
