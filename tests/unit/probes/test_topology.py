"""Whom an agent probes: everybody in a small fleet; in a big one every region stays connected by few paths."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from probes.targets import Target
from probes.topology import choose, representatives

fleets = st.dictionaries(
    st.integers(0, 60).map(lambda n: f"c{n}"), st.sampled_from(["", "eu", "us", "ap", "sa"]), min_size=1
)


def targets(fleet: dict[str, str], draining: frozenset[str] = frozenset()) -> list[Target]:
    return [Target(name, region, f"{name}.example", 1, name in draining) for name, region in sorted(fleet.items())]


def mesh(fleet: dict[str, str], limit: int, draining: frozenset[str] = frozenset()) -> set[tuple[str, str]]:
    everybody = targets(fleet, draining)
    return {(name, t.cluster) for name, region in fleet.items() for t in choose(everybody, name, region, limit)}


@given(fleets)
def test_a_small_fleet_is_a_full_mesh(fleet: dict[str, str]) -> None:
    assert mesh(fleet, limit=len(fleet)) == {(a, b) for a in fleet for b in fleet if a != b}


@given(fleets)
def test_a_big_fleet_measures_every_pair_of_regions_and_every_cluster_from_both_sides(fleet: dict[str, str]) -> None:
    probed = mesh(fleet, limit=0)
    assert probed == {(b, a) for a, b in probed}, "whoever is probed probes back"
    speakers = representatives(fleet.items())
    for rank in (0, 1):
        names = {of[rank] for of in speakers.values()}
        assert {(a, b) for a in names for b in names if a != b} <= probed
        for cluster, region in fleet.items():
            of = speakers[region or f"\0{cluster}"][rank]
            assert cluster == of or (cluster, of) in probed
    assert len(probed) <= 2 * len(speakers) * (len(speakers) - 1) + 4 * len(fleet)


@given(fleets, st.data())
def test_whichever_cluster_dies_the_others_regions_stay_connected(fleet: dict[str, str], data: st.DataObject) -> None:
    dead = data.draw(st.sampled_from(sorted(fleet)))
    region_of = {name: region or f"\0{name}" for name, region in fleet.items()}
    alive = {(region_of[a], region_of[b]) for a, b in mesh(fleet, limit=0) if dead not in (a, b)}
    left = {region for name, region in region_of.items() if name != dead}
    assert {(a, b) for a in left for b in left if a != b} <= alive


@given(fleets, st.data())
def test_a_cluster_that_leaves_changes_only_what_it_represented(fleet: dict[str, str], data: st.DataObject) -> None:
    gone = data.draw(st.sampled_from(sorted(fleet)))
    before = representatives(fleet.items())
    after = representatives((name, region) for name, region in fleet.items() if name != gone)
    for region, chosen in after.items():
        assert chosen == before[region] or gone in before[region]


def test_a_draining_cluster_represents_nobody_while_its_region_has_another() -> None:
    fleet = {"a": "eu", "b": "eu", "c": "us", "d": "us"}
    first, other = representatives(fleet.items())["eu"]
    of_us = representatives(fleet.items())["us"]
    probed = mesh(fleet, limit=0, draining=frozenset({first}))
    assert {(cluster, other) for cluster in of_us} <= probed
    assert not {(cluster, first) for cluster in of_us} & probed
    alone = mesh({"a": "eu", "c": "us"}, limit=0, draining=frozenset({"a"}))
    assert ("c", "a") in alone, "the only one stays what it is"


def test_a_thousand_clusters_in_forty_regions_are_few_paths() -> None:
    fleet = {f"c{n}": f"r{n % 40}" for n in range(1000)}
    everybody = targets(fleet)
    speaker, standby = representatives(fleet.items())["r0"]
    assert len(choose(everybody, speaker, "r0")) == len(choose(everybody, standby, "r0")) == 39 + 24
    follower = next(name for name, region in fleet.items() if region == "r0" and name not in (speaker, standby))
    assert {t.cluster for t in choose(everybody, follower, "r0")} == {speaker, standby}
