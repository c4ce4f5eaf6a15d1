"""Ranks of a bench, started and asked by this node's own agent."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping

from hvdctl.bench.plan import LAUNCHERS, Layout
from hvdctl.bench.session import COMMAND, NOTEBOOK, OURS, WORKER, Talk
from hvdctl.errors import HvdctlError

from hvd_cluster import calls
from hvd_cluster.errors import ClusterError
from hvd_cluster.facts import Facts
from hvd_cluster.launch import threads as share_of_cores
from hvd_cluster.runs import Guard, agent


class LocalTalk(Talk):
    """As hvdctl's own sessions, without SSH to a head: this is the head."""

    def __init__(
        self, known: Facts, layout: Layout, launcher: str, threads: int | None, env: Mapping[str, str]
    ) -> None:
        super().__init__(layout, lambda: 0)
        self.head = next((node.name for node in known.nodes if node.here), known.nodes[0].name)
        hosts = [(node.name, layout.slots) for node in known.nodes[: layout.nodes]]
        folder = calls.private_folder()
        # To the share: other nodes need not have this package's other half.
        try:
            shutil.copytree(WORKER, folder / "worker", ignore=shutil.ignore_patterns("__pycache__"))
        except (OSError, shutil.Error) as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise ClusterError(f"the bench can't be put on the share: {error}") from None
        request = {
            "command": list(COMMAND),
            "user_command": NOTEBOOK,
            "np": layout.ranks,
            "launcher": LAUNCHERS[launcher],
            "hosts": hosts,
            "env": {**known.env, **env, "HVD_BENCH_LAUNCHER": launcher},
            "workdir": str(folder / "worker"),
            "interface": known.interface,
            "threads": threads or share_of_cores(known, hosts),
            "after": known.after,
        }
        self._guard = Guard(request, folder)
        self.run = self._guard.id
        self.greet()

    def agent(self, *words: str) -> list[str]:
        return ["hvd-agent", *words]

    def let_go(self) -> None:
        # It tells the ranks to leave as soon as its stdin ends, which here is at once.
        subprocess.run(
            ["hvd-agent", "hold", str(self.run)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            check=False,
        )

    def close(self) -> None:
        try:
            super().close()
        finally:
            # A second interrupt may have come before the ranks were ended; of a run that has ended nothing is asked.
            self._guard.release(done=False)

    def state(self) -> str:
        return str(self._told("show")["state"])

    def cancel(self) -> None:
        self._told("cancel")

    def _told(self, verb: str) -> dict[str, object]:
        try:
            return dict(agent(verb, str(self.run)))
        except ClusterError as error:
            raise HvdctlError(str(error)) from None


def refuse_second(*commands: str) -> None:
    """Raise where a bench is under way, a notebook's or one of hvdctl: two of them would measure each other."""
    for row in agent("list"):
        if row["state"] in ("starting", "running") and row["command"] in (commands or (OURS, NOTEBOOK)):
            raise ClusterError(
                f"a bench is under way on this cluster, run {row['id']}; wait for it, or `hvdctl cancel {row['id']}`"
            )
