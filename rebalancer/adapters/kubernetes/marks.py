"""The marks on a workload's object that must survive a kill: the intent of a move, and the moves that ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from rebalancer.core.model import Moved, MoveRecord
from rebalancer.core.moves import QUARANTINE_S

MOVE = "rebalancer.dev/move"
MOVED = "rebalancer.dev/moved"
KEEP_S = QUARANTINE_S
"""Budgets and blocks look back an hour, the quarantine farthest."""
KEEP_COUNT = 50


def read(annotations: Mapping[str, str] | None) -> tuple[MoveRecord | None, tuple[Moved, ...], str]:
    """Reads the marks.

    Returns:
        The intent, the ended moves, and a sentence where one of them can't be read; that one is then as if absent.
    """
    texts = annotations or {}
    problems: list[str] = []
    move: MoveRecord | None = None
    moved: tuple[Moved, ...] = ()
    try:
        if texts.get(MOVE):
            move = msgspec.json.decode(texts[MOVE], type=MoveRecord)
    except (msgspec.MsgspecError, UnicodeError) as error:
        problems.append(f"annotation {MOVE} can't be read and is ignored: {error}")
    try:
        if texts.get(MOVED):
            moved = msgspec.json.decode(texts[MOVED], type=tuple[Moved, ...])
    except (msgspec.MsgspecError, UnicodeError) as error:
        problems.append(f"annotation {MOVED} can't be read and is ignored: {error}")
    return move, moved, "; ".join(problems)


def write_move(record: MoveRecord) -> str:
    """Returns the annotation's text."""
    return msgspec.json.encode(record).decode()


def write_moved(moved: Iterable[Moved], now: float) -> str:
    """Returns the annotation's text: the newest ones, within bounds, so that the object can't grow."""
    kept = sorted((m for m in moved if now - m.ended_s < KEEP_S), key=lambda m: m.ended_s)[-KEEP_COUNT:]
    return msgspec.json.encode(kept).decode()
