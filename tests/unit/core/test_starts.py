"""The measured start delay: enough starts, the newest ones, and what the policy says before all."""

from __future__ import annotations

import math

import pytest

from rebalancer.core import starts
from rebalancer.core.model import Placement
from rebalancer.core.policy import Policy


def placement(*begun: tuple[float, float]) -> Placement:
    return Placement("shop/web", "eu-1", len(begun), starts=begun)


def of(*delays: float) -> starts.Starts:
    return tuple(("eu-1", float(at), delay) for at, delay in enumerate(delays))


@pytest.mark.parametrize(
    ("sentence", "policy_s", "known", "lead_s"),
    [
        ("nothing was seen start", None, of(), 300.0),
        ("two starts say too little", None, of(30.0, 30.0), 300.0),
        ("three do", None, of(30.0, 40.0, 50.0), 170.0),
        ("one slow start in fifty does not count", None, of(*[30.0] * 49, 900.0), 150.0),
        ("four in fifty do", None, of(*[30.0] * 46, *[900.0] * 4), 1020.0),
        ("the policy goes before what is measured", 45.0, of(30.0, 40.0, 50.0), 45.0),
        ("no lead is longer than two hours", None, of(*[9000.0] * 5), 7200.0),
    ],
)
def test_the_lead(sentence: str, policy_s: float | None, known: starts.Starts, lead_s: float) -> None:
    assert starts.lead_s(Policy("p", lead_s=policy_s), known) == lead_s, sentence


def test_a_start_counts_once_however_often_it_is_seen_and_stays_known_when_the_replica_is_gone() -> None:
    once = starts.remember((), {"eu-1": placement((100.0, 30.0), (200.0, 40.0))})
    again = starts.remember(once, {"eu-1": placement((200.0, 40.0))})
    assert once == again == (("eu-1", 100.0, 30.0), ("eu-1", 200.0, 40.0))


def test_only_the_newest_starts_remain() -> None:
    many = starts.remember((), {"eu-1": placement(*((float(i), float(i)) for i in range(200)))})
    assert len(many) == starts.KEEP
    assert many[0][1] == 200.0 - starts.KEEP


def test_an_unknown_delay_is_no_number() -> None:
    assert math.isnan(starts.delay_s(of(1.0)))
