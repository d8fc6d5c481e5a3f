"""Demand history in a file, so that it can be replayed: the ring's rows on their grid, as numpy's own `.npz`.

One file holds `values` (float32 would lose whole requests of large counters, so float64; NaN where unknown) and `head`,
JSON with the format's number, the grid, the units and the key of each row. Nothing in it is executed when it is read.
"""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rebalancer.adapters.telemetry.grid import Grid
from rebalancer.adapters.telemetry.ring import Key
from rebalancer.core.model import Floats
from rebalancer.errors import RebalancerError

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Recording:
    """Demand of workloads on a grid.

    Attributes:
        grid: slots, named by their ends.
        units: workload -> requests/s or cores.
        rows: (workload, origin, cluster) -> shape (slots,), NaN where unknown; (workload, TOTAL, "") -> how far its
            demand rose within each slot relative to the mean, which is no demand.
    """

    grid: Grid
    units: Mapping[str, str]
    rows: Mapping[Key, Floats]


def write(path: Path, recording: Recording) -> None:
    """Writes a recording; a file that is there is replaced at once or not at all.

    Raises:
        RebalancerError: it can't be written.
    """
    grid, keys = recording.grid, sorted(recording.rows)
    head = {
        "format": FORMAT, "startS": grid.start_s, "stepS": grid.step_s, "slots": grid.slots,
        "units": dict(recording.units), "keys": [list(key) for key in keys],
    }  # fmt: skip
    values = np.array([recording.rows[key] for key in keys], dtype=np.float64).reshape(len(keys), grid.slots)
    part = path.with_name(f"{path.name}.part")
    try:
        with part.open("wb") as out:
            np.savez_compressed(out, values=values, head=np.frombuffer(json.dumps(head).encode(), dtype=np.uint8))
        part.replace(path)
    except OSError as error:
        raise RebalancerError(
            f"{path} can't be written: {error.strerror}; check the path and its permissions"
        ) from None


def read(path: Path) -> Recording:
    """Reads a recording.

    Raises:
        RebalancerError: it can't be read, or is none; the sentence says why.
    """
    try:
        with np.load(path, allow_pickle=False) as found:
            values, head = np.asarray(found["values"]), json.loads(bytes(found["head"]))
        return _checked(values, head)
    except OSError as error:
        raise RebalancerError(
            f"{path} can't be read: {error.strerror or error}; name a file of `rebalancer record`"
        ) from (None)
    except (ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise RebalancerError(f"{path} is no recording ({error}); make one with `rebalancer record`") from None


def _checked(values: Any, head: Mapping[str, Any]) -> Recording:
    """What was read, if it is what was written. Raises ValueError, KeyError or TypeError."""
    if head["format"] != FORMAT:
        raise ValueError(f"its format is {head['format']}, this version reads {FORMAT}")
    grid = Grid(float(head["startS"]), float(head["stepS"]), int(head["slots"]))
    if not (math.isfinite(grid.start_s) and 0 < grid.step_s < math.inf and grid.slots >= 0):
        raise ValueError("its grid is none")
    keys = [(str(workload), str(origin), str(cluster)) for workload, origin, cluster in head["keys"]]
    if values.dtype != np.float64 or values.shape != (len(keys), grid.slots) or len(set(keys)) != len(keys):
        raise ValueError(f"its values have shape {values.shape} for {len(keys)} rows of {grid.slots} slots")
    if np.isinf(values).any() or (values < 0).any():
        raise ValueError("it holds demand that is negative or infinite")
    units = {str(workload): str(unit) for workload, unit in head["units"].items()}
    return Recording(grid, units, dict(zip(keys, values, strict=True)))
