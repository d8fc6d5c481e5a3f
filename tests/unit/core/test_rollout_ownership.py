"""Who owns a workload that two rollouts name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rebalancer.core.rollout import Spec, State, Status, Stored
from rebalancer.core.rollout.codec import status_from_dict, status_to_dict
from rebalancer.core.rollout.model import ClusterStatus
from rebalancer.core.rollout.ownership import settle
from rebalancer.core.rollout.verbs import render_list, render_status

ADOPTED = Status(clusters={"a": ClusterStatus(stable="r1")})
ACTIVE = Status(state=State.ANALYSING, clusters={"a": ClusterStatus(stable="r1")})


def stored(name: str, status: Status = ADOPTED, created: str = "", **more: Any) -> Stored:
    return Stored(Spec("shop", name, "web"), status, created=created, **more)


def waiting(*every: Stored) -> list[str]:
    return [s.spec.name for s in settle(every) if s.waits]


def test_the_one_under_way_owns_then_the_one_that_took_over_then_the_older_then_the_name() -> None:
    assert waiting(stored("a"), stored("b", ACTIVE, "2030")) == ["a"]
    assert waiting(stored("a", Status(), "2020"), stored("b", created="2030")) == ["a"]
    assert waiting(stored("a", created="2030"), stored("b", created="2020")) == ["a"]
    assert waiting(stored("a"), stored("b")) == ["b"]


def test_one_that_cannot_be_read_keeps_nobody_from_deciding_unless_its_status_is_what_cannot_be_read() -> None:
    assert waiting(stored("a", Status(), "2020", waits=True), stored("b", Status(), "2030")) == ["a"]
    assert waiting(stored("a", Status(), "2030", waits=True, blind=True), stored("b", ACTIVE, "2020")) == ["a"]
    assert waiting(stored("a", Status(), "2030", waits=True, blind=True), stored("b", Status())) == ["a", "b"]


def test_rollouts_of_other_workloads_and_namespaces_do_not_meet() -> None:
    other = Stored(Spec("other", "a", "web"), ADOPTED)
    assert waiting(stored("a"), other, Stored(Spec("shop", "c", "api"), ADOPTED)) == []


def test_a_problem_stands_before_the_message_and_both_are_read_back() -> None:
    for status in (Status(problem="p", message="m"), Status(problem="p"), Status(message="m")):
        data = status_to_dict(Spec("shop", "web", "web"), status)
        assert data["message"] == status.told
        assert status_from_dict(data) == status
        assert status.told in render_list([(Spec("shop", "web", "web"), status)])[1]
        assert f"message   {status.told}" in render_status(Spec("shop", "web", "web"), status)


def test_a_workload_that_was_changed_in_the_spec_is_governed_on_while_anything_is_held() -> None:
    for held in (ADOPTED, ACTIVE):
        (one,) = settle([Stored(Spec("shop", "a", "other"), replace(held, workload="web"))])
        assert one.spec.workload == "web"
        assert not one.waits
        assert one.problem == "workloadRef was changed from web to other; set it back, or delete the rollout"
    (one,) = settle([Stored(Spec("shop", "a", "other"), Status(workload="web"))])
    assert (one.spec.workload, one.problem) == ("other", "")
    (one,) = settle([Stored(Spec("shop", "a", "other"), ADOPTED)])  # a status of before the workload stood in it
    assert (one.spec.workload, one.problem) == ("other", "")


def test_a_changed_workload_keeps_others_off_the_old_one_and_does_not_own_the_new_one() -> None:
    changed = Stored(Spec("shop", "a", "other"), replace(ACTIVE, workload="web"))
    assert waiting(changed, stored("b"), Stored(Spec("shop", "c", "other"), Status())) == ["b"]
