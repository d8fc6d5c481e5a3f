"""STAMP packets: byte vectors worked out from the RFCs, and properties that no input may break."""

from __future__ import annotations

import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes import stamp
from probes.keys import KeyRing
from probes.stamp import Rejection, Reply, Request

KEY = bytes(range(32))
OLD_KEY = bytes(range(32, 64))
RING = KeyRing({2: KEY, 5: OLD_KEY}, active=2)
u16 = st.integers(0, 2**16 - 1)
u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
requests = st.builds(Request, u32, u64, u16, u16)
replies = st.builds(Reply, u32, u64, u16, u16, u64, u32, u64, u16, st.integers(0, 255))

REQUEST = Request(seq=0x01020304, t1=0x1112131415161718, error_estimate=0x8101, ssid=0x4ABC)
REPLY = Reply(
    seq=7, t3=0x2122232425262728, error_estimate=0x0001, ssid=0x4ABC, t2=0x3132333435363738,
    sender_seq=0x01020304, t1=0x1112131415161718, sender_error_estimate=0x8101, ttl=63,
)  # fmt: skip


def test_unauthenticated_request_is_the_rfc_s_44_octets() -> None:
    expected = bytes.fromhex("01020304111213141516171881014abc") + bytes(28)
    assert stamp.pack_request(REQUEST) == expected


def test_unauthenticated_reply_is_the_rfc_s_44_octets() -> None:
    expected = bytes.fromhex(
        "00000007" "2122232425262728" "0001" "4abc" "3132333435363738"
        "01020304" "1112131415161718" "8101" "0000" "3f" "000000"
    )  # fmt: skip
    assert stamp.pack_reply(stamp.pack_request(REQUEST), REPLY) == expected


def test_authenticated_request_has_its_fields_where_the_rfc_says() -> None:
    packet = stamp.pack_request(REQUEST, KEY)
    body = bytes.fromhex("01020304") + bytes(12) + bytes.fromhex("111213141516171881014abc") + bytes(68)
    assert packet == body + hmac.new(KEY, body, hashlib.sha256).digest()[:16]
    assert len(packet) == 112


def test_authenticated_reply_has_its_fields_where_the_rfc_says() -> None:
    packet = stamp.pack_reply(stamp.pack_request(REQUEST, KEY), REPLY, KEY)
    body = (
        bytes.fromhex("00000007") + bytes(12) + bytes.fromhex("2122232425262728" "0001" "4abc") + bytes(4)
        + bytes.fromhex("3132333435363738") + bytes(8) + bytes.fromhex("01020304") + bytes(12)
        + bytes.fromhex("1112131415161718" "8101") + bytes(6) + b"\x3f" + bytes(15)
    )  # fmt: skip
    assert packet == body + hmac.new(KEY, body, hashlib.sha256).digest()[:16]


@given(requests)
def test_a_request_survives_the_wire(request: Request) -> None:
    assert stamp.parse_request(stamp.pack_request(request)) == request


@given(requests, replies)
def test_a_reply_survives_the_wire_with_and_without_key(request: Request, reply: Reply) -> None:
    assert stamp.parse_reply(stamp.pack_reply(stamp.pack_request(request), reply)) == reply
    assert stamp.parse_reply(stamp.pack_reply(stamp.pack_request(request, KEY), reply, KEY), KEY) == reply


@given(st.binary(max_size=300))
def test_fuzzed_octets_never_raise(data: bytes) -> None:
    for keys in (None, RING):
        request = stamp.parse_request(data, keys)
        if isinstance(request, Request):
            assert len(stamp.pack_reply(data, REPLY, keys.for_ssid(request.ssid) if keys else None)) == len(data)
    assert isinstance(stamp.parse_reply(data), (Reply, Rejection))
    assert stamp.parse_reply(data, KEY) in (Rejection.SHORT, Rejection.AUTH)


@given(requests, st.binary(max_size=200))
def test_an_answer_is_exactly_as_long_as_its_request(request: Request, tail: bytes) -> None:
    for key in (None, KEY):
        data = stamp.pack_request(request, key) + tail
        assert len(stamp.pack_reply(data, REPLY, key)) == len(data)


@pytest.mark.parametrize(
    ("sentence", "data", "keys", "verdict"),
    [
        ("43 octets are too short", bytes(43), None, Rejection.SHORT),
        ("twampy's default of 22 octets is too short", bytes(22), None, Rejection.SHORT),
        ("111 octets are too short with keys", bytes(111), RING, Rejection.SHORT),
        ("a plain packet is no authenticated one", stamp.pack_request(REQUEST), RING, Rejection.SHORT),
        ("a wrong key is refused", stamp.pack_request(REQUEST, b"x" * 32), RING, Rejection.AUTH),
        ("an unknown key number is refused", stamp.pack_request(REQUEST._replace(ssid=0), KEY), RING, Rejection.AUTH),
        ("a key under another's number is refused", stamp.pack_request(REQUEST, OLD_KEY), RING, Rejection.AUTH),
        ("the old key is good during a rotation",
         stamp.pack_request(REQUEST._replace(ssid=5 << 13), OLD_KEY), RING, REQUEST._replace(ssid=5 << 13)),
    ],
)  # fmt: skip
def test_what_a_reflector_takes(sentence: str, data: bytes, keys: KeyRing | None, verdict: object) -> None:
    assert stamp.parse_request(data, keys) == verdict, sentence


@given(st.integers(0, 111), st.integers(1, 255))
def test_any_changed_octet_breaks_the_hmac(offset: int, flip: int) -> None:
    packet = bytearray(stamp.pack_request(REQUEST, KEY))
    packet[offset] ^= flip
    assert stamp.parse_request(bytes(packet), RING) is Rejection.AUTH


@pytest.mark.parametrize(
    ("sentence", "tail", "expected"),
    [
        ("zero padding comes back unchanged", bytes(30), bytes(30)),
        ("an unknown TLV comes back with U set", bytes.fromhex("e0630002abcd"), bytes.fromhex("80630002abcd")),
        ("extra padding is known: all flags cleared", bytes.fromhex("e00100020000"), bytes.fromhex("000100020000")),
        ("a TLV longer than the packet is malformed", bytes.fromhex("006300ffab"), bytes.fromhex("c06300ffab")),
        ("octets behind the last TLV come back", bytes.fromhex("00010000ffee"), bytes.fromhex("00010000ffee")),
        ("without keys the HMAC TLV is unknown", bytes.fromhex("00080010") + b"h" * 16,
         bytes.fromhex("80080010") + b"h" * 16),
    ],
)  # fmt: skip
def test_how_tlvs_are_reflected(sentence: str, tail: bytes, expected: bytes) -> None:
    data = stamp.pack_request(REQUEST) + tail
    assert stamp.pack_reply(data, REPLY)[44:] == expected, sentence


def test_an_hmac_tlv_is_checked_and_signed_anew() -> None:
    padding = bytes.fromhex("00010002abcd")
    data = stamp.pack_request(REQUEST, KEY)
    mac = hmac.new(KEY, data[:4] + padding, hashlib.sha256).digest()[:16]
    tail = stamp.pack_reply(data + padding + bytes.fromhex("00080010") + mac, REPLY, KEY)[112:]
    expected = hmac.new(KEY, (7).to_bytes(4, "big") + padding, hashlib.sha256).digest()[:16]
    assert tail == padding + bytes.fromhex("00080010") + expected


def test_a_forged_hmac_tlv_flags_every_tlv() -> None:
    data = stamp.pack_request(REQUEST, KEY) + bytes.fromhex("0001000000080010") + bytes(16)
    tail = stamp.pack_reply(data, REPLY, KEY)[112:]
    assert (tail[0], tail[4]) == (stamp.FLAG_INTEGRITY, stamp.FLAG_INTEGRITY)


@given(st.integers(0, 2**62), st.integers(-(2**60), 2**60))
def test_differences_are_exact_across_the_2036_wrap(start_ns: int, delta_ns: int) -> None:
    start_ns += 2**60
    delta_ns %= 2**60
    for convert, ptp in ((stamp.ntp_from_ns, False), (stamp.ptp_from_ns, True)):
        later, earlier = convert(start_ns + delta_ns), convert(start_ns)
        assert abs(stamp.difference_ns(later, earlier, ptp=ptp) - delta_ns) <= 1
        assert abs(stamp.difference_ns(earlier, later, ptp=ptp) + delta_ns) <= 1


def test_the_ntp_epoch_is_1900() -> None:
    assert stamp.ntp_from_ns(0) == 2_208_988_800 << 32
    assert stamp.ntp_from_ns(500_000_000) & 0xFFFFFFFF == 1 << 31


def test_a_nonce_moves_a_stamp_by_less_than_a_microsecond() -> None:
    for unix_ns in (0, 999_999_999, 1_700_000_000_123_456_789, 2_085_978_496 * 10**9 - 1):
        for nonce in (0, 0xFFF):
            stamped = stamp.nonce_from_ns(unix_ns, nonce)
            assert stamped & 0xFFF == nonce
            assert abs(stamp.difference_ns(stamped, stamp.ntp_from_ns(unix_ns))) < 1_000


@pytest.mark.parametrize(
    ("sentence", "arguments", "expected"),
    [
        ("the default is unsynchronised NTP", {}, 0x0001),
        ("S is the first bit", {"synced": True}, 0x8001),
        ("Z is the second bit", {"ptp": True}, 0x4001),
        ("scale and multiplier fill the rest", {"scale": 63, "multiplier": 255}, 0x3FFF),
        ("an invalid multiplier of 0 is never sent", {"multiplier": 0}, 0x0001),
    ],
)
def test_error_estimate(sentence: str, arguments: dict[str, int], expected: int) -> None:
    assert stamp.error_estimate(**arguments) == expected, sentence  # type: ignore[arg-type]  # table of mixed types
