"""Builds the test stack's programs from source: `python -m tests.stack.build [--check]`, or `make stack`."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.stack.binaries import HERE, TOOLS, Tool, find, fingerprint, missing, outdated, stamp, target_dir

_LINK_TIMEOUT_S = 1800
_AGE = {True: " (outdated)", False: ""}


def main(argv: list[str] | None = None) -> int:
    """Builds what is missing; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.stack.build", description=__doc__)
    parser.add_argument("--check", action="store_true", help="print what is missing and build nothing")
    options = parser.parse_args(argv)
    absent = tuple(dict.fromkeys(missing() + outdated()))
    if options.check:
        for tool in TOOLS:
            found = find(tool.name)
            print(f"{tool.name:24} {'missing' if not found else f'{found}{_AGE[tool.name in absent]}'}")
        return 1 if absent else 0
    if not absent:
        print("The test stack is up to date.")
        return 0
    if shutil.which("go") is None:
        print("Go 1.26 or later is needed to build the test stack: https://go.dev/dl/", file=sys.stderr)
        return 1
    print(
        f"Building {len(absent)} programs of the test stack from source. A first build takes about 8 min on 2 idle "
        "cores (20 min on busy ones) and fills Go's caches with about 10 GB "
        "(`go clean -cache -modcache` empties them); the programs take 0.8 GB.",
        flush=True,
    )
    for module in dict.fromkeys(tool.module for tool in TOOLS if tool.name in absent):
        _build_module(module, [tool for tool in TOOLS if tool.module == module])
    print("Done.")
    return 0


def _build_module(module: str, tools: list[Tool]) -> None:
    """Builds a module's tools beside their final folder and moves them in place only when all are there."""
    target = target_dir(module)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".building-") as scratch:
        for index, tool in enumerate(tools, 1):
            began = time.monotonic()
            print(f"[{module} {index}/{len(tools)}] {tool.name} ...", flush=True)
            _go_build(tool, Path(scratch) / tool.name)
            size, took = (Path(scratch) / tool.name).stat().st_size / 1e6, time.monotonic() - began
            print(
                f"[{module} {index}/{len(tools)}] {tool.name}: {size:.0f} MB in {took:.0f} s",
                flush=True,
            )
        # REBALANCER_STACK_DIR may be a folder with other things in it: then file by file, each one atomically.
        target.mkdir(exist_ok=True)
        for tool in tools:
            (Path(scratch) / tool.name).replace(target / tool.name)
        stamp(module).write_text(fingerprint(module))


def _go_build(tool: Tool, output: Path) -> None:
    command = ["go", "build", "-trimpath", f"-ldflags=-s -w {tool.ldflags}", "-o", str(output)]
    if tool.tags:
        command += ["-tags", tool.tags]
    # A module's own go line must not fetch another toolchain, and go.sum must be complete as committed.
    environment = {**os.environ, "GOFLAGS": "-mod=readonly", "GOTOOLCHAIN": "local"}
    result = subprocess.run([*command, tool.package], cwd=HERE / tool.module, env=environment, timeout=_LINK_TIMEOUT_S)
    if result.returncode:
        raise SystemExit(f"building {tool.name} failed; nothing was replaced")


if __name__ == "__main__":
    sys.exit(main())
