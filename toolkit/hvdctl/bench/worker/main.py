"""The program that every rank of a bench runs: it stays up and measures one point after the other.

Rank 0 takes requests from the run's `inbox` and writes what it found to its `outbox`, one JSON object a line; the other
ranks get each request from rank 0. It ends by itself when nobody has asked for anything for a while.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import allreduce
import comm
import train

_POLL_S = 0.02
_IDLE_S = 300.0

Request = dict[str, Any]


def main() -> int:
    link = comm.connect(os.environ["HVD_BENCH_LAUNCHER"])
    folder = Path(os.environ.get("HVD_RUNS") or "/shared/runs") / os.environ["HVDCTL_RUN"]
    inbox, outbox = Inbox(folder / "inbox"), Outbox(folder / "outbox")
    while True:
        request = link.share(inbox.next() if link.rank == 0 else None)
        if request["op"] == "end":
            link.close()
            return 0
        found = _serve(link, request, outbox)
        if link.rank == 0:
            outbox.write(request["seq"], **found)


def _serve(link: comm.Link, request: Request, outbox: Outbox) -> dict[str, Any]:
    """The answer to one request: what was found, or why all ranks refuse it."""

    def progress(**told: Any) -> None:
        if link.rank == 0:
            outbox.write(request["seq"], event="progress", **told)

    try:
        return {"event": "result", "found": _OPERATIONS[request["op"]](link, request, progress)}
    except train.Refused as error:
        return {"event": "error", "reason": str(error)}
    # Anything else ends this rank, and with it the run: after half an exchange no rank knows what the others wait for.


def _hello(link: comm.Link, request: Request, progress: Any) -> dict[str, Any]:
    """Who is here, on what, with which software."""
    nodes = link.gather(os.uname().nodename)
    if link.rank:
        return {}
    return {"versions": {**link.versions(), "mpi": _mpi()}, "nodes": nodes, "machine": _machine()}


def _mpi() -> str | None:
    try:
        said = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, timeout=10, check=False).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return said.split("\n", 1)[0].removeprefix("mpirun ").translate(str.maketrans("", "", "()")) or None


def _machine() -> dict[str, Any]:
    cpu = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), "")
    return {
        "cpu": cpu.partition(":")[2].strip() or platform.processor(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "kernel": platform.release(),
    }


_OPERATIONS = {"hello": _hello, "train": train.measure, "allreduce": allreduce.measure}


class Inbox:
    """The lines that hvdctl appends."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.read = 0

    def next(self) -> Request:
        deadline = time.monotonic() + _IDLE_S
        while time.monotonic() < deadline:
            # Opened anew each time: that is when an NFS client asks the server what is new.
            try:
                with self.file.open("rb") as stream:
                    stream.seek(self.read)
                    line = stream.readline()
            except FileNotFoundError:
                line = b""
            if line.endswith(b"\n"):
                self.read += len(line)
                request: Request = json.loads(line)
                return request
            time.sleep(_POLL_S)
        return {"op": "end", "seq": 0}


class Outbox:
    def __init__(self, file: Path) -> None:
        self.file = file

    def write(self, seq: int, **told: Any) -> None:
        with self.file.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps({"seq": seq, **told}) + "\n")


if __name__ == "__main__":
    try:
        code = main()
    except Exception:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    # A rank that failed must not wait at exit for peers that wait for it.
    os._exit(code)
