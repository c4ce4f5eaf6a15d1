"""An emulator of GPULab as a process of its own, and imec's own client in a home of its own."""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import pytest
from hvdctl import engine, imageplan
from hvdctl.gpulab.emulator import pki
from hvdctl.gpulab.emulator.api import BASE
from hvdctl.gpulab.emulator.containers import LABEL
from hvdctl.gpulab.emulator.home import Home

from .conftest import wait_for

CLIENT = Path(sys.prefix) / "gpulab" / "bin" / "gpulab-cli"
# Of this process alone: files of tests run side by side.
IMAGE = f"hvdctl-test/plain:{os.getpid()}"
# Says hello, and ends at once when it is asked to: a shell as first process would ignore it.
STAYS = "trap 'echo bye; exit 0' TERM; echo hello; while :; do sleep 0.1; done"
# Serves a file, and ends at once when it is asked to.
SERVES = "cd /tmp; echo served > it; trap 'exit 0' TERM; python3 -m http.server 8000 & wait"


@pytest.fixture(scope="module")
def plain_image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """An image without an entry point: GPULab hands it a job's command. Imported: without our labels."""
    assert CLIENT.exists(), f"imec's client is not at {CLIENT}; `make e2e` installs it there"
    client = engine.client(600)
    source = client.containers.create(imageplan.plan_of("pytorch").names["base"])
    archive = tmp_path_factory.mktemp("image") / "root.tar"
    try:
        with archive.open("wb") as out:
            out.writelines(source.export())  # type: ignore[arg-type]
    finally:
        source.remove()
    client.api.import_image_from_file(str(archive), *IMAGE.split(":"))
    archive.unlink()
    yield
    client.images.remove(IMAGE, force=True)


@dataclass
class Emulator:
    """One that runs, and imec's client in a home of its own that uses it."""

    process: subprocess.Popen[str]
    told: dict[str, Any]
    home: Path
    login: Path
    env: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        ssh = self.home / ".ssh"
        ssh.mkdir(mode=0o700, parents=True, exist_ok=True)
        known = Path(self.told["folder"]) / "known_hosts"
        (ssh / "own").write_text(f"UserKnownHostsFile {known}\nStrictHostKeyChecking yes\nIdentitiesOnly yes\n")
        # ssh takes its home from the password file: a program of the same name gives it the right settings.
        program = self.home / "bin" / "ssh"
        program.parent.mkdir(exist_ok=True)
        program.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {ssh / "own"} "$@"\n')
        program.chmod(0o755)
        hidden = ("GPULAB_", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "https_proxy", "SSH_AUTH_SOCK")
        self.env = {name: value for name, value in os.environ.items() if not name.startswith(hidden)} | {
            "HOME": str(self.home),
            "PATH": f"{program.parent}:{os.environ['PATH']}",
            "GPULAB_CERT": str(self.login),
            "GPULAB_SUBMIT_PROJECT": "demo",
        }
        if self.told["ca"]:
            self.env |= {"GPULAB_SERVER_CERT": self.told["ca"], "GPULAB_CUSTOM_MASTER_URL": self.told["url"]}
        else:
            self.env |= {"GPULAB_API_BASE": self.told["url"]}

    def run(self, *words: str, code: int = 0, given: str = "") -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [CLIENT, *words], env=self.env, input=given, capture_output=True, text=True, timeout=90, check=False
        )
        assert done.returncode == code, f"{words}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def __call__(self, *words: str, code: int = 0, given: str = "") -> str:
        return self.run(*words, code=code, given=given).stdout

    def submit(self, command: str = STAYS, *words: str, **parts: Any) -> str:
        return self("submit", *words, given=_request(command, **parts)).split()[0]

    def post(self, command: str = STAYS, **parts: Any) -> str:
        """Submit a job without imec's client."""
        sent = json.loads(_request(command, **parts))
        sent["owner"] = {"projectUrn": pki.project_urn("demo")}
        return self.ask("jobs", "POST", json.dumps(sent))

    def job(self, uuid: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self("jobs", "--raw", uuid))
        return found

    def status(self, uuid: str) -> str:
        return str(self.job(uuid)["state"]["status"])

    def ask(self, path: str, method: str = "GET", body: str | None = None) -> str:
        """The answer of the service itself: imec's client takes most of a second of CPU time for each look."""
        asked = urllib.request.Request(
            urljoin(self.told["url"], f"{BASE}{path}"),
            method=method,
            data=None if body is None else body.encode(),
            headers={"Content-Type": "application/json"},
        )
        handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
        if self.told["ca"]:
            context = ssl.create_default_context(cafile=self.told["ca"])
            context.load_cert_chain(self.login)
            handlers.append(urllib.request.HTTPSHandler(context=context))
        with urllib.request.build_opener(*handlers).open(asked, timeout=60) as answer:
            return str(answer.read().decode())

    def now(self, uuid: str) -> dict[str, Any]:
        """The state of a job, for a loop that waits for it."""
        found: dict[str, Any] = json.loads(self.ask(f"jobs/{uuid}"))["state"]
        return found

    def reaches(self, uuid: str, status: str) -> None:
        wait_for(lambda: self.now(uuid)["status"] == status, 40)

    def ended(self, uuid: str) -> str:
        """How a job ended by itself."""
        return str(wait_for(lambda: ({self.now(uuid)["status"]} & {"FINISHED", "FAILED"} or {None}).pop(), 40))

    def end(self, *uuids: str) -> None:
        """Cancel jobs and wait until their containers have ended."""
        for uuid in uuids:
            self.ask(f"jobs/{uuid}/state/status", "PUT", "CANCELLED")
        for uuid in uuids:
            self.reaches(uuid, "CANCELLED")

    def running(self, command: str = STAYS, **parts: Any) -> tuple[str, dict[str, Any]]:
        uuid = self.submit(command, **parts)
        self.reaches(uuid, "RUNNING")
        return uuid, self.now(uuid)["resources"]

    def as_user(self, user: str) -> Emulator:
        login = pki.login(Path(self.told["folder"]), self.home / f"{user}.pem", user=user)
        return Emulator(self.process, self.told, self.home / user, login)


def _request(command: str, **parts: Any) -> str:
    request = {
        "resources": {"cpus": 1, "gpus": 1, "cpuMemoryGb": 1} | parts.get("resources", {}),
        "docker": {"image": IMAGE, "command": ["sh", "-c", command]} | parts.get("docker", {}),
        "scheduling": parts.get("scheduling", {}),
    }
    return json.dumps({"name": parts.get("name", "job"), "request": request})


@contextmanager
def emulator(folder: Path, *words: str) -> Iterator[Emulator]:
    """An emulator; when it has ended by SIGTERM nothing of it is left."""
    process = start(folder, *words)
    try:
        assert process.stdout
        told = process.stdout.readline()
        assert told, f"it ended with {process.wait()}"
        yield Emulator(process, json.loads(told), folder.parent / f"{folder.name}-client", folder / "login.pem")
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        code = process.wait(60)
    assert code == 0
    assert left(folder) == []


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "hvdctl", "gpulab", "emulate", "--json", "--pace", "0.1", "--folder", str(folder)]
    return subprocess.Popen([*argv, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)


def left(folder: Path) -> list[str]:
    client, filters = engine.client(), {"label": f"{LABEL}={Home(folder).id}"}
    containers = client.containers.list(all=True, filters=filters)  # type: ignore[arg-type]
    networks = client.networks.list(filters=filters)
    return [str(one.name) for one in containers] + [str(one.name) for one in networks]
