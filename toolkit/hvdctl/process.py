"""The one place that starts processes: argument lists, never shell strings.

Children end when hvdctl ends, however it ends, so a killed hvdctl leaves no terraform at work behind it.
"""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Protocol, TypeVar

from hvdctl.errors import ToolMissing

_PACKAGES = {
    "ssh": "openssh-client",
    "rsync": "rsync",
    "debootstrap": "debootstrap",
    "setpriv": "util-linux",
    "qemu-system-x86_64": "qemu-system-x86",
    "qemu-img": "qemu-utils",
    "vde_switch": "vde2",
}
# What `gather` and `each` have at work at the same time.
AT_ONCE = 32

_Thing = TypeVar("_Thing")
_Found = TypeVar("_Found")


class Runner(Protocol):
    """What runs a command to its end; `capture` is one."""

    def __call__(self, argv: Sequence[str | Path], *, timeout: float) -> subprocess.CompletedProcess[str]: ...


def tool(name: str, hint: str = "") -> str:
    """The path of a program, or an error that says how to get it."""
    found = shutil.which(name)
    if found is None:
        package = _PACKAGES.get(name, name)
        raise ToolMissing(f"{name} is not on PATH", hint=hint or f"install it: apt-get install {package}")
    return found


def capture(
    argv: Sequence[str | Path],
    *,
    stdin: str | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
    watch: Callable[[], float] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run to the end and return exit code, stdout and stderr as text.

    `watch`, in place of a timeout, is called meanwhile, again after the seconds that it returns. What it raises ends
    the command.
    """
    words = _bound(argv)
    with subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=env,
        start_new_session=True,  # Ctrl-C is for us to act on
    ) as child:
        try:
            out, said = _watched(child, stdin, watch) if watch else child.communicate(stdin, timeout=timeout)
        except BaseException:
            # With all that it started: an ssh that is killed leaves its connection to a jump host.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(words, child.returncode, out, said)


def _watched(child: subprocess.Popen[str], stdin: str | None, watch: Callable[[], float]) -> tuple[str, str]:
    while True:
        try:
            return child.communicate(stdin, timeout=watch())
        except subprocess.TimeoutExpired:
            stdin = None  # it has the text


def lines(
    argv: Sequence[str | Path],
    on_line: Callable[[str], None],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    log: IO[str] | None = None,
    same_terminal: bool = False,
) -> int:
    """Run, hand over each line of stdout and stderr as it comes, return the exit code.

    sudo remembers a password for one terminal: a command that calls it stays in the terminal's session.
    """
    with subprocess.Popen(
        _bound(argv),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=env,
        cwd=cwd,
        start_new_session=not same_terminal,
        process_group=0 if same_terminal else None,
    ) as child:
        assert child.stdout is not None  # noqa: S101 - a pipe was asked for
        try:
            for line in child.stdout:
                if log is not None:
                    log.write(line)
                    log.flush()
                on_line(line.rstrip("\n"))
        except BaseException:
            child.terminate()
            raise
        return child.wait()


def attached(argv: Sequence[str | Path]) -> int:
    """Run with the user's own terminal and return the exit code."""
    return subprocess.run([str(word) for word in argv], check=False).returncode


def start(argv: Sequence[str | Path], *, outlive: bool = False, **options: Any) -> subprocess.Popen[Any]:
    """Start in a session of its own, out of the reach of the terminal's Ctrl-C, and return at once."""
    words = [str(word) for word in argv] if outlive else _bound(argv)
    return subprocess.Popen(words, start_new_session=True, **options)


def gather(
    commands: Iterable[Sequence[str | Path]], *, timeout: float, run: Runner | None = None
) -> list[subprocess.CompletedProcess[str]]:
    """Run independent commands side by side; one that takes too long counts as exit code 124.

    Ctrl-C leaves at once. No command is started after that; those under way end with hvdctl, or at their timeout.
    """

    def one(argv: Sequence[str | Path]) -> subprocess.CompletedProcess[str]:
        try:
            return (run or capture)(argv, timeout=timeout)
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess([], 124, "", f"no answer within {timeout:.0f} s")

    return each(one, list(commands))


def each(work: Callable[[_Thing], _Found], things: Sequence[_Thing], *, at_once: int | None = None) -> list[_Found]:
    """What work finds for each thing, in their order; so many are worked on at the same time.

    Ctrl-C and the first error leave at once. No work is started after that.
    """
    turn, over = threading.Semaphore(at_once or AT_ONCE), threading.Event()

    def one(thing: _Thing) -> _Found:
        with turn:
            if over.is_set():
                raise RuntimeError("not started")  # nobody listens any more
            return work(thing)

    answers: dict[int, _Found] = {}
    told = apart(one, things)
    try:
        while len(answers) < len(things):
            index, found = told.get()
            if isinstance(found, Exception):
                raise found
            answers[index] = found
    finally:
        over.set()
    return [answers[index] for index in range(len(things))]


def apart(
    work: Callable[[_Thing], _Found], things: Sequence[_Thing]
) -> queue.SimpleQueue[tuple[int, _Found | Exception]]:
    """Work on each thing in a thread of its own; the queue tells what was found, by the thing's place.

    They are daemons: Ctrl-C leaves at once, whatever they wait for.
    """
    told: queue.SimpleQueue[tuple[int, _Found | Exception]] = queue.SimpleQueue()

    def one(index: int) -> None:
        try:
            told.put((index, work(things[index])))
        except Exception as error:
            told.put((index, error))

    for index in range(len(things)):
        threading.Thread(target=one, args=(index,), daemon=True).start()
    return told


def end(variable: str, patience: float = 5.0) -> None:
    """End the user's processes that have NAME=VALUE in their environment, whatever session they are in."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + patience
        sent: set[int] = set()
        # Again and again: one that ends may have started another one just before.
        while (found := with_variable(variable)) and time.monotonic() < deadline:
            for pid in found - sent:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            sent |= found
            time.sleep(0.05)


def available_memory() -> int:
    """Bytes of memory that new processes can have on this machine without swapping."""
    facts = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return int(facts["MemAvailable"].split()[0]) * 1024


def with_variable(variable: str) -> set[int]:
    """Those that run, but for this one; a process that has ended and was not waited for has no environment."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            theirs = folder.stat().st_uid == os.getuid() and int(folder.name) != os.getpid()
            if theirs and variable.encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.add(int(folder.name))
    return found


def _bound(argv: Sequence[str | Path]) -> list[str]:
    """The command, to be killed by the kernel when the thread that started it is gone."""
    words = [str(word) for word in argv]
    keeper = shutil.which("setpriv")
    return [keeper, "--pdeathsig", "TERM", "--", *words] if keeper else words
