"""A policy that selects nothing is told, as long as everything was seen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rebalancer.cli.live import _idle
from rebalancer.core.model import History
from rebalancer.cycle import CycleReport
from tests.unit.core.fleet import NOW, POLICY, cluster_state, flat_forecast, plan, snapshot

OTHER = replace(POLICY, name="other", namespace="blog", workload_name="blog")


@pytest.mark.parametrize(
    ("unseen", "errors", "told"),
    [
        pytest.param(False, (), 1, id="a policy without a workload is named"),
        pytest.param(True, (), 0, id="what it selects may be where nobody could look"),
        pytest.param(
            False, ("shop/blog is selected by two policies",), 0, id="what is in dispute has its own sentence"
        ),
    ],
)
def test_policies_without_a_workload(unseen: bool, errors: tuple[str, ...], told: int) -> None:
    states = {"us-1": cluster_state("us-1", seen_s=None if unseen else NOW)}
    seen = snapshot({"eu-1": 2}, {"eu": 5.0}, states=states)
    history = History(0.0, 300.0, (), np.empty((0, 1)))
    report = CycleReport(
        NOW, "ok", plan(seen, {"eu": 5.0})[0], seen, flat_forecast({"eu": 5.0}), history, {}, errors=errors
    )
    found = _idle({POLICY.key: POLICY, OTHER.key: OTHER}, report)
    assert len(found) == told
    assert all("policy blog/other: selects no Deployment of namespace blog in ap-1, eu-1, us-1" in one for one in found)
