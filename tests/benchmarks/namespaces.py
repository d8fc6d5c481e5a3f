"""Three network namespaces in a row, made and removed here: a prober, a relay, a reflector.

pa (198.18.0.1) - veth - pr (relay, no address) - veth - pb (198.18.0.2, and all of 198.19.0.0/24). The addresses are of
the block for benchmarks (RFC 2544) and reachable from nowhere else: no link leaves the three.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

PROBER, REFLECTOR = "198.18.0.1", "198.18.0.2"
HOSTS = "198.19.0.0/24"
_SIOCETHTOOL = 0x8946
_ETHTOOL_STXCSUM = 0x17


@dataclass(frozen=True)
class Names:
    """The namespaces' names: prober, relay, reflector."""

    prober: str
    relay: str
    reflector: str


def unavailable() -> str:
    """Returns why namespaces can't be had here, empty if they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "the program ip (iproute2) is missing"
    name = f"fleet-bench-{os.getpid()}-try"
    done = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return done.stderr.strip() if done.returncode else ""


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextlib.contextmanager
def path() -> Iterator[Names]:
    """Makes the three namespaces and their two links; removes them at the end, with all that is in them.

    Raises:
        subprocess.CalledProcessError: `ip` refused; its error is in `stderr`.
    """
    base = f"fleet-bench-{os.getpid()}"
    names = Names(f"{base}-a", f"{base}-r", f"{base}-b")
    everything = (names.prober, names.relay, names.reflector)
    try:
        for name in everything:
            _ip("netns", "add", name)
            for scope in ("all", "default"):
                _ip("netns", "exec", name, "sysctl", "-qw", f"net.ipv6.conf.{scope}.disable_ipv6=1")
            _ip("-n", name, "link", "set", "dev", "lo", "up")
        for outer, inner, name in (("wa", "a", names.prober), ("wb", "b", names.reflector)):
            _ip("-n", names.relay, "link", "add", outer, "type", "veth", "peer", "name", inner, "netns", name)
            _ip("-n", names.relay, "link", "set", "dev", outer, "up")
            _ip("-n", name, "link", "set", "dev", inner, "up")
        _ip("-n", names.prober, "address", "add", f"{PROBER}/24", "dev", "a")
        _ip("-n", names.prober, "route", "add", HOSTS, "via", REFLECTOR)
        _ip("-n", names.reflector, "address", "add", f"{REFLECTOR}/24", "dev", "b")
        _ip("-n", names.reflector, "route", "add", "local", HOSTS, "dev", "lo")
        for name, inner in ((names.prober, "a"), (names.reflector, "b")):
            subprocess.run(execute(name, __spec__.name, inner), check=True, capture_output=True)
            _ip("netns", "exec", name, "sysctl", "-qw", "net.ipv4.ping_group_range=0 2147483647")
            _ip("netns", "exec", name, "sysctl", "-qw", "net.ipv4.icmp_msgs_per_sec=100000")
        yield names
    finally:
        for name in everything:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def execute(namespace: str, module: str, *arguments: str) -> list[str]:
    """Returns the command that runs a module of this project inside a namespace."""
    return ["ip", "netns", "exec", namespace, sys.executable, "-m", module, *arguments]


def plain_checksums(interface: str) -> None:
    """Makes an interface of the present namespace fill in checksums: a relay of frames would carry half of them.

    Raises:
        OSError: the driver refuses.
    """
    value = ctypes.create_string_buffer(struct.pack("=II", _ETHTOOL_STXCSUM, 0))
    request = struct.pack("16sP16x", interface.encode(), ctypes.addressof(value))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, _SIOCETHTOOL, request)


if __name__ == "__main__":
    plain_checksums(sys.argv[1])
