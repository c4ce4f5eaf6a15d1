"""An image goes along a line of machines: real relays and sockets, an ssh, sudo and docker that stay here."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hvdctl import engine, imagepush
from hvdctl.errors import HvdctlError

IMAGE = "hvdctl/horovod:1"
BOTTOM, TOP = b"bottom" * 50_000, b"top layer"


def sum_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def archive() -> bytes:
    """As the engine writes it: the manifest last."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in (
            ("aaa/layer.tar", BOTTOM),
            ("config.json", b"{}"),
            ("bbb/layer.tar", TOP),
            ("manifest.json", b"[]"),
        ):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


class Line:
    """Machines, each a folder: `has.json` is what its engine has, `loaded.tar` what was loaded there."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.saved = 0

    def machine(self, name: str, *layers: bytes) -> str:
        folder = self.root / name
        folder.mkdir()
        had = [{"Id": "sha256:old", "RepoTags": [], "RootFS": {"Layers": [sum_of(one) for one in layers]}}]
        (folder / "has.json").write_text(json.dumps(had if layers else []))
        return name

    def loaded(self, name: str) -> list[str]:
        with tarfile.open(self.root / name / "loaded.tar") as tar:
            return tar.getnames()

    def pieces(self, name: str) -> Iterator[bytes]:
        self.saved += 1
        whole = archive()
        for start in range(0, len(whole), 4096):
            yield whole[start : start + 4096]

    def push(self, *names: str) -> imagepush.Pushed:
        return imagepush.push(Path("config"), IMAGE, names, dict.fromkeys(names, "127.0.0.1"))


@pytest.fixture
def line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Line:
    made = Line(tmp_path / "machines")
    made.root.mkdir()
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "ssh").write_text(
        f'#!/bin/sh\nwhile [ "$1" != -- ]; do name=$1; shift; done\nshift\ncd {made.root}/"$name" && exec sh -c "$1"\n'
    )
    (programs / "sudo").write_text('#!/bin/sh\nshift\nexec "$@"\n')
    (programs / "docker").write_text(
        "#!/bin/sh\n"
        'case "$1 $2" in\n'
        '"image ls") echo any ;;\n'
        '"image inspect") cat has.json ;;\n'
        '"load --quiet") [ ! -e full ] || { echo "no space left on device" >&2; exit 1; }\n'
        "    cat >loaded.tar\n"
        "    [ -e forgets ] || cp ../image.json has.json ;;\n"
        "esac\n"
    )
    for program in programs.iterdir():
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    layers = [sum_of(BOTTOM), sum_of(TOP)]
    known = {"Id": "sha256:new", "RepoTags": [IMAGE], "RootFS": {"Layers": layers}}
    (made.root / "image.json").write_text(json.dumps([known]))
    found = SimpleNamespace(id="sha256:new", attrs=known)
    client: Any = SimpleNamespace(
        images=SimpleNamespace(get=lambda name: found), api=SimpleNamespace(get_image=made.pieces), close=lambda: None
    )
    monkeypatch.setattr(engine, "client", lambda timeout=60: client)
    return made


def test_every_machine_of_the_line_loads_the_whole_image(line: Line) -> None:
    names = [line.machine(f"node{index}.machine") for index in range(4)]
    done = line.push(*names)
    assert done.machines == names
    assert done.bytes > len(BOTTOM)
    for name in names:
        assert line.loaded(name) == ["aaa/layer.tar", "config.json", "bbb/layer.tar", "manifest.json"]


def test_layers_that_all_have_stay_here_and_the_rest_is_written_once(line: Line) -> None:
    names = [line.machine(f"node{index}.machine", BOTTOM) for index in range(2)]
    done = line.push(*names)
    assert done.bytes < len(BOTTOM)
    assert line.loaded(names[1]) == ["config.json", "bbb/layer.tar", "manifest.json"]
    late = line.machine("node2.machine", BOTTOM)
    assert line.push(*names, late).machines == [late]
    assert line.saved == 1


def test_a_layer_that_one_has_not_is_sent(line: Line) -> None:
    names = [line.machine("a", BOTTOM), line.machine("b", TOP)]
    line.push(*names)
    assert "aaa/layer.tar" in line.loaded("a"), "a chain from the bottom, or nothing"


def test_machines_that_have_it_are_left_alone(line: Line) -> None:
    name = line.machine("a")
    line.push(name)
    (line.root / name / "loaded.tar").unlink()
    assert line.push(name).machines == []
    assert not (line.root / name / "loaded.tar").exists()


def test_the_machine_that_fails_is_named_with_its_word(line: Line) -> None:
    names = [line.machine(name) for name in ("a", "b", "c")]
    (line.root / "b" / "full").touch()
    with pytest.raises(HvdctlError) as failed:
        line.push(*names)
    assert "did not get to b: b: no space left on device" in failed.value.message


def test_an_image_that_did_not_arrive_is_no_success(line: Line) -> None:
    name = line.machine("a")
    (line.root / name / "forgets").touch()
    with pytest.raises(HvdctlError, match="did not arrive on a"):
        line.push(name)


def test_an_engine_that_can_not_be_asked_is_told(line: Line) -> None:
    with pytest.raises(HvdctlError, match="gone: its Docker engine can't be asked"):
        line.push("gone")


def test_as_a_program_it_answers_with_json(line: Line, capsys: pytest.CaptureFixture[str]) -> None:
    name = line.machine("a")
    assert imagepush.main(["config", IMAGE, f"{name}=127.0.0.1"]) == 0
    assert json.loads(capsys.readouterr().out)["pushed"] == ["a"]
    assert imagepush.main(["config", IMAGE, "gone=127.0.0.1"]) == 1
    assert "gone" in capsys.readouterr().err
