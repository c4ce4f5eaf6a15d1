#!/usr/bin/env python3
"""Installs what hvdctl needs on this machine and builds its images. Independent steps run side by side.

    scripts/setup.py           what `hvdctl up` needs: system packages, Docker engine, .venv, the PyTorch image
    scripts/setup.py --tests   also what the tests need: their tools, all images, Chromium, QEMU
    scripts/setup.py --venv    .venv with the tools for developers, and nothing else

Steps that are done are skipped, so an interrupted set-up continues. It starts with the standard library alone.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import platform
import shutil
import site
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "toolkit"))

from hvdctl import process  # noqa: E402 - found by the line above
from hvdctl.board import Board  # noqa: E402
from hvdctl.errors import HvdctlError, PhaseError  # noqa: E402
from hvdctl.graph import Task, run  # noqa: E402
from hvdctl.progress import Step  # noqa: E402

VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
# What the image builds need of the virtual environment: it is there within seconds, all of hvdctl's packages are not.
EARLY = ("docker", "platformdirs")
SITE_PACKAGES_BELOW = Path("lib", f"python{sys.version_info[0]}.{sys.version_info[1]}", "site-packages")
SITE_PACKAGES = VENV / SITE_PACKAGES_BELOW


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tests", action="store_true", help="also install what the tests need")
    parser.add_argument("--venv", action="store_true", help="install only .venv, with the tools for developers")
    parser.add_argument("--verbose", action="store_true", help="verbose output")
    args = parser.parse_args()
    board = Board(verbose=args.verbose)
    try:
        if sys.version_info < (3, 11):  # noqa: UP036 - whatever Python the machine has
            raise HvdctlError(f"Python {platform.python_version()} is too old", hint="make PYTHON=/path/to/python3.11")
        with alone(board):
            if args.venv:
                for_developers(board)
            else:
                everything(board, tests=args.tests)
    except HvdctlError as error:
        lines = [f"error: {error.message}", *([f"  → {error.hint}"] if error.hint else [])]
        lines += [f"  log: {error.log}"] if error.log else []
        print("\n".join(lines), file=sys.stderr)
        return 1
    except OSError as error:
        place = f": {error.filename}" if error.filename else ""
        print(f"error: {error.strerror or error}{place}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("set-up was interrupted; run it again to continue", file=sys.stderr)
        return 130
    return 0


def for_developers(board: Board) -> None:
    """What lint and the hermetic tests call, and no engine."""
    tasks = [*system_packages(engine=False), *environment(), *packages(developers=True), *terraform()]
    if tasks:
        ask_for_root()
        run(tasks, board)


def everything(board: Board, *, tests: bool) -> None:
    """The engine and the first packages of .venv; then all that needs one of the two."""
    later = [*packages(developers=tests), *terraform(), *(for_tests() if tests else [])]
    first = [*system_packages(), *docker_engine(), *environment()]
    if first:
        ask_for_root()
        run(first, board, later=[*later, IMAGES])
    site.addsitedir(str(SITE_PACKAGES))
    # This Python may have no pip: that of .venv downloads the packages of the images.
    os.environ["PATH"] = f"{VENV / 'bin'}{os.pathsep}{os.environ['PATH']}"
    from hvdctl import engine, imageparts, images
    from hvdctl.imageplan import plan_of

    plans = [plan_of(framework) for framework in (images.FRAMEWORKS if tests else images.FRAMEWORKS[:1])]
    wanted = [imageparts.node(plan) for plan in plans]
    wanted += [imageparts.machine(plans[0])] if tests else []
    client = engine.client()
    try:
        if imageparts.missing(wanted, client):
            with images.turn(board):
                run([*later, *imageparts.missing(wanted, client)], board)
            images.prune(client)
        else:
            run(later, board)
    except engine.failures() as error:
        raise engine.describe(error) from error
    finally:
        client.close()


# Stands for all images in the outlook as long as nobody can ask the engine which of them it has.
IMAGES = Task("images", lambda step: None, after=("Docker engine", "Virtual environment"), expected=270)


def system_packages(*, engine: bool = True) -> list[Task]:
    """Debian packages of the programs that hvdctl calls, and the engine's if none answers."""
    words = ["--engine"] if engine and not engine_answers() else []
    if succeeds("scripts/system.sh", *words, "--check"):
        return []
    return [Task("System packages", script("scripts/system.sh", *words), expected=15)]


def docker_engine() -> list[Task]:
    if engine_answers():
        return []
    return [Task("Docker engine", script("scripts/engine.sh"), after=("System packages",), expected=3)]


def environment() -> list[Task]:
    """.venv with the few packages that image builds need."""
    if PYTHON.exists() and all(installed(SITE_PACKAGES, name) for name in EARLY):
        return []

    def work(step: Step) -> None:
        create(VENV, step)
        pip(step, *EARLY)

    # Debian packs the module that brings pip apart.
    return [Task("Virtual environment", work, after=("System packages",), expected=10)]


def create(folder: Path, step: Step) -> None:
    """Make a virtual environment, unless there is a whole one."""
    if (folder / "bin" / "python").exists() and installed(folder / SITE_PACKAGES_BELOW, "pip"):
        return
    command([sys.executable, "-m", "venv", "--clear", folder], step, hint="apt-get install python3-venv")


def installed(packages: Path, name: str) -> bool:
    """Whether a package is there. pip writes its record last."""
    return any(packages.glob(f"{name}-*.dist-info/RECORD"))


def packages(*, developers: bool) -> list[Task]:
    """hvdctl and its packages; for developers also their tools."""
    stamp = VENV / (".developers" if developers else ".ready")
    if newer(stamp, ROOT / "pyproject.toml"):
        return []

    def work(step: Step) -> None:
        pip(step, "--editable", f"{ROOT}[dev]" if developers else str(ROOT))
        (VENV / ".ready").touch()
        stamp.touch()

    title = "Tools for developers" if developers else "Packages of hvdctl"
    return [Task(title, work, after=("Virtual environment",), expected=90 if developers else 40)]


def terraform() -> list[Task]:
    """A pinned release in hvdctl's cache, if neither terraform nor tofu is on PATH."""
    if shutil.which("terraform") or shutil.which("tofu"):
        return []

    def work(step: Step) -> None:
        from hvdctl import terraform_release

        terraform_release.install(step)

    return [Task("Terraform", work, expected=10)]


def for_tests() -> list[Task]:
    """Programs that only the tests call."""
    tasks = []
    if not succeeds("scripts/system.sh", "--tests", "--check"):
        work = script("scripts/system.sh", "--tests")
        tasks.append(Task("Chromium and QEMU", work, after=("System packages",), expected=60))
    client = VENV / "gpulab"
    if not newer(client / ".ready", ROOT / "tests" / "gpulab-client.txt"):
        # imec's client pins an old cryptography, which would replace ours.
        def install_client(step: Step) -> None:
            create(client, step)
            pip(step, "--requirement", str(ROOT / "tests" / "gpulab-client.txt"), python=client / "bin" / "python")
            (client / ".ready").touch()

        tasks.append(Task("GPULab client", install_client, after=("Virtual environment",), expected=30))
    if not (VENV / "registry" / ".ready").exists():
        # Unpacked and not installed: as a service it would listen on every address.
        def unpack(step: Step) -> None:
            script("scripts/registry.sh", str(VENV / "registry"))(step)
            (VENV / "registry" / ".ready").touch()

        tasks.append(Task("Image registry", unpack, after=("Chromium and QEMU", "Virtual environment"), expected=5))
    return tasks


def pip(step: Step, *words: str, python: Path = PYTHON) -> None:
    # Byte code is compiled when a module is first imported: most of what is installed never is.
    argv: list[str | Path] = [
        python,
        "-m",
        "pip",
        "install",
        "--disable-pip-version-check",
        "--no-compile",
        "--progress-bar",
        "off",
    ]
    command([*argv, *words], step, hint="check that `pip install` works on this machine (index, proxy, certificates)")


def script(*words: str) -> Callable[[Step], None]:
    return lambda step: command(words, step)


def command(argv: Sequence[str | Path], step: Step, hint: str = "") -> None:
    """Run one command, its lines shown beside the step; a failure is what it said last."""
    said: list[str] = []

    def hear(line: str) -> None:
        if line.strip():
            said.append(line.strip())
            step.update(line.strip())

    code = process.lines(argv, hear, cwd=ROOT, same_terminal=True)
    if code:
        if any("No space left on device" in line for line in said):
            raise PhaseError(f"the disk is full: no room for {argv[0]}", hint="free some space, then run it again")
        errors = [line for line in said if line.lower().startswith(("error", "e:"))] or said
        raise PhaseError(errors[-1] if errors else f"{argv[0]} ended with exit code {code}", hint=hint)


def engine_answers() -> bool:
    return succeeds("scripts/engine.sh", "--check")


def succeeds(*argv: str) -> bool:
    return process.capture([str(ROOT / argv[0]), *argv[1:]]).returncode == 0


def ask_for_root() -> None:
    """Let sudo ask for its password before anything else writes to the terminal."""
    if os.geteuid() and sys.stdin.isatty() and shutil.which("sudo"):
        process.attached(["sudo", "-v"])


def newer(stamp: Path, source: Path) -> bool:
    return stamp.exists() and stamp.stat().st_mtime >= source.stat().st_mtime


@contextmanager
def alone(board: Board) -> Iterator[None]:
    """One set-up at a time in this clone; the lock ends with its process."""
    with (ROOT / "pyproject.toml").open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with board.phase("Waiting for another set-up in this folder"):
                fcntl.flock(file, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    sys.exit(main())
