"""The state machine told as sentences: what goes wrong elsewhere by public threads, and what must happen here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from rebalancer.core.rollout import Request, State, Status, Step, Wave, decide
from rebalancer.core.rollout.codec import status_to_dict
from rebalancer.core.rollout.decision import DeleteCanary, EnsureCanary, PauseStable, ScaleCanary, SetTemplate
from rebalancer.core.rollout.model import Spec
from rebalancer.core.rollout.verbs import render_status
from tests.unit.core.test_rollout_plant import (
    NEW,
    NEWER,
    OLD,
    R_NEW,
    R_NEWER,
    R_OLD,
    Plant,
    Site,
    Traffic,
    fleet,
    spec,
)


@dataclass
class Run:
    """A rollout, its plant and its traffic, ticked once a second."""

    plant: Plant
    traffic: Traffic
    spec: Spec
    status: Status
    events: list[str]

    def tick(self, seconds: int = 1) -> Run:
        for _ in range(seconds):
            samples = self.traffic.samples(self.spec, self.status)
            decision = decide(self.spec, self.status, self.plant.observe(), samples, self.plant.now)
            self.status = decision.status
            self.events += [e.reason for e in decision.events]
            for action in decision.actions:
                self.plant.apply(action)
            self.plant.step()
        return self

    def until(self, condition: Callable[[Status], bool], seconds: int = 900) -> Run:
        for _ in range(seconds):
            if condition(self.status):
                return self
            self.tick()
        raise AssertionError(f"not reached: {self.status.shown} {self.status.message}")

    def ask(self, verb: str, *, full: bool = False) -> Run:
        self.plant.request = Request(f"{verb}-{self.plant.now}", verb, full)  # type: ignore[arg-type]  # a test's verb
        return self.tick()

    def canaries(self) -> dict[str, int]:
        return {n: s.canary[1] for n, s in self.plant.sites.items() if s.canary is not None}

    def untouched(self) -> bool:
        return not any(isinstance(w, SetTemplate) for w in self.plant.writes) and all(
            self.plant.ready(s, R_OLD) >= s.wanted for s in self.plant.sites.values() if s.present
        )


def run(plant: Plant | None = None, *, seed: int = 1, **changes: object) -> Run:
    plant = plant or fleet()
    return Run(plant, Traffic(plant, {}, seed=seed), spec(**changes), Status(), [])


def started(plant: Plant | None = None, *, seed: int = 1, **changes: object) -> Run:
    r = run(plant, seed=seed, **changes).tick(3)
    r.plant.edit(NEW)
    return r.until(lambda s: s.state is State.ANALYSING)


def test_a_healthy_revision_reaches_every_cluster_by_itself() -> None:
    r = started().until(lambda s: s.state is State.COMPLETED)
    assert all(dict(s.stable).keys() == {R_NEW} and s.paused and s.canary is None for s in r.plant.sites.values())
    assert all(c.stable == R_NEW and c.previous == R_OLD for c in r.status.clusters.values())
    assert r.events[-1] == "RolloutCompleted"
    assert r.status.phase == "Healthy"


def test_a_revision_that_fails_in_the_second_wave_leaves_all_clusters_and_no_stable_pod_was_touched() -> None:
    r = started(seed=3)
    r.traffic.by_site = {("b", R_NEW): 0.1, ("c", R_NEW): 0.1}
    r.until(lambda s: s.state is State.ROLLED_BACK)
    assert r.traffic.first_bad_s is not None and r.status.ended_s is not None
    assert r.status.ended_s - r.traffic.first_bad_s <= 30.0
    assert r.canaries() == {}
    assert r.untouched()
    assert r.status.phase == "Degraded"
    assert "E_bad" in r.status.message and "canary" in r.status.message
    r.tick(60)
    assert r.status.state is State.ROLLED_BACK
    assert r.canaries() == {}


def test_missing_metrics_hold_then_pause_and_go_on_when_they_are_back() -> None:
    r = started(no_data_timeout_s=40.0)
    before = r.canaries()
    r.traffic.silent = True
    r.tick(30)
    assert r.status.shown == "Holding(NoData)"
    assert (r.canaries(), r.status.step) == (before, 0)
    r.traffic.silent = False
    r.tick(2)
    assert r.status.hold == ""
    r.traffic.silent = True
    r.tick(60)
    assert r.status.shown == "Paused"
    assert r.canaries() == before
    r.traffic.silent = False
    r.ask("resume").until(lambda s: s.state is State.COMPLETED)


def test_without_metrics_at_the_begin_no_canary_is_made() -> None:
    r = run().tick(3)
    r.traffic.silent = True
    r.plant.edit(NEW)
    r.tick(30)
    assert r.status.state is State.PREFLIGHT
    assert r.status.hold == "NoData"
    assert not any(isinstance(w, EnsureCanary) for w in r.plant.writes)


def test_no_traffic_at_all_neither_advances_nor_rolls_back_but_pauses_as_inconclusive() -> None:
    r = started(max_step_s=60.0)
    r.traffic.rps = 0.0
    r.until(lambda s: s.pause == "Inconclusive")
    assert r.status.step == 0
    r.ask("promote")
    assert (r.status.step, r.status.pause) == (1, "")


def test_errors_roll_back_also_while_paused() -> None:
    r = started().ask("pause")
    assert r.status.shown == "Paused"
    r.traffic.errors = {R_NEW: 0.2}
    r.until(lambda s: s.state is State.ROLLED_BACK, 60)


def test_an_incident_that_hits_both_versions_does_not_roll_back() -> None:
    r = started()
    r.traffic.errors, r.traffic.default_error = {R_NEW: 0.05}, 0.05
    r.tick(60)
    assert r.status.state not in (State.ROLLING_BACK, State.ROLLED_BACK)


@pytest.mark.parametrize(
    "state",
    [
        State.PREFLIGHT, State.SCALING_CANARY, State.SHIFTING, State.ANALYSING, State.BAKING, State.PROMOTING,
        State.SCALING_DOWN,
    ],
)  # fmt: skip
def test_abort_works_in_every_state(state: State) -> None:
    waves = (Wave("all", bake_s=5.0),)
    r = run(waves=waves, scale_down_delay_s=20.0).tick(3)
    r.traffic.silent = state is State.PREFLIGHT
    r.plant.edit(NEW)
    r.until(lambda s: s.state is state)
    r.ask("abort").until(lambda s: s.state is State.ROLLED_BACK, 60)
    r.traffic.silent = False
    r.tick(20)
    assert r.status.state is State.ROLLED_BACK
    assert r.status.outcome == "aborted"
    assert r.canaries() == {}
    assert all(r.plant.ready(s, R_OLD) == s.wanted and R_NEW not in s.stable for s in r.plant.sites.values())


def test_abort_when_idle_or_done_does_nothing_and_is_acknowledged() -> None:
    r = run().tick(3).ask("abort")
    assert (r.status.state, r.status.handled_request) == (State.IDLE, r.plant.request.id if r.plant.request else "")


def test_abort_works_while_the_canary_never_comes_up() -> None:
    plant = fleet()
    plant.start_s = 1e9
    for site in plant.sites.values():
        site.stable = {R_OLD: [-1e12] * site.wanted}
    r = run(plant).tick(3)
    r.plant.edit(NEW)
    r.until(lambda s: s.state is State.SCALING_CANARY).tick(5).ask("abort")
    r.until(lambda s: s.state is State.ROLLED_BACK, 10)


def test_a_canary_that_can_not_start_is_rolled_back_at_once() -> None:
    r = run().tick(3)
    r.plant.sites["a"].broken = {R_NEW}
    r.plant.edit(NEW)
    r.until(lambda s: s.state is State.ROLLED_BACK, 20)
    assert "can start" in r.status.message
    assert r.untouched()


def test_a_canary_whose_pods_all_become_unready_is_rolled_back() -> None:
    r = started()
    site = r.plant.sites["a"]
    site.canary_born = [1e12] * len(site.canary_born)
    r.until(lambda s: s.state is State.ROLLED_BACK, 30)


def test_the_progress_deadline_rolls_back() -> None:
    plant = fleet()
    r = run(plant, progress_deadline_s=20.0).tick(3)
    plant.start_s = 1e9
    for site in plant.sites.values():
        site.stable = {R_OLD: [-1e12] * site.wanted}
    plant.edit(NEW)
    r.until(lambda s: s.state is State.ROLLED_BACK, 40)
    assert "progressDeadlineSeconds" in r.status.message


def test_a_cluster_out_of_reach_holds_and_keeps_its_weight() -> None:
    r = started()
    r.until(lambda s: s.batch == 1 and s.state is State.ANALYSING)
    before = r.canaries()
    r.plant.sites["a"].reachable = False
    r.tick(60)
    assert r.status.shown == "Holding(Unreachable)"
    assert r.canaries() == before
    r.plant.sites["a"].reachable = True
    r.until(lambda s: s.state is State.COMPLETED)


def test_a_rollback_does_not_wait_for_a_cluster_out_of_reach_but_is_not_done_without_it() -> None:
    r = started().until(lambda s: s.batch == 1 and s.state is State.ANALYSING)
    r.plant.sites["a"].reachable = False
    r.ask("abort").tick(5)
    assert set(r.canaries()) == {"a"}
    assert r.status.state is State.ROLLING_BACK
    r.plant.sites["a"].reachable = True
    r.until(lambda s: s.state is State.ROLLED_BACK, 10)
    assert r.canaries() == {}


def test_an_aborted_revision_stays_out_until_retry() -> None:
    r = started().ask("abort").until(lambda s: s.state is State.ROLLED_BACK).tick(30)
    assert r.status.state is State.ROLLED_BACK
    r.ask("retry").until(lambda s: s.state is State.ANALYSING, 60)
    assert r.status.attempt == 2
    assert r.status.aborted == ()


def test_any_other_revision_leaves_the_failed_state() -> None:
    r = started().ask("abort").until(lambda s: s.state is State.ROLLED_BACK)
    r.plant.edit(NEWER)
    r.until(lambda s: s.state is State.COMPLETED)
    assert r.status.revision == R_NEWER


def test_a_newer_revision_in_the_middle_starts_again_with_fresh_evidence() -> None:
    r = started().until(lambda s: s.step == 2)
    r.plant.edit(NEWER)
    r.until(lambda s: s.revision == R_NEWER and s.state is State.ANALYSING, 60)
    assert r.status.step == 0
    assert r.status.aborted == ()
    assert r.status.evidence["error-rate"].pooled.counts.canary_requests < 2000
    r.until(lambda s: s.state is State.COMPLETED)
    assert all(set(s.stable) == {R_NEWER} for s in r.plant.sites.values())


def test_going_back_to_the_stable_template_takes_the_canary_out() -> None:
    r = started()
    r.plant.edit(OLD)
    r.until(lambda s: s.state is State.IDLE, 30).tick(3)
    assert r.canaries() == {}
    assert r.untouched()


def test_errors_during_promotion_put_the_promoted_template_back_before_the_canary_goes() -> None:
    r = started(scale_down_delay_s=60.0).until(lambda s: s.state is State.SCALING_DOWN).tick(8)
    r.traffic.errors = {R_NEW: 0.3}
    mark = len(r.plant.writes)
    r.until(lambda s: s.state is State.ROLLED_BACK, 120)
    after = [w for w in r.plant.writes[mark:] if w.cluster == "a"]
    assert isinstance(after[0], SetTemplate) and after[0].revision == R_OLD
    assert [type(w) for w in after].index(ScaleCanary) > 0
    assert all(set(s.stable) == {R_OLD} and s.paused for s in r.plant.sites.values())


def test_a_template_edited_during_promotion_is_not_let_in() -> None:
    plant = fleet()
    r = started(plant).until(lambda s: s.state is State.PROMOTING)
    r.tick()
    plant.sites["a"].spec = NEWER
    r.until(lambda s: s.state is State.IDLE or s.revision == R_NEWER, 60).tick(5)
    assert not plant.ready(plant.sites["a"], R_NEWER)


def test_a_template_edited_while_the_canary_of_the_last_one_still_stands_begins_after_it() -> None:
    r = started(scale_down_delay_s=500.0).until(lambda s: s.state is State.SCALING_DOWN)
    r.plant.edit(NEWER)
    r.until(lambda s: s.revision == R_NEWER and s.state is State.ANALYSING, 60)
    assert all(c.stable == R_NEW for c in r.status.clusters.values())


def test_a_template_edited_while_idle_is_withheld_until_the_rollout_lets_it_through() -> None:
    r = run(paused=True).tick(3)
    r.plant.edit(NEW)
    r.tick(30)
    assert all(set(s.stable) == {R_OLD} for s in r.plant.sites.values())
    assert "waits" in r.status.message
    r.spec = replace(r.spec, paused=False)
    r.until(lambda s: s.state is State.COMPLETED)


def test_images_make_the_new_revision_without_touching_the_deployment_before_promotion() -> None:
    r = run().tick(3)
    r.spec = replace(r.spec, images={"web": "web:2"})
    r.until(lambda s: s.state is State.BAKING)
    assert r.untouched()
    r.until(lambda s: s.state is State.COMPLETED)
    assert all(s.spec == NEW for s in r.plant.sites.values())


def test_an_image_for_a_container_that_is_not_there_is_said() -> None:
    r = run(images={"sidecar": "x:1"}).tick(5)
    assert r.status.state is State.IDLE
    assert "sidecar" in r.status.clusters["a"].note


def test_undo_puts_the_rejected_template_back() -> None:
    r = started().ask("abort").until(lambda s: s.state is State.ROLLED_BACK)
    assert r.plant.sites["a"].spec == NEW
    r.ask("undo").tick(3)
    assert all(s.spec == OLD and s.paused for s in r.plant.sites.values())
    assert r.status.handled_request == (r.plant.request.id if r.plant.request else "")
    assert r.status.state is State.IDLE


def test_undo_without_anything_to_undo_says_so() -> None:
    r = run().tick(3).ask("undo").tick(2)
    assert "nothing was changed" in r.status.message
    assert not [w for w in r.plant.writes if isinstance(w, SetTemplate)]


def test_undo_after_completion_brings_the_one_before_through_the_canary_again() -> None:
    r = started().until(lambda s: s.state is State.COMPLETED)
    for site in r.plant.sites.values():
        site.templates[R_OLD] = OLD
    r.ask("undo").until(lambda s: s.state is State.ANALYSING, 60)
    assert r.status.revision == R_OLD


def test_promote_full_skips_all_waves() -> None:
    r = started().ask("promote", full=True)
    assert r.status.state is State.PROMOTING
    r.until(lambda s: s.state is State.COMPLETED, 60)


def test_a_manual_step_waits_for_promote() -> None:
    r = started(steps=(Step(20, manual=True), Step(100))).until(lambda s: s.pause == "Step")
    r.tick(60)
    assert r.status.step == 0
    r.ask("promote").until(lambda s: s.batch == 1 and s.pause == "Step")
    r.ask("promote").until(lambda s: s.state is State.COMPLETED)


def test_a_deployment_that_was_created_paused_is_not_taken_over() -> None:
    r = run(fleet(a=Site(paused=True, running=""))).tick(5)
    assert r.status.clusters["a"].stable == ""
    assert "created paused" in r.status.clusters["a"].note
    assert r.plant.writes == []


def test_a_deployment_in_the_middle_of_a_roll_is_taken_over_when_it_is_complete() -> None:
    plant = fleet(a=Site(spec=NEW))
    plant.start_s = 5.0
    plant.step()
    r = run(plant).tick(2)
    assert not any(isinstance(w, PauseStable) for w in plant.writes)
    r.tick(10)
    assert r.status.clusters["a"].stable == R_NEW
    assert plant.sites["a"].paused


def test_a_cluster_without_the_workload_takes_no_part() -> None:
    plant = fleet(a=Site(), b=Site(present=False), c=Site())
    r = started(plant).until(lambda s: s.state is State.COMPLETED)
    assert [b.clusters for b in r.status.batches] == [("a",), ("c",)]


def test_a_cluster_scaled_to_zero_gets_the_template_and_no_canary() -> None:
    plant = fleet(a=Site(), b=Site(wanted=0, stable={}), c=Site())
    r = started(plant).until(lambda s: s.state is State.COMPLETED)
    assert plant.sites["b"].spec == NEW
    assert not any(isinstance(w, EnsureCanary) and w.cluster == "b" for w in plant.writes)
    assert r.status.clusters["b"].target == 0


def test_three_replicas_and_weight_ten_still_get_one_pod_and_the_actual_weight_is_said() -> None:
    r = started(fleet(a=Site(wanted=3)), steps=(Step(10), Step(100)))
    assert r.canaries() == {"a": 1}
    assert r.status.clusters["a"].actual_weight == 25.0


def test_the_canary_follows_stable_when_it_is_scaled() -> None:
    r = started(steps=(Step(50), Step(100)), min_step_s=300.0)
    r.plant.sites["a"].wanted = 14
    r.tick(5)
    assert r.canaries()["a"] == 14
    r.plant.sites["a"].wanted = 6
    r.tick(5)
    assert r.canaries()["a"] == 6


def test_without_metrics_pods_and_time_decide() -> None:
    r = started(metrics=()).until(lambda s: s.state is State.COMPLETED)
    assert r.status.outcome == "completed"


def test_nothing_is_written_at_rest() -> None:
    r = started().until(lambda s: s.state is State.COMPLETED).tick(2)
    before, writes = r.status, len(r.plant.writes)
    r.tick(30)
    assert r.status == before
    assert len(r.plant.writes) == writes


def test_a_killed_canary_deployment_is_made_again() -> None:
    r = started()
    r.plant.apply(DeleteCanary("a"))
    r.tick(3)
    assert r.canaries()["a"] == 1


def test_a_rejected_revision_that_somebody_let_loose_by_hand_is_taken_back_everywhere() -> None:
    plant = fleet()
    r = started(plant)
    loose = [n for n in plant.sites if n not in r.status.current][-1] if len(plant.sites) > 1 else "a"
    # Somebody unpauses the Deployment: the unjudged revision rolls there, where no canary was planned.
    plant.sites[loose].paused = False
    plant.step(3.0)
    r.traffic.errors = {R_NEW: 0.5}
    r.until(lambda s: s.state is State.ROLLED_BACK, 200)
    assert all(set(s.stable) == {R_OLD} for s in plant.sites.values())
    assert all(c.stable == R_OLD for c in r.status.clusters.values())
    r.tick(30)
    assert all(set(s.stable) == {R_OLD} for s in plant.sites.values())


def test_a_cluster_in_no_wave_is_named_and_keeps_the_old_revision() -> None:
    r = run(waves=(Wave("first", clusters=("a",)), Wave("second", clusters=("b",)))).tick(3)
    r.plant.edit(NEW)
    r.until(lambda s: s.state is State.COMPLETED)
    assert "stands in no wave" in r.status.clusters["c"].note
    assert r.status.clusters["a"].note == r.status.clusters["b"].note == ""
    assert r.plant.ready(r.plant.sites["c"], R_OLD) == r.plant.sites["c"].wanted


def test_steps_that_are_shortened_half_way_end_with_their_last_one() -> None:
    r = started().until(lambda s: s.state is State.ANALYSING and s.step == 2)
    r.spec = replace(r.spec, steps=(Step(20), Step(100)))
    text = "\n".join(render_status(r.spec, r.status))
    assert "step 2/2, weight 100" in text
    assert status_to_dict(r.spec, r.status)["currentStepWeight"] == 100
    r.until(lambda s: s.state is State.BAKING)
    assert {c.weight for n, c in r.status.clusters.items() if n in r.status.current} == {100}
    r.until(lambda s: s.state is State.COMPLETED)


def test_waves_that_are_edited_half_way_change_nothing_of_the_rollout_under_way() -> None:
    r = started().until(lambda s: s.state is State.ANALYSING and s.batch == 1)
    before = r.status.batches
    r.spec = replace(r.spec, waves=())
    r.tick(3)
    assert r.status.batches == before
    r.until(lambda s: s.state is State.COMPLETED)


def test_a_deployment_that_is_nowhere_is_told_until_it_appears() -> None:
    r = run()
    for site in r.plant.sites.values():
        site.present = False
    r.tick(2)
    assert r.status.message == "there is no Deployment web in any cluster"
    r.plant.sites["a"].reachable = False
    r.tick()
    assert r.status.message == ""  # it may be there
    for site in r.plant.sites.values():
        site.reachable = site.present = True
    r.tick(2)
    assert r.status.message == ""


@pytest.mark.parametrize("verb", ["promote", "pause", "resume", "abort"])
def test_a_verb_at_rest_is_acknowledged_as_ignored(verb: str) -> None:
    r = run().tick(3).ask(verb)
    assert r.status.message == f"{verb} ignored: nothing is under way"
    assert r.status.handled_request.startswith(verb)


def test_a_verb_without_effect_leaves_the_reason_of_a_rollback_to_be_read() -> None:
    r = started(seed=3)
    r.traffic.by_site = {("a", R_NEW): 0.3}
    r.until(lambda s: s.state is State.ROLLED_BACK)
    why = r.status.message
    r.ask("promote")
    assert r.status.message == f"promote ignored: nothing is under way; {why}"
    r.ask("pause")
    assert r.status.message == f"pause ignored: nothing is under way; {why}"


def test_an_ignored_verb_under_way_is_an_event() -> None:
    r = started()
    r.events.clear()
    r.ask("resume")
    assert r.events[0] == "RolloutUpdated"
    assert r.status.state is State.ANALYSING
