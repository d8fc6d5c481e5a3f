"""Path states as one agent sees them: the table of the design."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.states import Recent, Vantage, judge_path

OK = Vantage(peers=3, peers_answering=2)
ONE_DIFFERS = Vantage(peers=3, peers_answering=1, peers_unverified=1)


@pytest.mark.parametrize(
    ("sentence", "recent", "vantage", "state"),
    [
        ("all answered", Recent(ok=30, ever=True), OK, "ok"),
        ("some lost on the way out", Recent(ok=24, lost_forward=6, ever=True), OK, "lossy"),
        ("the host refuses", Recent(refused=30, ever=True), OK, "peer_down"),
        ("nothing at all comes back", Recent(lost_unknown=30, ever=True), OK, "silent"),
        ("a router says unreachable", Recent(unreachable=30, ever=True), OK, "silent"),
        ("UDP is silent and TCP connects", Recent(lost_unknown=30, tcp_ok=3, ever=True), OK, "udp_blocked"),
        ("planned work", Recent(lost_unknown=30, ever=True, draining=True), OK, "maintenance"),
        ("no peer answers", Recent(lost_unknown=30, ever=True), Vantage(peers=3, peers_answering=0), "uplink_down"),
        ("no route", Recent(own=30, ever=True), Vantage(peers=3, peers_answering=0), "uplink_down"),
        ("the own loopback fails", Recent(ok=30, ever=True), Vantage(self_ok=False), "probe_sick"),
        ("the own loop is late", Recent(ok=30, ever=True), Vantage(lag_s=1.5), "probe_sick"),
        ("the own socket dropped", Recent(lost_unknown=9, ever=True), Vantage(own_drops=1), "probe_sick"),
        ("a pair never opened is unknown, not down", Recent(lost_unknown=30), OK, "unknown"),
        ("nothing settled yet", Recent(), OK, "unknown"),
        ("no name resolves", Recent(unresolved=30), Vantage(peers=0, peers_answering=0), "unknown"),
        (
            "no name, and nobody answers",
            Recent(unresolved=30),
            Vantage(peers=3, peers_answering=0),
            "unknown",
        ),
        ("one of three peers has other keys", Recent(unverified=True, lost_unknown=30), ONE_DIFFERS, "unknown"),
        ("one of three has, and another is silent", Recent(lost_unknown=30, ever=True), ONE_DIFFERS, "silent"),
        (
            "the own keys are nobody's",
            Recent(unverified=True),
            Vantage(True, peers=3, peers_unverified=2),
            "probe_sick",
        ),
        ("it answers, so its keys are no matter", Recent(ok=30, ever=True), ONE_DIFFERS, "ok"),
        ("only own failures to one peer", Recent(own=30, ever=True), OK, "unknown"),
    ],
)
def test_the_table(sentence: str, recent: Recent, vantage: Vantage, state: str) -> None:
    assert judge_path(recent, vantage)[0] == state, sentence


counts = st.integers(0, 1000)


@given(counts, counts, counts, st.integers(1, 1000))
def test_a_path_that_answers_is_never_down(forward: int, backward: int, refused: int, ok: int) -> None:
    recent = Recent(ok=ok, lost_forward=forward, lost_backward=backward, refused=refused, ever=True)
    assert judge_path(recent, OK)[0] in ("ok", "lossy")


@pytest.mark.parametrize(
    ("forward", "backward", "way"), [(9, 1, "way out"), (1, 9, "way back"), (5, 5, "both ways"), (0, 9, "way back")]
)
def test_a_lossy_path_says_its_direction(forward: int, backward: int, way: str) -> None:
    assert way in judge_path(Recent(ok=50, lost_forward=forward, lost_backward=backward, ever=True), OK)[1]


@pytest.mark.parametrize(
    ("sentence", "recent", "heard"),
    [
        ("a reply", Recent(ok=1), True),
        ("a refusal comes from the other host", Recent(refused=1), True),
        ("a connect over TCP", Recent(lost_unknown=9, tcp_ok=1), True),
        ("its probes, though with another key", Recent(unverified=True), True),
        ("a router's error may come from the own gateway", Recent(unreachable=9), False),
        ("silence", Recent(lost_unknown=9), False),
    ],
)
def test_what_shows_that_the_own_uplink_works(sentence: str, recent: Recent, heard: bool) -> None:
    assert recent.heard is heard, sentence


def test_a_name_that_never_resolved_says_so_and_is_no_try() -> None:
    state, why = judge_path(Recent(unresolved=30), OK)
    assert state == "unknown"
    assert "DNS" in why
    assert Recent(unresolved=30).tried == 0
