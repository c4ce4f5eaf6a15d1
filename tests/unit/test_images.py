from __future__ import annotations

import re
import shutil
import socketserver
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests
from hvdctl import debian, engine, graph, imagebuild, imageparts, imageplan, images, nodefiles, paths, process, wheels
from hvdctl.errors import HvdctlError, PhaseError, ToolMissing, UsageError
from hvdctl.progress import Silent


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the images' sources and of a small agent, free to be changed."""
    shutil.copytree(paths.asset("images"), tmp_path / "images")
    (tmp_path / "agent" / "sub").mkdir(parents=True)
    (tmp_path / "agent" / "__main__.py").write_text("print('one')\n")
    (tmp_path / "agent" / "sub" / "part.py").write_text("x = 1\n")
    for file in (
        "hvd_cluster/__init__.py",
        "hvdctl/errors.py",
        "hvdctl/bench/fit.py",
        "hvdctl/cli/up.py",
        "hvdctl/tunnel.py",
    ):
        (tmp_path / "library" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "library" / file).write_text("y = 1\n")
    shutil.copytree(paths.asset("examples", "notebooks"), tmp_path / "examples" / "notebooks")
    monkeypatch.setattr(paths, "asset", lambda *parts: tmp_path.joinpath(*parts))
    monkeypatch.setattr(paths, "agent", lambda: tmp_path / "agent")
    monkeypatch.setattr(paths, "library", lambda: tmp_path / "library")
    monkeypatch.setenv("HVDCTL_CACHE", str(tmp_path / "cache"))
    return tmp_path


def changed(tree: Path, path: str, edit: Callable[[str], str] = lambda text: text + "\n# changed\n") -> set[str]:
    """Which of the six names change with an edit of one file."""

    def names() -> dict[str, str]:
        found = {}
        for framework in images.FRAMEWORKS:
            found[f"{framework} node"] = images.reference(framework, jupyter=False)
            found[f"{framework} lab"] = images.reference(framework)
            found[f"{framework} compiled"] = images.compiled_reference(framework)
        return found

    before = names()
    file = tree / path
    file.write_text(edit(file.read_text() if file.exists() else ""))
    after = names()
    return {name for name in before if before[name] != after[name]}


ALL = {f"{framework} {kind}" for framework in images.FRAMEWORKS for kind in ("node", "lab", "compiled")}
LABS = {"pytorch lab", "tensorflow lab"}
NODES = {"pytorch node", "tensorflow node"} | LABS


@pytest.mark.parametrize("framework", images.FRAMEWORKS)
def test_the_name_tells_the_framework_and_a_digest(framework: str) -> None:
    assert re.fullmatch(rf"hvdctl/jupyter:{framework}-[0-9a-f]{{12}}", images.reference(framework))
    assert images.reference(framework) == images.reference(framework)
    bare = images.reference(framework, jupyter=False)
    assert re.fullmatch(rf"hvdctl/horovod:{framework}-[0-9a-f]{{12}}", bare)


def test_the_cuda_variant_has_a_name_of_its_own() -> None:
    assert re.fullmatch(r"hvdctl/jupyter:tensorflow-cuda12\.2-[0-9a-f]{12}", images.reference("tensorflow", "12.2"))


@pytest.mark.parametrize(
    "path",
    [
        "agent/__main__.py",
        "images/base/Dockerfile",
        "images/base/hvd-link",
        "images/base/sshd_config",
        "images/horovod/describe.py",
        "images/horovod/runtime.Dockerfile",
        "agent/sub/part.py",
        "agent/new.py",
        "images/horovod/hvd-agent",
        "images/horovod/agent.Dockerfile",
        "library/hvd_cluster/__init__.py",
    ],
)
def test_agent_and_base_change_the_node_but_not_what_is_compiled(tree: Path, path: str) -> None:
    assert changed(tree, path) == NODES


@pytest.mark.parametrize(
    "path",
    [
        "images/jupyter/Dockerfile",
        "images/jupyter/lab.Dockerfile",
        "images/jupyter/trim.sh",
        "images/jupyter/server_config.py",
        "library/hvdctl/errors.py",
        "library/hvdctl/bench/fit.py",
        "examples/notebooks/hello.ipynb",
    ],
)
def test_what_is_for_notebooks_changes_nothing_where_there_is_no_jupyter(tree: Path, path: str) -> None:
    assert changed(tree, path) == LABS


@pytest.mark.parametrize(
    "path",
    [
        "images/debian/Dockerfile",
        "images/toolchain/Dockerfile",
        "images/toolchain/common.cmake",
        "images/toolchain/prepare.sh",
        "images/horovod/Dockerfile",
        "images/horovod/compile.sh",
        "images/horovod/trim.sh",
    ],
)
def test_sources_of_the_compile_change_everything(tree: Path, path: str) -> None:
    assert changed(tree, path) == ALL


@pytest.mark.parametrize(
    "path",
    [
        "images/base/README.md",
        "images/horovod/README.md",
        "images/jupyter/README.md",
        "images/versions.toml",
        "images/cuda/Dockerfile",
        "library/hvdctl/cli/up.py",
        "library/hvdctl/tunnel.py",
    ],
)
def test_words_for_people_and_other_variants_change_nothing(tree: Path, path: str) -> None:
    assert changed(tree, path) == set()


def test_compiled_python_changes_nothing(tree: Path) -> None:
    (tree / "agent/__pycache__").mkdir()
    assert changed(tree, "agent/__pycache__/x.pyc") == set()


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('horovod]\nversion = "0.28.1"', 'horovod]\nversion = "0.28.2"', ALL),
        ('suite = "bookworm"', 'suite = "trixie"', ALL),
        ('psutil = "7.2.2"', 'psutil = "7.2.3"', ALL),
        ('cmake = "3.31.10"', 'cmake = "3.31.11"', ALL),
        ('pip = "26.3"', 'pip = "26.4"', LABS),
        ('jupyterlab = "4.6.6"', 'jupyterlab = "4.6.7"', LABS),
        ('torch = "2.13.0+cpu"', 'torch = "2.14.0+cpu"', {"pytorch node", "pytorch lab", "pytorch compiled"}),
        ('keras = "2.15.0"', 'keras = "2.15.9"', {"tensorflow node", "tensorflow lab", "tensorflow compiled"}),
        ('torch = "2.13.0" # PyPI', 'torch = "2.13.1" # PyPI', set()),
    ],
)
def test_a_version_changes_the_images_that_it_goes_into(tree: Path, old: str, new: str, expected: set[str]) -> None:
    def edit(text: str) -> str:
        assert old in text
        return text.replace(old, new)

    assert changed(tree, "images/versions.toml", edit) == expected


def test_every_file_of_jupyter_goes_somewhere() -> None:
    used = {*imageplan.LABFILES, *imageplan.LAB, *nodefiles._PLACES}
    assert used == set(nodefiles.folder("jupyter"))


def test_what_is_on_nodes_is_enough_to_measure_predict_and_draw(tmp_path: Path) -> None:
    """The files of the image alone, with what its JupyterLab brings; nothing of hvdctl that stays at home."""
    for name, content in nodefiles.jupyter("pytorch").items():
        if "/opt/hvdctl/lib/" in name:
            file = tmp_path / name.partition("/opt/hvdctl/lib/")[2]
            file.parent.mkdir(parents=True, exist_ok=True)
            assert isinstance(content, bytes)
            file.write_bytes(content)
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "import hvd_cluster.talk, hvd_cluster.sweeps, hvd_cluster.stored\n"
        "from hvdctl.bench import figures, findings, fit, micro, plan, predict, ranks, report, results\n"
        "import hvdctl; print(hvdctl.__file__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(tmp_path))


def test_the_same_package_is_of_the_same_version_in_all_lists() -> None:
    known = wheels.versions()
    shared = known["common"].keys() & known["jupyter"].keys()
    assert {name: known["common"][name] for name in shared} == {name: known["jupyter"][name] for name in shared}


def test_a_frameworks_name_is_checked() -> None:
    with pytest.raises(UsageError, match="mxnet"):
        images.reference("mxnet")


def test_the_name_needs_no_engine_and_no_docker_package() -> None:
    code = "import sys; from hvdctl import images; images.reference('pytorch'); sys.exit('docker' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class Engine:
    """An engine that has some images, by name, and builds others in no time."""

    def __init__(self, *names: str) -> None:
        self.names = set(names)
        self.pruned = 0
        self.images = SimpleNamespace(list=self._list, get=self._get, prune=self._prune)

    def close(self) -> None:
        pass

    def _list(self, name: str) -> list[str]:
        return [name] if name in self.names else []

    def _get(self, name: str) -> Any:
        assert name in self.names
        return SimpleNamespace(id="sha256:1")

    def _prune(self, filters: dict[str, Any]) -> None:
        self.pruned += 1


@pytest.fixture
def held(tree: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    found = Engine()
    monkeypatch.setattr(engine, "client", lambda timeout=60: found)
    return found


def todo(held: Engine, *wanted: imageparts.Part, rebuild: bool = False) -> dict[str, tuple[str, ...]]:
    tasks = imageparts.missing(wanted, held, rebuild=rebuild)  # type: ignore[arg-type]
    return {task.title: task.after for task in tasks}


def test_an_image_that_exists_is_not_built(held: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    held.names.add(images.reference("pytorch"))
    monkeypatch.setattr(graph, "run", lambda tasks, progress, later=(): pytest.fail("built"))
    built = images.build("pytorch", Silent())
    assert (built.reference, built.id, built.built) == (images.reference("pytorch"), "sha256:1", False)


def test_all_that_an_image_is_made_of_is_made_in_order_and_once(held: Engine) -> None:
    plans = [imageplan.plan_of(framework) for framework in images.FRAMEWORKS]
    tasks = todo(held, *(imageparts.node(plan) for plan in plans), imageparts.machine(plans[0]))
    assert list(tasks).count("Debian") == 1
    for title, after in tasks.items():
        assert all(list(tasks).index(before) < list(tasks).index(title) for before in after), title
    assert tasks["JupyterLab"] == ("Base image", "Packages for JupyterLab"), "no framework is waited for"
    assert tasks["Machine image"] == ("Debian",)
    assert "Compilers and common code" in tasks["Horovod for tensorflow"]


def test_what_exists_needs_nothing_below_it(held: Engine) -> None:
    plan = imageplan.plan_of("pytorch")
    held.names |= {plan.names["runtime"], plan.names["labfiles"]}
    assert list(todo(held, imageparts.node(plan))) == ["JupyterLab for pytorch", "Node image for pytorch"]
    assert list(todo(held, imageparts.node(plan, jupyter=False))) == ["Node image for pytorch"]


def test_a_rebuild_makes_every_image_but_downloads_nothing_twice(held: Engine) -> None:
    plan = imageplan.plan_of("pytorch")
    held.names |= set(plan.names.values())
    for pins in (plan.pins, plan.toolchain, plan.lab):
        wheels.house(pins).mkdir(parents=True)
    assert todo(held, imageparts.node(plan)) == {}
    titles = list(todo(held, imageparts.node(plan), rebuild=True))
    assert {"Debian", "Base image", "Horovod for pytorch", "JupyterLab"} <= set(titles)
    assert not [title for title in titles if title.startswith("Packages")]


def test_the_cuda_variant_is_compiled_on_its_own_root(held: Engine) -> None:
    plan = imageplan.plan_of("tensorflow", "12.2")
    tasks = todo(held, imageparts.node(plan))
    assert tasks["CUDA 12.2"] == ("Compilers and common code",)
    assert "CUDA 12.2" in tasks["Horovod for tensorflow with CUDA 12.2"]


def test_scripts_in_a_context_are_executable_wherever_they_come_from(tree: Path) -> None:
    wheel = tree / "a.whl"
    wheel.write_bytes(b"wheel")
    with (
        imagebuild.packed({"run": b"#!/bin/sh\n", "data": b"x", "wheels/a.whl": wheel}) as archive,
        tarfile.open(fileobj=archive) as tar,
    ):
        modes = {entry.name: entry.mode & 0o777 for entry in tar}
        assert modes == {"run": 0o755, "data": 0o644, "wheels/a.whl": 0o644}
        content = tar.extractfile("wheels/a.whl")
        assert content is not None and content.read() == b"wheel"


class Shown(Silent):
    def __init__(self) -> None:
        self.details: list[str] = []

    def update(self, detail: str) -> None:
        self.details.append(detail)


def heard(tmp_path: Path, *events: dict[str, Any]) -> tuple[imagebuild.Lines, Shown]:
    shown = Shown()
    lines = imagebuild.Lines(tmp_path / "log", shown)
    for event in events:
        lines.event(event)
    return lines, shown


def test_a_compile_is_shown_in_percent(tmp_path: Path) -> None:
    _, shown = heard(
        tmp_path,
        {"stream": "Step 1/2 : RUN make\n"},
        {"stream": "  [  3%] Building CXX object a.o\n  /usr/bin/c++ -DX a.cc\n  [ 4"},
        {"stream": "7%] Building CXX object b.o\n"},
        {"stream": "Step 2/2 : RUN true\n"},
    )
    assert shown.details == ["Step 1/2 : RUN make", "compiling, 3 %", "compiling, 47 %", "Step 2/2 : RUN true"]


def test_a_failure_shows_the_lines_that_tell_why(tmp_path: Path) -> None:
    lines, _ = heard(
        tmp_path,
        {"stream": "a.cc:1: error: no member named 'x'\n"},
        *({"stream": f"make: leaving {count}\n"} for count in range(20)),
        {"error": "The command '/bin/sh -c make' returned a non-zero code: 2"},
    )
    failure = lines.failure("hvdctl/x:1")
    assert isinstance(failure, PhaseError)
    assert "non-zero code: 2" in failure.message and "no member named 'x'" in failure.message
    assert failure.log is not None and "leaving 19" in failure.log.read_text()


def test_a_full_disk_and_a_lost_engine_are_said_plainly(tmp_path: Path) -> None:
    full, _ = heard(tmp_path, {"error": "write /x: no space left on device"})
    assert full.failure("hvdctl/x:1").message == "hvdctl/x:1 was not built: the disk is full"
    lost, _ = heard(tmp_path, {"stream": "Step 1/2\n"})
    assert not lost.finished
    assert "engine went away" in lost.failure("hvdctl/x:1").message


def test_no_engine_is_one_clear_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    with pytest.raises(ToolMissing, match=r"no Docker engine answers at unix://.*/none\.sock") as caught:
        engine.client()
    assert "systemctl start docker" in caught.value.hint


def test_a_socket_without_permission_has_its_own_hint() -> None:
    error = RuntimeError("while fetching the version")
    error.__cause__ = PermissionError(13, "Permission denied")
    assert "group docker" in engine.unreachable(error).hint


class FailingEngine(BaseHTTPRequestHandler):
    """An engine that ends in the middle of a build, and whose disk is full when a file system is imported."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.answer(200, b"")

    def do_GET(self) -> None:
        self.answer(200, b"[]" if "/images/json" in self.path else b'{"ApiVersion": "1.41"}')

    def do_POST(self) -> None:
        self.close_connection = True
        if "fromSrc" in self.path:
            self.answer(500, b'{"message": "Error processing tar file: write /x: no space left on device"}')
            return
        self.rfile.read(1)
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        chunk = b'{"stream": "Step 1/2\\n"}\r\n'
        self.wfile.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))

    def answer(self, code: int, data: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass

    def address_string(self) -> str:
        return "engine"


@pytest.fixture
def failing_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/engine.sock")
    monkeypatch.setenv("HVDCTL_CACHE", str(tmp_path))
    with socketserver.ThreadingUnixStreamServer(f"{tmp_path}/engine.sock", FailingEngine) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield
        server.shutdown()


def test_an_engine_that_dies_during_a_build_is_one_clear_line(failing_engine: None) -> None:
    part = imageparts.machine(imageplan.plan_of("pytorch"))
    with pytest.raises(ToolMissing, match=r"^hvdctl/vm:\w+ was not built: no Docker engine answers") as caught:
        part.make(Silent(), False)
    assert "start it with" in caught.value.hint
    assert caught.value.log is not None and "Step 1/2" in caught.value.log.read_text()


def test_an_engine_without_room_for_debian_is_one_clear_line(
    failing_engine: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tree_in(argv: list[Any], say: Callable[[str], None], what: str) -> None:
        if what == "tar":
            Path(argv[argv.index("-cf") + 1]).touch()

    monkeypatch.setattr(debian, "pull", lambda image: False)
    monkeypatch.setattr(debian, "_as_root", list)
    monkeypatch.setattr(debian, "_do", tree_in)
    monkeypatch.setattr(process, "tool", lambda name, hint="": name)
    (part,) = imageparts.machine(imageplan.plan_of("pytorch")).needs
    with pytest.raises(HvdctlError, match=r"^hvdctl/debian:[\w-]+ was not built: the disk is full$") as caught:
        part.make(Silent(), False)
    assert "docker image prune" in caught.value.hint


def test_a_long_command_is_cut_in_the_message_only(tmp_path: Path) -> None:
    error = f"The command '/bin/sh -c {'apt-get update && ' * 20}' returned a non-zero code: 100"
    lines, _ = heard(tmp_path, {"stream": "E: Unable to locate package tini\n"}, {"error": error})
    failure = lines.failure("hvdctl/x:1")
    assert len(failure.message) < 200 and "returned a non-zero code: 100" in failure.message
    assert failure.log is not None and error in failure.log.read_text()


def test_an_engine_that_dies_between_two_builds_is_one_clear_line(
    held: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(filters: object) -> None:
        raise requests.exceptions.ConnectionError("Connection aborted.")

    monkeypatch.setattr(graph, "run", lambda tasks, progress, later=(): None)
    held.images.prune = lost
    with pytest.raises(ToolMissing, match="no Docker engine answers"):
        images.build("pytorch", Silent())
