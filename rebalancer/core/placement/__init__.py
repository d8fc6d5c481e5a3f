"""Which cluster runs how many.

`items` says what is placed and what things weigh; `exact` is the program for small fleets; `problem` holds a large
fleet as arrays, `prices` solves it with the kernels of `passes`, `whole`, `flows` and `nearby`; `audit` checks it by
HiGHS; `fleet` is the door to both, and `follow` says what of a plan may begin now.
"""

from rebalancer.core.placement.encode import capacity_of, clusters_of, encode, placed
from rebalancer.core.placement.exact import SMALL_FLEET, evaluate
from rebalancer.core.placement.fleet import Warm, compile_kernels, joint, solve
from rebalancer.core.placement.follow import follow
from rebalancer.core.placement.items import (
    AMORTISATION_H,
    LATENCY_DOLLARS,
    MOVE_DOLLARS,
    REMOVE_DOLLARS,
    SHORTFALL_DOLLARS,
    SPREAD_DOLLARS,
    UNPLACED_DOLLARS,
    UNSERVED_DOLLARS,
    Item,
    Placed,
    Shadow,
    Solution,
    shortfall,
    unplaced_dollars,
)

__all__ = [
    "AMORTISATION_H",
    "LATENCY_DOLLARS",
    "MOVE_DOLLARS",
    "REMOVE_DOLLARS",
    "SHORTFALL_DOLLARS",
    "SMALL_FLEET",
    "SPREAD_DOLLARS",
    "UNPLACED_DOLLARS",
    "UNSERVED_DOLLARS",
    "Item",
    "Placed",
    "Shadow",
    "Solution",
    "Warm",
    "capacity_of",
    "clusters_of",
    "compile_kernels",
    "encode",
    "evaluate",
    "follow",
    "joint",
    "placed",
    "shortfall",
    "solve",
    "unplaced_dollars",
]
