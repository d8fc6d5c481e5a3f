"""Every reason id is used, and every id that is used is in the table."""

from __future__ import annotations

import re
from pathlib import Path

from rebalancer.core.reasons import REASONS, words

ROOT = Path(__file__).parents[3] / "rebalancer"


def used() -> set[str]:
    """All string literals of the product that look like a reason id."""
    found: set[str] = set()
    for file in ROOT.rglob("*.py"):
        if file.name != "reasons.py":
            found |= set(re.findall(r'"([a-z]+(?:-[a-z]+)*)"', file.read_text(encoding="utf-8")))
    return found


def test_every_reason_is_produced_somewhere() -> None:
    assert set(REASONS) - used() == set()


def test_every_refusal_has_a_next_step_or_needs_none() -> None:
    silent = {r.id for r in REASONS.values() if r.kind == "refuse" and not r.next_step}
    assert silent == {"gain-too-small"}


def test_ids_and_sentences_are_well_formed() -> None:
    for reason in REASONS.values():
        assert re.fullmatch(r"[a-z]+(-[a-z]+)*", reason.id), reason
        assert reason.sentence.endswith("."), reason
        assert not reason.next_step or reason.next_step.endswith("."), reason
        assert words(reason.id).startswith(reason.sentence)
