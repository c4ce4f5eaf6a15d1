#!/usr/bin/env python3
"""Break hvdctl at random moments, and check that nothing is lost, left over or made twice.

make torture MINUTES=10                              rounds until the time is over, on `local` and the GPULab emulator
make torture ARGS="--seed 7 --rounds 5"              five rounds of a seed
make torture ARGS="--seed 7 --first 3 --rounds 1"    one round again: each has its own random numbers

A round brings a cluster to a good state, starts a verb, and injects a fault while the verb works. Then `up` or `down`
must put all in order: every node once, every run that succeeded still listed and with its output, and after `down` no
container, network, volume, process or file left. It stops by itself, and exits with 1 if a round failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hvdctl import engine, images
from hvdctl.gpulab.emulator.containers import LABEL as JOB
from hvdctl.gpulab.emulator.home import Home
from hvdctl.progress import Silent
from hvdctl.sites import local

PATIENCE = 180.0
DISK = 64 * 2**20
# Exit codes that hvdctl documents, and the signals that this script sends.
KNOWN_CODES = {0, 1, 2, 3, 4, 130, 143, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT}
BAD_WORDS = ("Traceback (most recent call last)", "this is a defect of hvdctl")
HELLO = "import os; print('rank', os.environ['HOROVOD_RANK'])"
SLOW = "import time; print('begun', flush=True); time.sleep(3)"
# What a verb takes on two idle cores; the fault comes within this time, or somewhat after the end.
TYPICAL = {"up": 6.0, "scale": 6.0, "run": 5.0, "bench": 15.0, "jupyter": 4.0, "down": 3.0}


class Failure(Exception):
    """What a round found wrong."""


@dataclass
class Campaign:
    """All that rounds share: folders, the emulator, and what was done."""

    work: Path
    seed: int
    spec: Path | None = None
    verbs: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    late: int = 0
    missed: int = 0
    small: tuple[Path, ...] = ()
    """Folders that are small file systems of their own."""

    @property
    def home(self) -> Path:
        return self.work / "home"

    @property
    def gpulab(self) -> Path:
        return self.work / "gpulab"

    @property
    def tmp(self) -> Path:
        return self.work / "tmp"

    @property
    def env(self) -> dict[str, str]:
        return {**os.environ, "HVDCTL_HOME": str(self.home), "TMPDIR": str(self.tmp), "NO_COLOR": "1"}


@dataclass
class Round:
    """One cluster, one verb, one fault."""

    campaign: Campaign
    number: int
    random: random.Random
    provider: str
    name: str
    nodes: int
    told: list[str] = field(default_factory=list)

    def words(self, verb: str, *more: str) -> list[str]:
        return [sys.executable, "-m", "hvdctl", verb, "--name", self.name, *more]

    def start(self, verb: str, *more: str) -> subprocess.Popen[str]:
        self.told.append(f"$ hvdctl {verb} {' '.join(more)}")
        return subprocess.Popen(
            self.words(verb, *more),
            cwd=self.campaign.work / "project",
            env=self.campaign.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def end(self, process: subprocess.Popen[str]) -> tuple[int, str]:
        """Wait for a verb; its code and output, which must be of the documented kind."""
        try:
            said = process.communicate(timeout=PATIENCE)[0]
        except subprocess.TimeoutExpired:
            process.kill()
            self.told.append(process.communicate()[0])
            raise Failure(f"no end within {PATIENCE:.0f} s") from None
        self.told.append(f"{said}(exit code {process.returncode})")
        if process.returncode not in KNOWN_CODES:
            raise Failure(f"undocumented exit code {process.returncode}")
        if word := next((word for word in BAD_WORDS if word in said), None):
            raise Failure(f"the output has {word!r}")
        return process.returncode, said

    def do(self, verb: str, *more: str) -> str:
        """Run a verb that has to succeed."""
        code, said = self.end(self.start(verb, *more))
        if code:
            raise Failure(f"`hvdctl {verb}` ended with exit code {code}")
        return said

    def up(self) -> str:
        return self.do("up", *self.up_words(), "-y")

    def up_words(self) -> list[str]:
        return [*(["--file", str(self.campaign.spec)] if self.provider == "gpulab" else []), *self.size_words()]

    def size_words(self) -> list[str]:
        return ["--layout", f"{self.nodes}x1"] if self.provider == "gpulab" else ["--nodes", str(self.nodes)]

    def containers(self) -> dict[str, Any]:
        """The containers of the cluster: by the name of the node, or as the emulator names its jobs."""
        mine = f"{local.LABEL}={self.name}" if self.provider == "local" else f"{JOB}={Home(self.campaign.gpulab).id}"
        listed = engine.client().containers.list(all=True, filters={"label": mine}, ignore_removed=True)
        return {str(one.labels.get(local.NAME_LABEL, one.name)): one for one in listed}

    def runs(self) -> dict[int, str]:
        """The runs that `jobs` lists as good ones, with their commands."""
        code, said = self.end(self.start("jobs", "--json"))
        if code:
            return {}
        # Before the list it may say that these are only the runs that are kept here.
        rows = json.loads(said[f"\n{said}".index("\n[") :])
        return {int(row["id"]): str(row["command"]) for row in rows if row.get("state") == "succeeded"}


# Faults. Each takes the round and the process of the verb, and returns what has to be undone; None if it hit nothing.

Undo = Callable[[], None]
Fault = Callable[[Round, subprocess.Popen[str]], Undo | None]


def nothing_to_undo() -> None:
    return None


def send(number: signal.Signals) -> Fault:
    def fault(_: Round, process: subprocess.Popen[str]) -> Undo | None:
        over = process.poll() is not None
        process.send_signal(number)
        return None if over else nothing_to_undo

    return fault


def kill_child(round_: Round, process: subprocess.Popen[str]) -> Undo | None:
    """SIGKILL for one of the programs that the verb has started: Terraform, its plug-in, Ansible, ssh, rsync."""
    children: list[int] = []
    while not children and process.poll() is None:
        children = [pid for pid in below(process.pid) if pid != process.pid]
        time.sleep(0.01)
    if not children:
        return None
    victim = round_.random.choice(children)
    round_.told.append(f"killed: {command(victim)[:100]}")
    with contextlib.suppress(ProcessLookupError):
        os.kill(victim, signal.SIGKILL)
    return nothing_to_undo


def on_node(act: str) -> Fault:
    """Kill, remove or pause the container of a node."""

    def fault(round_: Round, process: subprocess.Popen[str]) -> Undo | None:
        from docker.errors import DockerException

        while not (there := round_.containers()) and process.poll() is None:
            time.sleep(0.05)
        if not there:
            return None
        name = round_.random.choice(sorted(there))
        round_.told.append(f"{act}: {name}")
        with contextlib.suppress(DockerException):
            if act == "remove":
                there[name].remove(force=True)
            else:
                getattr(there[name], act)()
        if act != "pause":
            return nothing_to_undo

        def unpause() -> None:
            with contextlib.suppress(DockerException):
                there[name].unpause()

        time.sleep(2)
        return unpause

    return fault


def fill_disk(round_: Round, _: subprocess.Popen[str]) -> Undo | None:
    """No byte is left in HVDCTL_HOME or in the folder for temporary files, which are small file systems."""
    if not round_.campaign.small:
        return None
    folder = round_.random.choice(round_.campaign.small)
    round_.told.append(f"full: {folder}")
    filler = folder / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 2**20)
    with contextlib.suppress(OSError), filler.open("ab", buffering=0) as file:
        while True:
            file.write(b"x" * 512)
    return lambda: filler.unlink(missing_ok=True)


FAULTS: dict[str, Fault] = {
    "SIGKILL": send(signal.SIGKILL),
    "SIGTERM": send(signal.SIGTERM),
    "SIGINT": send(signal.SIGINT),
    "kill a child": kill_child,
    "kill a node": on_node("kill"),
    "remove a node": on_node("remove"),
    "pause a node": on_node("pause"),
    "full disk": fill_disk,
}


def play(round_: Round, verb: str, fault: str, late: float, recovery: str) -> None:
    """One round, from nothing to nothing; raises Failure."""
    kept: dict[int, str] = {}
    if verb != "up":
        round_.up()
        round_.do("run", "--", "python", "-c", HELLO)
        kept = round_.runs()
        if not kept:
            raise Failure("a run that succeeded is not listed")
    if verb == "scale":
        round_.nodes = round_.random.choice([n for n in (1, 2, 3) if n != round_.nodes])
    words = {
        "up": round_.up_words(),
        "scale": ["--nodes", str(round_.nodes), "-y"],
        "run": ["--", "python", "-c", SLOW],
        "bench": [
            "--model",
            "convnet_cifar10",
            "--batch",
            "2",
            "--max-steps",
            "5",
            "--max-seconds",
            "5",
            "--no-micro",
            "-y",
        ],
        "jupyter": [],
        "down": ["-y"],
    }[verb]
    process = round_.start(verb, *words)
    time.sleep(late)
    if process.poll() is not None:
        round_.campaign.late += 1
    round_.told.append(f"* {fault} after {late:.2f} s")
    undo = FAULTS[fault](round_, process)
    if undo is None:
        round_.campaign.missed += 1
    try:
        round_.end(process)
    finally:
        if undo:
            undo()
    left_processes(round_, "after the fault")
    if verb in ("run", "bench"):
        kept |= round_.runs()
    if recovery == "up":
        round_.up()
        whole(round_)
        round_.do("run", "--", "python", "-c", HELLO)
    take_down(round_)
    if lost := kept.keys() - round_.runs():
        raise Failure(f"runs {sorted(lost)} are not listed any more")
    # A bench's own runs print nothing.
    for run in sorted(run for run, command in kept.items() if "print(" in command):
        if not round_.do("logs", str(run)).strip():
            raise Failure(f"run {run} has lost its output")
    nothing_left(round_)


def whole(round_: Round) -> None:
    """Every node once, and all of them up."""
    told = json.loads(round_.do("status", "--json"))
    names = [node["name"] for node in told["nodes"]]
    if told["state"] != "up" or names != [f"node{index}" for index in range(round_.nodes)]:
        raise Failure(f"after `up` the cluster is {told['state']!r} with {names}")
    running = [one for one in round_.containers().values() if one.status == "running"]
    if len(running) != round_.nodes:
        raise Failure(f"{len(running)} containers run for {round_.nodes} nodes")


def take_down(round_: Round) -> None:
    """`down`; if it refuses as results can't be brought home, `up` first."""
    code, said = round_.end(round_.start("down", "-y"))
    if code == 0:
        return
    if code == 2 and "no cluster" in said:
        return
    if "--force" not in said:
        raise Failure(f"`hvdctl down` ended with exit code {code}")
    round_.up()
    round_.do("down", "-y")


def nothing_left(round_: Round) -> None:
    deadline = time.monotonic() + 10  # a service ends its jobs in its own time
    while round_.containers() and round_.provider == "gpulab" and time.monotonic() < deadline:
        time.sleep(0.2)
    if left := [*round_.containers(), *(claim.thing for claim in local.claims(round_.name))]:
        raise Failure(f"left on the engine: {', '.join(left)}")
    left_processes(round_, "after down")
    folder = round_.campaign.home / round_.name
    if files := [entry.name for entry in folder.glob("*") if entry.name not in ("runs", "bench")]:
        raise Failure(f"left in the cluster's folder: {', '.join(files)}")
    # hvdctl's own folder there stays, and is empty.
    own = round_.campaign.tmp / f"hvdctl-{os.getuid()}"
    if files := [entry.name for entry in round_.campaign.tmp.rglob("*") if entry != own]:
        raise Failure(f"left in the temporary folder: {', '.join(files)}")


def left_processes(round_: Round, when: str) -> None:
    """No process of the cluster's hvdctl goes on, but for the tunnel of JupyterLab while the cluster is up."""
    mark = f"HVDCTL_HOME={round_.campaign.home}".encode()
    deadline = time.monotonic() + 20
    while True:
        left = set(marked(mark))
        if when != "after down":
            left -= {part for pid in left if "hvdctl.tunnel" in command(pid) for part in below(pid)}
        if not left:
            return
        if time.monotonic() > deadline:
            raise Failure(f"processes left {when}: {'; '.join(command(pid)[:100] for pid in left)}")
        time.sleep(0.2)


def marked(mark: bytes) -> list[int]:
    """The processes that have this variable, but for the emulator, which is this script's own."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if mark in (entry / "environ").read_bytes().split(b"\0") and "emulate" not in command(int(entry.name)):
                    found.append(int(entry.name))
    return found


def below(pid: int) -> list[int]:
    """A process and all that it has started."""
    with contextlib.suppress(OSError):
        tasks = Path(f"/proc/{pid}/task").iterdir()
        children = {int(child) for task in tasks for child in (task / "children").read_text().split()}
        return [pid, *(one for child in sorted(children) for one in below(child))]
    return [pid]


def command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    return ""


@contextlib.contextmanager
def prepared(seed: int, *, gpulab: bool) -> Iterator[Campaign]:
    """The folders, a small file system as HVDCTL_HOME if this user may mount one, and the emulator."""
    work = Path(tempfile.mkdtemp(prefix="hvdctl-torture-"))
    campaign = Campaign(work, seed)
    for folder in (campaign.home, campaign.tmp, work / "project"):
        folder.mkdir()
    # What this script asks of the engine is asked as the owner of the clusters.
    os.environ["HVDCTL_HOME"] = str(campaign.home)
    emulator = None
    try:
        if os.geteuid() == 0:
            for folder in (campaign.home, campaign.tmp):
                subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", folder], check=True)
                campaign.small += (folder,)
        else:
            print("not root: no folder is a file system of its own, so `full disk` hits nothing")
        if gpulab:
            argv = [sys.executable, "-m", "hvdctl", "gpulab", "emulate", "--json", "--pace", "0.1"]
            emulator = subprocess.Popen(
                [*argv, "--folder", str(campaign.gpulab)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
            )
            assert emulator.stdout
            if not (ready := emulator.stdout.readline()):
                sys.exit("the GPULab emulator did not start")  # it has said why
            campaign.spec = Path(json.loads(ready)["spec"])
        yield campaign
    finally:
        if emulator:
            emulator.terminate()
            emulator.wait(60)
        for folder in campaign.small:
            subprocess.run(["umount", "-l", folder], check=False)
        shutil.rmtree(work, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10, help="begin no round after this time (default 10)")
    parser.add_argument("--rounds", type=int, help="number of rounds (default: as many as fit)")
    parser.add_argument("--first", type=int, default=1, help="number of the first round (default 1)")
    parser.add_argument("--seed", type=int, help="repeat the faults of this seed (default: a new one)")
    parser.add_argument("--provider", choices=("local", "gpulab"), help="only this provider")
    args = parser.parse_args()
    # In the background of a script Ctrl-C is ignored, also by all that is started there; here it must not be.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    seed = args.seed if args.seed is not None else random.SystemRandom().randrange(10**6)
    images.build("pytorch", Silent())
    began, failed = time.monotonic(), []
    print(f"seed {seed}", flush=True)
    last = args.first + args.rounds - 1 if args.rounds else 10**9
    with prepared(seed, gpulab=args.provider != "local") as campaign:
        number = args.first
        while number <= last and (args.rounds or time.monotonic() - began < 60 * args.minutes):
            if not one(campaign, number, args.provider):
                failed.append(number)
            number += 1
    minutes = (time.monotonic() - began) / 60
    print(
        f"\n{number - args.first} rounds in {minutes:.1f} min, {campaign.late} faults after the end, "
        f"{campaign.missed} that hit nothing"
    )
    print("verbs:  " + ", ".join(f"{name} {count}" for name, count in campaign.verbs.most_common()))
    print("faults: " + ", ".join(f"{name} {count}" for name, count in campaign.faults.most_common()))
    for number in failed:
        only = f" --provider {args.provider}" if args.provider else ""
        print(f'failed: make torture ARGS="--seed {seed} --first {number} --rounds 1{only}"')
    return 1 if failed else 0


def one(campaign: Campaign, number: int, only: str | None) -> bool:
    """Choose and play a round; whether it went well."""
    chance = random.Random(f"{campaign.seed}/{number}")
    provider = chance.choice(["local", "local", "gpulab"])
    verb = chance.choice(["up", "up", "scale", "run", "bench", "jupyter", "down"])
    fault = chance.choice(sorted(FAULTS))
    late = chance.uniform(0, 1.1) * TYPICAL[verb]
    recovery = chance.choice(["up", "down"])
    nodes = chance.choice([1, 2, 3])
    round_ = Round(campaign, number, chance, only or provider, f"torture{number}", nodes)
    title = f"round {number}: {round_.provider}, {nodes} nodes, {fault} in {verb} after {late:.1f} s, then {recovery}"
    campaign.verbs[verb] += 1
    campaign.faults[fault] += 1
    began = time.monotonic()
    try:
        play(round_, verb, fault, late, recovery)
    except KeyboardInterrupt:
        clean(round_)
        raise
    except Exception as failure:  # whatever it is: the next round must not find what this one left
        print(
            f"{title}: FAILED: {failure if isinstance(failure, Failure) else repr(failure)}",
            *(f"    {line}" for text in round_.told for line in text.splitlines()),
            sep="\n",
        )
        clean(round_)
        return False
    print(f"{title}: good ({time.monotonic() - began:.0f} s)", flush=True)
    return True


def clean(round_: Round) -> None:
    """What a failed round left must not disturb the next one."""
    subprocess.run(round_.words("down", "-y", "--force"), env=round_.campaign.env, capture_output=True, check=False)
    for one in round_.containers().values():
        one.remove(force=True)
    local.sweep(round_.name, keep_data=False, step=Silent())
    for pid in marked(f"HVDCTL_HOME={round_.campaign.home}".encode()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for entry in round_.campaign.tmp.iterdir():
        shutil.rmtree(entry, ignore_errors=True) if entry.is_dir() else entry.unlink()


if __name__ == "__main__":
    sys.exit(main())
