"""What holds in every plan, whatever the fleet looks like; I1, I5, I6 and I11 need time and stand beside it.

I1, I5, I6: test_convergence.py and test_fleet_scenarios_safety.py. I9: test_cycle.py. I11: test_planning.py.
I12: test_why.py. I4 of the division alone: test_webster.py.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Literal

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rebalancer.core.model import Placement, Plan, SetReplicas, Sight, Snapshot, View
from rebalancer.core.planning import PlanSettings, planning
from rebalancer.core.policy import STRATEGY_WEIGHTS, Policy
from rebalancer.core.reasons import REASONS
from tests.unit.core.fleet import (
    NOW,
    POLICY,
    REGIONS,
    WEB,
    cluster_state,
    demand,
    flat_forecast,
    placement,
    plan,
    snapshot,
)
from tests.unit.core.plant import Plant
from tests.unit.core.scenes import CALM, started

ORIGINS = ("eu", "us", "ap")
SEEN = {"ready": NOW, "suspect": NOW - 60, "lost": NOW - 7200}
State = Literal["complete", "partial", "stale", "failed"]


@dataclass(frozen=True)
class Fleet:
    """A fleet in whatever state.

    Attributes:
        absent: clusters whose placement nobody knows; their view is never complete.
    """

    replicas: dict[str, int]
    ready: dict[str, int]
    load: dict[str, float]
    sight: dict[str, str]
    views: dict[str, State]
    rooms: dict[str, float]
    drained: str
    absent: frozenset[str]

    def snapshot(self) -> Snapshot:
        here: dict[str, int | Placement] = {
            c: placement(c, n, ready=min(n, self.ready[c])) for c, n in self.replicas.items() if c not in self.absent
        }
        states = {
            c: cluster_state(c, room_cpu=self.rooms[c], seen_s=SEEN[self.sight[c]], drain=c == self.drained)
            for c in REGIONS
        }
        views = {c: View(v, NOW - 60) for c, v in self.views.items()}
        missing = tuple(c for c, v in self.views.items() if v != "complete")
        return snapshot(here, self.load, states=states, views=views, seen=demand(self.load, missing=missing))

    def plan(self, policy: Policy = POLICY) -> Plan:
        return plan(self.snapshot(), self.load, policy, CALM)[0]

    @property
    def sights(self) -> dict[str, Sight]:
        out = sum(s != "ready" for s in self.sight.values())
        braked = {"ready": Sight.READY, "suspect": Sight.SUSPECT, "lost": Sight.SUSPECT if out > 1 else Sight.LOST}
        return {c: braked[s] for c, s in self.sight.items()}


def by_cluster(values: st.SearchStrategy[object]) -> st.SearchStrategy[dict[str, object]]:
    return st.fixed_dictionaries(dict.fromkeys(REGIONS, values))


@st.composite
def fleets(draw: st.DrawFn, *, seen: bool = False) -> Fleet:
    """Any fleet; with `seen`, one in full sight."""
    count, room = st.integers(0, 9), st.floats(0.0, 6.0)
    views = draw(by_cluster(st.sampled_from(["complete"] if seen else ["complete", "complete", "partial", "failed"])))
    dark = [c for c, v in views.items() if v != "complete"]
    return Fleet(
        replicas=draw(by_cluster(count)),  # type: ignore[arg-type]  # of the strategy given
        ready=draw(by_cluster(count)),  # type: ignore[arg-type]  # as above
        load={o: float(draw(st.integers(0, 90))) for o in ORIGINS},
        sight=draw(by_cluster(st.sampled_from(["ready"] if seen else ["ready", "ready", "suspect", "lost"]))),  # type: ignore[arg-type]  # as above
        views=views,  # type: ignore[arg-type]  # as above
        rooms=draw(by_cluster(room)),  # type: ignore[arg-type]  # as above
        drained=draw(st.sampled_from(["", "", *REGIONS])),
        absent=frozenset(draw(st.sets(st.sampled_from(dark)))) if dark else frozenset(),
    )


strategies = st.sampled_from(["LatencyFirst", "CostOptimized"]).map(
    lambda s: {"strategy": s, "weights": STRATEGY_WEIGHTS[s]}
)
policies = st.builds(
    lambda named, low, high, share, moving: replace(
        POLICY, **named, min_replicas=low, max_replicas=high, max_share=share, max_concurrent_moves=moving
    ),
    strategies, st.integers(0, 4), st.sampled_from([None, 8, 20]), st.sampled_from([1.0, 0.6]), st.integers(1, 3),
)  # fmt: skip


def changes(found: Plan) -> Counter[str]:
    """What the plan adds to each cluster or takes from it."""
    result: Counter[str] = Counter()
    for step in (s for a in found.actions for s in a.steps):
        if isinstance(step, SetReplicas):
            result[step.cluster] += step.replicas - step.expected
    return result


@settings(max_examples=150, deadline=None)
@given(fleets(), policies)
def test_i2_i3_i16_nothing_is_taken_away_or_touched_where_or_because_something_is_not_seen(
    fleet: Fleet, policy: Policy
) -> None:
    found = fleet.plan(policy)
    for cluster, change in changes(found).items():
        assert cluster not in fleet.absent
        assert fleet.sights[cluster] is Sight.READY
        assert change >= 0 or fleet.views[cluster] == "complete"
    above = policy.max_replicas is not None and sum(fleet.replicas.values()) > policy.max_replicas
    if any(v != "complete" for v in fleet.views.values()) and not above:
        assert all(change >= 0 for change in changes(found).values())


@settings(max_examples=100, deadline=None)
@given(fleets(), policies)
def test_i14_i16_no_more_is_placed_than_is_wanted_beside_what_moves(fleet: Fleet, policy: Policy) -> None:
    """Replicas that are out of sight, but not lost, count as running."""
    found = fleet.plan(policy)
    known = {c: n for c, n in fleet.replicas.items() if c not in fleet.absent and fleet.sights[c] is not Sight.LOST}
    if WEB not in found.workloads:
        return
    grown = sum(a.replicas for a in found.actions if a.kind == "scale" and a.replicas > 0)
    surge = sum(a.replicas for a in found.actions if a.kind != "scale")
    wanted = found.workloads[WEB].wanted
    assert wanted is not None
    assert grown <= max(0, wanted - sum(known.values()))
    assert sum(known.values()) + changes(found).total() <= max(sum(known.values()), wanted) + surge


@settings(max_examples=100, deadline=None)
@given(fleets(seen=True), policies)
def test_i4_who_wants_more_loses_none_anywhere(fleet: Fleet, policy: Policy) -> None:
    total = sum(fleet.replicas.values())
    assume(policy.max_replicas is None or total < policy.max_replicas)
    more = replace(fleet, load={"eu": 10.0 * (total + 1), "us": 0.0, "ap": 0.0})
    assert all(change >= 0 for change in changes(more.plan(policy)).values())


@settings(max_examples=15, deadline=None)
@given(
    counts=st.tuples(*[st.integers(1, 6)] * 3),
    noise=st.lists(st.tuples(*[st.floats(-1.0, 1.0)] * 3), min_size=1, max_size=8),
)
def test_i7_noise_below_one_replica_moves_nothing(
    counts: tuple[int, ...], noise: list[tuple[float, float, float]]
) -> None:
    level = {o: 10.0 * n - 2.0 for o, n in zip(ORIGINS, counts, strict=True)}
    plant = Plant.of(dict(zip(REGIONS, counts, strict=True)), dict(level))
    for step in noise * 3:
        plant.origins = {o: v + d for (o, v), d in zip(level.items(), step, strict=True)}
        assert plant.cycle(seconds=300.0).actions == ()


@settings(max_examples=100, deadline=None)
@given(fleets(), policies, st.sets(st.sampled_from(ORIGINS), min_size=1))
def test_i8_nothing_begins_where_residency_forbids_it_in_a_failover_neither(
    fleet: Fleet, policy: Policy, regions: set[str]
) -> None:
    found = fleet.plan(replace(policy, residency_regions=tuple(sorted(regions))))
    assert {REGIONS[c] for c in started(found)} <= regions


@settings(max_examples=150, deadline=None)
@given(fleets(), policies)
def test_i10_what_is_not_done_says_why_with_an_id_of_the_table(fleet: Fleet, policy: Policy) -> None:
    found = fleet.plan(policy)
    assert all(REASONS[r.reason].kind == "refuse" for r in found.refusals)
    assert all(REASONS[a.reason].kind == "act" for a in found.actions)
    for item in found.workloads.values():
        seen = {c for c, s in fleet.sights.items() if s is Sight.READY and c in item.now}
        if any(item.target[c] != item.planned[c] for c in seen) and not found.actions:
            assert found.refusals, "nothing is done towards the target, and nobody says why"


@settings(max_examples=60, deadline=None)
@given(fleets(seen=True), st.floats(1.0, 5.0), st.floats(0.2, 3.0))
def test_i13_a_higher_forecast_never_wants_fewer(fleet: Fleet, higher: float, off: float) -> None:
    """The forecast is `off` by a factor, so that it is above or below what is seen."""

    def wanted(factor: float) -> int:
        forecast = flat_forecast({o: v * factor for o, v in fleet.load.items()})
        found = planning(fleet.snapshot(), forecast, {"shop/web": POLICY}, CALM, PlanSettings())[0]
        count = found.workloads[WEB].wanted
        assert count is not None
        return count

    assert wanted(off) <= wanted(off * higher)


@settings(max_examples=80, deadline=None)
@given(fleets(seen=True), st.integers(2, 6), st.sampled_from(sorted(REGIONS)))
def test_i15_a_gang_begins_whole_in_one_cluster_or_not_at_all(fleet: Fleet, gang: int, where: str) -> None:
    fleet = replace(fleet, replicas={c: n if c == where else 0 for c, n in fleet.replicas.items()})
    policy = replace(POLICY, gang=gang, min_replicas=gang, max_moves_per_hour="100%")
    begun = started(fleet.plan(policy))
    assert len(begun) <= 1
    for cluster, count in begun.items():
        assert fleet.replicas[cluster] + count >= gang


@pytest.mark.parametrize("owner", ["hpa", "rollout", "a rollout of the hub", "a pause"])
@settings(max_examples=20, deadline=None)
@given(fleet=fleets(), policy=policies, where=st.sampled_from(sorted(REGIONS)))
def test_i17_who_owns_a_field_is_its_only_writer(owner: str, fleet: Fleet, policy: Policy, where: str) -> None:
    seen = replace(fleet, absent=frozenset()).snapshot()
    if owner == "a pause":
        policy = replace(policy, paused=True)
    elif owner == "a rollout of the hub":
        seen = replace(seen, rollouts=frozenset({WEB}))
    else:
        mine = replace(seen.placements[WEB][where], owner=owner)
        seen = replace(seen, placements={WEB: {**seen.placements[WEB], where: mine}})
    found, _ = plan(seen, fleet.load, policy, CALM)
    assert found.actions == ()
    assert [r.reason for r in found.refusals]
