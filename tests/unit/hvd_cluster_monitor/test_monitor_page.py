"""The page and its data, over a real UNIX socket, with an agent that says what a file holds."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hvd_cluster import monitor

SCRIPT = """#!/bin/sh
echo "$*" >>{folder}/asked
echo $$ >>{folder}/pids
[ -f {folder}/fails ] && {{ cat {folder}/fails; exit 2; }}
n=0
while :; do
  n=$((n + 1))
  echo "{{\\"time\\": $(date +%s).$n, \\"nodes\\": [{{\\"node\\": \\"node0\\"}}]}}"
  sleep 0.1
done
"""


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Short, as the paths of sockets are."""
    made = Path(tempfile.mkdtemp(prefix="hvd"))
    agent = made / "hvd-agent"
    agent.write_text(SCRIPT.format(folder=made))
    agent.chmod(0o755)
    monkeypatch.setenv("PATH", f"{made}{os.pathsep}{os.environ['PATH']}")
    yield made
    wait_for(lambda: not alive(made))
    shutil.rmtree(made)


def alive(folder: Path) -> list[int]:
    """The agents that run."""
    pids = (folder / "pids").read_text().split() if (folder / "pids").exists() else []
    return [int(pid) for pid in pids if Path(f"/proc/{pid}/cmdline").exists()]


@pytest.fixture
def feed() -> Iterator[monitor.Feed]:
    made = monitor.Feed(every=0.2, patience=4.0, retry=0.2)
    yield made
    made.close()


@pytest.fixture
def place(folder: Path, feed: monitor.Feed) -> Iterator[Path]:
    with monitor.Server(folder / "s", feed) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield folder / "s"
        server.shutdown()


class Connection(http.client.HTTPConnection):
    def __init__(self, place: Path) -> None:
        super().__init__("monitor")
        self.place = place

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(str(self.place))


def get(place: Path, path: str, method: str = "GET") -> tuple[http.client.HTTPResponse, bytes]:
    with contextlib.closing(Connection(place)) as connection:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer, answer.read()


def data(place: Path, since: int | str = 0) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(get(place, f"/data?since={since}")[1])
    return told


def wait_for(what: Callable[[], Any], seconds: float = 20) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)
    return found


def test_the_socket_is_the_users_alone(place: Path) -> None:
    assert stat.S_IMODE(place.stat().st_mode) == 0o600


def test_the_page_stands_alone(place: Path, folder: Path) -> None:
    answer, body = get(place, "/")
    page = body.decode()
    assert (answer.status, answer.getheader("Content-Type")) == (200, "text/html; charset=utf-8")
    assert "default-src 'none'" in str(answer.getheader("Content-Security-Policy"))
    # Behind a proxy, under any path: nothing may begin at the root, and nothing is fetched from elsewhere.
    assert re.findall(r"fetch\(`([^`]*)`", page) == ["data?since=${number}"]
    assert set(re.findall(r"https?://[^\"' ]+", page)) == {"http://www.w3.org/2000/svg"}
    assert not re.findall(r"""(?:src|href|action)=["'](?!data:)""", page)
    assert "innerHTML" not in page
    assert not (folder / "asked").exists(), "the page alone asks no node"


def test_what_came_since(place: Path, folder: Path) -> None:
    assert data(place)["documents"] == []
    first = wait_for(lambda: data(place)["documents"] and data(place))
    assert first["every"] == 0.2 and first["problem"] == ""
    assert first["documents"][0]["nodes"] == [{"node": "node0"}]
    assert (folder / "asked").read_text() == "top --every 0.2\n"
    later = wait_for(lambda: (told := data(place, first["number"]))["documents"] and told)
    assert later["number"] == first["number"] + len(later["documents"])
    assert len(data(place, 10**15)["documents"]) >= len(first["documents"]), "numbers of another time: all"
    assert data(place, "x")["documents"] and data(place, "-1")["documents"]


def test_one_agent_for_all_viewers_and_none_without(place: Path, folder: Path, feed: monitor.Feed) -> None:
    viewers = [threading.Thread(target=data, args=(place,)) for _ in range(8)]
    for viewer in viewers:
        viewer.start()
    for viewer in viewers:
        viewer.join()
    wait_for(lambda: alive(folder))
    for _ in range(15):
        data(place)
        time.sleep(0.1)
    assert len(alive(folder)) == 1, "it lives while someone asks"
    assert feed.running
    feed.patience = 0.2
    wait_for(lambda: not feed.running and not alive(folder))
    assert (folder / "asked").read_text().count("top") == 1
    number = data(place)["number"]
    assert wait_for(lambda: data(place, number)["documents"]), "it starts anew for the next one"


def test_a_problem_is_told_and_tried_again(place: Path, folder: Path) -> None:
    (folder / "fails").write_text('{"error": "no hostfile"}\n')
    assert wait_for(lambda: data(place)["problem"]) == "no hostfile"
    (folder / "fails").write_text("")
    assert wait_for(lambda: "exit code 2" in data(place)["problem"])
    (folder / "fails").unlink()
    wait_for(lambda: data(place)["documents"])
    assert data(place)["problem"] == ""


def test_without_an_agent_the_page_says_so(place: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert wait_for(lambda: data(place)["problem"]).startswith("hvd-agent can't be started: No such file")


def test_old_documents_go(folder: Path, feed: monitor.Feed) -> None:
    for at in (0.0, 100.0, 200.0, 210.0):
        feed._take(json.dumps({"time": at, "nodes": []}).encode())
    assert [one["time"] for one in feed.since(0)["documents"]] == [100.0, 200.0, 210.0]


def test_there_is_nothing_else(place: Path) -> None:
    assert get(place, "/etc/passwd")[0].status == 404
    assert get(place, "/../monitor.py")[0].status == 404
    assert get(place, "/data", "POST")[0].status == 501


def test_the_program_leaves_nothing_behind(folder: Path) -> None:
    (folder / "s").touch()  # of one that was killed
    words = [sys.executable, "-m", "hvd_cluster.monitor", "--socket", str(folder / "s"), "--every", "0.2"]
    with subprocess.Popen(words) as child:
        wait_for(lambda: (folder / "s").is_socket())
        wait_for(lambda: data(folder / "s")["documents"])
        child.send_signal(signal.SIGTERM)
        assert child.wait(10) == 0
    assert not (folder / "s").exists()
    assert not alive(folder)


def test_a_bad_interval_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        monitor.main(["--socket", str(folder / "s"), "--every", "0"])
    assert "0.2 to 60 seconds, not 0" in capsys.readouterr().err
