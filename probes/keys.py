"""Keys of the authenticated mode: read from a file, several valid at a time, so that they can be rotated.

The key's number travels in the high bits of the SSID. During a rotation every agent first learns the new key (it
accepts both), then one after the other sends with it, and the old one is removed at the end: no probe is lost.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

KEY_ID_BITS = 3
"""High bits of the 16-bit SSID that carry the key's number: 8 keys, and 8 191 sessions per key."""
SSID_BITS = 16 - KEY_ID_BITS
MIN_KEY_OCTETS = 16
MAX_KEYS = 1 << KEY_ID_BITS
HMAC_OCTETS = 16


class KeyFileError(ValueError):
    """The key file can't be used; the message says where, why and what to do."""


@dataclass(frozen=True, slots=True)
class KeyRing:
    """Keys by number, and the one to send with.

    Attributes:
        keys: number (0 to 7) -> secret octets (at least 16).
        active: number of the key new sessions are sent with.
    """

    keys: Mapping[int, bytes]
    active: int

    def for_ssid(self, ssid: int) -> bytes | None:
        """Returns the key that an SSID names, or None if there is no such key."""
        return self.keys.get(ssid >> SSID_BITS)

    def tag_ssid(self, session: int) -> int:
        """Returns the SSID of a session number (0 to 8 191) under the active key."""
        return (self.active << SSID_BITS) | (session & ((1 << SSID_BITS) - 1))


def sign(key: bytes, message: bytes) -> bytes:
    """Returns HMAC-SHA-256 of the message, cut to its first 16 octets (RFC 8762 section 4.4)."""
    return hmac.digest(key, message, "sha256")[:HMAC_OCTETS]


def verify(key: bytes, message: bytes, tag: bytes) -> bool:
    """Returns whether the tag belongs to the message; takes the same time for every wrong tag."""
    return hmac.compare_digest(sign(key, message), tag)


def load_keys(path: Path) -> KeyRing:
    """Reads a key file: one `<number 0-7> <hex>` a line, `#` starts a comment; the first line is the key to send with.

    Args:
        path: the file; it should be readable by its owner only.

    Returns:
        The keys; the first one is active.

    Raises:
        KeyFileError: the file is missing, empty, readable by others or has a line that is not a key.
    """
    try:
        mode = path.stat().st_mode
        lines = path.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise KeyFileError(f"{path}: the key file can't be read ({error}); create it, or remove keys_file.") from error
    if mode & 0o007:
        raise KeyFileError(
            f"{path}: the key file is open to all users (mode {mode & 0o777:o}); run `chmod 0400 {path}`."
        )
    keys: dict[int, bytes] = {}
    for number, line in enumerate(lines, start=1):
        text = line.partition("#")[0].split()
        if text:
            key_id, key = _parse_line(path, number, text)
            if key_id in keys:
                raise KeyFileError(
                    f"{path}:{number}: key {key_id} is there twice; give the new key a free number (0-7)."
                )
            keys[key_id] = key
    if not keys:
        raise KeyFileError(f"{path}: no key in the file; write one line such as `0 $(openssl rand -hex 32)`.")
    return KeyRing(keys, next(iter(keys)))


def _parse_line(path: Path, number: int, words: list[str]) -> tuple[int, bytes]:
    where = f"{path}:{number}"
    if len(words) != 2:
        raise KeyFileError(f"{where}: {len(words)} words, expected `<number 0-7> <hex>`; see `openssl rand -hex 32`.")
    if not (words[0].isdigit() and int(words[0]) < MAX_KEYS):
        raise KeyFileError(
            f"{where}: key number {words[0]!r} is not between 0 and {MAX_KEYS - 1}; choose one of these."
        )
    try:
        key = bytes.fromhex(words[1])
    except ValueError:
        # The value itself is a secret, so the sentence does not repeat it.
        raise KeyFileError(f"{where}: the key is not hexadecimal; make one with `openssl rand -hex 32`.") from None
    if len(key) < MIN_KEY_OCTETS:
        raise KeyFileError(
            f"{where}: the key has {len(key)} octets, at least {MIN_KEY_OCTETS} are needed (32 are better)."
        )
    return int(words[0]), key
