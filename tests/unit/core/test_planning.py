"""The planner as sentences: what it does, what it refuses, and that unknown is never zero."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rebalancer.core.model import (
    ClusterState,
    Demand,
    Effect,
    Moved,
    Placement,
    Plan,
    Price,
    SetReplicas,
    Sight,
    Snapshot,
    Taint,
    Toleration,
    Unknown,
    View,
)
from rebalancer.core.network import LatencyMap
from rebalancer.core.planning import PlanMemory
from rebalancer.core.policy import DemandSpec, Policy, Weights
from rebalancer.core.sight import Clock
from tests.unit.core.fleet import (
    NOW,
    POLICY,
    REGIONS,
    WEB,
    cluster_state,
    demand,
    latency,
    placement,
    plan,
    snapshot,
)

EVERYWHERE = {"eu": 38.0, "us": 38.0, "ap": 38.0}
SETTLED = {"eu-1": 4, "us-1": 4, "ap-1": 4}
CALM = PlanMemory(
    clocks={c: Clock(NOW, NOW - 86_400) for c in REGIONS},
    recommendations={WEB: ((NOW - 700, 1), (NOW - 200, 1))},
)
"""Nobody asked for more than one replica lately, and every cluster was seen all day."""


def one(seen: Snapshot, origins: dict[str, float], policy: Policy = POLICY, memory: PlanMemory = CALM) -> Plan:
    return plan(seen, origins, policy, memory)[0]


def reasons(found: Plan) -> set[tuple[str, str]]:
    return {(r.reason, r.cluster) for r in found.refusals}


def changes(found: Plan) -> dict[str, int]:
    return {s.cluster: s.replicas - s.expected for a in found.actions for s in a.steps if isinstance(s, SetReplicas)}


def kinds(found: Plan) -> list[tuple[str, str, str, str]]:
    return [(a.kind, a.reason, a.source, a.target) for a in found.actions]


def ended(outcome: str, source: str, target: str, ago_s: float, replicas: int = 1) -> tuple[Moved, ...]:
    return (Moved(f"{outcome}{ago_s}", NOW - ago_s, source, target, replicas, outcome),)  # type: ignore[arg-type]  # test helper


# --- what it does


@pytest.mark.parametrize(
    ("egress", "target"),
    [
        pytest.param({"eu-1": 0.12, "us-1": 0.02, "ap-1": 0.09}, "us-1", id="answers leave where that is cheapest"),
        pytest.param({"eu-1": 0.12, "us-1": 0.02}, "us-1", id="a price that is not known counts as the mean"),
        pytest.param({}, "", id="without any price egress decides nothing"),
    ],
)
def test_what_answers_weigh_has_its_price(egress: dict[str, float], target: str) -> None:
    demand = DemandSpec(query="requests_total", origin_label="origin", response_kib=512)
    policy = replace(POLICY, strategy="CostOptimized", weights=Weights(cost=1.0), demand=demand)
    states = {}
    for name in REGIONS:
        state = cluster_state(name)
        price = Price(0.04, 0.005, egress.get(name))
        states[name] = replace(state, cluster=replace(state.cluster, price=price))
    origins = {"eu": 40.0}
    found, _ = plan(snapshot({"eu-1": 6, "us-1": 0, "ap-1": 0}, origins, states=states), origins, policy)
    item = found.workloads[WEB]
    moves = [a for a in found.actions if a.kind in ("migrate", "drift")]
    assert [(a.target, a.reason) for a in moves] == ([(target, "cheaper")] if target else [])
    assert (item.terms_now["egress"] > 0) is bool(egress)
    for action in moves:
        assert action.why is not None
        assert action.why.terms["egress"] > 0
        assert action.why.terms["latency"] == pytest.approx(0.0)


def test_a_fleet_that_stands_right_is_left_alone() -> None:
    found = one(snapshot(SETTLED, EVERYWHERE), EVERYWHERE)
    assert found.actions == ()


def test_part_of_a_placement_drifts_to_its_users_in_small_steps() -> None:
    origins = {"eu": 38.0, "ap": 38.0}
    found = one(snapshot({"eu-1": 8, "us-1": 0, "ap-1": 0}, origins), origins)
    assert kinds(found) == [("drift", "closer-to-users", "eu-1", "ap-1")]
    assert changes(found) == {"ap-1": 1}


def test_a_whole_placement_far_from_its_users_migrates() -> None:
    found = one(snapshot(AWAY, {"ap": 36.0}), {"ap": 36.0})
    assert kinds(found) == [("migrate", "closer-to-users", "eu-1", "ap-1")]
    assert changes(found) == {"ap-1": 4}


def test_more_demand_starts_replicas_where_it_comes_from() -> None:
    origins = {"eu": 38.0, "us": 38.0, "ap": 90.0}
    found = one(snapshot(SETTLED, origins), origins)
    assert [a.reason for a in found.actions] == ["demand-up"]
    assert changes(found)["ap-1"] >= 3
    assert set(changes(found)) == {"ap-1"}


def test_less_demand_takes_replicas_away_in_steps() -> None:
    origins = {"eu": 30.0, "us": 30.0, "ap": 1.0}
    found = one(snapshot({"eu-1": 4, "us-1": 4, "ap-1": 12}, origins), origins)
    assert {a.reason for a in found.actions} == {"demand-down"}
    assert sum(changes(found).values()) == -6
    assert ("large-drop", "") in reasons(found)


def test_a_lost_cluster_is_replaced_elsewhere_and_nothing_is_deleted_there() -> None:
    lost = cluster_state("us-1", seen_s=NOW - 600)
    found = one(
        snapshot(SETTLED, EVERYWHERE, states={"us-1": lost}, views={"us-1": View("failed", NOW - 600, "gone")}),
        EVERYWHERE,
    )
    assert {a.reason for a in found.actions} == {"failover"}
    assert sum(changes(found).values()) >= 1
    assert "us-1" not in changes(found)
    assert ("cluster-lost", "us-1") in reasons(found)
    assert found.sight["us-1"] is Sight.LOST


def test_the_maximum_does_not_count_what_is_lost() -> None:
    lost = cluster_state("us-1", seen_s=NOW - 600)
    seen = snapshot(SETTLED, EVERYWHERE, states={"us-1": lost}, views={"us-1": View("failed", NOW - 600, "gone")})
    found = one(seen, EVERYWHERE, replace(POLICY, max_replicas=12))
    assert sum(changes(found).values()) >= 1


def test_a_suspect_cluster_keeps_its_replicas_and_nothing_replaces_them_yet() -> None:
    suspect = cluster_state("us-1", seen_s=NOW - 60)
    found = one(snapshot(SETTLED, EVERYWHERE, states={"us-1": suspect}), EVERYWHERE)
    assert found.actions == ()
    assert ("cluster-suspect", "us-1") in reasons(found)


def back(since_s: float) -> PlanMemory:
    clocks = {**CALM.clocks, "us-1": Clock(NOW - 10, NOW - since_s, NOW - since_s - 3600)}
    return replace(CALM, clocks=clocks)


def test_what_replaced_a_lost_cluster_stays_until_failback_after() -> None:
    seen = snapshot({"eu-1": 8, "us-1": 4, "ap-1": 4}, EVERYWHERE)
    early, _ = plan(seen, EVERYWHERE, POLICY, back(300.0))
    assert early.actions == ()
    assert ("cluster-lost", "") in reasons(early)
    late, _ = plan(seen, EVERYWHERE, POLICY, back(1000.0))
    assert sum(changes(late).values()) < 0


def test_nothing_new_goes_to_a_cluster_that_came_back_too_short_a_time_ago() -> None:
    origins = {"eu": 38.0, "us": 120.0, "ap": 38.0}
    found, _ = plan(snapshot(SETTLED, origins), origins, POLICY, back(300.0))
    assert "us-1" not in changes(found)
    assert sum(changes(found).values()) > 0


def test_the_brake_keeps_a_fleet_that_is_out_of_sight_as_it_is() -> None:
    out = {c: cluster_state(c, seen_s=NOW - 900) for c in ("us-1", "ap-1")}
    less = {"eu": 5.0, "us": 5.0, "ap": 5.0}
    found = one(snapshot(SETTLED, less, states=out), less)
    assert found.actions == ()
    assert found.sight["us-1"] is Sight.SUSPECT
    assert ("fleet-brake", "") in reasons(found)


FORCED: dict[str, tuple[dict[str, ClusterState], Policy]] = {
    "drain": ({"us-1": cluster_state("us-1", drain=True)}, POLICY),
    "taint-no-execute": ({"us-1": cluster_state("us-1", taints=(Taint("k", "v", Effect.NO_EXECUTE),))}, POLICY),
    "residency": ({}, replace(POLICY, residency_regions=("eu", "ap"))),
}


@pytest.mark.parametrize("reason", FORCED)
def test_replicas_leave_where_they_must_with_the_target_up_first(reason: str) -> None:
    states, policy = FORCED[reason]
    found = one(snapshot(SETTLED, EVERYWHERE, states=states), EVERYWHERE, policy)
    assert [(a.kind, a.reason, a.source) for a in found.actions] == [("migrate", reason, "us-1")]
    assert all(n > 0 for n in changes(found).values())


@pytest.mark.parametrize("reason", FORCED)
def test_what_must_leave_stays_while_nowhere_has_room(reason: str) -> None:
    states, policy = FORCED[reason]
    full = {c: cluster_state(c, room_cpu=0.0) for c in ("eu-1", "ap-1")}
    found = one(snapshot(SETTLED, EVERYWHERE, states={**full, **states}), EVERYWHERE, policy)
    assert found.actions == ()
    assert ("no-room", "us-1") in reasons(found)


@pytest.mark.parametrize("blind", ["room", "rtt"])
def test_a_drain_needs_neither_room_nor_distance_of_what_is_drained(blind: str) -> None:
    state = cluster_state("us-1", drain=True)
    network = latency()
    if blind == "room":
        state = replace(state, nodes=Unknown("room-unknown"))
    else:
        network = latency({("ap-1", "us-1"): None, ("eu-1", "us-1"): None})
        network = LatencyMap({k: v for k, v in network.cells.items() if "us-1" not in k})
    origins = {"eu": 76.0, "ap": 38.0}
    found = one(snapshot(SETTLED, origins, states={"us-1": state}, network=network), origins)
    assert [(a.reason, a.source) for a in found.actions if a.kind != "scale"] == [("drain", "us-1")]


def test_a_no_schedule_taint_bars_new_replicas_and_leaves_the_others() -> None:
    tainted = {"us-1": cluster_state("us-1", taints=(Taint("k", "v", Effect.NO_SCHEDULE),))}
    origins = {"eu": 38.0, "us": 120.0, "ap": 38.0}
    found = one(snapshot(SETTLED, origins, states=tainted), origins)
    assert "us-1" not in changes(found)
    assert ("taint-not-tolerated", "us-1") in reasons(found)
    tolerant = replace(POLICY, tolerations=(Toleration("k", "Equal", "v", Effect.NO_SCHEDULE),))
    assert changes(one(snapshot(SETTLED, origins, states=tainted), origins, tolerant))["us-1"] > 0


@pytest.mark.parametrize(
    "policy",
    [replace(POLICY, min_clusters=2), replace(POLICY, min_regions=2), replace(POLICY, max_share=0.6),
     replace(POLICY, cluster_max=3), replace(POLICY, cluster_min=1)],
)  # fmt: skip
def test_spread_moves_replicas_although_latency_gets_worse(policy: Policy) -> None:
    found = one(snapshot({"eu-1": 4, "us-1": 0, "ap-1": 0}, {"eu": 36.0}), {"eu": 36.0}, policy)
    assert [a.reason for a in found.actions] == ["spread"]


def test_a_spot_share_moves_replicas_off_spot_clusters() -> None:
    spot = {"eu-1": cluster_state("eu-1", spot=True)}
    policy = replace(POLICY, spot_max_share=0.5)
    found = one(snapshot({"eu-1": 4, "us-1": 0, "ap-1": 0}, {"eu": 36.0}, states=spot), {"eu": 36.0}, policy)
    assert [a.reason for a in found.actions] == ["spread"]


def test_cheaper_clusters_win_where_money_counts() -> None:
    policy = replace(POLICY, strategy="CostOptimized", weights=Weights(cost=1.0), max_moves_per_hour="100%")
    states = {"eu-1": replace(cluster_state("eu-1"), cluster=replace(cluster_state("eu-1").cluster))}
    found = one(snapshot({"eu-1": 0, "us-1": 0, "ap-1": 4}, {"ap": 36.0}, states=states), {"ap": 36.0}, policy)
    # 0.5 cores at 2 cents less an hour is one cent: exactly what a move costs, so it does not pay.
    assert found.actions == ()
    dear = {"ap-1": cluster_state("ap-1")}
    price = replace(dear["ap-1"].cluster.price, cpu_core_hour=0.6)
    dear = {"ap-1": replace(dear["ap-1"], cluster=replace(dear["ap-1"].cluster, price=price))}
    found = one(snapshot({"eu-1": 0, "us-1": 0, "ap-1": 4}, {"ap": 36.0}, states=dear), {"ap": 36.0}, policy)
    assert kinds(found) == [("migrate", "cheaper", "ap-1", "us-1")]


def test_replicas_go_to_their_data_even_where_nobody_knows_the_origin() -> None:
    policy = replace(
        POLICY, strategy="DataLocality", weights=Weights(data=1.0), data={"ap-1": 1.0}, demand=DemandSpec()
    )
    found = one(snapshot({"eu-1": 4, "us-1": 0, "ap-1": 0}, {"": 36.0}), {"": 36.0}, policy)
    assert kinds(found) == [("migrate", "closer-to-data", "eu-1", "ap-1")]


def test_a_cluster_whose_distance_to_the_data_nobody_measured_is_not_taken_for_near() -> None:
    policy = replace(
        POLICY, strategy="DataLocality", weights=Weights(data=1.0), data={"ap-1": 1.0}, demand=DemandSpec()
    )
    network = LatencyMap({k: v for k, v in latency().cells.items() if "us-1" not in k})
    found = one(snapshot({"eu-1": 4, "us-1": 0, "ap-1": 0}, {"": 36.0}, network=network), {}, policy)
    assert ("rtt-unknown", "us-1") in reasons(found)
    assert "us-1" not in changes(found)


# --- unknown is not zero, and freezes nothing but itself


def failed_view(cluster: str) -> dict[str, View]:
    return {cluster: View("failed", NOW - 60, "its Prometheus does not answer")}


def test_a_cluster_whose_view_failed_holds_its_replicas_while_moves_between_the_others_go_on() -> None:
    origins = {"us": 30.0}
    seen = snapshot(
        {"eu-1": 4, "us-1": 0, "ap-1": 4}, origins, views=failed_view("ap-1"), seen=demand(origins, missing=("ap-1",))
    )
    found = one(seen, origins)
    assert kinds(found) == [("drift", "closer-to-users", "eu-1", "us-1")]
    assert "ap-1" not in changes(found)
    assert {("view-partial", "ap-1"), ("demand-partial", "")} <= reasons(found)


def test_an_origin_that_nobody_counts_any_more_is_not_taken_for_asleep() -> None:
    origins = dict(EVERYWHERE)
    held = demand({"eu": 38.0, "us": 38.0}, missing=("ap-1",))
    found = one(snapshot(SETTLED, origins, views=failed_view("ap-1"), seen=held), origins)
    assert found.actions == ()
    assert found.workloads[WEB].traffic["ap", "ap-1"] == pytest.approx(1.0)


def test_cpu_that_hides_demand_is_told_with_its_cluster_and_why() -> None:
    origins = {"eu": 30.0}
    seen = snapshot(SETTLED, origins)
    hidden = replace(_known(seen), unit="cores", censored={"eu-1": "its pods are throttled in 41% of the CPU periods"})
    lines = one(replace(seen, demand={WEB: hidden}), origins).workloads[WEB].lines
    assert any("censored in eu-1" in line and "41%" in line for line in lines)
    assert not any("censored" in line for line in one(seen, origins).workloads[WEB].lines)


UNKNOWN: dict[str, Callable[[Snapshot], Snapshot]] = {
    "demand-unknown": lambda s: replace(s, demand={WEB: Unknown("demand-unknown", detail="no series")}),
    "demand is no number": lambda s: replace(s, demand={WEB: Demand("requests/s", float("nan"))}),
    "demand-partial": lambda s: replace(s, demand={WEB: replace(_known(s), missing=("us-1",))}),
    "demand whose peaks are not known": lambda s: replace(s, demand={WEB: replace(_known(s), peaks_known=False)}),
    "view-partial": lambda s: replace(s, views={**s.views, "us-1": View("partial", NOW - 60, "half")}),
    "a stale view": lambda s: replace(s, views={**s.views, "us-1": View("stale", NOW - 600, "old")}),
    "cluster-suspect": lambda s: replace(s, clusters={**s.clusters, "us-1": cluster_state("us-1", seen_s=NOW - 60)}),
    "cluster-lost": lambda s: replace(s, clusters={**s.clusters, "us-1": cluster_state("us-1", seen_s=NOW - 900)}),
    "room-unknown": lambda s: replace(
        s, clusters={**s.clusters, "us-1": replace(cluster_state("us-1"), nodes=Unknown("room-unknown"))}
    ),
    "rtt-unknown": lambda s: replace(
        s, network=LatencyMap({k: v for k, v in s.network.cells.items() if "us-1" not in k})
    ),
}


def _known(seen: Snapshot) -> Demand:
    found = seen.demand[WEB]
    assert isinstance(found, Demand)
    return found


@settings(max_examples=40, deadline=None)
@given(
    what=st.sampled_from(sorted(UNKNOWN)),
    replicas=st.tuples(*[st.integers(0, 9)] * 3),
    load=st.tuples(*[st.integers(0, 90)] * 3),
)
def test_what_is_unknown_takes_nothing_away_where_it_is_unknown(
    what: str, replicas: tuple[int, ...], load: tuple[int, ...]
) -> None:
    origins = {o: float(v) for o, v in zip(("eu", "us", "ap"), load, strict=True)}
    full = snapshot(dict(zip(REGIONS, replicas, strict=True)), origins)
    # For users in its own region a cluster needs no measurement: nothing about us-1 is unknown to them.
    assume(what != "rtt-unknown" or load[0] or load[2])
    dark = one(UNKNOWN[what](full), origins)
    assert changes(dark).get("us-1", 0) >= 0 or what.startswith("demand")
    if what.startswith("demand"):
        assert all(n >= 0 for n in changes(dark).values())


def test_a_dead_link_to_surplus_replicas_does_not_empty_the_cluster_where_the_users_are() -> None:
    full = snapshot({"eu-1": 3, "us-1": 5, "ap-1": 0}, {"eu": 25.0})
    seen = one(full, {"eu": 25.0})
    assert changes(seen)["us-1"] < 0 <= changes(seen).get("eu-1", 0), "with sight the far ones go"
    dark = one(UNKNOWN["rtt-unknown"](full), {"eu": 25.0})
    assert dark.actions == ()
    assert ("rtt-unknown", "us-1") in reasons(dark)


@settings(max_examples=60, deadline=None)
@given(
    what=st.sampled_from(sorted(set(UNKNOWN) - {"demand-unknown", "demand-partial"})),
    replicas=st.tuples(*[st.integers(0, 9)] * 3),
    load=st.tuples(*[st.integers(0, 90)] * 3),
)
def test_what_is_seen_keeps_what_is_wanted_whatever_is_held_elsewhere(
    what: str, replicas: tuple[int, ...], load: tuple[int, ...]
) -> None:
    origins = {o: float(v) for o, v in zip(("eu", "us", "ap"), load, strict=True)}
    now = dict(zip(REGIONS, replicas, strict=True))
    assume(what != "rtt-unknown" or load[0] or load[2])
    dark = one(UNKNOWN[what](snapshot(now, origins)), origins)
    after = {c: n + changes(dark).get(c, 0) for c, n in now.items()}
    wanted = (dark.workloads[WEB].wanted or 0) if WEB in dark.workloads else 0
    assert sum(n for c, n in after.items() if c != "us-1") >= min(now["eu-1"] + now["ap-1"], wanted - after["us-1"])


def test_unknown_demand_for_an_hour_does_not_make_the_first_small_sample_cut_replicas() -> None:
    seen, memory = snapshot(SETTLED, EVERYWHERE), CALM
    for minute in range(60):
        at = NOW + 60.0 * minute
        dark = replace(UNKNOWN["demand-unknown"](snapshot(SETTLED, EVERYWHERE, now=at)), at_s=at)
        _, memory = plan(dark, EVERYWHERE, POLICY, memory)
    less = {"eu": 5.0, "us": 5.0, "ap": 5.0}
    found, _ = plan(snapshot(SETTLED, less, now=NOW + 3600), less, POLICY, memory)
    assert found.actions == ()
    assert ("stabilising", "") in reasons(found)
    assert seen.at_s == NOW


# --- every refusal


@dataclass(frozen=True)
class Case:
    """A scene in which something is refused."""

    replicas: dict[str, int | Placement]
    origins: dict[str, float]
    policy: Policy = POLICY
    memory: PlanMemory = CALM
    change: dict[str, object] = field(default_factory=dict)


AWAY = {"eu-1": 4, "us-1": 0, "ap-1": 0}
LESS = {"eu": 5.0, "us": 5.0, "ap": 5.0}
NO_ORIGIN = Demand("requests/s", 90.0, as_of_s=NOW)


def priced(cpu_core_hour: float) -> ClusterState:
    found = cluster_state("us-1")
    return replace(found, cluster=replace(found.cluster, price=Price(cpu_core_hour)))


REFUSED: dict[str, Case] = {
    "observe-only": Case(dict(AWAY), {"ap": 36.0}, replace(POLICY, observe_only=True)),
    "paused": Case(dict(AWAY), {"ap": 36.0}, replace(POLICY, paused=True)),
    "freeze": Case(dict(AWAY), {"ap": 36.0}, replace(POLICY, frozen=True)),
    "origin-unknown": Case(dict(SETTLED), {}, change={"seen": NO_ORIGIN}),
    "not-steerable": Case(dict(AWAY), {"ap": 36.0}, replace(POLICY, steering="none")),
    "traffic-did-not-follow": Case(
        {**AWAY, "eu-1": placement("eu-1", 4, moved=ended("not-followed", "eu-1", "ap-1", 1800))}, {"ap": 36.0}
    ),
    "demand-unknown": Case(dict(SETTLED), EVERYWHERE, change={"seen": Unknown("demand-unknown")}),
    "demand-partial": Case(dict(SETTLED), LESS, change={"seen": demand(LESS, missing=("us-1",))}),
    "peaks-unknown": Case(dict(SETTLED), LESS, change={"seen": replace(demand(LESS), peaks_known=False)}),
    "capacity-unknown": Case(dict(SETTLED), EVERYWHERE, replace(POLICY, capacity_per_replica=None)),
    "view-partial": Case(dict(SETTLED), EVERYWHERE, change={"views": failed_view("us-1")}),
    "cluster-suspect": Case(
        dict(SETTLED), EVERYWHERE, change={"states": {"us-1": cluster_state("us-1", seen_s=NOW - 60)}}
    ),
    "cluster-lost": Case(
        dict(SETTLED), EVERYWHERE, change={"states": {"us-1": cluster_state("us-1", seen_s=NOW - 600)}}
    ),
    "fleet-brake": Case(
        dict(SETTLED),
        LESS,
        change={"states": {c: cluster_state(c, seen_s=NOW - 600) for c in ("us-1", "ap-1")}},
    ),
    "room-unknown": Case(
        dict(SETTLED),
        EVERYWHERE,
        change={"states": {"us-1": replace(cluster_state("us-1"), nodes=Unknown("room-unknown"))}},
    ),
    "volume-bound": Case({**AWAY, "eu-1": placement("eu-1", 4, claims=("disk",))}, {"ap": 36.0}),
    "quota-unknown": Case(
        dict(SETTLED),
        EVERYWHERE,
        change={"states": {"us-1": replace(cluster_state("us-1"), quotas=Unknown("quota-unknown"))}},
    ),
    "quota-full": Case(
        dict(SETTLED),
        {"us": 300.0},
        change={"states": {"us-1": replace(cluster_state("us-1"), quotas={"shop": {"cpu": 0.2}})}},
    ),
    "no-room": Case(
        dict(SETTLED), {"eu": 300.0}, change={"states": {c: cluster_state(c, room_cpu=1.0) for c in REGIONS}}
    ),
    "no-solution": Case(dict(SETTLED), EVERYWHERE, change={"states": {"us-1": priced(math.nan)}}),
    "rtt-unknown": Case(
        dict(SETTLED),
        EVERYWHERE,
        change={"network": LatencyMap({k: v for k, v in latency().cells.items() if "us-1" not in k})},
    ),
    "taint-not-tolerated": Case(
        dict(SETTLED),
        EVERYWHERE,
        change={"states": {"us-1": cluster_state("us-1", taints=(Taint("k", "", Effect.NO_SCHEDULE),))}},
    ),
    "residency-empty": Case(dict(SETTLED), EVERYWHERE, replace(POLICY, residency_regions=("mars",))),
    "at-max": Case(dict(SETTLED), {"eu": 300.0}, replace(POLICY, max_replicas=12)),
    "at-min": Case({"eu-1": 2, "us-1": 0, "ap-1": 0}, {"eu": 1.0}),
    "stabilising": Case(dict(SETTLED), LESS, memory=replace(CALM, recommendations={})),
    "large-drop": Case({"eu-1": 12, "us-1": 12, "ap-1": 12}, LESS),
    "cool-down": Case({**AWAY, "eu-1": placement("eu-1", 4, moved=ended("done", "ap-1", "eu-1", 60))}, {"ap": 36.0}),
    "not-settled": Case(
        {"eu-1": 4, "us-1": 0, "ap-1": placement("ap-1", 1, ready=0, moved=ended("done", "eu-1", "ap-1", 1800))},
        {"ap": 46.0},
    ),
    "quarantine": Case(
        {
            **AWAY,
            "eu-1": placement(
                "eu-1", 4, moved=tuple(m for ago in (3700, 4700, 5700) for m in ended("timed-out", "eu-1", "ap-1", ago))
            ),
        },
        {"ap": 36.0},
    ),
    "unschedulable": Case(
        {**AWAY, "eu-1": placement("eu-1", 4, moved=ended("timed-out", "eu-1", "ap-1", 1800))}, {"ap": 36.0}
    ),
    "move-budget": Case(
        {**AWAY, "eu-1": placement("eu-1", 4, moved=ended("done", "eu-1", "us-1", 1800, 4))}, {"ap": 36.0}
    ),
    "move-in-flight": Case({"eu-1": 10, "us-1": 0, "ap-1": 0}, {"ap": 50.0, "us": 45.0}),
    "disruption-budget": Case({**SETTLED, "eu-1": 6, "us-1": placement("us-1", 4, ready=0)}, LESS),
    "hpa-no-traffic-control": Case({**SETTLED, "us-1": placement("us-1", 4, owner="hpa")}, EVERYWHERE),
    "rollout-in-progress": Case(dict(SETTLED), EVERYWHERE, change={"rollouts": frozenset({WEB})}),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_each_refusal_is_told_by_its_id(reason: str) -> None:
    case = REFUSED[reason]
    seen = snapshot(case.replicas, case.origins, **case.change)  # type: ignore[arg-type]  # a table of keyword arguments
    found = one(seen, case.origins, case.policy, case.memory)
    assert reason in {r.reason for r in found.refusals}, found.refusals


def test_a_move_that_does_not_pay_is_refused_with_its_gain() -> None:
    network = latency({("eu-1", "us-1"): 1.0})
    found = one(snapshot({"eu-1": 4, "us-1": 0, "ap-1": 0}, {"us": 36.0}, network=network), {"us": 36.0})
    assert found.actions == ()


def test_a_paused_cluster_is_not_touched() -> None:
    states = {"us-1": cluster_state("us-1", paused=True)}
    found = one(snapshot(SETTLED, LESS, states=states), LESS)
    assert "us-1" not in changes(found)


def test_a_budget_of_nothing_moves_nothing() -> None:
    for budget in ("0%", 0):
        policy = replace(POLICY, max_moves_per_hour=budget)
        found = one(snapshot(AWAY, {"ap": 36.0}), {"ap": 36.0}, policy)
        assert found.actions == ()
        assert "move-budget" in {r.reason for r in found.refusals}


def test_two_decreases_of_one_cycle_share_the_disruption_budget() -> None:
    replicas = {"eu-1": placement("eu-1", 6), "us-1": placement("us-1", 6), "ap-1": placement("ap-1", 6, ready=3)}
    found = one(snapshot(replicas, LESS), LESS)
    ready = 15 + sum(n for c, n in changes(found).items() if c != "ap-1")
    wanted = found.workloads[WEB].wanted
    assert wanted is not None
    assert ready >= wanted


def test_promised_room_is_not_given_twice() -> None:
    other = "shop/api"
    seen = snapshot({"eu-1": placement("eu-1", 4), "us-1": 4, "ap-1": 4}, {"eu": 300.0, "us": 40.0, "ap": 40.0},
                    states={c: cluster_state(c, room_cpu=5.0, reserve_ratio=0.0) for c in REGIONS})  # fmt: skip
    coming = {c: replace(placement(c, 8, ready=0), workload=other) for c in REGIONS}
    seen = replace(
        seen, placements={**seen.placements, other: coming}, policies={**seen.policies, other: "shop/web"},
        demand={**seen.demand, other: Unknown("demand-unknown")},
    )  # fmt: skip
    found = one(seen, {"eu": 300.0, "us": 40.0, "ap": 40.0})
    added = {s.cluster: s.replicas - s.expected for a in found.actions if a.workload == WEB for s in a.steps
             if isinstance(s, SetReplicas)}  # fmt: skip
    assert added
    assert all(n <= 2 for n in added.values()), added


# --- properties


@settings(max_examples=40, deadline=None)
@given(
    replicas=st.tuples(*[st.integers(0, 8)] * 3),
    load=st.tuples(*[st.integers(0, 90)] * 3),
    room=st.tuples(*[st.integers(0, 6)] * 3),
    bounds=st.tuples(st.integers(0, 6), st.integers(6, 30), st.sampled_from([0, 1, 2]), st.sampled_from([None, 3])),
    spread=st.tuples(st.integers(1, 3), st.sampled_from([1.0, 0.5])),
    calm=st.booleans(),
)
def test_a_plan_is_within_its_bounds_and_the_same_twice(
    replicas: tuple[int, ...], load: tuple[int, ...], room: tuple[int, ...],
    bounds: tuple[int, int, int, int | None], spread: tuple[int, float], calm: bool,
) -> None:  # fmt: skip
    origins = {o: float(v) for o, v in zip(("eu", "us", "ap"), load, strict=True)}
    states = {c: cluster_state(c, room_cpu=float(r), reserve_ratio=0.0) for c, r in zip(REGIONS, room, strict=True)}
    seen = snapshot(dict(zip(REGIONS, replicas, strict=True)), origins, states=states)
    policy = replace(
        POLICY, min_replicas=bounds[0], max_replicas=bounds[1], cluster_min=bounds[2], cluster_max=bounds[3],
        min_clusters=spread[0], max_share=spread[1],
    )  # fmt: skip
    memory = CALM if calm else PlanMemory()
    found, after = plan(seen, origins, policy, memory)
    again, after_again = plan(seen, origins, policy, memory)
    assert found.id == again.id
    assert found == replace(again) or repr(found) == repr(again)
    assert after.recommendations == after_again.recommendations
    wanted, total = found.workloads[WEB].wanted, sum(replicas)
    assert wanted is not None
    assert bounds[0] <= wanted <= bounds[1]
    for cluster, free in zip(REGIONS, room, strict=True):
        assert changes(found).get(cluster, 0) * 0.5 <= free + 1e-6
    grown = sum(s.replicas - s.expected for a in found.actions if a.kind == "scale" for s in a.steps
                if isinstance(s, SetReplicas))  # fmt: skip
    assert grown <= max(0, wanted - total)
    assert total + grown >= min(total, wanted)


@settings(max_examples=30, deadline=None)
@given(replicas=st.tuples(*[st.integers(0, 8)] * 3), load=st.tuples(*[st.integers(0, 60)] * 3), more=st.integers(0, 60))
def test_more_demand_never_wants_fewer_replicas(replicas: tuple[int, ...], load: tuple[int, ...], more: int) -> None:
    def wanted(extra: float) -> int:
        origins = {o: float(v) for o, v in zip(("eu", "us", "ap"), load, strict=True)}
        origins["eu"] += extra
        found = one(snapshot(dict(zip(REGIONS, replicas, strict=True)), origins), origins).workloads[WEB].wanted
        assert found is not None
        return found

    assert wanted(0.0) <= wanted(float(more))


@pytest.mark.parametrize("drained", [False, True])
def test_what_claims_a_volume_moves_only_where_its_data_is(drained: bool) -> None:
    here: dict[str, int | Placement] = {**AWAY, "eu-1": placement("eu-1", 4, claims=("disk",))}
    states = {"eu-1": cluster_state("eu-1", drain=drained)}
    assert one(snapshot(here, {"ap": 36.0}, states=states), {"ap": 36.0}).actions == ()
    there = replace(POLICY, data={"eu-1": 0.5, "us-1": 0.5})
    found = one(snapshot(here, {"ap": 36.0}, states=states), {"ap": 36.0}, there)
    assert {a.target for a in found.actions} <= {"us-1"}
    assert bool(found.actions) == drained  # for the users in ap-1, us-1 is no better
