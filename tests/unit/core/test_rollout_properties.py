"""What holds for every rollout, whatever fails: invariants, repeats and kills at any point, the rates of the rule."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rebalancer.core.rollout import State, Status, Wave, decide
from rebalancer.core.rollout.codec import status_from_dict, status_to_dict
from rebalancer.core.rollout.decision import Action, EnsureCanary, SetTemplate
from rebalancer.core.rollout.model import RESTING, SHARING, Request, Verb
from rebalancer.core.rollout.revision import revision_of
from tests.unit.core.test_rollout_plant import NEW, R_NEW, R_OLD, Plant, Site, Traffic, spec

pytestmark = pytest.mark.slow

FAULTS = (
    "none",
    "kill",
    "lost-status",
    "unreachable",
    "silent",
    "errors",
    "abort",
    "pause",
    "resume",
    "promote",
    "scale",
)
SPEC = spec(
    min_step_s=2.0, warmup_s=2.0, scale_down_delay_s=2.0, max_step_s=20.0, waves=(Wave("x", ("a",)), Wave("y", ("b",)))
)


class World:
    """A rollout whose controller, clusters and metrics fail as told; invariants are checked at every tick."""

    def __init__(self, seed: int) -> None:
        self.plant = Plant({"a": Site(), "b": Site(wanted=4)})
        self.traffic = Traffic(self.plant, {}, seed=seed)
        self.stored = Status()
        self.banned: set[str] = set()
        self.asked = 0

    def tick(self, fault: str, at: int) -> None:
        """One tick; `at` is how many writes are done before a kill."""
        self._break(fault)
        before = self.stored
        samples = self.traffic.samples(SPEC, before)
        observed = self.plant.observe()
        d = decide(SPEC, before, observed, samples, self.plant.now)
        again = decide(SPEC, d.status, observed, samples, self.plant.now)
        assert again.status == d.status, "the same input twice changed the status"
        assert again.actions == d.actions
        assert again.events == ()
        assert status_from_dict(json.loads(json.dumps(status_to_dict(SPEC, d.status)))) == d.status
        self._invariants(d.status, d.actions)
        keep: list[Action | Status] = [d.status]
        order = [*d.actions, *keep] if d.act_first else [*keep, *d.actions]
        if fault == "lost-status" and not d.act_first:
            order = []  # a conflict: nothing follows
        for write in order[: at if fault == "kill" else len(order)]:
            if isinstance(write, Status):
                self.stored = write
            else:
                self.plant.apply(write)
        if self.stored.state is State.ROLLED_BACK and self.stored.outcome != "superseded":
            self.banned.add(self.stored.revision)
        self.plant.step()
        for site in self.plant.sites.values():
            site.reachable = True

    def _break(self, fault: str) -> None:
        self.traffic.silent = fault == "silent"
        if fault == "unreachable":
            self.plant.sites["a"].reachable = False
        elif fault == "errors":
            self.traffic.errors = {R_NEW: 0.3}
        elif fault == "scale":
            self.plant.sites["a"].wanted = 7 if self.plant.sites["a"].wanted == 10 else 10
        elif fault in ("abort", "pause", "resume", "promote"):
            verb: Verb = fault  # type: ignore[assignment]  # one of the verbs by the line above
            self.asked += 1
            self.plant.request = Request(f"r{self.asked}", verb)

    def _invariants(self, status: Status, actions: tuple[object, ...]) -> None:
        for a in actions:
            if isinstance(a, EnsureCanary):
                assert a.replicas == status.clusters[a.cluster].target, "I1: more canary than the status lets in"
                assert a.revision not in self.banned, "I2: an aborted revision runs again"
                assert status.state in SHARING or status.state.value in ("Preflight", "Promoting", "ScalingDown")
            if isinstance(a, SetTemplate) and not a.paused:
                assert a.revision == R_OLD or status.state.value in ("Promoting", "ScalingDown")
        if status.state in SHARING:
            for name, site in self.plant.sites.items():
                touched = R_NEW in site.stable
                assert not touched, f"I5: a stable pod of {name} was touched before promotion"
                assert len(site.stable[R_OLD]) >= min(site.wanted, len(site.stable[R_OLD]))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(FAULTS), st.integers(0, 4), st.integers(0, 12)), max_size=25),
    st.integers(0, 1000),
)
def test_whatever_fails_the_invariants_hold_and_it_ends_in_one_piece(
    schedule: list[tuple[str, int, int]], seed: int
) -> None:
    world = World(seed)
    for _ in range(3):
        world.tick("none", 0)
    world.plant.edit(NEW)
    for fault, at, quiet in schedule:
        world.tick(fault, at)
        for _ in range(quiet):
            world.tick("none", 0)
    for _ in range(600):
        world.tick("none", 0)
        if world.stored.pause:
            world.tick("promote", 0)
        if world.stored.state in RESTING and world.stored.revision:
            break
    world.tick("none", 0)
    assert world.stored.state in RESTING, world.stored.message
    expected = R_NEW if world.stored.state is State.COMPLETED else R_OLD
    for site in world.plant.sites.values():
        assert site.canary is None
        assert site.paused
        assert set(site.stable) == {expected}
        assert len(site.stable[expected]) == site.wanted


def carry(seed: int, bad_rate: float) -> tuple[State, float]:
    """One whole rollout at 200 requests/s per cluster; returns its end and the seconds from first bad request to it."""
    plant = Plant({"a": Site(), "b": Site(), "c": Site()})
    traffic = Traffic(plant, {}, seed=seed)
    if bad_rate:
        traffic.by_site = {("b", R_NEW): bad_rate, ("c", R_NEW): bad_rate}
    told, status = spec(), Status()
    for second in range(900):
        if second == 3:
            plant.edit(NEW)
        if status.state in RESTING and second > 10:
            break
        if second % 2 == 0:  # a tick every 2 s, on what was scraped 1 s ago
            d = decide(told, status, plant.observe(), traffic.samples(told, status, 2.0), plant.now)
            status = d.status
            for action in d.actions:
                plant.apply(action)
        plant.step()
    took = math.nan
    if status.ended_s is not None and traffic.first_bad_s is not None:
        took = status.ended_s - traffic.first_bad_s + 1.0
    return status.state, took


def test_of_forty_healthy_revisions_at_most_one_is_rolled_back() -> None:
    ends = [carry(seed, 0.0)[0] for seed in range(40)]
    assert sum(e is State.ROLLED_BACK for e in ends) <= 1
    assert sum(e is State.COMPLETED for e in ends) >= 39


def test_ten_percent_errors_in_the_second_wave_are_rolled_back_everywhere_within_thirty_seconds() -> None:
    runs = [carry(seed, 0.1) for seed in range(30)]
    assert all(end is State.ROLLED_BACK for end, _ in runs)
    took = [t for _, t in runs if not math.isnan(t)]  # NaN: a false alarm in the first wave, before any bad request
    assert len(took) >= len(runs) - 2
    assert max(took) <= 30.0


def test_a_revision_is_the_same_for_a_template_that_was_stored_copied_and_defaulted() -> None:
    template = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "web", "image": "web:1"}]}}
    stored = {
        "metadata": {"creationTimestamp": None, "labels": {"pod-template-hash": "x", "app": "web"}, "annotations": {}},
        "spec": {
            "containers": [
                {"image": "web:1", "name": "web", "env": [], "terminationMessagePath": "/dev/termination-log"}
            ],
            "restartPolicy": "Always",
        },
    }
    assert revision_of(stored) == revision_of(template) == "27acf48d6e"


@given(st.sampled_from(["image", "command", "env"]), st.text(min_size=1, max_size=5))
def test_a_change_of_a_named_field_is_another_revision(field: str, value: str) -> None:
    base = {"metadata": {}, "spec": {"containers": [{"name": "web", "image": "i"}]}}
    changed = {"metadata": {}, "spec": {"containers": [{"name": "web", "image": "i", field: value + "!"}]}}
    assert revision_of(base) != revision_of(changed)


def test_a_status_that_can_not_be_read_is_an_error() -> None:
    good = status_to_dict(SPEC, replace(Status(), state=State.ANALYSING))
    damages: tuple[dict[str, object], ...] = ({"state": "Nonsense"}, {"batches": [{}]}, {"clusters": [3]})
    for damage in damages:
        try:
            status_from_dict({**good, **damage})
        except ValueError:
            continue
        raise AssertionError(damage)
