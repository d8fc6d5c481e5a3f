"""What a decision is made of: actions as values, idempotent and keyed by cluster; events; the new status."""

from __future__ import annotations

from dataclasses import dataclass

from rebalancer.core.rollout.model import Status, Template


@dataclass(frozen=True, slots=True)
class EnsureCanary:
    """The canary's Deployment has this template and this many replicas (0 empties it)."""

    cluster: str
    revision: str
    template: Template
    replicas: int
    expected: str = ""


@dataclass(frozen=True, slots=True)
class ScaleCanary:
    """The canary's Deployment keeps its template and has at most this many replicas."""

    cluster: str
    replicas: int
    expected: str = ""


@dataclass(frozen=True, slots=True)
class DeleteCanary:
    """The canary's Deployment, already empty, goes."""

    cluster: str
    expected: str = ""


@dataclass(frozen=True, slots=True)
class PauseStable:
    """The user's Deployment is paused; a strategy that was set aside comes back."""

    cluster: str
    expected: str = ""


@dataclass(frozen=True, slots=True)
class SetTemplate:
    """The user's Deployment gets this template; unpaused it rolls at once, with maxUnavailable 0."""

    cluster: str
    revision: str
    template: Template
    paused: bool
    expected: str = ""


@dataclass(frozen=True, slots=True)
class ReleaseStable:
    """The user's Deployment goes on without a rollout: unpaused, with its own strategy and none of our marks.

    Attributes:
        template: put back first, so that unpausing rolls nothing; None where the template is the running one.
    """

    cluster: str
    template: Template | None = None
    expected: str = ""


Action = EnsureCanary | ScaleCanary | DeleteCanary | PauseStable | SetTemplate | ReleaseStable


@dataclass(frozen=True, slots=True)
class Event:
    """Something to tell people. `cluster` is empty for the whole rollout."""

    reason: str
    text: str
    warning: bool = False
    cluster: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    """What `decide` says.

    Attributes:
        status: the new status; equal to the old one when nothing changed.
        actions: in order per cluster; clusters are independent of each other.
        act_first: a rollback: act, then write the status. Otherwise the status goes first.
        released: the rollout was deleted and nothing of it is left in any cluster.
    """

    status: Status
    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()
    act_first: bool = False
    released: bool = False
