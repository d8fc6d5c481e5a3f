"""A recording comes back as it was written, and what is none is refused with a sentence."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rebalancer.adapters.telemetry.grid import Grid
from rebalancer.adapters.telemetry.recording import Recording, read, write
from rebalancer.errors import RebalancerError

NAMES = st.text(max_size=6)
ROWS = st.dictionaries(
    st.tuples(NAMES, NAMES, NAMES),
    st.lists(st.floats(min_value=0, allow_infinity=False) | st.just(float("nan")), min_size=3, max_size=3),
    max_size=4,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=ROWS, units=st.dictionaries(NAMES, st.sampled_from(["requests/s", "cores"]), max_size=2))
def test_what_is_written_comes_back(tmp_path: Path, rows: dict[Any, list[float]], units: dict[str, str]) -> None:
    recording = Recording(Grid(1_800_000_300.0, 300.0, 3), units, {k: np.array(v) for k, v in rows.items()})
    write(tmp_path / "history.npz", recording)
    found = read(tmp_path / "history.npz")
    assert (found.grid, found.units, set(found.rows)) == (recording.grid, units, set(rows))
    for key, values in rows.items():
        np.testing.assert_equal(found.rows[key], values)
    assert [path.name for path in tmp_path.iterdir()] == ["history.npz"]


HEAD = {"format": 1, "startS": 300.0, "stepS": 300.0, "slots": 2, "units": {}, "keys": [["a/b", "", "c"]]}


def stored(values: Any = ((1.0, 2.0),), **changes: Any) -> bytes:
    out = io.BytesIO()
    head = np.frombuffer(json.dumps({**HEAD, **changes}).encode(), dtype=np.uint8)
    np.savez(out, values=np.array(values), head=head)
    return out.getvalue()


def pickled() -> bytes:
    out = io.BytesIO()
    np.savez(out, values=np.array([object()]), head=np.zeros(1, dtype=np.uint8))
    return out.getvalue()


BROKEN: dict[str, tuple[Callable[[], bytes], str]] = {
    "an empty file": (lambda: b"", "is no recording"),
    "a text": (lambda: b"values: 1", "is no recording"),
    "half a file": (lambda: stored()[:200], "is no recording"),
    "objects that would run code": (pickled, "is no recording"),
    "another format": (lambda: stored(format=2), "its format is 2, this version reads 1"),
    "fewer rows than keys": (lambda: stored(keys=[["a", "", "c"], ["b", "", "c"]]), "shape (1, 2) for 2 rows"),
    "a key twice": (lambda: stored(((1.0, 2.0),) * 2, keys=[["a", "", "c"]] * 2), "shape (2, 2)"),
    "a key that is no triple": (lambda: stored(keys=["ab"]), "is no recording"),
    "a step of nothing": (lambda: stored(stepS=0), "its grid is none"),
    "infinite demand": (lambda: stored(((1.0, float("inf")),)), "negative or infinite"),
    "negative demand": (lambda: stored(((1.0, -1.0),)), "negative or infinite"),
}


@pytest.mark.parametrize("sentence", BROKEN)
def test_what_is_no_recording_is_refused(sentence: str, tmp_path: Path) -> None:
    make, words = BROKEN[sentence]
    path = tmp_path / "history.npz"
    path.write_bytes(make())
    with pytest.raises(RebalancerError) as caught:
        read(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_file_that_is_not_there_or_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(RebalancerError, match="No such file"):
        read(tmp_path / "none.npz")
    with pytest.raises(RebalancerError, match="can't be written: No such file"):
        write(tmp_path / "no" / "x.npz", Recording(Grid(1.0, 1.0, 0), {}, {}))
