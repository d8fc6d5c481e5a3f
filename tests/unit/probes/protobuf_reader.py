"""A tiny reader of delimited MetricFamily messages, written from metrics.proto and not from the code under test."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

Message = dict[int, list[Any]]


@dataclass
class Sample:
    """One metric: its labels, and the message of its kind (counter, gauge, summary or histogram)."""

    labels: dict[str, str]
    kind: int
    body: Message


@dataclass
class Family:
    """One family."""

    name: str
    help: str
    type: int
    samples: list[Sample] = field(default_factory=list)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if not data[at - 1] & 0x80:
            return value, at


def message(data: bytes) -> Message:
    found: Message = {}
    at = 0
    while at < len(data):
        key, at = read_varint(data, at)
        value: Any
        if key & 7 == 0:
            value, at = read_varint(data, at)
        elif key & 7 == 1:
            value, at = struct.unpack_from("<d", data, at)[0], at + 8
        else:
            assert key & 7 == 2, "only these three wire types occur"
            length, at = read_varint(data, at)
            value, at = data[at : at + length], at + length
            assert len(value) == length, "nothing ends early"
        found.setdefault(key >> 3, []).append(value)
    return found


def signed(value: int) -> int:
    return value >> 1 ^ -(value & 1)


def packed(data: bytes) -> list[int]:
    values, at = [], 0
    while at < len(data):
        value, at = read_varint(data, at)
        values.append(signed(value))
    return values


def families(data: bytes) -> dict[str, Family]:
    found: dict[str, Family] = {}
    at = 0
    while at < len(data):
        length, at = read_varint(data, at)
        fields = message(data[at : at + length])
        at += length
        family = Family(fields[1][0].decode(), fields[2][0].decode(), fields[3][0])
        assert family.name not in found, "a family comes once"
        for item in fields[4]:
            metric = message(item)
            pairs = [message(label) for label in metric.pop(1, [])]
            ((kind, (body,)),) = metric.items()
            labels = {pair[1][0].decode(): pair[2][0].decode() for pair in pairs}
            family.samples.append(Sample(labels, kind, message(body)))
        found[family.name] = family
    return found


def native_counts(histogram: Message) -> dict[int, int]:
    """Index of the bucket -> its own count."""
    deltas = packed(histogram[13][0]) if 13 in histogram else []
    counts: dict[int, int] = {}
    index = total = 0
    for span in map(message, histogram.get(12, [])):
        index += signed(span[1][0])
        for _ in range(span[2][0]):
            total += deltas[len(counts)]
            counts[index] = total
            index += 1
    assert len(counts) == len(deltas)
    return counts
