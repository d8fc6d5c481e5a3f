"""The Actuator port on real member clusters."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from rebalancer.adapters.kubernetes import permissions, writes
from rebalancer.adapters.kubernetes.clients import Clients, ClusterClient
from rebalancer.adapters.kubernetes.observe import ClusterView, Observer
from rebalancer.adapters.kubernetes.permissions import Finding
from rebalancer.api.cluster import MemberCluster
from rebalancer.core.model import Cluster, ClusterState, Placement, Step, Unknown
from rebalancer.core.policy import Policy
from rebalancer.errors import ClusterError
from rebalancer.ports import FleetState, Outcome

GRACE_S = 0.5
"""How much later than the thread's own deadline the event loop gives up on it."""


@dataclass(slots=True)
class _Member:
    """One cluster and what is remembered of it."""

    cluster: Cluster
    client: ClusterClient
    observer: Observer
    seen_s: float | None = None
    view: ClusterView | None = None
    error: str = ""
    policies: Mapping[str, str] = field(default_factory=dict)


class KubernetesActuator:
    """Reads and scales Deployments of the member clusters.

    What can't be read: a cluster that does not answer keeps its last known placements with their old times, and its
    `seen_s` does not move on, so that the core's sight clocks find it suspect, then lost. A cluster that answers but
    denies a list stays in sight: without nodes or pods its room is Unknown (nothing new goes there); without pods the
    ready replicas come from the Deployments' own status, never zero for want of rights; without autoscalers every
    workload counts as owned by one and is left alone; without ResourceQuotas nothing new goes there; without
    PodDisruptionBudgets all that is wanted has to stay ready.
    """

    def __init__(
        self,
        members: Mapping[str, MemberCluster],
        clients: Clients,
        *,
        observe_deadline_s: float = 4.0,
        write_deadline_s: float = 5.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Takes the declared clusters and their clients.

        Args:
            members: by name.
            clients: of the same clusters.
            observe_deadline_s: for one look at one cluster, all lists together.
            write_deadline_s: for one write, its reads and repeats included.
            clock: Unix seconds, for the bound on remembered moves.
        """
        self._clients = clients
        self._write_deadline_s = write_deadline_s
        self._observe_deadline_s = observe_deadline_s
        self._clock = clock
        self._members = {
            name: _Member(member.resolve(), clients.members[name], Observer(clients.members[name], observe_deadline_s))
            for name, member in members.items()
        }

    @property
    def took_s(self) -> Mapping[str, float]:
        """How long the last good look at each cluster took, seconds."""
        return {n: m.view.took_s for n, m in self._members.items() if m.view is not None}

    def uid_of(self, workload: str, cluster: str) -> str:
        """Returns the uid of a workload's object as last seen; empty if never."""
        member = self._members.get(cluster)
        found = member.view.seen.placements.get(workload) if member and member.view else None
        return found.uid if found else ""

    async def observe(self, policies: Sequence[Policy], now: float) -> FleetState:
        """Looks at all clusters at once; each has its own thread and deadline."""
        await asyncio.gather(*(self._look(m, policies, now) for m in self._members.values()))
        placements: dict[str, dict[str, Placement]] = {}
        chosen: dict[str, str] = {}
        twice: set[str] = set()
        problems: list[str] = []
        known = {p.key for p in policies}
        for name, member in self._members.items():
            seen = member.view.seen if member.view else None
            if seen is None:
                continue
            problems += seen.problems
            for workload, policy in seen.policies.items():
                if policy not in known:  # last seen under a policy that is gone
                    continue
                if chosen.setdefault(workload, policy) != policy:
                    twice.add(workload)
                placements.setdefault(workload, {})[name] = seen.placements[workload]
        for workload in sorted(twice):
            problems.append(f"{workload} has another policy in one cluster than in another; it gets none")
        ambiguous = twice | {w for m in self._members.values() if m.view for w in m.view.seen.ambiguous}
        return FleetState(
            clusters={n: self._state(m) for n, m in self._members.items()},
            placements={w: p for w, p in placements.items() if w not in ambiguous},
            policies={w: p for w, p in chosen.items() if w not in ambiguous},
            problems=tuple(dict.fromkeys(problems)),
        )

    async def apply(self, workload: str, step: Step, placement: Placement) -> Outcome:
        """Carries out one step; see writes.py for what is compared."""
        member = self._members.get(step.cluster)
        if member is None:
            return Outcome("failed", f"{step.cluster}: there is no MemberCluster of that name")
        client, deadline_s = member.client, self._write_deadline_s
        now = self._clock()
        try:
            return await client.writes.run(
                lambda: writes.apply(client, workload, step, placement, now, deadline_s), deadline_s + GRACE_S
            )
        except ClusterError as error:
            return writes.outcome_of(error)

    async def check(self, *, rollouts: bool = False) -> tuple[Finding, ...]:
        """Asks every cluster for its version and for each right that is needed; for `rebalancer check`.

        Args:
            rollouts: whether there are any, which need more.
        """
        rights = (*permissions.MEMBER_RIGHTS, *(permissions.ROLLOUT_RIGHTS if rollouts else ()))
        found = await asyncio.gather(*(
            permissions.check(m.client, rights, self._observe_deadline_s)
            for m in self._members.values()
        ))  # fmt: skip
        return tuple(finding for part in found for finding in part)

    async def _look(self, member: _Member, policies: Sequence[Policy], now: float) -> None:
        observer = member.observer
        try:
            view = await member.client.reads.run(lambda: observer.look(policies, now), observer.deadline_s + GRACE_S)
        except ClusterError as error:
            member.error = str(error)
            return
        except Exception as error:  # noqa: BLE001  # what one cluster answers must never take the others along
            member.error = f"{member.cluster.name}: {type(error).__name__}: {error}"
            return
        member.view, member.seen_s, member.error = view, now, "; ".join(view.gaps)

    def _state(self, member: _Member) -> ClusterState:
        view = member.view
        if view is None:
            return ClusterState(
                member.cluster, None, Unknown("room-unknown", None, member.error), error=member.error
            )  # fmt: skip
        nodes = view.nodes
        if isinstance(nodes, Unknown):
            nodes = dataclasses.replace(nodes, detail=nodes.detail or member.error)
        return ClusterState(
            cluster=member.cluster,
            seen_s=member.seen_s,
            nodes=nodes,
            allocatable_cpu=view.allocatable_cpu,
            allocatable_memory=view.allocatable_memory,
            version=view.version,
            error=member.error,
            quotas=view.quotas,
        )
