"""Many datagrams with one system call (`recvmmsg`), read into buffers that are made once.

Python's own `recvmsg` reads one datagram, makes some ten objects for it and one more call to learn that there is none
left: a third of what a probe cost. Python has no `recvmmsg`, so it is called through ctypes; layouts are those of
Linux' struct mmsghdr, iovec and cmsghdr in the sizes of this machine.
"""

from __future__ import annotations

import ctypes
import socket
import struct

from probes import sockets, stamp

_DATAGRAMS = 64
_NAME_OCTETS, _CONTROL_OCTETS = 32, 224
_RECORD_OCTETS = _NAME_OCTETS + _CONTROL_OCTETS + sockets.PROBE_OCTETS
KEY_OCTETS = 24

_HEADER = struct.Struct("@PIPNPNi0PI0P")
"""struct mmsghdr: name, its size, iovec, their number, control data, its size, flags; octets received."""
_SAID = struct.Struct(f"@{struct.calcsize('@PIPNP0N')}xN{struct.calcsize('@i0P')}xI0P")
"""Of a header, what the kernel fills in: octets of control data, octets received."""
_VECTOR = struct.Struct("@PN")
_CONTROL_HEAD = struct.Struct("@Nii")
_STAMP_HEAD = _CONTROL_HEAD.pack(_CONTROL_HEAD.size + 48, socket.SOL_SOCKET, sockets.SO_TIMESTAMPING)
_STAMP_SPACE = len(_STAMP_HEAD) + 48
_STAMP = f"{len(_STAMP_HEAD)}sqq32x"
_DATAGRAM = struct.Struct(
    f"={KEY_OCTETS}s{_NAME_OCTETS - KEY_OCTETS}x{_STAMP}{_CONTROL_OCTETS - _STAMP_SPACE}x"
    f"{stamp.AUTH_OCTETS}s{sockets.PROBE_OCTETS - stamp.AUTH_OCTETS}x"
)
"""A record whose control data is nothing but a stamp: address, head of the stamp, the stamp, payload."""
_ECHO = struct.Struct(f"={_NAME_OCTETS}x{_STAMP}{_CONTROL_HEAD.size + 4}xc")
"""A record of the error queue that begins with a stamp: its head, the stamp, the origin of the extended error."""
_ALIGNMENT = struct.calcsize("@P")
_SECOND_NS = 10**9

ProbeEcho = tuple[int, int, int | None, str | None]
"""Sequence number and SSID of a probe, its transmit stamp (Unix ns) or None, outcome by an ICMP message or None."""

Datagram = tuple[bytes, bytes, int | None, int | None]
"""Payload (at most 112 octets), `address_key` of its sender, kernel's time of reception in Unix ns, drops so far."""


def address_key(address: sockets.SocketAddress) -> bytes:
    """Returns what the kernel writes as the sender of a datagram, without the scope of an IPv6 address."""
    host, port = address[:2]
    port_octets = port.to_bytes(2, "big")
    if ":" not in host:
        key = struct.pack("=H", socket.AF_INET) + port_octets + socket.inet_pton(socket.AF_INET, host)
    else:
        inner = socket.inet_pton(socket.AF_INET6, host.partition("%")[0])
        key = struct.pack("=H", socket.AF_INET6) + port_octets + bytes(4) + inner
    return key.ljust(KEY_OCTETS, b"\0")


class Batch:
    """Buffers for the sockets of one address family.

    Args:
        authenticated: whether probes are of the authenticated mode.
    """

    def __init__(self, *, authenticated: bool) -> None:
        self._octets = stamp.AUTH_OCTETS if authenticated else stamp.PLAIN_OCTETS
        self._ids = stamp.AUTH_IDS if authenticated else stamp.PLAIN_IDS
        self._memory = bytearray(_DATAGRAMS * _RECORD_OCTETS)
        vectors = bytearray(_DATAGRAMS * _VECTOR.size)
        headers = bytearray(_DATAGRAMS * _HEADER.size)
        octets, number = ctypes.c_char, ctypes.addressof
        self._held = [(octets * len(area)).from_buffer(area) for area in (self._memory, vectors, headers)]
        memory, vector, self._first = map(number, self._held)
        for index in range(_DATAGRAMS):
            name = memory + index * _RECORD_OCTETS
            control = name + _NAME_OCTETS
            _VECTOR.pack_into(vectors, index * _VECTOR.size, control + _CONTROL_OCTETS, sockets.PROBE_OCTETS)
            place = vector + index * _VECTOR.size
            header = (name, _NAME_OCTETS, place, 1, control, _CONTROL_OCTETS, 0, 0)
            _HEADER.pack_into(headers, index * _HEADER.size, *header)
        self._headers = memoryview(headers)
        self._blank = bytes(headers)
        self._records = memoryview(self._memory)
        self._receive = ctypes.CDLL(None).recvmmsg
        self._receive.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int, ctypes.c_void_p)

    def _read(self, number: int, flags: int) -> list[tuple[int, int]]:
        """Returns octets of (control data, datagram) for each that there was; none too at an error that is queued."""
        count = self._receive(number, self._first, _DATAGRAMS, flags, None)
        if count <= 0:
            return []
        used = self._headers[: count * _HEADER.size]
        said = list(_SAID.iter_unpack(used))
        used[:] = self._blank[: count * _HEADER.size]  # the kernel has written over the sizes of the buffers
        return said

    def receive(self, number: int) -> list[Datagram]:
        """Reads what a socket has, at most 64 datagrams.

        Args:
            number: file number of a socket of `sockets.open_udp`.
        """
        said = self._read(number, 0)
        found: list[Datagram] = []
        records = _DATAGRAM.iter_unpack(self._records[: len(said) * _RECORD_OCTETS])
        for (control, length), (name, head, seconds, nanoseconds, data) in zip(said, records, strict=True):
            if control == _STAMP_SPACE and head == _STAMP_HEAD:  # nearly always
                stamp_ns, drops = seconds * _SECOND_NS + nanoseconds or None, None
            else:
                _data, _address, stamp_ns, drops, _ttl, _local = sockets.received(
                    b"", ("", 0), self._control(len(found), control)
                )
            found.append((data[:length], name, stamp_ns, drops))
        return found

    def receive_echoes(self, number: int) -> list[ProbeEcho]:
        """Reads what a socket's error queue has of probes, at most 64 entries; what is no probe is left out.

        Args:
            number: file number of the socket.
        """
        found: list[ProbeEcho] = []
        memory, octets, unpack, unpack_ids = self._memory, self._octets, _ECHO.unpack_from, self._ids.unpack_from
        begin = _NAME_OCTETS + _CONTROL_OCTETS - _RECORD_OCTETS
        for index, (control, length) in enumerate(self._read(number, sockets.MSG_ERRQUEUE)):
            begin += _RECORD_OCTETS
            head, seconds, nanoseconds, origin = unpack(memory, index * _RECORD_OCTETS)
            if head == _STAMP_HEAD and origin == sockets.STAMP_ORIGIN and control > _STAMP_SPACE:  # nearly always
                stamp_ns, outcome = seconds * _SECOND_NS + nanoseconds, None
            else:
                _data, stamp_ns, outcome = sockets.echo(b"", self._control(index, control))
            # An error quotes the payload; a stamp comes with the headers of all layers before it.
            place, least = (begin, self._ids.size) if outcome is not None else (begin + length - octets, octets)
            if length >= least:
                found.append((*unpack_ids(memory, place), stamp_ns, outcome))
        return found

    def _control(self, index: int, octets: int) -> list[tuple[int, int, bytes]]:
        """Returns the control messages of a record as `recvmsg` does."""
        place = index * _RECORD_OCTETS + _NAME_OCTETS
        end = place + min(octets, _CONTROL_OCTETS)
        found = []
        while place + _CONTROL_HEAD.size <= end:
            length, level, kind = _CONTROL_HEAD.unpack_from(self._memory, place)
            if length < _CONTROL_HEAD.size:
                break
            value = self._records[place + _CONTROL_HEAD.size : min(place + length, end)]
            found.append((level, kind, value.tobytes()))
            place += -(-length // _ALIGNMENT) * _ALIGNMENT
        return found
