"""When the kernel begins to stamp."""

from __future__ import annotations

import select
import socket

import pytest

from probes import sockets


def test_a_socket_opened_while_stamping_has_a_stamp_on_its_first_packet() -> None:
    for _ in range(20):
        with sockets.stamping():
            sock = sockets.open_udp(socket.AF_INET, "127.0.0.1", 0)
        with sock:
            sock.sendto(b"first", sock.getsockname())
            assert select.select([sock], [], [], 5)[0]
            received = sockets.receive(sock)
            assert received is not None
            assert received.stamp_ns is not None


def test_a_kernel_that_never_stamps_is_not_waited_for_beyond_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[bytes] = []
    monkeypatch.setattr(sockets, "parse_stamp", tries.append)
    with sockets.stamping(deadline_s=0.01):
        assert tries, "it was tried"


def test_without_a_loopback_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object, **_options: object) -> None:
        raise OSError("no such address")

    monkeypatch.setattr(sockets, "open_udp", refuse)
    entered = False
    with sockets.stamping():
        entered = True
    assert entered
