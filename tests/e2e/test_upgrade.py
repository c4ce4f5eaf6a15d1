"""A cluster of one version of hvdctl, and commands of the next one: real images, real containers."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.conftest import Hvdctl

pytestmark = pytest.mark.docker

ROOT = Path(__file__).parents[2]


@dataclass
class Newer(Hvdctl):
    """The same cluster, and the hvdctl of another folder."""

    source: Path = ROOT

    @property
    def env(self) -> dict[str, str]:
        search = [str(self.source / "toolkit"), os.environ.get("PYTHONPATH", "")]
        return {**super().env, "PYTHONPATH": os.pathsep.join(filter(None, search))}


@pytest.fixture
def newer(hvdctl: Hvdctl, tmp_path: Path) -> Newer:
    """A copy of hvdctl whose agent differs, so that its image does."""
    for folder in ("toolkit", "infra", "playbooks", "images", "examples"):
        shutil.copytree(ROOT / folder, tmp_path / "newer" / folder, ignore=shutil.ignore_patterns("__pycache__"))
    with (tmp_path / "newer" / "toolkit" / "hvdctl" / "agent" / "store.py").open("a") as source:
        source.write("\n# the next version\n")
    return Newer(hvdctl.home, hvdctl.name, source=tmp_path / "newer")


def test_an_upgrade_ends_no_job_without_asking(hvdctl: Hvdctl, newer: Newer) -> None:
    hvdctl("up", "--nodes", "1", "--no-jupyter")
    ids = hvdctl.ids()
    hvdctl("run", "--detach", "--", "sleep", "600")

    planned = newer("plan").out
    assert "would be recreated: node0. This ends run 1 (sleep 600)." in planned
    for words in (["up"], ["scale", "--nodes", "2"]):
        refused = newer(*words, code=2).err
        assert "Recreate node0" in refused and "This ends run 1 (sleep 600)." in refused
    assert hvdctl.ids() == ids

    kept = newer("scale", "--nodes", "2", "--keep-image")
    assert "2 nodes" in kept.out
    assert hvdctl.ids()["node0"] == ids["node0"]
    assert [row["state"] for row in newer("jobs", "--json").data] == ["running"]
    newer("cancel")
    assert "sum 3 of 2" in newer("run", "--", "python", "meet.py").out

    told = newer("up", "-y")
    assert "Recreate node0, node1" in told.err and "This ends" not in told.err
    assert hvdctl.ids()["node0"] != ids["node0"]
    assert "sum 3 of 2" in newer("run", "--", "python", "meet.py").out
    assert newer("down", "-y").code == 0
