"""The distinct ways in which policies count demand: each is one query, whatever the number of workloads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rebalancer.core.policy import Policy

REQUESTS, CORES = "requests/s", "cores"


@dataclass(frozen=True, slots=True)
class Ask:
    """One distinct way to count demand, with the policies that use it.

    Attributes:
        query: as the user wrote it; empty for CPU.
        namespaces: of the policies.
        named: workloads that a policy names; pod selectors name none.
        open: namespaces in which a policy selects by pod labels.
    """

    query: str
    workload_label: str
    origin_label: str
    entry_cluster: bool
    namespaces: frozenset[str]
    named: frozenset[str]
    open: frozenset[str]
    policies: frozenset[str]

    @property
    def id(self) -> tuple[str, str, str, bool]:
        """What tells it from others."""
        return self.query, self.workload_label, self.origin_label, self.entry_cluster

    @property
    def name(self) -> str:
        """What people call it."""
        return self.query or "CPU"

    @property
    def unit(self) -> str:
        """Unit of its demand."""
        return REQUESTS if self.query else CORES

    def takes(self, workload: str) -> bool:
        """Says whether one of its policies may mean the workload (namespace/name)."""
        return workload in self.named or workload.partition("/")[0] in self.open


def asks_of(policies: Mapping[str, Policy]) -> tuple[Ask, ...]:
    """Returns the distinct ways in which policies count demand; request counters before CPU.

    Of one counter those that tell origins come first: until it is known which policy selects a workload, the first one
    that may mean it counts, and a total that is split by origin is one all the same.
    """
    groups: dict[tuple[str, str, str, bool], list[Policy]] = {}
    for policy in policies.values():
        spec = policy.demand
        key = (spec.query, spec.workload_label, spec.origin_label, spec.entry_cluster)
        groups.setdefault(key if spec.query else ("", "", "", spec.entry_cluster), []).append(policy)
    return tuple(
        Ask(
            *key,
            namespaces=frozenset(p.namespace for p in members),
            named=frozenset(f"{p.namespace}/{p.workload_name}" for p in members if p.workload_name),
            open=frozenset(p.namespace for p in members if not p.workload_name),
            policies=frozenset(p.key for p in members),
        )
        for key, members in sorted(
            groups.items(), key=lambda item: (not item[0][0], item[0][:2], not item[0][2], item[0])
        )
    )
