"""Unix seconds <-> the times that Kubernetes objects carry."""

from __future__ import annotations

from datetime import UTC, datetime


def to_text(at_s: float) -> str:
    """Returns RFC 3339 with microseconds, as MicroTime wants it."""
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def from_text(text: object) -> float | None:
    """Reads RFC 3339; None where there is none or it can't be read."""
    if not isinstance(text, str) or not text:
        return None
    try:
        read = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()
