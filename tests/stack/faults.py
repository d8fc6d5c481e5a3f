"""Faults for tests: a network that delays, loses and cuts. Killing and pausing parts is `Process.kill` and friends."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.stack.control import JSON, Client
from tests.stack.processes import Process, free_port, wait_for

ROOT = Path(__file__).resolve().parents[2]
BOTH = ("forward", "back")


class Relay:
    """TCP proxies and UDP relays in one process outside the test's own. Use as a context manager, or start/stop."""

    def __init__(self, folder: Path, *, seed: int = 0) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        port = free_port()
        argv = [sys.executable, "-m", "tests.stack.relay", str(port), str(seed)]
        self.process = Process("relay", argv, folder / "relay.log", cwd=ROOT)
        self._control = Client(f"http://127.0.0.1:{port}")

    def start(self) -> Relay:
        """Starts the process and waits until it takes orders."""
        self.process.start()
        wait_for(lambda: self._control.get("/state"), "relay", 15, owner=self.process)
        return self

    def stop(self) -> None:
        """Kills it; everything behind it is then unreachable."""
        self._control.close()
        self.process.kill()

    def __enter__(self) -> Relay:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def tcp(self, name: str, host: str, port: int) -> int:
        """Puts a proxy in front of a TCP server; returns the loopback port to use instead."""
        return self._add("tcp", name, host, port)

    def udp(self, name: str, host: str, port: int) -> int:
        """Relays UDP to a reflector; returns the loopback port that stands for this (source, destination)."""
        return self._add("udp", name, host, port)

    def _add(self, kind: str, name: str, host: str, port: int) -> int:
        own = free_port()
        self._control.post("/add", {"kind": kind, "name": name, "port": own, "target": [host, port]})
        return own

    def set_tcp(self, name: str, *, mode: str | None = None, delay_ms: float | None = None) -> None:
        """Changes a proxy: mode is pass, hang, cut or reset; delay_ms is added to every chunk. None leaves as is."""
        changes = {key: value for key, value in (("mode", mode), ("delay_ms", delay_ms)) if value is not None}
        self._control.post("/set", {"kind": "tcp", "name": name, "changes": changes})

    def set_udp(
        self,
        name: str,
        *,
        directions: tuple[str, ...] = BOTH,
        delay_ms: float | None = None,
        jitter_ms: float | None = None,
        loss: float | None = None,
        duplicate: float | None = None,
        cut: bool | None = None,
    ) -> None:
        """Changes a UDP path, per direction (`forward` goes to the reflector); None leaves a setting as it is."""
        settings: JSON = {
            "delay_ms": delay_ms, "jitter_ms": jitter_ms, "loss": loss, "duplicate": duplicate, "cut": cut
        }  # fmt: skip
        changes = {key: value for key, value in settings.items() if value is not None}
        self._control.post("/set", {"kind": "udp", "name": name, "directions": list(directions), "changes": changes})

    def state(self) -> JSON:
        """Packets carried and lost per UDP pair; mode, open and accepted connections per TCP proxy."""
        return self._control.get("/state")
