"""Whether the address that the others know this agent by (`advertise`) leads here: their probes are the proof. Pure.

That address stands in the target lists of the peers and nowhere else, so a request of a peer that arrives came through
it. Asking a peer to try it would need a way to make a reflector send to an address of the asker's choice, which is what
attackers want of reflectors; and an own probe of it from inside proves nothing, because Kubernetes short-cuts the
addresses of load balancers and many NATs don't turn packets back.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

WINDOW_S = 60.0


class Incoming:
    """When each peer was last heard, from the reflector's counters.

    Args:
        own: own cluster, whose loopback probes prove nothing.
        begun_s: monotonic time of the start.
    """

    def __init__(self, own: str, begun_s: float) -> None:
        self._own = own
        self._begun_s = begun_s
        self._counts: dict[tuple[str, str], int] = {}
        self._heard_s: dict[str, float] = {}
        self._failed_s: dict[str, float] = {}

    def see(self, packets: Mapping[tuple[str, str], int], now_s: float) -> None:
        """Takes the reflector's counters: (source cluster, result) -> packets."""
        for (cluster, result), count in packets.items():
            seen_s = {"ok": self._heard_s, "auth": self._failed_s}.get(result)
            if seen_s is not None and cluster != self._own and count != self._counts.get((cluster, result), 0):
                self._counts[cluster, result] = count
                seen_s[cluster] = now_s

    def unverified(self, now_s: float) -> list[str]:
        """Returns the peers whose probes arrived in the last minute and all failed their HMAC: their keys differ.

        The name is that of the address, which is not proved; so nothing but a judgement may hang on it.
        """
        since_s = now_s - WINDOW_S
        failed = {name for name, at_s in self._failed_s.items() if at_s >= since_s and name != "unknown"}
        return sorted(failed - {name for name, at_s in self._heard_s.items() if at_s >= since_s})

    def judge(self, answering: Collection[str], now_s: float, *, shared: bool = False) -> tuple[bool | None, str]:
        """Returns whether the peers reach this agent (None: can't be told), and the sentence for people.

        Args:
            answering: peers that answer this agent's own probes, so that they live and could probe it.
            now_s: monotonic time.
            shared: whether a peer has the same address as this agent, so that its probes look like own ones.
        """
        heard = sorted(name for name, at_s in self._heard_s.items() if now_s - at_s <= WINDOW_S)
        if heard:
            deaf = sorted(set(answering) - set(heard)) if "unknown" not in heard else []
            return True, f"reached by {_some(heard)}" + (f", not by {_some(deaf)}" if deaf else "")
        if not answering:
            return None, "no peer answers, so nobody can tell"
        if now_s - self._begun_s <= WINDOW_S:
            return None, "not reached yet"
        if shared:
            return None, "a peer has the same address as this agent, so nobody can tell whose probes arrive"
        return False, (
            f"NOT reached: {_some(sorted(answering))} answer, but no probe of theirs arrived for {WINDOW_S:.0f} s; "
            "check `advertise`, their target lists and the firewall"
        )


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
