"""A cluster with its JupyterLab open, for several test modules."""

from __future__ import annotations

import contextlib
import json
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hvdctl import ssh
from hvdctl.cluster import Cluster

from .conftest import Hvdctl, asked, remove


class Lab:
    """A cluster with its JupyterLab open."""

    def __init__(self, hvdctl: Hvdctl) -> None:
        self.hvdctl = hvdctl
        self.url = ""
        self.open()

    def open(self, *words: str) -> None:
        self.url = self.hvdctl("jupyter", "--json", *words).data["url"]

    @property
    def cluster(self) -> Cluster:
        found = Cluster(self.hvdctl.name)
        found.folder = self.hvdctl.folder
        return found

    @property
    def base(self) -> str:
        return self.url.partition("/lab")[0]

    @property
    def token(self) -> str:
        return self.url.partition("token=")[2]

    def head(self, command: str) -> subprocess.CompletedProcess[str]:
        return ssh.run(self.cluster, "node0", ["sh", "-c", command])

    def get(self, path: str, token: str | None = None) -> int:
        return asked(self.url, path, token)

    def execute(self, name: str) -> str:
        """A notebook from top to bottom, as `jupyter nbconvert` does it; what its cells printed."""
        command = (
            f"cd /shared/notebooks && jupyter nbconvert --to notebook --execute --stdout {name}.ipynb "
            f"> /tmp/{name}.out.ipynb"
        )
        done = ssh.run(self.cluster, "node0", ["sh", "-c", command], timeout=300)
        assert done.returncode == 0, done.stderr[-3000:]
        assert "over TCP" not in done.stderr, "a kernel listens on ports"
        cells = json.loads(self.head(f"cat /tmp/{name}.out.ipynb").stdout)["cells"]
        assert all(cell["execution_count"] for cell in cells if cell["cell_type"] == "code")
        return "".join(text for cell in cells for out in cell.get("outputs", []) for text in out.get("text", []))

    def alive(self) -> bool:
        return self.get("/api/status", self.token) == 200

    def kernels(self) -> list[Any]:
        request = urllib.request.Request(f"{self.base}/api/kernels", headers={"Authorization": f"token {self.token}"})
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=30) as answer:
            found: list[Any] = json.loads(answer.read())
            return found


def processes_of(hvdctl: Hvdctl) -> list[str]:
    """Processes of this machine that are about the cluster's home."""
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if str(hvdctl.home) in line or f"tunnel {hvdctl.name}" in line]


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[Lab]:
    """A cluster of two nodes with JupyterLab; nothing is left of either."""
    made = Hvdctl(folder / "home")
    made("up", "--nodes", "2")
    try:
        yield Lab(made)
        assert "0 left" in made("down", "-y").out
        assert not processes_of(made), "down left a tunnel"
    finally:
        made("jupyter", "--stop", code=None)
        remove(made)
