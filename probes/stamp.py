"""STAMP test packets (RFC 8762, SSID and TLV rules of RFC 8972): pure packing and parsing.

Nothing here reads a clock or a socket, and no input makes it raise: what can't be a packet comes back as a `Rejection`.
Offsets are those of RFC 8762 sections 4.2.1, 4.2.2, 4.3.1 and 4.3.2; MBZ octets are ignored on receipt.
"""

from __future__ import annotations

import enum
import struct
from typing import NamedTuple

from probes.keys import HMAC_OCTETS, KeyRing, sign, verify

PLAIN_OCTETS = 44
AUTH_OCTETS = 112
_SIGNED = AUTH_OCTETS - HMAC_OCTETS

_NTP_EPOCH_NS = 2_208_988_800 * 10**9
_SECOND_NS = 10**9
_MASK64 = (1 << 64) - 1
NONCE_BITS = 12
"""Bits of an NTP stamp below one microsecond (2^-20 s): the clock doesn't fill them honestly, so they carry a nonce."""

_PLAIN_REQUEST = struct.Struct("!IQHH28x")
_AUTH_REQUEST = struct.Struct("!I12xQHH68x")
_PLAIN_REPLY = struct.Struct("!IQHHQIQH2xB3x")
_AUTH_REPLY = struct.Struct("!I12xQHH4xQ8xI12xQH6xB15x")
PLAIN_IDS = struct.Struct("!I10xH")
AUTH_IDS = struct.Struct("!I22xH")
"""Sequence number and SSID of a session-sender's packet."""
_TLV = struct.Struct("!BBH")

FLAG_UNRECOGNISED = 0x80
FLAG_MALFORMED = 0x40
FLAG_INTEGRITY = 0x20
TLV_EXTRA_PADDING = 1
TLV_HMAC = 8
_KNOWN_TLVS = (TLV_EXTRA_PADDING, TLV_HMAC)

_SYNCED = 0x8000
_PTP = 0x4000


class Rejection(enum.Enum):
    """Why octets are no packet for us."""

    SHORT = "short"
    AUTH = "auth"


class Request(NamedTuple):
    """What a session-sender sent.

    Attributes:
        seq: sender's sequence number, 0 to 2^32-1.
        t1: sender's stamp as it was on the wire (64 bits; NTP or PTP by the error estimate's Z bit).
        error_estimate: 16 bits: S, Z, scale, multiplier.
        ssid: session id, 0 where the peer knows RFC 8762 only.
    """

    seq: int
    t1: int
    error_estimate: int
    ssid: int


class Reply(NamedTuple):
    """What a session-reflector answered.

    Attributes:
        seq: reflector's own sequence number in this session.
        t3: reflector's transmit stamp, 64 bits.
        error_estimate: the reflector's, for t2 and t3.
        ssid: session id, echoed.
        t2: reflector's receive stamp, 64 bits.
        sender_seq: the request's sequence number, echoed.
        t1: the request's stamp, echoed bit by bit.
        sender_error_estimate: the request's, echoed.
        ttl: TTL or hop limit with which the request arrived; 255 where the reflector can't know.
    """

    seq: int
    t3: int
    error_estimate: int
    ssid: int
    t2: int
    sender_seq: int
    t1: int
    sender_error_estimate: int
    ttl: int


def error_estimate(*, synced: bool = False, ptp: bool = False, scale: int = 0, multiplier: int = 1) -> int:
    """Returns the 16-bit Error Estimate; the error is multiplier * 2^(scale-32) seconds.

    Args:
        synced: whether the clock is synchronised to UTC by an outside source.
        ptp: whether stamps are truncated PTPv2 instead of NTP.
        scale: 0 to 63.
        multiplier: 1 to 255; 0 is invalid on the wire and becomes 1.
    """
    return (_SYNCED * synced) | (_PTP * ptp) | ((scale & 0x3F) << 8) | max(1, multiplier & 0xFF)


def ntp_from_ns(unix_ns: int) -> int:
    """Returns the 64-bit NTP stamp of a Unix time in ns; its seconds wrap in 2036, so only subtract modulo 2^64."""
    # Rounded up, so that the way back (rounded to the nearest) gives the same nanosecond.
    return (((unix_ns + _NTP_EPOCH_NS) << 32) + _SECOND_NS - 1) // _SECOND_NS & _MASK64


def ptp_from_ns(unix_ns: int) -> int:
    """Returns the truncated PTPv2 stamp (32 bits of seconds, 32 bits of ns) of a Unix time in ns."""
    seconds, rest = divmod(unix_ns, _SECOND_NS)
    return ((seconds & 0xFFFFFFFF) << 32) | rest


def nonce_from_ns(unix_ns: int, nonce: int) -> int:
    """Returns the NTP stamp of a Unix time with random bits below 1 us, which an off-path forger can't guess.

    Args:
        unix_ns: Unix time in ns.
        nonce: 12 random bits.
    """
    seconds, rest_ns = divmod(unix_ns + _NTP_EPOCH_NS, _SECOND_NS)
    return (seconds & 0xFFFFFFFF) << 32 | (rest_ns << 20) // _SECOND_NS << NONCE_BITS | nonce


def difference_ns(later: int, earlier: int, *, ptp: bool = False) -> int:
    """Returns later - earlier in ns (signed), across the wrap of the seconds; both are of one clock and format."""
    if ptp:
        seconds = ((later >> 32) - (earlier >> 32)) & 0xFFFFFFFF
        if seconds >= 1 << 31:
            seconds -= 1 << 32
        return seconds * _SECOND_NS + (later & 0xFFFFFFFF) - (earlier & 0xFFFFFFFF)
    units = (later - earlier) & _MASK64
    if units >= 1 << 63:
        units -= 1 << 64
    return (units * _SECOND_NS + (1 << 31)) >> 32


def to_s(value: int, *, ptp: bool = False) -> float:
    """Returns a stamp as seconds since its own epoch, good to a microsecond; wraps with the seconds."""
    return (value >> 32) + (value & 0xFFFFFFFF) / 1e9 if ptp else value / 4294967296.0


def reflector_times(reply: Reply) -> tuple[int, float]:
    """Returns (T3 - T2 in ns, T2 in seconds since its own epoch, good to a microsecond).

    The Error Estimate's Z bit says whether the reflector's stamps are NTP or truncated PTPv2.
    """
    ptp = bool(reply.error_estimate & _PTP)
    units = reply.t3 - reply.t2
    if ptp or not 0 <= units < 1 << 63:
        return difference_ns(reply.t3, reply.t2, ptp=ptp), to_s(reply.t2, ptp=ptp)
    return (units * _SECOND_NS + (1 << 31)) >> 32, reply.t2 / 4294967296.0


def pack_request(request: tuple[int, int, int, int], key: bytes | None = None) -> bytes:
    """Returns the session-sender's packet of the fields of a `Request`: 44 octets, or 112 with a key."""
    if key is None:
        return _PLAIN_REQUEST.pack(*request)
    signed = _AUTH_REQUEST.pack(*request)
    return signed + sign(key, signed)


def parse_request(data: bytes, keys: KeyRing | None = None) -> Request | Rejection:
    """Reads a session-sender's packet.

    Args:
        data: the datagram.
        keys: the keys of the authenticated mode; None reads the unauthenticated mode.

    Returns:
        The request; `SHORT` below 44 (112) octets, since a longer answer would amplify; `AUTH` if no key fits.
    """
    if keys is None:
        if len(data) < PLAIN_OCTETS:
            return Rejection.SHORT
        return Request(*_PLAIN_REQUEST.unpack_from(data))
    if len(data) < AUTH_OCTETS:
        return Rejection.SHORT
    request = Request(*_AUTH_REQUEST.unpack_from(data))
    key = keys.for_ssid(request.ssid)
    if key is None or not is_genuine(data, key):
        return Rejection.AUTH
    return request


def parse_reply(data: bytes, key: bytes | None = None) -> Reply | Rejection:
    """Reads a session-reflector's packet; the same rules as `parse_request`, with the one key of the session."""
    reply = unpack_reply(data, authenticated=key is not None)
    if reply is None:
        return Rejection.SHORT
    return reply if key is None or is_genuine(data, key) else Rejection.AUTH


def unpack_reply(data: bytes, *, authenticated: bool) -> Reply | None:
    """Returns the fields of a session-reflector's packet before anything is verified, None if it is too short."""
    if len(data) < (AUTH_OCTETS if authenticated else PLAIN_OCTETS):
        return None
    form = _AUTH_REPLY if authenticated else _PLAIN_REPLY
    return tuple.__new__(Reply, form.unpack_from(data))  # its own constructor takes three times as long


def is_genuine(data: bytes, key: bytes) -> bool:
    """Returns whether the HMAC of a packet of at least 112 octets is the key's."""
    return verify(key, data[:_SIGNED], data[_SIGNED:AUTH_OCTETS])


def pack_reply(request_data: bytes, reply: Reply, key: bytes | None = None) -> bytes:
    """Returns the session-reflector's packet, exactly as long as the request it answers.

    Args:
        request_data: the datagram that is answered; it passed `parse_request`.
        reply: the fields of the answer.
        key: the session's key in authenticated mode.
    """
    if key is None:
        head = _PLAIN_REPLY.pack(*reply)
        return head + reflect_tlvs(request_data[:4], request_data[PLAIN_OCTETS:], head[:4], None)
    signed = _AUTH_REPLY.pack(*reply)
    tail = reflect_tlvs(request_data[:4], request_data[AUTH_OCTETS:], signed[:4], key)
    return signed + sign(key, signed) + tail


def reflect_tlvs(request_seq: bytes, tail: bytes, reply_seq: bytes, key: bytes | None) -> bytes:
    """Returns the TLVs of an answer: the same octets with honest flags (RFC 8972 section 4).

    Args:
        request_seq: the request's 4 octets of sequence number; the HMAC TLV covers them.
        tail: what followed the base packet. Zeroes are the padding of RFC 8762 and come back as they are.
        reply_seq: the answer's 4 octets of sequence number.
        key: the session's key; without one the HMAC TLV is an unknown TLV like any other.
    """
    if not any(tail):
        return tail
    failed = 0 if key is None or _tlvs_are_genuine(request_seq, tail, key) else FLAG_INTEGRITY
    out = bytearray()
    offset = 0
    while offset + _TLV.size <= len(tail):
        _flags, kind, length = _TLV.unpack_from(tail, offset)
        end = offset + _TLV.size + length
        known = kind in _KNOWN_TLVS and (kind != TLV_HMAC or key is not None)
        flags = failed | (0 if known else FLAG_UNRECOGNISED)
        if end > len(tail) or (kind == TLV_HMAC and known and length != HMAC_OCTETS):
            flags |= FLAG_MALFORMED
            end = len(tail)  # nothing behind a TLV of unknown length can be told apart
        value = tail[offset + _TLV.size : end]
        if kind == TLV_HMAC and key is not None and not flags:
            value = sign(key, reply_seq + bytes(out))
        out += _TLV.pack(flags, kind, length) + value
        offset = end
    return bytes(out) + tail[offset:]


def _tlvs_are_genuine(request_seq: bytes, tail: bytes, key: bytes) -> bool:
    # The HMAC TLV is the last one; without it nothing says that the TLVs are the sender's.
    start = len(tail) - _TLV.size - HMAC_OCTETS
    if start < 0 or _TLV.unpack_from(tail, start)[1:] != (TLV_HMAC, HMAC_OCTETS):
        return False
    return verify(key, request_seq + tail[:start], tail[-HMAC_OCTETS:])
