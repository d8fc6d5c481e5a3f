"""Which tests go to one worker, one after the other, when several workers run (`-n 2 --dist loadfile`).

A file is a unit, because its tests share servers. Files of one lane share a fleet of the session, or must not burden
the two cores at the same time.
"""

from __future__ import annotations

from collections.abc import Mapping

from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]  # xdist has no types

LANES: Mapping[str, str] = {
    "tests/contract/test_kubernetes_actuator.py": "planes",
    "tests/contract/test_kubernetes_hub.py": "planes",
    "tests/contract/test_probe_election.py": "planes",
    "tests/contract/test_rollouts_live.py": "planes",
    "tests/contract/test_stack.py": "stack",
    "tests/contract/test_stack_faults.py": "stack",
    "tests/contract/test_telemetry_thanos.py": "stack",
    "tests/contract/test_native_histograms.py": "probes",
    "tests/contract/test_probe_faults.py": "probes",
    "tests/contract/test_probes_live.py": "probes",
    # Two fleets at a time, each lane about half of the time that all scenarios take.
    "tests/scenarios/test_blind.py": "scenarios one",
    "tests/scenarios/test_canary.py": "scenarios one",
    "tests/scenarios/test_hanging.py": "scenarios one",
    "tests/scenarios/test_far_from_users.py": "scenarios two",
    "tests/scenarios/test_killed.py": "scenarios two",
    "tests/scenarios/test_lossy_link.py": "scenarios two",
}


class LaneScheduling(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """Hands out lanes; a file without one is its own."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.split("::", 1)[0]
        return LANES.get(path, path)
