"""Writes the rule files beside this module: `python -m rules`."""

from __future__ import annotations

from pathlib import Path

from rules.alerts import alert_groups
from rules.model import to_runbook, to_yaml
from rules.recording import recording_groups

HERE = Path(__file__).resolve().parent


def generate() -> dict[str, str]:
    """Returns file name -> content of every generated file."""
    return {
        "rebalancer-recording.yaml": to_yaml(recording_groups()),
        "rebalancer-recording-native.yaml": to_yaml(recording_groups(native=True)),
        "rebalancer-alerts.yaml": to_yaml(alert_groups()),
        "RUNBOOK.md": to_runbook(alert_groups()),
    }


def main() -> None:
    """Writes the files."""
    for name, text in generate().items():
        (HERE / name).write_text(text, encoding="utf-8")
        print(f"rules/{name}")


if __name__ == "__main__":
    main()
