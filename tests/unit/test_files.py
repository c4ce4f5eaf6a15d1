from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest
from hvdctl import files, keys
from hvdctl.cli import edge
from hvdctl.cluster import Cluster
from hvdctl.spec import Spec


class Disk:
    """Notes what reaches the disk, in order; it is full from the given sync on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, full_from: int | None = None) -> None:
        self.seen: list[str] = []
        self.full_from = full_from
        self._fsync, self._rename = os.fsync, os.rename
        monkeypatch.setattr(os, "fsync", self.fsync)
        monkeypatch.setattr(Path, "replace", self.replace(Path.replace))

    def fsync(self, handle: int) -> None:
        name = Path(f"/proc/self/fd/{handle}").readlink()
        folder = stat.S_ISDIR(os.fstat(handle).st_mode)
        if not folder and self.full_from is not None and len(self.seen) >= self.full_from:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.seen.append(f"folder {name.name}" if folder else "content")
        self._fsync(handle)

    def replace(self, real: object) -> object:
        def noted(source: Path, target: Path) -> Path:
            self.seen.append(f"name {target.name}")
            return real(source, target)  # type: ignore[operator,no-any-return]

        return noted


def test_content_then_name_then_folder_reach_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    files.write(tmp_path / "file", "text")
    assert disk.seen == ["content", "name file", f"folder {tmp_path.name}"]


def test_all_that_a_cluster_and_its_keys_need_is_on_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster("demo")
    disk = Disk(monkeypatch)
    cluster.store_spec(Spec(name="demo"))
    cluster.store_nodes([])
    cluster.complete("provision", 1.0)
    cluster.key()
    named = [step for step in disk.seen if step.startswith("name ")]
    assert named == ["name spec.json", "name nodes.json", "name phases.json", "name id_ed25519", "name id_ed25519.pub"]
    assert all(disk.seen[disk.seen.index(step) - 1] == "content" for step in named)


def test_a_full_disk_leaves_the_old_content_and_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files.write(tmp_path / "file", "old")
    Disk(monkeypatch, full_from=0)
    with pytest.raises(OSError, match="No space left") as failed:
        files.write(tmp_path / "file", "new")
    assert failed.value.filename == str(tmp_path / "file")
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "old"


@pytest.mark.parametrize("half", ["private", "public"])
def test_a_full_disk_leaves_no_key_that_counts_as_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, half: str
) -> None:
    with monkeypatch.context() as full:
        # Of the private half come content, name and folder, before the public one.
        Disk(full, full_from=0 if half == "private" else 3)
        with pytest.raises(OSError, match="No space left"):
            keys.ensure(tmp_path / "key")
    pair = keys.ensure(tmp_path / "key")
    assert pair.public.startswith("ssh-ed25519 ")


def test_an_empty_public_half_is_made_from_the_private_one(tmp_path: Path) -> None:
    """As a full disk left it before: nodes may hold the key, so that it has to stay the same."""
    pair = keys.ensure(tmp_path / "key")
    private, public = pair.private.read_text(), pair.public
    for left in ("", "ssh-ed"):
        pair.public_file.write_text(left)
        assert keys.ensure(tmp_path / "key").public == public
    assert pair.private.read_text() == private


def test_a_full_disk_is_told_with_the_file_and_no_advice_that_loses_the_cluster(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    Disk(monkeypatch, full_from=0)
    with pytest.raises(SystemExit) as left:
        edge.guarded(lambda: cluster.complete("link", 1.0))
    told = capfd.readouterr().err
    assert left.value.code == 1
    assert f"No space left on device ({cluster.folder / 'phases.json'})" in told
    assert "free some space there" in told
    assert "HVDCTL_HOME" not in told


def test_a_file_of_the_users_own_that_cannot_be_replaced_is_written_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a single file that is mounted into a container."""
    file = tmp_path / "hvdctl.yml"
    file.write_text("old")

    def busy(file: Path, content: str | bytes, mode: int = 0o600) -> None:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(file))

    monkeypatch.setattr(files, "write", busy)
    files.rewrite(file, "new")
    assert file.read_text() == "new"


def test_a_file_that_may_not_be_written_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "hvdctl.yml"
    file.write_text("old")
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != file)  # root may write all
    with pytest.raises(PermissionError):
        files.rewrite(file, "new")
    assert file.read_text() == "old"
