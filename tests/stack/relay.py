"""The network between the parts, as a process of its own: `python -m tests.stack.relay PORT [SEED]`.

A process of its own, so that a probe under test and the network it measures do not share an interpreter lock.
"""

from __future__ import annotations

import sys
import threading

from tests.stack.control import JSON, serve
from tests.stack.tcp_proxy import TcpProxy
from tests.stack.udp_relay import UdpRelay


def main(argv: list[str]) -> None:
    """Serves the control endpoint until it is killed."""
    sys.setswitchinterval(0.0005)  # a packet's time must not wait for another thread's 5 ms slice
    udp, tcp = UdpRelay(int(argv[1]) if len(argv) > 1 else 0), TcpProxy()

    def add(_: str, body: JSON) -> JSON:
        target = (str(body["target"][0]), int(body["target"][1]))
        if body["kind"] == "udp":
            udp.add(body["name"], int(body["port"]), target)
        else:
            tcp.add(body["name"], int(body["port"]), target)
        return {}

    def change(_: str, body: JSON) -> JSON:
        if body["kind"] == "tcp":
            tcp.set(body["name"], body["changes"])
            return {}
        pair = udp.pairs[body["name"]]
        for direction in body["directions"]:
            if direction not in ("forward", "back"):
                raise ValueError(f"unknown direction {direction}")
            setattr(pair, direction, getattr(pair, direction).changed(body["changes"]))
        return {}

    def state(_: str, __: JSON) -> JSON:
        return {
            "udp": {name: dict(pair.carried) for name, pair in udp.pairs.items()},
            "tcp": {
                name: {"mode": door.mode, "open": len(door.open), "accepted": door.accepted}
                for name, door in tcp.doors.items()
            },
        }

    serve(int(argv[0]), {"POST /add": add, "POST /set": change, "GET /state": state})
    threading.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1:])
