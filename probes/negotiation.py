"""Which of the three forms of the exposition a scraper gets, by its Accept header."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from probes.exposition import OPENMETRICS_CONTENT_TYPE, TEXT_CONTENT_TYPE, AgentState, Series, render
from probes.protobuf import PROTOBUF_CONTENT_TYPE, render_protobuf

Form = Literal["protobuf", "openmetrics", "text"]
_WANTED: dict[str, tuple[Form, dict[str, str]]] = {
    "application/vnd.google.protobuf": (
        "protobuf", {"proto": "io.prometheus.client.metricfamily", "encoding": "delimited"}
    ),
    "application/openmetrics-text": ("openmetrics", {"version": "1.0.0"}),
    "text/plain": ("text", {"version": "0.0.4"}),
}  # fmt: skip


def choose(accept: str) -> Form:
    """Returns the form a scraper prefers among those it can read.

    Args:
        accept: value of the Accept header in any case; empty or unknown means text, as every scraper reads it.
    """
    best: tuple[float, Form] = (0.0, "text")
    for entry in accept.lower().split(","):
        kind, *rest = (part.strip() for part in entry.split(";"))
        parameters = {name.strip(): value.strip(' "') for name, _, value in (part.partition("=") for part in rest)}
        if kind not in _WANTED:
            continue
        form, fixed = _WANTED[kind]
        # A parameter left out is a wish left open; another value than ours is another format.
        if any(parameters.get(name, value) != value for name, value in fixed.items()):
            continue
        weight = _weight(parameters.get("q", "1"))
        if weight > best[0]:
            best = (weight, form)
    return best[1]


def _weight(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def expose(accept: str, series: Sequence[Series], state: AgentState, now_s: float) -> tuple[str, bytes]:
    """Returns (content type, body) of the answer to a scrape.

    Args:
        accept: value of the Accept header.
        series: all peers.
        state: the agent itself.
        now_s: monotonic time, for the sliding windows.
    """
    form = choose(accept)
    if form == "protobuf":
        return PROTOBUF_CONTENT_TYPE, render_protobuf(series, state, now_s)
    if form == "openmetrics":
        return OPENMETRICS_CONTENT_TYPE, render(series, state, now_s, openmetrics=True)
    return TEXT_CONTENT_TYPE, render(series, state, now_s)
