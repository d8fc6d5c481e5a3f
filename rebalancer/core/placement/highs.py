"""HiGHS as both programs use it: one thread, one seed, ended by nodes and gap: the same input gives the same plan."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import highspy
import highspy.highs
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


HEURISTICS_OFF = ("mip_allow_restart", "mip_heuristic_run_rens", "mip_heuristic_run_root_reduced_cost")
"""What costs most of the time at the root, where no count of nodes ends it; without them fleets of 50 take a third."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The constraints, row by row as HiGHS takes them.

    Attributes:
        low, high: bounds of the rows.
        start: (rows + 1,) where each row begins in the two others.
        column, value: the entries.
    """

    low: Floats
    high: Floats
    start: npt.NDArray[np.int32]
    column: npt.NDArray[np.int32]
    value: Floats


def run(
    cost: Floats, low: Floats, high: Floats, rows: Rows, whole: Iterable[bool] | None, *, nodes: int, gap: float
) -> Any:
    """Solves a program for its least cost.

    Args:
        cost: of each column.
        low: its lower bound.
        high: its upper bound.
        rows: constraints.
        whole: which columns take whole numbers only; None solves the relaxation.
        nodes: where the search for whole numbers ends.
        gap: likewise, as a ratio.

    Returns:
        The solver, to be asked for what it found.
    """
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = len(cost), len(rows.low)
    lp.col_cost_, lp.col_lower_, lp.col_upper_ = cost, low, high
    lp.row_lower_, lp.row_upper_ = rows.low, rows.high
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.num_col_, lp.a_matrix_.num_row_ = lp.num_col_, lp.num_row_
    lp.a_matrix_.start_, lp.a_matrix_.index_, lp.a_matrix_.value_ = rows.start, rows.column, rows.value
    if whole is not None:
        kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
        lp.integrality_ = [kinds[int(i)] for i in whole]
    # The public class prints a banner before it can be silenced; its base takes the option first.
    solver = highspy.highs._Highs()  # type: ignore[attr-defined]  # see above
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    solver.setOptionValue("random_seed", 0)
    for option in HEURISTICS_OFF:
        solver.setOptionValue(option, False)
    solver.setOptionValue("mip_max_nodes", nodes)
    solver.setOptionValue("mip_rel_gap", gap)
    solver.passModel(lp)
    solver.run()
    return solver
