"""A real hvdctl on a real engine, in homes and with names of its own; everything is removed in the end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hvdctl import images
from hvdctl.progress import Silent
from hvdctl.sites import local
from xdist.scheduler import LoadScopeScheduling

PATIENCE = 240.0
# Files whose tests share the cluster `pair`.
ON_PAIR = {"test_run", "test_top", "test_training"}
# Files whose tests share nothing that takes long to set up.
ALONE = {
    "test_bench_models",
    "test_images",
    "test_lifecycle",
    "test_ownership",
    "test_registry",
    "test_scripts",
    "test_upgrade",
}
SCRIPTS = Path(__file__).parent / "scripts"


@dataclass
class Result:
    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        return json.loads(self.out)


@dataclass
class Hvdctl:
    """The command line on one cluster, in a home of its own."""

    home: Path
    name: str = field(default_factory=lambda: f"t{uuid.uuid4().hex[:8]}")
    cwd: Path = SCRIPTS

    @property
    def env(self) -> dict[str, str]:
        return {**os.environ, "HVDCTL_HOME": str(self.home), "NO_COLOR": "1"}

    @property
    def folder(self) -> Path:
        return self.home / self.name

    def argv(self, verb: str, *words: str) -> list[str]:
        return [sys.executable, "-m", "hvdctl", verb, "--name", self.name, *words]

    def __call__(self, verb: str, *words: str, code: int | None = 0, **env: str) -> Result:
        done = subprocess.run(
            self.argv(verb, *words),
            cwd=self.cwd,
            env={**self.env, **env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE * 3,
            check=False,
        )
        if code is not None:
            assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return Result(done.returncode, done.stdout, done.stderr)

    def start(self, verb: str, *words: str) -> subprocess.Popen[str]:
        """In the background, both streams in one pipe."""
        return subprocess.Popen(
            self.argv(verb, *words),
            cwd=self.cwd,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def ids(self) -> dict[str, str]:
        """The identity of each node, by name."""
        return {node["name"]: node["id"] for node in self("status", "--json", code=None).data["nodes"]}

    def left(self) -> list[str]:
        """Everything on the engine that has the cluster's name, whoever made it."""
        return [claim.thing for claim in local.claims(self.name)]

    @contextlib.contextmanager
    def owned(self) -> Iterator[None]:
        """In this process too, things of this home are ours."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HVDCTL_HOME", str(self.home))
            yield

    def processes(self, word: str) -> list[str]:
        """What runs on any node with this word in its command line."""
        listed = self("exec", "--all", "--json", "--", "ps", "-eo", "args").data
        return [
            line for node in listed for line in node["stdout"].splitlines() if word in line and "ps -eo" not in line
        ]


def wait_for(what: Callable[[], Any], patience: float = PATIENCE) -> Any:
    """What the look finds, as soon as it finds anything."""
    deadline = time.monotonic() + patience
    while True:
        found = what()
        if found:
            return found
        assert time.monotonic() < deadline, "nothing within the time"
        time.sleep(0.1)


class Output:
    """The output of a process in the background, read line by line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.text = ""

    def until(self, word: str, times: int = 1) -> str:
        assert self.process.stdout is not None
        while self.text.count(word) < times:
            line = self.process.stdout.readline()
            assert line, f"ended without {word!r}:\n{self.text}"
            self.text += line
        return self.text

    def rest(self) -> str:
        self.text += self.process.communicate(timeout=PATIENCE)[0]
        return self.text


def asked(url: str, path: str, token: str | None = None) -> int:
    """The code of JupyterLab's answer at the near end of a tunnel; 0 where there is none."""
    headers = {"Authorization": f"token {token}"} if token else {}
    request = urllib.request.Request(f"{url.partition('/lab')[0]}{path}", headers=headers)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=30) as answer:
            answer.read()
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def interrupt(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGINT)


class ByCluster(LoadScopeScheduling):
    """Keeps tests that share a cluster or a service on one worker; every other test runs on the next free worker.

    The groups of xdist's own `loadgroup` had no effect with the releases in use (xdist 3.8, pytest 9.2).
    """

    def _split_scope(self, nodeid: str) -> str:
        file = Path(nodeid.partition("::")[0]).stem
        if file in ALONE:
            return nodeid
        return "pair" if file in ON_PAIR else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByCluster | None:
    return ByCluster(config, log) if config.getvalue("dist") == "loadgroup" else None


@pytest.fixture(scope="session", autouse=True)
def ctrl_c() -> None:
    """In the background of a script Ctrl-C is ignored, also by all that is started there; here it must not be."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def built() -> None:
    """The image that clusters run; minutes on a new machine, else at once."""
    images.build("pytorch", Silent())


@pytest.fixture
def hvdctl(tmp_path: Path) -> Iterator[Hvdctl]:
    """A cluster name that nothing has; whatever the test leaves of it is removed."""
    made = Hvdctl(tmp_path / "home")
    yield made
    remove(made)


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hvdctl]:
    """A cluster of two nodes of one slot, for tests that only use it."""
    made = Hvdctl(tmp_path_factory.mktemp("pair") / "home")
    made("up", "--nodes", "2", "--env", "GREETING=from the spec")
    yield made
    try:
        assert "0 left" in made("down", "-y").out
    finally:
        remove(made)


def remove(made: Hvdctl) -> None:
    with contextlib.suppress(Exception), made.owned():
        local.sweep(made.name, keep_data=False, step=Silent())
    assert made.left() == []
