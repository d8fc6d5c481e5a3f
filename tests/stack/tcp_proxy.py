"""A TCP proxy in front of any server: it passes, delays, hangs, cuts or resets."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from dataclasses import dataclass, field
from typing import Any

Address = tuple[str, int]
MODES = ("pass", "hang", "cut", "reset")


@dataclass
class Door:
    """One proxied address.

    Attributes:
        mode: `pass`; `hang` keeps connections open and moves nothing; `cut` closes all and refuses new ones;
            `reset` answers with RST.
        delay_ms: Added to every chunk in each direction while passing.
    """

    name: str
    port: int
    target: Address
    mode: str = "pass"
    delay_ms: float = 0.0
    server: asyncio.Server | None = None
    passing: asyncio.Event = field(default_factory=asyncio.Event)
    open: set[asyncio.StreamWriter] = field(default_factory=set)
    accepted: int = 0


class TcpProxy:
    """Many doors on one event loop in a thread of its own."""

    def __init__(self) -> None:
        self.doors: dict[str, Door] = {}
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="tcp-proxy", daemon=True).start()

    def add(self, name: str, port: int, target: Address) -> None:
        """Opens a door on a loopback port; OSError when it is taken, ValueError for a known name."""
        if name in self.doors:
            raise ValueError(f"{name} is there already")
        asyncio.run_coroutine_threadsafe(self._open(name, port, target), self._loop).result(10)

    def set(self, name: str, changes: dict[str, Any]) -> None:
        """Changes `mode` and `delay_ms`; in force for open connections too when this returns."""
        unknown = set(changes) - {"mode", "delay_ms"}
        if unknown or changes.get("mode", "pass") not in MODES or changes.get("delay_ms", 0) < 0:
            raise ValueError(f"unknown or out of bounds: {changes}")
        asyncio.run_coroutine_threadsafe(self._set(self.doors[name], changes), self._loop).result(10)

    async def _open(self, name: str, port: int, target: Address) -> None:
        door = Door(name, port, target)
        door.passing.set()
        await self._listen(door)
        self.doors[name] = door

    async def _listen(self, door: Door) -> None:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._serve(door, reader, writer)

        door.server = await asyncio.start_server(accept, "127.0.0.1", door.port)

    async def _set(self, door: Door, changes: dict[str, Any]) -> None:
        door.delay_ms = float(changes.get("delay_ms", door.delay_ms))
        door.mode = str(changes.get("mode", door.mode))
        if door.mode == "hang":
            door.passing.clear()
        else:
            door.passing.set()
        if door.mode in ("cut", "reset"):
            for writer in list(door.open):
                _end(writer, reset=door.mode == "reset")
        if door.mode == "cut" and door.server:
            door.server.close()
            door.server = None
        elif door.mode != "cut" and door.server is None:
            await self._listen(door)

    async def _serve(self, door: Door, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        door.accepted += 1
        door.open.add(writer)
        onward: asyncio.StreamWriter | None = None
        try:
            if door.mode == "reset":
                _end(writer, reset=True)
                return
            await door.passing.wait()
            back, onward = await asyncio.open_connection(*door.target)
            door.open.add(onward)
            await asyncio.gather(self._pump(door, reader, onward), self._pump(door, back, writer))
        except OSError:
            _end(writer, reset=True)
        finally:
            for end in (writer, onward):
                if end is not None:
                    door.open.discard(end)
                    _end(end)

    async def _pump(self, door: Door, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if door.delay_ms:
                    await asyncio.sleep(door.delay_ms / 1000)
                await door.passing.wait()
                writer.write(data)
                await writer.drain()
        _end(writer)


def _end(writer: asyncio.StreamWriter, *, reset: bool = False) -> None:
    raw = writer.get_extra_info("socket")
    if reset and raw is not None:
        # Lingering for no time turns the close into a reset.
        with contextlib.suppress(OSError):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
    elif not writer.is_closing():
        writer.close()
