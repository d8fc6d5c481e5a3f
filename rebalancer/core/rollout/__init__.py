"""The canary state machine: pure functions over values; the memory of a rollout is its status."""

from rebalancer.core.rollout.decision import Action, Decision, Event
from rebalancer.core.rollout.machine import decide
from rebalancer.core.rollout.model import (
    CanarySeen,
    ClusterSeen,
    Metric,
    Observed,
    Request,
    Sample,
    Spec,
    StableSeen,
    State,
    Status,
    Step,
    Template,
    Wave,
)
from rebalancer.core.rollout.stored import Stored

__all__ = [
    "Action",
    "CanarySeen",
    "ClusterSeen",
    "Decision",
    "Event",
    "Metric",
    "Observed",
    "Request",
    "Sample",
    "Spec",
    "StableSeen",
    "State",
    "Status",
    "Step",
    "Stored",
    "Template",
    "Wave",
    "decide",
]
