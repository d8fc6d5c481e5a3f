"""A run of any tool over the relay, the reflector at its other end, busy loops beside it, and the true losses."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks import namespaces
from tests.benchmarks.roles import PROBER_CORE
from tests.benchmarks.truth_relay import BACKWARD, FORWARD, Crossing, Scenario

HOGS = 3
_HOG = f"import os; os.sched_setaffinity(0, {{{PROBER_CORE}}})\nwhile True: pass"


@dataclass(frozen=True)
class Run:
    """What a tool and the relay say about the same packets."""

    tool: Mapping[str, Any]
    crossings: Sequence[Crossing]


@contextlib.contextmanager
def carried(names: namespaces.Names, scenario: Scenario, directory: Path) -> Iterator[list[Crossing]]:
    """Runs the relay; the list is filled when the block has ended."""
    out = directory / "truth.json"
    out.unlink(missing_ok=True)
    command = namespaces.execute(names.relay, "tests.benchmarks.truth_relay", scenario.dump(), str(out))
    crossings: list[Crossing] = []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as relay:
        assert relay.stdout is not None
        relay.stdout.readline()
        try:
            yield crossings
        finally:
            try:
                relay.communicate(timeout=60)
            except subprocess.TimeoutExpired:
                relay.kill()
                raise
    crossings.extend(Crossing(*values) for values in json.loads(out.read_text())["crossings"])


@contextlib.contextmanager
def reflecting(names: namespaces.Names) -> Iterator[None]:
    """Runs the reflector."""
    command = namespaces.execute(names.reflector, "tests.benchmarks.roles", "reflect")
    with subprocess.Popen(command, stdout=subprocess.PIPE) as reflector:
        assert reflector.stdout is not None
        reflector.stdout.readline()
        try:
            yield
        finally:
            reflector.terminate()


@contextlib.contextmanager
def hogs(count: int = HOGS) -> Iterator[None]:
    """Runs busy loops on the prober's core."""
    running = [subprocess.Popen([sys.executable, "-c", _HOG]) for _ in range(count)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def true_losses(crossings: Sequence[Crossing]) -> tuple[int, int]:
    """Returns how many probes never reached the reflector, and how many reached it and were not answered here."""
    probed = {(item.stream, item.seq) for item in crossings if item.way == FORWARD}
    arrived = {(item.stream, item.seq) for item in crossings if item.way == FORWARD and item.out_ns}
    answered = {(item.stream, item.seq) for item in crossings if item.way == BACKWARD and item.out_ns}
    return len(probed - arrived), len(arrived - answered)
