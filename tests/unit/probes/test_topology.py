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
    speaker = representatives(fleet.items())
    names = set(speaker.values())
    assert {(a, b) for a in names for b in names if a != b} <= probed
    for cluster, region in fleet.items():
        of = speaker[region or f"\0{cluster}"]
        assert cluster == of or (cluster, of) in probed
    assert len(probed) <= len(names) * (len(names) - 1) + 2 * (len(fleet) - len(names))


@given(fleets, st.data())
def test_a_cluster_that_leaves_changes_only_what_it_represented(fleet: dict[str, str], data: st.DataObject) -> None:
    gone = data.draw(st.sampled_from(sorted(fleet)))
    before = representatives(fleet.items())
    after = representatives((name, region) for name, region in fleet.items() if name != gone)
    for region, cluster in after.items():
        assert cluster == before[region] or before[region] == gone


def test_a_draining_cluster_represents_nobody_while_its_region_has_another() -> None:
    fleet = {"a": "eu", "b": "eu", "c": "us", "d": "us"}
    first = representatives(fleet.items())["eu"]
    other = "b" if first == "a" else "a"
    of_us = representatives(fleet.items())["us"]
    probed = mesh(fleet, limit=0, draining=frozenset({first}))
    assert (of_us, other) in probed
    assert (of_us, first) not in probed
    alone = mesh({"a": "eu", "c": "us"}, limit=0, draining=frozenset({"a"}))
    assert ("c", "a") in alone, "the only one stays what it is"


def test_a_thousand_clusters_in_forty_regions_are_few_paths() -> None:
    fleet = {f"c{n}": f"r{n % 40}" for n in range(1000)}
    everybody = targets(fleet)
    speaker = representatives(fleet.items())["r0"]
    assert len(choose(everybody, speaker, "r0")) == 39 + 24
    follower = next(name for name, region in fleet.items() if region == "r0" and name != speaker)
    assert [t.cluster for t in choose(everybody, follower, "r0")] == [speaker]
