"""The state of a path as one agent sees it, by the table of the design (3.8). Pure.

One agent can't tell a dead peer cluster from a cut path: that takes other vantage points, so it says `silent` and the
latency map, which has all of them, decides between `cluster_down`, `path_down` and `unknown` (never a reply).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PathState = Literal[
    "ok", "lossy", "peer_down", "silent", "uplink_down", "udp_blocked", "maintenance", "probe_sick", "unknown"
]
SICK_LAG_S = 1.0
LOSSY_RATIO = 0.01
"""Loss from which a path is called lossy for people; alerts and taints have their own, statistical thresholds."""


@dataclass(frozen=True, slots=True)
class Recent:
    """What settled about one peer in the last 30 s.

    Attributes:
        ok: answered probes, late ones included.
        lost_forward, lost_backward, lost_unknown: lost probes by direction.
        refused: probes answered by ICMP port unreachable: the host lives, the process doesn't.
        unreachable: probes answered by another ICMP error.
        own: probes that failed here: send_error, self_drop.
        unresolved: probes without an address to send them to, because the peer's name does not resolve.
        tcp_ok: TCP connects that worked.
        unverified: whether it gives no answer while its own probes arrive here and all fail their HMAC.
        ever: whether any reply was ever seen.
        draining: whether the peer is under planned maintenance.
    """

    ok: int = 0
    lost_forward: int = 0
    lost_backward: int = 0
    lost_unknown: int = 0
    refused: int = 0
    unreachable: int = 0
    own: int = 0
    unresolved: int = 0
    tcp_ok: int = 0
    unverified: bool = False
    ever: bool = False
    draining: bool = False

    @property
    def lost(self) -> int:
        """Probes that the path lost."""
        return self.lost_forward + self.lost_backward + self.lost_unknown + self.unreachable

    @property
    def heard(self) -> bool:
        """Whether its host said anything, be it a refusal or with another key: the own uplink works then."""
        return bool(self.ok or self.refused or self.tcp_ok or self.unverified)

    @property
    def tried(self) -> int:
        """Probes that had an address, so that they say something about the peer, the path or the own uplink."""
        return self.ok + self.lost + self.refused + self.own


@dataclass(frozen=True, slots=True)
class Vantage:
    """The agent's own health.

    Attributes:
        self_ok: whether its own reflector answers over loopback; None while that is not yet known.
        lag_s: how late its loop ran at worst in the last 30 s.
        own_drops: packets dropped at the own socket in the last 30 s.
        peers: peers to which probes were tried in the last 30 s.
        peers_answering: those of them whose host said anything.
        peers_unverified: those of them that are `Recent.unverified`.
    """

    self_ok: bool | None = True
    lag_s: float = 0.0
    own_drops: int = 0
    peers: int = 1
    peers_answering: int = 1
    peers_unverified: int = 0

    @property
    def failing(self) -> bool:
        """Whether the agent's own loopback, loop or socket fails."""
        return self.self_ok is False or self.lag_s > SICK_LAG_S or self.own_drops > 0

    @property
    def wrong_key(self) -> bool:
        """Whether most peers have another key: the own one is more likely wrong than all of theirs."""
        return 2 * self.peers_unverified > self.peers

    @property
    def sick(self) -> bool:
        """Whether nothing that the agent measures counts."""
        return self.failing or self.wrong_key


def judge_path(recent: Recent, vantage: Vantage) -> tuple[PathState, str]:
    """Returns the state of a path and the reason in words.

    Args:
        recent: the last 30 s of this peer.
        vantage: the last 30 s of the agent itself.
    """
    if vantage.failing:
        return "probe_sick", "the agent's own loopback, loop or socket fails: nothing it measures counts"
    if vantage.wrong_key:
        return "probe_sick", "the probes of most peers fail the HMAC here: look at this agent's keys_file"
    if recent.draining:
        return "maintenance", "marked as draining in the target list"
    if recent.ok:
        return _judge_answering(recent)
    if recent.unverified:
        return "unknown", "its probes arrive and fail the HMAC: its keys_file and this agent's differ"
    if recent.tried == 0:
        if recent.unresolved:
            # A name without an address says nothing about any path, whatever the other peers do.
            return "unknown", "its name was never resolved: look at the DNS and at the target list"
        return "unknown", "nothing settled in the last 30 s"
    if vantage.peers >= 2 and vantage.peers_answering == 0:
        return "uplink_down", "no peer at all answers: the own uplink"
    if recent.tcp_ok:
        return "udp_blocked", "TCP connects, UDP gets no answer"
    if recent.refused:
        return "peer_down", "the host answers that no process listens on the port"
    if recent.own == recent.tried:
        return "unknown", "no probe could be sent"
    if not recent.ever:
        return "unknown", "no reply was ever seen: is the firewall open?"
    return "silent", "no answer and no error: the path or the peer cluster is down"


def _judge_answering(recent: Recent) -> tuple[PathState, str]:
    lost = recent.lost
    ratio = lost / (lost + recent.ok)
    if ratio <= LOSSY_RATIO:
        return "ok", "answers"
    forward, backward = recent.lost_forward, recent.lost_backward
    if forward > 2 * backward:
        way = "mostly on the way out"
    elif backward > 2 * forward:
        way = "mostly on the way back"
    else:
        way = "both ways"
    return "lossy", f"{ratio:.1%} lost, {way}"
