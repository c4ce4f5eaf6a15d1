"""`pip install .` into a clean environment, and `hvdctl` from another folder. The one test that needs an index."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from hvdctl import terraform

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    done = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (made,) = folder.glob("hvdctl-*.whl")
    return made


def sources(folder: str) -> set[str]:
    """What git knows of a folder, and what is new there."""
    argv: list[str | Path] = ["git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard", folder]
    listed = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()
    return {name for name in listed if (ROOT / name).exists()}


@pytest.mark.parametrize("folder", ["infra", "playbooks", "images", "examples/notebooks"])
def test_every_asset_travels_in_the_wheel(wheel: Path, folder: str) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {name.removeprefix("hvdctl/assets/") for name in archive.namelist()}
        assert sources(folder) <= packed
        # Links arrive as files.
        linked = archive.read("hvdctl/assets/infra/local/variables.tf").decode()
    assert linked == (ROOT / "infra" / "contract" / "variables.tf").read_text()


def test_the_agent_travels_and_the_tests_do_not(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = archive.namelist()
    assert any(name.startswith("hvdctl/agent/") and name.endswith("__main__.py") for name in packed)
    assert not [name for name in packed if "tests/" in name or "__pycache__" in name]


def test_it_works_from_a_clean_environment_and_another_folder(wheel: Path, tmp_path: Path) -> None:
    clean = tmp_path / "venv"
    venv.create(clean)
    python = clean / "bin" / "python"
    # Our pip installs into it; what is imported below is compiled then, and the rest of the dependencies never.
    words = ["--python", str(python), "install", "--quiet", "--no-compile", str(wheel)]
    installed = subprocess.run([sys.executable, "-m", "pip", *words], capture_output=True, text=True, check=False)
    assert installed.returncode == 0, installed.stderr
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    env = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        argv: list[str | Path] = [clean / "bin" / "hvdctl", *words]
        return subprocess.run(argv, cwd=elsewhere, env=env, capture_output=True, text=True, check=False)

    assert call("--version").stdout.startswith("hvdctl 0.")
    assert "nodes" in json.loads(call("schema").stdout)["properties"]
    assert call("init").returncode == 0
    assert "nodes: 2" in (elsewhere / "hvdctl.yml").read_text()
    assert call("up", "--nodes", "0").returncode == 2

    script = (
        "from hvdctl import images, paths\n"
        "for parts in (('infra', 'local', 'variables.tf'), ('playbooks', 'up.yml'), ('images', 'versions.toml'),\n"
        "              ('infra', 'aws', '.terraform.lock.hcl'), ('images', 'SHA256SUMS'), ('images', 'metadata.py')):\n"
        "    assert paths.asset(*parts).is_file(), parts\n"
        "print(paths.asset('infra'))\n"
        "print(images.reference('pytorch'))\n"
    )
    told = subprocess.run([python, "-c", script], cwd=elsewhere, env=env, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    infra, reference = told.stdout.splitlines()
    assert Path(infra).is_relative_to(clean)
    assert reference.startswith("hvdctl/jupyter:pytorch-")

    refused = call("plan", "--nodes", "2", "--image", "x")
    assert refused.returncode == 4
    assert "no Docker engine answers" in refused.stderr or "neither terraform nor tofu" in refused.stderr

    # Terraform starts the installed provider from the installed module; the engine is not asked for a first plan.
    assert terraform.binary()
    script = (
        "from hvdctl import pipeline\n"
        "from hvdctl.progress import Silent\n"
        "from hvdctl.sites import local\n"
        "from hvdctl.spec import Spec\n"
        "local.preflight = lambda spec: None\n"
        "local.claims = lambda cluster, spec=None: []\n"
        "print(len(pipeline.plan(Spec(nodes=2, image='x'), Silent()).changes['create']))\n"
    )
    planned = subprocess.run(
        [python, "-c", script], cwd=elsewhere, env=env, capture_output=True, text=True, check=False
    )
    assert planned.stdout.strip() == "4", planned.stderr
