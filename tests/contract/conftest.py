from __future__ import annotations

import os
from pathlib import Path

import pytest

from .scripted import Machine


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the user's is read or written, and no engine answers."""
    monkeypatch.setenv("HVDCTL_HOME", str(tmp_path / "clusters"))
    monkeypatch.setenv("HVDCTL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no-engine.sock")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")
    for name in [name for name in os.environ if name.startswith("TF_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)
