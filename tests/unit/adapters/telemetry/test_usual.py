"""What round trip is usual between two clusters: the question, how often it is asked, and what an error does."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from rebalancer.adapters.telemetry import network
from tests.stack.fixtures import program
from tests.unit.adapters.telemetry.servers import Behaviour, Handler, always, serving, success
from tests.unit.adapters.telemetry.test_view import Clock, telemetry


def week(usual: list[tuple[str, str, str, str]]) -> Behaviour:
    """Knows nothing but the usual round trips."""

    def answer(handler: Handler) -> None:
        result: list[Any] = []
        if handler.form["query"] == network.USUAL:
            result = [
                {"metric": {"src_cluster": s, "dst_cluster": d, "proto": p}, "value": [0, v]} for s, d, p, v in usual
            ]
        handler.answer(200, success(result))

    return answer


def asked(server: Any) -> int:
    return sum(form.get("query") == network.USUAL for _, form, _ in server.requests)


def test_both_directions_are_one_pair_and_what_is_no_round_trip_does_not_count() -> None:
    answers = [
        ("us-1", "eu-1", "udp", "0.09"), ("eu-1", "us-1", "udp", "0.1"), ("eu-1", "us-1", "tcp", "0.5"),
        ("ap-1", "eu-1", "udp", "NaN"), ("ap-1", "us-1", "udp", "+Inf"), ("ap-1", "", "udp", "0.1"),
    ]  # fmt: skip
    with serving(week(answers)) as server:
        clock = Clock()
        answer = asyncio.run(telemetry(clock, {"type": "prometheus", "url": server.url}).network(clock.now()))
    assert answer.usual_rtt_s == {("eu-1", "us-1"): 0.1}


def test_it_is_asked_once_an_hour_and_kept_over_an_error() -> None:
    async def run() -> None:
        with serving(week([("eu-1", "us-1", "udp", "0.1")])) as server:
            clock = Clock()
            port = telemetry(clock, {"type": "prometheus", "url": server.url})
            for _ in range(5):
                assert (await port.network(clock.now())).usual_rtt_s == {("eu-1", "us-1"): 0.1}
                clock.at += 60
            assert asked(server) == 1
            clock.at += network.USUAL_EVERY_S
            server.behaviour = always(500, b"no")
            answer = await port.network(clock.now())
            assert answer.usual_rtt_s == {("eu-1", "us-1"): 0.1}
            assert [e for e in answer.errors if "judged by loss only" in e], answer.errors
            tries = asked(server)
            clock.at += 60
            await port.network(clock.now())
            assert asked(server) == tries, "not every cycle again"

    asyncio.run(run())


@pytest.mark.parametrize(
    ("what", "values", "expected"),
    [
        ("five days at 100 ms and two at 300 ms", "0.1x239 0.3x95", 0.1),
        ("a day is enough", "_x285 0.2x48", 0.2),
        ("less than a day is nothing", "_x300 0.2x30", None),
    ],
)
def test_a_real_server_gives_the_median_of_a_week(
    what: str, values: str, expected: float | None, tmp_path: Path
) -> None:
    document = {
        "evaluation_interval": "30m",
        "tests": [
            {
                "interval": "30m",
                "input_series": [{"series": network.P50 + '{src_cluster="a",dst_cluster="b",proto="udp"}',
                                  "values": values}],
                "promql_expr_test": [
                    {"expr": network.USUAL, "eval_time": "7d",
                     "exp_samples": [] if expected is None else [
                         {"labels": '{src_cluster="a",dst_cluster="b",proto="udp"}', "value": expected}]},
                ],
            }
        ],
    }  # fmt: skip
    path = tmp_path / "usual.yml"
    path.write_text(yaml.safe_dump(document))
    done = subprocess.run([program("promtool"), "test", "rules", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, what + done.stdout + done.stderr
