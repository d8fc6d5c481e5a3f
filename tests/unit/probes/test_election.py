"""Who probes: two agents of different zones, and one that leaves takes only its own place along."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.election import ElectionError, Endpoint, elect, read_endpoints, ready_endpoints

agents = st.dictionaries(st.integers(0, 30).map(lambda n: f"probe-{n}"), st.sampled_from(["", "z1", "z2", "z3"])).map(
    lambda found: [Endpoint(name, zone) for name, zone in found.items()]
)


@given(st.text(max_size=5), agents)
def test_two_are_elected_of_different_zones_where_there_are_such(key: str, found: list[Endpoint]) -> None:
    elected = elect(key, found)
    zone = {one.name: one.zone for one in found}
    assert len(elected) == len(set(elected)) == min(2, len(found))
    assert set(elected) <= set(zone)
    if len(set(zone.values())) > 1:
        assert len({zone[name] for name in elected}) == 2
    assert elect(key, list(reversed(found))) == elected, "the order of the list says nothing"


@given(st.text(max_size=5), agents.filter(bool), st.data())
def test_who_leaves_moves_only_its_own_place(key: str, found: list[Endpoint], data: st.DataObject) -> None:
    gone = data.draw(st.sampled_from(found))
    before, after = elect(key, found), elect(key, [one for one in found if one != gone])
    assert set(before) - {gone.name} <= set(after)
    if gone.name not in before:
        assert after == before


def test_the_choice_is_spread_over_the_agents() -> None:
    found = [Endpoint(f"probe-{n}") for n in range(10)]
    firsts = [elect(f"cluster-{n}", found, 1)[0] for n in range(1000)]
    assert all(60 < firsts.count(one.name) < 140 for one in found)


def test_the_ready_ones_of_all_slices_count_once() -> None:
    document = {
        "items": [
            {
                "endpoints": [
                    {
                        "addresses": ["10.0.0.1"],
                        "targetRef": {"name": "p1"},
                        "zone": "a",
                        "conditions": {"ready": True},
                    },
                    {"addresses": ["10.0.0.2"], "targetRef": {"name": "p2"}, "conditions": {"ready": False}},
                    {"addresses": ["10.0.0.3"]},
                ]
            },
            {"endpoints": [{"addresses": ["fd00::1"], "targetRef": {"name": "p1"}, "zone": "a"}]},
            {"endpoints": None},
        ]
    }
    assert ready_endpoints(document) == [Endpoint("10.0.0.3"), Endpoint("p1", "a")]


@pytest.mark.parametrize("document", [{}, [], None, {"items": [{"endpoints": [{"addresses": []}]}]}, {"items": 3}])
def test_another_answer_is_no_list(document: object) -> None:
    with pytest.raises(ElectionError, match="no EndpointSliceList"):
        ready_endpoints(document)


def test_outside_a_cluster_the_sentence_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ElectionError, match="KUBERNETES_SERVICE_HOST is not set"):
        read_endpoints("a/b")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    with pytest.raises(ElectionError, match="can't be asked"):
        read_endpoints("a/b", tmp_path)
