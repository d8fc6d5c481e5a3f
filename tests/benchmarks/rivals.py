"""The same path measured by Debian's smokeping_prober and blackbox_exporter, in the same run and by the same truth.

The packages are unpacked into the cache, never installed, and nothing of them runs but the program itself, inside the
prober's namespace. Run there as `python -m tests.benchmarks.rivals TOOL SETTINGS OUT`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.benchmarks.roles import OTHER_CORE, PROBER_CORE, Load, place
from tests.benchmarks.truth_relay import PORT

PROGRAMS = {"smokeping": "prometheus-smokeping-prober", "blackbox": "prometheus-blackbox-exporter"}
_START_DEADLINE_S = 20.0
_UNITS_NS = {"ns": 1, "µs": 1_000, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_MODULES = "modules: {icmp: {prober: icmp, timeout: 2s}, tcp: {prober: tcp, timeout: 2s}}\n"
_HTTP = {"smokeping": 9374, "blackbox": 9115}


def program(tool: str) -> Path | None:
    """Returns the path of a rival's program, fetched from Debian on first use; None where it can't be had."""
    name = PROGRAMS[tool]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fleet-rebalancer" / "rivals"
    found = cache / "usr" / "bin" / name
    if not found.exists() and shutil.which("apt-get") and shutil.which("dpkg"):
        cache.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run(["apt-get", "download", name], cwd=cache, check=True, capture_output=True, timeout=120)
            for package in cache.glob(f"{name}_*.deb"):
                subprocess.run(["dpkg", "-x", package, cache], check=True, capture_output=True, timeout=60)
    return found if found.exists() else None


@contextlib.contextmanager
def _running(command: list[str], load: Load, port: int, log: Path) -> Iterator[str]:
    # The tool inherits the prober's core and priority; this process, which only asks it, then makes way.
    place(PROBER_CORE, fifo=load.fifo)
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, env=os.environ | {"GOMAXPROCS": "1"})
    place(OTHER_CORE, fifo=False)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline_s = time.monotonic() + _START_DEADLINE_S
        while time.monotonic() < deadline_s:
            with contextlib.suppress(OSError):
                _get(f"{url}/metrics")
                break
            time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait(20)


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())


def _duration_ns(text: str) -> int:
    """Returns a Go duration, as 1.234ms or 1m2.5s, in ns."""
    return round(sum(float(n) * _UNITS_NS[unit] for n, unit in re.findall(r"([\d.]+)(ns|µs|us|ms|s)", text)))


def smokeping(load: Load, path: Path, directory: Path) -> dict[str, Any]:
    """Pings `load.paths` hosts; samples are (host, number, ns) of its own log, which it writes after measuring."""
    hosts = [f"198.19.0.{index + 1}" for index in range(load.paths)]
    log = directory / "smokeping.log"
    options = [f"--web.listen-address=127.0.0.1:{_HTTP['smokeping']}", f"--ping.interval={1 / load.pps}s"]
    command = [str(path), *options, "--config.file=", "--log.level=debug", *hosts]
    with _running(command, load, _HTTP["smokeping"], log) as url:
        time.sleep(load.seconds)
        metrics = _get(f"{url}/metrics")
    lines = re.findall(r"ip_addr=(\S+) .*icmp_seq=(\d+) time=(\S+)", log.read_text())
    count = {
        name: sum(float(value) for value in re.findall(rf"^smokeping_{name}{{.*}} (\S+)$", metrics, flags=re.M))
        for name in ("requests_total", "response_duration_seconds_count")
    }
    return {
        "samples": [(host, int(seq), _duration_ns(text)) for host, seq, text in lines],
        "requests": count["requests_total"],
        "responses": count["response_duration_seconds_count"],
    }


def blackbox(load: Load, path: Path, directory: Path) -> dict[str, Any]:
    """Asks for one probe after the other; samples are its times in ns, None where it failed."""
    config = directory / "blackbox.yml"
    config.write_text(_MODULES)
    command = [str(path), f"--config.file={config}", f"--web.listen-address=127.0.0.1:{_HTTP['blackbox']}"]
    names = {"icmp": r'probe_icmp_duration_seconds{phase="rtt"}', "tcp": "probe_duration_seconds"}
    targets = {"icmp": load.host, "tcp": f"{load.host}:{PORT}"}
    found: dict[str, list[int | None]] = {module: [] for module in names}
    with _running(command, load, _HTTP["blackbox"], directory / "blackbox.log") as url:
        for module, name in names.items():
            for _ in range(int(load.pps * load.seconds / len(names))):
                text = _get(f"{url}/probe?target={targets[module]}&module={module}")
                value = re.search(rf"^{re.escape(name)} (\S+)$", text, flags=re.M)
                good = value is not None and "probe_success 1" in text
                found[module].append(round(float(value[1]) * 1e9) if value is not None and good else None)
                time.sleep(1 / load.pps)
    return found


def main() -> None:
    """Entry point."""
    tool, load = sys.argv[1], Load(**json.loads(sys.argv[2]))
    path = program(tool)
    assert path is not None, f"{PROGRAMS[tool]} was there a moment ago"
    with tempfile.TemporaryDirectory() as directory:
        found = (smokeping if tool == "smokeping" else blackbox)(load, path, Path(directory))
    Path(sys.argv[3]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
