from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from hvdctl import plugin
from hvdctl.errors import PhaseError
from support import runs, wait_for


def test_the_mirror_holds_a_program_where_terraform_looks(tmp_path: Path) -> None:
    root = plugin.mirror()
    (program,) = [file for file in root.rglob("*") if file.is_file()]
    parts = program.relative_to(root).parts
    assert parts[:4] == ("hvdctl.local", "hvdctl", "hvd", "0.1.0")
    assert parts[4].startswith("linux_")
    assert parts[5] == "terraform-provider-hvd_v0.1.0"
    assert program.stat().st_mode & stat.S_IXUSR


def test_the_mirror_is_made_once_and_mended(tmp_path: Path) -> None:
    (program,) = [file for file in plugin.mirror().rglob("*") if file.is_file()]
    before = program.stat()
    plugin.mirror()
    assert program.stat().st_ino == before.st_ino
    program.write_text("#!/bin/false\n")
    plugin.mirror()
    assert "hvdctl.tfprovider" in program.read_text()


def test_the_program_names_no_interpreter_so_that_its_checksum_stays() -> None:
    (program,) = [file for file in plugin.mirror().rglob("*") if file.is_file()]
    assert os.fspath(Path(os.__file__).parents[2]) not in program.read_text()


def test_the_configuration_takes_ours_from_the_mirror_and_nothing_else() -> None:
    text = plugin.cli_config()
    assert f'path    = "{plugin.mirror()}"' in text
    assert text.count('"hvdctl.local/*/*"') == 2


def test_the_plugin_lives_as_long_as_the_block(tmp_path: Path) -> None:
    with plugin.served(tmp_path / "log") as env:
        (attached,) = json.loads(env["TF_REATTACH_PROVIDERS"]).values()
        assert runs(attached["Pid"])
    wait_for(lambda: not runs(attached["Pid"]))


def test_the_plugin_ends_where_the_block_fails(tmp_path: Path) -> None:
    seen = []

    def work() -> None:
        with plugin.served(tmp_path / "log") as env:
            seen.extend(json.loads(env["TF_REATTACH_PROVIDERS"]).values())
            raise RuntimeError("terraform failed")

    with pytest.raises(RuntimeError):
        work()
    wait_for(lambda: not runs(seen[0]["Pid"]))


def test_a_plugin_that_does_not_start_is_told_with_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "tf").mkdir()
    (tmp_path / "tf" / "__init__.py").write_text("raise ImportError('broken install')\n")
    with pytest.raises(PhaseError, match="did not start") as refused, plugin.served(tmp_path / "log"):
        pass
    assert refused.value.log == tmp_path / "log"
    assert "broken install" in (tmp_path / "log").read_text()
