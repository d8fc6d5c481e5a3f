"""What a user declares of a cluster: place, prices, taints, windows, and what its node autoscaler may add."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import tzinfo
from enum import StrEnum
from typing import Literal


class Effect(StrEnum):
    """What a taint does: bar new replicas, or also move existing ones away."""

    NO_SCHEDULE = "NoSchedule"
    NO_EXECUTE = "NoExecute"


@dataclass(frozen=True, slots=True)
class Taint:
    """A taint of a cluster, as nodes have them."""

    key: str
    value: str
    effect: Effect


@dataclass(frozen=True, slots=True)
class Toleration:
    """A toleration as pods have it; an empty key with Exists tolerates everything, effect None every effect."""

    key: str
    operator: Literal["Equal", "Exists"]
    value: str
    effect: Effect | None

    def tolerates(self, taint: Taint) -> bool:
        """Says whether the taint is tolerated, by the rules of Kubernetes."""
        if self.effect is not None and self.effect is not taint.effect:
            return False
        if self.key and self.key != taint.key:
            return False
        return self.operator == "Exists" or (bool(self.key) and self.value == taint.value)


GIB = 2.0**30
"""Bytes; prices and what people write are per GiB, everything else here is in bytes."""


@dataclass(frozen=True, slots=True)
class Price:
    """Prices of a cluster in USD; None is unknown and takes no part in cost terms."""

    cpu_core_hour: float | None = None
    memory_gib_hour: float | None = None
    egress_gib: float | None = None


@dataclass(frozen=True, slots=True)
class Window:
    """A time that comes again: it begins when the schedule fires in its zone, and lasts for so many seconds.

    Attributes:
        schedule: cron, five fields, as cron(8) reads them (0 and 7 are Sunday; day of month or day of week).
        zone: where the schedule's hours are meant.
        duration_s: real time, above 0.
    """

    schedule: str
    zone: tzinfo
    duration_s: float


@dataclass(frozen=True, slots=True)
class PriceWindow:
    """While it is open, CPU and memory cost `factor` times as much."""

    window: Window
    factor: float


@dataclass(frozen=True, slots=True)
class Elastic:
    """What a node autoscaler may add.

    Attributes:
        max_nodes: most nodes of the cluster, those of today included.
        cpu, memory, pods: what a new node has for pods: cores, bytes, pods.
        provision_s: how long a new node takes.
    """

    max_nodes: int
    cpu: float
    memory: float
    pods: int
    provision_s: float


@dataclass(frozen=True, slots=True)
class Cluster:
    """A member cluster as the user declared it; `max_starts` replicas, of all workloads, may begin in one cycle."""

    name: str
    region: str
    zone: str = ""
    provider: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    price: Price = Price()
    price_windows: tuple[PriceWindow, ...] = ()
    reserve_ratio: float = 0.05
    elastic: Elastic | None = None
    max_starts: int | None = None
    taints: tuple[Taint, ...] = ()
    spot: bool = False
    drain: bool = False
    paused: bool = False
