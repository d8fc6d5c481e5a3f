"""Each veto by itself. A veto stops a change; it never makes one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rebalancer.core.guardrails import Guarded, check
from rebalancer.core.model import Action, PodBudget, SetReplicas, Sight, View
from tests.unit.core.fleet import NOW, POLICY, REGIONS, WEB, placement

SCENE = Guarded(
    policy=POLICY,
    placements={c: placement(c, 4) for c in REGIONS},
    views={c: View("complete", NOW) for c in REGIONS},
    sight=dict.fromkeys(REGIONS, Sight.READY),
    paused_clusters=frozenset(),
    brake=False,
    demand_complete=True,
    wanted=10,
)


def scale(cluster: str, before: int, after: int, kind: str = "scale") -> Action:
    step = SetReplicas(cluster, before, after)
    return Action(kind, WEB, (step,), "demand-up", "because", target=cluster, replicas=after - before)  # type: ignore[arg-type]  # literals


UP, DOWN = scale("eu-1", 4, 6), scale("eu-1", 4, 2)
CUT, RAISE = scale("eu-1", 4, 2, "migrate"), scale("eu-1", 4, 6, "migrate")
DARK = {**SCENE.views, "eu-1": View("failed", NOW - 60, "no answer")}


def out(sight: Sight, cluster: str = "eu-1") -> dict[str, Sight]:
    return {**SCENE.sight, cluster: sight}


@pytest.mark.parametrize(
    ("sentence", "scene", "action", "reason"),
    [
        ("nothing against it", SCENE, UP, ""),
        ("a decrease with enough ready", SCENE, DOWN, ""),
        ("only observing", replace(SCENE, policy=replace(POLICY, observe_only=True)), UP, "observe-only"),
        ("a paused policy", replace(SCENE, policy=replace(POLICY, paused=True)), UP, "paused"),
        ("a paused cluster", replace(SCENE, paused_clusters=frozenset({"eu-1"})), UP, "paused"),
        ("another cluster is paused", replace(SCENE, paused_clusters=frozenset({"us-1"})), UP, ""),
        ("a suspect cluster", replace(SCENE, sight=out(Sight.SUSPECT)), UP, "cluster-suspect"),
        ("a lost cluster", replace(SCENE, sight=out(Sight.LOST)), UP, "cluster-lost"),
        ("a cluster nobody ever saw", replace(SCENE, sight={}), UP, "cluster-suspect"),
        ("the brake and a decrease", replace(SCENE, brake=True), DOWN, "fleet-brake"),
        ("the brake and a move", replace(SCENE, brake=True), RAISE, "fleet-brake"),
        ("the brake and growth", replace(SCENE, brake=True), UP, ""),
        ("a decrease where metrics are missing", replace(SCENE, views=DARK), DOWN, "view-partial"),
        ("a cut where metrics are missing", replace(SCENE, views=DARK), CUT, "view-partial"),
        ("a decrease where no view is known", replace(SCENE, views={}), DOWN, "view-partial"),
        ("growth where metrics are missing", replace(SCENE, views=DARK), UP, ""),
        ("a decrease on partial demand", replace(SCENE, demand_complete=False), DOWN, "demand-partial"),
        ("a cut on partial demand: the target is up", replace(SCENE, demand_complete=False), CUT, ""),
        ("below the minimum", replace(SCENE, policy=replace(POLICY, min_replicas=11), wanted=5), DOWN, "at-min"),
        ("above the maximum", replace(SCENE, policy=replace(POLICY, max_replicas=13)), UP, "at-max"),
        ("a move makes before it breaks, maximum or not", replace(SCENE, policy=replace(POLICY, max_replicas=12)),
         RAISE, ""),
        ("lost replicas leave room below the maximum",
         replace(SCENE, policy=replace(POLICY, max_replicas=12), sight=out(Sight.LOST, "us-1")), UP, ""),
        ("too few would be ready", replace(SCENE, wanted=11), DOWN, "disruption-budget"),
        ("what may be unavailable", replace(SCENE, wanted=11, policy=replace(POLICY, max_unavailable=1)), DOWN, ""),
        ("what may be unavailable, in percent",
         replace(SCENE, wanted=11, policy=replace(POLICY, max_unavailable="10%")), DOWN, ""),
        ("replicas of a lost cluster are not ready ones", replace(SCENE, sight=out(Sight.LOST, "us-1")), DOWN,
         "disruption-budget"),
        ("unready ones go for free",
         replace(SCENE, placements={**SCENE.placements, "eu-1": placement("eu-1", 4, ready=2)}), DOWN, ""),
        ("nobody knows what is wanted: all that is asked for", replace(SCENE, wanted=None), DOWN, "disruption-budget"),
        ("a decrease before it took what could go", replace(SCENE, allowed=(scale("us-1", 4, 3),)), DOWN,
         "disruption-budget"),
        ("an increase before it leaves less to the maximum",
         replace(SCENE, policy=replace(POLICY, max_replicas=14), allowed=(scale("us-1", 4, 5),)), UP, "at-max"),
    ],
)  # fmt: skip
def test_each_veto(sentence: str, scene: Guarded, action: Action, reason: str) -> None:
    found = check(action, scene)
    assert (found.reason if found else "") == reason, sentence


@pytest.mark.parametrize(
    ("sentence", "budgets", "kept"),
    [
        ("none", {}, 0),
        ("minAvailable is counted over the fleet", {"eu-1": (PodBudget(11),)}, 11),
        ("the strictest of all clusters binds", {"eu-1": (PodBudget(3),), "us-1": (PodBudget(5),)}, 5),
        ("percentages are of what is wanted, rounded up", {"eu-1": (PodBudget("55%"),)}, 6),
        ("maxUnavailable as well", {"us-1": (PodBudget(None, 3),)}, 7),
        ("a percentage of unavailable is rounded up, too", {"us-1": (PodBudget(None, "25%"),)}, 7),
        ("where nobody can read them, all stay", {"ap-1": None, "us-1": (PodBudget(1),)}, 10),
    ],
)
def test_disruption_budgets_are_counted_over_the_fleet(
    sentence: str, budgets: dict[str, tuple[PodBudget, ...] | None], kept: int
) -> None:
    places = {c: replace(placement(c, 4), budgets=budgets.get(c, ())) for c in REGIONS}
    scene = replace(SCENE, placements=places, policy=replace(POLICY, max_unavailable=10, min_replicas=0))
    most = next(n for n in range(5) if n == 4 or 12 - (n + 1) < kept)
    refused = check(scale("eu-1", 4, 4 - most - 1), scene) if most < 4 else None
    assert (refused is not None and refused.reason == "disruption-budget") == (most < 4), sentence
    assert not most or check(scale("eu-1", 4, 4 - most), scene) is None, sentence
