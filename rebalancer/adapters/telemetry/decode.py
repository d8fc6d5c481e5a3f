"""Answers of the Prometheus API -> arrays. The only parser.

Two stages: the outer structure with the samples left raw, then the samples of each series at once; that takes a
fifteenth of the CPU of a data frame. `+Inf`, `-Inf` and `NaN` are strings in the protocol and come out as floats; what
is not there is not there, and NaN on a grid.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import numpy as np

from rebalancer.adapters.telemetry.grid import Grid
from rebalancer.core.model import Floats


class _Frame(msgspec.Struct, gc=False):
    status: str = ""
    errorType: str = ""  # noqa: N815 - the protocol's name
    error: str = ""
    warnings: list[str] | None = None
    infos: list[str] | None = None


class _Outer(_Frame, gc=False):
    data: msgspec.Raw = msgspec.Raw(b"null")


class _Series(msgspec.Struct, gc=False):
    metric: dict[str, str] = {}
    value: msgspec.Raw = msgspec.Raw(b"")
    values: msgspec.Raw = msgspec.Raw(b"")
    histogram: msgspec.Raw = msgspec.Raw(b"")
    histograms: msgspec.Raw = msgspec.Raw(b"")


class _Histogram(msgspec.Struct, gc=False):
    count: float


class _Data(msgspec.Struct, gc=False):
    resultType: str = ""  # noqa: N815 - the protocol's name
    result: msgspec.Raw = msgspec.Raw(b"[]")


class _Many(msgspec.Struct, gc=False):
    result: list[_Series] = []


class _Whole(_Frame, gc=False):
    data: _Many = msgspec.field(default_factory=_Many)


_whole = msgspec.json.Decoder(_Whole)
_outer = msgspec.json.Decoder(_Outer)
_data = msgspec.json.Decoder(_Data)
_histograms = msgspec.json.Decoder(list[tuple[float, _Histogram]], strict=False)
_plain = msgspec.json.Decoder(list[float])
_numbers = msgspec.json.Decoder(list[float], strict=False)


class NotPrometheus(ValueError):
    """The body is no answer of the Prometheus API."""


@dataclass(frozen=True, slots=True)
class Series:
    """One series.

    Attributes:
        labels: as they came, with __name__ if there is one.
        times_s: shape (samples,), Unix seconds, ascending; of an instant answer the evaluation time, not the sample's.
        values: shape (samples,); may be NaN or infinite.
    """

    labels: Mapping[str, str]
    times_s: Floats
    values: Floats


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer.

    Attributes:
        status: success or error.
        error_type, error: of the protocol, empty on success.
        series: one value per sample; a native histogram's is its count, which is what a counter would say.
        warnings, infos: as the server said them.
    """

    status: str
    error_type: str = ""
    error: str = ""
    series: tuple[Series, ...] = ()
    warnings: tuple[str, ...] = ()
    infos: tuple[str, ...] = ()


def decode(body: bytes) -> Answer:
    """Decodes the answer to a query.

    Args:
        body: UTF-8 JSON.

    Raises:
        NotPrometheus: the body is something else; the message says how it begins.
    """
    try:
        outer, series = _read(body)
        if outer.status not in ("success", "error"):
            raise NotPrometheus(_beginning(body))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise NotPrometheus(_beginning(body)) from error
    return Answer(
        outer.status, outer.errorType, outer.error, series, tuple(outer.warnings or ()), tuple(outer.infos or ())
    )  # fmt: skip


def decode_data(body: bytes) -> object:
    """Decodes the `data` of another endpoint (stores, buildinfo).

    Raises:
        NotPrometheus: as `decode`.
    """
    try:
        outer = _outer.decode(body)
        if outer.status != "success":
            raise NotPrometheus(_beginning(body))
        return msgspec.json.decode(outer.data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise NotPrometheus(_beginning(body)) from error


def on_grid(series: Series, grid: Grid) -> Floats:
    """Lays the samples of a range answer on its grid.

    Returns:
        shape (slots,), NaN where there is no sample; samples outside of the grid are left out.
    """
    times, values = series.times_s, series.values
    if len(times) == grid.slots and times[0] == grid.start_s and times[-1] == grid.end_s:
        # A range answer has no other times than the grid's, so that all of them are there; most series are whole.
        return np.ascontiguousarray(values)
    row = np.full(grid.slots, np.nan)
    where = np.rint((times - grid.start_s) / grid.step_s).astype(np.int64)
    inside = (where >= 0) & (where < grid.slots)
    row[where[inside]] = values[inside]
    return row


def _beginning(body: bytes) -> str:
    return " ".join(body[:80].decode("utf-8", "replace").split())


def _read(body: bytes) -> tuple[_Frame, tuple[Series, ...]]:
    # Nearly always it is a list of series, found in one pass; each further pass over a large body takes a tenth again.
    try:
        whole = _whole.decode(body)
    except msgspec.ValidationError:
        outer = _outer.decode(body)
        return outer, _single(outer.data) if outer.status == "success" else ()
    found = (Series(one.metric, *_samples(one)) for one in whole.data.result)
    return whole, tuple(one for one in found if len(one.times_s))


def _single(raw: msgspec.Raw) -> tuple[Series, ...]:
    data = _data.decode(raw)
    if data.resultType != "scalar":
        raise msgspec.ValidationError(f"{data.resultType or 'an answer without a type'} is no list of series")
    return (Series({}, *_array(b"[" + bytes(data.result) + b"]")),)


def _samples(one: _Series) -> tuple[Floats, Floats]:
    points = bytes(one.values) or _listed(one.value)
    bars = bytes(one.histograms) or _listed(one.histogram)
    if not bars:
        return _array(points or b"[]")
    counts = [(at, float(found.count)) for at, found in _histograms.decode(bars)]
    pairs = np.array(counts, dtype=np.float64).reshape(-1, 2)
    if points:
        # A counter that became a native histogram within the range: the one goes on where the other ends.
        pairs = np.concatenate([np.column_stack(_array(points)), pairs])
        pairs = pairs[np.argsort(pairs[:, 0], kind="stable")]
    return pairs[:, 0], pairs[:, 1]


def _listed(raw: msgspec.Raw) -> bytes:
    return b"[" + bytes(raw) + b"]" if bytes(raw) else b""


def _array(points: bytes) -> tuple[Floats, Floats]:
    # Read flat, without a tuple per sample: those cost a tenth of the time, and as much again in garbage collection.
    try:
        flat = _plain.decode(b"[" + points.translate(None, b'[]"') + b"]")
    except msgspec.DecodeError:
        # A value such as NaN, or nonsense. msgspec reads "Inf" but not "+Inf"; only this series' samples are touched,
        # a label le="+Inf" is not in them.
        text = b"[" + points.translate(None, b"[]") + b"]"
        flat = _numbers.decode(text.replace(b'"+Inf"', b'"Inf"'))
    if len(flat) != 2 * (points.count(b"[") - 1):
        raise msgspec.ValidationError("a sample is no pair of time and value")
    # Packed by the library in half the time that numpy takes for a list.
    pairs = np.frombuffer(struct.pack(f"{len(flat)}d", *flat), dtype=np.float64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]
