#!/usr/bin/env python3
"""Lint and the hermetic tests that touch what changed, within a minute.

    scripts/quick.py              what differs from the last commit
    scripts/quick.py --base main  what differs from another revision

Tests are chosen by the import graph: those nearest to a changed module run first, and as many as fit into the time.
What was left out is printed; `make unit` runs all of them. A plug-in that records coverage (pytest-testmon) would
choose more exactly, but needs a recorded run of all tests first, and does not see what subprocesses import.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
BIN = ROOT / ".venv" / "bin"
# Seconds in all, and what the tests get at least if lint was slow: mypy has to fill its cache once.
BUDGET = 48.0
AT_LEAST = 20.0
# Seconds that the two workers take to start.
START = 8.0
# What a file of tests takes if no run of theirs was recorded.
UNKNOWN = 4.0
# Tests of files that no module imports.
ASSETS = {
    "playbooks/": ("tests/contract/test_roles.py", "tests/contract/test_role_scripts.py"),
    "infra/": ("tests/contract/test_providers.py",),
    "images/": ("tests/unit/test_images.py", "tests/unit/test_wheels.py"),
    "inventory/": ("tests/contract/test_inventory_sample.py",),
    "docs/hvdctl.schema.json": ("tests/contract/test_schema.py",),
    "pyproject.toml": ("tests/contract/test_package.py",),
    "scripts/setup.py": ("tests/unit/test_setup.py",),
    "scripts/system.sh": ("tests/unit/test_setup.py",),
    "scripts/ci_times.py": ("tests/unit/test_ci_times.py",),
    "scripts/quick.py": ("tests/unit/test_quick.py",),
    "tests/conftest.py": ("tests/unit/test_doubles.py",),
    "tests/doubles.py": ("tests/unit/test_doubles.py",),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", default="HEAD", help="the revision to compare with (default: HEAD)")
    parser.add_argument("--seconds", type=float, default=BUDGET, help="time for all of it (default: %(default)s)")
    args = parser.parse_args()
    began = time.monotonic()
    files = changed(ROOT, args.base)
    if not files:
        print(f"nothing differs from {args.base}; `make unit` runs all hermetic tests")
        return 0
    failed = lint(files)
    budget = max(args.seconds - (time.monotonic() - began), AT_LEAST)
    chosen, left = fitting(order(ROOT, files), durations(ROOT / ".ci-times" / "unit.xml"), budget - START)
    if chosen:
        print(f"tests: {len(chosen)} files", flush=True)
        # The estimate may be wrong: tests that would start later are skipped (tests/conftest.py).
        os.environ["HVDCTL_TESTS_UNTIL"] = str(time.time() + budget)
        failed += run(
            "tests", [str(BIN / "pytest"), "--numprocesses=auto", "--dist=load", "--maxschedchunk=4", *chosen]
        )
    if left:
        print(f"left out for time: {len(left)} files that are further from the change; `make unit` runs all")
    print(f"{'failed: ' + ', '.join(failed) if failed else 'good'} ({time.monotonic() - began:.0f} s)")
    return 1 if failed else 0


def changed(root: Path, base: str) -> list[str]:
    """The files that differ from a revision, and those that git does not know yet."""
    listed = [
        subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True).stdout.splitlines()
        for words in (["diff", "--name-only", base], ["ls-files", "--others", "--exclude-standard"])
    ]
    return sorted({name for names in listed for name in names})


def order(root: Path, files: Iterable[str]) -> list[str]:
    """The files of hermetic tests that a change touches, the nearest first."""
    tests = {
        path.relative_to(root).as_posix(): imports(path)
        for folder in ("tests/unit", "tests/contract")
        for path in sorted((root / folder).rglob("*.py"))
    }
    modules = {
        ".".join(path.relative_to(root / "toolkit").with_suffix("").parts).removesuffix(".__init__"): path
        for path in sorted((root / "toolkit").rglob("*.py"))
    }
    far: dict[str, int] = {}
    for file in files:
        for prefix, concerned in ASSETS.items():
            if file.startswith(prefix):
                far |= {name: 0 for name in concerned if (root / name).exists()}
    hops = distances(modules, {name for name, path in modules.items() if path.relative_to(root).as_posix() in files})
    # Helpers of tests count as modules, by their bare names.
    helpers = {Path(file).stem for file in files if file in tests and not Path(file).name.startswith("test_")}
    for test, names in tests.items():
        if not Path(test).name.startswith("test_"):
            continue
        near = [hops[name] + 1 for name in names if name in hops]
        near += [0] if test in files else []
        near += [1] if helpers & names else []
        if near:
            far[test] = min(min(near), far.get(test, min(near)))
    return sorted(far, key=lambda test: (far[test], test))


def distances(modules: dict[str, Path], start: set[str]) -> dict[str, int]:
    """How many imports lie between a changed module and each one that it reaches."""
    users: dict[str, set[str]] = {name: set() for name in modules}
    for name, path in modules.items():
        for used in imports(path) & modules.keys():
            users[used].add(name)
    found = dict.fromkeys(start, 0)
    waiting = deque(start)
    while waiting:
        name = waiting.popleft()
        for user in users[name] - found.keys():
            found[user] = found[name] + 1
            waiting.append(user)
    return found


def imports(path: Path) -> set[str]:
    """The modules that a file imports anywhere, also within functions."""
    try:
        tree = ast.parse(path.read_text())
    except SyntaxError:
        return set()  # ruff has reported it
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def durations(report: Path) -> dict[str, float]:
    """Seconds of each file of tests in the last recorded run of `make unit`."""
    try:
        root = ElementTree.parse(report).getroot()
    except (OSError, ElementTree.ParseError):
        return {}
    found: dict[str, float] = {}
    for case in root.iter("testcase"):
        name = case.get("classname", "").replace(".", "/") + ".py"
        found[name] = found.get(name, 0.0) + float(case.get("time", 0))
    return found


def fitting(tests: list[str], known: dict[str, float], budget: float, workers: int = 2) -> tuple[list[str], list[str]]:
    """The tests that fit into the time, in their order, and the others; the first is always taken."""
    chosen: list[str] = []
    left: list[str] = []
    spent = 0.0
    for test in tests:
        cost = known.get(test, UNKNOWN) / workers
        if chosen and spent + cost > budget:
            left.append(test)
        else:
            chosen.append(test)
            spent += cost
    return chosen, left


def lint(files: list[str]) -> list[str]:
    """Every linter that the changed files concern; the names of those that failed."""
    there = [file for file in files if (ROOT / file).is_file()]
    python = [file for file in there if file.endswith(".py") and not file.startswith("docs/")]
    failed = []
    if python:
        failed += run("ruff check", [str(BIN / "ruff"), "check", "-q", *python])
        failed += run("ruff format", [str(BIN / "ruff"), "format", "-q", "--check", *python])
        failed += run("mypy", [str(BIN / "mypy")], quiet=True)
    if shell := [file for file in there if is_shell(ROOT / file)]:
        failed += run("shellcheck", [str(BIN / "shellcheck"), *shell])
    if any(file.startswith("playbooks/") for file in files):
        path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
        failed += run("ansible-lint", [str(BIN / "ansible-lint"), "--offline", "-q", "playbooks"], PATH=path)
    if any(file.startswith("infra/") for file in files):
        binary = [str(BIN / "python"), "-c", "from hvdctl import terraform; print(terraform.binary())"]
        terraform = subprocess.run(binary, capture_output=True, text=True, check=True).stdout.strip()
        failed += run("terraform fmt", [terraform, "fmt", "-check", "-recursive", "infra"])
    return failed


def is_shell(file: Path) -> bool:
    """Whether the file begins as a shell script does."""
    with file.open("rb") as script:
        return re.match(rb"#!.*\b(ba)?sh\b", script.readline()) is not None


def run(name: str, argv: list[str], *, quiet: bool = False, **env: str) -> list[str]:
    """The name, if the command failed; what a quiet one prints is shown only then."""
    done = subprocess.run(argv, cwd=ROOT, env={**os.environ, **env}, capture_output=quiet, text=True, check=False)
    if done.returncode and quiet:
        print(done.stdout + done.stderr, end="")
    return [name] if done.returncode else []


if __name__ == "__main__":
    sys.exit(main())
