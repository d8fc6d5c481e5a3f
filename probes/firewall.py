"""What a firewall must let through for this agent, from the target list that also feeds the reflector's allow-list."""

from __future__ import annotations

from collections.abc import Iterable

from probes.config import AgentConfig
from probes.targets import Target


def allow_list(config: AgentConfig, targets: Iterable[Target]) -> str:
    """Returns a table of peer, direction, protocol, address and port.

    Args:
        config: the agent's configuration; `advertise` is the address the others know, where it is set.
        targets: the peers.
    """
    host, port = config.advertise or config.listen
    rows = [("PEER", "DIRECTION", "PROTOCOL", "REMOTE", "LOCAL_OR_REMOTE_PORT")]
    for target in sorted(targets):
        if target.cluster != config.cluster:
            for protocol in ("udp", "tcp") if config.tcp_fallback else ("udp",):
                rows.append((target.cluster, "out", protocol, target.host, str(target.port)))
                rows.append((target.cluster, "in", protocol, target.host, str(port)))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return f"# {config.cluster} is reached at {host}:{port}\n" + "\n".join(lines) + "\n"
