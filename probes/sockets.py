"""UDP sockets with kernel time stamps, and what Linux says beside the data: drops, TTL, local address, errors.

Constants that Python's `socket` does not carry are those of Linux' uapi headers (asm-generic/socket.h,
linux/errqueue.h, linux/net_tstamp.h).
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
from collections.abc import Iterator
from typing import NamedTuple

SO_RCVBUFFORCE = 33
SO_TIMESTAMPING = 37
SO_RXQ_OVFL = 40
IP_TTL = 2
IP_PKTINFO = 8
IP_RECVERR = 11
IP_RECVTTL = 12
IPV6_RECVERR = 25
IPV6_HOPLIMIT = 52
IPV6_RECVHOPLIMIT = 51
MSG_ERRQUEUE = 0x2000
_TX_SOFTWARE = 1 << 1
_RX_SOFTWARE = 1 << 3
_SOFTWARE = 1 << 4
_ORIGIN_ICMP = (2, 3)
STAMP_ORIGIN = b"\x04"
"""Fifth octet of an extended error that only brings a stamp (SO_EE_ORIGIN_TIMESTAMPING)."""
_RECEIVE_BUFFER_OCTETS = 4 << 20
_DATAGRAM_OCTETS = 2048
PROBE_OCTETS = 400
"""A probe or its answer (at most 112 octets) with all headers: small buffers come from a pool, large ones don't."""
_CONTROL_OCTETS = 400
_EXTENDED_ERROR = struct.Struct("=IBBBBII")
_TIMESPEC = struct.Struct("=qq")
_SECOND_NS = 10**9

ASK_STAMP = (socket.SOL_SOCKET, SO_TIMESTAMPING, struct.pack("=I", _TX_SOFTWARE))
"""Control data of `sendmsg`: the transmit stamp of this one packet is wanted (read it by `receive_echo`)."""

SocketAddress = tuple[str, int] | tuple[str, int, int, int]


class Received(NamedTuple):
    """One datagram and what the kernel knows of it.

    Attributes:
        data: payload, at most 2 048 octets.
        address: whole socket address of the peer, as the answer needs it.
        stamp_ns: kernel's Unix time of reception, None where it gave none.
        drops: packets the socket has dropped so far (32 bits, wraps), None while it never dropped one.
        ttl: TTL or hop limit, None where unknown.
        local: control data that makes the answer leave from the address that was asked.
    """

    data: bytes
    address: SocketAddress
    stamp_ns: int | None
    drops: int | None
    ttl: int | None
    local: tuple[int, int, bytes] | None


class Echo(NamedTuple):
    """One entry of the error queue.

    Attributes:
        data: the packet with its headers (a transmit stamp) or the payload that an ICMP message quotes.
        stamp_ns: transmit stamp, None for errors.
        outcome: `refused` or `unreachable` for an ICMP message, None otherwise.
    """

    data: bytes
    stamp_ns: int | None
    outcome: str | None


def open_udp(family: int, host: str, port: int, *, transmit_stamps: bool = False) -> socket.socket:
    """Opens a non-blocking UDP socket with kernel time stamps.

    Args:
        family: AF_INET or AF_INET6.
        host: local address, empty for all.
        port: local port, 0 for a free one.
        transmit_stamps: whether transmit stamps and ICMP errors are wanted (read them by `receive_echo`).

    Raises:
        OSError: the address can't be bound.
    """
    sock = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    try:
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind((host, port))
        flags = _RX_SOFTWARE | _SOFTWARE | (_TX_SOFTWARE if transmit_stamps else 0)
        with contextlib.suppress(OSError):  # an old or foreign kernel: user stamps, and each is counted as missing
            sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPING, flags)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, SO_RXQ_OVFL, 1)
        _set_buffer(sock)
        v6 = family == socket.AF_INET6
        level = socket.IPPROTO_IPV6 if v6 else socket.IPPROTO_IP
        if transmit_stamps:
            sock.setsockopt(level, IPV6_RECVERR if v6 else IP_RECVERR, 1)
        else:
            sock.setsockopt(level, socket.IPV6_RECVPKTINFO if v6 else IP_PKTINFO, 1)
            sock.setsockopt(level, IPV6_RECVHOPLIMIT if v6 else IP_RECVTTL, 1)
    except BaseException:
        sock.close()
        raise
    return sock


@contextlib.contextmanager
def stamping(deadline_s: float = 1.0) -> Iterator[None]:
    """Begins when the kernel stamps received packets; sockets opened inside get a stamp from their first packet on.

    The kernel switches stamping on in the background when the first socket asks for it, so on a busy machine the
    packets of the first milliseconds come without (up to 60 ms were seen), and off again when the last one is closed.

    Args:
        deadline_s: how long to wait at most; after it a kernel that doesn't stamp is taken as it is.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # no IPv4 loopback: the first packets may lack their stamps, and are counted
            sock = stack.enter_context(open_udp(socket.AF_INET, "127.0.0.1", 0))
            end_s = time.monotonic() + deadline_s
            while time.monotonic() < end_s:
                sock.sendto(b"", sock.getsockname())
                select.select([sock], [], [], deadline_s)
                received = receive(sock)
                if received is not None and received.stamp_ns is not None:
                    break
        yield


def _set_buffer(sock: socket.socket) -> None:
    try:
        sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, _RECEIVE_BUFFER_OCTETS)
    except OSError:  # needs CAP_NET_ADMIN; the plain option is cut to net.core.rmem_max
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_OCTETS)


def parse_stamp(data: bytes) -> int | None:
    """Returns the software stamp (Unix ns) of a SCM_TIMESTAMPING message, of three timespecs of 16 or 8 octets."""
    if len(data) >= 48:
        seconds, nanoseconds = _TIMESPEC.unpack_from(data)
    elif len(data) >= 24:  # 32-bit user space
        seconds, nanoseconds = struct.unpack_from("=ii", data)
    else:
        return None
    return (seconds * _SECOND_NS + nanoseconds) or None


def receive(sock: socket.socket, octets: int = _DATAGRAM_OCTETS) -> Received | None:
    """Reads one datagram, at most so many octets of it; None when there is none, or at an error that is queued too."""
    try:
        data, ancillary, _flags, address = sock.recvmsg(octets, _CONTROL_OCTETS)
    except OSError:
        return None
    return received(data, address, ancillary)


def received(data: bytes, address: SocketAddress, ancillary: list[tuple[int, int, bytes]]) -> Received:
    """Returns a datagram with what its control messages (level, kind, value) say."""
    stamp_ns = drops = ttl = local = None
    for level, kind, value in ancillary:
        if level == socket.SOL_SOCKET:
            if kind == SO_TIMESTAMPING:
                stamp_ns = parse_stamp(value)
            elif kind == SO_RXQ_OVFL:
                drops = int.from_bytes(value[:4], "little" if _LITTLE else "big")
        elif (level, kind) in ((socket.IPPROTO_IP, IP_TTL), (socket.IPPROTO_IPV6, IPV6_HOPLIMIT)):
            ttl = struct.unpack_from("=i", value)[0]
        elif (level, kind) == (socket.IPPROTO_IP, IP_PKTINFO):
            local = (level, kind, bytes(4) + value[4:8] + bytes(4))  # no interface: routes may be asymmetric
        elif (level, kind) == (socket.IPPROTO_IPV6, socket.IPV6_PKTINFO):
            scoped = value[:1] == b"\xfe"  # link-local addresses mean nothing without their interface
            local = (level, kind, value if scoped else value[:16] + bytes(4))
    return Received(data, address, stamp_ns, drops, ttl, local)


_LITTLE = struct.pack("=H", 1) == b"\x01\x00"


def receive_echo(sock: socket.socket) -> Echo | None:
    """Reads one entry of the error queue, None when it is empty."""
    try:
        data, ancillary, _flags, _address = sock.recvmsg(PROBE_OCTETS, _CONTROL_OCTETS, MSG_ERRQUEUE)
    except OSError:
        return None
    return echo(data, ancillary)


def echo(data: bytes, ancillary: list[tuple[int, int, bytes]]) -> Echo:
    """Returns an entry of the error queue with what its control messages (level, kind, value) say."""
    stamp_ns = outcome = None
    for level, kind, value in ancillary:
        if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPING:
            stamp_ns = parse_stamp(value)
        elif kind in (IP_RECVERR, IPV6_RECVERR) and value[4:5] == STAMP_ORIGIN:
            break  # nothing failed: a stamp, which comes before it, and nearly always
        elif kind in (IP_RECVERR, IPV6_RECVERR) and len(value) >= _EXTENDED_ERROR.size:
            _errno, origin, icmp_type, code, *_rest = _EXTENDED_ERROR.unpack_from(value)
            if origin in _ORIGIN_ICMP:
                port_closed = (icmp_type, code) == ((3, 3) if origin == _ORIGIN_ICMP[0] else (1, 4))
                outcome = "refused" if port_closed else "unreachable"
    return Echo(data, stamp_ns, outcome)
