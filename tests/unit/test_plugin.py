from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from hvdctl import plugin
from hvdctl.errors import PhaseError
from hvdctl.tfprovider import serve
from support import runs, wait_for
from tf import runner


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


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without any mirror, and a folder to make some in."""
    folder = tmp_path / "machine"
    monkeypatch.setenv("HOME", str(folder / "home"))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setenv("XDG_DATA_DIRS", f"{folder}/share:{folder}/local/share")
    monkeypatch.delenv("HVDCTL_TF_MIRROR", raising=False)
    monkeypatch.setattr(plugin, "_SYSTEM_FOLDERS", (f"{folder}/opt", f"{folder}/lib"))
    return folder


def package(mirror: Path, provider: str = "hashicorp/aws", version: str = "5.1.0", platform: str = "") -> Path:
    """A provider in a mirror, as `terraform providers mirror` unpacks it."""
    where = mirror / "registry.terraform.io" / provider / version / (platform or plugin._platform())
    where.mkdir(parents=True)
    return mirror


def test_the_configuration_takes_ours_from_the_mirror_and_nothing_else(bare: Path) -> None:
    text = plugin.cli_config()
    assert f'path    = "{plugin.mirror()}"' in text
    assert text.count('"hvdctl.local/*/*"') == 2
    assert text.count("filesystem_mirror") == 1


@pytest.mark.parametrize(
    "place",
    [
        "home/.terraform.d/plugins",
        "home/.local/share/terraform/plugins",
        "share/terraform/plugins",
        "local/share/terraform/plugins",
        "opt/tf-plugins",
        "lib/tf-plugins",
    ],
)
def test_mirrors_are_found_in_the_usual_places(bare: Path, place: str) -> None:
    package(bare / place)
    assert plugin.found_mirrors() == [(bare / place, ["registry.terraform.io/hashicorp/aws"])]


def test_mirrors_are_found_where_the_user_says(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(package(bare / "data" / "terraform" / "plugins").parents[1]))
    monkeypatch.setenv("HVDCTL_TF_MIRROR", str(package(bare / "named")))
    config = bare / "home" / ".terraformrc"
    config.parent.mkdir(parents=True)
    config.write_text(
        "provider_installation {\n"
        f'  filesystem_mirror {{\n    include = ["*/*/*"]\n    path = "{package(bare / "written")}"\n  }}\n'
        f'  # filesystem_mirror {{ path = "{package(bare / "crossed-out")}" }}\n'
        "  direct {}\n"
        "}\n"
    )
    found = [folder for folder, _ in plugin.found_mirrors()]
    assert found == [bare / "named", bare / "written", bare / "data" / "terraform" / "plugins"]
    other = bare / "other.rc"
    other.write_text(f'provider_installation {{ filesystem_mirror {{ path = "{package(bare / "elsewhere")}" }} }}\n')
    monkeypatch.setenv("TF_CLI_CONFIG_FILE", str(other))
    assert [folder for folder, _ in plugin.found_mirrors()][1] == bare / "elsewhere"


def test_a_configuration_that_is_not_there_is_no_error(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CLI_CONFIG_FILE", str(bare / "no-such-file"))
    assert plugin.found_mirrors() == []


def test_only_what_a_mirror_holds_for_this_machine_is_taken_from_it(bare: Path) -> None:
    mirror = package(bare / "opt" / "tf-plugins")
    package(mirror, "acme/packed", "1.0.0").joinpath("registry.terraform.io/acme/zipped").mkdir(parents=True)
    zipped = f"terraform-provider-zipped_1.0.0_{plugin._platform()}.zip"
    (mirror / "registry.terraform.io" / "acme" / "zipped" / zipped).touch()
    package(mirror, "acme/foreign", platform="plan9_mips")
    (mirror / "README").touch()
    (bare / "lib" / "tf-plugins").mkdir(parents=True)
    ((folder, held),) = plugin.found_mirrors()
    assert folder == mirror
    assert held == [f"registry.terraform.io/{name}" for name in ("acme/packed", "acme/zipped", "hashicorp/aws")]
    direct = plugin.cli_config().split("direct")[1]
    for source in held:
        assert f'"{source}"' in direct, "not asked of a registry"
    assert "foreign" not in plugin.cli_config()


@pytest.mark.skipif(shutil.which("terraform") is None, reason="Terraform is not on PATH")
def test_terraform_installs_from_a_mirror_that_was_found(bare: Path, tmp_path: Path) -> None:
    """A script stands for the provider: `init` looks at where it lies, and does not start it."""
    mirror = package(bare / "opt" / "tf-plugins", "acme/thing", "1.2.3")
    program = mirror / "registry.terraform.io/acme/thing/1.2.3" / plugin._platform() / "terraform-provider-thing_v1.2.3"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    module = tmp_path / "module"
    module.mkdir()
    needs = 'required_providers {\n    thing = { source = "acme/thing" }\n  }'
    (module / "main.tf").write_text(f"terraform {{\n  {needs}\n}}\n")
    (tmp_path / "rc").write_text(plugin.cli_config())
    env = {**os.environ, "TF_CLI_CONFIG_FILE": str(tmp_path / "rc"), "CHECKPOINT_DISABLE": "1"}
    done = subprocess.run(
        ["terraform", "init", "-no-color"], cwd=module, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Installed acme/thing v1.2.3" in done.stdout


def test_the_plugin_lives_as_long_as_the_block(tmp_path: Path) -> None:
    with plugin.served(tmp_path / "log") as env:
        (attached,) = json.loads(env["TF_REATTACH_PROVIDERS"]).values()
        assert runs(attached["Pid"])
        folder = Path(attached["Addr"]["String"]).parent
        assert folder.is_dir()
    wait_for(lambda: not runs(attached["Pid"]))
    assert not folder.exists(), "nothing is left in the temporary folder"


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


def test_a_plugin_that_says_nothing_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(plugin, "_START_S", 0.5)
    (tmp_path / "tf").mkdir()
    (tmp_path / "tf" / "__init__.py").write_text(
        f"import os, time\nopen({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\ntime.sleep(300)\n"
    )
    began = time.monotonic()
    with pytest.raises(PhaseError, match="did not start: it said nothing within"), plugin.served(tmp_path / "log"):
        pass
    assert time.monotonic() - began < 20
    if (tmp_path / "pid").exists():
        assert not runs(int((tmp_path / "pid").read_text()))


def test_the_plugin_takes_all_calls_that_terraform_makes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs that wait for their start hold a thread each; the library has ten."""
    pools: list[ThreadPoolExecutor] = []

    def server(thread_pool: ThreadPoolExecutor, **_: object) -> None:
        pools.append(thread_pool)
        raise InterruptedError

    monkeypatch.setattr(grpc, "server", server)
    monkeypatch.setattr(runner, "futures", runner.futures)
    with pytest.raises(InterruptedError):
        serve.run(["plugin", "--dev"])
    meeting = threading.Barrier(200)
    done = [pools[0].submit(meeting.wait, 60) for _ in range(200)]
    assert sorted(one.result() for one in done) == list(range(200))
