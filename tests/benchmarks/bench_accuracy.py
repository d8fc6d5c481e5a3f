"""How true the probes are: `python -m tests.benchmarks.bench_accuracy [--short]`.

The prober, a relay that knows the truth of every packet, and the reflector are processes in network namespaces of their
own. The relay and the reflector have one core, the prober another; on the quiet figures each goes before all other
processes, on the others three busy loops share the prober's core. Each line is `name value unit bound ok|SHORT`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from probes.stats import NATIVE_SCHEMA
from tests.benchmarks import bench_rivals, clock_steps, namespaces
from tests.benchmarks.carried import HOGS, Run, carried, hogs, reflecting, true_losses
from tests.benchmarks.figures import line, quantile
from tests.benchmarks.roles import Load
from tests.benchmarks.truth_relay import FORWARD, Crossing, Scenario, Way


def both(name: str, rtt_s: float, jitter_s: float = 0.0) -> Scenario:
    """Returns a path without loss."""
    way = Way(rtt_s / 2, jitter_s)
    return Scenario(name, way, way)


DELAYS = (both("1ms", 0.001), both("20ms", 0.02), both("150ms", 0.15), both("20ms_jitter", 0.02, 0.002))
FAULTS = (
    Scenario("loss_0.1", Way(0.01, loss=0.001), Way(0.01)),
    Scenario("loss_1", Way(0.01, loss=0.005), Way(0.01, loss=0.005)),
    Scenario("loss_5", Way(0.01, loss=0.025), Way(0.01, loss=0.025)),
    Scenario("loss_forward_2_back_0.2", Way(0.01, loss=0.02), Way(0.01, loss=0.002)),
    Scenario("bursts", Way(0.01, loss=0.01, burst=10), Way(0.01)),
    Scenario("reordered", Way(0.01, loss=0.01, reorder=0.05), Way(0.01, reorder=0.05)),
    Scenario("doubled", Way(0.01, loss=0.01, duplicate=0.05), Way(0.01, loss=0.01)),
)


def run(names: namespaces.Names, scenario: Scenario, load: Load, directory: Path, role: str = "probe") -> Run:
    """Runs one of our tools over a scenario."""
    out = directory / "tool.json"
    with carried(names, scenario, directory) as crossings:
        command = namespaces.execute(names.prober, "tests.benchmarks.roles", role, load.dump(), str(out))
        subprocess.run(command, check=True, timeout=load.seconds + 120)
    return Run(json.loads(out.read_text()), crossings)


def wire_times(crossings: Sequence[Crossing]) -> dict[tuple[int, int], tuple[int, int]]:
    """Returns (stream, number) -> (ns from a probe's arrival at the relay to its first answer's departure, of which ns
    on the reflector's side)."""
    sent: dict[tuple[int, int], Crossing] = {}
    found: dict[tuple[int, int], tuple[int, int]] = {}
    for item in crossings:
        key = (item.stream, item.seq)
        if item.way == FORWARD:
            sent.setdefault(key, item)
        elif item.out_ns and key in sent and sent[key].out_ns:
            begun = sent[key]
            times = (min(item.out_ns) - begun.in_ns, item.in_ns - min(begun.out_ns))
            if key not in found or times[0] < found[key][0]:
                found[key] = times
    return found


def rtt_errors_us(result: Run) -> tuple[list[float], list[float]]:
    """Returns per sample |error| of the measured round trip, and of the reported time of the path, in us.

    The first is what the prober measures, against the wire's own time of that packet. The second is what it reports,
    without the reflector's turnaround, against the two passages of the path: it has the reflector's last step too, from
    its last clock reading to the wire, which no packet can carry.
    """
    wire = wire_times(result.crossings)
    outer, path = [], []
    for ssid, seq, rtt_ns, turnaround_ns in result.tool["samples"]:
        whole_ns, reflector_ns = wire[ssid, seq]
        outer.append(abs(rtt_ns + turnaround_ns - whole_ns) / 1e3)
        path.append(abs(rtt_ns - (whole_ns - reflector_ns)) / 1e3)
    return outer, path


def native_quantile(counts: Sequence[tuple[int, int]], q: float) -> float:
    """Returns the quantile that PromQL's histogram_quantile gives: exponential inside of the bucket."""
    rank, below = q * sum(count for _index, count in counts), 0
    for index, count in counts:
        if below + count >= rank:
            return float(2.0 ** ((index - 1 + (rank - below) / count) / 2**NATIVE_SCHEMA))
        below += count
    return float("nan")


def delays(names: namespaces.Names, directory: Path, seconds: float) -> list[bool]:
    """Measures the error of round-trip times, quiet and with a busy core, and of PromQL's quantiles."""
    good = []
    for scenario in DELAYS:
        result = run(names, scenario, Load(namespaces.REFLECTOR, seconds=seconds), directory)
        outer, path = rtt_errors_us(result)
        good += [
            line(f"probe_rtt_error_p99_{scenario.name}", quantile(outer, 0.99), "us", 50),
            line(f"probe_path_rtt_error_p99_{scenario.name}", quantile(path, 0.99), "us", 100),
        ]
        true_s = [whole / 1e9 - rest / 1e9 for whole, rest in wire_times(result.crossings).values()]
        for q, bound in ((0.5, 3), (0.99, 5)):
            truth = quantile(true_s, q)
            off = 100 * abs(native_quantile(result.tool["native"], q) / truth - 1)
            good.append(line(f"probe_promql_p{100 * q:.0f}_error_{scenario.name}", off, "%", bound))
    with hogs():
        result = run(names, DELAYS[1], Load(namespaces.REFLECTOR, seconds=seconds, fifo=False), directory)
        outer, _path = rtt_errors_us(result)
        good.append(line(f"probe_rtt_error_p99_20ms_{HOGS}_hogs", quantile(outer, 0.99), "us", 100))
        load = Load(namespaces.REFLECTOR, pps=20, seconds=seconds, fifo=False)
        result = run(names, DELAYS[1], load, directory, "tcp")
        wire = list(wire_times([c for c in result.crossings if c.kind == "tcp"]).values())
        pairs = zip(result.tool["samples"], wire, strict=True)
        errors = [abs(sample - whole) / 1e3 for sample, (whole, _rest) in pairs if sample is not None]
        good.append(line(f"probe_tcp_rtt_error_p99_20ms_{HOGS}_hogs", quantile(errors, 0.99), "us", 200))
    return good


def losses(names: namespaces.Names, directory: Path, seconds: float) -> list[bool]:
    """Compares settled losses and their directions with the truth."""
    good = []
    for scenario in FAULTS:
        # The last probes of all paths get through, so that every loss has an answered probe after it.
        timed = Scenario(scenario.name, scenario.forward, scenario.backward, 1.0, seconds - 1.0)
        load = Load(namespaces.REFLECTOR, paths=50, pps=20, seconds=seconds)
        result = run(names, timed, load, directory)
        forward, backward = true_losses(result.crossings)
        outcomes, sent = result.tool["outcomes"], result.tool["sent"]
        total = sum(outcomes[name] for name in ("lost_forward", "lost_backward", "lost_unknown"))
        off = max(abs(outcomes["lost_forward"] - forward), abs(outcomes["lost_backward"] - backward))
        good += [
            line(f"probe_loss_error_{scenario.name}", abs(total - forward - backward), f"of_{sent}_probes", 0),
            line(f"probe_direction_error_{scenario.name}", 100 * off / sent, "points", 0.05),
        ]
    return good


def detection(names: namespaces.Names, directory: Path) -> list[bool]:
    """Measures after which time a new loss of 1 % is sure: its Wilson lower bound (95 %) is above 0."""
    load = Load(namespaces.REFLECTOR, paths=100, pps=10, seconds=45)
    result = run(names, Scenario("1", Way(0.01, loss=0.01), Way(0.01)), load, directory)
    times = sorted(result.tool["detected"]) + [float("inf")] * (load.paths - len(result.tool["detected"]))
    return [line("probe_loss_1_seen_after_p95_of_100_paths", quantile(times, 0.94), "s", 30)]


def main() -> int:
    """Prints all figures; the exit code is 1 if one is short."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="5 s a run instead of 12, and 10 instead of 25 for losses")
    short = parser.parse_args().short
    good = clock_steps.figures()
    if reason := namespaces.unavailable():
        print(f"accuracy on a path: not measured, because {reason}")
        return 0 if all(good) else 1
    with tempfile.TemporaryDirectory() as temporary, namespaces.path() as names, reflecting(names):
        directory = Path(temporary)
        good += delays(names, directory, 5.0 if short else 12.0)
        good += losses(names, directory, 10.0 if short else 25.0)
        good += detection(names, directory)
        bench_rivals.figures(names, DELAYS[:2], FAULTS[1], directory, 5.0 if short else 12.0)
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
