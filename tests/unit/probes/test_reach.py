"""Whether the advertised address works: the probes of peers that arrive are the proof."""

from __future__ import annotations

import pytest

from probes.reach import Incoming

Packets = dict[tuple[str, str], int]


@pytest.mark.parametrize(
    ("sentence", "packets", "answering", "now_s", "reached", "words"),
    [
        ("a peer's probe arrived", {("b", "ok"): 1}, ["b"], 100.0, True, "reached by b"),
        ("one peer's way in is closed", {("b", "ok"): 1}, ["b", "c"], 100.0, True, "reached by b, not by c"),
        ("behind NAT the name is unknown", {("unknown", "ok"): 1}, ["b"], 100.0, True, "reached by unknown"),
        ("peers live, none arrives", {}, ["b"], 100.0, False, "NOT reached: b answer"),
        ("own loopback proves nothing", {("a", "ok"): 9}, ["b"], 100.0, False, "NOT reached"),
        (
            "refused ones prove nothing",
            {("b", "acl"): 9, ("c", "auth"): 9},
            ["b"],
            100.0,
            False,
            "check `advertise`",
        ),
        ("nobody lives", {}, [], 100.0, None, "no peer answers"),
        ("too early", {}, ["b"], 30.0, None, "not reached yet"),
    ],
)
def test_the_verdict(
    sentence: str, packets: Packets, answering: list[str], now_s: float, reached: bool | None, words: str
) -> None:
    incoming = Incoming("a", 0.0)
    incoming.see(packets, now_s - 10.0)
    found, why = incoming.judge(answering, now_s)
    assert found is reached, sentence
    assert words in why, sentence


def test_behind_one_address_nobody_can_tell() -> None:
    incoming = Incoming("a", 0.0)
    incoming.see({("a", "ok"): 9}, 90.0)
    found, why = incoming.judge(["b"], 100.0, shared=True)
    assert found is None
    assert "same address" in why


def test_a_peer_that_was_heard_long_ago_proves_nothing_any_more() -> None:
    incoming = Incoming("a", 0.0)
    incoming.see({("b", "ok"): 5}, 10.0)
    incoming.see({("b", "ok"): 5}, 200.0)
    assert incoming.judge(["b"], 200.0)[0] is False
    incoming.see({("b", "ok"): 6}, 201.0)
    assert incoming.judge(["b"], 202.0)[0] is True


@pytest.mark.parametrize(
    ("sentence", "packets", "now_s", "expected"),
    [
        ("all of a peer's probes fail", {("b", "auth"): 1, ("c", "ok"): 1}, 10.0, ["b"]),
        ("some of them pass: a key is being changed, or somebody else uses the address", {
            ("b", "auth"): 9, ("b", "ok"): 1,
        }, 10.0, []),
        ("that was more than a minute ago", {("b", "auth"): 1}, 71.0, []),
        ("strangers and the own loopback are no peers", {("unknown", "auth"): 9, ("a", "auth"): 9}, 10.0, []),
    ],
)  # fmt: skip
def test_whose_keys_differ(sentence: str, packets: Packets, now_s: float, expected: list[str]) -> None:
    incoming = Incoming("a", 0.0)
    incoming.see(packets, 5.0)
    incoming.see(packets, 8.0)  # nothing new
    assert incoming.unverified(now_s) == expected, sentence
