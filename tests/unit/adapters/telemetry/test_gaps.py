"""An edge cluster comes back: what its counters grew by meanwhile is one sample, as long as it was away."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from rebalancer.adapters.telemetry import gaps, network, throughput
from rebalancer.core.network import Gap, LatencyMap, Throughput
from tests.stack.fixtures import program
from tests.unit.adapters.telemetry.servers import Behaviour, Handler, always, serving, success
from tests.unit.adapters.telemetry.test_view import Clock, telemetry

PAIR = {"src_cluster": "eu-1", "dst_cluster": "us-1", "proto": "udp"}
HOUR_S = 3600.0


class Edge:
    """A backend whose newest recording of eu-1 to us-1 is of `newest`; its counters grew by `grown` meanwhile."""

    def __init__(self, clock: Clock, grown: dict[str, str]) -> None:
        self.clock, self.grown, self.newest, self.asked = clock, grown, clock.at, list[str]()

    def __call__(self, handler: Handler) -> None:
        query, result = handler.form["query"], list[Any]()
        if query == network.ALL and self.clock.at - self.newest < 300:
            result = [{"metric": {"__name__": network.SAMPLES, **PAIR}, "value": [0, "120"]}]
        elif query == network.times(network.SAMPLES, back=False):
            result = [{"metric": PAIR, "value": [0, str(self.newest)]}]
        elif "increase(" in query:
            self.asked.append(query)
            result = [{"metric": {"dst_cluster": "us-1", "outcome": o}, "value": [0, v]} for o, v in self.grown.items()]
        handler.answer(200, success(result))

    def run(self, *steps: tuple[float, float]) -> LatencyMap:
        """Reads the map after each step: (the clock goes on by so much, the newest recording is so old)."""

        async def reads() -> LatencyMap:
            with serving(self) as server:
                port = telemetry(self.clock, {"type": "prometheus", "url": server.url})
                answer = await port.network(self.clock.now())
                for on_s, age_s in steps:
                    self.clock.at += on_s
                    self.newest = self.clock.at - age_s
                    answer = await port.network(self.clock.now())
                await port.close()
                return answer.map

        return asyncio.run(reads())


@pytest.mark.parametrize(
    ("what", "steps", "grown", "expected"),
    [
        ("three hours away, a tenth lost", ((3 * HOUR_S, 0.0),), {"ok": "9720", "lost_forward": "1080"},
         Gap(3 * HOUR_S, 0.0, 10_800.0, 0.1)),
        ("it is told a while after, with its age", ((3 * HOUR_S, 0.0), (60.0, 0.0)), {"ok": "10800"},
         Gap(3 * HOUR_S, 60.0, 10_800.0, 0.0)),
        ("it is forgotten after a day", ((3 * HOUR_S, 0.0), (25 * HOUR_S, 25 * HOUR_S)), {"ok": "10800"}, None),
        ("a late evaluation is no gap", ((300.0, 0.0), (300.0, 0.0)), {"ok": "1"}, None),
        ("while it is away nothing is known of it", ((3 * HOUR_S, 3 * HOUR_S),), {"ok": "1"}, None),
        ("the probe did not run meanwhile either", ((3 * HOUR_S, 0.0),), {}, None),
        ("no number is no sample", ((3 * HOUR_S, 0.0),), {"ok": "NaN", "lost_forward": "+Inf"}, None),
        ("longer than two days is history", ((60 * HOUR_S, 0.0),), {"ok": "1"}, None),
    ],
)  # fmt: skip
def test_the_growth_over_a_gap_is_one_sample(
    what: str, steps: tuple[tuple[float, float], ...], grown: dict[str, str], expected: Gap | None
) -> None:
    found = Edge(Clock(), grown).run(*steps)
    cell = found.cells["eu-1", "us-1"]
    assert cell.gap == expected, what


def test_it_is_asked_once_and_is_no_part_of_the_present() -> None:
    edge = Edge(Clock(), {"ok": "0", "lost_forward": "10800"})
    cell = edge.run((3 * HOUR_S, 0.0), (60.0, 0.0), (60.0, 0.0)).cells["eu-1", "us-1"]
    assert len(edge.asked) == 1
    assert cell.gap is not None
    assert (cell.gap.loss, cell.loss) == (1.0, None)


@pytest.mark.parametrize(
    ("what", "ok", "lost", "expected"),
    [
        ("counters run on over the gap", "0+60x5 _x180 11160+60x10", "0+0x5 _x180 1116+0x10",
         {"ok": 10920, "lost_forward": 1116}),
        ("a restart without its state begins anew", "0+60x5 _x180 60+60x10", "0+0x5 _x180 0+0x10",
         {"ok": 60, "lost_forward": 0}),
    ],
)  # fmt: skip
def test_a_real_server_gives_the_growth_over_a_gap(
    what: str, ok: str, lost: str, expected: dict[str, float], tmp_path: Path
) -> None:
    # increase() extends what it saw to its whole window, here by a minute in three hours, for all outcomes alike.
    raw = 'rebalancer_probe_probes_total{src_cluster="eu-1",dst_cluster="us-1",proto="udp",outcome="%s"}'
    at_s = 186 * 60.0
    query = gaps.growth("eu-1", 5 * 60.0, at_s)
    document = {
        "evaluation_interval": "1m",
        "tests": [{
            "interval": "1m",
            "input_series": [{"series": raw % "ok", "values": ok}, {"series": raw % "lost_forward", "values": lost}],
            "promql_expr_test": [{
                "expr": f"round({query}, 60)", "eval_time": "190m",
                "exp_samples": [
                    {"labels": f'{{dst_cluster="us-1",outcome="{o}"}}', "value": round(v / 60) * 60}
                    for o, v in expected.items()
                ],
            }],
        }],
    }  # fmt: skip
    path = tmp_path / "gap.yml"
    path.write_text(yaml.safe_dump(document))
    done = subprocess.run([program("promtool"), "test", "rules", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, what + done.stdout + done.stderr


def carrying(result: list[Any]) -> Behaviour:
    def answer(handler: Handler) -> None:
        handler.answer(200, success(result if throughput.WAYS["in"] in handler.form["query"] else []))

    return answer


@pytest.mark.parametrize(
    ("what", "behaviour", "expected", "problem"),
    [
        ("both ways", carrying([
            {"metric": {"cluster": "eu-1", "kind": "in"}, "value": [0, "125000"]},
            {"metric": {"cluster": "eu-1", "kind": "out"}, "value": [0, "250000"]},
            {"metric": {"cluster": "other", "kind": "out"}, "value": [0, "1"]},
        ]), {"eu-1": Throughput(125_000.0, 250_000.0)}, False),
        ("no node exporter", carrying([]), {}, False),
        ("no number is not zero", carrying([{"metric": {"cluster": "eu-1", "kind": "in"}, "value": [0, "NaN"]}]),
         {}, False),
        ("a server that fails", always(500, b"no"), {}, True),
    ],
)  # fmt: skip
def test_what_clusters_carry_is_read_and_never_guessed(
    what: str, behaviour: Behaviour, expected: dict[str, Throughput], problem: bool
) -> None:
    async def run() -> tuple[dict[str, Throughput], tuple[str, ...]]:
        with serving(behaviour) as server:
            port = telemetry(Clock(), {"type": "prometheus", "url": server.url})
            try:
                return await port.throughput(Clock().now())
            finally:
                await port.close()

    found, problems = asyncio.run(run())
    assert (found, bool(problems)) == (expected, problem), what
