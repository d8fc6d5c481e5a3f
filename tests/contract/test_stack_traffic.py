"""The emulator's arithmetic, without any program running: steering, rates, history, and the page it exports."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.stack import history
from tests.stack.ingress import Ingress
from tests.stack.traffic import by_weights, nearest_first, quantity, rate_of
from tests.stack.truth import Truth

RTT = np.array([[1.0, 80.0, 160.0], [80.0, 1.0, 200.0]])
RATES = np.array([100.0, 50.0])


def test_nearest_cluster_serves_while_it_has_room() -> None:
    served = nearest_first(RATES, RTT, np.array([200.0, 200.0, 200.0]))
    assert served.tolist() == [[100, 0, 0], [0, 50, 0]]


def test_full_cluster_spills_to_the_next_nearest() -> None:
    served = nearest_first(RATES, RTT, np.array([60.0, 70.0, 200.0]))
    # Both origins' first wishes are met before anyone's second: us keeps its 50, and eu's 40 find 20 there.
    assert served.tolist() == [[60, 20, 20], [0, 50, 0]]


def test_no_rate_is_negative_and_none_is_lost_whatever_is_rounded() -> None:
    # Without a clip about one case in 350 leaves -1e-14 behind, which no Poisson draw takes.
    rng = np.random.default_rng(0)
    for _ in range(5000):
        rates, rooms = rng.uniform(0, 200, 3), rng.integers(0, 6, 3).astype(np.float64) * 60
        served = nearest_first(rates, rng.uniform(1, 200, (3, 3)), rooms)
        assert (served >= 0).all()
        assert served.sum(axis=1) == pytest.approx(rates)


def test_overload_goes_everywhere_by_capacity() -> None:
    served = nearest_first(RATES, RTT, np.array([60.0, 30.0, 10.0]))
    assert served.sum() == pytest.approx(150)
    assert served.sum(axis=0).tolist() == pytest.approx([90, 45, 15])


def test_without_any_endpoint_all_goes_to_the_nearest() -> None:
    served = nearest_first(RATES, RTT, np.zeros(3))
    assert served.tolist() == [[100, 0, 0], [0, 50, 0]]


def test_weights_and_their_fallback() -> None:
    otherwise = nearest_first(RATES, RTT, np.array([200.0, 200.0, 200.0]))
    served = by_weights(RATES, ["eu", "us"], ["a", "b", "c"], {"eu": {"b": 3, "c": 1}}, otherwise)
    assert served.tolist() == [[0, 75, 25], [0, 50, 0]]


def test_rates(tmp_path: Path) -> None:
    assert rate_of(7, "eu", 0)(123) == 7
    steps = rate_of({"points": [[0, 10], [10, 20], [20, 0]], "repeat_s": 40}, "eu", 1000)
    assert [steps(1000 + t) for t in (0, 5, 10, 15, 30, 45)] == [10, 15, 20, 10, 0, 15]
    (tmp_path / "trace.json").write_text("[[0, 1], [10, 3]]")
    assert rate_of({"file": str(tmp_path / "trace.json")}, "eu", 0)(5) == 2
    with pytest.raises(ValueError, match="not a rate"):
        rate_of("fast", "eu", 0)


def test_carried_shape_has_mean_one_and_follows_local_time() -> None:
    week = [history.load_factor(step * 300) for step in range(14 * 288)]
    assert sum(week) / len(week) == pytest.approx(1, abs=0.01)
    assert history.load_factor(1_000_000, 2) == history.load_factor(1_000_000 + 7200)
    assert set(history.UTC_OFFSET_H) == set(history.rtt_ms())


def test_history_ends_on_time_and_counts_up(tmp_path: Path) -> None:
    past = history.PastService("default", "web", {"europe-west1": 10.0})
    count = history.write(tmp_path / "h", "eu-1", [past], end_s=1e9, days=1, step_s=60, factor=lambda at, origin: 1.0)
    lines = (tmp_path / "h").read_text().splitlines()
    assert count == 1441
    assert lines[-1] == "# EOF"
    assert lines[-2].endswith(f" {1441 * 600} 1000000000.000")


@pytest.mark.parametrize(("text", "number"), [("100m", 0.1), ("8", 8), ("64Mi", 2**26), ("1k", 1000)])
def test_quantities(text: str, number: float) -> None:
    assert quantity(text) == pytest.approx(number)


def test_series_are_born_at_their_first_event_and_histograms_add_up() -> None:
    ingress = Ingress()
    show_all = lambda family, labels: False  # noqa: E731
    assert "ingress_requests_total{" not in ingress.render([], [], show_all)
    ingress.requests("default", "web", "eu", "abc", "200", 3)
    ingress.durations("default", "web", "eu", np.array([0.005, 0.02, 9.0]))
    page = ingress.render([], [], show_all)
    assert 'code="200"} 3' in page
    assert 'code="500"' not in page
    assert 'le="0.005"} 1' in page
    assert 'le="+Inf"} 3' in page
    assert 'ingress_request_duration_seconds_count{namespace="default",service="web",origin="eu"} 3' in page


def test_truth_keeps_the_least_since_a_mark() -> None:
    truth = Truth()
    for now, count in ((1.0, 5), (2.0, 2), (3.0, 4)):
        truth.saw_ready("default/web", now, {"eu-1": count})
    assert truth.document(4.0, 60)["services"]["default/web"]["min_total_ready"] == 2
    truth.mark(4.0)
    assert truth.document(4.0, 60)["services"]["default/web"]["min_total_ready"] == 4
