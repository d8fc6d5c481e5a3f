"""Sender and reflector in one process over loopback, and the agent around them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest

from probes import election, reload, sockets, targets
from probes.agent import Agent
from probes.config import AgentConfig
from probes.election import Endpoint
from probes.keys import KeyRing, load_keys
from probes.reflector import Reflector
from probes.sender import Sender, SenderSettings
from probes.stats import OUTCOME_INDEX, PeerStats

DEADLINE_S = 15.0
KEYS = KeyRing({0: b"k" * 32, 1: b"n" * 32}, active=0)


async def until(condition: Callable[[], bool], what: str) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.02)
    assert condition(), what


def free_port() -> int:
    """A port that is free for UDP and TCP, below the range from which the kernel gives ports to others meanwhile."""
    for _ in range(100):
        port = random.randint(15_000, 30_000)
        with (
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
            socket.socket(socket.AF_INET, socket.SOCK_STREAM) as tcp,
            contextlib.suppress(OSError),
        ):
            udp.bind(("127.0.0.1", port))
            tcp.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no free port in a hundred tries")


def agent(tmp_path: Path, peers: list[tuple[str, str]], keys: KeyRing | None = None, **more: object) -> Agent:
    write_targets(tmp_path / "targets.json", peers)
    config = AgentConfig(
        cluster="a", region="eu", listen=("127.0.0.1", free_port()), http=("127.0.0.1", free_port()),
        targets_file=tmp_path / "targets.json", interval_s=0.05, timeout_s=0.3, flows=3, **more,  # type: ignore[arg-type]  # a test's shorthand
    )  # fmt: skip
    return Agent(config, keys)


def write_targets(path: Path, peers: list[tuple[str, str]]) -> None:
    path.write_text(json.dumps([{"targets": [address], "labels": {"cluster": name}} for name, address in peers]))


async def get(agent_: Agent, path: str, head: str = "GET {} HTTP/1.1\r\n\r\n") -> str:
    reader, writer = await asyncio.open_connection(*agent_.config.http)
    writer.write(head.format(path).encode())
    answer = (await reader.read()).decode()
    writer.close()
    return answer


def drive(agent_: Agent, test: Callable[[], Coroutine[None, None, None]]) -> None:
    async def main() -> None:
        running = asyncio.ensure_future(agent_.run())
        testing = asyncio.ensure_future(test())
        try:
            await asyncio.wait({running, testing}, return_when=asyncio.FIRST_COMPLETED)
            if not testing.done():
                testing.cancel()
                running.result()  # the agent's own reason says more than a deadline
            await testing
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(main())


def count(stats: PeerStats, outcome: str) -> int:
    return stats.outcomes[OUTCOME_INDEX[outcome]]


@pytest.mark.parametrize("keys", [None, KEYS])
def test_an_agent_measures_itself_over_loopback(keys: KeyRing | None, tmp_path: Path) -> None:
    probe = agent(tmp_path, [], keys)

    async def test() -> None:
        await until(lambda: count(probe.mesh.self_stats, "ok") >= 10, "answers come")
        stats = probe.mesh.self_stats
        assert sum(stats.outcomes) == count(stats, "ok")
        assert 0 < stats.rtt_sum_s / stats.rtt_count < 0.005
        assert probe.sender.stamps_missing == 0
        assert "200 OK" in await get(probe, "/healthz")

    drive(probe, test)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_closed_port_is_refused_and_no_path_loss(host: str) -> None:
    async def test() -> None:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.bind((host, 0))
            port = sock.getsockname()[1]
        sender = Sender(SenderSettings(interval_s=0.02, timeout_s=0.2, flows=2))
        sender.start(asyncio.get_running_loop())
        path = sender.add("gone", PeerStats())
        if ":" in host:
            path.place(socket.AF_INET6, (host, port, 0, 0))
        else:
            path.place(socket.AF_INET, (host, port))
        try:
            await until(lambda: count(path.session.stats, "refused") >= 5, "ICMP is attributed")
            assert sum(path.session.stats.outcomes) == count(path.session.stats, "refused")
        finally:
            sender.close()

    asyncio.run(test())


def test_a_path_at_rest_settles_what_is_under_way_and_sends_no_more() -> None:
    async def main() -> None:
        sender, stats = Sender(SenderSettings(interval_s=0.02, timeout_s=0.1, grace_s=0.1, flows=2)), PeerStats()
        sender.start(asyncio.get_running_loop())
        path = sender.add("nobody", stats)
        path.place(socket.AF_INET, ("127.0.0.1", free_port()))
        try:
            await until(lambda: path.session.next_seq >= 3, "some probes were sent")
            sender.rest(path)
            sent = path.session.next_seq
            await until(lambda: sum(stats.outcomes) == sent, "all of them settle")
            assert path.session.next_seq == sent
        finally:
            sender.close()

    asyncio.run(main())


def test_a_socket_that_never_answers_is_lost_and_bounded() -> None:
    async def test() -> None:
        with sockets.open_udp(socket.AF_INET, "127.0.0.1", 0) as silent:
            sender = Sender(SenderSettings(interval_s=0.02, timeout_s=0.1, grace_s=0.1, flows=2))
            sender.start(asyncio.get_running_loop())
            path = sender.add("silent", PeerStats())
            path.place(socket.AF_INET, silent.getsockname())
            try:
                await until(lambda: count(path.session.stats, "lost_unknown") >= 20, "losses settle without any answer")
                assert len(path.session.under_way) < 60
            finally:
                sender.close()

    asyncio.run(test())


def test_without_kernel_stamps_answers_are_read_at_once_and_not_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "_SOFTWARE", 0)

    async def test() -> None:
        loop = asyncio.get_running_loop()
        with sockets.open_udp(socket.AF_INET, "127.0.0.1", 0) as sock:
            server = Reflector(sock, keys=None, allows=lambda _host: True, name_of=lambda _host: "peer")
            loop.add_reader(sock, server.on_readable)
            sender = Sender(SenderSettings(interval_s=0.02, flows=2))
            sender.start(loop)
            batches: list[None] = []
            collect = sender._collect

            def counted() -> None:
                batches.append(None)
                collect()

            monkeypatch.setattr(sender, "_collect", counted)
            path = sender.add("peer", PeerStats())
            path.place(socket.AF_INET, sock.getsockname())
            try:
                await until(lambda: count(path.session.stats, "ok") >= 30, "answers come")
                assert sender.stamps_missing >= 30
                assert len(batches) <= 1, "only the first answer could still be waited for"
            finally:
                sender.close()
                loop.remove_reader(sock)

    asyncio.run(test())


def test_a_name_that_never_resolved_is_the_configuration_s_fault() -> None:
    async def test() -> None:
        sender = Sender(SenderSettings(interval_s=0.02))
        sender.start(asyncio.get_running_loop())
        path = sender.add("nowhere", PeerStats())
        try:
            await until(lambda: count(path.session.stats, "resolve_error") >= 3, "counted")
        finally:
            sender.close()

    asyncio.run(test())


def test_a_reload_leaves_untouched_counters_alone_and_removes_series(tmp_path: Path) -> None:
    probe = agent(tmp_path, [])
    own = f"127.0.0.1:{probe.config.listen[1]}"

    async def test() -> None:
        write_targets(probe.config.targets_file, [("b", own), ("c", own)])
        await until(lambda: set(probe.mesh.peers) == {"b", "c"}, "the file is seen")
        stats = probe.mesh.peers["b"].stats
        await until(lambda: count(stats, "ok") >= 3, "b answers")
        before = count(stats, "ok")
        write_targets(probe.config.targets_file, [("b", own.replace("127.0.0.1", "127.0.0.2")), ("c", own)])
        await until(lambda: len(probe.mesh.peers) == 2 and "127.0.0.2" in str(probe.mesh.targets), "b moved")
        assert probe.mesh.peers["b"].stats is stats, "a peer at another address keeps its counters"
        write_targets(probe.config.targets_file, [("b", own), ("d", own)])
        await until(lambda: "d" in probe.mesh.peers, "the change is seen")
        assert probe.mesh.peers["b"].stats is stats
        assert count(stats, "ok") >= before
        text = await get(probe, "/metrics")
        assert 'dst_cluster="c"' not in text
        assert 'dst_cluster="d"' in text
        probe.config.targets_file.write_text("- targets: [")
        await until(lambda: not probe.list.ok, "the broken file is seen")
        assert set(probe.mesh.peers) == {"b", "d"}, "the old list stays in force"
        assert "rebalancer_probe_config_last_reload_successful 0" in await get(probe, "/metrics")
        await until(lambda: count(stats, "ok") > before, "probing goes on")

    drive(probe, test)


def test_keys_are_rotated_without_a_lost_probe(tmp_path: Path) -> None:
    path = tmp_path / "keys"

    def write(text: str) -> None:
        fresh = tmp_path / "fresh"
        fresh.write_text(text)
        fresh.chmod(0o400)
        fresh.rename(path)

    old, new = f"0 {'aa' * 32}\n", f"1 {'bb' * 32}\n"
    write(old)
    probe = agent(tmp_path, [], load_keys(path), keys_file=path)

    async def test() -> None:
        stats = probe.mesh.self_stats
        await until(lambda: count(stats, "ok") >= 5, "the old key works")
        write(new + old)
        await until(lambda: probe.sender.keys is not None and probe.sender.keys.active == 1, "the new key is seen")
        before = count(stats, "ok")
        await until(lambda: count(stats, "ok") >= before + 20, "the new key works")
        assert sum(stats.outcomes) == count(stats, "ok")

    drive(probe, test)


def test_a_peer_with_another_key_is_named_and_its_silence_is_no_loss(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_port()
    probe = agent(tmp_path, [("b", f"127.0.0.2:{port}")], KEYS, keys_file=tmp_path / "keys")

    async def test() -> None:
        with sockets.open_udp(socket.AF_INET, "127.0.0.2", port):
            await until(lambda: "b" in probe.mesh.peers and probe.reflector is not None, "the peer is known")
            theirs = Sender(SenderSettings(interval_s=0.02, flows=1, bind="127.0.0.2"), keys=KeyRing({0: b"x" * 32}, 0))
            theirs.start(asyncio.get_running_loop())
            theirs.add("a", PeerStats()).place(socket.AF_INET, probe.config.listen)
            try:
                packets = probe.reflector.packets if probe.reflector is not None else {}
                await until(lambda: packets.get(("b", "auth"), 0) >= 5, "their probes are turned away")
                for _ in range(3):
                    probe._listen(time.monotonic())
                stats = probe.mesh.peers["b"].stats
                lost = stats.path_samples()
                await until(lambda: count(stats, "auth_failed") >= 5, "unanswered probes settle")
                assert stats.path_samples() == lost
                assert probe.vantage().wrong_key, "the only peer there is"
                assert f"{tmp_path / 'keys'}: differs from the keys of b" in await get(probe, "/healthz")
                assert "probe_sick" in await get(probe, "/debug/peers")
            finally:
                theirs.close()

    drive(probe, test)
    assert [record.message for record in caplog.records if "HMAC" in record.message] == [
        f"b: its probes arrive and fail the HMAC: its keys_file and {tmp_path / 'keys'} differ."
    ]


@pytest.mark.parametrize(
    ("sentence", "request_text", "words"),
    [
        ("the table for people", "GET /debug/peers HTTP/1.1\r\n\r\n", "PEER"),
        ("an unknown path names the known ones", "GET /nope HTTP/1.1\r\n\r\n", "/debug/peers /healthz /metrics"),
        ("nothing may be posted", "POST /metrics HTTP/1.1\r\n\r\n", "405"),
        ("nonsense is answered", "\x00\x01\r\n\r\n", "405"),
    ],
)
def test_http(sentence: str, request_text: str, words: str, tmp_path: Path) -> None:
    probe = agent(tmp_path, [])

    async def test() -> None:
        await until(lambda: probe.list.read_at_s is not None, "started")
        assert words in await get(probe, "", request_text), sentence

    drive(probe, test)


def test_a_port_in_use_says_which_and_what_to_do(tmp_path: Path) -> None:
    probe = agent(tmp_path, [])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(probe.config.listen)
        with pytest.raises(ValueError, match=r"listen: 127\.0\.0\.1:\d+ is in use .* set another listen"):
            asyncio.run(probe.run())


def test_without_a_target_file_it_starts_empty_reflects_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    probe = agent(tmp_path, [])
    probe.config.targets_file.unlink()
    own = f"127.0.0.1:{probe.config.listen[1]}"

    async def test() -> None:
        await until(lambda: "target file can't be read" in caplog.text, "it is in the log")
        assert "0 targets before stay in force" in caplog.text
        text = await get(probe, "/metrics")
        assert "\nrebalancer_probe_targets 0\n" in text
        assert "\nrebalancer_probe_config_last_reload_successful 0\n" in text
        assert "not usable" in await get(probe, "/healthz")
        await until(lambda: count(probe.mesh.self_stats, "ok") >= 3, "it reflects")
        write_targets(probe.config.targets_file, [("b", own)])
        await until(lambda: set(probe.mesh.peers) == {"b"}, "the file came later")
        assert "not usable" not in await get(probe, "/healthz")

    drive(probe, test)


@pytest.mark.slow
def test_a_day_without_a_target_list_stops_probing_but_not_reflecting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    probe = agent(tmp_path, [])
    own = f"127.0.0.1:{probe.config.listen[1]}"
    write_targets(probe.config.targets_file, [("b", own)])

    async def test() -> None:
        await until(lambda: "b" in probe.mesh.peers, "the list is in force")
        monkeypatch.setattr(reload, "MAX_LIST_AGE_S", 1.0)
        written = probe.config.targets_file.stat().st_mtime_ns
        os.utime(probe.config.targets_file, ns=(0, written - 10**15))
        stats = probe.mesh.peers["b"].stats
        before = count(stats, "ok")
        await until(lambda: count(stats, "ok") > before + 60, "an old file that is there is no missing one")
        probe.config.targets_file.unlink()
        await until(lambda: probe.list.expired and not probe.mesh.peers, "it fails closed")
        assert "probing stops until there is one" in caplog.text
        assert "probing has stopped" in await get(probe, "/healthz")
        assert "\nrebalancer_probe_active 0\n" in await get(probe, "/metrics")
        settled = count(probe.mesh.self_stats, "ok")
        await until(lambda: count(probe.mesh.self_stats, "ok") > settled, "it still reflects")
        write_targets(probe.config.targets_file, [("b", own)])
        await until(lambda: "b" in probe.mesh.peers and not probe.list.expired, "a new list starts it again")

    drive(probe, test)


@pytest.mark.slow
def test_eight_thousand_targets_do_not_hold_up_the_loop(tmp_path: Path) -> None:
    probe = agent(tmp_path, [], max_pps=10.0)
    many = [(f"c{n // 40}", f"198.18.{n // 250}.{n % 250 + 1}:9") for n in range(8_000)]  # 199 peers: a full mesh

    async def test() -> None:
        await until(lambda: probe.list.ok, "started")
        worst = [0.0]
        ticking = asyncio.ensure_future(_watch_lag(worst))
        write_targets(probe.config.targets_file, many)
        await until(lambda: len(probe.mesh.targets) == 8_000, "the big list is in force")
        ticking.cancel()
        assert worst[0] < 0.5, "in one piece; a second late the agent would call itself sick"

    drive(probe, test)


async def _watch_lag(worst: list[float]) -> None:
    # The CPU time of the loop's own thread: what other processes take is no fault of the loop.
    while True:
        begun_s = time.thread_time()
        await asyncio.sleep(0.01)
        worst[0] = max(worst[0], time.thread_time() - begun_s)


def test_an_agent_that_was_not_elected_reflects_only_until_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = [Endpoint("one", "z1"), Endpoint("two", "z2")]
    monkeypatch.setattr(election, "ASK_EVERY_S", 0.05)
    asked: list[str] = []

    def answer(service: str) -> list[Endpoint]:
        asked.append(service)
        return list(ready)

    monkeypatch.setattr(election, "read_endpoints", answer)
    monkeypatch.setenv("POD_NAME", "me")
    probe = agent(tmp_path, [], election="net/probe")
    own = f"127.0.0.1:{probe.config.listen[1]}"
    write_targets(probe.config.targets_file, [("b", own)])

    async def test() -> None:
        await until(lambda: probe.election is not None and len(probe.election.elected) == 2, "the two are known")
        await until(lambda: "b" in probe.mesh.peers, "the list is known")
        assert not probe.mesh.peers["b"].paths
        text = await get(probe, "/metrics")
        assert 'dst_cluster="b"' not in text
        assert "\nrebalancer_probe_active 0\n" in text
        assert "reflects only; elected to probe: " in await get(probe, "/debug/peers")
        ready[:] = [Endpoint("me", "z1"), Endpoint("two", "z2")]
        await until(lambda: bool(probe.mesh.peers["b"].paths), "it is elected")
        await until(lambda: count(probe.mesh.peers["b"].stats, "ok") > 3, "it probes")
        ready.clear()
        before = len(asked)
        await until(lambda: len(asked) >= before + 3, "some answers name nobody")
        assert probe.mesh.active, "the last list stands"

    drive(probe, test)


def test_a_resolver_that_hangs_holds_up_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    probe = agent(tmp_path, [])
    own = f"127.0.0.1:{probe.config.listen[1]}"
    hanging = threading.Event()
    monkeypatch.setattr(targets, "_look_up", lambda _host, _port: hanging.wait(20) and None)
    names = [(f"n{n}", f"probe-{n}.invalid:9") for n in range(40)]

    async def test() -> None:
        write_targets(probe.config.targets_file, [("b", own), *names])
        await until(lambda: len(probe.mesh.peers) == 41, "the list is in force")
        await until(lambda: count(probe.mesh.peers["b"].stats, "ok") > 3, "the others are probed")
        write_targets(probe.config.targets_file, [("b", own)])
        await until(lambda: len(probe.mesh.peers) == 1, "the file is read although the resolver hangs")
        hanging.set()

    drive(probe, test)
