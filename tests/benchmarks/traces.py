"""Real load series for the benchmark of forecasts: a directory named by REBALANCER_TRACES, else one carried trace."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rebalancer.core.model import Floats

CARRIED = Path(__file__).parents[1] / "stack" / "data" / "load_shape.json"
SPARSE = "ms_purchase_01"
"""98 % zeros: no error relative to yesterday says anything there."""


@dataclass(frozen=True)
class Trace:
    """One series: demand by slot, NaN where nothing was seen, and how many slots make a day."""

    name: str
    values: Floats
    season: int


def folder() -> Path | None:
    """Returns the directory of the full data, None where it is not given."""
    named = os.environ.get("REBALANCER_TRACES", "")
    return Path(named) if named else None


def _read(file: Path) -> Floats:
    cells = [line.split(",")[1].strip() for line in file.read_text("utf-8").splitlines()[1:] if line]
    return np.array([float(c) if c else np.nan for c in cells])


def _slots(minutes: Floats) -> Floats:
    """Means of five minutes; a slot with fewer than three samples is a gap."""
    five = minutes[: len(minutes) // 5 * 5].reshape(-1, 5)
    known = (~np.isnan(five)).sum(axis=1)
    result: Floats = np.where(known >= 3, np.nansum(five, axis=1) / np.maximum(known, 1), np.nan)
    return result


def five_minutes() -> list[Trace]:
    """The series on a grid of five minutes."""
    where = folder()
    if where is None:
        return [Trace("carried", np.array(json.loads(CARRIED.read_text("utf-8"))["values"], dtype=np.float64), 288)]
    native = [Trace(f.stem, _read(f), 288) for f in sorted(where.glob("*_5min.csv"))]
    return [*native, *(Trace(f.stem, _slots(_read(f)), 288) for f in sorted(where.glob("*_1min.csv")))]


def hourly() -> list[Trace]:
    """The hourly series; none without the full data."""
    where = folder()
    files = sorted(where.glob("*_1h.csv")) if where is not None else []
    return [Trace(f.stem, _read(f), 24) for f in files if not f.stem.startswith(SPARSE)]


def simulated() -> list[Trace]:
    """The traces on which scaling is simulated, by minute, a gap as no load; none without the full data."""
    where = folder()
    if where is None:
        return []
    names = ("nasa_http", "ms_mongo_01", "ms_mongo_02", "ms_machine_01", "ms_ingress_01", "ms_ingress_03")
    found = [Trace(n, np.nan_to_num(_read(where / f"{n}_1min.csv")), 1440) for n in names]
    # Nasa from 4 August on: in the days before, the server was off.
    return [Trace(t.name, t.values[34 * 1440 :] if t.name == "nasa_http" else t.values, 1440) for t in found]
