"""The latency map and the quality of the network: unknown is not zero, nothing flaps, one link taints nobody."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rebalancer.core.network import (
    INTRA_REGION_RTT_S,
    Cell,
    Heritage,
    LatencyMap,
    NetworkMemory,
    NetworkSettings,
    Quality,
    build_map,
    judge,
    measured_cell,
    origin_rtt,
    undirected,
    wilson,
)

CLUSTERS = {"a": "eu", "b": "us", "c": "ap", "d": "eu"}
NOW = 1_700_000_000.0
Table = dict[tuple[str, str, str, str], tuple[float, float]]


def series(
    src: str, dst: str, *, rtt: float = 0.1, loss: float = 0.0, forward: float = 0.0, n: float = 120.0,
    age: float = 1.0, last_ok: float | None = 0.5, proto: str = "udp",
) -> Table:  # fmt: skip
    values = {
        "samples:increase2m": n, "loss:ratio2m": loss, "loss_forward:ratio2m": forward, "rtt_seconds:mean2m": rtt,
        "rtt_seconds:p50_2m": rtt, "rtt_seconds:p99_2m": 2 * rtt, "jitter_seconds:mean2m": rtt / 10,
    }  # fmt: skip
    if last_ok is not None:
        values["last_ok_age_seconds:min"] = last_ok
    return {(name, src, dst, proto): (value, age) for name, value in values.items()}


def full_mesh(**more: float) -> Table:
    return {k: v for s in CLUSTERS for d in CLUSTERS if s != d for k, v in series(s, d, **more).items()}  # type: ignore[arg-type]  # a test's shorthand


def without(table: Table, src: str, dst: str) -> Table:
    return {key: value for key, value in table.items() if key[1:3] != (src, dst)}


def test_a_measured_cell_has_everything_and_its_interval() -> None:
    cell = build_map(series("a", "b", loss=0.05, forward=0.04), CLUSTERS, NOW).cells["a", "b"]
    assert (cell.rtt_mean_s, cell.rtt_p99_s, cell.loss, cell.loss_forward) == (0.1, 0.2, 0.05, 0.04)
    assert cell.loss_low is not None
    assert cell.loss_high is not None
    assert cell.loss_low < 0.05 < cell.loss_high
    assert (cell.samples, cell.age_s, cell.state, cell.source, cell.proto) == (120, 1.5, "lossy", "direct", "udp")


def test_the_full_recorded_name_is_taken_too() -> None:
    table = {("pair:rebalancer_probe_" + k[0], *k[1:]): v for k, v in series("a", "b").items()}
    assert build_map(table, CLUSTERS, NOW).rtt_s("a", "b") == 0.1


def down(src: str, dst: str) -> Table:
    return {k: v for k, v in series(src, dst, loss=1.0, last_ok=90).items() if "rtt" not in k[0]}


def cut(*pairs: tuple[str, str]) -> Table:
    table = full_mesh()
    for src, dst in pairs:
        table = without(table, src, dst) | down(src, dst)
    return table


REFUSED: Table = {
    ("refused:increase2m", "a", "b", "udp"): (120.0, 1.0),
    ("samples:increase2m", "a", "b", "udp"): (0, 1),
}
FEW_REFUSED: Table = {("refused:increase2m", "a", "b", "udp"): (100.0, 1.0)}
NEVER: Table = {k: v for k, v in cut(("a", "b")).items() if k[:3] != ("last_ok_age_seconds:min", "a", "b")}


@pytest.mark.parametrize(
    ("sentence", "table", "dst", "state"),
    [
        ("only one way between two is cut", cut(("a", "b")), "b", "path_down"),
        ("nobody reaches d", cut(*((s, "d") for s in "abc"), *(("d", s) for s in "abc")), "d", "cluster_down"),
        ("a reaches nobody, others reach each other", cut(("a", "b"), ("a", "c"), ("a", "d")), "c", "uplink_down"),
        ("UDP is cut, TCP connects", cut(("a", "b")) | series("a", "b", proto="tcp", rtt=0.2), "b", "udp_blocked"),
        ("the host refuses", without(full_mesh(), "a", "b") | REFUSED, "b", "peer_down"),
        ("it refuses one a second, the rest is silence", cut(("a", "b")) | FEW_REFUSED, "b", "peer_down"),
        (
            "a firewall refuses UDP, TCP connects",
            cut(("a", "b")) | FEW_REFUSED | series("a", "b", proto="tcp"),
            "b",
            "udp_blocked",
        ),
    ],
)
def test_path_states_need_all_vantage_points(sentence: str, table: Table, dst: str, state: str) -> None:
    cell = build_map(table, CLUSTERS, NOW).cells["a", dst]
    assert (cell.state, cell.source) == (state, "direct"), sentence


def unsent(*pairs: tuple[str, str]) -> Table:
    table = full_mesh()
    for src, dst in pairs:
        table = without(table, src, dst)
        table |= {("samples:increase2m", src, dst, "udp"): (0, 1), ("send_errors:increase2m", src, dst, "udp"): (99, 1)}
        table |= {("last_ok_age_seconds:min", src, dst, "udp"): (90.0, 1.0)}
    return table


@pytest.mark.parametrize(
    ("sentence", "pairs", "state", "source"),
    [
        ("nothing can be sent to anybody", [("a", "b"), ("a", "c"), ("a", "d")], "uplink_down", "direct"),
        ("one route is missing, the others work", [("a", "b")], "ok", "reverse"),
        ("two are missing, one answers", [("a", "b"), ("a", "c")], "ok", "reverse"),
    ],
)
def test_what_can_t_be_sent_is_the_own_uplink_only_if_nobody_answers(
    sentence: str, pairs: list[tuple[str, str]], state: str, source: str
) -> None:
    latency = build_map(unsent(*pairs), CLUSTERS, NOW)
    cell = latency.cells["a", "b"]
    assert (cell.state, cell.source) == (state, source), sentence
    assert latency.cells["b", "c"].state == "ok", "who can't send is no witness of the others"
    if source == "direct":
        assert (cell.loss, cell.rtt_mean_s) == (None, None)
        qualities, taints, _memory = judge(latency, NetworkMemory(), SETTINGS, NOW)
        assert taints == {}
        assert set(qualities.values()) <= {"good"}, "it says nothing about loss"


def test_who_can_t_send_is_no_witness_that_another_cluster_is_down() -> None:
    names = {"a": "eu", "b": "us", "c": "ap"}
    table = {key: value for key, value in unsent(("a", "b"), ("a", "c")).items() if "d" not in key[1:3]}
    table = {key: value for key, value in table.items() if key[1:3] not in (("b", "c"), ("c", "b"))}
    table = {key: value for key, value in table.items() if key[2] != "a"}
    latency = build_map(table | down("b", "c"), names, NOW)
    assert latency.cells["a", "c"].state == "uplink_down"
    assert latency.cells["b", "c"].state == "path_down"


@pytest.mark.slow
def test_two_hundred_clusters_of_which_many_are_down_are_told_apart_in_time() -> None:
    names = {f"c{n}": f"r{n % 20}" for n in range(200)}
    table: Table = {}
    for src in names:
        for dst in names:
            if src != dst:
                dead = int(dst[1:]) < 30 or int(src[1:]) < 30
                table |= down(src, dst) if dead else series(src, dst)
    latency = build_map(table, names, NOW)
    states = Counter(cell.state for cell in latency.cells.values())
    assert states == {"ok": 170 * 169, "uplink_down": 30 * 199, "cluster_down": 170 * 30}


def test_a_path_that_never_answered_is_no_down_path() -> None:
    cell = build_map(NEVER, CLUSTERS, NOW).cells["a", "b"]
    assert cell.source == "reverse", "nothing is known of its own"


def test_tcp_feeds_a_cell_without_loss() -> None:
    cell = build_map(down("a", "b") | series("a", "b", proto="tcp", rtt=0.2), CLUSTERS, NOW).cells["a", "b"]
    assert (cell.proto, cell.rtt_mean_s, cell.loss, cell.state) == ("tcp", 0.2, None, "udp_blocked")


def test_a_draining_peer_is_not_judged_and_keeps_its_value() -> None:
    cell = build_map(series("a", "b", loss=1.0), CLUSTERS, NOW, maintenance={"b"}).cells["a", "b"]
    assert (cell.state, cell.rtt_mean_s, cell.loss, cell.judged) == ("maintenance", 0.1, None, False)


@pytest.mark.parametrize(
    ("sentence", "age", "rtt", "state"),
    [
        ("fresh", 10.0, 0.1, "ok"),
        ("stale: the last value stays, nothing is judged", 600.0, 0.1, "unknown"),
        ("older than an hour: nothing stays", 3700.0, None, "unknown"),
        ("no age at all", math.nan, None, "unknown"),
    ],
)
def test_ageing(sentence: str, age: float, rtt: float | None, state: str) -> None:
    cell = build_map(series("a", "b", age=age), {"a": "eu", "b": "us"}, NOW).cells["a", "b"]
    assert (cell.rtt_mean_s, cell.state) == (rtt, state), sentence
    assert cell.loss == (0.0 if state == "ok" else None)


def test_a_missing_cell_takes_the_reverse_one_with_its_directions_swapped() -> None:
    cell = build_map(series("b", "a", loss=0.05, forward=0.04), CLUSTERS, NOW).cells["a", "b"]
    assert (cell.source, cell.rtt_mean_s, cell.loss) == ("reverse", 0.1, 0.05)
    assert cell.loss_forward == pytest.approx(0.01)


def test_a_fresh_reverse_cell_is_better_than_an_old_direct_one_and_that_than_the_region() -> None:
    old = series("a", "b", rtt=0.3, age=900.0)
    assert build_map(old | series("b", "a", rtt=0.1), CLUSTERS, NOW).cells["a", "b"].source == "reverse"
    cell = build_map(old | series("d", "b", rtt=0.1), CLUSTERS, NOW).cells["a", "b"]
    assert (cell.source, cell.rtt_mean_s, cell.state) == ("direct", 0.3, "unknown")


def test_then_the_region_pair_without_its_loss() -> None:
    cell = build_map(series("a", "b", rtt=0.08), CLUSTERS, NOW).cells["d", "b"]
    assert (cell.source, cell.rtt_mean_s, cell.loss, cell.state, cell.judged) == (
        "region",
        0.08,
        None,
        "unknown",
        False,
    )


def test_a_region_s_value_has_the_spread_of_its_pairs_or_the_own_offset_as_error() -> None:
    five = CLUSTERS | {"e": "us"}
    near = series("d", "a", rtt=0.002)
    cell = build_map(series("a", "b", rtt=0.08) | near, five, NOW).cells["d", "b"]
    assert (cell.source, cell.rtt_mean_s, cell.error_s) == ("region", 0.08, 0.002)
    cell = build_map(series("a", "b", rtt=0.08) | series("a", "e", rtt=0.1) | near, five, NOW).cells["d", "b"]
    assert cell.rtt_mean_s == pytest.approx(0.09)
    assert cell.error_s == pytest.approx(0.01)
    assert build_map(series("a", "b"), CLUSTERS, NOW).cells["a", "b"].error_s is None, "a measured value has none"


def test_last_comes_the_triangle_over_common_neighbours_and_it_places_nothing() -> None:
    table = series("a", "b", rtt=0.08) | series("c", "b", rtt=0.2)
    latency = build_map(table, {"a": "eu", "b": "us", "c": "ap"}, NOW)
    cell = latency.cells["a", "c"]
    assert (cell.source, cell.state, cell.judged, cell.loss) == ("predicted", "unknown", False, None)
    assert cell.rtt_mean_s == pytest.approx(0.2)
    assert cell.error_s == pytest.approx(0.08), "between 120 and 280 ms"
    assert latency.rtt_s("a", "c") is None, "it only ranks"
    assert origin_rtt(latency, {"a": "eu", "b": "us", "c": "ap"}, "eu", "c") is None


def test_more_neighbours_narrow_the_prediction() -> None:
    names = {"a": "eu", "b": "us", "c": "ap", "d": "sa"}
    two = series("a", "b", rtt=0.08) | series("c", "b", rtt=0.2) | series("a", "d", rtt=0.3)
    cell = build_map(two | series("d", "c", rtt=0.05), names, NOW).cells["a", "c"]
    assert cell.rtt_mean_s == pytest.approx(0.265), "at least 250 ms by d, at most 280 by b"
    assert cell.error_s == pytest.approx(0.015)


points = st.dictionaries(
    st.sampled_from("abcdefgh"), st.tuples(st.floats(0, 0.2), st.floats(0, 0.2)), min_size=2, max_size=8
)


@given(points, st.sets(st.tuples(st.sampled_from("abcdefgh"), st.sampled_from("abcdefgh"))), st.booleans())
def test_where_the_triangle_inequality_holds_the_truth_is_within_the_error(
    place: dict[str, tuple[float, float]], known: set[tuple[str, str]], own_regions: bool
) -> None:
    def truth(x: str, y: str) -> float:
        return 0.001 + math.dist(place[x], place[y])

    regions = {name: name if own_regions else "one" for name in place}
    measured = {(x, y): truth(x, y) for x, y in known if x in place and y in place and x != y}
    table = {key: value for pair, rtt in measured.items() for key, value in series(*pair, rtt=rtt).items()}
    latency = build_map(table, regions, NOW)
    for (src, dst), cell in latency.cells.items():
        swapped = latency.cells[dst, src]
        assert cell.rtt_mean_s == pytest.approx(swapped.rtt_mean_s) if cell.rtt_mean_s else swapped.rtt_mean_s is None
        if (src, dst) in measured:
            assert (cell.source, cell.error_s) == ("direct", None)
        elif (dst, src) in measured:
            assert (cell.source, cell.error_s) == ("reverse", None)
        elif cell.rtt_mean_s is not None:
            assert cell.source == ("predicted" if own_regions else "region")
            assert cell.error_s is not None
            assert not cell.judged
            if own_regions:
                assert abs(cell.rtt_mean_s - truth(src, dst)) <= cell.error_s + 1e-9
        else:
            assert cell == Cell()


def test_two_hundred_clusters_with_holes_are_mapped_in_time() -> None:
    rng = random.Random(3)
    names = [f"c{n}" for n in range(200)]
    measured = {(a, b): rng.uniform(0.001, 0.3) for a in names for b in names if a != b and rng.random() < 0.3}
    heritage = Heritage(measured, {name: name for name in names})
    found = [heritage.predicted(a, b) for a in names for b in names if a != b and (a, b) not in measured]
    assert sum(one is not None for one in found) > 20_000


def test_a_down_path_is_never_replaced_by_a_guess() -> None:
    latency = build_map(without(full_mesh(), "a", "b") | down("a", "b"), CLUSTERS, NOW)
    assert latency.rtt_s("a", "b") is None
    assert latency.loss("a", "b") == 1.0


values = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True), st.sampled_from([0.0, 1.0, -1.0, math.nan, math.inf])
)
names = st.sampled_from([key[0] for key in series("a", "b")] + ["refused:increase2m", "send_errors:increase2m"])


@given(
    st.dictionaries(
        st.tuples(names, st.sampled_from("abx"), st.sampled_from("abx"), st.sampled_from(["udp", "tcp"])),
        st.tuples(values, values),
    )
)
def test_whatever_comes_unknown_is_not_zero(table: Table) -> None:
    latency = build_map(table, {"a": "eu", "b": "us"}, NOW)
    assert set(latency.cells) == {("a", "b"), ("b", "a")}
    for cell in latency.cells.values():
        for value in (cell.rtt_mean_s, cell.rtt_p50_s, cell.rtt_p99_s, cell.jitter_s, cell.loss, cell.loss_forward):
            assert value is None or (math.isfinite(value) and value >= 0)
        if cell.loss is not None:
            assert cell.samples > 0
            assert cell.loss_low is not None
            assert cell.loss_high is not None
            assert cell.loss_low <= cell.loss + 1e-9
            assert cell.loss_high >= cell.loss - 1e-9
        if cell.down:
            assert cell.rtt_mean_s is None


def test_an_empty_answer_is_all_unknown() -> None:
    latency = build_map({}, CLUSTERS, NOW)
    assert len(latency.cells) == 12
    assert all(cell == Cell() for cell in latency.cells.values())
    assert latency.rtt_s("a", "b") is None
    assert latency.loss("a", "b") is None
    assert latency.rtt_s("a", "unheard-of") is None


@given(st.floats(0, 1), st.floats(1, 1e6), st.floats(1, 1e3))
def test_the_interval_holds_the_ratio_and_narrows_with_samples(loss: float, n: float, factor: float) -> None:
    low, high = wilson(loss, n)
    assert 0 <= low <= loss + 1e-12
    assert loss - 1e-12 <= high <= 1
    low2, high2 = wilson(loss, n * factor)
    assert high2 - low2 <= high - low + 1e-12


def test_zero_of_120_bounds_loss_only_to_three_percent() -> None:
    assert wilson(0.0, 120)[1] == pytest.approx(0.031, abs=0.001)
    assert wilson(0.0, 381)[1] < 0.01
    assert wilson(0.0, 0) == (0.0, 1.0)


def test_users_are_at_the_nearest_cluster_of_their_region() -> None:
    latency = build_map(series("a", "b", rtt=0.09) | series("d", "b", rtt=0.07), CLUSTERS, NOW)
    assert origin_rtt(latency, CLUSTERS, "eu", "b") == 0.07
    assert origin_rtt(latency, CLUSTERS, "eu", "a") == INTRA_REGION_RTT_S
    assert origin_rtt(latency, CLUSTERS, "us", "a") == 0.09, "the reverse direction is a measurement"
    assert origin_rtt(latency, CLUSTERS, "ap", "b") is None
    assert origin_rtt(latency, CLUSTERS, "mars", "b") is None


# --- quality ---

SETTINGS = NetworkSettings()


def fleet(cells: dict[tuple[str, str], Cell]) -> LatencyMap:
    return LatencyMap(cells, CLUSTERS)


def play(
    losses: Sequence[float | None], settings: NetworkSettings = SETTINGS, step_s: float = 10.0, n: float = 1200.0
) -> list[Quality | None]:
    """Judges one pair over a sequence of losses (None: unknown)."""
    memory = NetworkMemory()
    found: list[Quality | None] = []
    for index, loss in enumerate(losses):
        cell = Cell() if loss is None else measured_cell(0.1, loss=loss, samples=n)
        qualities, _taints, memory = judge(fleet({("a", "b"): cell}), memory, settings, NOW + index * step_s)
        found.append(qualities.get(("a", "b")))
    return found


def test_poor_is_entered_after_a_minute_and_left_after_five() -> None:
    found = play([0.2] * 12 + [0.0] * 60)
    assert found[:6] == ["good"] * 6
    assert found[6] == "poor"
    assert found[12 + 29] == "poor"
    assert found[12 + 31] == "good"


def test_at_one_probe_per_second_two_minutes_are_not_enough_to_be_sure() -> None:
    found = play([0.2] * 12 + [0.0] * 60, n=120)
    assert "degraded" in found[12:], "below 5 % is sure before below 1 % is"
    assert found[-1] == "good", "a longer clean run is"


def test_a_short_burst_is_no_state() -> None:
    assert set(play([0.0] * 5 + [0.5] * 5 + [0.0] * 10)) == {"good"}


def test_unknown_neither_enters_nor_leaves() -> None:
    assert set(play([None] * 20)) == {None}
    found = play([0.2] * 10 + [None] * 200)
    assert set(found[10:]) == {"poor"}
    found = play([0.2] * 10 + [None] * 200 + [0.0])
    assert found[-1] == "poor", "one good value after a long silence is no clean run"


@given(st.lists(st.one_of(st.none(), st.floats(0, 1)), min_size=1, max_size=80), st.sampled_from([30.0, 120.0, 1200.0]))
def test_a_pair_changes_only_while_it_is_seen_and_never_flaps(losses: list[float | None], n: float) -> None:
    found = play(losses, n=n)
    changes = [i for i in range(1, len(found)) if found[i] != found[i - 1] and found[i - 1] is not None]
    for index in changes:
        assert losses[index] is not None
    rank = {"good": 0, "degraded": 1, "poor": 2, None: 0}
    falls = [i for i in changes if rank[found[i]] < rank[found[i - 1]]]
    for index in falls:
        recent = losses[max(0, index - 30) : index + 1]
        assert all(loss is None or loss < SETTINGS.poor_loss for loss in recent), "left only after a clean run"


@given(st.lists(st.floats(0, 0.5), min_size=1, max_size=60), st.floats(0, 0.5))
def test_more_loss_never_gives_a_better_state_at_first_entry(losses: list[float], more: float) -> None:
    rank = {"good": 0, "degraded": 1, "poor": 2, None: 0}
    worst = max(rank[q] for q in play(losses))
    worst_more = max(rank[q] for q in play([min(1.0, loss + more) for loss in losses]))
    assert worst_more >= worst


def test_noise_around_the_threshold_does_not_flap() -> None:
    rng = random.Random(7)
    losses: list[float | None] = [sum(rng.random() < 0.05 for _ in range(120)) / 120 for _ in range(720)]
    found = play(losses, n=120)
    assert sum(a != b for a, b in zip(found[1:], found, strict=False)) <= 3, "two hours exactly at the threshold"


def test_the_worse_direction_counts() -> None:
    memory = NetworkMemory()
    cells = {("a", "b"): measured_cell(0.1), ("b", "a"): measured_cell(0.1, loss=0.2)}
    for step in range(8):
        qualities, _taints, memory = judge(fleet(cells), memory, SETTINGS, NOW + 10 * step)
    assert qualities == {("a", "b"): "poor"}


def test_a_slow_path_needs_its_usual_time() -> None:
    cells = {("a", "b"): measured_cell(0.4)}
    for usual, expected in ((None, "good"), (0.1, "poor"), (0.25, "degraded"), (0.39, "good")):
        memory = NetworkMemory()
        known = {} if usual is None else {("a", "b"): usual}
        for step in range(8):
            qualities, _t, memory = judge(fleet(cells), memory, SETTINGS, NOW + 10 * step, usual_rtt_s=known)
        assert qualities["a", "b"] == expected, usual


def mesh(bad: set[tuple[str, str]], hidden: set[str] = frozenset(), loss: float = 0.2) -> LatencyMap:  # type: ignore[assignment]  # an empty default
    return fleet(
        {
            (s, d): Cell() if {s, d} & hidden else measured_cell(0.1, loss=loss if undirected(s, d) in bad else 0.0)
            for s in CLUSTERS for d in CLUSTERS if s != d
        }
    )  # fmt: skip


def settle(
    latency: LatencyMap, memory: NetworkMemory, start: float, steps: int = 40
) -> tuple[dict[str, str], NetworkMemory]:
    taints: dict[str, str] = {}
    for step in range(steps):
        _q, found, memory = judge(latency, memory, SETTINGS, start + 10 * step)
        taints = dict(found)
    return taints, memory


@pytest.mark.parametrize(
    ("sentence", "bad", "taints"),
    [
        ("one bad link taints nobody", {("a", "b")}, {}),
        ("two of three links taint their cluster", {("a", "b"), ("a", "c")}, {"a": "poor"}),
        ("all links of one cluster", {("a", "b"), ("a", "c"), ("a", "d")}, {"a": "poor"}),
        ("a triangle taints its three", {("a", "b"), ("a", "c"), ("b", "c")}, {"a": "poor", "b": "poor", "c": "poor"}),
    ],
)
def test_taints(sentence: str, bad: set[tuple[str, str]], taints: dict[str, str]) -> None:
    assert settle(mesh(bad), NetworkMemory(), NOW)[0] == taints, sentence


def test_three_percent_taints_degraded() -> None:
    assert settle(mesh({("a", "b"), ("a", "c")}, loss=0.03), NetworkMemory(), NOW)[0] == {"a": "degraded"}


def test_a_taint_stays_while_its_cluster_is_out_of_sight_and_goes_after_recovery() -> None:
    taints, memory = settle(mesh({("a", "b"), ("a", "c")}), NetworkMemory(), NOW)
    assert taints == {"a": "poor"}
    taints, memory = settle(mesh(set(), hidden={"a"}), memory, NOW + 400)
    assert taints == {"a": "poor"}
    taints, memory = settle(mesh(set()), memory, NOW + 800, steps=70)
    assert taints == {}


def test_a_cluster_that_left_takes_its_taint_along() -> None:
    _taints, memory = settle(mesh({("a", "b"), ("a", "c")}), NetworkMemory(), NOW)
    _q, taints, memory = judge(fleet({("b", "c"): measured_cell(0.1)}), memory, SETTINGS, NOW + 500)
    assert taints == {}
    assert set(memory.pairs) == {("b", "c")}


def test_weights_say_which_links_matter() -> None:
    bad = {("a", "b"), ("a", "c")}
    heavy_good = {("a", "d"): 10.0, ("a", "b"): 1.0, ("a", "c"): 1.0}
    memory = NetworkMemory()
    for step in range(10):
        _q, taints, memory = judge(mesh(bad), memory, SETTINGS, NOW + 10 * step, weights=heavy_good)
    assert taints == {}
