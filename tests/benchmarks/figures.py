"""How the benchmarks print a figure."""

from __future__ import annotations

from collections.abc import Sequence


def line(name: str, value: float, unit: str, bound: float) -> bool:
    """Prints `name value unit bound ok|SHORT`; returns whether the value is within its upper bound."""
    good = value <= bound
    print(f"{name} {value:.3g} {unit} {bound:g} {'ok' if good else 'SHORT'}", flush=True)
    return good


def rival(name: str, value: float, unit: str) -> None:
    """Prints a figure of another tool from the same run; it has no bound."""
    print(f"{name} {value:.3g} {unit} - rival", flush=True)


def quantile(values: Sequence[float], q: float) -> float:
    """Returns the smallest value that a share `q` of all values does not exceed; NaN without values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))] if ordered else float("nan")
