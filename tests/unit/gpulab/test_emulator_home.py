"""The folder, the list of workers and the command line."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import yaml
from hvdctl.errors import LockedError, UsageError
from hvdctl.gpulab.emulator import workers
from hvdctl.gpulab.emulator.home import Home
from support import Hvdctl


def test_a_folder_has_one_emulator(tmp_path: Path) -> None:
    home = Home(tmp_path / "e")
    with home.locked(), pytest.raises(LockedError, match=f"process {os.getpid()}$"), Home(tmp_path / "e").locked():
        pass
    with home.locked():
        pass


def test_the_folder_says_how_to_reach_it(tmp_path: Path) -> None:
    home = Home(tmp_path / "e")
    home.prepare()
    home.describe("https://127.0.0.1:7/api/", 8, secure=True)
    assert yaml.safe_load(home.spec.read_text()) == {
        "provider": "gpulab",
        "options": {
            "server": "https://127.0.0.1:7/api/",
            "certificate": str(home.login),
            "server_certificate": str(home.ca),
            "project": "demo",
            "known_hosts": str(home.folder / "known_hosts"),
        },
    }
    about = json.loads((home.folder / "emulator.json").read_text())
    where = {"url": "https://127.0.0.1:7/api/", "ssh_port": 8, "project": "demo"}
    assert about == {"pid": os.getpid(), **where, "label": home.id}
    found = subprocess.run(
        ["ssh-keygen", "-F", "[127.0.0.1]:8", "-f", home.folder / "known_hosts"], capture_output=True, check=False
    )
    assert found.returncode == 0
    home.describe("http://127.0.0.1:7/api/", 8, secure=False)
    assert "server_certificate" not in yaml.safe_load(home.spec.read_text())["options"]


def test_workers_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "w.yml"
    file.write_text(
        "- {name: w1, cluster: 100, gpus: 0, cpus: 2, memory: 4}\n- {name: w2, cluster: 1, gpus: 1, cpus: 2,"
        " memory: 4, gpu_model: A100, gpu_memory: 40, cuda: '11.8'}\n"
    )
    first, second = workers.read(file)
    assert (first.cluster, first.gpus) == (100, 0)
    assert (second.gpu_model, second.cuda_major) == ("A100", 11)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("- {name: w1, cluster: 1, gpus: 0, cpus: 2, memory: 4, ram: 3}", "worker 1: ram: there is no such key"),
        ("- {name: w1, cluster: 1, gpus: -1, cpus: 2, memory: 4}", "worker 1: gpus: "),
        ("- {cluster: 1, gpus: 1, cpus: 2, memory: 4}", "worker 1: name is missing"),
        ("- w1", "worker 1: all of it: "),
        ("{}", "it is not a list of workers"),
        ("[", "it is not YAML"),
        ("- &w {name: w1, cluster: 1, gpus: 0, cpus: 2, memory: 4}\n- *w", "two workers have the name 'w1'"),
    ],
)
def test_a_bad_worker_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "w.yml"
    file.write_text(text)
    with pytest.raises(UsageError, match=complaint):
        workers.read(file)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--pace", "-1"], 2, "--pace -1.0: it is between"),
        (["--port", "70000"], 2, "--port 70000: a port is between"),
        (["--workers", "nowhere.yml"], 2, "--workers nowhere.yml: No such file"),
        ([], 4, "no Docker engine answers"),
    ],
)
def test_what_cannot_be_is_said(hvdctl: Hvdctl, words: list[str], code: int, said: str) -> None:
    found = hvdctl("gpulab", "emulate", *words)
    assert found.code == code
    assert said in found.err


def test_the_ports_of_last_time_are_remembered(tmp_path: Path) -> None:
    home = Home(tmp_path / "lab")
    home.prepare()
    assert home.last_ports == (0, 0)
    home.describe("https://127.0.0.1:4443/api/", 4022, secure=True)
    assert home.last_ports == (4443, 4022)
    (home.folder / "emulator.json").write_text("{")
    assert home.last_ports == (0, 0)


@pytest.mark.parametrize(("given", "version"), [("12", "12.0"), ("12.2", "12.2"), ("'11.8'", "11.8")])
def test_a_version_of_cuda_is_read_however_yaml_has_it(tmp_path: Path, given: str, version: str) -> None:
    file = tmp_path / "w.yml"
    file.write_text(f"- {{name: w, cluster: 1, gpus: 1, cpus: 1, memory: 1, cuda: {given}}}")
    assert workers.read(file)[0].cuda == version
