"""How probes settle: against a simulated wire whose truth is known."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.session import Answer, Direction, PathSession, Pending
from probes.stats import OUTCOME_INDEX, PeerStats

NEVER = float("-inf")


def answer(session: PathSession, seq: int, reply: Answer) -> bool:
    probe = session.pending(seq)
    return probe is not None and session.answered(probe, reply)


@dataclass
class Wire:
    """A path with known losses: sends at 10 pps, reflects with its own numbers, delivers in time order."""

    forward: float = 0.0
    backward: float = 0.0
    dup_forward: float = 0.0
    dup_backward: float = 0.0
    reorder: float = 0.0
    seed: int = 1
    rtt_s: float = 0.02
    truth: dict[str, int] = field(default_factory=lambda: {"forward": 0, "backward": 0})

    def run(self, count: int, outages: tuple[tuple[int, int, str], ...] = ()) -> PeerStats:
        rng = random.Random(self.seed)
        stats = PeerStats()
        session = PathSession(1, stats)
        arrivals: list[tuple[float, int]] = []
        for seq in range(count):
            dead = {kind for first, last, kind in outages if first <= seq < last}
            if rng.random() < self.forward or "forward" in dead:
                self.truth["forward"] += 1
                continue
            delay = self.rtt_s / 2 + (0.15 if rng.random() < self.reorder else 0)
            arrivals.append((seq * 0.1 + delay, seq))
            if rng.random() < self.dup_forward:
                arrivals.append((seq * 0.1 + delay + 0.001, seq))
        replies: list[tuple[float, int, int, float]] = []
        answered: set[int] = set()
        for number, (at, seq) in enumerate(sorted(arrivals)):
            dead = {kind for first, last, kind in outages if first <= seq < last}
            if rng.random() < self.backward or "backward" in dead:
                continue
            answered.add(seq)
            replies.append((at + self.rtt_s / 2, seq, number, at))
            if rng.random() < self.dup_backward:
                replies.append((at + self.rtt_s / 2 + 0.001, seq, number, at))
        self.truth["backward"] = len({seq for _, seq in arrivals}) - len(answered)
        replies.sort()
        self._play(session, count, replies)
        return stats

    @staticmethod
    def _play(session: PathSession, count: int, replies: list[tuple[float, int, int, float]]) -> None:
        cursor = 0
        for tick in range(count + 100):
            now = tick * 0.1
            while cursor < len(replies) and replies[cursor][0] <= now:
                at, seq, number, t2 = replies[cursor]
                answer(session, seq, Answer(number, t2, 0, int(at * 1e9), at))
                cursor += 1
            if tick < count:
                session.sent(Pending(tick, tick % 13, tick, int(now * 1e9), now))
            session.expire(now, NEVER)
        assert len(session.under_way) == 0, "nothing stays pending"


def outcome(stats: PeerStats, name: str) -> int:
    return stats.outcomes[OUTCOME_INDEX[name]]


@pytest.mark.parametrize(
    ("sentence", "wire", "slack"),
    [
        ("0.1 % both ways", Wire(forward=0.001, backward=0.001), 0),
        ("1 % forward", Wire(forward=0.01), 0),
        ("5 % backward", Wire(backward=0.05), 0),
        ("20 % both ways", Wire(forward=0.2, backward=0.2), 0),
        ("2 % forward and 0.2 % back", Wire(forward=0.02, backward=0.002), 0),
        ("1 % with 5 % reordered by 150 ms", Wire(forward=0.01, backward=0.01, reorder=0.05), 4),
        ("1 % with 5 % duplicated", Wire(forward=0.01, backward=0.005, dup_forward=0.05, dup_backward=0.05), 10),
    ],
)
def test_loss_is_the_truth_with_its_direction(sentence: str, wire: Wire, slack: int) -> None:
    stats = wire.run(20_000)
    lost = [outcome(stats, f"lost_{kind}") for kind in ("forward", "backward", "unknown")]
    assert sum(lost) == sum(wire.truth.values()), sentence
    assert lost[2] <= 2, "only what was lost before the first and after the last answer has no direction"
    assert abs(lost[0] - wire.truth["forward"]) <= slack + lost[2], sentence
    assert sum(stats.outcomes) == 20_000, "every probe settles once"


@pytest.mark.parametrize(
    ("sentence", "outage", "kind"),
    [
        ("a short burst on the way out", (500, 510, "forward"), "lost_forward"),
        ("a short burst on the way back", (500, 510, "backward"), "lost_backward"),
        ("an outage longer than the grace has no direction in its first part", (500, 600, "backward"), "lost_unknown"),
    ],
)
def test_bursts(sentence: str, outage: tuple[int, int, str], kind: str) -> None:
    stats = Wire().run(1000, outages=(outage,))
    assert outcome(stats, kind) >= 0.5 * (outage[1] - outage[0]), sentence
    assert outcome(stats, "ok") == 1000 - (outage[1] - outage[0])


def test_what_follows_a_long_outage_is_not_blamed_on_it() -> None:
    wire = Wire()
    stats = wire.run(2000, outages=((500, 600, "backward"), (1000, 1050, "forward"), (1500, 1510, "forward")))
    assert outcome(stats, "lost_forward") >= 30, "forward losses after a backward outage stay forward"
    assert outcome(stats, "lost_backward") <= 60


@given(
    st.floats(0, 0.5), st.floats(0, 0.5), st.floats(0, 0.3), st.floats(0, 0.3), st.floats(0, 0.3), st.integers(0, 999)
)
def test_every_probe_settles_exactly_once_whatever_the_wire_does(
    forward: float, backward: float, dup_f: float, dup_b: float, reorder: float, seed: int
) -> None:
    wire = Wire(forward, backward, dup_f, dup_b, reorder, seed)
    stats = wire.run(300)
    assert sum(stats.outcomes) == 300
    assert outcome(stats, "ok") == 300 - sum(wire.truth.values())
    assert sum(stats.buckets) == stats.rtt_count == outcome(stats, "ok")


def one_probe(t1_ns: int = 10**18, m1_s: float = 100.0) -> tuple[PathSession, PeerStats]:
    stats = PeerStats()
    session = PathSession(1, stats)
    session.sent(Pending(0, 0, 0, t1_ns, m1_s))
    return session, stats


@pytest.mark.parametrize("step_s", [3600, -3600, 0.5, -0.5])
def test_a_clock_step_never_makes_a_bad_sample(step_s: float) -> None:
    session, stats = one_probe()
    stepped = answer(session, 0, Answer(0, 0.0, 0, 10**18 + int((step_s + 0.02) * 1e9), 100.0201))
    assert stepped
    assert stats.rtt_sum_s == pytest.approx(0.0201)


def test_the_reflector_s_turnaround_is_no_part_of_the_round_trip() -> None:
    session, stats = one_probe()
    answer(session, 0, Answer(0, 0.0, 15_000_000, 10**18 + 20_000_000, 100.0203))
    assert stats.rtt_sum_s == pytest.approx(0.005)


def test_an_answer_after_the_timeout_is_late_and_no_round_trip_time() -> None:
    session, stats = one_probe()
    session.expire(102.5, NEVER)
    answer(session, 0, Answer(0, 0.0, 0, 10**18 + 2_600_000_000, 102.6))
    session.expire(110.0, NEVER)
    assert (outcome(stats, "late"), stats.rtt_count, sum(stats.outcomes)) == (1, 0, 1)


def test_own_drops_are_never_path_loss() -> None:
    session, stats = one_probe()
    session.expire(110.0, own_drop_s=100.5)
    assert (outcome(stats, "self_drop"), sum(stats.outcomes)) == (1, 1)


def test_a_drop_before_the_probe_was_sent_excuses_nothing() -> None:
    session, stats = one_probe()
    session.expire(110.0, own_drop_s=99.0)
    assert outcome(stats, "lost_unknown") == 1


def test_an_icmp_error_settles_the_probe_it_names_once() -> None:
    session, stats = one_probe()
    session.failed(0, "refused")
    session.failed(0, "refused")
    session.expire(110.0, NEVER)
    assert (outcome(stats, "refused"), sum(stats.outcomes)) == (1, 1)


def test_a_restarted_reflector_opens_a_new_epoch() -> None:
    stats = PeerStats()
    session = PathSession(1, stats)
    for seq in range(200):
        now = seq * 0.1
        session.sent(Pending(seq, 0, 0, int(now * 1e9), now))
        number = seq if seq < 100 else seq - 110
        if not 100 <= seq < 110:
            answer(session, seq, Answer(number, now, 0, int((now + 0.001) * 1e9), now + 0.001))
        session.expire(now, NEVER)
    session.expire(100.0, NEVER)
    assert outcome(stats, "lost_unknown") == 10
    assert outcome(stats, "lost_backward") == outcome(stats, "lost_forward") == 0


@given(st.permutations(range(1, 30)), st.sets(st.integers(1, 29)), st.sets(st.integers(1, 29)))
def test_whatever_the_order_each_hole_below_the_closed_answers_counts_once(
    order: list[int], lost: set[int], closing: set[int]
) -> None:
    direction = Direction()
    direction.see(0, 0.0, False)
    back = [number for number in order if number not in lost]
    closed = 0
    for number in back:
        direction.see(number, 0.0, False)
        if number in closing:
            direction.close(number)
            closed = max(closed, number)
    assert direction.split(1000) == sum(number not in back for number in range(1, closed + 1))


def test_silence_of_a_peer_with_other_keys_is_no_loss() -> None:
    session = PathSession(1, PeerStats())
    session.sent(Pending(0, 0, 0, 10**18, 100.0))
    session.key_differs = True
    session.expire(106.0, float("-inf"))
    assert outcome(session.stats, "auth_failed") == sum(session.stats.outcomes) == 1
