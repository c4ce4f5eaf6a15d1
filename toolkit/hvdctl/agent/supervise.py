"""`supervise`: one run from its start to its end, whoever is watching.

It starts the launcher, gathers the output, ends everything on request, and writes the run's last word.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Any

from . import hosts, outcome, store
from .environment import of_login
from .launchers import Command, Place, Request, commands
from .pump import Pump
from .store import AgentError
from .submit import agent

# How long torchrun on the other nodes may take to see by itself that one node has failed.
_FOLLOW_S = 3.0
_VENV = "/opt/venv/bin"
_AGAIN_S = (0.1, 1.0, 2.0, 4.0, 8.0, 15.0)


def main(argv: list[str]) -> int:
    match argv:
        case [run_id]:
            lock = None
        case [run_id, "--lock", descriptor]:
            lock = int(descriptor)
            os.set_inheritable(lock, False)
        case _:
            raise AgentError("usage: supervise ID")
    folder = store.find(run_id)
    if lock is None and store.lock(folder, wait=False) is None:
        raise AgentError(f"run {run_id} has a supervisor")
    Supervisor(folder).run()
    return 0


class Supervisor:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.record = store.update(folder, supervisor={"node": store.here(), "pid": os.getpid()})
        self.request = _with_interface(Request.of(self.record))
        self.cancelled = False
        self._told_at: float | None = None
        self._ending: threading.Thread | None = None
        self._failed_at: float | None = None

    def run(self) -> None:
        """To the end of the run, which always has a final state afterwards."""
        for signum in (signal.SIGINT, signal.SIGHUP):
            signal.signal(signum, lambda *_: None)  # ignoring them outright would be inherited by the ranks
        signal.signal(signal.SIGTERM, lambda *_: self._cancel())
        codes: list[int] = []
        problem = None
        try:
            codes = self._launch()
        except Exception as error:
            problem = str(error) if isinstance(error, AgentError) else f"{type(error).__name__}: {error}"
            if not isinstance(error, AgentError):
                import traceback

                traceback.print_exc()
        self._finish(codes, problem)

    def _launch(self) -> list[int]:
        environment = _environment(self.request)
        started = commands(self.request, self._place(environment))
        _require(started, environment)
        self.record = store.update(self.folder, state="running", started=store.now())
        with Pump(self.folder / "output.log") as pump:
            for command in started:
                pump.start(command.argv, environment)
            while pump.step(0.1):
                self._watch(pump)
        return pump.codes()

    def _watch(self, pump: Pump) -> None:
        """End the run where someone asked for it, or where a part of it can't go on without another."""
        if not self.cancelled and _asked(self.folder / "cancel"):
            self._cancel()
        if self._failed_at is None and any(pump.codes()):
            self._failed_at = time.monotonic()
        failed_long_ago = self._failed_at is not None and time.monotonic() - self._failed_at > _FOLLOW_S
        if self._ending is None and (self.cancelled or failed_long_ago):
            self._told_at = store.now()
            self._ending = threading.Thread(target=self._reap, daemon=True)
            self._ending.start()
        elif self._ending is not None and not self._ending.is_alive():
            pump.kill()

    def _cancel(self) -> None:
        self.cancelled = True

    def _reap(self) -> None:
        hosts.reap(self.request.id, [host for host, _ in self.request.hosts])

    def _finish(self, codes: list[int], problem: str | None) -> None:
        end = outcome.judge(self.folder, self.request, codes, problem, cancelled=self.cancelled, told_at=self._told_at)
        if self._ending is not None:
            self._ending.join()
        elif end.pop("unclean"):
            self._reap()
        end.pop("unclean", None)
        ended = store.now()
        started = self.record["started"]
        duration = round(ended - started, 3) if started else None
        self._keep(end | {"ended": ended, "duration_s": duration})

    def _keep(self, end: dict[str, Any]) -> None:
        """Write the last word, without a rank's last lines if there is no room for them."""
        for wait in (0.0, *_AGAIN_S):
            time.sleep(wait)
            try:
                store.update(self.folder, **end)
            except OSError as error:
                refused = error
                if end["failed_rank"]:
                    end["failed_rank"] |= {"tail": []}
            else:
                return
        raise refused

    def _place(self, environment: dict[str, str]) -> Place:
        chosen = os.environ.get("HVD_RUNS")
        carried = ("PATH", "LANG", "LD_LIBRARY_PATH", "PYTHONPATH")
        return Place(
            here=next((host for host, _ in self.request.hosts if hosts.is_here(host)), store.here()),
            agent=agent(),
            driver=str(Path(__file__).with_name("horovodrun.py").resolve()),
            env=(("HVD_RUNS", chosen),) if chosen else (),
            exported=tuple(name for name in carried if name in environment),
            port=hosts.free_port(),
        )


def _with_interface(request: Request) -> Request:
    """Launchers that aren't told the interface look for it on all nodes, which takes them seconds."""
    others = [host for host, _ in request.hosts if not hosts.is_here(host)]
    if request.interface or not others:
        return request
    return request._replace(interface=hosts.interface_to(others[0]))


def _environment(request: Request) -> dict[str, str]:
    """The launcher's."""
    kept = of_login(os.environ)
    kept["HVDCTL_LAUNCH"] = str(request.id)
    kept["PYTHONUNBUFFERED"] = "1"
    path = kept.get("PATH", os.defpath)
    if Path(_VENV).is_dir() and _VENV not in path.split(":"):
        path = f"{_VENV}:{path}"
    kept["PATH"] = path
    # torchrun warns where it has to choose it; a rank that was not told how many it has chooses for itself.
    kept["OMP_NUM_THREADS"] = str(request.threads or 1)
    return kept


def _require(started: list[Command], environment: dict[str, str]) -> None:
    for command in started:
        if shutil.which(command.argv[0], path=environment["PATH"]) is None:
            raise AgentError(f"{command.argv[0]} is not installed on {store.here()}")


def _asked(path: Path) -> bool:
    # Its size and not its existence: NFS clients remember for long that a file was not there.
    try:
        return bool(path.read_bytes())
    except OSError:
        return False
