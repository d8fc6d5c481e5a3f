"""Many datagrams with one system call say the same as one by one."""

from __future__ import annotations

import select
import socket
import time

import pytest

from probes import sockets, stamp
from probes.batch import Batch, Datagram, address_key

LOOPBACK = [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]


def read(sock: socket.socket, batch: Batch, count: int) -> list[Datagram]:
    found: list[Datagram] = []
    while len(found) < count:
        assert select.select([sock], [], [], 5)[0], f"{len(found)} of {count} came"
        found += batch.receive(sock.fileno())
    return found


@pytest.mark.parametrize(("family", "host"), LOOPBACK)
def test_payload_sender_and_stamp_of_each_of_more_than_fit_into_one_call(family: int, host: str) -> None:
    with (
        sockets.stamping(),
        sockets.open_udp(family, host, 0, transmit_stamps=True) as sock,
        sockets.open_udp(family, host, 0) as other,
    ):
        before_ns = time.time_ns()
        for number in range(150):
            other.sendto(number.to_bytes(1, "big") * (number % 113), sock.getsockname())
        found = read(sock, Batch(authenticated=False), 150)
        sender = address_key(other.getsockname())
    assert [data for data, *_rest in found] == [number.to_bytes(1, "big") * (number % 113) for number in range(150)]
    assert {key for _data, key, _stamp, _drops in found} == {sender}
    stamps = [stamp_ns or 0 for _data, _key, stamp_ns, _drops in found]
    assert before_ns <= stamps[0] <= stamps[-1] <= time.time_ns()
    assert stamps == sorted(stamps)


def test_what_the_socket_dropped_comes_beside_the_stamp() -> None:
    with (
        sockets.stamping(),
        sockets.open_udp(socket.AF_INET, "127.0.0.1", 0, transmit_stamps=True) as sock,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other,
    ):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        for _ in range(100):
            other.sendto(bytes(44), sock.getsockname())
        batch = Batch(authenticated=False)
        read(sock, batch, 1)
        other.sendto(bytes(44), sock.getsockname())
        ((_data, _key, stamp_ns, drops),) = read(sock, batch, 1)
    assert drops, "the queue was full"
    assert stamp_ns is not None


@pytest.mark.parametrize("authenticated", [False, True])
@pytest.mark.parametrize(("family", "host"), LOOPBACK)
def test_each_probe_that_left_is_named_with_its_stamp(family: int, host: str, authenticated: bool) -> None:
    key = b"k" * 32 if authenticated else None
    with sockets.open_udp(family, host, 0, transmit_stamps=True) as sock, sockets.open_udp(family, host, 0) as other:
        begun_ns = time.time_ns()
        for seq in range(5):
            sock.sendto(stamp.pack_request((seq, 1, 1, 7), key), other.getsockname())
        batch = Batch(authenticated=authenticated)
        found = batch.receive_echoes(sock.fileno())
        assert [(seq, ssid, outcome) for seq, ssid, _at, outcome in found] == [(seq, 7, None) for seq in range(5)]
        assert all(at is not None and begun_ns <= at <= time.time_ns() for _seq, _ssid, at, _outcome in found)
        assert batch.receive_echoes(sock.fileno()) == []


@pytest.mark.parametrize(("family", "host"), LOOPBACK)
def test_a_closed_port_names_the_probe_that_it_refused(family: int, host: str) -> None:
    with sockets.open_udp(family, host, 0) as gone:
        address = gone.getsockname()
    with sockets.open_udp(family, host, 0, transmit_stamps=True) as sock:
        sock.sendto(stamp.pack_request((3, 1, 1, 9)), address)
        batch = Batch(authenticated=False)
        found = batch.receive_echoes(sock.fileno())
        end_s = time.monotonic() + 5
        while not any(outcome for *_ids, outcome in found) and time.monotonic() < end_s:
            select.select([sock], [], [], 0.1)
            found += batch.receive_echoes(sock.fileno())
    assert [(seq, ssid, outcome) for seq, ssid, _at, outcome in found if outcome] == [(3, 9, "refused")]


def test_a_socket_with_nothing_gives_nothing() -> None:
    with sockets.open_udp(socket.AF_INET, "127.0.0.1", 0) as sock:
        assert Batch(authenticated=False).receive(sock.fileno()) == []


def test_an_address_is_the_same_with_and_without_its_scope() -> None:
    assert address_key(("fe80::1%3", 8620, 0, 3)) == address_key(("fe80::1", 8620, 0, 0))
    assert address_key(("192.0.2.1", 8620)) != address_key(("192.0.2.1", 8621))
