"""One fleet for all scenarios; each has services of its own, so that one can be run alone.

Loads are constant: what a scenario demands of the controller may not hang on the hour at which it runs.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rules.__main__ import HERE as RULES
from tests.scenarios.stage import Mesh
from tests.stack.fixtures import fleet_for
from tests.stack.fleet import ALL, Fleet
from tests.stack.users import Service

EU, US, AP = "europe-west1", "us-east4", "asia-southeast1"
SERVICES = (
    # (a) most users are in Europe, some in Asia.
    Service("far", {EU: 160.0, AP: 40.0}, capacity_per_replica=60, daily_past=False),
    # (c) users everywhere, with replicas to spare.
    Service("blind", {EU: 60.0, US: 60.0, AP: 60.0}, capacity_per_replica=60, daily_past=False),
    # (d) all users are in Europe, all replicas in America.
    Service("moving", {EU: 100.0}, capacity_per_replica=60, daily_past=False),
    # (e) as (d), and one replica where the API server will hang.
    Service("hang", {EU: 100.0}, capacity_per_replica=60, daily_past=False),
    # (b) Asia's users may not be served in Asia: they cross the link that gets lossy. Europe's don't.
    Service("crossing", {AP: 100.0}, capacity_per_replica=60, daily_past=False),
    Service("staying", {EU: 100.0}, capacity_per_replica=60, daily_past=False),
    # (f) 200 requests/s in every cluster, one in a thousand fails anyway.
    Service("canary", {EU: 200.0, US: 200.0, AP: 200.0}, capacity_per_replica=80, daily_past=False, base_error=0.001),
)  # fmt: skip


@pytest.fixture(scope="package")
def stage(request: pytest.FixtureRequest) -> Iterator[tuple[Fleet, Mesh]]:
    """Hub, three members, metrics with two weeks of history, users, and a probe mesh; it ends with the scenarios."""
    rules = (RULES / "rebalancer-recording.yaml",)
    with fleet_for(
        request, parts=ALL | {"relay"}, services=SERVICES, history_days=14, history_step_s=300, rule_files=rules
    ) as fleet:
        fleet.add_nodes()
        mesh = Mesh(fleet)
        try:
            yield fleet, mesh
        finally:
            mesh.stop()
