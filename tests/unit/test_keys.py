from __future__ import annotations

import stat
from pathlib import Path

import pytest
from hvdctl import keys, process


def mode(path: Path) -> str:
    return oct(stat.S_IMODE(path.stat().st_mode))


def test_only_the_owner_reads_a_private_key(tmp_path: Path) -> None:
    pair = keys.ensure(tmp_path / "ssh" / "host_keys" / "node0")
    assert mode(pair.private) == "0o600"
    assert mode(pair.private.parent) == "0o700"


def test_a_key_is_made_once(tmp_path: Path) -> None:
    first = keys.ensure(tmp_path / "key")
    text = first.private.read_text()
    assert keys.ensure(tmp_path / "key").public == first.public
    assert first.private.read_text() == text
    assert keys.ensure(tmp_path / "other").public != first.public


def test_ssh_keygen_reads_both_halves_as_one_pair(tmp_path: Path) -> None:
    pair = keys.ensure(tmp_path / "key")
    told = process.capture([process.tool("ssh-keygen"), "-y", "-f", pair.private])
    assert told.stdout.split()[:2] == pair.public.split()
    assert pair.public.startswith("ssh-ed25519 ")


@pytest.mark.parametrize("left", ["", "-----BEGIN OPENSSH PRIVATE KEY-----\nhalf"])
def test_a_key_that_a_kill_left_half_written_is_made_anew(tmp_path: Path, left: str) -> None:
    (tmp_path / "key").write_text(left)
    pair = keys.ensure(tmp_path / "key")
    assert process.capture([process.tool("ssh-keygen"), "-y", "-f", pair.private]).returncode == 0
    assert mode(pair.private) == "0o600"
