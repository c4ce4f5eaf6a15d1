"""The disk of virtual machines is made by an engine that keeps its images and containers in lists."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hvdctl import engine, imageplan, images, owner, qemu, vmimage
from hvdctl.errors import UsageError
from hvdctl.progress import Silent


class Container:
    """Writes the three files of an image to where it is told."""

    def __init__(self, holder: Engine, labels: dict[str, str], out: Path) -> None:
        self.holder, self.labels, self.out = holder, labels, out

    def start(self) -> None:
        for name in ("disk.raw", "vmlinuz", "initrd"):
            (self.out / name).write_bytes(b"made")

    def wait(self) -> dict[str, int]:
        return {"StatusCode": 0}

    def logs(self) -> bytes:
        return b""

    def remove(self, *, force: bool, v: bool) -> None:
        assert force and v, "it may run, and has a volume"
        self.holder.held.remove(self)


class Engine:
    def __init__(self) -> None:
        self.names = set(imageplan.plan_of("pytorch").names.values())
        self.saved: list[str] = []
        self.labels: dict[str, str] = {}
        self.options: dict[str, Any] = {}
        self.held: list[Container] = []
        self.images = SimpleNamespace(list=lambda name: [name] if name in self.names else [], get=self._image)
        self.containers = SimpleNamespace(create=self._create, list=self._list)

    def close(self) -> None:
        pass

    def _image(self, name: str) -> Any:
        assert name in self.names

        def save(named: str) -> list[bytes]:
            self.saved.append(named)
            return [b"layers"]

        return SimpleNamespace(id="sha256:1", save=save)

    def _create(
        self, image: str, command: list[str], *, labels: dict[str, str], mounts: list[Any], **options: Any
    ) -> Container:
        self.labels = labels
        self.options = options
        self.held.append(Container(self, labels, Path(mounts[0]["Source"])))
        return self.held[-1]

    def _list(self, *, all: bool, filters: dict[str, list[str]], ignore_removed: bool) -> list[Container]:
        assert all and ignore_removed
        wanted = dict(label.split("=", 1) for label in filters["label"])
        return [one for one in self.held if wanted.items() <= one.labels.items()]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Engine:
    found = Engine()
    monkeypatch.setattr(engine, "client", lambda timeout=60: found)
    return found


def build() -> images.Built:
    return vmimage.build("pytorch", Silent())


def test_a_disk_is_made_once_and_leaves_nothing_else(made: Engine) -> None:
    done = build()
    assert done.built
    assert sorted(file.name for file in Path(done.reference).iterdir()) == ["disk.raw", "initrd", "vmlinuz"]
    assert [folder.name for folder in Path(done.reference).parent.iterdir()] == [done.id]
    assert made.held == []
    assert not build().built


def test_what_writes_the_disk_has_one_capability_and_no_network(made: Engine) -> None:
    build()
    assert made.options == {
        "network_mode": "none",
        "cap_add": ["SYS_ADMIN"],
        "security_opt": ["apparmor=unconfined", "no-new-privileges"],
    }


def test_what_a_killed_build_left_is_removed_and_what_others_make_is_not(made: Engine, tmp_path: Path) -> None:
    root = Path(build().reference).parent
    left = root / ".making-dead"
    left.mkdir()
    mine = Container(made, made.labels, left)
    others = [
        Container(made, {**made.labels, "hvdctl.making": "/other/cache"}, tmp_path),
        Container(made, {**made.labels, owner.MARK: "0" * 16}, tmp_path),  # the same path in another home
    ]
    mine.start()
    made.held += [mine, *others]
    assert [one.folder for one in vmimage.installed()] == [vmimage.image("pytorch").folder], "one being made is none"

    vmimage.image("pytorch").disk.unlink()
    build()
    assert made.held == others
    assert not left.exists()


def test_lower_layers_whose_name_was_pruned_come_from_the_nodes_image(made: Engine) -> None:
    names = imageplan.plan_of("pytorch").names
    build()
    made.names.remove(names["lab"])
    vmimage.image("pytorch").disk.unlink()
    build()
    assert made.saved == [names["lab"], names["jupyter"]]


def test_an_image_stays_while_a_disk_is_based_on_it(made: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(build().reference).parent
    old = {name: root / f"pytorch-{name}" for name in ("based", "free")}
    for folder in old.values():
        folder.mkdir()
        Container(made, {}, folder).start()
    monkeypatch.setattr(qemu, "in_use", lambda image: image.folder == old["based"])
    vmimage.image("pytorch").disk.unlink()
    build()
    assert (old["based"].exists(), old["free"].exists()) == (True, False)


def test_an_image_in_use_is_not_made_again(made: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    there = Path(build().reference)
    monkeypatch.setattr(qemu, "in_use", lambda image: image.folder == there)
    with pytest.raises(UsageError, match="is what machines run on"):
        vmimage.build("pytorch", Silent(), rebuild=True)
    assert vmimage.image("pytorch").whole
