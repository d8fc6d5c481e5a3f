"""Where the real neighbours' binaries are, and what happens when they are not."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest


def find(name: str) -> Path:
    """Returns the path of a binary: REBALANCER_STACK_DIR, then the cache of `make stack`, then PATH.

    Skips the test if there is none, or fails it when REBALANCER_STRICT=1.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fleet-rebalancer" / "stack"
    places = [cache]
    if override := os.environ.get("REBALANCER_STACK_DIR"):
        places.insert(0, Path(override))
    for place in places:
        for candidate in (
            place / name,
            *sorted(place.glob(f"*/{name}"), reverse=True),
            *sorted(place.glob(f"*/*/{name}")),
        ):
            if candidate.is_file() and os.access(candidate, os.X_OK):
                return candidate
    if found := shutil.which(name):
        return Path(found)
    message = f"{name} not found; run `make stack`, or put it on PATH"
    if os.environ.get("REBALANCER_STRICT") == "1":
        pytest.fail(message)
    pytest.skip(message)
