"""Every path state of the design (3.8), made by a real fault between real agents in network namespaces.

All faults run side by side in two small fleets, because a state needs the 30 s that an agent looks back. States that
one agent can know are read from its own table; those that take all vantage points are judged by the core from the
counters of the agents' /metrics, with the arithmetic of the recording rules.
"""

from __future__ import annotations

import contextlib
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from rebalancer.catalog import LOST_OUTCOMES, PATH_OUTCOMES
from rebalancer.core.network import LatencyMap, NetworkMemory, NetworkSettings, build_map, judge
from tests.stack.namespaces import UDP_PORT, Net, require_namespaces

pytestmark = pytest.mark.slow
AGENT = {"interval_s": 0.2, "flows": 64, "max_pps": 80}
DEADLINE_S = 120.0
Pair = tuple[str, str]
Counters = dict[tuple[str, str, str, str], float]
"""(short metric name or outcome, source, destination, proto) -> value."""
_LINE = re.compile(r"rebalancer_probe_(\w+)\{(.*)\} (\S+)")
_LABEL = re.compile(r'(\w+)="([^"]*)"')


def lose(net: Net, src: str, dst: str, flows: int, *, back: bool) -> None:
    """Some of the 64 source ports of `src` lose everything on one way: a bad link of an ECMP group."""
    for port in net.nodes[src].source_ports()[:flows]:
        if back:
            net.rule(dst, src, f"ipproto udp dport {port}")
        else:
            net.rule(src, dst, f"ipproto udp sport {port}")


def faults_of_links(net: Net) -> None:
    """One fault a link; every cluster keeps a good link, so that nobody's uplink is to blame."""
    lose(net, "a", "b", 13, back=False)
    lose(net, "b", "c", 2, back=True)
    for src, dst in (("a", "c"), ("c", "a")):
        net.rule(src, dst, "")
    net.rule("b", "d", "", "prohibit")
    net.rule("a", "d", "ipproto udp")
    net.nodes["e"].signal(signal.SIGKILL)
    node = net.nodes["d"]
    node.peers["c"]["labels"]["draining"] = "true"
    node.write_targets()


def faults_of_clusters(net: Net) -> None:
    net.nodes["s"].signal(signal.SIGSTOP)
    net.set_link("r", "down")


LINKS = ("a", "b", "c", "d", "e")
CLUSTERS = ("p", "q", "r", "s")
BY_AGENT = {
    ("a", "b"): "lossy", ("b", "a"): "ok", ("b", "c"): "lossy",
    ("a", "c"): "silent", ("c", "a"): "silent", ("c", "d"): "ok",
    ("b", "d"): "silent", ("a", "d"): "udp_blocked", ("d", "a"): "udp_blocked",
    ("a", "e"): "peer_down", ("c", "e"): "peer_down", ("d", "c"): "maintenance",
}  # fmt: skip
BY_CORE = BY_AGENT | {
    ("a", "c"): "path_down", ("c", "a"): "path_down", ("b", "d"): "path_down", ("d", "c"): "ok",
}  # fmt: skip
CLUSTERS_BY_AGENT = {
    ("p", "q"): "ok", ("q", "p"): "ok", ("r", "p"): "uplink_down", ("r", "q"): "uplink_down",
    ("p", "r"): "silent", ("q", "r"): "silent", ("p", "s"): "silent", ("q", "s"): "silent",
}  # fmt: skip
CLUSTERS_BY_CORE = {
    ("p", "q"): "ok", ("q", "p"): "ok", ("r", "p"): "uplink_down", ("r", "q"): "uplink_down",
    ("p", "r"): "cluster_down", ("q", "r"): "cluster_down", ("p", "s"): "cluster_down", ("q", "s"): "cluster_down",
}  # fmt: skip


def wait_for(condition: Callable[[], bool], what: Callable[[], object], deadline_s: float = DEADLINE_S) -> None:
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        with contextlib.suppress(OSError, KeyError):
            if condition():
                return
        time.sleep(0.2)  # a poll of other processes: there is nothing to await
    raise AssertionError(f"not within {deadline_s:.0f} s: {what()}")


@contextlib.contextmanager
def running(label: str, names: tuple[str, ...], folder: Path) -> Iterator[Net]:
    net = Net(label, names, folder)
    try:
        for node in net.nodes.values():
            node.start(**AGENT)
        wait_for(lambda: _all_ok(net), net.states)
        yield net
    finally:
        net.close()


@pytest.fixture(scope="module")
def links(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Net]:
    require_namespaces()
    with running("l", LINKS, tmp_path_factory.mktemp("links")) as net:
        faults_of_links(net)
        wait_for(lambda: agents_say(net, BY_AGENT), lambda: {pair: net.states().get(pair) for pair in BY_AGENT})
        yield net


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Net]:
    require_namespaces()
    with running("c", CLUSTERS, tmp_path_factory.mktemp("clusters")) as net:
        yield net


def _all_ok(net: Net) -> bool:
    states = net.states()
    return len(states) == len(net.nodes) * (len(net.nodes) - 1) and {state for state, _why in states.values()} == {"ok"}


def scrape(net: Net) -> Counters:
    """Counters and last replies of all agents that answer."""
    found: Counters = {}
    for node in net.nodes.values():
        for name, labels, value in _LINE.findall(node.get("/metrics") if node.answers else ""):
            words = dict(_LABEL.findall(labels))
            if "dst_cluster" in words and "le" not in words and "dst_addr" not in words:
                key = words.get("outcome", name)
                found[key, words["src_cluster"], words["dst_cluster"], words["proto"]] = float(value)
    return found


def record(before: Counters, after: Counters, now: float) -> dict[tuple[str, str, str, str], tuple[float, float]]:
    """What the recording rules make of two scrapes."""
    recorded: dict[str, dict[tuple[str, str, str], float]] = {}
    for src, dst, proto in {key[1:] for key in after}:
        path = (src, dst, proto)
        grown = {name: after[name, *path] - before.get((name, *path), 0.0) for name, *rest in after if (*rest,) == path}
        samples = sum(grown[name] for name in PATH_OUTCOMES)
        values = {"samples:increase2m": samples, "refused:increase2m": grown["refused"]}
        values["send_errors:increase2m"] = grown["send_error"]
        if samples > 0:
            values["loss:ratio2m"] = sum(grown[name] for name in LOST_OUTCOMES) / samples
            values["loss_forward:ratio2m"] = grown["lost_forward"] / samples
        if grown["rtt_seconds_count"] > 0:
            mean = grown["rtt_seconds_sum"] / grown["rtt_seconds_count"]
            values |= {"rtt_seconds:mean2m": mean, "rtt_seconds:p50_2m": mean}
        if ("last_ok_timestamp_seconds", *path) in after:
            values["last_ok_age_seconds:min"] = now - after["last_ok_timestamp_seconds", *path]
        for name, value in values.items():
            recorded.setdefault(name, {})[path] = value
    return {(name, *path): (value, 1.0) for name, values in recorded.items() for path, value in values.items()}


def latency(net: Net, before: Counters, maintenance: tuple[str, ...] = ()) -> LatencyMap:
    now = time.time()
    regions = {name: f"region-{name}" for name in net.nodes}
    return build_map(record(before, scrape(net), now), regions, now, maintenance=maintenance)


def agents_say(net: Net, expected: Mapping[Pair, str]) -> bool:
    states = net.states()
    return all(states.get(pair, ("none", ""))[0] == state for pair, state in expected.items())


def core_says(net: Net, before: Counters, expected: Mapping[Pair, str]) -> bool:
    cells = latency(net, before).cells
    return all((cells[pair].state, cells[pair].source) == (state, "direct") for pair, state in expected.items())


def test_every_fault_of_a_link_is_called_by_its_name(links: Net) -> None:
    states = links.states()
    assert "mostly on the way out" in states["a", "b"][1]
    assert "mostly on the way back" in states["b", "c"][1]
    assert "advertise 0.0.0.0:8620: reached by b" in links.nodes["a"].get("/healthz"), "its one open way in"
    before = scrape(links)
    expected = {pair: state for pair, state in BY_CORE.items() if pair != ("d", "c")}
    wait_for(
        lambda: core_says(links, before, expected),
        lambda: {pair: latency(links, before).cells[pair] for pair in expected},
    )
    for pair, cell in latency(links, before).cells.items():
        assert cell.rtt_mean_s is None if cell.down else cell.rtt_mean_s is None or cell.rtt_mean_s > 0, pair
    drained = latency(links, before, maintenance=("c",)).cells
    assert {drained[pair].state for pair in drained if "c" in pair} == {"maintenance"}


def test_loss_is_degraded_or_poor_by_its_share_and_a_clean_link_is_good(links: Net) -> None:
    before, begun_s = scrape(links), time.monotonic()
    expected = {("a", "b"): "poor", ("b", "c"): "degraded", ("c", "d"): "good"}

    def qualities() -> dict[Pair, str]:
        seen = latency(links, before)
        settings, now = NetworkSettings(), time.time()
        _first, _taints, memory = judge(seen, NetworkMemory(), settings, now)
        found, _taints, _memory = judge(seen, memory, settings, now + settings.enter_after_s)
        return {pair: found.get(pair, "none") for pair in expected}

    wait_for(lambda: qualities() == expected, qualities)
    wait_for(lambda: time.monotonic() - begun_s > 10.0, lambda: "enough time to see rates")
    cells, passed_s = latency(links, before).cells, time.monotonic() - begun_s
    out, back = cells["a", "b"], cells["b", "c"]
    assert out.samples > 2 * cells["c", "d"].samples, "a path that loses is looked at closer"
    for src in "abcd":
        sent = sum(cell.samples for (a, _b), cell in cells.items() if a == src)
        # What was under way at the first scrape (2 s and 3 s of grace) may settle within.
        assert sent <= AGENT["max_pps"] * (passed_s + 5.0), "never above the budget"
    assert out.loss == pytest.approx(13 / 64, abs=0.06)
    assert (out.loss_forward or 0.0) > 0.9 * (out.loss or 0.0)
    assert (back.loss_forward or 0.0) < 0.1 * (back.loss or 0.0)


def test_a_cut_uplink_is_a_send_error_within_5_s_then_named_on_both_sides(clusters: Net) -> None:
    begun = scrape(clusters)
    faults_of_clusters(clusters)

    def errors() -> float:
        now = scrape(clusters)
        return min(now["send_error", "r", peer, "udp"] - begun["send_error", "r", peer, "udp"] for peer in "pqs")

    wait_for(lambda: errors() >= 3, errors, 5.0)
    wait_for(lambda: agents_say(clusters, CLUSTERS_BY_AGENT), clusters.states)
    before = scrape(clusters)
    wait_for(lambda: core_says(clusters, before, CLUSTERS_BY_CORE), lambda: latency(clusters, before).cells)
    own = latency(clusters, before).cells["r", "p"]
    assert (own.loss, own.rtt_mean_s) == (None, None), "what could not be sent is no loss of the path"


def test_an_agent_that_was_stopped_calls_itself_sick(clusters: Net) -> None:
    node = clusters.nodes["p"]
    node.signal(signal.SIGSTOP)
    time.sleep(2.0)  # the fault itself: it must last longer than the lag that is called sick
    node.signal(signal.SIGCONT)
    wait_for(lambda: node.states()["q"][0] == "probe_sick", clusters.states, 10.0)
    assert 'rebalancer_probe_sick{src_cluster="p"} 1' in node.get("/metrics")


def test_what_never_answered_or_never_resolved_is_unknown_and_says_why(clusters: Net) -> None:
    node = clusters.nodes["q"]
    for peer, target in (("closed", f"10.77.99.9:{UDP_PORT}"), ("nameless", f"probe.invalid:{UDP_PORT}")):
        node.peers[peer] = {"targets": [target], "labels": {"cluster": peer}}
    node.write_targets()
    reasons = {"closed": "firewall", "nameless": "DNS"}
    wait_for(
        lambda: all(node.states()[p][0] == "unknown" and word in node.states()[p][1] for p, word in reasons.items()),
        clusters.states,
    )
    node.peers = {"nameless": node.peers["nameless"]}
    node.write_targets()
    wait_for(lambda: set(node.states()) == {"nameless"}, clusters.states)
    assert node.states()["nameless"][0] == "unknown", "with no name resolved the uplink is not to blame"
