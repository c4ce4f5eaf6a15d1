"""Which tests a change touches, in a small repository."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "quick.py"
FILES = {
    "toolkit/pkg/__init__.py": "",
    "toolkit/pkg/spec.py": "",
    "toolkit/pkg/links.py": "from pkg import spec\n",
    "toolkit/pkg/bench/__init__.py": "",
    "toolkit/pkg/bench/sweep.py": "def run():\n    from pkg.links import measure\n",
    "tests/unit/test_spec.py": "from pkg.spec import Spec\n",
    "tests/unit/test_links.py": "from pkg import links\nimport support\n",
    "tests/unit/bench/test_sweep.py": "import pkg.bench.sweep\n",
    "tests/unit/test_other.py": "import os\n\ndef test_other(verb): ...\n",
    "tests/unit/support.py": "",
    "toolkit/pkg/agent/__init__.py": "",
    "toolkit/pkg/agent/store.py": "",
    "toolkit/pkg/agent/verbs.py": "from . import store\n",
    "tests/unit/agent/conftest.py": "from node import Node\n",
    "tests/unit/agent/test_verbs.py": "from pkg.agent.verbs import run\n",
    "tests/unit/agent/test_ask.py": "",
    "tests/unit/node.py": "import played\n",
    "tests/unit/played.py": "",
    "tests/e2e/test_spec.py": "",
    "tests/unit/conftest.py": """
import pytest
from pkg import command
from pkg.engine import Engine

@pytest.fixture(autouse=True)
def apart(): ...

@pytest.fixture
def engine(): return Engine()

@pytest.fixture
def verb(engine): return command.main
""",
    "toolkit/pkg/command.py": "",
    "toolkit/pkg/engine.py": "",
    "tests/contract/test_roles.py": "",
    "playbooks/site.yml": "",
}


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("quick", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def quick() -> ModuleType:
    return load()


@pytest.fixture(scope="module")
def real() -> Any:
    """The graph of this repository."""
    quick = load()
    return quick.Graph(quick.ROOT)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    author = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    for words in (["init", "-q"], ["add", "-A"], [*author, "commit", "-qm", "first"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    return tmp_path


def test_changed_and_new_files_are_found(quick: ModuleType, repository: Path) -> None:
    assert quick.changed(repository, "HEAD") == []
    (repository / "toolkit/pkg/spec.py").write_text("x = 1\n")
    (repository / "toolkit/pkg/new.py").write_text("")
    assert quick.changed(repository, "HEAD") == ["toolkit/pkg/new.py", "toolkit/pkg/spec.py"]


def test_shell_scripts_are_known_by_their_first_line(quick: ModuleType, tmp_path: Path) -> None:
    for name, text in {
        "run": "#!/usr/bin/env bash\n",
        "a.sh": "#!/bin/sh\n",
        "b.py": "#!/usr/bin/env python3\n",
    }.items():
        (tmp_path / name).write_text(text)
    assert [name for name in ("run", "a.sh", "b.py") if quick.is_shell(tmp_path / name)] == ["run", "a.sh"]


def test_a_file_that_is_no_python_stops_nothing(quick: ModuleType, repository: Path) -> None:
    (repository / "toolkit/pkg/spec.py").write_text("x = (\n")
    chosen = quick.Graph(repository).order(["toolkit/pkg/spec.py"])
    assert chosen[0] == "tests/unit/test_spec.py"


@pytest.mark.parametrize(
    ("file", "tests"),
    [
        ("toolkit/pkg/spec.py", ["unit/test_spec.py", "unit/test_links.py", "unit/bench/test_sweep.py"]),
        ("toolkit/pkg/links.py", ["unit/test_links.py", "unit/bench/test_sweep.py"]),
        ("toolkit/pkg/bench/sweep.py", ["unit/bench/test_sweep.py"]),
        ("tests/unit/test_other.py", ["unit/test_other.py"]),
        ("tests/unit/support.py", ["unit/test_links.py"]),
        ("toolkit/pkg/agent/store.py", ["unit/agent/test_verbs.py"]),
        ("tests/unit/played.py", ["unit/agent/test_ask.py", "unit/agent/test_verbs.py"]),
        ("tests/unit/agent/conftest.py", ["unit/agent/test_ask.py", "unit/agent/test_verbs.py"]),
        ("tests/e2e/test_spec.py", []),
        ("playbooks/site.yml", ["contract/test_roles.py"]),
        ("README.md", []),
    ],
)
def test_the_nearest_tests_come_first(quick: ModuleType, repository: Path, file: str, tests: list[str]) -> None:
    assert quick.Graph(repository).order([file]) == [f"tests/{test}" for test in tests]


@pytest.mark.parametrize("module", ["command", "engine"])
def test_who_uses_a_fixture_comes_before_who_is_beside_it(quick: ModuleType, repository: Path, module: str) -> None:
    direct = repository / "tests" / "unit" / "test_spec.py"
    direct.write_text(f"from pkg import {module}\n")
    chosen = quick.Graph(repository).order([f"toolkit/pkg/{module}.py"])
    assert chosen[:2] == ["tests/unit/test_spec.py", "tests/unit/test_other.py"]
    assert sorted(chosen[2:]) == chosen[2:] and "tests/unit/agent/test_ask.py" in chosen


def test_a_module_that_is_gone_still_leads_to_its_tests(quick: ModuleType, repository: Path) -> None:
    (repository / "toolkit/pkg/spec.py").unlink()
    assert quick.Graph(repository).order(["toolkit/pkg/spec.py"])[0] == "tests/unit/test_spec.py"


def test_files_without_a_test_are_named(
    quick: ModuleType, repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(quick, "ROOT", repository)
    monkeypatch.setattr(quick, "lint", lambda files: [])
    monkeypatch.setattr(sys, "argv", ["quick.py"])
    (repository / "NOTES.md").write_text("")
    assert quick.main() == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "no hermetic test is known for: NOTES.md"
    assert said[1].startswith("lint is good, no test ran (")


def test_every_file_of_the_package_has_a_test(quick: ModuleType, real: Any) -> None:
    """Modules, and the assets that are packed beside them."""
    listed = subprocess.run(["git", "ls-files", "toolkit"], cwd=quick.ROOT, capture_output=True, text=True, check=False)
    files = [file for file in listed.stdout.splitlines() if (quick.ROOT / file).exists()]
    files += [file.relative_to(quick.ROOT).as_posix() for file in (quick.ROOT / "toolkit").rglob("*.py")]
    packed = tomllib.loads((quick.ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    files += [f"{folder}/{file.name}" for folder in packed["force-include"] for file in (quick.ROOT / folder).iterdir()]
    assert len(files) > 200
    assert [file for file in dict.fromkeys(files) if not real.order([file])] == []


@pytest.mark.parametrize(
    ("file", "test"),
    [
        ("infra/terraform.toml", "unit/test_terraform_release"),
        ("infra/aws/.terraform.lock.hcl", "unit/test_terraform_lock"),
        ("playbooks/roles/nvidia/files/key.py", "contract/test_nvidia_key"),
        ("tests/unit/golden/layout/even.json", "unit/test_golden"),
        ("tests/contract/module/main.tf", "contract/test_providers"),
        ("scripts/fuzz_box.py", "unit/test_fuzz"),
        ("README.md", "contract/test_schema"),
        ("toolkit/hvdctl/cli/down.py", "unit/test_cli_commands"),
        ("toolkit/hvdctl/cli/up.py", "unit/test_cli_bad_input"),
        ("toolkit/hvdctl/cli/image.py", "unit/test_cli_import"),
    ],
)
def test_a_change_chooses_the_tests_that_would_see_it(real: Any, file: str, test: str) -> None:
    assert f"tests/{test}.py" in real.order([file])[:25]


def test_as_many_as_fit_are_chosen_and_the_first_always(quick: ModuleType) -> None:
    known = {"a": 100.0, "b": 10.0, "c": 2.0}
    assert quick.fitting(["a", "b", "c"], known, 20) == (["a"], ["b", "c"])
    assert quick.fitting(["b", "a", "c"], known, 20) == (["b", "c"], ["a"])
    assert quick.fitting(["x", "y"], {}, 20) == (["x", "y"], [])


def test_recorded_times_are_by_file(quick: ModuleType, tmp_path: Path) -> None:
    report = tmp_path / "unit.xml"
    report.write_text(
        '<testsuites><testsuite><testcase classname="tests.unit.test_a" name="x" time="1.5"/>'
        '<testcase classname="tests.unit.test_a" name="y" time="2"/></testsuite></testsuites>'
    )
    assert quick.durations(report) == {"tests/unit/test_a.py": 3.5}
    assert quick.durations(tmp_path / "none.xml") == {}


def test_every_asset_leads_to_tests_that_exist(quick: ModuleType, real: Any) -> None:
    for prefix, users in quick.ASSETS.items():
        assert list(quick.ROOT.glob(f"{prefix}*")) or (quick.ROOT / prefix).is_dir(), prefix
        for user in users:
            file, _, fixture = user.partition("::")
            assert f"def {fixture}" in (quick.ROOT / file).read_text(), user
            assert quick.is_test(user) or real.order([user]), user
