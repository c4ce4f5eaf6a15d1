"""`hvd-agent jupyter` with a small program in JupyterLab's place."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_node import Node, wait_for

LAB = f"""#!{sys.executable}
import os, socket, pathlib
home = pathlib.Path.home() / ".hvdctl"
(home / "started").open("a").write(f"{{os.getpid()}}\\n")
if (home / "fail").exists():
    raise SystemExit("no")
server = socket.socket(socket.AF_UNIX)
server.bind(str(home / "jupyter.sock"))
server.listen()
while True:
    link, _ = server.accept()
    link.recv(100)
    link.sendall(b"HTTP/1.1 200 OK\\r\\n\\r\\n")
    link.close()
"""


@pytest.fixture
def head(node: Node, tmp_path: Path) -> Iterator[Node]:
    home = Path(tempfile.mkdtemp(prefix="hvd"))  # short, as sockets' paths must be
    lab = tmp_path / "jupyter-lab"
    lab.write_text(LAB)
    lab.chmod(0o755)
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "hello.ipynb").write_text("{}")
    (tmp_path / "shared").mkdir()
    node.env |= {
        "HOME": str(home),
        "HVD_LAB": str(lab),
        "HVD_EXAMPLES": str(tmp_path / "examples"),
        "HVD_SHARED": str(tmp_path / "shared"),
        "HVD_SETTLE": "0.01",
    }
    yield node
    node.call("jupyter", "stop")
    shutil.rmtree(home)


def home(head: Node) -> Path:
    return Path(head.env["HOME"]) / ".hvdctl"


def answers(head: Node) -> bool:
    return bool(head.ask("jupyter", "status")["answers"])


def servers(head: Node) -> list[int]:
    return [int(pid) for pid in (home(head) / "started").read_text().split()]


def test_it_runs_answers_and_is_started_once(head: Node) -> None:
    assert head.ask("jupyter", "start", stdin={"cluster": "demo"}) == {"changed": True, "installed": True}
    wait_for(lambda: answers(head))
    assert head.ask("jupyter", "start", stdin={"cluster": "demo"}) == {"changed": False, "installed": True}
    assert len(servers(head)) == 1
    assert json.loads((home(head) / "cluster.json").read_text()) == {"cluster": "demo"}
    assert head.ask("jupyter", "start", stdin={"cluster": "other"})["changed"]
    assert not head.ask("jupyter", "start", stdin={"cluster": "other", "after": 3})["changed"]
    assert json.loads((home(head) / "cluster.json").read_text())["after"] == 3
    assert len(servers(head)) == 1
    (home(head) / "cluster.json").write_text("")
    assert head.ask("jupyter", "start", stdin={"cluster": "demo"})["changed"], "one that is not whole is written anew"
    assert json.loads((home(head) / "cluster.json").read_text()) == {"cluster": "demo"}


def test_the_server_waits_until_up_is_over_or_somebody_asks_for_it(head: Node) -> None:
    head.env["HVD_SETTLE"] = "600"
    head.ask("jupyter", "start", stdin={})
    wait_for(lambda: (home(head) / "jupyter.lock").read_text().strip())
    time.sleep(0.5)
    told = head.ask("jupyter", "status")
    assert (told["running"], told["answers"], told["log"]) == (True, False, [])
    assert not (home(head) / "started").exists()
    head.ask("jupyter", "token")
    wait_for(lambda: answers(head))
    head.ask("jupyter", "token")
    assert len(servers(head)) == 1
    head.ask("jupyter", "stop")
    head.ask("jupyter", "start", stdin={})
    assert head.ask("jupyter", "stop") == {"changed": True}, "also while it waits"


def test_all_that_it_keeps_is_for_its_user_alone(head: Node) -> None:
    head.ask("jupyter", "start", stdin={})
    wait_for(lambda: answers(head))
    assert stat.S_IMODE(home(head).stat().st_mode) == 0o700
    for name in ("jupyter.token", "cluster.json", "jupyter.log"):
        assert stat.S_IMODE((home(head) / name).stat().st_mode) == 0o600, name


def test_the_token_is_kept_until_it_is_rotated(head: Node) -> None:
    head.ask("jupyter", "start", stdin={})
    wait_for(lambda: answers(head))
    first = head.ask("jupyter", "token")["token"]
    assert len(first) == 48
    head.ask("jupyter", "start", stdin={})
    assert head.ask("jupyter", "token")["token"] == first
    second = head.ask("jupyter", "rotate")["token"]
    assert second != first
    assert head.ask("jupyter", "token")["token"] == second
    assert len(servers(head)) == 1


def test_a_server_that_dies_is_started_again(head: Node) -> None:
    head.ask("jupyter", "start", stdin={})
    wait_for(lambda: answers(head))
    os.kill(servers(head)[0], signal.SIGKILL)
    wait_for(lambda: len(servers(head)) == 2 and answers(head))


def test_a_server_that_does_not_start_tells_its_last_words(head: Node) -> None:
    home(head).mkdir(mode=0o700)
    (home(head) / "fail").touch()
    head.ask("jupyter", "start", stdin={})
    wait_for(lambda: "no" in head.ask("jupyter", "status")["log"])
    told = head.ask("jupyter", "status")
    assert (told["running"], told["answers"]) == (True, False)


def test_stop_ends_it_for_good_and_resume_starts_only_what_was_wanted(head: Node) -> None:
    assert head.ask("jupyter", "resume") == {"changed": False}
    head.ask("jupyter", "start", stdin={})
    wait_for(lambda: answers(head))
    began = time.monotonic()
    assert head.ask("jupyter", "stop") == {"changed": True}
    assert time.monotonic() - began < 8
    assert not alive(servers(head)[0])
    assert not (home(head) / "cluster.json").exists()
    told = head.ask("jupyter", "status")
    assert (told["wanted"], told["running"], told["answers"]) == (False, False, False)
    assert head.ask("jupyter", "stop") == {"changed": False}
    assert head.ask("jupyter", "resume") == {"changed": False}
    refused = head.call("jupyter", "token")
    assert refused.returncode == 2
    assert "no JupyterLab" in refused.stdout


def test_a_node_that_is_started_again_goes_on_with_the_same_token(head: Node) -> None:
    head.ask("jupyter", "start", stdin={})
    wait_for(lambda: answers(head))
    token = head.ask("jupyter", "token")["token"]
    for pid in (int((home(head) / "jupyter.lock").read_text()), *servers(head)):
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not head.ask("jupyter", "status")["running"])
    assert head.ask("jupyter", "resume") == {"changed": True}
    wait_for(lambda: answers(head))
    assert head.ask("jupyter", "token")["token"] == token


def test_examples_come_once_and_what_became_of_them_stays(head: Node) -> None:
    head.ask("jupyter", "start", stdin={})
    notebook = Path(head.env["HVD_SHARED"]) / "notebooks" / "hello.ipynb"
    assert notebook.read_text() == "{}"
    notebook.unlink()
    head.ask("jupyter", "start", stdin={})
    assert not notebook.exists()


def test_notebooks_of_another_framework_come_beside_those_that_a_share_kept(head: Node) -> None:
    head.ask("jupyter", "start", stdin={})
    folder = Path(head.env["HVD_SHARED"]) / "notebooks"
    folder.joinpath("hello.ipynb").write_text("mine")
    examples = Path(head.env["HVD_EXAMPLES"])
    for name in ("hello.ipynb", "other.ipynb", "later.ipynb"):
        examples.joinpath(name).write_text("new")
    folder.joinpath("later.ipynb").write_text("also mine")
    assert head.ask("jupyter", "start", stdin={})["changed"]
    texts = {file.name: file.read_text() for file in folder.glob("*.ipynb")}
    assert texts == {"hello.ipynb": "mine", "later.ipynb": "also mine", "other.ipynb": "new"}
    assert not head.ask("jupyter", "start", stdin={})["changed"]


def test_a_share_that_takes_no_notebooks_keeps_nothing_from_starting(head: Node) -> None:
    folder = Path(head.env["HVD_SHARED"]) / "notebooks"
    folder.touch()
    assert head.ask("jupyter", "start", stdin={})["installed"]
    wait_for(lambda: answers(head))
    assert folder.is_file()


def test_a_token_that_a_crash_left_empty_is_made_anew(head: Node) -> None:
    head.ask("jupyter", "start", stdin={})
    (home(head) / "jupyter.token").write_text("")
    assert len(head.ask("jupyter", "token")["token"]) == 48
    head.ask("jupyter", "stop")
    home(head).joinpath("jupyter.token").touch()
    head.ask("jupyter", "resume")
    assert len((home(head) / "jupyter.token").read_text().strip()) == 48


def test_a_keeper_that_is_killed_takes_its_server_along(head: Node) -> None:
    head.ask("jupyter", "start", stdin={})
    wait_for(lambda: answers(head))
    os.kill(int((home(head) / "jupyter.lock").read_text()), signal.SIGKILL)
    wait_for(lambda: not alive(servers(head)[0]))
    assert head.ask("jupyter", "resume") == {"changed": True}
    wait_for(lambda: answers(head))
    assert [alive(pid) for pid in servers(head)] == [False, True]


def test_it_waits_for_a_share_that_is_not_there(head: Node) -> None:
    share = Path(head.env["HVD_SHARED"])
    away = share.rename(share.with_name("away"))
    head.ask("jupyter", "start", stdin={})
    wait_for(lambda: any("can't be started" in line for line in head.ask("jupyter", "status")["log"]))
    away.rename(share)
    wait_for(lambda: answers(head))


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_an_image_without_it_is_told(head: Node) -> None:
    head.env["HVD_LAB"] = "/nowhere"
    assert head.ask("jupyter", "start", stdin={}) == {"changed": False, "installed": False}
    assert not home(head).exists()


def test_the_environment_of_kernels_has_nothing_of_the_login(head: Node, tmp_path: Path) -> None:
    lab = Path(head.env["HVD_LAB"])
    lab.write_text(
        LAB.replace(
            "server = ", f"pathlib.Path({str(tmp_path / 'env')!r}).write_text(repr(dict(os.environ)))\nserver = "
        )
    )
    head.env["SSH_CONNECTION"] = "1.2.3.4 5 6.7.8.9 22"
    head.ask("jupyter", "start", stdin={})
    wait_for(lambda: answers(head))
    seen = (tmp_path / "env").read_text()
    assert "SSH_" not in seen
    assert "/opt/venv/bin" in seen
