"""Which tests a change touches, in a small repository."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path
from types import ModuleType

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
    "tests/unit/test_other.py": "import os\n",
    "tests/unit/support.py": "",
    "tests/contract/test_roles.py": "",
    "playbooks/site.yml": "",
}


@pytest.fixture
def quick() -> ModuleType:
    spec = importlib.util.spec_from_file_location("quick", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
    chosen = quick.order(repository, ["toolkit/pkg/spec.py"])
    assert chosen[0] == "tests/unit/test_spec.py"


@pytest.mark.parametrize(
    ("file", "tests"),
    [
        ("toolkit/pkg/spec.py", ["unit/test_spec.py", "unit/test_links.py", "unit/bench/test_sweep.py"]),
        ("toolkit/pkg/links.py", ["unit/test_links.py", "unit/bench/test_sweep.py"]),
        ("toolkit/pkg/bench/sweep.py", ["unit/bench/test_sweep.py"]),
        ("tests/unit/test_other.py", ["unit/test_other.py"]),
        ("tests/unit/support.py", ["unit/test_links.py"]),
        ("playbooks/site.yml", ["contract/test_roles.py"]),
        ("README.md", []),
    ],
)
def test_the_nearest_tests_come_first(quick: ModuleType, repository: Path, file: str, tests: list[str]) -> None:
    assert quick.order(repository, [file]) == [f"tests/{test}" for test in tests]


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


def test_every_asset_leads_to_tests_that_exist(quick: ModuleType) -> None:
    for prefix, tests in quick.ASSETS.items():
        assert (quick.ROOT / prefix).exists(), prefix
        assert all((quick.ROOT / test).is_file() for test in tests), prefix
