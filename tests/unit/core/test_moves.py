"""The move machine, state by state: what a move in flight does next is read off the replicas."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rebalancer.core.model import (
    Action,
    Demand,
    EndIntent,
    Moved,
    MoveRecord,
    Placement,
    PutIntent,
    Refusal,
    SetReplicas,
    Sight,
    Unknown,
    View,
)
from rebalancer.core.moves import (
    MoveSettings,
    Scene,
    advance,
    budget_left,
    cooling,
    effective,
    ended,
    follows,
    not_followed,
    quarantined,
    records,
    timed_out,
    unsettled,
)
from rebalancer.core.policy import Policy
from tests.unit.core.fleet import NOW, POLICY, WEB, demand, placement

RECORD = MoveRecord("id", "drift", "eu-1", "us-1", 2, 5, 3, "closer-to-users", NOW - 200, NOW + 400)
SERVED = {("us", "eu-1"): 50.0, ("us", "us-1"): 50.0}


def scene(
    source: int | Placement, target: int | Placement, *, seen: Demand | Unknown | None = None,
    sight: dict[str, Sight] | None = None, views: dict[str, View] | None = None, policy: Policy = POLICY,
    untouchable: frozenset[str] = frozenset(), record: MoveRecord = RECORD,
) -> Scene:  # fmt: skip
    places = {
        c: p if isinstance(p, Placement) else placement(c, p, move=record)
        for c, p in (("eu-1", source), ("us-1", target))
    }
    ready = {"eu-1": Sight.READY, "us-1": Sight.READY}
    complete = {c: View("complete", NOW) for c in places}
    known = seen if seen is not None else demand({"us": 100.0}, SERVED)
    return Scene(policy, places, known, {**ready, **(sight or {})}, {**complete, **(views or {})}, untouchable)


def step(seen: Scene, now: float = NOW, record: MoveRecord = RECORD) -> Action | Refusal:
    return advance(record, seen, now, MoveSettings())


def told(found: Action | Refusal) -> tuple[str, ...]:
    """The reason, and the steps in short."""
    if isinstance(found, Refusal):
        return ("refused", found.reason, found.cluster)
    steps = []
    for one in found.steps:
        match one:
            case SetReplicas():
                steps.append(f"{one.cluster} {one.expected}->{one.replicas}")
            case PutIntent():
                steps.append(f"mark {one.cluster}")
            case EndIntent():
                steps.append(f"end {one.cluster} {one.moved.outcome}")
    return (found.reason, *steps)


def starting(count: int, since: float = NOW) -> Placement:
    """The target, raised to five, of which `count` are ready since `since` beside its three old ones."""
    old = placement("us-1", 5, ready=3, move=RECORD)
    return replace(old, ready_since_s=tuple(sorted([*old.ready_since_s, *([since] * count)])))


DARK = View("failed", NOW - 60, "no answer")
UNFOLLOWED = demand({"us": 100.0}, {("us", "eu-1"): 100.0, ("us", "us-1"): 0.0})
MARKED = replace(RECORD, reason="traffic-did-not-follow", deadline_s=NOW)
ENDS = ("end us-1 done", "end eu-1 done")
LATE = NOW + 500


@pytest.mark.parametrize(
    ("sentence", "found", "expected"),
    [
        ("nothing raised yet: raise the target", step(scene(5, 3)), ("continue-move", "us-1 3->5")),
        ("the intent is on one object only", step(scene(placement("eu-1", 5), 3)),
         ("continue-move", "mark eu-1", "us-1 3->5")),
        ("nothing raised at the deadline: undone", step(scene(5, 3), LATE),
         ("move-timed-out", "end us-1 timed-out", "end eu-1 timed-out")),
        ("not ready yet: wait", step(scene(5, starting(1))), ("refused", "move-in-flight", "us-1")),
        ("ready too short a time: wait", step(scene(5, starting(2, NOW - 10))), ("refused", "move-in-flight", "us-1")),
        ("ready, but sessions still drain", step(scene(5, starting(2, NOW - 35)), NOW - 6),
         ("refused", "move-in-flight", "us-1")),
        ("ready and drained: cut the source", step(scene(5, starting(2, NOW - 61))),
         ("finish-move", "eu-1 5->3", *ENDS)),
        ("the cut was made before a kill", step(scene(3, 5)), ("finish-move", *ENDS)),
        ("one end was taken off before a kill", step(scene(3, placement("us-1", 5))), ("finish-move", "end eu-1 done")),
        ("not ready at the deadline: undo, the source stays", step(scene(5, starting(1)), LATE),
         ("move-timed-out", "us-1 5->3", "end us-1 timed-out", "end eu-1 timed-out")),
        ("ready at the deadline: cut all the same", step(scene(5, 5), LATE), ("finish-move", "eu-1 5->3", *ENDS)),
        ("somebody scaled the source", step(scene(9, 3)),
         ("move-cancelled", "end us-1 cancelled", "end eu-1 cancelled")),
        ("somebody scaled the target", step(scene(5, 8)),
         ("move-cancelled", "end us-1 cancelled", "end eu-1 cancelled")),
        ("no metrics of the target: neither cut", step(scene(5, 5, views={"us-1": DARK})),
         ("refused", "view-partial", "us-1")),
        ("nor undo", step(scene(5, starting(1), views={"us-1": DARK}), LATE), ("refused", "view-partial", "us-1")),
        ("no metrics of the source: no cut", step(scene(5, 5, views={"eu-1": DARK})),
         ("refused", "view-partial", "eu-1")),
        ("requests unknown: no cut", step(scene(5, 5, seen=Unknown("demand-unknown"))),
         ("refused", "demand-unknown", "us-1")),
        ("a suspect target: wait", step(scene(5, 5, sight={"us-1": Sight.SUSPECT})),
         ("refused", "cluster-suspect", "us-1")),
        ("a lost source: wait", step(scene(5, 5, sight={"eu-1": Sight.LOST})), ("refused", "cluster-lost", "eu-1")),
        ("a paused target: wait", step(scene(5, 5, untouchable=frozenset({"us-1"}))),
         ("refused", "cluster-suspect", "us-1")),
        ("no traffic on the new ones yet: wait", step(scene(5, starting(2, NOW - 100), seen=UNFOLLOWED)),
         ("refused", "move-in-flight", "eu-1")),
        ("no traffic for two minutes: mark it", step(scene(5, starting(2, NOW - 121), seen=UNFOLLOWED)),
         ("move-cancelled", "mark us-1", "mark eu-1")),
        ("marked: undo", step(scene(5, 5, record=MARKED), record=MARKED),
         ("move-cancelled", "us-1 5->3", "end us-1 not-followed", "end eu-1 not-followed")),
        ("marked and undone before a kill", step(scene(5, 3, record=MARKED), record=MARKED),
         ("move-timed-out", "end us-1 not-followed", "end eu-1 not-followed")),
        ("marked, but blind: wait", step(scene(5, 5, record=MARKED, views={"us-1": DARK}), record=MARKED),
         ("refused", "view-partial", "us-1")),
        ("no traffic anywhere proves nothing", step(scene(5, 5, seen=demand({"us": 0.0}, {("us", "us-1"): 0.0}))),
         ("finish-move", "eu-1 5->3", *ENDS)),
    ],
)  # fmt: skip
def test_the_next_step_of_a_move(sentence: str, found: Action | Refusal, expected: tuple[str, ...]) -> None:
    assert told(found) == expected, sentence


def test_a_workload_that_is_gone_from_one_end_cancels_the_move() -> None:
    seen = scene(5, 5)
    without = replace(seen, placements={"us-1": seen.placements["us-1"]})
    assert told(step(without)) == ("move-cancelled", "end us-1 cancelled")


def test_a_mark_on_one_end_counts_for_both() -> None:
    marked = placement("us-1", 5, move=MARKED)
    plain = placement("eu-1", 5, move=RECORD)
    for places in ({"us-1": marked, "eu-1": plain}, {"eu-1": plain, "us-1": marked}):
        assert records(places) == {"id": MARKED}


@pytest.mark.parametrize(
    ("source", "target", "record", "expected"),
    [
        (5, 3, RECORD, (3, 5)),
        (5, 5, RECORD, (3, 5)),
        (3, 5, RECORD, (3, 5)),
        (3, 3, RECORD, (3, 3)),
        (9, 3, RECORD, (9, 5)),
        (5, 5, MARKED, (5, 5)),
    ],
)
def test_where_a_move_will_end(source: int, target: int, record: MoveRecord, expected: tuple[int, int]) -> None:
    found = effective(scene(source, target, record=record).placements)
    assert (found["eu-1"], found["us-1"]) == expected


def test_a_target_whose_source_is_lost_counts_as_it_stands() -> None:
    assert effective({"us-1": placement("us-1", 3, move=RECORD)}) == {"us-1": 3}


@pytest.mark.parametrize(
    ("unit", "served", "view", "expected"),
    [
        ("requests/s", SERVED, "complete", True),
        ("requests/s", {("us", "eu-1"): 99.0, ("us", "us-1"): 1.0}, "complete", False),
        ("requests/s", {("us", "eu-1"): 94.0, ("us", "us-1"): 6.0}, "complete", True),
        ("requests/s", {}, "complete", None),
        ("requests/s", SERVED, "stale", None),
        ("cores", SERVED, "complete", None),
    ],
)
def test_whether_traffic_follows(
    unit: str, served: dict[tuple[str, str], float], view: str, expected: bool | None
) -> None:
    known = Demand(unit, 100.0, {"us": 100.0}, served)
    seen = scene(5, 5, seen=known, views={"us-1": View(view, NOW)})  # type: ignore[arg-type]  # a table of literals
    assert follows(seen, "us-1") is expected


def moved(outcome: str, ago_s: float, replicas: int = 1, pair: tuple[str, str] = ("eu-1", "us-1")) -> Moved:
    return Moved(f"{outcome}{ago_s}", NOW - ago_s, *pair, replicas, outcome)  # type: ignore[arg-type]  # literals


@pytest.mark.parametrize(
    ("budget", "past", "left"),
    [
        ("10%", (), 2),
        ("10%", (moved("done", 100),), 1),
        ("10%", (moved("done", 3700),), 2),
        ("10%", (moved("timed-out", 100, 5),), 0),
        ("1%", (), 1),
        ("0%", (), 0),
        (0, (), 0),
        (7, (moved("cancelled", 10, 2),), 5),
    ],
)
def test_what_is_left_of_the_hour(budget: int | str, past: tuple[Moved, ...], left: int) -> None:
    places = {"eu-1": placement("eu-1", 12, moved=past), "us-1": placement("us-1", 12, moved=past)}
    assert budget_left(replace(POLICY, max_moves_per_hour=budget), places, NOW) == left
    assert len(ended(places)) == len(past)


def test_a_move_in_flight_takes_from_the_budget() -> None:
    places = {"eu-1": placement("eu-1", 12, move=RECORD), "us-1": placement("us-1", 12, move=RECORD)}
    assert budget_left(replace(POLICY, max_moves_per_hour=5), places, NOW) == 3


@pytest.mark.parametrize(
    ("sentence", "source", "target", "cools"),
    [
        ("the reverse", "us-1", "eu-1", True),
        ("on from where replicas came", "us-1", "ap-1", True),
        ("into where replicas left", "ap-1", "eu-1", True),
        ("the same direction again", "eu-1", "us-1", False),
        ("more to the target", "ap-1", "us-1", False),
        ("more from the source", "eu-1", "ap-1", False),
    ],
)
def test_both_ends_of_a_move_cool_down(sentence: str, source: str, target: str, cools: bool) -> None:
    places = {"eu-1": placement("eu-1", 4, moved=(moved("done", 500),))}
    assert cooling(places, source, target, 1.0, NOW, MoveSettings()) == cools, sentence


@pytest.mark.parametrize(
    ("sentence", "outcome", "worth", "gain", "cools"),
    [
        ("worth as much", "done", 0.3, 0.3, True),
        ("worth a little less than twice as much", "done", 0.3, 0.59, True),
        ("worth twice as much", "done", 0.3, 0.6, False),
        ("nobody wrote down what the move was worth", "done", 0.0, 99.0, True),
        ("a move that did not come about", "timed-out", 0.3, 99.0, True),
    ],
)
def test_a_move_undoes_another_one_at_once_only_for_twice_its_worth(
    sentence: str, outcome: str, worth: float, gain: float, cools: bool
) -> None:
    past = replace(moved(outcome, 500), gain=worth)
    places = {"eu-1": placement("eu-1", 4, moved=(past,))}
    assert cooling(places, "us-1", "eu-1", gain, NOW, MoveSettings()) == cools, sentence


def test_the_end_of_a_move_remembers_what_it_was_worth() -> None:
    found = step(scene(3, 5, record=replace(RECORD, gain=0.25)), record=replace(RECORD, gain=0.25))
    assert isinstance(found, Action)
    assert {s.moved.gain for s in found.steps if isinstance(s, EndIntent)} == {0.25}


@pytest.mark.parametrize(
    ("sentence", "ready", "past", "open_"),
    [
        ("all are ready", 4, (("done", 500),), False),
        ("one is not ready any more", 3, (("done", 500),), True),
        ("nothing moved there", 3, (), False),
        ("a move that did not come about", 3, (("timed-out", 500),), False),
        ("that was more than an hour ago", 3, (("done", 3601),), False),
    ],
)
def test_a_move_is_settled_where_its_replicas_are_ready(
    sentence: str, ready: int, past: tuple[tuple[str, float], ...], open_: bool
) -> None:
    places = {"us-1": placement("us-1", 4, ready=ready, moved=tuple(moved(o, ago) for o, ago in past))}
    assert unsettled(places, "us-1", NOW) == open_, sentence
    assert not unsettled(places, "eu-1", NOW)


@pytest.mark.parametrize(
    ("sentence", "past", "kept"),
    [
        ("two failures are bad luck", (("timed-out", 100), ("not-followed", 200)), 0),
        ("three in a row are not", (("timed-out", 100), ("not-followed", 200), ("timed-out", 7000)), 3),
        ("a success begins the count anew", (("timed-out", 1), ("timed-out", 2), ("done", 3), ("timed-out", 4)), 0),
        ("what somebody cancelled is no failure", (("cancelled", 1), ("cancelled", 2), ("timed-out", 3)), 0),
        ("what is long ago is forgotten", (("timed-out", 1), ("timed-out", 2), ("timed-out", 21601)), 0),
    ],
)
def test_repeated_failures_quarantine_a_workload(sentence: str, past: tuple[tuple[str, float], ...], kept: int) -> None:
    places = {"eu-1": placement("eu-1", 4, moved=tuple(moved(o, ago) for o, ago in past))}
    assert len(quarantined(places, NOW)) == kept, sentence


def test_the_reverse_cools_down_and_traffic_that_did_not_follow_blocks_for_an_hour() -> None:
    places = {"eu-1": placement("eu-1", 4, moved=(moved("done", 500), moved("not-followed", 3000)))}
    assert cooling(places, "us-1", "eu-1", 1.0, NOW, MoveSettings())
    assert not cooling(places, "eu-1", "us-1", 1.0, NOW, MoveSettings())
    assert not cooling(places, "us-1", "eu-1", 1.0, NOW + 101, MoveSettings())
    assert not_followed(places, NOW) == moved("not-followed", 3000)
    assert not_followed(places, NOW + 601) is None


def test_a_move_that_timed_out_is_remembered_for_an_hour() -> None:
    places = {"eu-1": placement("eu-1", 4, moved=(moved("timed-out", 3000),))}
    assert timed_out(places, "eu-1", "us-1", NOW)
    assert not timed_out(places, "us-1", "eu-1", NOW)
    assert not timed_out(places, "eu-1", "us-1", NOW + 601)


def test_actions_name_their_workload() -> None:
    found = step(scene(5, 3))
    assert isinstance(found, Action)
    assert found.workload == WEB


def test_a_target_that_became_forbidden_is_taken_back_and_the_source_stays() -> None:
    up = replace(scene(5, starting(2, NOW - 100)), forbidden=frozenset({"us-1"}))
    assert told(step(up)) == ("move-cancelled", "us-1 5->3", "end us-1 cancelled", "end eu-1 cancelled")
    down = replace(scene(5, 3), forbidden=frozenset({"us-1"}))
    assert told(step(down)) == ("move-cancelled", "end us-1 cancelled", "end eu-1 cancelled")


def test_a_replica_that_has_to_leave_leaves_even_if_no_traffic_follows() -> None:
    quiet = demand({"us": 100.0}, {("us", "eu-1"): 100.0})
    seen = replace(scene(5, starting(2, NOW - 1000), seen=quiet), forbidden=frozenset({"eu-1"}))
    assert told(step(seen)) == ("finish-move", "eu-1 5->3", "end us-1 done", "end eu-1 done")


def test_a_move_of_a_cluster_that_is_no_longer_declared_is_ended_on_what_is_left() -> None:
    seen = scene(5, 5)
    left = replace(seen, placements={"eu-1": seen.placements["eu-1"]}, sight={"eu-1": Sight.READY})
    assert told(step(left)) == ("move-cancelled", "end eu-1 cancelled")


def test_an_end_in_the_far_future_was_not_written_by_us() -> None:
    places = scene(5, replace(placement("us-1", 3), moved=(moved("done", -86_400.0, replicas=50),))).placements
    assert budget_left(replace(POLICY, max_moves_per_hour=10), places, NOW) == 10 - RECORD.replicas


@pytest.mark.parametrize(
    ("sentence", "wanted", "expected"),
    [
        ("what is wanted is there without the source's replicas", 8, "eu-1 5->3"),
        ("fewer are wanted: the move takes only its own", 6, "eu-1 5->3"),
        ("one more is wanted meanwhile, so one of them stays", 9, "eu-1 5->4"),
        ("all are wanted, so that nothing goes", 10, ""),
        ("more than all are wanted", 20, ""),
        ("nobody knows how many are wanted", None, "eu-1 5->3"),
    ],
)
def test_a_workload_that_became_short_keeps_the_source_and_the_move_ends(
    sentence: str, wanted: int | None, expected: str
) -> None:
    seen = replace(scene(5, 5), replicas=wanted)
    reason, *steps = told(step(seen))
    assert reason == "finish-move", sentence
    assert [s for s in steps if "->" in s] == ([expected] if expected else []), sentence
    assert {s for s in steps if "->" not in s} == {"end us-1 done", "end eu-1 done"}


def test_a_source_that_must_be_left_goes_however_many_are_wanted() -> None:
    seen = replace(scene(5, 5), replicas=20, forbidden=frozenset({"eu-1"}))
    assert "eu-1 5->3" in told(step(seen))
