"""A rollout that somebody deletes leaves nothing behind: no canary, no paused Deployment, no revision let loose."""

from __future__ import annotations

import pytest

from rebalancer.core.rollout import State, decide
from rebalancer.core.rollout.decision import ReleaseStable
from tests.unit.core.test_rollout_machine import Run, run, started
from tests.unit.core.test_rollout_plant import NEW, R_NEW, R_OLD


def deleted(r: Run, seconds: int = 120) -> bool:
    """Ticks until the rollout is released; False if it never is."""
    r.plant.deleting = True
    for _ in range(seconds):
        decision = decide(r.spec, r.status, r.plant.observe(), r.traffic.samples(r.spec, r.status), r.plant.now)
        r.status = decision.status
        for action in decision.actions:
            r.plant.apply(action)
        if decision.released:
            return True
        r.plant.step()
    return False


def as_before(r: Run, revision: str) -> None:
    for _ in range(30):
        r.plant.step()
    for name, site in r.plant.sites.items():
        assert site.canary is None, name
        assert not site.paused, name
        assert not site.held, name
        assert {k for k, pods in site.stable.items() if pods} == {revision}, name
        assert r.plant.ready(site, revision) == site.wanted, name


@pytest.mark.parametrize(
    "state", [State.PREFLIGHT, State.SCALING_CANARY, State.SHIFTING, State.ANALYSING, State.BAKING, State.PROMOTING]
)
def test_deleted_in_any_state_the_old_revision_runs_everywhere_and_nobody_is_paused(state: State) -> None:
    r = run().tick(3)
    r.plant.edit(NEW)
    r.until(lambda s: s.state is state)
    assert deleted(r)
    as_before(r, R_OLD)


def test_deleted_after_completion_the_new_revision_stays() -> None:
    r = started().until(lambda s: s.state is State.COMPLETED)
    assert deleted(r, 10)
    as_before(r, R_NEW)


def test_deleted_at_rest_a_withheld_edit_is_not_let_loose() -> None:
    r = run(paused=True).tick(3)
    r.plant.edit(NEW)
    r.tick(3)
    assert deleted(r, 10)
    as_before(r, R_OLD)


def test_a_cluster_out_of_reach_keeps_the_rollout_until_it_is_back_and_is_named() -> None:
    r = started()
    r.plant.sites["b"].reachable = False
    assert not deleted(r, 60)
    assert "b can't be reached" in r.status.message
    r.plant.sites["b"].reachable = True
    assert deleted(r, 60)
    as_before(r, R_OLD)


def test_what_the_user_paused_stays_paused() -> None:
    r = run()
    r.plant.sites["a"].paused = True
    r.tick(3)
    assert deleted(r, 10)
    assert r.plant.sites["a"].paused
    assert not r.plant.sites["b"].paused


def test_a_running_template_that_is_nowhere_to_be_found_is_named_and_nothing_is_let_loose() -> None:
    r = run(paused=True).tick(3)
    r.plant.edit(NEW)
    r.tick(3)
    del r.plant.sites["a"].templates[R_OLD]
    assert not deleted(r, 10)
    assert "a: the template of" in r.status.message
    assert r.plant.sites["a"].paused
    assert not [w for w in r.plant.writes if isinstance(w, ReleaseStable) and w.cluster == "a"]
