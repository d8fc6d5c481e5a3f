"""The fallback where UDP is blocked: TCP connects to the peer's port, timed by the kernel.

`TCP_INFO.tcpi_rtt` is the kernel's own round trip of the handshake; a user-space clock around the connect would
be off by the loop's delays (measured: 13 ms against 25 us on a busy core). A retransmitted SYN counts as lost, because
its time is the timer's and not the path's. The kernel also accepts for a process that hangs, so a connect counts only
when the peer's process has closed it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import struct
import time

from probes.sockets import SocketAddress
from probes.stats import PeerStats

CONNECT_DEADLINE_S = 2.0
MAX_CONNECTS = 32
_TCPI_RTT_OFFSET = 68
_TCPI_TOTAL_RETRANS_OFFSET = 100
_SYN_TIMER_S = 0.9
_NO_LINGER = struct.pack("ii", 1, 0)


def read_tcp_info(info: bytes) -> tuple[float, int] | None:
    """Returns (round-trip time in s, retransmissions) of a `struct tcp_info`, None if it is too short."""
    if len(info) < _TCPI_TOTAL_RETRANS_OFFSET + 4:
        return None
    rtt_us = struct.unpack_from("=I", info, _TCPI_RTT_OFFSET)[0]
    retransmissions = struct.unpack_from("=I", info, _TCPI_TOTAL_RETRANS_OFFSET)[0]
    return rtt_us / 1e6, retransmissions


async def connect_once(family: int, address: SocketAddress) -> tuple[str, float | None]:
    """Connects, reads the kernel's time, waits until the peer closes and resets the connection.

    Returns:
        (outcome, round-trip time in s); the time is None unless the outcome is `ok`.
    """
    loop = asyncio.get_running_loop()
    with socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as sock:
        # Reset instead of the four-way close: no TIME_WAIT is left on either side.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        begun_s = time.monotonic()
        try:
            async with asyncio.timeout(CONNECT_DEADLINE_S):
                await loop.sock_connect(sock, address)
                found = read_tcp_info(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256))
                handshake_s = time.monotonic() - begun_s
                await loop.sock_recv(sock, 1)
        except TimeoutError:
            return "lost_unknown", None
        except OSError as error:
            return _outcome(error), None
        if found is None:
            return "lost_unknown", None
        if found[1] > 0 or (found[0] >= _SYN_TIMER_S and handshake_s >= _SYN_TIMER_S):
            return "lost_unknown", None
        return "ok", found[0]


def _outcome(error: OSError) -> str:
    if error.errno in (errno.ECONNREFUSED, errno.ECONNRESET):  # a load balancer without a backend resets
        return "refused"
    return "unreachable" if error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EACCES) else "send_error"


class TcpProber:
    """Probes the peers whose UDP gives no answer, once a second each, at most 32 at a time."""

    def __init__(self) -> None:
        self._busy: dict[str, asyncio.Task[None]] = {}
        self._last_s: dict[str, float] = {}

    def probe(self, name: str, stats: PeerStats, family: int, address: SocketAddress, every_s: float) -> None:
        """Starts a connect unless one is under way or was less than `every_s` ago."""
        now_s = time.monotonic()
        due = now_s - self._last_s.get(name, float("-inf")) >= every_s
        if not due or name in self._busy or len(self._busy) >= MAX_CONNECTS:
            return
        self._last_s[name] = now_s
        stats.last_sent_s = time.time()
        task = asyncio.ensure_future(self._run(stats, family, address))
        self._busy[name] = task
        task.add_done_callback(lambda _task: self._busy.pop(name, None))

    @staticmethod
    async def _run(stats: PeerStats, family: int, address: SocketAddress) -> None:
        outcome, rtt_s = await connect_once(family, address)
        if rtt_s is None:
            stats.count(outcome)
        else:
            stats.observe(rtt_s, stats.last_rtt_s, now_s=time.monotonic(), unix_s=time.time())

    def close(self) -> None:
        """Cancels what is under way."""
        for task in list(self._busy.values()):
            task.cancel()


async def listen(host: str, port: int) -> asyncio.Server:
    """Accepts and closes TCP connections beside the reflector's UDP port.

    Raises:
        OSError: the address can't be bound.
    """

    async def accept(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            writer.close()

    return await asyncio.start_server(accept, host, port, limit=1024)
