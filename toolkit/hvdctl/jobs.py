"""Jobs: the working directory goes to the share, the head's agent starts and watches the ranks, we look on."""

from __future__ import annotations

import hashlib
import os
import re
import select
import shlex
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from hvdctl import incoming, inventory, owner, process, providers, records, redact, scratch, ssh
from hvdctl.cluster import Cluster, Node
from hvdctl.errors import HvdctlError, JobFailed, UsageError
from hvdctl.profile import Profile
from hvdctl.records import FINAL as FINAL
from hvdctl.records import Record
from hvdctl.spec import Spec

SHARE = PurePosixPath("/shared")
LAUNCHERS = ("horovod", "mpi", "torch")
CANCELLED = 130
_IGNORED = (".git", ".venv", "venv", "__pycache__", "*.pyc", "node_modules", ".mypy_cache", ".pytest_cache")
_IGNORE_FILE = ".hvdctlignore"
_RECONNECTS = 5

Request = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """What is to run, with how many ranks, and where they are to be; by default nodes are filled in order."""

    command: Sequence[str]
    np: int | None = None
    launcher: str | None = None
    env: Mapping[str, str] | None = None
    workdir: Path | None = None
    hosts: Sequence[tuple[str, int]] | None = None
    threads: int | None = None
    tuned: bool = True


def request(
    job: Job, spec: Spec, nodes: Sequence[Node], remote_dir: str, cores: int | None, profile: Profile | None = None
) -> dict[str, Any]:
    """What the head's agent is asked to start: the job's own words, over the profile, over the defaults. Pure.

    `cores` are those that all nodes share; None where each has its own, and knows best how many.
    """
    slots = sum(node.slots for node in nodes)
    np = job.np if job.np is not None else slots
    if not 1 <= np <= slots:
        raise UsageError(
            f"--np {np}: the cluster has {slots} slots ({len(nodes)} nodes of {nodes[0].slots})",
            hint=f"use --np 1 to {slots}, or `hvdctl scale --nodes N`",
        )
    launcher = job.launcher or (profile.launcher if profile else LAUNCHERS[0])
    if launcher not in LAUNCHERS:
        raise UsageError(f"{launcher!r} is not a launcher; choose one of: {', '.join(LAUNCHERS)}")
    hosts = list(job.hosts) if job.hosts is not None else inventory.layout(nodes, np)
    cpus = spec.cpus or (cores / len(hosts) if cores else None)
    most = max(taken for _, taken in hosts)
    tuned = profile.threads_for(len(hosts), most) if profile else None
    shown = redact.words(job.command)
    return {
        "command": list(job.command),
        **({"shown": shown} if shown != list(job.command) else {}),
        "user_command": shlex.join(shown),
        "np": np,
        "launcher": launcher,
        "hosts": hosts,
        "env": {**(profile.env() if profile else {}), **spec.env, **(job.env or {})},
        "workdir": remote_dir,
        "interface": interface(nodes),
        "threads": job.threads or tuned or (max(1, int(cpus / most)) if cpus else None),
    }


def interface(nodes: Sequence[Node]) -> str | None:
    """The device on the cluster's network where it is known; else the head looks for it."""
    return "eth0" if nodes[0].kind == "container" and nodes[0].host_key is None else None


def prepare(cluster: Cluster, job: Job) -> Request:
    """Check the job and sync its working directory; what to submit."""
    ssh.pick(cluster)
    spec, nodes = cluster.spec(), cluster.nodes()
    local = (job.workdir or Path.cwd()).absolute()
    profile = Profile.of(cluster) if job.tuned else None
    cores = (os.cpu_count() or 1) if providers.one_machine(spec) else None
    asked = request(job, spec, nodes, remote_dir(local, _sharing(spec)), cores, profile)
    # Numbers go on after `down`: the records of earlier runs are kept here.
    asked["after"] = last_kept(cluster)
    if spec.framework != "pytorch" and job.launcher == "torch":
        raise UsageError("--launcher torch needs PyTorch", hint=f"this cluster has framework: {spec.framework}")
    if cluster.record("configure").get("ids") != [node.id for node in nodes]:
        raise HvdctlError(
            f"cluster {cluster.name!r} is not whole yet", hint=f"`hvdctl up --name {cluster.name}` goes on with it"
        )
    if gone := lost(cluster, [host for host, _ in asked["hosts"]]):
        raise HvdctlError(f"lost: {', '.join(gone)}", hint=f"`hvdctl up --name {cluster.name}` makes them anew")
    sync(cluster, local, asked["workdir"], given=job.workdir is not None)
    return asked


def submit(cluster: Cluster, asked: Request) -> int:
    """Start a prepared job and return its number."""
    answer = cast(Record, ssh.agent(cluster, ssh.pick(cluster).name, "submit", request=asked))
    return int(answer["id"])


def sync(cluster: Cluster, local: Path, remote: str, *, given: bool) -> None:
    """Copy what changed of a folder to the share; files that the job wrote there stay."""
    if not local.is_dir():
        raise UsageError(f"--workdir {local}: there is no such folder")
    if not given and local in {Path("/"), Path.home()}:
        raise UsageError(f"{local} is no working directory to copy", hint="cd to your project, or use --workdir")
    ignored = [f"--exclude={pattern}" for pattern in _IGNORED]
    if (local / _IGNORE_FILE).exists():
        ignored.append(f"--exclude-from={local / _IGNORE_FILE}")
    _rsync(cluster, [*ignored, f"{local}/"], f"{ssh.pick(cluster).name}:{remote}/")


def follow(
    cluster: Cluster,
    run: int,
    write: Callable[[bytes], None],
    *,
    interrupts: Callable[[], int],
    say: Callable[[str], None],
    rank: int | None = None,
) -> Record | None:
    """Hand over a run's output until it ends; None where the user left it to the head.

    The first Ctrl-C stops every rank, a second one leaves that to the head. A lost connection is made again.
    """
    head = ssh.pick(cluster).name
    seen, lost = 0, 0
    canceller: subprocess.Popen[Any] | None = None
    while True:
        words = ["hvd-agent", "follow", str(run), "--from", str(seen)]
        words += ["--rank", str(rank)] if rank is not None else []
        stream = process.start(
            ssh.argv(cluster, head, words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        output = cast(IO[bytes], stream.stdout)
        try:
            while True:
                if interrupts() and canceller is None:
                    canceller = _start_cancel(cluster, head, run)
                    say(f"stopping every rank of run {run} (Ctrl-C again leaves that to the head)")
                if interrupts() > 1:
                    return None
                if not select.select([output], [], [], 0.1)[0]:
                    continue
                data = os.read(output.fileno(), 1 << 16)
                if not data:
                    break
                seen += len(data)
                lost = 0
                write(data)
            code = stream.wait()
            said = cast(IO[bytes], stream.stderr).read().decode(errors="replace").strip()
        finally:
            stream.terminate()
            stream.wait()
        if code == 0:
            if canceller is not None:
                canceller.wait()
            return show(cluster, run)
        lost += 1
        if code != ssh.LOST or lost > _RECONNECTS:
            raise HvdctlError(
                f"the output of run {run} can't be read from {head}: {said or code}",
                hint=f"the run goes on without us; `hvdctl logs -f {run} --name {cluster.name}` looks again",
            )
        time.sleep(min(lost, 3))


def show(cluster: Cluster, run: int) -> Record:
    """The record of a run, from the head, else the copy kept here."""

    def ask(head: str) -> Record:
        record = ssh.agent(cluster, head, "show", str(run))
        if problem := records.whole(record, run):
            raise UsageError(f"the record of run {run} on {head} is damaged: {problem}", hint="`hvdctl jobs` lists all")
        return cast(Record, record)

    return cast(Record, _asked(cluster, ask, lambda: records.load(cluster, run)))


def rows(cluster: Cluster, missed: Callable[[], None] = lambda: None) -> list[Record]:
    """Every run: those on the head, and those of clusters of this name before it.

    `missed` is called where there is a head that can't be asked.
    """
    kept = {int(row["id"]): row for row in records.rows(cluster)}
    if not kept and not cluster.exists:
        cluster.spec()  # says that there is no such cluster

    def unasked() -> list[Record]:
        if cluster.nodes():
            missed()
        return []

    live = _asked(cluster, lambda head: records.checked(ssh.agent(cluster, head, "list")), unasked)
    merged = {**kept, **{int(row["id"]): row for row in live}}
    return [merged[number] for number in sorted(merged)]


def latest(cluster: Cluster, *, active: bool = False) -> int:
    """The number of the newest run, or of the newest one that has not ended."""
    found = [int(row["id"]) for row in rows(cluster) if not active or row["state"] not in FINAL]
    if not found:
        what = "no run under way" if active else "no run yet"
        raise UsageError(f"cluster {cluster.name!r} has {what}", hint="`hvdctl jobs` lists all runs")
    return found[-1]


def cancel(cluster: Cluster, run: int) -> Record:
    """End every rank on every node; the record afterwards."""
    record = cast(Record, ssh.agent(cluster, ssh.pick(cluster).name, "cancel", str(run), timeout=90))
    if record["state"] not in FINAL:
        raise HvdctlError(f"run {run} has not ended yet", hint=f"`hvdctl cancel {run} --name {cluster.name}` again")
    return record


def log_file(cluster: Cluster, run: int, rank: int | None) -> Path:
    """The log of a finished run as kept here."""
    name = "output.log" if rank is None else f"rank-{rank}.log"
    file = cluster.runs / str(run) / name
    if not file.exists():
        known = sorted(f.stem for f in file.parent.glob("rank-*.log")) if file.parent.is_dir() else []
        raise UsageError(f"run {run} has no {name}", hint=f"there are: {', '.join(known)}" if known else "")
    return file


def judge(record: Record, log: Path | None = None) -> None:
    """Raise where a run did not succeed, naming the rank that failed first, with its exit code."""
    state, run = record["state"], record["id"]
    if state == "succeeded":
        return
    if state == "cancelled":
        raise JobFailed(f"run {run} was cancelled", exit_code=CANCELLED)
    if state == "lost":
        raise JobFailed(f"run {run} was lost with its head", exit_code=1, hint="`hvdctl up`, then run it again")
    code = int(record.get("exit_code") or 1)
    failed = record.get("failed_rank")
    if failed:
        tail = "\n".join(f"    {line}" for line in failed.get("tail") or [])
        message = f"rank {failed['rank']} on {failed['node']} ended with exit code {failed['exit_code']}"
        raise JobFailed(f"run {run} failed: {message}" + (f"\n{tail}" if tail else ""), exit_code=code, log=log)
    reason = record.get("reason") or f"the launcher ended with exit code {code}"
    raise JobFailed(f"run {run} failed: {reason}", exit_code=code, log=log)


def push(cluster: Cluster, sources: Sequence[Path], target: str) -> str:
    """Copy files and folders from here to the share."""
    for source in sources:
        if not source.exists():
            raise UsageError(f"there is no {source} here")
    remote = on_share(target)
    _rsync(cluster, [str(source.absolute()) for source in sources], f"{ssh.pick(cluster).name}:{remote}/")
    return str(remote)


def pull(
    cluster: Cluster, source: str, target: Path, limit: int = incoming.LIMIT, *, into: bool = False
) -> incoming.Arrived:
    """Copy a file or folder from the share to here; what came, and what did not.

    It goes into the target if that is a folder, or is to be one (`into`); a file else gets the name of the target.
    What is larger than the limit does not come at all.
    """
    remote = on_share(source)
    base, name = str(remote.parent), remote.name
    incoming.refuse_links(target, [])
    with scratch.folder() as nothing:
        things, skipped = incoming.listed(cluster, base, [name], target if target.is_dir() else nothing)
    if not things and any(one.why == incoming.CONFLICT for one in skipped):
        raise UsageError(f"{target / name} is a folder, and {remote} is a file", hint="name another folder")
    if not things:
        raise UsageError(
            f"{remote} is a link or a device" if skipped else f"there is no {remote} on the share",
            hint=f"`hvdctl exec --name {cluster.name} -- ls -l {remote.parent}` shows what there is",
        )
    size = sum(thing.size for thing in things if thing.new and not thing.folder)
    if size > limit:
        raise HvdctlError(
            f"{remote} holds {incoming.amount(size)}, over the limit of {incoming.amount(limit)}; nothing was copied",
            hint=f"`--max-size {-(-size // 2**30)}g` allows it; or name a part of it",
        )
    folder = any(thing.folder for thing in things)
    if (folder or into) and target.exists() and not target.is_dir():
        what = f"the folder {remote}" if folder else str(remote)
        raise UsageError(f"{target} is a file and can't take {what}", hint="name a folder")
    taken, left = incoming.chosen(things, limit)
    if folder or into or target.is_dir():
        arrived = incoming.copy(cluster, base, taken, target, modes=incoming.ASKED_FOR, limit=limit)
    else:
        arrived = _named(cluster, base, taken, target, limit)
    arrived.left = [*skipped, *left]
    return arrived


def _named(cluster: Cluster, base: str, taken: Sequence[incoming.Thing], target: Path, limit: int) -> incoming.Arrived:
    """Bring one file under another name."""
    incoming.made(target.parent)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".hvdctl-") as place:
        arrived = incoming.copy(cluster, base, taken, Path(place), modes=incoming.ASKED_FOR, limit=limit)
        for file in Path(place).iterdir():
            file.replace(target)
    return arrived


def on_share(path: str) -> PurePosixPath:
    """The path on the nodes of something on the share, given with or without /shared."""
    full = SHARE / path
    if SHARE not in (full, *full.parents) or ".." in full.parts:
        raise UsageError(f"{path!r} is not on the share; write a path below {SHARE}")
    if problem := incoming.unfit(os.fsencode(full.relative_to("/"))):
        raise UsageError(f"{incoming.shown(os.fsencode(path))}: {problem}", hint="rename it on the share")
    return full


def remote_dir(local: Path, whose: str = "") -> str:
    """One folder on the share for each working directory: a job finds its checkpoints when it is run again.

    `whose` tells apart people who have working directories of the same path, such as /root/train.
    """
    slug = re.sub(r"[^A-Za-z0-9._-]", "-", local.name) or "root"
    # On a share of the cluster's own the path alone counts, as it did in earlier versions.
    named = f"{whose}:{local}" if whose else str(local)
    return f"{SHARE}/work/{slug}-{hashlib.sha256(os.fsencode(named)).hexdigest()[:8]}"


def _sharing(spec: Spec) -> str:
    """The owner of the cluster, if others may use its share; else empty."""
    shared = spec.share != "auto" or providers.REGISTRY[spec.provider].keeps_share
    return owner.this().id if shared else ""


def lost(cluster: Cluster, hosts: Sequence[str]) -> list[str]:
    """The hosts that the site knows to be gone; none where it can't be asked."""
    try:
        seen = providers.REGISTRY[cluster.spec().provider].site.observe(cluster.name, hosts)
    except HvdctlError:
        return []
    return [host for host in hosts if seen.get(host) != "running"]


def _start_cancel(cluster: Cluster, head: str, run: int) -> subprocess.Popen[Any]:
    return process.start(
        ssh.argv(cluster, head, ["hvd-agent", "cancel", str(run)]),
        outlive=True,  # a second Ctrl-C ends us, not the word to the head
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _asked(cluster: Cluster, ask: Callable[[str], Any], otherwise: Callable[[], Any]) -> Any:
    """The head's answer, or what is known here where there is no head to ask."""
    if not cluster.nodes():
        return otherwise()
    try:
        return ask(ssh.pick(cluster).name)
    except UsageError:
        raise
    except HvdctlError:
        return otherwise()


def last_kept(cluster: Cluster) -> int:
    """The highest number of the runs that have a folder here; 0 if there are none."""
    return max(records.numbers(cluster), default=0)


def _rsync(cluster: Cluster, arguments: Sequence[str], target: str) -> None:
    """Copy from here to the share."""
    argv = [process.tool("rsync"), "--archive", "--compress", "--mkpath", "--no-owner", "--no-group"]
    done = process.capture([*argv, "-e", incoming.shell(cluster), *arguments, target])
    if done.returncode:
        full = "No space left" in done.stderr
        told = "no space is left on the share" if full else incoming.reason(done.stderr.splitlines())
        raise HvdctlError(f"copying failed: {told}")
