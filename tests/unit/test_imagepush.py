"""An image goes along a line of machines: real relays and sockets, an ssh, sudo and docker that stay here."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hvdctl import engine, imagepush, relay, ssh
from hvdctl.errors import HvdctlError
from support import runs, wait_for

IMAGE = "hvdctl/horovod:1"
BOTTOM, TOP = b"bottom" * 50_000, b"top layer"


def sum_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def archive(bottom: bytes = BOTTOM) -> bytes:
    """As the engine writes it: the manifest last."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in (
            ("aaa/layer.tar", bottom),
            ("config.json", b"{}"),
            ("bbb/layer.tar", TOP),
            ("manifest.json", b"[]"),
        ):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


class Line:
    """Machines, each a folder: `has.json` is what its engine has, `loaded.tar` what was loaded there.

    Empty files make them fail: `full` and `hangs` the engine, `forgets` what was loaded, `slow`, `asleep` and
    `refuses` the ssh that a relay is started by, `crowded` the first login of it. `welcome` is what a login shell says.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.saved = 0
        self.breaks_off = False
        self.bottom = BOTTOM
        self.known: dict[str, Any] = {
            "Id": "sha256:new",
            "RepoTags": [IMAGE],
            "RootFS": {"Layers": [sum_of(BOTTOM), sum_of(TOP)]},
            "Created": "2026-01-01T00:00:00Z",
            "Config": {"Entrypoint": ["hvd-node"], "Env": ["PATH=/bin"], "Cmd": None, "User": "hvd"},
        }

    def machine(self, name: str, *layers: bytes, fails: str = "") -> str:
        folder = self.root / name
        folder.mkdir()
        had = [{"Id": "sha256:old", "RepoTags": [], "RootFS": {"Layers": [sum_of(one) for one in layers]}}]
        (folder / "has.json").write_text(json.dumps(had if layers else []))
        if fails:
            (folder / fails).touch()
        return name

    def of_containerd(self, name: str, *layers: bytes) -> str:
        """A machine whose engine counts ids in another way."""
        self.machine(name)
        other = {"Id": "sha256:else", "RepoDigests": ["x@sha256:else"], "RootFS": {"Layers": [*map(sum_of, layers)]}}
        (self.root / name / "has.json").write_text(json.dumps([other]))
        # Engines differ in how they write what is empty, and leave out what they don't know.
        settings = {"Entrypoint": ["hvd-node"], "Env": ["PATH=/bin"], "User": "hvd", "Labels": {}}
        loaded = {**self.known, "Id": "sha256:own", "RepoDigests": ["hvdctl/horovod@sha256:own"], "Config": settings}
        (self.root / name / "image.json").write_text(json.dumps([loaded]))
        return name

    def loaded(self, name: str) -> list[str]:
        with tarfile.open(self.root / name / "loaded.tar") as tar:
            return tar.getnames()

    def pieces(self, name: str) -> Iterator[bytes]:
        self.saved += 1
        whole = archive(self.bottom)
        for start in range(0, len(whole), 4096):
            yield whole[start : start + 4096]
            if self.breaks_off:
                raise OSError("the engine went away")

    def push(self, *names: str) -> imagepush.Pushed:
        return imagepush.push(Path("config"), IMAGE, names, dict.fromkeys(names, "127.0.0.1"))


@pytest.fixture
def line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Line:
    made = Line(tmp_path / "machines")
    made.root.mkdir()
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "ssh").write_text(
        "#!/bin/sh\n"
        'while [ "$1" != -- ]; do name=$1; shift; done\n'
        f'shift; cd {made.root}/"$name" || exit 255\n'
        "cat welcome 2>/dev/null\n"
        'case "$1" in *python3*)\n'
        "    echo $$ >>pids; [ ! -e crowded ] || {\n"
        '        rm crowded; echo "kex_exchange_identification: Connection closed by remote host" >&2; exit 255; }\n'
        '    [ ! -e refuses ] || { echo "Permission denied" >&2; exit 255; }\n'
        "    [ ! -e asleep ] || exec sleep 5\n"
        '    [ ! -e slow ] || { sh -c "$1"; code=$?; sleep 1; exit $code; }\n'
        "    # With a number of machines to wait for, none is let in before all of them knock.\n"
        "    if [ -e ../together ]; then\n"
        '        touch "../knocks.$name"; left=100\n'
        '        until [ "$(ls .. | grep -c knocks)" -ge "$(cat ../together)" ]; do\n'
        "            sleep 0.1; left=$((left - 1)); [ $left -gt 0 ] || exit 255\n"
        "        done\n"
        "    fi ;;\n"
        "esac\n"
        'exec sh -c "$1"\n'
    )
    (programs / "sudo").write_text('#!/bin/sh\nshift\nexec "$@"\n')
    (programs / "docker").write_text(
        "#!/bin/sh\n"
        'case "$1 $2" in\n'
        '"image ls") echo any ;;\n'
        '"image inspect") cat has.json ;;\n'
        '"load --quiet") [ ! -e full ] || { echo "no space left on device" >&2; exit 1; }\n'
        "    [ ! -e hangs ] || exec sleep 5\n"
        "    cat >loaded.tar\n"
        "    [ -e forgets ] || cp image.json has.json 2>/dev/null || cp ../image.json has.json ;;\n"
        "esac\n"
    )
    for program in programs.iterdir():
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    (made.root / "image.json").write_text(json.dumps([made.known]))
    client: Any = SimpleNamespace(
        images=SimpleNamespace(get=lambda name: SimpleNamespace(attrs=made.known)),
        api=SimpleNamespace(get_image=made.pieces),
        close=lambda: None,
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


def test_all_machines_are_logged_in_to_at_the_same_time(line: Line) -> None:
    names = [line.machine(f"m{index}") for index in range(5)]
    (line.root / "together").write_text("5")
    assert line.push(*names).machines == names


def test_a_long_line_is_logged_in_to_by_and_by(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imagepush, "_AT_ONCE", 2)
    names = [line.machine(f"m{index}") for index in range(5)]
    assert line.push(*names).machines == names


@pytest.mark.parametrize("which", ["a", "b"])
def test_a_login_that_a_crowded_server_cuts_is_tried_again(
    line: Line, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    monkeypatch.setattr(ssh, "PAUSES", (0.02,))
    names = [line.machine(name, fails="crowded" if name == which else "") for name in ("a", "b", "c")]
    assert line.push(*names).machines == names
    assert [len((line.root / name / "pids").read_text().split()) for name in names] == [
        2 if name == which else 1 for name in names
    ]


def test_a_server_that_always_cuts_is_named(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh, "PAUSES", ())
    with pytest.raises(HvdctlError, match="a can't take an image: a: kex_exchange_identification"):
        line.push(line.machine("a", fails="crowded"))


def test_few_are_logged_in_to_before_the_first_has_its_port(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imagepush, "_LOGIN", 1)
    names = [line.machine(f"m{index}", fails="asleep") for index in range(12)]
    with pytest.raises(HvdctlError, match="no answer within 1 s"):
        line.push(*names)
    assert len([name for name in names if (line.root / name / "pids").exists()]) <= 8


def test_a_login_shell_may_say_something(line: Line) -> None:
    name = line.machine("a")
    (line.root / name / "welcome").write_text("Welcome to [a]\n")
    assert line.push(name).machines == [name]
    assert line.push(name).machines == []


def test_a_machine_that_gives_no_list_of_images_is_named(line: Line) -> None:
    name = line.machine("a")
    (line.root / name / "has.json").write_text("Usage: docker [OPTIONS]\n")
    with pytest.raises(HvdctlError, match=r"a: its Docker engine gave no list of its images, but: Usage: docker"):
        line.push(name)


def test_the_machine_that_fails_is_named_with_its_word(line: Line) -> None:
    names = [line.machine("a"), line.machine("b", fails="full"), line.machine("c")]
    with pytest.raises(HvdctlError) as failed:
        line.push(*names)
    assert "did not get to b: b: no space left on device" in failed.value.message


def test_the_cause_is_named_though_its_neighbours_are_heard_first(line: Line) -> None:
    line.bottom = bytes(8_000_000)  # more than is under way between two machines
    names = [line.machine("a"), line.machine("b", fails="full"), line.machine("c")]
    (line.root / "b" / "slow").touch()
    with pytest.raises(HvdctlError, match="did not get to b: b: no space left on device"):
        line.push(*names)


def test_a_machine_that_hangs_does_not_hang_the_push(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imagepush, "_SLACK", 1)
    monkeypatch.setitem(relay.LIMITS, "piece", 0)
    line.bottom = bytes(8_000_000)
    with pytest.raises(HvdctlError, match="a took nothing of the image for 1 s"):
        line.push(line.machine("a", fails="hangs"))


def test_an_engine_that_never_ends_is_told(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imagepush, "_SLACK", 1)
    monkeypatch.setitem(relay.LIMITS, "load", 0)
    line.bottom = b""
    with pytest.raises(HvdctlError, match="b took no image within 1 s"):
        line.push(line.machine("a"), line.machine("b", fails="hangs"))


def test_a_machine_that_lets_nobody_in_is_named(line: Line) -> None:
    names = [line.machine("a", fails="asleep"), line.machine("b", fails="refuses"), line.machine("c")]
    with pytest.raises(HvdctlError, match="b can't take an image: b: Permission denied"):
        line.push(*names)


def test_a_machine_that_never_answers_is_named(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imagepush, "_LOGIN", 1)
    names = [line.machine("a"), line.machine("b", fails="asleep")]
    with pytest.raises(HvdctlError, match="b can't take an image: no answer within 1 s"):
        line.push(*names)


def test_an_engine_that_counts_ids_in_another_way_gets_it_once(line: Line) -> None:
    names = [line.machine("a"), line.of_containerd("b")]
    assert line.push(*names).machines == names
    assert line.push(*names).machines == []


def test_an_image_of_the_same_layers_with_other_settings_is_another(line: Line) -> None:
    name = line.of_containerd("a")
    line.push(name)
    line.known["Id"], line.known["Created"] = "sha256:newer", "2026-02-02T00:00:00Z"
    assert line.push(name).machines == [name]


FORGED = [
    {"Entrypoint": ["evil"]},
    {"Env": ["PATH=/bin", "LD_PRELOAD=/shared/evil.so"]},
    {"Cmd": ["evil"]},
    {"User": "root"},
    {"Volumes": {"/": {}}},
]


@pytest.mark.parametrize("containerd", [False, True])
@pytest.mark.parametrize("settings", FORGED)
def test_an_image_of_the_same_layers_that_runs_something_else_did_not_arrive(
    line: Line, settings: dict[str, Any], containerd: bool
) -> None:
    name = line.of_containerd("a") if containerd else line.machine("a")
    forged = {**line.known, "Id": "sha256:evil", "Config": {**line.known["Config"], **settings}}
    forged |= {"RepoDigests": ["x@sha256:evil"]} if containerd else {}
    (line.root / name / "image.json").write_text(json.dumps([forged]))
    with pytest.raises(HvdctlError, match="did not arrive on a"):
        line.push(name)


def test_an_engine_that_counts_ids_as_this_one_has_the_right_id(line: Line) -> None:
    name = line.machine("a")
    (line.root / name / "image.json").write_text(json.dumps([{**line.known, "Id": "sha256:else"}]))
    with pytest.raises(HvdctlError, match="did not arrive on a"):
        line.push(name)


def test_an_engine_that_loads_whole_archives_only_gets_all_layers(line: Line) -> None:
    names = [line.machine("a", BOTTOM), line.of_containerd("b", BOTTOM)]
    line.push(*names)
    assert "aaa/layer.tar" in line.loaded("b")


def test_a_name_without_a_tag_is_the_latest(line: Line) -> None:
    line.known["RepoTags"] = ["mine:latest"]
    (line.root / "image.json").write_text(json.dumps([line.known]))
    name = line.machine("a")
    for expected in ([name], []):
        assert imagepush.push(Path("config"), "mine", [name], {name: "127.0.0.1"}).machines == expected


def test_another_push_keeps_its_archives(line: Line, tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "push"
    folder.mkdir(parents=True)
    for name in ("theirs.tar", "written.part", "old.tar", "old.part"):
        (folder / name).write_text("x")
    for name in ("old.tar", "old.part"):
        os.utime(folder / name, (0, 0))
    line.push(line.machine("a", BOTTOM))
    assert {"theirs.tar", "written.part"} == {file.name for file in folder.iterdir() if len(file.name) < 15}
    assert len(list(folder.iterdir())) == 3


def test_an_archive_that_was_not_finished_is_not_kept(line: Line, tmp_path: Path) -> None:
    name = line.machine("a", BOTTOM)
    line.breaks_off = True
    with pytest.raises(OSError, match="the engine went away"):
        line.push(name)
    assert list((tmp_path / "cache" / "push").iterdir()) == []
    line.breaks_off = False
    assert line.push(name).machines == [name]


def test_layers_are_kept_beside_the_archives_and_a_full_disk_is_named(
    line: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "cache" / "push"

    def full(dir: Path) -> None:
        assert dir == folder
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    name = line.machine("a", BOTTOM)
    assert imagepush.main(["config", IMAGE, f"{name}=127.0.0.1"]) == 1
    assert capsys.readouterr().err == f"No space left on device: {folder}\n"


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


PUSHES = """
import sys
from pathlib import Path
from hvdctl import imagepush
imagepush._Chain(Path("config"), ["a", "b"], {"a": "127.0.0.1", "b": "127.0.0.1"}).start()
"""


@pytest.mark.skipif(not shutil.which("setpriv"), reason="setpriv ties children to their parent")
def test_a_push_that_is_terminated_leaves_no_login(line: Line) -> None:
    logins = [line.root / line.machine(name, fails="asleep") / "pids" for name in ("a", "b")]
    pushing = subprocess.Popen([sys.executable, "-c", PUSHES])
    wait_for(lambda: all(file.exists() and file.read_text().strip() for file in logins))
    pids = [int(file.read_text()) for file in logins]
    assert all(runs(pid) for pid in pids)
    pushing.terminate()
    pushing.wait()
    wait_for(lambda: not any(runs(pid) for pid in pids), seconds=3)
