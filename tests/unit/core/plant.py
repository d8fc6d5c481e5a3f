"""A fleet that carries plans out as clusters do, with a hand that may stop between any two steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from rebalancer.core.model import EndIntent, Placement, Plan, PutIntent, SetReplicas, Snapshot, Step
from rebalancer.core.planning import PlanMemory
from rebalancer.core.policy import Policy
from tests.unit.core.fleet import NOW, POLICY, REGIONS, placement, plan, snapshot


@dataclass
class Plant:
    """Replicas by cluster; new ones are ready `delay_s` after they were asked for."""

    placements: dict[str, Placement]
    origins: dict[str, float]
    policy: Policy = POLICY
    now: float = NOW
    delay_s: float = 0.0
    memory: PlanMemory = field(default_factory=PlanMemory)
    writes: list[tuple[float, Step]] = field(default_factory=list)
    conflicts: int = 0
    scene: dict[str, object] = field(default_factory=dict)

    @classmethod
    def of(cls, replicas: Mapping[str, int], origins: dict[str, float], **changes: object) -> Plant:
        found = {c: placement(c, replicas.get(c, 0)) for c in REGIONS}
        return cls(found, origins, **changes)  # type: ignore[arg-type]  # test helper

    @property
    def ready(self) -> int:
        return sum(p.ready_for(0.0, self.now) for p in self.placements.values())

    @property
    def wanted(self) -> dict[str, int]:
        return {c: p.wanted for c, p in self.placements.items()}

    def look(self) -> Snapshot:
        seen = {
            c: replace(p, ready_since_s=tuple(s for s in p.ready_since_s if s <= self.now))
            for c, p in self.placements.items()
        }
        return snapshot(seen, self.origins, now=self.now, **self.scene)  # type: ignore[arg-type]  # test helper

    def cycle(self, stop_after: int | None = None, seconds: float = 60.0) -> Plan:
        """Plans and carries out, at most `stop_after` steps; then time goes on."""
        found, self.memory = plan(self.look(), self.origins, self.policy, self.memory)
        left = 10**9 if stop_after is None else stop_after
        for action in found.actions:
            for step in action.steps:
                if left <= 0 or not self.write(step):
                    break
                left -= 1
        self.now += seconds
        return found

    def write(self, step: Step) -> bool:
        old = self.placements[step.cluster]
        if isinstance(step, SetReplicas):
            if old.wanted == step.replicas:
                return True
            if old.wanted != step.expected:
                self.conflicts += 1
                return False
            self.set(step.cluster, step.replicas)
        elif isinstance(step, PutIntent):
            self.placements[step.cluster] = replace(old, move=step.record)
        elif isinstance(step, EndIntent):
            keep = old.move if old.move is not None and old.move.id != step.move_id else None
            self.placements[step.cluster] = replace(old, move=keep, moved=(*old.moved, step.moved))
        self.writes.append((self.now, step))
        return True

    def set(self, cluster: str, replicas: int) -> None:
        """Sets spec.replicas; the newest pods go first, as they are the unready ones."""
        old = self.placements[cluster]
        pods = [*old.ready_since_s, *([self.now + self.delay_s] * max(0, replicas - len(old.ready_since_s)))][:replicas]
        self.placements[cluster] = replace(old, wanted=replicas, ready_since_s=tuple(pods))
