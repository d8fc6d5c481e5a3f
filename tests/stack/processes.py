"""Child processes that cannot outlive the test, loopback ports nobody else takes, and waits with a deadline."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import queue
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TypeVar

T = TypeVar("T")

# Below Linux' ephemeral range (32768-60999), so that no outgoing connection can take a port before its server does.
_PORTS = range(15000, 32000)
_POLL_S = 0.02


class StackError(RuntimeError):
    """A part of the stack did not start, or did not reach a state before its deadline."""


def wait_for(
    condition: Callable[[], T | None],
    what: str,
    timeout_s: float = 20.0,
    poll_s: float = _POLL_S,
    *,
    owner: Process | None = None,
) -> T:
    """Polls a condition until it returns something true, and returns that.

    Exceptions of the condition count as "not yet"; the last one is named when the deadline passes.

    Args:
        condition: Called again and again; each call must itself be bounded.
        what: What is awaited, for the error.
        timeout_s: Deadline in seconds.
        poll_s: Pause between calls in seconds.
        owner: The process that must stay alive meanwhile.

    Raises:
        StackError: The deadline passed, or the owner died.
    """
    deadline = time.monotonic() + timeout_s
    last: Exception | None = None
    while True:
        try:
            if result := condition():
                return result
            last = None
        except Exception as error:  # noqa: BLE001 - any failure of a probe means "not yet"
            last = error
        if owner is not None and not owner.running:
            raise StackError(f"{owner.name} ended (code {owner.returncode}) while waiting for {what}\n{owner.tail()}")
        if time.monotonic() > deadline:
            detail = f": {type(last).__name__}: {last}" if last else ""
            logs = f"\n{owner.tail()}" if owner else ""
            raise StackError(f"no {what} within {timeout_s:g} s{detail}{logs}")
        time.sleep(poll_s)


class _Ports:
    """Hands out free loopback ports; a locked file per port keeps other test runs of this user off it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[int, IO[str]] = {}

    def take(self) -> int:
        folder = Path(tempfile.gettempdir()) / f"rebalancer-stack-ports-{os.getuid()}"
        folder.mkdir(exist_ok=True)
        with self._lock:
            for port in random.sample(_PORTS, 2000):
                if port in self._held or not _free(port):
                    continue
                handle = (folder / str(port)).open("w")
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    handle.close()
                    continue
                self._held[port] = handle
                return port
        raise StackError("no free loopback port")


def _free(port: int) -> bool:
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        with socket.socket(socket.AF_INET, kind) as probe:
            if kind == socket.SOCK_STREAM:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                return False
    return True


_ports = _Ports()


def free_port() -> int:
    """Returns a loopback port, free for TCP and UDP, that stays reserved for this process until it ends."""
    return _ports.take()


class _Spawner:
    """Starts children from one thread that never ends.

    The kernel sends a child's parent-death signal when the *thread* that forked it ends; a thread of a pool would take
    its children along. `setpriv` asks for the signal, because code between fork and exec may deadlock among threads.
    """

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[tuple[Callable[[], subprocess.Popen[bytes]], Future[subprocess.Popen[bytes]]]]
        self._jobs = queue.SimpleQueue()
        self._started = False
        self._lock = threading.Lock()

    def spawn(self, start: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
        with self._lock:
            if not self._started:
                threading.Thread(target=self._loop, name="stack-spawner", daemon=True).start()
                self._started = True
        done: Future[subprocess.Popen[bytes]] = Future()
        self._jobs.put((start, done))
        return done.result(timeout=30)

    def _loop(self) -> None:
        while True:
            start, done = self._jobs.get()
            try:
                done.set_result(start())
            except Exception as error:  # noqa: BLE001 - handed to the caller
                done.set_exception(error)


_spawner = _Spawner()
_living: set[Process] = set()


@dataclass(eq=False)
class Process:
    """One child with its log file; it can be killed, paused and started again with the same arguments.

    Attributes:
        name: For people and for the log's file name.
        argv: Program and arguments.
        log: Where its output goes (appended over restarts).
        env: Added to the environment.
        cwd: Working folder.
    """

    name: str
    argv: Sequence[str]
    log: Path
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: Path | None = None
    _popen: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def start(self) -> Process:
        """Starts it; a second start of a running process is an error."""
        if self.running:
            raise StackError(f"{self.name} is running already")
        setpriv = shutil.which("setpriv")
        argv = [setpriv, "--pdeathsig", "KILL", "--", *self.argv] if setpriv else list(self.argv)

        def popen() -> subprocess.Popen[bytes]:
            with self.log.open("ab") as out:
                return subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **self.env},
                    cwd=self.cwd,
                    start_new_session=True,
                )

        self._popen = _spawner.spawn(popen)
        _living.add(self)
        return self

    @property
    def pid(self) -> int:
        """Process id; an error before the first start."""
        if self._popen is None:
            raise StackError(f"{self.name} was never started")
        return self._popen.pid

    @property
    def running(self) -> bool:
        """Whether it lives (a paused one does)."""
        return self._popen is not None and self._popen.poll() is None

    @property
    def returncode(self) -> int | None:
        """How it ended, None while it lives."""
        return self._popen.poll() if self._popen else None

    @property
    def rss_mb(self) -> float:
        """Resident memory in MB."""
        text = Path(f"/proc/{self.pid}/status").read_text()
        return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("VmRSS")) / 1024

    @property
    def cpu_s(self) -> float:
        """CPU seconds used so far, user and system."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to this process only."""
        if self.running:
            os.kill(self.pid, number)

    def kill(self, timeout_s: float = 10.0) -> None:
        """SIGKILL, then waits for the end; harmless when it has ended."""
        if self._popen is not None:
            with contextlib.suppress(ProcessLookupError):
                self._popen.kill()
            self._popen.wait(timeout=timeout_s)
        _living.discard(self)

    def terminate(self, timeout_s: float = 10.0) -> int:
        """SIGTERM, waits; returns the exit code. Raises StackError when it does not end in time."""
        if self._popen is None:
            raise StackError(f"{self.name} was never started")
        self.signal(signal.SIGTERM)
        try:
            code = self._popen.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            raise StackError(f"{self.name} did not end within {timeout_s:g} s of SIGTERM\n{self.tail()}") from error
        _living.discard(self)
        return code

    def restart(self) -> None:
        """Kills it and starts it again: same arguments, ports and data folder."""
        self.kill()
        self.start()

    def pause(self) -> None:
        """SIGSTOP: it keeps its sockets open and answers nothing."""
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self.signal(signal.SIGCONT)

    def tail(self, lines: int = 15) -> str:
        """The end of its log."""
        if not self.log.exists():
            return f"(no log {self.log})"
        return f"--- {self.log}\n" + "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


@atexit.register
def _kill_all() -> None:
    """The last net for a normal end; the parent-death signal is the one for a crash."""
    for process in list(_living):
        with contextlib.suppress(Exception):
            process.kill(timeout_s=2)


class Workdir:
    """A folder for data and logs, removed at the end unless something failed; then its path is printed."""

    def __init__(self, label: str) -> None:
        _sweep()
        self.path = Path(tempfile.mkdtemp(prefix=f"rebalancer-stack-{os.getpid()}-{label}-"))
        self.keep = os.environ.get("REBALANCER_STACK_KEEP") == "1"

    def sub(self, *parts: str) -> Path:
        """Makes and returns a folder in it."""
        folder = self.path.joinpath(*parts)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def close(self, *, failed: bool = False) -> None:
        """Removes the folder, or prints where the logs are."""
        if failed or self.keep:
            (self.path / "KEEP").touch()
            print(f"\nlogs of the stack are kept in {self.path}")
        else:
            shutil.rmtree(self.path, ignore_errors=True)


def _sweep() -> None:
    """Removes what runs that were killed left behind, except what was kept on purpose."""
    for old in Path(tempfile.gettempdir()).glob("rebalancer-stack-*-*-*"):
        pid = old.name.split("-")[2]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists() and not (old / "KEEP").exists():
            shutil.rmtree(old, ignore_errors=True)
