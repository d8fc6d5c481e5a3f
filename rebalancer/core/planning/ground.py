"""What all workloads share in one cycle: sight, taints, rooms, and distances between origins and clusters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from rebalancer.core import moves, network, room, sight, windows
from rebalancer.core.capacity import Learned
from rebalancer.core.model import Cluster, Effect, Placement, Price, Sight, Snapshot, Taint, Unknown
from rebalancer.core.moves import MoveSettings
from rebalancer.core.network import NetworkMemory, NetworkSettings
from rebalancer.core.placement import Warm
from rebalancer.core.policy import Policy
from rebalancer.core.scaling import Recommendations, ScalingSettings
from rebalancer.core.starts import Starts

QUALITY_TAINT = "network-quality"
LOSS_FACTOR = 10.0
LOSS_FLOOR_MS = 200.0
"""A lost packet costs about one retransmission timeout, at least 200 ms (the floor of common TCP stacks), and a request
takes about ten packets: penalty = 10 * loss * max(200 ms, 2 RTT)."""


@dataclass(frozen=True, slots=True)
class PlanSettings:
    """Settings of the planner that are not a policy's.

    Attributes:
        kernels: whether the compiled solver is ready; until it is, a large fleet is solved exactly in batches.
        seed: decides the order in which the compiled solver looks at workloads.
    """

    scaling: ScalingSettings = ScalingSettings()
    moves: MoveSettings = MoveSettings()
    network: NetworkSettings = NetworkSettings()
    kernels: bool = False
    seed: int = 0


@dataclass(frozen=True, slots=True)
class PlanMemory:
    """What planning needs from before.

    Attributes:
        clocks: loss-of-sight clock by cluster; the one part that must survive a restart.
        network: hysteresis of links.
        recommendations: by workload; a cold one only delays decreases.
        capacity: samples of CPU by load, by workload; a cold one takes idle CPU for the load's until it sees the line.
        warm: prices and plans of a large fleet's last cycle; a cold one only costs time.
        starts: recent starts of replicas by workload; a cold one only falls back to the default lead.
    """

    clocks: Mapping[str, sight.Clock] = field(default_factory=dict)
    network: NetworkMemory = field(default_factory=NetworkMemory)
    recommendations: Mapping[str, Recommendations] = field(default_factory=dict)
    capacity: Mapping[str, Learned] = field(default_factory=dict)
    warm: Warm | None = None
    starts: Mapping[str, Starts] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ground:
    """The common ground of one cycle.

    Attributes:
        regions: cluster -> region.
        rooms: cluster -> room or Unknown.
        lent: likewise with the reserve, into which a replica may begin while the one that it replaces still stands.
        taints: cluster -> the user's taints and ours.
        clocks, brake: loss of sight.
        prices: cluster -> price now, with the factors of the windows that are open.
        to_come: cluster -> nodes that its autoscaler could add.
        grown: clusters whose nodes to come somebody counts on.
        known: answers of `origin_ms`, which a thousand workloads ask for in common.
        shapes: cluster -> shape -> answer of `fits`, so that its cost grows with the shapes, not with the workloads.
    """

    snapshot: Snapshot
    regions: Mapping[str, str]
    rooms: Mapping[str, room.Room | Unknown]
    lent: Mapping[str, room.Room | Unknown]
    taints: Mapping[str, tuple[Taint, ...]]
    clocks: Mapping[str, sight.Clock]
    brake: bool
    settings: PlanSettings
    network_memory: NetworkMemory
    prices: Mapping[str, Price]
    to_come: Mapping[str, int]
    grown: set[str] = field(default_factory=set)
    known: dict[tuple[str, str], tuple[float, float] | None] = field(default_factory=dict)
    shapes: dict[str, dict[room.Shape, int]] = field(default_factory=dict)

    def cluster(self, name: str) -> Cluster:
        """Returns the declaration of a cluster."""
        return self.snapshot.clusters[name].cluster

    def sight_of(self, name: str, lost_after_s: float) -> Sight:
        """Returns how well a cluster is seen, by a policy's patience."""
        return sight.judge(self.clocks[name], lost_after_s, self.snapshot.at_s, brake=self.brake)

    def origin_ms(self, origin: str, cluster: str) -> tuple[float, float] | None:
        """Returns (round-trip time in ms, loss ratio) from an origin to a cluster; None if nobody measured it.

        Unknown loss counts as none: it adds no penalty to a path that answers.
        """
        key = (origin, cluster)
        if key not in self.known:
            self.known[key] = self._origin_ms(origin, cluster)
        return self.known[key]

    def fits(self, cluster: str, shape: room.Shape, lead_s: float, *, lent: bool = False) -> int:
        """How many replicas fit in a cluster, with its reserve where it is lent; 0 where its room is unknown.

        Nodes that can appear count for those who plan at least as far ahead as a node takes.
        """
        space = (self.lent if lent else self.rooms)[cluster]
        if isinstance(space, Unknown):
            return 0
        if lent:
            # Asked for by the few that begin, so that it is not worth keeping.
            return room.fits(space, shape) + self._could_appear(cluster, shape, lead_s)
        of = self.shapes.setdefault(cluster, {})
        if shape not in of:
            of[shape] = room.fits(space, shape)
        return of[shape] + self._could_appear(cluster, shape, lead_s)

    def _could_appear(self, cluster: str, shape: room.Shape, lead_s: float) -> int:
        elastic, nodes = self.cluster(cluster).elastic, self.to_come[cluster]
        if elastic is None or nodes == 0 or elastic.provision_s > lead_s:
            return 0
        node = room.fresh(elastic)
        if not room.takes(node, shape):
            return 0
        self.grown.add(cluster)
        return nodes * room.on(node, shape)

    def within_quota(self, cluster: str, workload: str, shape: room.Shape, most: int) -> int:
        """How many of `most` replicas the quotas of a workload's namespace leave; 0 where these are unknown."""
        quotas = self.snapshot.clusters[cluster].quotas
        if isinstance(quotas, Unknown):
            return 0
        return room.within(quotas.get(workload.partition("/")[0], {}), shape, most)

    def free(self, *, lent: bool = False) -> tuple[dict[str, float], dict[str, float]]:
        """Free cores and bytes by cluster for all workloads together, as far as their shapes were asked for."""
        cpu, memory = {}, {}
        for cluster, space in (self.lent if lent else self.rooms).items():
            if not isinstance(space, Unknown):
                more = room.dedicated(space, self.shapes.get(cluster, {}))
                cpu[cluster], memory[cluster] = space.cpu + more[0], space.memory + more[1]
                elastic = self.cluster(cluster).elastic
                if cluster in self.grown and elastic is not None:
                    cpu[cluster] += self.to_come[cluster] * elastic.cpu
                    memory[cluster] += self.to_come[cluster] * elastic.memory
        return cpu, memory

    def _origin_ms(self, origin: str, cluster: str) -> tuple[float, float] | None:
        latency = self.snapshot.network
        rtt = network.origin_rtt(latency, self.regions, origin, cluster)
        if rtt is None:
            return None
        vantages = [c for c, region in self.regions.items() if region == origin and c != cluster]
        if self.regions[cluster] == origin or not vantages:
            return rtt * 1000.0, 0.0
        nearest = min(vantages, key=lambda v: (latency.rtt_s(v, cluster) or float("inf"), v))
        return rtt * 1000.0, latency.loss(nearest, cluster) or 0.0

    def between_ms(self, a: str, b: str) -> float | None:
        """Returns the round-trip time in ms between two clusters; None if nobody measured it."""
        if a == b:
            return 0.0
        rtt = self.snapshot.network.rtt_s(a, b)
        return None if rtt is None else rtt * 1000.0

    def data_ms(self, policy: Policy, cluster: str) -> float | None:
        """Returns the mean round-trip time in ms to the data, by share; None without data or measurement."""
        total = 0.0
        for where, share in policy.data.items():
            ms = self.between_ms(cluster, where)
            if ms is None:
                return None
            total += share * ms
        return total if policy.data else None

    def calls_ms(self, policy: Policy, cluster: str) -> float | None:
        """Returns the round-trip times in ms that one request's calls to what it needs add up to.

        Each call goes to the nearest cluster where the dependency stands. None without dependencies, or where one of
        them has no known distance.
        """
        total = 0.0
        for need in policy.depends:
            standing = need.clusters or tuple(
                c for c, p in self.snapshot.placements.get(need.workload, {}).items() if p.wanted > 0
            )
            known = [ms for c in standing if c in self.regions and (ms := self.between_ms(cluster, c)) is not None]
            if not known:
                return None
            total += need.calls * min(known)
        return total if policy.depends else None


def penalty_ms(rtt_ms: float, loss: float) -> float:
    """Round-trip time with what losses add to it, in ms."""
    return rtt_ms + LOSS_FACTOR * loss * max(LOSS_FLOOR_MS, 2.0 * rtt_ms)


def _requests(many: Iterable[tuple[Placement, int]]) -> dict[str, tuple[float, float]]:
    """(cores, bytes) by cluster that so many replicas of placements request."""
    result: dict[str, tuple[float, float]] = {}
    for found, count in many:
        cpu, memory = result.get(found.cluster, (0.0, 0.0))
        result[found.cluster] = cpu + count * found.cpu, memory + count * found.memory
    return result


def _promised(snapshot: Snapshot) -> dict[str, tuple[float, float]]:
    """(cores, bytes) by cluster of replicas that were asked for but have no pod yet: their room is taken already."""

    def coming() -> Iterator[tuple[Placement, int]]:
        for placements in snapshot.placements.values():
            wanted = moves.effective(placements)
            for name, found in placements.items():
                yield found, max(0, max(wanted[name], found.wanted) - found.ready - found.unavailable_pods)

    return _requests(coming())


def _unready(snapshot: Snapshot) -> dict[str, tuple[float, float]]:
    """(cores, bytes) by cluster of pods that are not ready: some of them may wait for a node to come."""
    every = (found for placements in snapshot.placements.values() for found in placements.values())
    return _requests((found, found.unavailable_pods) for found in every)


def _less(space: room.Room | Unknown, promised: tuple[float, float]) -> room.Room | Unknown:
    if isinstance(space, Unknown):
        return space
    return room.Room(max(0.0, space.cpu - promised[0]), max(0.0, space.memory - promised[1]), space.nodes)


def _link_weights(snapshot: Snapshot) -> dict[tuple[str, str], float] | None:
    """What a link matters: the requests/s of the users at its two ends, None where nobody's origin is known.

    Not the requests that cross it now: moving replicas off a bad link would take its weight away, lift the taint, and
    bring them back.
    """
    users: dict[str, float] = {}
    for demand in snapshot.demand.values():
        if not isinstance(demand, Unknown) and demand.unit == "requests/s":
            for origin, rate in demand.by_origin.items():
                users[origin] = users.get(origin, 0.0) + (rate if rate > 0 else 0.0)
    if not users:
        return None
    at = {name: users.get(state.cluster.region, 0.0) for name, state in snapshot.clusters.items()}
    return {network.undirected(a, b): at[a] + at[b] for a in at for b in at if a < b}


def lay(snapshot: Snapshot, memory: PlanMemory, settings: PlanSettings) -> Ground:
    """Works out the common ground of a cycle."""
    now = snapshot.at_s
    clocks = sight.tick(memory.clocks, {n: s.seen_s for n, s in snapshot.clusters.items()}, now)
    _, tainted, network_memory = network.judge(
        snapshot.network, memory.network, settings.network, now,
        usual_rtt_s=snapshot.usual_rtt_s, weights=_link_weights(snapshot),
    )  # fmt: skip
    promised, unready = _promised(snapshot), _unready(snapshot)
    taints = {}
    for name, state in snapshot.clusters.items():
        ours = (Taint(QUALITY_TAINT, tainted[name], Effect.NO_SCHEDULE),) if name in tainted else ()
        taints[name] = (*state.cluster.taints, *ours)
    return Ground(
        snapshot=snapshot,
        regions={n: s.cluster.region for n, s in snapshot.clusters.items()},
        rooms={n: _less(room.of(s), promised.get(n, (0.0, 0.0))) for n, s in snapshot.clusters.items()},
        lent={n: _less(room.of(s, 0.0), promised.get(n, (0.0, 0.0))) for n, s in snapshot.clusters.items()},
        taints=taints,
        clocks=clocks,
        brake=sight.braked(clocks, now),
        settings=settings,
        network_memory=network_memory,
        prices={
            n: windows.price_at(s.cluster.price, s.cluster.price_windows, now) for n, s in snapshot.clusters.items()
        },
        to_come={n: room.to_come(s, unready.get(n, (0.0, 0.0))) for n, s in snapshot.clusters.items()},
    )
