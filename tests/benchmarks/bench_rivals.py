"""What other probers say about the same path, by the same truth; called by `bench_accuracy`."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.benchmarks import namespaces, rivals
from tests.benchmarks.carried import HOGS, Run, carried, hogs, true_losses
from tests.benchmarks.figures import quantile, rival
from tests.benchmarks.roles import Load
from tests.benchmarks.truth_relay import BACKWARD, FORWARD, Crossing, Scenario


def _run(names: namespaces.Names, tool: str, scenario: Scenario, load: Load, directory: Path) -> Run:
    out = directory / "rival.json"
    with carried(names, scenario, directory) as crossings:
        command = namespaces.execute(names.prober, rivals.__name__, tool, load.dump(), str(out))
        subprocess.run(command, check=True, timeout=2 * load.seconds + 120, capture_output=True)
    return Run(json.loads(out.read_text()), crossings)


def _whole_ns(crossings: Sequence[Crossing], kind: str) -> dict[tuple[str, int, int], int]:
    """Returns (host, stream, number) -> ns from a probe's arrival at the relay to its first answer's departure."""
    begun: dict[tuple[str, int, int], int] = {}
    found: dict[tuple[str, int, int], int] = {}
    for item in (item for item in crossings if item.kind == kind):
        key = (item.host, item.stream, item.seq)
        if item.way == FORWARD:
            begun.setdefault(key, item.in_ns)
        elif item.way == BACKWARD and item.out_ns and key in begun:
            found.setdefault(key, min(item.out_ns) - begun[key])
    return found


def _smokeping_errors_us(result: Run) -> list[float]:
    # A host has one pinger, so its number alone tells the packet.
    wire = {(host, seq): ns for (host, _stream, seq), ns in _whole_ns(result.crossings, "icmp").items()}
    return [abs(ns - wire[host, seq]) / 1e3 for host, seq, ns in result.tool["samples"] if (host, seq) in wire]


def _blackbox_errors_us(result: Run, kind: str) -> list[float]:
    # One probe at a time, so the n-th value is that of the n-th probe on the wire; a failed one breaks the row.
    wire = list(_whole_ns(result.crossings, kind).values())
    samples = [ns for ns in result.tool[kind] if ns is not None]
    if len(wire) != len(samples):
        return []
    return [abs(ns - whole) / 1e3 for ns, whole in zip(samples, wire, strict=True)]


def _loss_excess(result: Run) -> float:
    answered = float(result.tool["responses"]) / float(result.tool["requests"])
    truth = sum(true_losses(result.crossings)) / max(1, sum(item.way == FORWARD for item in result.crossings))
    return 100 * abs(1 - answered - truth)


def _smokeping(
    names: namespaces.Names, quiet: Sequence[Scenario], lossy: Scenario, directory: Path, seconds: float
) -> None:
    for scenario in quiet:
        result = _run(names, "smokeping", scenario, Load(namespaces.REFLECTOR, seconds=seconds), directory)
        rival(f"smokeping_rtt_error_p99_{scenario.name}", quantile(_smokeping_errors_us(result), 0.99), "us")
    with hogs():
        load = Load(namespaces.REFLECTOR, seconds=seconds, fifo=False)
        result = _run(names, "smokeping", quiet[-1], load, directory)
    errors = _smokeping_errors_us(result)
    rival(f"smokeping_rtt_error_p99_{quiet[-1].name}_{HOGS}_hogs", quantile(errors, 0.99), "us")
    result = _run(names, "smokeping", lossy, Load(namespaces.REFLECTOR, seconds=seconds), directory)
    rival(f"smokeping_loss_error_{lossy.name}", _loss_excess(result), "points")


def _blackbox(names: namespaces.Names, scenario: Scenario, directory: Path, seconds: float) -> None:
    load = Load(namespaces.REFLECTOR, seconds=2 * seconds)
    result = _run(names, "blackbox", scenario, load, directory)
    with hogs():
        busy = _run(names, "blackbox", scenario, Load(load.host, seconds=load.seconds, fifo=False), directory)
    for kind in ("icmp", "tcp"):
        name = f"blackbox_{kind}_rtt_error_p99_{scenario.name}"
        rival(name, quantile(_blackbox_errors_us(result, kind), 0.99), "us")
        rival(f"{name}_{HOGS}_hogs", quantile(_blackbox_errors_us(busy, kind), 0.99), "us")


def figures(
    names: namespaces.Names, quiet: Sequence[Scenario], lossy: Scenario, directory: Path, seconds: float
) -> None:
    """Prints the rivals' figures: round-trip errors quiet and with three busy loops, and smokeping's loss."""
    tools: dict[str, Callable[[], None]] = {
        "smokeping": lambda: _smokeping(names, quiet, lossy, directory, seconds),
        "blackbox": lambda: _blackbox(names, quiet[-1], directory, seconds),
    }
    for tool, measure in tools.items():
        if rivals.program(tool) is None:
            print(f"{rivals.PROGRAMS[tool]}: not measured, because Debian's package can't be had here")
            continue
        try:
            measure()
        except subprocess.SubprocessError as error:
            print(f"{rivals.PROGRAMS[tool]}: not measured, because it failed here: {error}")
