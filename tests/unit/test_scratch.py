"""Temporary folders go with their hvdctl, however it ends."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hvdctl import paths, scratch

KEEP = """
import sys
from hvdctl import scratch
with scratch.folder() as made:
    print(made, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def test_a_folder_is_private_and_gone_at_the_end() -> None:
    with scratch.folder() as made:
        (made / "file").write_text("text")
        assert made.stat().st_mode & 0o777 == 0o700
    assert list(paths.runtime().iterdir()) == []


def test_a_killed_hvdctl_leaves_a_folder_that_the_next_one_removes() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", KEEP], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout
        theirs = Path(other.stdout.readline().strip())
        with scratch.folder() as ours:
            assert theirs.is_dir() and theirs.parent == ours.parent
        other.kill()
        other.wait()
    assert theirs.is_dir()
    scratch.sweep()
    assert not theirs.exists()


def test_a_folder_that_is_removed_before_it_is_held_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    real = tempfile.mkdtemp
    made: list[str] = []

    def mkdtemp(**words: Any) -> str:
        made.append(real(**words))
        if len(made) == 1:
            Path(made[0]).rmdir()
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", mkdtemp)
    with scratch.folder() as ours:
        assert str(ours) == made[1]
        assert ours.is_dir()


def test_any_place_and_name_and_a_way_to_remove(tmp_path: Path) -> None:
    (tmp_path / "download-of-a-killed-one").mkdir()
    (tmp_path / "kept").mkdir()
    removed = []

    def remove(made: Path) -> None:
        removed.append(made.name)
        scratch.remove(made)

    with scratch.folder(tmp_path, "download-", remove) as made:
        assert made.parent == tmp_path
        assert removed == ["download-of-a-killed-one"]
    assert [entry.name for entry in tmp_path.iterdir() if not entry.name.startswith("hvdctl-")] == ["kept"]


def test_folders_of_others_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "scratch-theirs").mkdir()
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    scratch.sweep(tmp_path)
    assert (tmp_path / "scratch-theirs").exists()


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    (paths.runtime() / "scratch-link").symlink_to(tmp_path / "kept")
    scratch.sweep()
    assert (tmp_path / "kept" / "file").exists()
