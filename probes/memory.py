"""How this process treats its memory, so that neither probes nor scrapes pay for what the runtime does beside them."""

from __future__ import annotations

import contextlib
import ctypes
import gc

_OBJECTS_PER_SEARCH = 100_000
"""Twice the probes under way at the highest rate, each with its timeout and grace."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc's malloc.h."""
_KEPT_OCTETS = 32 << 20
"""The most that glibc takes for M_MMAP_THRESHOLD, and twice what an exposition of a thousand peers needs."""


def calm() -> None:
    """Makes the search for cycles rare and keeps freed memory; called once, when all is loaded."""
    _calm_collector()
    _keep_freed()


def _calm_collector() -> None:
    # Every probe under way is an object that lives for seconds, so the search would go through all of them many times a
    # second; it took a sixth of the processor time at 10 000 probes/s. None of them is part of a cycle: they are freed
    # when they settle. What was loaded before is not searched again; what grows without bound still is.
    gc.collect()
    gc.freeze()
    gc.set_threshold(_OBJECTS_PER_SEARCH, 10, 10)


def _keep_freed() -> None:
    # Each scrape needs some MB for a moment. Given back to the kernel after it, they cost the next one a page fault for
    # every 4 KiB: a third of its processor time. What a scrape needs at its height does not change by that.
    with contextlib.suppress(AttributeError):  # a C library without mallopt has no such threshold
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, _KEPT_OCTETS)
        mallopt(_TRIM_THRESHOLD, _KEPT_OCTETS)
