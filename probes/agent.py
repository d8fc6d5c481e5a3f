"""`rebalancer-probe`: reflects, probes all peers of the target list, and exposes what it measured."""

from __future__ import annotations

import argparse
import asyncio
import errno
import logging
import os
import signal
import socket
import sys
import time
from collections import deque
from pathlib import Path

from probes import memory, sockets, state, tcp
from probes.config import AgentConfig, ConfigProblem, load_config
from probes.election import Election
from probes.exposition import AgentState, Histogram
from probes.firewall import allow_list
from probes.http import Response, Server, text
from probes.keys import KeyFileError, KeyRing, load_keys
from probes.mesh import RECENT_S, SNAPSHOT_EVERY_S, Mesh
from probes.negotiation import expose
from probes.reach import Incoming
from probes.reflector import Limits, Reflector
from probes.reload import TargetList, Watched
from probes.sender import Sender, SenderSettings
from probes.states import Vantage
from probes.stats import PeerStats
from probes.targets import TargetError, load_targets

VERSION = "0.1.0"
WATCH_EVERY_S = 0.5
_TELL_EVERY_S = 3600.0
_WILDCARDS = ("0.0.0.0", "::")
log = logging.getLogger("rebalancer-probe")


class Agent:
    """One running agent.

    Args:
        config: what it is told.
        keys: keys of the authenticated mode, or None.
    """

    def __init__(self, config: AgentConfig, keys: KeyRing | None) -> None:
        self.config = config
        self.lag = Histogram()
        self._lags: deque[tuple[float, float, int]] = deque(maxlen=256)
        bind = "" if config.listen[0] in _WILDCARDS else config.listen[0]
        settings = SenderSettings(
            config.interval_s, config.timeout_s, flows=config.flows, total_pps=config.max_pps, bind=bind
        )
        self.sender = Sender(settings, keys=keys, on_lag=self._on_lag)
        before = _counters_before(config)
        self.mesh = Mesh(config, self.sender, lambda peer, proto: before.pop((peer, proto), None))
        self.tcp = tcp.TcpProber()
        self._tcp_server: asyncio.Server | None = None
        self.reflector: Reflector | None = None
        self.list = TargetList(config, self.mesh)
        self.incoming = Incoming(config.cluster, time.monotonic())
        self.election = Election(config.election, config.cluster) if config.election is not None else None
        self._reached: bool | None = None
        self._told_s: dict[str, float] = {}
        self._keys = keys
        self._keys_file = Watched(config.keys_file) if config.keys_file is not None else None
        self._socket: socket.socket | None = None
        self._server = Server({"/metrics": self._metrics, "/healthz": self._health, "/debug/peers": self._peers})

    async def run(self) -> None:
        """Runs until SIGTERM or SIGINT.

        Raises:
            ConfigProblem: an address can't be bound.
        """
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        with sockets.stamping():
            self._open_reflector(loop)
        if self.config.tcp_fallback:
            await self._listen_tcp()
        await self._listen_http()
        self.sender.start(loop)
        self.mesh.probe_self()
        following = None
        if self.election is not None:
            self.mesh.set_active(False)
            following = asyncio.ensure_future(self.election.follow(self._elected))
        log.info("%s listens on %s:%d (UDP), %s:%d (HTTP)", self.config.cluster, *self.config.listen, *self.config.http)
        try:
            await self._watch(stop)
        finally:
            if following is not None:
                following.cancel()
            self.close(loop)

    def close(self, loop: asyncio.AbstractEventLoop) -> None:
        """Closes all sockets."""
        self._server.close()
        self.list.close()
        if self._tcp_server is not None:
            self._tcp_server.close()
        self.tcp.close()
        self.sender.close()
        self._save()
        if self._socket is not None:
            loop.remove_reader(self._socket)
            self._socket.close()

    def _open_reflector(self, loop: asyncio.AbstractEventLoop) -> None:
        host, port = self.config.listen
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._socket = sockets.open_udp(family, host, port)
        except OSError as error:
            raise _cannot_bind("listen", host, port, error) from error
        self.reflector = Reflector(
            self._socket,
            keys=self._keys,
            allows=self.mesh.allows,
            name_of=self.mesh.name_of,
            limits=Limits(source_pps=self.config.source_pps),
        )
        loop.add_reader(self._socket, self.reflector.on_readable)

    async def _listen_tcp(self) -> None:
        host, port = self.config.listen
        try:
            self._tcp_server = await tcp.listen(host, port)
        except OSError as error:
            raise _cannot_bind("listen", host, port, error) from error

    def _save(self) -> None:
        if self.config.state_file is None:
            return
        try:
            state.save(self.config.state_file, state.dump(self.config.cluster, self.mesh.series()))
        except OSError as error:
            log.error(
                "%s: the state file can't be written (%s); counters begin at 0 after a restart.",
                self.config.state_file,
                error.strerror,
            )

    async def _listen_http(self) -> None:
        host, port = self.config.http
        try:
            await self._server.start(host, port)
        except OSError as error:
            raise _cannot_bind("http", host, port, error) from error

    async def _watch(self, stop: asyncio.Event) -> None:
        next_snapshot_s = 0.0
        while not stop.is_set():
            now_s = time.monotonic()
            self.list.poll(now_s)
            if self._keys_file is not None and self._keys_file.changed():
                self._rekey(self._keys_file.path)
            self.mesh.resolve_due(now_s)
            self.mesh.rename_due()
            if now_s >= next_snapshot_s:
                self.mesh.snapshot(now_s)
                self._listen(now_s)
                next_snapshot_s = now_s + SNAPSHOT_EVERY_S
            if self.config.tcp_fallback:
                self.mesh.fall_back(self.tcp)
            try:
                await asyncio.wait_for(stop.wait(), WATCH_EVERY_S)
            except TimeoutError:
                continue

    def _listen(self, now_s: float) -> None:
        """Takes who was heard meanwhile, and says it once when the peers begin or cease to reach this agent."""
        if self.reflector is None:
            return
        self.incoming.see(self.reflector.packets, now_s)
        unverified = self.incoming.unverified(now_s)
        self.mesh.mark_unverified(unverified)
        self._tell_keys(unverified, now_s)
        reached, why = self._judged(now_s)
        if reached is not None and reached != self._reached:
            self._reached = reached
            log.log(logging.INFO if reached else logging.ERROR, "%s: %s", self._known_as, why)

    def _tell_keys(self, unverified: list[str], now_s: float) -> None:
        """Says which peers have other keys, of each once an hour."""
        self._told_s = {name: at_s for name, at_s in self._told_s.items() if now_s - at_s < _TELL_EVERY_S}
        for name in unverified:
            if name not in self._told_s:
                self._told_s[name] = now_s
                log.error(
                    "%s: its probes arrive and fail the HMAC: its keys_file and %s differ.", name, self.config.keys_file
                )

    def _judged(self, now_s: float) -> tuple[bool | None, str]:
        return self.incoming.judge(self.mesh.answering(), now_s, shared=self.mesh.shares_address)

    @property
    def _known_as(self) -> str:
        return "advertise {}:{}".format(*(self.config.advertise or self.config.listen))

    def _elected(self) -> None:
        if self.election is not None:
            self.mesh.set_active(self.election.won)

    def _notes(self) -> list[str]:
        """What a person should know beside the table of peers."""
        _reached, why = self._judged(time.monotonic())
        notes = [f"{self._known_as}: {why}"]
        if unverified := self.incoming.unverified(time.monotonic()):
            notes.append(
                f"{self.config.keys_file}: differs from the keys of {', '.join(unverified)}; no path to them is judged"
            )
        if self.list.expired:
            notes.append(f"{self.config.targets_file}: no usable target list for a day; probing has stopped")
        elif not self.list.ok:
            notes.append(f"{self.config.targets_file}: not usable, see the log; the list before stays in force")
        if self.election is not None and not self.mesh.active:
            notes.append(f"reflects only; elected to probe: {', '.join(self.election.elected) or 'not known yet'}")
        return notes

    def _rekey(self, path: Path) -> None:
        try:
            keys = load_keys(path)
        except KeyFileError as error:
            log.error("%s The keys before stay in force.", error)
            return
        self.sender.rekey(keys)
        if self.reflector is not None:
            self.reflector.keys = keys
        log.info("%d keys in force, sending with number %d", len(keys.keys), keys.active)

    def _on_lag(self, lag_s: float) -> None:
        self.lag.observe(lag_s)
        self._lags.append((time.monotonic(), lag_s, self._drops()))

    def _drops(self) -> int:
        return self.sender.drops + (self.reflector.drops if self.reflector else 0)

    def vantage(self) -> Vantage:
        """Returns the agent's own health over the last 30 s."""
        since_s = time.monotonic() - RECENT_S
        recent = [(lag, drops) for at, lag, drops in self._lags if at >= since_s]
        lag_s = max((lag for lag, _drops in recent), default=0.0)
        own_drops = self._drops() - recent[0][1] if recent else 0
        return self.mesh.vantage(lag_s=lag_s, own_drops=own_drops, now_unix_s=time.time())

    def _metrics(self, accept: str) -> Response:
        reflector = self.reflector
        if reflector is not None:
            reflector.forget({*self.mesh.peers, self.config.cluster, "unknown"})
        missing = self.sender.stamps_missing + (reflector.stamps_missing if reflector else 0)
        vantage = self.vantage()
        own = AgentState(
            values={
                "probe_socket_drops_total": self._drops(),
                "probe_clock_steps_total": self.sender.clock_steps,
                "probe_kernel_timestamps_missing_total": missing,
                "probe_targets": len(self.mesh.targets),
                "probe_config_last_reload_successful": int(self.list.ok),
                "probe_config_last_reload_success_timestamp_seconds": self.list.read_at_s,
                "probe_active": int(self.mesh.active and not self.list.expired),
                "probe_reached": self._judged(time.monotonic())[0],
                "probe_self_rtt_seconds": self.mesh.self_stats.last_rtt_s if vantage.self_ok else None,
            },
            version=VERSION,
            cluster=self.config.cluster,
            lag=self.lag,
            reflector=dict(reflector.packets) if reflector else {},
            sick=vantage.sick,
        )
        return Response("200 OK", *expose(accept, self.mesh.series(), own, time.monotonic()))

    def _health(self, _accept: str) -> Response:
        vantage = self.vantage()
        if vantage.self_ok is False:
            return text("the own reflector does not answer over loopback\n", "503 Service Unavailable")
        return text("".join(f"{line}\n" for line in ("ok", *self._notes())))

    def _peers(self, _accept: str) -> Response:
        return text(self.mesh.table(self.vantage()) + "".join(f"# {line}\n" for line in self._notes()))


def _cannot_bind(field: str, host: str, port: int, error: OSError) -> ConfigProblem:
    if error.errno == errno.EADDRINUSE:
        return ConfigProblem(f"{field}: {host}:{port} is in use by another process; stop it, or set another {field}.")
    return ConfigProblem(f"{field}: {host}:{port} can't be opened ({error.strerror}); set another {field}.")


def _counters_before(config: AgentConfig) -> dict[tuple[str, str], PeerStats]:
    """What an agent that was stopped left behind; without that file counters begin at 0."""
    if config.state_file is None:
        return {}
    there = config.state_file.exists()
    before = state.load(config.state_file, config.cluster)
    if there and not before:
        log.warning("%s: holds no counters of %s that can be used; they begin at 0.", config.state_file, config.cluster)
    return before


def _start(path: Path) -> Agent:
    config = load_config(path)
    try:
        keys = load_keys(config.keys_file) if config.keys_file is not None else None
    except KeyFileError as error:
        raise ConfigProblem(str(error)) from error
    return Agent(config, keys)


def main(argv: list[str] | None = None) -> int:
    """Entry point of `rebalancer-probe`; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="rebalancer-probe", description="Measures round-trip time and loss to the other clusters over UDP (STAMP)."
    )
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="the agent's YAML file")
    parser.add_argument(
        "--print-firewall", action="store_true", help="print what a firewall must let through, and exit"
    )
    parser.add_argument("--version", action="version", version=VERSION)
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    try:
        if arguments.print_firewall:
            config = load_config(arguments.config)
            print(allow_list(config, load_targets(config.targets_file)), end="")
        else:
            agent = _start(arguments.config)
            memory.calm()
            asyncio.run(agent.run())
    except (ConfigProblem, TargetError) as problem:
        print(f"rebalancer-probe: {problem}", file=sys.stderr)
        return 1
    return os.EX_OK


if __name__ == "__main__":
    sys.exit(main())
