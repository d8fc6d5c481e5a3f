"""The reflector's tables and its answers on a real socket."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes import sockets, stamp
from probes.keys import KeyRing
from probes.reflector import Buckets, Limits, Reflector, SendLag, Sessions, source_prefix
from probes.stamp import Request

RING = KeyRing({0: b"k" * 32}, active=0)


def take(sessions: Sessions, request: Request, *, port: int = 1, now_s: float = 0.0, safe: bool = True) -> int | None:
    return sessions.next("192.0.2.1", port, request, now_s, replay_safe=safe)


def test_numbers_count_up_per_session_whatever_the_source_port() -> None:
    sessions = Sessions()
    assert [take(sessions, Request(i, i, 1, 7), port=i) for i in range(3)] == [0, 1, 2]
    assert take(sessions, Request(0, 9, 1, 8)) == 0


def test_senders_without_ssid_are_told_apart_by_port() -> None:
    sessions = Sessions()
    assert [take(sessions, Request(0, 0, 1, 0), port=port) for port in (1, 2, 1)] == [0, 0, 1]


def test_a_session_idle_for_long_begins_anew() -> None:
    sessions = Sessions(idle_s=300)
    assert take(sessions, Request(0, 0, 1, 7)) == 0
    assert take(sessions, Request(1, 1, 1, 7), now_s=299.0) == 1
    assert take(sessions, Request(2, 2, 1, 7), now_s=600.0) == 0


def test_a_replay_is_refused_but_a_restart_is_not() -> None:
    sessions = Sessions()
    take(sessions, Request(5000, 1000, 1, 7))
    assert take(sessions, Request(10, 500, 1, 7)) is None, "old number and old stamp: captured earlier"
    assert take(sessions, Request(0, 2000, 1, 7)) == 1, "old number and new stamp: the sender restarted"


@given(st.lists(st.integers(1, 65_535), max_size=200))
def test_the_session_table_is_bounded(ssids: list[int]) -> None:
    sessions = Sessions(capacity=16)
    for ssid in ssids:
        take(sessions, Request(0, 0, 1, ssid))
        assert len(sessions) <= 16


@given(st.lists(st.floats(0, 0.1), min_size=1, max_size=300))
def test_no_source_gets_more_than_its_rate(steps: list[float]) -> None:
    buckets = Buckets(Limits(source_pps=10, total_pps=1000, burst_s=1))
    now_s = taken = 0.0
    for step in steps:
        now_s += step
        taken += buckets.take("192.0.2.0/24", now_s)
    assert taken <= 10 + 10 * now_s + 1


def test_one_source_leaves_room_for_another() -> None:
    buckets = Buckets(Limits(source_pps=10, total_pps=1000, burst_s=1))
    assert sum(buckets.take("a", 0.0) for _ in range(100)) == 10
    assert buckets.take("b", 0.0)


def test_prefixes() -> None:
    assert source_prefix("192.0.2.77") == "192.0.2.0/24"
    assert source_prefix("2001:db8:0:1ff::1") == "2001:db8:0:100::/56"


@contextmanager
def running(
    family: int = socket.AF_INET, *, keys: KeyRing | None = None, allowed: bool = True
) -> Iterator[tuple[Reflector, socket.socket, tuple[str, int]]]:
    host = "127.0.0.1" if family == socket.AF_INET else "::1"
    with sockets.stamping():
        server = sockets.open_udp(family, host, 0)
    client = socket.socket(family, socket.SOCK_DGRAM)
    client.bind((host, 0))
    client.settimeout(5)
    try:
        reflector = Reflector(server, keys=keys, allows=lambda _host: allowed, name_of=lambda _host: "peer")
        yield reflector, client, server.getsockname()[:2]
    finally:
        server.close()
        client.close()


def ask(reflector: Reflector, client: socket.socket, address: tuple[str, int], data: bytes) -> None:
    before = sum(reflector.packets.values())
    client.sendto(data, address)
    server = reflector._sock
    assert select.select([server], [], [], 5)[0]
    reflector.on_readable()
    assert sum(reflector.packets.values()) == before + 1


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_an_answer_has_both_numbers_and_kernel_stamps(family: int) -> None:
    with running(family) as (reflector, client, address):
        for seq in (40, 41):
            ask(reflector, client, address, stamp.pack_request(Request(seq, 5, 1, 9)))
            reply = stamp.parse_reply(client.recv(2048))
            assert isinstance(reply, stamp.Reply)
            assert (reply.seq, reply.sender_seq, reply.t1, reply.ssid) == (seq - 40, seq, 5, 9)
            assert 0 <= stamp.difference_ns(reply.t3, reply.t2) < 10**9
            assert reply.ttl == 64
        assert reflector.stamps_missing == 0
        assert reflector.packets == {("peer", "ok"): 2}


@pytest.mark.parametrize(
    ("sentence", "keys", "allowed", "data", "result"),
    [
        ("a short packet", None, True, bytes(43), "short"),
        ("a source outside the allowed networks", None, False, bytes(44), "acl"),
        ("a packet without its HMAC", RING, True, bytes(112), "auth"),
        ("an empty packet", None, True, b"", "short"),
    ],
)
def test_no_answer_at_all(sentence: str, keys: KeyRing | None, allowed: bool, data: bytes, result: str) -> None:
    with running(keys=keys, allowed=allowed) as (reflector, client, address):
        ask(reflector, client, address, data)
        assert reflector.packets == {("peer", result): 1}, sentence
        client.setblocking(False)
        with pytest.raises(BlockingIOError):
            client.recv(2048)


@pytest.mark.parametrize("octets", [44, 60, 1000])
def test_the_answer_is_never_longer_than_the_question(octets: int) -> None:
    with running() as (reflector, client, address):
        ask(reflector, client, address, stamp.pack_request(Request(0, 0, 1, 1)) + bytes(octets - 44))
        assert len(client.recv(2048)) == octets


def test_keys_answer_from_anywhere() -> None:
    with running(keys=RING, allowed=False) as (reflector, client, address):
        ask(reflector, client, address, stamp.pack_request(Request(0, 0, 1, 1), b"k" * 32))
        assert isinstance(stamp.parse_reply(client.recv(2048), b"k" * 32), stamp.Reply)


def test_a_removed_peer_leaves_no_counter() -> None:
    with running() as (reflector, client, address):
        ask(reflector, client, address, bytes(44))
        reflector.forget({"unknown"})
        assert not reflector.packets


def test_the_lag_is_the_median_and_a_step_of_the_clock_is_none() -> None:
    lag = SendLag()
    for value in (30_000, 40_000, 900_000, -5, 3_600 * 10**9, 35_000, 36_000):
        lag.learn(value)
    assert lag.ns == 36_000


def test_at_first_every_answer_is_asked_for_its_stamp_and_later_one_in_sixteen() -> None:
    lag = SendLag()
    for _ in range(15):
        assert lag.due()
        lag.learn(1)
    assert sum(lag.due() for _ in range(160)) == 10


def test_the_reflector_learns_when_its_answers_leave() -> None:
    with running() as (reflector, client, address):
        for seq in range(15):
            ask(reflector, client, address, stamp.pack_request(Request(seq, 5, 1, 9)))
        assert 0 < reflector._lag.ns <= 1_000_000
        assert sockets.receive_echo(reflector._sock) is None, "no stamp is left to wake it"


def test_a_kernel_that_can_not_be_asked_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "ASK_STAMP", (socket.SOL_SOCKET, sockets.SO_TIMESTAMPING, b"x"))
    with running() as (reflector, client, address):
        for seq in range(3):
            ask(reflector, client, address, stamp.pack_request(Request(seq, 5, 1, 9)))
            assert client.recv(2048)
        assert not reflector._lag.usable
        assert reflector.packets == {("peer", "ok"): 3}
