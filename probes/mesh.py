"""The peers of an agent: from targets to paths and counters, their addresses, their recent past and their state."""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from probes.config import PRIVATE_NETWORKS, AgentConfig, Network
from probes.exposition import Series
from probes.rate import changed
from probes.sender import Path, Sender
from probes.states import PathState, Recent, Vantage, judge_path
from probes.stats import OUTCOME_INDEX, PeerStats
from probes.targets import Diff, Target, literal_address, next_resolution_s, resolve
from probes.tcp import TcpProber

RECENT_S = 30.0
SNAPSHOT_EVERY_S = 5.0
MAX_RESOLUTIONS = 8
APPLY_BATCH = 100
_OWN = ("send_error", "self_drop")


class Past(NamedTuple):
    """Counters of a peer at a moment.

    Attributes:
        outcomes: settled probes over UDP.
        tcp_ok: connects answered over TCP.
        samples, lost: as `PeerStats.path_samples`.
        rtt_min_s: smallest round trip of the minute before.
    """

    outcomes: list[int]
    tcp_ok: int
    samples: int
    lost: int
    rtt_min_s: float | None


@dataclass(slots=True)
class Peer:
    """One peer cluster.

    Attributes:
        cluster, region: its names.
        stats: counters over UDP, shared by all its paths.
        tcp: counters over TCP; None until the fallback is needed for the first time.
        paths: target key -> path.
        targets: target key -> target.
        unverified: as `Recent.unverified`.
        history: what it was every 5 s for 30 s.
    """

    cluster: str
    region: str
    stats: PeerStats = field(default_factory=PeerStats)
    tcp: PeerStats | None = None
    paths: dict[tuple[str, str, int], Path] = field(default_factory=dict)
    targets: dict[tuple[str, str, int], Target] = field(default_factory=dict)
    unverified: bool = False
    history: deque[Past] = field(default_factory=lambda: deque(maxlen=int(RECENT_S / SNAPSHOT_EVERY_S) + 1))

    @property
    def draining(self) -> bool:
        """Whether all its targets are under planned maintenance."""
        return all(target.draining for target in self.targets.values())

    def answered_since(self, past: Past) -> bool:
        """Returns whether UDP answered since a moment."""
        samples, lost = self.stats.path_samples()
        return samples - lost > past.samples - past.lost

    def recent(self) -> Recent:
        """Returns what settled in the last 30 s."""
        now = self.stats.outcomes
        before = self.history[0].outcomes if self.history else [0] * len(now)
        tcp_ok = self.tcp.outcomes[0] - (self.history[0].tcp_ok if self.history else 0) if self.tcp else 0
        seen = {name: now[index] - before[index] for name, index in OUTCOME_INDEX.items()}
        return Recent(
            ok=seen["ok"] + seen["late"],
            lost_forward=seen["lost_forward"],
            lost_backward=seen["lost_backward"],
            lost_unknown=seen["lost_unknown"],
            refused=seen["refused"],
            unreachable=seen["unreachable"],
            own=sum(seen[name] for name in _OWN),
            unresolved=seen["resolve_error"],
            tcp_ok=tcp_ok,
            unverified=self.unverified,
            ever=self.stats.last_ok_s is not None,
            draining=self.draining,
        )


def _own_host(config: AgentConfig) -> str:
    host = config.listen[0]
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


class Mesh:
    """Keeps paths, names and addresses in step with the target list.

    Args:
        config: the agent's configuration.
        sender: sends to the paths.
        restore: gives back the counters of a peer from before a restart, if there are any.
    """

    def __init__(
        self, config: AgentConfig, sender: Sender, restore: Callable[[str, str], PeerStats | None] | None = None
    ) -> None:
        self._config = config
        self._sender = sender
        self._restore = restore or (lambda _cluster, _proto: None)
        self._names: dict[str, str] = {}
        self._hosts: frozenset[str] = frozenset()
        self._own_hosts = frozenset((_own_host(config),))
        self._due: dict[tuple[str, str, int], float] = {}
        self._resolving: set[asyncio.Task[None]] = set()
        self._networks: tuple[Network, ...] = (*PRIVATE_NETWORKS, *config.allow)
        self._renamed = True
        self.active = True
        self.peers: dict[str, Peer] = {}
        self.self_stats = PeerStats()
        self.self_path: Path | None = None

    def probe_self(self) -> None:
        """Adds the path to the own reflector over loopback, which tells a sick probe from a sick network."""
        self.self_path = self._sender.add("(self)", self.self_stats)
        self._place(self.self_path, _own_host(self._config), self._config.listen[1])

    @property
    def targets(self) -> list[Target]:
        """The target list in force, without the own cluster."""
        return [target for peer in self.peers.values() for target in peer.targets.values()]

    def applying(self, change: Diff) -> Iterator[None]:
        """Makes a change, a batch at each step, so that the loop need not wait; what is not in it is left alone."""
        moving = {target.cluster for target in change.added}
        steps = (
            *((self._remove, target) for target in change.removed if target.cluster not in moving),
            *((self._add, target) for target in change.added),
            # A peer at another address keeps its counters, because it is never without one.
            *((self._remove, target) for target in change.removed if target.cluster in moving),
            *((self._change, target) for target in change.changed),
        )
        for index, (step, target) in enumerate(steps, 1):
            step(target)
            if index % APPLY_BATCH == 0:
                yield
        self._rename()

    def _add(self, target: Target) -> None:
        peer = self.peers.get(target.cluster)
        if peer is None:
            stats = self._restore(target.cluster, "udp") or PeerStats()
            peer = self.peers[target.cluster] = Peer(target.cluster, target.region, stats=stats)
            peer.tcp = self._restore(target.cluster, "tcp")
        peer.targets[target.key] = target
        self._start(peer, target)

    def _change(self, target: Target) -> None:
        peer = self.peers[target.cluster]
        peer.targets[target.key] = target
        peer.region = target.region
        if target.draining:
            self._stop(peer, target)
        elif target.key not in peer.paths:
            self._start(peer, target)

    def set_active(self, active: bool) -> None:
        """Says whether this agent probes its peers, or reflects only because others of its cluster were elected."""
        if active != self.active:
            self.active = active
            for peer in self.peers.values():
                for target in peer.targets.values():
                    if active:
                        self._start(peer, target)
                    else:
                        self._stop(peer, target)
                peer.history.clear()

    def _start(self, peer: Peer, target: Target) -> None:
        if target.draining or not self.active:
            return
        path = self._sender.add(peer.cluster, peer.stats)
        peer.paths[target.key] = path
        if not self._place(path, target.host, target.port):
            self._due[target.key] = 0.0

    def _stop(self, peer: Peer, target: Target) -> None:
        path = peer.paths.pop(target.key, None)
        self._due.pop(target.key, None)
        if path is not None:
            self._sender.remove(path)

    def _remove(self, target: Target) -> None:
        peer = self.peers[target.cluster]
        self._stop(peer, target)
        del peer.targets[target.key]
        if not peer.targets:
            del self.peers[target.cluster]

    @staticmethod
    def _place(path: Path, host: str, port: int) -> bool:
        known = literal_address(host, port)
        if known is not None:
            path.place(*known)
        return known is not None

    def _rename(self) -> None:
        names: dict[str, set[str]] = {}
        for peer in self.peers.values():
            for key, target in peer.targets.items():
                path = peer.paths.get(key)
                host = str(path.address[0]) if path and path.address else target.host
                names.setdefault(host, set()).add(peer.cluster)
        self._renamed = True
        self._hosts = frozenset(names)
        # Two clusters behind one address can't be told apart by it.
        self._names = {host: next(iter(clusters)) for host, clusters in names.items() if len(clusters) == 1}

    def name_of(self, host: str) -> str:
        """Returns the cluster that an address belongs to, or "unknown"."""
        if host in self._own_hosts:
            return self._config.cluster
        return self._names.get(host, "unknown")

    @property
    def shares_address(self) -> bool:
        """Whether a peer has this agent's own address: behind one NAT, or all on one machine."""
        return not self._own_hosts.isdisjoint(self._hosts)

    def allows(self, host: str) -> bool:
        """Returns whether an address may be answered without keys: a target, or in an allowed network."""
        if host in self._hosts or host in self._own_hosts:
            return True
        address = ipaddress.ip_address(host.partition("%")[0])
        return any(address in network for network in self._networks if network.version == address.version)

    def resolve_due(self, now_s: float) -> None:
        """Starts the resolutions that are due, at most eight at a time."""
        for key, due_s in list(self._due.items()):
            if due_s <= now_s and len(self._resolving) < MAX_RESOLUTIONS:
                self._due[key] = now_s + next_resolution_s()
                task = asyncio.ensure_future(self._resolve(key))
                self._resolving.add(task)
                task.add_done_callback(self._resolving.discard)

    async def _resolve(self, key: tuple[str, str, int]) -> None:
        found = await resolve(key[1], key[2])
        peer = self.peers.get(key[0])
        path = peer.paths.get(key) if peer else None
        if path is not None and found is not None and (path.family, path.address) != found:
            path.place(*found)
            self._renamed = False

    def rename_due(self) -> None:
        """Takes addresses that were resolved meanwhile into the allow-list, many at once."""
        if not self._renamed:
            self._rename()

    def fall_back(self, tcp: TcpProber) -> None:
        """Probes over TCP the peers that gave no answer over UDP for 30 s; stops when UDP answers again."""
        for peer in self.peers.values():
            if len(peer.history) != peer.history.maxlen or peer.answered_since(peer.history[0]):
                continue
            recent = peer.recent()
            path = next((path for path in peer.paths.values() if path.address is not None), None)
            if path is None or path.address is None or recent.own > recent.lost + recent.refused:
                continue
            if peer.tcp is None:
                peer.tcp = PeerStats()
            tcp.probe(peer.cluster, peer.tcp, path.family, path.address, max(1.0, self._config.interval_s))

    def snapshot(self, now_s: float) -> None:
        """Keeps the present counters for `Peer.recent` and looks closer at what changed; called every 5 s."""
        for peer in self.peers.values():
            stats = peer.stats
            samples, lost = stats.path_samples()
            tcp_ok = peer.tcp.outcomes[0] if peer.tcp else 0
            past = Past(list(stats.outcomes), tcp_ok, samples, lost, stats.rtt_min.get(now_s))
            if peer.history and self._news(peer.history[0], past):
                for path in peer.paths.values():
                    self._sender.boost(path, now_s)
            peer.history.append(past)

    @staticmethod
    def _news(before: Past, now: Past) -> bool:
        lost = now.lost - before.lost
        answered = now.samples - before.samples - lost
        return changed(ok=answered, lost=lost, rtt_min_s=now.rtt_min_s, rtt_min_before_s=before.rtt_min_s)

    def answering(self) -> list[str]:
        """Returns the peers that answered in the last 30 s."""
        return [name for name, peer in self.peers.items() if peer.history and peer.answered_since(peer.history[0])]

    def mark_unverified(self, names: Collection[str]) -> None:
        """Takes whose probes fail their HMAC; one that answers all the same has lost probes like any other."""
        answering = self.answering()
        for name, peer in self.peers.items():
            peer.unverified = name in names and name not in answering
            for path in peer.paths.values():
                path.session.key_differs = peer.unverified

    def vantage(self, *, lag_s: float, own_drops: int, now_unix_s: float) -> Vantage:
        """Returns the agent's own health.

        Args:
            lag_s: worst lag of the loop in the last 30 s.
            own_drops: packets dropped in the last 30 s.
            now_unix_s: wall clock time.
        """
        recents = [peer.recent() for peer in self.peers.values() if not peer.draining]
        last = self.self_stats.last_ok_s
        settled = sum(self.self_stats.outcomes)
        fresh = last is not None and now_unix_s - last < max(10.0, 5 * self._config.interval_s)
        return Vantage(
            self_ok=fresh if settled else None,
            lag_s=lag_s,
            own_drops=own_drops,
            peers=sum(1 for recent in recents if recent.tried or recent.unverified),
            peers_answering=sum(1 for recent in recents if recent.heard),
            peers_unverified=sum(1 for recent in recents if recent.unverified),
        )

    def states(self, vantage: Vantage) -> dict[str, tuple[PathState, str]]:
        """Returns state and reason of every peer."""
        return {name: judge_path(peer.recent(), vantage) for name, peer in self.peers.items()}

    def series(self) -> list[Series]:
        """Returns what is to be exposed, in the order of names."""
        found: list[Series] = []
        if not self.active:
            return found  # counters that stand still would be read as a silent network
        for name, peer in sorted(self.peers.items()):
            addresses = tuple(f"{host}:{port}" for _cluster, host, port in sorted(peer.targets))
            for proto, stats, flows in (("udp", peer.stats, self._config.flows), ("tcp", peer.tcp, 1)):
                if stats is not None:
                    found.append(Series(self._config.cluster, name, proto, stats, addresses, peer.region, flows))
        return found

    def table(self, vantage: Vantage) -> str:
        """Returns the table of /debug/peers."""
        rows: list[tuple[str, ...]] = []
        rows.append(
            ("PEER", "REGION", "STATE", "RTT_MS", "OK", "FWD", "BACK", "UNKNOWN", "LAST_OK_S", "ADDRESS", "WHY")
        )
        now = time.time()
        for name, (state, why) in sorted(self.states(vantage).items()):
            peer = self.peers[name]
            recent, stats = peer.recent(), peer.stats
            rtt = "-" if stats.last_rtt_s is None else f"{stats.last_rtt_s * 1e3:.3f}"
            age = "never" if stats.last_ok_s is None else f"{max(0.0, now - stats.last_ok_s):.1f}"
            address = " ".join(f"{host}:{port}" for _cluster, host, port in sorted(peer.targets))
            counts = (str(n) for n in (recent.ok, recent.lost_forward, recent.lost_backward, recent.lost_unknown))
            rows.append((name, peer.region or "-", state, rtt, *counts, age, address, why))
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        return "".join("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() + "\n" for row in rows)
