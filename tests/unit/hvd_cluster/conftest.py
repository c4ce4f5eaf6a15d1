from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from notebook_head import AGENT, FAKES, Head, wait_for


@pytest.fixture
def head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Head]:
    made = Head(tmp_path)
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "hvd-agent").write_text(f'#!/bin/sh\nexec {sys.executable} {AGENT} "$@"\n')
    (programs / "hvd-agent").chmod(0o755)
    path = f"{programs}:{FAKES / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    monkeypatch.setenv("PATH", path)
    monkeypatch.setenv("PYTHONPATH", f"{FAKES}:{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv("HVD_RUNS", str(made.runs))
    monkeypatch.setenv("HVD_SHARED", str(made.share))
    monkeypatch.setenv("HVD_CLUSTER_FILE", str(made.file))
    monkeypatch.setenv("HVD_GRACE", "1")
    yield made
    for row in made.records() if made.runs.exists() else []:
        subprocess.run(["hvd-agent", "cancel", str(row["id"])], capture_output=True, check=False)
    wait_for(lambda: not made.processes())
