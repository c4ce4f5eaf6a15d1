"""CI runs every script and every make target: `make test` runs most of them, this file the others in a small form."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from hvdctl import hashes, wheels
from hvdctl.bench import results
from hvdctl.sites import local

from .conftest import PATIENCE

pytestmark = pytest.mark.docker

ROOT = Path(__file__).parents[2]


def make(target: str, *words: str, cwd: Path = ROOT, code: int = 0, **env: str) -> str:
    """Run make as a user does and return its output. `unrun` finds the targets by the calls of this function."""
    ours = ("MAKE", "MFLAGS", "PYTEST_", "COV_")
    given = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    done = subprocess.run(
        # Else a newer pyproject.toml would install everything again.
        ["make", "--no-print-directory", "--old-file=pyproject.toml", target, *words],
        cwd=cwd,
        env={**given, "NO_COLOR": "1", "PYTHONPATH": str(cwd / "toolkit"), **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE * 3,
        check=False,
    )
    assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}"
    return done.stdout


def test_the_demo_trains_on_every_node(tmp_path: Path) -> None:
    told = make("demo", "ARGS=2 1", HVDCTL_HOME=str(tmp_path))
    assert "2 ranks" in told and "epoch 1: loss" in told
    assert "is down: 0 left" in told
    assert local.claims("hvdctl-demo") == []


def test_bench_up_writes_ratios(tmp_path: Path) -> None:
    told = make("bench-up", f"ARGS=--rounds 1 --nodes 2 --output {tmp_path}/found.json")
    found = json.loads((tmp_path / "found.json").read_text())
    seconds = found["seconds"]
    assert (found["nodes"], found["rounds"]) == (2, 1)
    assert found["up_over_floor"] == pytest.approx(seconds["up"] / seconds["floor"], abs=0.01)
    assert found["growth_on_doubling"] == pytest.approx(seconds["up_double"] / seconds["up"], abs=0.01)
    assert all(name in found and name in told for name in found["limits"])
    assert local.claims("bench-up") == []


def test_bench_scaling_judges_predictions(tmp_path: Path) -> None:
    told = make("bench-scaling", f"ARGS=--quick --output {tmp_path}/found.json --keep {tmp_path}/results")
    found = json.loads((tmp_path / "found.json").read_text())
    assert (found["plan"], found["device"]) == ("quick", "emulated:p100")
    assert "quick plan, 2 nodes, emulated:p100" in told
    assert found["prediction_points"] == len(found["errors"]) == 1
    assert 0.3 < found["allreduce_share"] < 1.1
    assert all(name in found and name in told for name in found["limits"])
    assert (tmp_path / "results" / "report.html").exists()
    assert local.claims("bench-scaling") == []


def test_reproduce_measures_and_writes_a_page(tmp_path: Path) -> None:
    before = changes("docs/results")
    make("reproduce", f"ARGS=--quick --output {tmp_path}/results")
    points = results.measured(results.points(results.read(tmp_path / "results" / "slices")))
    assert [(point["nodes"], point["emulated"]) for point in points] == [(1, True), (2, True)]
    page = (tmp_path / "results" / "README.md").read_text()
    assert "**emulated**" in page and "**This is the small plan**" in page
    assert re.search(r"^\| 2 \| 32 \| 1\sGbit/s \|", page, re.MULTILINE), "the table has the second point"
    assert all((tmp_path / "results" / link).exists() for link in re.findall(r"\((slices/[^)]+)\)", page))
    assert changes("docs/results") == before
    assert local.claims("reproduce") == []


def test_lock_finds_the_hashes_that_are_committed(tmp_path: Path) -> None:
    make("lock", f"ARGS=--only toolchain --fresh --output {tmp_path}/found")
    pins = wheels.toolchain()
    asked = {*pins.build, *pins.packages, pins.source}
    committed = (ROOT / "images" / "SHA256SUMS").read_text().splitlines()
    wanted = {line for line in committed if hashes.pin_of(line.partition("  ")[2]) in asked}
    assert wanted
    assert set((tmp_path / "found").read_text().splitlines()) == wanted


def test_torture_plays_its_rounds(tmp_path: Path) -> None:
    told = make("torture", "ARGS=--seed 1 --rounds 3")
    assert "seed 1\n" in told
    assert told.count(": good") == 3 and "3 rounds in" in told


def test_the_published_page_is_what_its_results_give(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs" / "results", tmp_path / "results")
    (tmp_path / "results" / "README.md").unlink()
    make("reproduce", f"ARGS=--page --output {tmp_path}/results")
    assert (tmp_path / "results" / "README.md").read_text() == (ROOT / "docs" / "results" / "README.md").read_text()


def test_coverage_names_the_lines_that_no_test_reaches() -> None:
    told = make("coverage", "HERMETIC=tests/unit/test_keys.py")
    assert re.search(r"^TOTAL .*%$", told, re.MULTILINE), told


def test_quick_runs_the_tests_that_a_change_touches(project: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=project, check=True)
    commit(project)
    assert "nothing differs from HEAD" in make("quick", cwd=project)
    module, test = project / "toolkit" / "a.py", project / "tests" / "unit" / "test_a.py"
    module.write_text("A = 1\n")
    test.write_text("from a import A\n\n\ndef test_a() -> None:\n    assert A == 1\n")
    assert "1 passed" in make("quick", cwd=project)
    commit(project)
    module.write_text("A = 2\n")
    told = make("quick", cwd=project, code=2)
    assert "1 failed" in told
    assert "failed: tests" in told
    module.write_text("A: int = 1.0\n")
    assert "failed: mypy" in make("quick", cwd=project, code=2)


def commit(project: Path) -> None:
    author = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
    subprocess.run(["git", "add", "-A"], cwd=project, check=True)
    subprocess.run(["git", *author, "commit", "-q", "-m", "all"], cwd=project, check=True)


def test_fuzz_counts_its_inputs() -> None:
    told = make("fuzz", "MINUTES=0.2", "SEED=1")
    assert "seed 1; " in told
    assert re.search(r"^\d+ inputs in \d+ s, 0 failed; seed 1$", told, re.MULTILINE), told


def test_format_formats_python_and_terraform(project: Path) -> None:
    (project / "toolkit" / "a.py").write_text("x = { 'a':1 }\n")
    (project / "infra" / "main.tf").write_text("locals {\na=1\n}\n")
    make("format", cwd=project)
    assert (project / "toolkit" / "a.py").read_text() == 'x = {"a": 1}\n'
    assert (project / "infra" / "main.tf").read_text() == "locals {\n  a = 1\n}\n"


def test_engine_is_content_with_one_that_runs() -> None:
    make("engine")


def test_clean_removes_what_make_made(project: Path) -> None:
    before = sorted(file.name for file in project.iterdir() if file.name != ".venv")
    for folder in (".mypy_cache", ".ruff_cache", ".pytest_cache", ".ci-times"):
        (project / folder).mkdir()
    (project / "bench-up.json").touch()
    make("clean", cwd=project)
    assert sorted(file.name for file in project.iterdir()) == before
    assert Path(sys.prefix).exists(), "the project's .venv is a link"


def test_help_lists_every_described_target() -> None:
    told = make("help")
    described = re.findall(r"^([a-z0-9-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert described and all(f"make {target} " in told for target in described)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with this Makefile and this virtual environment, and little else."""
    for folder in ("toolkit", "tests/unit", "examples", "infra", "scripts"):
        (tmp_path / folder).mkdir(parents=True)
    for file in ("toolkit/first.py", "tests/__init__.py", "examples/second.py"):
        (tmp_path / file).touch()
    (tmp_path / ".gitignore").write_text(".venv\n.*_cache\n.ci-times\n__pycache__\n")
    for file in ("Makefile", "pyproject.toml", "scripts/quick.py"):
        shutil.copy(ROOT / file, tmp_path / file)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    return tmp_path


def changes(folder: str) -> str:
    argv = ["git", "status", "--porcelain", "--", folder]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True).stdout


@dataclass(frozen=True)
class Rule:
    needs: tuple[str, ...]
    recipe: str


def test_ci_runs_every_script_and_every_target() -> None:
    assert starts_all((ROOT / ".ci" / "run").read_text())
    assert unrun(rules(), calls()) == set(), "neither `make test` nor a test of this file runs these"


@pytest.mark.parametrize(("line", "all_"), [("make test", 1), ("make test || code=$?", 1), ("make test-setup", 0)])
def test_only_make_test_is_all_of_it(line: str, all_: int) -> None:
    assert starts_all(f"export CI=true\n{line}\n") == bool(all_)


def starts_all(script: str) -> bool:
    return re.search(r"^make test( |$)", script, re.MULTILINE) is not None


def test_every_folder_of_tests_is_in_a_lane() -> None:
    assert left_out(ROOT / "tests", rules()) == set()


def test_a_new_folder_of_tests_is_found(tmp_path: Path) -> None:
    for file in ("unit/test_a.py", "e2e/deep/test_b.py", "load/test_c.py", "load/deep/test_d.py", "unit2/test_e.py"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    (tmp_path / "test_f.py").touch()
    assert left_out(tmp_path, rules()) == {"load/test_c.py", "load/deep/test_d.py", "unit2/test_e.py", "test_f.py"}


def left_out(folder: Path, known: dict[str, Rule]) -> set[str]:
    """Return the test files that no lane of `make test` names with their folder or by themselves."""
    lanes = closure({"lanes"}, {name: set(rule.needs) for name, rule in known.items()})
    text = "\n".join(known[lane].recipe for lane in lanes & set(known))
    named = set(re.findall(r"(?<![\w/.-])tests/([\w./-]+)", text.replace("$(HERMETIC)", hermetic())))
    files = {file.relative_to(folder) for file in folder.rglob("test_*.py")}
    return {str(file) for file in files if not named & {str(one) for one in (file, *file.parents)}}


def hermetic() -> str:
    """Return the arguments of the hermetic tests: a rule shows the name of the variable alone."""
    found = re.search(r"^HERMETIC := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert found
    return found[1]


def test_a_new_script_and_a_new_target_are_found() -> None:
    more = rules() | {"new": Rule((), "\t@scripts/new.sh"), "helper": Rule((), "\t@true")}
    more["unit"] = Rule((*more["unit"].needs, "helper"), more["unit"].recipe)
    assert unrun(more, calls() | {"new.sh": set(), "newer.py": set()}) == {
        "make new",
        "scripts/new.sh",
        "scripts/newer.py",
    }


def unrun(known: dict[str, Rule], scripts: dict[str, set[str]]) -> set[str]:
    """Return the targets and scripts that CI does not run."""
    targets = closure({"test", "lanes", *targets_here()}, {name: set(rule.needs) for name, rule in known.items()})
    named = {
        name for target in targets & set(known) for name in re.findall(r"\bscripts/([\w./-]+)", known[target].recipe)
    }
    run = closure(named, scripts)
    return {f"make {name}" for name in set(known) - targets} | {f"scripts/{name}" for name in set(scripts) - run}


def closure(start: set[str], edges: dict[str, set[str]]) -> set[str]:
    """Return all that can be reached from the start."""
    found: set[str] = set()
    left = set(start)
    while left:
        found |= left
        left = {after for name in left for after in edges.get(name, ())} - found
    return found


def targets_here() -> set[str]:
    """Return the targets that tests of this file run: the first word of each call of `make`."""
    functions = [node for node in ast.parse(Path(__file__).read_text()).body if isinstance(node, ast.FunctionDef)]
    found = [
        node
        for function in functions
        if function.name.startswith("test_")
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "make"
    ]
    return {ast.literal_eval(call.args[0]) for call in found}


def rules() -> dict[str, Rule]:
    """Return the rules of the Makefile, as make itself reads them."""
    argv = ["make", "--no-builtin-rules", "--print-data-base", "--question", "help"]
    env = {**os.environ, "MAKEFLAGS": "", "LC_ALL": "C"}
    told = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, check=False).stdout
    found = {}
    for block in told.split("\n# Files\n")[1].split("\n\n"):
        head = re.match(r"([^#\s:][^\s:]*):(?![:=])(.*)", block)
        if head and not re.fullmatch(r"\.[A-Z_]+", head[1]):
            recipe = "\n".join(line for line in block.splitlines() if line.startswith("\t"))
            found[head[1]] = Rule(tuple(head[2].replace("|", " ").split()), recipe)
    assert "test" in found, told
    return found


def calls(folder: Path = ROOT / "scripts") -> dict[str, set[str]]:
    """Return the files of scripts/, each with those that it imports or starts."""
    files = {file.relative_to(folder).as_posix(): file for file in folder.rglob("*") if file.is_file()}
    files = {name: file for name, file in files.items() if "__pycache__" not in name}
    found: dict[str, set[str]] = {name: set() for name in files if not name.endswith(".py")}
    for name in files.keys() - found.keys():
        found[name] = set()
        for node in ast.walk(ast.parse(files[name].read_text())):
            if isinstance(node, ast.Import):
                found[name] |= {f"{one.name.replace('.', '/')}.py" for one in node.names}
            elif isinstance(node, ast.ImportFrom):
                module = (node.module or "").replace(".", "/")
                found[name] |= {f"{module}.py", *(f"{module}/{one.name}.py" for one in node.names)}
            elif isinstance(node, ast.Call):
                # A path that is given to a function: a docstring or a table only speaks of it.
                given = (one for word in (*node.args, *(key.value for key in node.keywords)) for one in words(word))
                found[name] |= {one.removeprefix("scripts/") for one in given}
    return found


def words(node: ast.expr) -> set[str]:
    """Return the strings of an argument: itself, in a list or tuple, or at the end of a path."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return {node.value}
    if isinstance(node, ast.List | ast.Tuple):
        return {one for part in node.elts for one in words(part)}
    if isinstance(node, ast.Starred):
        return words(node.value)
    if isinstance(node, ast.BinOp):
        return words(node.left) | words(node.right)
    return set()


def test_a_script_that_is_only_named_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "start.py").write_text(
        'import other\nimport deep.part\n"only.py"\nASSETS = {"scripts/table.sh": ("listed.py",)}\n'
        'run(["scripts/called.sh", "-x"], file=ROOT / "scripts" / "path.sh")\n'
    )
    for name in ("other.py", "only.py", "table.sh", "listed.py", "called.sh", "path.sh", "deep/part.py", "deep/new.sh"):
        (tmp_path / name).touch()
    known = {"test": Rule(("unit",), ""), "unit": Rule((), "\t@scripts/start.py")}
    found = {name for name in unrun(known, calls(tmp_path)) if name.startswith("scripts/")}
    assert found == {f"scripts/{name}" for name in ("only.py", "table.sh", "listed.py", "deep/new.sh")}
