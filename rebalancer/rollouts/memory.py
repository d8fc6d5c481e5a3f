"""A store in memory: rollouts of files, and of the simulated world."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rebalancer.core.rollout.model import Request, Spec, Status
from rebalancer.core.rollout.stored import Stored
from rebalancer.ports import Outcome


class MemoryStore:
    """A store for worlds without a hub: simulation, and rollouts from files."""

    def __init__(self, specs: Sequence[Spec] = ()) -> None:
        """Starts with rollouts that never ran."""
        self._all: dict[str, Stored] = {s.key: Stored(s, Status()) for s in specs}

    def put(self, spec: Spec) -> None:
        """Adds a rollout or changes its spec; its status stays."""
        old = self._all.get(spec.key)
        created = f"{len(self._all):06}"
        self._all[spec.key] = replace(old, spec=spec) if old is not None else Stored(spec, Status(), created=created)

    def delete(self, key: str) -> None:
        """Asks for a rollout's end; it goes when it is released."""
        self._all[key] = replace(self._all[key], deleting=True)

    def ask(self, key: str, request: Request) -> None:
        """Asks for a verb."""
        self._all[key] = replace(self._all[key], request=request)

    def keys(self) -> list[str]:
        """Returns the keys of all rollouts that are still there."""
        return sorted(self._all)

    def status(self, key: str) -> Status:
        """Returns the stored status."""
        return self._all[key].status

    async def load(self) -> Sequence[Stored]:
        """Returns all rollouts."""
        return list(self._all.values())

    async def save(self, stored: Stored, status: Status) -> Outcome:
        """Keeps the status; a version that moved on is a conflict."""
        now = self._all[stored.spec.key]
        if now.version != stored.version:
            return Outcome("conflict", "the rollout changed meanwhile")
        version = str(int(now.version or "0") + 1)
        self._all[stored.spec.key] = replace(now, status=status, version=version)
        return Outcome("done", resource_version=version)

    async def guard(self, stored: Stored) -> Outcome:
        """Nothing vanishes from here by itself."""
        return Outcome("unchanged")

    async def release(self, stored: Stored) -> Outcome:
        """Forgets the rollout."""
        self._all.pop(stored.spec.key, None)
        return Outcome("done")
