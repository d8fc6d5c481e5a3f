"""Writes the boards beside this module: `python -m dashboards`."""

from __future__ import annotations

from pathlib import Path

from dashboards.fleet import global_board
from dashboards.network import network_board

HERE = Path(__file__).resolve().parent


def generate() -> dict[str, str]:
    """Returns file name -> content of every generated board."""
    return {"global.json": global_board(), "network.json": network_board()}


def main() -> None:
    """Writes the files."""
    for name, text in generate().items():
        (HERE / name).write_text(text, encoding="utf-8")
        print(f"dashboards/{name}")


if __name__ == "__main__":
    main()
