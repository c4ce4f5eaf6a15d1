"""Set-up without its steps: which of them are needed, what a failed one says, and that an interrupted one continues."""

from __future__ import annotations

import errno
import fcntl
import importlib.util
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from hvdctl import board, process
from hvdctl.errors import PhaseError
from hvdctl.progress import Silent
from support import started_with, wait_for

SCRIPTS = Path(__file__).parents[2] / "scripts"
DPKG = "this is dpkg with"


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, as if it were of a clone in which nothing is installed."""
    spec = importlib.util.spec_from_file_location("setup_script", SCRIPTS / "setup.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    clone = tmp_path / "clone"
    (clone / "scripts").mkdir(parents=True)
    (clone / "pyproject.toml").touch()
    monkeypatch.setattr(module, "ROOT", clone)
    for name, place in {"VENV": ".venv", "PYTHON": ".venv/bin/python", "SITE_PACKAGES": ".venv/site"}.items():
        monkeypatch.setattr(module, name, clone / place)
    return module


def script(setup: ModuleType, name: str, text: str) -> None:
    file = setup.ROOT / "scripts" / name
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)


def titles(tasks: list[object]) -> list[str]:
    return [task.title for task in tasks]  # type: ignore[attr-defined]


def test_a_bare_machine_needs_every_step(setup: ModuleType) -> None:
    script(setup, "system.sh", 'case "$*" in *--check*) exit 1 ;; esac')
    script(setup, "engine.sh", "exit 1")
    found = [*setup.system_packages(), *setup.docker_engine(), *setup.environment(), *setup.packages(developers=False)]
    assert titles(found) == ["System packages", "Docker engine", "Virtual environment", "Packages of hvdctl"]


def test_an_interrupted_set_up_continues(setup: ModuleType) -> None:
    script(setup, "system.sh", "exit 0")
    script(setup, "engine.sh", "exit 0")
    assert setup.system_packages() == setup.docker_engine() == []
    setup.PYTHON.parent.mkdir(parents=True)
    setup.PYTHON.touch()
    assert titles(setup.environment()) == ["Virtual environment"], "made, but its packages are missing"
    for name in setup.EARLY:
        (setup.SITE_PACKAGES / name).mkdir(parents=True)
    assert titles(setup.environment()) == ["Virtual environment"], "killed while pip wrote the files"
    for name in setup.EARLY:
        whole(setup, name)
    assert setup.environment() == []
    (setup.VENV / ".ready").touch()
    assert setup.packages(developers=False) == []
    assert titles(setup.packages(developers=True)) == ["Tools for developers"]


def whole(setup: ModuleType, name: str) -> None:
    """What pip writes last."""
    record = setup.SITE_PACKAGES / f"{name}-1.0.dist-info" / "RECORD"
    record.parent.mkdir(parents=True)
    record.touch()


def test_an_environment_whose_pip_is_missing_is_made_again(setup: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "SITE_PACKAGES", setup.VENV / setup.SITE_PACKAGES_BELOW)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", setup.VENV], check=True)
    setup.create(setup.VENV, Silent())
    assert subprocess.run([setup.PYTHON, "-m", "pip", "--version"], check=False).returncode == 0
    mark = setup.VENV / "mark"
    mark.touch()
    setup.create(setup.VENV, Silent())
    assert mark.exists(), "a whole one is kept"


def test_the_tools_for_developers_come_with_what_they_call(setup: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    script(setup, "system.sh", f'echo "$@" >>{setup.ROOT}/calls; case "$*" in *--check*) exit 1 ;; esac')
    script(setup, "engine.sh", "exit 1")
    monkeypatch.setattr(setup, "terraform", list)
    done: list[list[str]] = []
    monkeypatch.setattr(setup, "run", lambda tasks, progress, later=(): done.append(titles(tasks)))
    setup.for_developers(board.Board(live=False))
    assert done == [["System packages", "Virtual environment", "Tools for developers"]]
    assert "--engine" not in (setup.ROOT / "calls").read_text()


def test_a_full_disk_before_any_step_is_one_line(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(board: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/clone/.venv")

    monkeypatch.setattr(sys, "argv", ["setup.py", "--venv"])
    monkeypatch.setattr(setup, "for_developers", full)
    assert setup.main() == 1
    assert capsys.readouterr().err == "error: No space left on device: /clone/.venv\n"


def test_packages_are_installed_again_when_the_project_asks_for_others(setup: ModuleType) -> None:
    setup.VENV.mkdir()
    (setup.VENV / ".ready").touch()
    later = (setup.VENV / ".ready").stat().st_mtime + 1
    os.utime(setup.ROOT / "pyproject.toml", (later, later))
    assert titles(setup.packages(developers=False)) == ["Packages of hvdctl"]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            "echo some; echo 'ERROR: No matching distribution found for x'; echo more; exit 1",
            "No matching distribution",
        ),
        ("echo 'E: Unable to fetch some archives'; exit 100", "Unable to fetch some archives"),
        ("echo 'tar: write: No space left on device'; exit 2", "the disk is full"),
        ("exit 7", "exit code 7"),
    ],
)
def test_a_step_that_fails_says_why_in_one_line(setup: ModuleType, said: str, told: str) -> None:
    script(setup, "step.sh", said)
    with pytest.raises(PhaseError, match=told) as caught:
        setup.script("scripts/step.sh")(Silent())
    assert "\n" not in caught.value.message


def test_a_second_set_up_in_the_same_folder_waits_for_the_first(
    setup: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    order: list[str] = []

    def second() -> None:
        with setup.alone(board.Board(live=False)):
            order.append("second")

    with (setup.ROOT / "pyproject.toml").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        thread = threading.Thread(target=second)
        thread.start()
        heard: list[str] = []

        def waits() -> bool:
            heard.append(capsys.readouterr().err)
            return "Waiting for another set-up" in "".join(heard)

        wait_for(waits)
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]


STEP = """
begin() {
  echo "$1" >>"$CLONE/steps"
  [ ! -e "$CLONE/hangs.$1" ] || exec sleep 600
}
end() { : >"$CLONE/done.$1"; }
"""
FAKES = {
    "scripts/system.sh": 'case "$*" in *--check*) [ -e "$CLONE/done.system" ] ;; *) begin system; end system ;; esac',
    "scripts/engine.sh": 'case "$*" in *--check*) [ -e "$CLONE/done.engine" ] ;; *) begin engine; end engine ;; esac',
    ".venv/bin/python": """
case "$*" in
*platformdirs*)
  begin first-packages
  for name in docker platformdirs; do
    mkdir "$CLONE/$PACKAGES/$name-1.0.dist-info"
    : >"$CLONE/$PACKAGES/$name-1.0.dist-info/RECORD"
  done
  end first-packages
  ;;
*--editable*) begin all-packages; end all-packages ;;
esac
""",
}


@pytest.mark.parametrize(
    ("words", "killed_in", "done"),
    [
        ([], "system", []),
        ([], "engine", ["first-packages", "system"]),
        ([], "first-packages", ["engine", "system"]),
        (["--venv"], "all-packages", ["first-packages", "system"]),
    ],
)
def test_a_set_up_that_was_killed_repeats_no_step_that_is_done(
    setup: ModuleType, fake_terraform: Path, words: list[str], killed_in: str, done: list[str]
) -> None:
    """The real script in a clone whose system.sh, engine.sh and pip are fakes."""
    clone = setup.ROOT
    packages = Path(".venv") / setup.SITE_PACKAGES_BELOW
    (clone / packages / "pip-1.0.dist-info").mkdir(parents=True)
    (clone / packages / "pip-1.0.dist-info" / "RECORD").touch()
    (clone / ".venv" / "bin").mkdir()
    for name, text in FAKES.items():
        (clone / name).write_text(f"#!/bin/sh -e\n{STEP}\n{text}\n")
        (clone / name).chmod(0o755)
    for name in ("toolkit", "images", "infra", "playbooks"):
        (clone / name).symlink_to(SCRIPTS.parent / name)
    shutil.copy(SCRIPTS / "setup.py", clone / "scripts" / "setup.py")
    argv = [sys.executable, str(clone / "scripts" / "setup.py"), *words]
    env = {**os.environ, "CLONE": str(clone), "PACKAGES": str(packages)}

    def finished() -> list[str]:
        return sorted(file.suffix[1:] for file in clone.glob("done.*"))

    (clone / f"hangs.{killed_in}").touch()
    with subprocess.Popen(
        argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as first:
        steps = clone / "steps"
        try:
            wait_for(lambda: steps.exists() and killed_in in steps.read_text().split() and finished() == done)
        finally:
            first.kill()
    wait_for(lambda: not started_with(f"CLONE={clone}"))
    assert finished() == done
    (clone / f"hangs.{killed_in}").unlink()
    steps.unlink()

    again = subprocess.run(argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    every = ["system", "first-packages", "all-packages" if words else "engine"]
    assert sorted(steps.read_text().split()) == sorted(set(every) - set(done)), again.stderr
    if words:
        assert again.returncode == 0, again.stderr
    else:
        assert "no Docker engine answers" in again.stderr, "what comes next needs a real one"


@pytest.fixture
def apt(tmp_path: Path) -> Callable[[str], dict[str, str]]:
    """A PATH with an apt-get that does what the text says, and with none of the programs that system.sh looks for."""

    def put(text: str) -> dict[str, str]:
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        for name, does in {"apt-get": text, "dpkg": f"echo {DPKG} $@"}.items():
            (folder / name).write_text(f"#!/bin/sh\n{does}\n")
            (folder / name).chmod(0o755)
        for tool in ("env", "dirname", "sudo"):
            link = folder / tool
            if not link.exists():
                link.symlink_to(f"/usr/bin/{tool}")
        (folder / "python3").unlink(missing_ok=True)
        (folder / "python3").symlink_to(sys.executable)
        return {"PATH": str(folder)}

    return put


def system(env: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/bash", SCRIPTS / "system.sh", *words], env=env, capture_output=True, text=True, check=False
    )


def test_a_check_installs_nothing(apt: Callable[[str], dict[str, str]]) -> None:
    done = system(apt("echo called"), "--tests", "--check")
    assert (done.returncode, done.stdout) == (1, "")


def test_missing_packages_are_installed_in_one_call(apt: Callable[[str], dict[str, str]]) -> None:
    done = system(apt('echo "$@"'), "--engine", "--tests")
    assert done.returncode == 0, done.stderr
    (install,) = [line for line in done.stdout.splitlines() if " install " in line]
    # Daemons are looked for in /usr/sbin too, so those may be there.
    for package in ("rsync", "chromium", "vde2", "qemu-utils"):
        assert package in install.split()
    # An installation that was killed would make this one fail.
    assert done.stdout.index(f"{DPKG} --configure -a") < done.stdout.index(install)


def test_packages_that_apt_does_not_have_are_named(apt: Callable[[str], dict[str, str]]) -> None:
    done = system(apt('case "$*" in *update*) ;; *) exit 100 ;; esac'))
    assert done.returncode == 1
    assert "error: apt can't install" in done.stderr and "rsync" in done.stderr


def test_an_unknown_word_is_refused(apt: Callable[[str], dict[str, str]]) -> None:
    done = system(apt("echo called"), "--all")
    assert done.returncode == 2
    assert "--all" in done.stderr and "--tests" in done.stderr


def test_no_network_for_pip_is_one_line_with_a_way_out(setup: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def lines(
        argv: object,
        on_line: Callable[[str], None],
        *,
        env: object = None,
        cwd: object = None,
        log: object = None,
        same_terminal: bool = False,
    ) -> int:
        on_line("WARNING: Retrying (Retry(total=4))")
        on_line("ERROR: Could not find a version that satisfies the requirement docker (from versions: none)")
        return 1

    monkeypatch.setattr(process, "lines", lines)
    with pytest.raises(PhaseError, match="Could not find a version") as caught:
        setup.pip(Silent(), "docker")
    assert "proxy" in caught.value.hint
