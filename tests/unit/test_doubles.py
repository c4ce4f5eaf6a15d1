"""The tests' own rules: a double has the signature of what it replaces, and in CI nothing is skipped."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hvdctl import ssh

CONFTEST = Path(__file__).parents[1] / "conftest.py"


def test_a_double_with_the_parameters_of_the_real_function_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    good: list[Callable[..., Any]] = [
        lambda cluster, nodes, seconds=60: "named",
        lambda _cluster, _nodes, seconds: "ignored",
        lambda cluster, nodes: "without what has a default",
        lambda *words, **names: "any",
    ]
    for double in good:
        monkeypatch.setattr(ssh, "wait", double)
        assert ssh.wait is double


def test_a_double_with_other_parameters_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    real = ssh.wait
    bad: list[Callable[..., Any]] = [
        lambda nodes, seconds=60: None,
        lambda cluster: None,
        lambda nodes, cluster, seconds: None,
    ]
    for double in bad:
        with pytest.raises(TypeError, match=r"hvdctl\.ssh\.wait\(cluster.* is replaced by"):
            monkeypatch.setattr(ssh, "wait", double)
    assert ssh.wait is real


@pytest.mark.parametrize(("ci", "marked", "code"), [("true", False, 1), ("", False, 0), ("true", True, 0)])
def test_in_ci_a_skipped_test_fails(tmp_path: Path, ci: str, marked: bool, code: int) -> None:
    package = tmp_path / "tests"
    package.mkdir()
    for name in ("__init__.py", "conftest.py", "doubles.py"):
        (package / name).write_text((CONFTEST.parent / name).read_text())
    mark = "@pytest.mark.optional('no such thing here')\n" if marked else ""
    (package / "test_it.py").write_text(f"import pytest\n{mark}def test_it():\n    pytest.skip('no tool')\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-W", "ignore", str(tmp_path)],
        env={"PATH": "/usr/bin:/bin", "CI": ci},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert ("no test may be" in done.stdout) == bool(code)
