"""STAMP is spoken with an implementation that is not ours: stamp-suite (Rust, RFC 8762 and 8972), both ways.

It is not needed to run or build anything here; where it is missing, one line says how to get it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from probes import sockets
from probes.keys import KeyRing
from probes.reflector import Reflector
from probes.sender import Sender, SenderSettings
from probes.stats import OUTCOME_INDEX, PeerStats
from tests.stack.processes import free_port

BINARY = os.environ.get("STAMP_SUITE") or shutil.which("stamp-suite") or str(Path.home() / ".cargo/bin/stamp-suite")
KEYS = KeyRing({1: bytes(range(32))}, active=1)
COUNT = 20
MODES = [
    pytest.param("O", "NTP", id="plain, NTP stamps"),
    pytest.param("O", "PTP", id="plain, PTP stamps"),
    pytest.param("A", "NTP", id="authenticated"),
    pytest.param("A", "PTP", id="authenticated, PTP stamps"),
]

pytestmark = pytest.mark.skipif(
    not Path(BINARY).is_file(),
    reason="no stamp-suite: `cargo install stamp-suite --features ttl-nix`, or name it by STAMP_SUITE",
)


def command(mode: str, clock: str, tmp_path: Path, *more: str) -> list[str]:
    key = tmp_path / "key"
    key.write_text(KEYS.keys[1].hex())
    key.chmod(0o600)
    return [BINARY, "-A", mode, "-K", clock, *(("--hmac-key-file", str(key)) if mode == "A" else ()), *more]


@contextlib.contextmanager
def their_reflector(arguments: list[str], port: int) -> Iterator[None]:
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if "listening on" in line and str(port) in line:
                    break
            yield
        finally:
            process.terminate()
            process.communicate(timeout=10)


@pytest.mark.parametrize(("mode", "clock"), MODES)
def test_our_sender_measures_against_their_reflector(mode: str, clock: str, tmp_path: Path) -> None:
    port = free_port()
    where = ("-i", "--stateful-reflector", "-S", "127.0.0.1", "-o", str(port))
    stats = PeerStats()

    async def probe() -> None:
        sender = Sender(SenderSettings(interval_s=0.02), keys=KEYS if mode == "A" else None)
        sender.start(asyncio.get_running_loop())
        sender.add("theirs", stats).place(socket.AF_INET, ("127.0.0.1", port))
        try:
            async with asyncio.timeout(20):
                while sum(stats.outcomes) < COUNT:
                    await asyncio.sleep(0.05)
        finally:
            sender.close()

    with sockets.stamping(), their_reflector(command(mode, clock, tmp_path, *where), port):
        asyncio.run(probe())
    assert stats.outcomes[OUTCOME_INDEX["ok"]] == sum(stats.outcomes), stats.outcomes
    assert 0 < stats.rtt_sum_s / stats.rtt_count < 0.05


@pytest.mark.parametrize(("mode", "clock"), MODES)
def test_our_reflector_answers_their_sender(mode: str, clock: str, tmp_path: Path) -> None:
    with sockets.stamping(), contextlib.closing(sockets.open_udp(socket.AF_INET, "127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
        ssid = KEYS.tag_ssid(7)  # the key's number is in the session id, for both sides

        async def reflect() -> tuple[str, Reflector]:
            reflector = Reflector(
                sock, keys=KEYS if mode == "A" else None, allows=lambda _host: True, name_of=lambda _host: "theirs"
            )
            asyncio.get_running_loop().add_reader(sock, reflector.on_readable)
            arguments = command(
                mode, clock, tmp_path, "-r", "127.0.0.1", "-p", str(port), "-c", str(COUNT), "-d", "20", "-L", "2",
                "--ssid", str(ssid),
            )  # fmt: skip
            process = await asyncio.create_subprocess_exec(
                *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
            )
            async with asyncio.timeout(30):
                out, _ = await process.communicate()
            return out.decode(), reflector

        out, reflector = asyncio.run(reflect())
    told = {name: int(value) for name, value in re.findall(r"Packets (sent|received|lost): (\d+)", out)}
    assert told == {"sent": COUNT, "received": COUNT, "lost": 0}, out
    assert reflector.packets == {("theirs", "ok"): COUNT}
