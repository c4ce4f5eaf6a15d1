"""The tests' own rules: a double has the signature of what it replaces, and in CI nothing is skipped."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hvdctl import hashes, ssh
from hvdctl.cluster import Cluster

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


class Waits:
    """A double that is no function, with a parameter that the real one lacks."""

    def __call__(self, cluster: Any, nodes: Any, seconds: float = 60, retries: int = 5) -> None: ...

    def wait(self, cluster: Any, nodes: Any, seconds: float = 60, retries: int = 5) -> None: ...


class Waited:
    def __init__(self, nodes: Any) -> None: ...


@pytest.mark.parametrize(
    "double",
    [
        pytest.param(lambda cluster, nodes, seconds=60, retries=5: None, id="stale"),
        pytest.param(lambda *words, retries=5: None, id="stale by name"),
        pytest.param(functools.cache(lambda nodes: None), id="cached"),
        pytest.param(functools.partial(lambda nodes, word: None, word=""), id="partial"),
        pytest.param(Waits(), id="callable"),
        pytest.param(Waits().wait, id="bound"),
        pytest.param(Waited, id="class"),
    ],
)
@pytest.mark.parametrize("own", [True, False], ids=["fixture", "context"])
def test_every_kind_of_double_is_compared(
    monkeypatch: pytest.MonkeyPatch, double: Callable[..., Any], own: bool
) -> None:
    real = ssh.wait
    with pytest.MonkeyPatch.context() as context:
        patch = monkeypatch if own else context
        with pytest.raises(TypeError, match="is replaced by"):
            patch.setattr(ssh, "wait", double)
        with pytest.raises(TypeError, match="is replaced by"):
            patch.setattr("hvdctl.ssh.wait", double)
    assert ssh.wait is real


def test_a_context_of_the_fixture_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch, pytest.raises(TypeError, match="has no retries"):
        patch.setattr(ssh, "wait", lambda cluster, nodes, seconds=60, retries=5: None)


def test_what_is_no_double_of_ours_is_set_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh, "wait", dict)
    assert vars(ssh)["wait"] is dict, "a builtin without a signature"
    monkeypatch.setattr("hvdctl.ssh.wait", lambda *words, **names: "by its words")
    assert ssh.wait.__name__ == "<lambda>"
    monkeypatch.setattr("sys.argv", ["hvdctl"])
    monkeypatch.setattr("os.chown", lambda *words, more=1: None)
    monkeypatch.setattr(ssh, "no_such_name", 1, raising=False)
    with pytest.raises(AttributeError):
        monkeypatch.setattr("hvdctl.ssh.no_such_word", 1)
    with pytest.raises(ImportError):
        monkeypatch.setattr("hvdctl.no_such_module.word", 1)


def test_cached_functions_and_methods_are_compared_with_their_doubles(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TypeError, match="is replaced by"):
        monkeypatch.setattr(hashes, "parse", lambda text, stale=1: {})
    monkeypatch.setattr(hashes, "parse", [].append)
    with pytest.raises(TypeError, match="is replaced by"):
        monkeypatch.setattr(Cluster, "nodes", lambda self, retries=5: [])
    with pytest.raises(TypeError, match="is replaced by"):
        monkeypatch.setattr(Cluster("demo"), "nodes", lambda self: [])
    one = Cluster("demo")
    monkeypatch.setattr(Cluster, "nodes", lambda self: [])
    monkeypatch.setattr(one, "nodes", list)


SKIPS = "import pytest\ndef test_it():\n    pytest.skip('no tool')\n"
MARKED = SKIPS.replace("def", "@pytest.mark.optional('no such thing here')\ndef")
WHOLE = "import pytest\npytest.skip('no tool', allow_module_level=True)\n"
IMPORT = "import pytest\nnone = pytest.importorskip('no_such_module')\ndef test_it(): pass\n"


@pytest.mark.parametrize(
    ("ci", "test", "code"),
    [("true", SKIPS, 1), ("", SKIPS, 0), ("true", MARKED, 0), ("true", WHOLE, 2), ("true", IMPORT, 2), ("", WHOLE, 5)],
)
def test_in_ci_a_skipped_test_fails(tmp_path: Path, ci: str, test: str, code: int) -> None:
    package = tmp_path / "tests"
    package.mkdir()
    for name in ("__init__.py", "conftest.py", "doubles.py"):
        (package / name).write_text((CONFTEST.parent / name).read_text())
    (package / "test_it.py").write_text(test)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-W", "ignore", str(tmp_path)],
        env={"PATH": "/usr/bin:/bin", "CI": ci},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert ("no test may be" in done.stdout) == (code in {1, 2})
