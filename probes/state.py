"""Counters that survive a restart: written when the agent is stopped, used once, ignored when they are another's.

After a crash counters begin at 0. An older state would be a step back to what Prometheus has seen already, which it
takes for a restart at 0 with all of the old counts as new.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from probes.exposition import Series
from probes.stats import NATIVE_MAX_INDEX, NATIVE_ZERO_INDEX, PeerStats

VERSION = 2
_FIELDS = ("rtt_sum_s", "rtt_count", "ipdv_sum_s", "ipdv_count", "duplicates", "reordered", "last_ok_s", "last_sent_s")
_MOST = 2**53
"""Beyond it a float is no whole number any more; no counter gets there."""
_LISTS = ("outcomes", "buckets")


def dump(cluster: str, series: Iterable[Series]) -> bytes:
    """Returns the state file of an agent.

    Args:
        cluster: own cluster.
        series: counters of all peers.
    """
    peers = [
        {"peer": item.dst_cluster, "proto": item.proto}
        | {name: getattr(item.stats, name) for name in (*_FIELDS, *_LISTS)}
        | {"native": sorted(item.stats.native.items())}
        for item in series
    ]
    return json.dumps({"version": VERSION, "cluster": cluster, "peers": peers}).encode()


def save(path: Path, content: bytes) -> None:
    """Replaces the file in one step: a crash leaves the old one or the new one, never half of it.

    Raises:
        OSError: it can't be written.
    """
    part = path.with_name(path.name + ".part")
    with part.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def load(path: Path, cluster: str) -> dict[tuple[str, str], PeerStats]:
    """Takes the counters of before out of their file; a missing, broken or foreign one is an empty beginning.

    Returns:
        (peer, proto) -> counters.
    """
    found: dict[tuple[str, str], PeerStats] = {}
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        document = json.loads(path.read_bytes())
        path.unlink()  # of no use twice: a crash from now on begins at 0
        if document["version"] == VERSION and document["cluster"] == cluster:
            for item in document["peers"]:
                if (stats := _restore(item)) is not None:
                    found[str(item["peer"]), str(item["proto"])] = stats
    return found


def _restore(item: dict[str, Any]) -> PeerStats | None:
    stats = PeerStats()
    for name in _LISTS:
        values = item[name]
        if len(values) != len(getattr(stats, name)) or not all(map(_is_count, values)):
            return None  # of a version with other outcomes or buckets: sums over it would mean nothing
        setattr(stats, name, list(values))
    for name in _FIELDS:
        value = item[name]
        unset = value is None and getattr(stats, name) is None
        if not (unset or _is_count(value) or (isinstance(value, float) and 0 <= value < _MOST)):
            return None
        setattr(stats, name, value)
    stats.native = {index: count for index, count in item["native"] if _is_native(index, count)}
    # A histogram whose count is not the sum of its buckets would be refused by every scrape from now on.
    if not sum(stats.native.values()) == sum(stats.buckets) == stats.rtt_count:
        return None
    return stats


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST


def _is_native(index: object, count: object) -> bool:
    return isinstance(index, int) and _is_count(count) and NATIVE_ZERO_INDEX <= index <= NATIVE_MAX_INDEX and count != 0
