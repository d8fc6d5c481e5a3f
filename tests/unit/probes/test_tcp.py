"""The TCP fallback: the kernel's own time, refused ports told apart, and its place in the mesh."""

from __future__ import annotations

import asyncio
import socket
import struct
from pathlib import Path

import pytest

from probes import tcp
from probes.config import AgentConfig
from probes.mesh import Mesh
from probes.sender import Sender, SenderSettings
from probes.states import Vantage
from probes.stats import OUTCOME_INDEX, PeerStats
from probes.targets import Target, diff


def apply(mesh: Mesh, targets: list[Target]) -> None:
    for _batch in mesh.applying(diff(mesh.targets, targets)):
        pass


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_connect_gives_the_kernel_s_round_trip(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET

    async def test() -> tuple[str, float | None]:
        server = await tcp.listen(host, 0)
        async with server:
            return await tcp.connect_once(family, server.sockets[0].getsockname())

    outcome, rtt_s = asyncio.run(test())
    assert outcome == "ok"
    assert rtt_s is not None
    assert 0 < rtt_s < 0.01


def test_a_closed_port_is_refused() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        address = sock.getsockname()
    assert asyncio.run(tcp.connect_once(socket.AF_INET, address)) == ("refused", None)


def test_a_process_that_hangs_does_not_pass_for_one_that_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp, "CONNECT_DEADLINE_S", 0.2)
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen(1)  # the kernel accepts; nobody ever closes
        assert asyncio.run(tcp.connect_once(socket.AF_INET, sock.getsockname())) == ("lost_unknown", None)


@pytest.mark.parametrize(
    ("sentence", "rtt_us", "retransmissions", "length", "expected"),
    [
        ("offsets of linux/tcp.h", 20_123, 0, 232, (0.020123, 0)),
        ("retransmissions are seen", 1, 2, 104, (0.000001, 2)),
        ("a short answer of an old kernel is none", 1, 0, 90, None),
    ],
)
def test_tcp_info(sentence: str, rtt_us: int, retransmissions: int, length: int, expected: object) -> None:
    info = bytearray(232)
    struct.pack_into("=I", info, 68, rtt_us)
    struct.pack_into("=I", info, 100, retransmissions)
    assert tcp.read_tcp_info(bytes(info[:length])) == expected, sentence


def test_a_peer_is_not_asked_again_before_its_time() -> None:
    async def test() -> PeerStats:
        server = await tcp.listen("127.0.0.1", 0)
        prober, stats = tcp.TcpProber(), PeerStats()
        async with server, asyncio.timeout(5):
            address = server.sockets[0].getsockname()
            for _ in range(5):
                prober.probe("b", stats, socket.AF_INET, address, every_s=60.0)
            while sum(stats.outcomes) == 0:
                await asyncio.sleep(0.01)
        prober.close()
        return stats

    stats = asyncio.run(test())
    assert stats.outcomes[OUTCOME_INDEX["ok"]] == sum(stats.outcomes) == 1


def test_a_peer_silent_over_udp_is_tried_over_tcp_and_called_udp_blocked(tmp_path: Path) -> None:
    async def test() -> tuple[str, list[str]]:
        server = await tcp.listen("127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        config = AgentConfig("a", "eu", ("127.0.0.1", 1), ("127.0.0.1", 2), tmp_path)
        mesh, prober = Mesh(config, Sender(SenderSettings())), tcp.TcpProber()
        apply(mesh, [Target("b", "us", "127.0.0.1", port), Target("c", "us", "127.0.0.1", 9)])
        peer = mesh.peers["b"]
        peer.stats.last_ok_s = 1.0
        mesh.fall_back(prober)
        assert peer.tcp is None, "not before 30 s of silence"
        for now_s in range(0, 35, 5):
            mesh.snapshot(float(now_s))
        peer.stats.count("lost_unknown")
        async with server, asyncio.timeout(5):
            mesh.fall_back(prober)
            while peer.tcp is None or sum(peer.tcp.outcomes) == 0:
                await asyncio.sleep(0.01)
        prober.close()
        protos = [item.proto for item in mesh.series() if item.dst_cluster == "b"]
        return mesh.states(Vantage(peers=2, peers_answering=1))["b"][0], protos

    assert asyncio.run(test()) == ("udp_blocked", ["udp", "tcp"])
