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
import heapq
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from functools import cache
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
# Imports between a conftest and the tests below it count for so many: the nearest tests still run first. A test that
# uses a fixture comes before those that merely stand below it.
FIXTURE, BELOW = 50, 100
# Who uses what no module imports: tests, or modules, helpers and fixtures that lead to tests.
ASSETS = {
    "README.md": ("tests/contract/test_schema.py",),
    "docs/hvdctl.schema.json": ("tests/contract/test_schema.py",),
    "examples/notebooks/": ("tests/unit/hvd_cluster/test_example_notebooks.py",),
    "images/": ("tests/unit/test_images.py", "tests/unit/test_wheels.py"),
    "infra/": ("tests/contract/test_providers.py",),
    "infra/aws/.terraform.lock.hcl": ("tests/unit/test_terraform_lock.py",),
    "infra/terraform.toml": ("tests/unit/test_terraform_release.py",),
    "inventory/": ("tests/contract/test_inventory_sample.py", "tests/unit/importers/test_importers.py"),
    "playbooks/": ("tests/contract/test_roles.py", "tests/contract/test_role_scripts.py"),
    "playbooks/roles/nfs/": ("tests/contract/test_share_scripts.py",),
    "playbooks/roles/nvidia/": ("tests/contract/test_nvidia_key.py",),
    "pyproject.toml": ("tests/contract/test_package.py",),
    "scripts/ci_times.py": ("tests/unit/test_ci_times.py",),
    "scripts/fuzz": ("tests/unit/test_fuzz.py",),
    "scripts/quick.py": ("tests/unit/test_quick.py",),
    "scripts/setup.py": ("tests/unit/test_setup.py",),
    "scripts/system.sh": ("tests/unit/test_setup.py",),
    "tests/conftest.py": ("tests/unit/test_doubles.py",),
    "tests/contract/module/": ("tests/contract/test_providers.py",),
    "tests/doubles.py": ("tests/unit/test_doubles.py",),
    "tests/unit/agent/fakes/": ("tests/unit/agent_node.py", "tests/unit/notebook_head.py"),
    "tests/unit/fakes/nodes/": ("tests/unit/conftest.py::fake_nodes",),
    "tests/unit/fakes/terraform/": ("tests/unit/conftest.py::fake_terraform",),
    "tests/unit/golden/": ("tests/unit/test_golden.py",),
    "tests/unit/hvd_cluster/bench_worker.py": ("tests/unit/hvd_cluster/test_notebook_bench.py",),
    "toolkit/hvd_cluster/monitor.html": ("toolkit/hvd_cluster/monitor.py",),
    "toolkit/hvdctl/__main__.py": ("tests/unit/test_cli_commands.py",),
    # Tests start these as programs.
    "toolkit/hvdctl/agent/": ("tests/unit/agent_node.py", "tests/unit/notebook_head.py"),
    "toolkit/hvdctl/bench/catalogue.json": ("toolkit/hvdctl/bench/catalogue.py",),
    "toolkit/hvdctl/bench/devices.toml": ("toolkit/hvdctl/bench/devices.py",),
    "toolkit/hvdctl/bench/report.html.j2": ("toolkit/hvdctl/bench/report.py",),
    "toolkit/hvdctl/bench/worker/": ("tests/unit/bench/test_data.py", "tests/unit/bench/test_worker_allreduce.py"),
    "toolkit/hvdctl/tfprovider/__main__.py": ("tests/unit/test_plugin.py",),
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
    graph = Graph(ROOT)
    budget = max(args.seconds - (time.monotonic() - began), AT_LEAST)
    chosen, left = fitting(graph.order(files), durations(ROOT / ".ci-times" / "unit.xml"), budget - START)
    if chosen:
        print(f"tests: {len(chosen)} files", flush=True)
        # The estimate may be wrong: tests that would start later are skipped (tests/conftest.py).
        os.environ["HVDCTL_TESTS_UNTIL"] = str(time.time() + budget)
        failed += run(
            "tests", [str(BIN / "pytest"), "--numprocesses=auto", "--dist=load", "--maxschedchunk=4", *chosen]
        )
    if unknown := [file for file in files if not graph.order([file])]:
        more = f" and {len(unknown) - 10} more" if len(unknown) > 10 else ""
        print(f"no hermetic test is known for: {', '.join(unknown[:10])}{more}")
    if left:
        print(f"left out for time: {len(left)} files that are further from the change; `make unit` runs all")
    good = "good" if chosen else "lint is good, no test ran"
    print(f"{'failed: ' + ', '.join(failed) if failed else good} ({time.monotonic() - began:.0f} s)")
    return 1 if failed else 0


def changed(root: Path, base: str) -> list[str]:
    """The files that differ from a revision, and those that git does not know yet."""
    listed = [
        subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True).stdout.splitlines()
        for words in (["diff", "--name-only", base], ["ls-files", "--others", "--exclude-standard"])
    ]
    return sorted({name for names in listed for name in names})


class Graph:
    """Which files use which: modules, helpers of tests, fixtures (as FILE::NAME) and hermetic tests."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.users: dict[str, dict[str, int]] = {}
        self.modules = {file: ast_of(root / file) for file in self._found("toolkit")}
        self.tests = {file: ast_of(root / file) for file in self._found("tests/unit", "tests/contract")}
        self.tests |= {
            file.relative_to(root).as_posix(): ast_of(file) for file in sorted((root / "tests").glob("*.py"))
        }
        for file, tree in self.modules.items():
            for name in imports(tree, module_of(file).split(".")[: None if file.endswith("__init__.py") else -1]):
                self._link(f"{name.replace('.', '/')}", file)
                # The folder of a program is on its path.
                self._link((Path(file).parent / name).relative_to("toolkit").as_posix(), file)
        for file, tree in self.tests.items():
            for name in imports(tree, []):
                self._link(name.replace(".", "/"), file)
        for file, tree in self.tests.items():
            if Path(file).name == "conftest.py":
                self._fixtures(file, tree)

    def order(self, files: Iterable[str]) -> list[str]:
        """The files of hermetic tests that a change touches, the nearest first."""
        begin = {key_of(file): 0 for file in files}
        for file in files:
            for prefix, concerned in ASSETS.items():
                if file.startswith(prefix):
                    begin |= {key_of(name): 0 for name in concerned if (self.root / name.partition("::")[0]).exists()}
        far = self._distances(begin)
        tests = {file: far[key_of(file)] for file in self.tests if key_of(file) in far and is_test(file)}
        about = {word for file in files for word in words(file)}
        return sorted(tests, key=lambda test: (tests[test], -len(about & words(test)), test))

    def _found(self, *folders: str) -> list[str]:
        return sorted(
            path.relative_to(self.root).as_posix() for folder in folders for path in (self.root / folder).rglob("*.py")
        )

    def _link(self, used: str, user: str, hops: int = 1) -> None:
        """`used` is a key, `user` a file."""
        known = self.users.setdefault(used, {})
        known[key_of(user)] = min(hops, known.get(key_of(user), hops))

    def _fixtures(self, conftest: str, tree: ast.Module) -> None:
        """Link a conftest and each fixture in it to the tests below."""
        below = {
            file: test
            for file, test in self.tests.items()
            if is_test(file) and Path(conftest).parent in Path(file).parents
        }
        for file in below:
            self._link(key_of(conftest), file, BELOW)
        brought = dict(names(tree))
        for fixture in tree.body:
            if not isinstance(fixture, ast.FunctionDef) or not any(
                "fixture" in ast.dump(d) for d in fixture.decorator_list
            ):
                continue
            node = f"{conftest}::{fixture.name}"
            inside = {one.id for one in ast.walk(fixture) if isinstance(one, ast.Name)}
            for name in imports(fixture, []) | with_packages(brought[one] for one in inside & brought.keys()):
                self._link(name.replace(".", "/"), node)
            for one in fixture.args.args:
                for folder in Path(conftest).parents:
                    self._link(f"{folder}/conftest.py::{one.arg}", node)
            for file, test in below.items():
                if fixture.name in asked(test):
                    self._link(node, file, FIXTURE)

    def _distances(self, begin: dict[str, int]) -> dict[str, int]:
        """How many imports lie between what has changed and all that it reaches."""
        found: dict[str, int] = {}
        waiting = [(hops, name) for name, hops in begin.items()]
        heapq.heapify(waiting)
        while waiting:
            hops, name = heapq.heappop(waiting)
            if name not in found:
                found[name] = hops
                for user, more in self.users.get(name, {}).items():
                    heapq.heappush(waiting, (hops + more, user))
        return found


def key_of(file: str) -> str:
    """How a file is imported, with slashes: modules by their whole names, helpers of tests by their bare ones."""
    path = Path(file)
    if "::" in file or path.suffix != ".py" or path.name == "conftest.py":
        return file
    if path.parts[0] == "tests" and path.name != "__init__.py":
        return path.stem if len(path.parts) == 2 or path.parts[1] in ("unit", "contract") else file
    return module_of(file).replace(".", "/") if path.parts[0] == "toolkit" else file


def module_of(file: str) -> str:
    return ".".join(Path(file).with_suffix("").parts[1:]).removesuffix(".__init__")


def words(file: str) -> set[str]:
    """What a file is about, by its name: among tests that are equally near, one of the same word comes first."""
    return set(re.findall("[a-z]+", file)) - {"toolkit", "hvdctl", "tests", "unit", "test", "py"}


def is_test(file: str) -> bool:
    return Path(file).name.startswith("test_")


def ast_of(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_text())
    except SyntaxError:
        return ast.Module([], [])  # ruff has reported it


def imports(tree: ast.AST, package: list[str]) -> set[str]:
    """The modules that are imported anywhere, also within functions, with the packages that hold them."""
    return with_packages(module for _, module in names(tree, package))


def with_packages(modules: Iterable[str]) -> set[str]:
    found = set(modules)
    return found | {name.rpartition(".")[0] for name in found if "." in name}


def names(tree: ast.AST, package: Sequence[str] = ()) -> list[tuple[str, str]]:
    """What each import is called, and what it may be the module of."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.asname or alias.name, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            # In tests, helpers are known by their bare names.
            above = package[: len(package) + 1 - node.level] if node.level else ()
            base = ".".join([*above, *([node.module] if node.module else [])])
            found += [(alias.asname or alias.name, ".".join(filter(None, [base, alias.name]))) for alias in node.names]
    return found


@cache
def asked(tree: ast.Module) -> set[str]:
    """Every name that may be that of a fixture: arguments, and texts as in `usefixtures`."""
    found = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    return found | {
        node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


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
