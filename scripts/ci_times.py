#!/usr/bin/env python3
"""Measures the lanes of `make test`, and prints where their time went.

    scripts/ci_times.py run unit -- pytest tests/unit    run a lane and write down how long it took; refused while
                                                         `alone` runs in this clone, unless that started it
    scripts/ci_times.py report                           the time of each lane and the ten slowest tests
    scripts/ci_times.py alone -- make lanes              run all lanes, then print the report; refused while another
                                                         one runs in this clone, waits for one in another clone

pytest's own report of a lane is read from `.ci-times/LANE.xml`, if the lane wrote one (`--junitxml`).
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

FOLDER = Path(__file__).resolve().parents[1] / ".ci-times"
LANES = "lanes.jsonl"
# Not in that folder, which `make clean` removes.
LOCK = FOLDER.with_name(".test.lock")
# The process of `alone`, for the lanes that it starts.
STARTED_BY = "HVDCTL_TESTS_STARTED_BY"
SLOWEST = 10


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    run = verbs.add_parser("run", help="run a lane and write down how long it took")
    run.add_argument("lane")
    run.add_argument("command", nargs=argparse.REMAINDER)
    verbs.add_parser("report", help="print the times")
    alone = verbs.add_parser("alone", help="run a command unless another one is running here; forget earlier times")
    alone.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    if args.verb == "report":
        print(report(FOLDER))
        return 0
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if args.verb == "run":
        return lane(FOLDER, args.lane, command, LOCK)
    return hold(FOLDER, command, LOCK, cache() / "test.lock")


def lane(folder: Path, name: str, command: list[str], clone: Path) -> int:
    """Run a lane beside other lanes, but not beside a `make test` that did not start it."""
    with locked(clone, shared=True) as holder:
        return refused(holder) if holder and holder[0] != os.environ.get(STARTED_BY) else measure(folder, name, command)


def refused(holder: list[str]) -> int:
    print(f"error: the tests are already running in this folder (process {holder[0]})", file=sys.stderr)
    return 3


def measure(folder: Path, lane: str, command: list[str]) -> int:
    """Run the command, append its time to the others, and return its exit code."""
    folder.mkdir(exist_ok=True)
    began = time.monotonic()
    code = finish(command)
    record = {"lane": lane, "seconds": round(time.monotonic() - began, 1), "code": code}
    with (folder / LANES).open("a") as file:
        file.write(json.dumps(record) + "\n")
    return code


def hold(folder: Path, command: list[str], clone: Path, machine: Path) -> int:
    """Run the command with both locks, then print the report; refused without the clone's, waits for the machine's."""
    with locked(clone) as holder:
        if holder:
            return refused(holder)
        # Two clones would share the engine, its images and the cores.
        with turn(machine):
            folder.mkdir(exist_ok=True)
            for old in (*folder.glob("*.xml"), folder / LANES):
                old.unlink(missing_ok=True)
            code = finish(["env", f"{STARTED_BY}={os.getpid()}", *command])
            print(f"\n{report(folder)}", flush=True)
            return code


@contextlib.contextmanager
def turn(file: Path) -> Iterator[None]:
    """Hold the lock; if another process has it, print which one and wait."""
    with locked(file) as holder:
        if not holder:
            yield
            return
    print(f"waiting for the tests in {' '.join(holder[1:])} (process {holder[0]}) to end", flush=True)
    with locked(file, wait=True):
        yield


@contextlib.contextmanager
def locked(file: Path, *, wait: bool = False, shared: bool = False) -> Iterator[list[str]]:
    """Hold the lock until the block or the process ends; yields process and folder of the holder if that is another."""
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    file.parent.mkdir(parents=True, exist_ok=True)
    # No child inherits it: a Docker engine that a lane starts would hold it for ever.
    with file.open("a+") as lock:
        try:
            fcntl.flock(lock, kind | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            lock.seek(0)
            yield lock.read().split() or ["unknown"]
            return
        lock.truncate(0)
        lock.write(f"{os.getpid()} {FOLDER.parent}\n")
        lock.flush()
        yield []


def finish(command: list[str]) -> int:
    """Run the command to its end, also after Ctrl-C and SIGTERM; returns its exit code.

    It ends with this process, even with one that is killed: lanes that go on would disturb the next ones.
    """
    setpriv = shutil.which("setpriv")
    child: subprocess.Popen[bytes] | None = None
    ended = False

    def end(*_: object) -> None:
        nonlocal ended
        ended = True
        if child:
            child.terminate()

    before = signal.signal(signal.SIGTERM, end)
    try:
        child = subprocess.Popen([setpriv, "--pdeathsig", "TERM", *command] if setpriv else command)
        if ended:  # the signal came before this process knew the child
            child.terminate()
        while True:
            # A terminal sends Ctrl-C to the child too, whose last lines are worth waiting for.
            with contextlib.suppress(KeyboardInterrupt):
                return child.wait()
    finally:
        signal.signal(signal.SIGTERM, before)


def cache() -> Path:
    """The folder of hvdctl's cache."""
    if chosen := os.environ.get("HVDCTL_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hvdctl"


def report(folder: Path) -> str:
    """A table of the lanes and one of the slowest tests."""
    lanes = [json.loads(line) for line in _read(folder / LANES).splitlines()]
    if not lanes:
        return "no lane was run yet"
    rows = [f"{'LANE':<12}{'TIME':>12}  TESTS"]
    tests: list[tuple[float, str, str]] = []
    for lane in lanes:
        found = _tests(folder / f"{lane['lane']}.xml")
        tests += [(seconds, lane["lane"], name) for seconds, name in found]
        count = f"{len(found)}" if found else ""
        failed = "" if lane["code"] == 0 else f"  failed with exit code {lane['code']}"
        rows.append(f"{lane['lane']:<12}{_minutes(lane['seconds']):>12}  {count}{failed}".rstrip())
    rows.append(f"{'all':<12}{_minutes(sum(lane['seconds'] for lane in lanes)):>12}")
    if tests:
        rows += ["", "SLOWEST TESTS"]
        rows += [f"{seconds:7.1f} s  {lane:<8} {name}" for seconds, lane, name in sorted(tests, reverse=True)[:SLOWEST]]
    return "\n".join(rows)


def _tests(file: Path) -> list[tuple[float, str]]:
    """Seconds and name of each test in a report of pytest's; nothing if the lane was killed before it wrote one."""
    try:
        root = ElementTree.parse(file).getroot()  # our own pytest wrote it
    except (OSError, ElementTree.ParseError):
        return []
    return [
        (float(case.get("time", 0)), f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}")
        for case in root.iter("testcase")
    ]


def _minutes(seconds: float) -> str:
    return f"{int(seconds // 60)} min {int(seconds % 60):02d} s"


def _read(file: Path) -> str:
    return file.read_text() if file.exists() else ""


if __name__ == "__main__":
    sys.exit(main())
