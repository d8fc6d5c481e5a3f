"""Key files: what is read, and what the sentence says when it can't be."""

from __future__ import annotations

from pathlib import Path

import pytest

from probes.keys import KeyFileError, load_keys


def write(path: Path, text: str, mode: int = 0o400) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_the_first_key_is_sent_with_and_all_are_accepted(tmp_path: Path) -> None:
    ring = load_keys(write(tmp_path / "keys", f"# new\n3 {'ab' * 32}\n\n1 {'cd' * 16}  # until Friday\n"))
    assert ring.active == 3
    assert ring.tag_ssid(5) == (3 << 13) | 5
    assert ring.for_ssid((1 << 13) | 77) == bytes.fromhex("cd" * 16)
    assert ring.for_ssid(0) is None


@pytest.mark.parametrize(
    ("sentence", "text", "mode", "words"),
    [
        ("an empty file has no key", "# nothing\n", 0o400, "no key"),
        ("a key readable by all is no secret", f"0 {'ab' * 32}\n", 0o444, "chmod 0400"),
        ("a short key is named with its bound", "0 abcd\n", 0o400, ":1: the key has 2 octets, at least 16"),
        ("a number out of range is named", f"9 {'ab' * 32}\n", 0o400, "'9' is not between 0 and 7"),
        ("no hexadecimal", "0 secret-passphrase\n", 0o400, "not hexadecimal"),
        ("one word only", "0\n", 0o400, "expected `<number 0-7> <hex>`"),
        ("the same number twice", f"0 {'ab' * 32}\n0 {'cd' * 32}\n", 0o400, ":2: key 0 is there twice"),
    ],
)
def test_bad_key_files(sentence: str, text: str, mode: int, words: str, tmp_path: Path) -> None:
    with pytest.raises(KeyFileError) as caught:
        load_keys(write(tmp_path / "keys", text, mode))
    assert words in str(caught.value), sentence
    assert "secret-passphrase" not in str(caught.value), "a secret is never repeated"


def test_a_missing_key_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="can't be read"):
        load_keys(tmp_path / "none")
