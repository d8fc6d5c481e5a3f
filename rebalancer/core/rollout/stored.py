"""A rollout as a store has it: what is wanted, what was, and what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass

from rebalancer.core.rollout.model import Request, Spec, Status


@dataclass(frozen=True, slots=True)
class Stored:
    """A rollout as it is stored.

    Attributes:
        version: precondition for writing its status.
        problem: what is wrong with it, one sentence; it goes into the status.
        waits: nothing is decided for it: it can't be read, or another rollout owns its workload.
        blind: its stored status can't be read: it is neither written over nor let go.
        guarded: it can't vanish before it was released.
        deleting: somebody deleted it.
        created: when, as sortable text; empty where that is not known.
    """

    spec: Spec
    status: Status
    request: Request | None = None
    version: str = ""
    problem: str = ""
    waits: bool = False
    blind: bool = False
    guarded: bool = True
    deleting: bool = False
    created: str = ""

    @property
    def active(self) -> bool:
        """Whether it owns the workload now, as far as that can be told: a status that can't be read may be active."""
        return self.blind or self.status.active
