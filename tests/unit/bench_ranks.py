"""Ranks of a cluster that answer a bench at once, with steps that take as long as they are told to; benches on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hvdctl.bench import results, sweep
from hvdctl.bench.plan import Layout, Sweep
from hvdctl.bench.session import PointFailed
from hvdctl.bench.sweep import Choice, Outcome
from hvdctl.cluster import Cluster
from hvdctl.errors import Interrupted

Request = dict[str, Any]

G = 10**9
REAL = Sweep(layouts=(Layout(1, 1), Layout(2, 1)), nets=(G,), batches=(8, 16), models=("convnet_cifar10",), micro=False)
P100 = Sweep(layouts=(Layout(1, 1), Layout(2, 1)), nets=(G, 10 * G), device="emulated:p100", micro=False)


class Site:
    """What happened on the nodes, in order, and what is to go wrong there."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.fails: dict[str, Exception] = {}
        self.before: Callable[[Request], None] = lambda _: None
        self.carried = 2e9
        self.step_s = 0.5
        self.data: Request | None = None

    def trained(self) -> list[str]:
        """The layouts and batches that were measured."""
        return [words for words in self.log if words.startswith("train ")]

    def ranks(self, cluster: Cluster, layout: Layout, launcher: str, pressed: Any, **how: Any) -> Ranks:
        self.log.append(f"start {layout} {launcher}")
        if error := self.fails.get(f"start {layout}"):
            raise error
        return Ranks(self, layout, how)


class Ranks:
    """In place of hvdctl.bench.session.Session."""

    def __init__(self, site: Site, layout: Layout, how: dict[str, Any]) -> None:
        self.site = site
        self.layout = layout
        self.how = how
        self.run = 7
        self.purpose: object = None
        self.ready = True
        self.hello = {
            "versions": {"torch": "2.9.1", "python": "3.11.2", "horovod": "0.28.1", "mpi": "4.1.4"},
            "machine": {"cpu": "a CPU", "cores": 2, "memory_bytes": 10**9, "kernel": "6.1"},
        }

    def ask(self, request: Request, listen: Callable[[Request], None] = lambda _: None, **_: Any) -> Any:
        assert self.ready, "ranks that ended are asked"
        self.site.before(request)
        return getattr(self, f"_{request['op']}")(request, listen)

    def close(self) -> None:
        if self.ready:
            self.site.log.append("close")
        self.ready = False

    def _allreduce(self, request: Request, listen: Callable[[Request], None]) -> Request:
        self.site.log.append(f"allreduce {self.layout} {len(request['sizes'])}")
        bus = self.site.carried
        rows = [
            {"bytes": size, "time_s": 8 * size / bus, "alg_bits": bus, "bus_bits": bus, "iterations": 3}
            for size in request["sizes"]
        ]
        return {"rows": rows}

    def _train(self, request: Request, listen: Callable[[Request], None]) -> Request:
        words = f"train {self.layout} b{request['batch']}"
        self.site.log.append(words)
        if error := self.site.fails.get(words):
            if isinstance(error, PointFailed):
                self.ready = False
            raise error
        compute = request.get("seconds") or self.site.step_s
        step = 1.25 * compute
        listen({"event": "progress", "steps": 3, "step_s": step})
        spans = [["forward", 0.0, compute / 3], ["exchange", compute / 3, step]]
        return {
            "step_times_s": [0.9 * step, step, 1.1 * step],
            "split_s": {"compute": compute, "exposed": 0.2 * compute, "waiting": 0.05 * compute},
            "overhead": 0.01,
            "half_width": 0.02,
            "converged": True,
            "start_s": 0.2,
            "data": self.site.data,
            **(
                {"timeline": [{"rank": 0, "node": "node0", "zero": 1.0, "spans": spans}]}
                if "timeline" in request
                else {}
            ),
        }


class Heard:
    """Progress that remembers what was said."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.details: list[str] = []

    @contextmanager
    def phase(self, title: str) -> Iterator[Heard]:
        yield self

    def update(self, detail: str) -> None:
        self.details.append(detail)

    def note(self, text: str) -> None:
        self.notes.append(text)


def run(cluster: Cluster, asked: Sweep, heard: Heard | None = None, **choice: Any) -> Outcome:
    return sweep.run(cluster, asked, heard or Heard(), Choice(**choice))


def newest(cluster: Cluster) -> list[dict[str, Any]]:
    folder = results.latest(cluster.folder)
    assert folder is not None
    return results.read(folder)


def points(records: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {f"{p['nodes']}x{p['slots']} b{p['batch']}": p for p in results.points(records)}


def interrupted(cluster: Cluster, site: Site, at: str, asked: Sweep = REAL, **choice: Any) -> Path:
    """A sweep that ends with Ctrl-C in the middle of a point; its results file."""
    site.fails[at] = Interrupted("interrupted")
    with pytest.raises(Interrupted, match=r"interrupted; \d of \d points are measured and kept") as ended:
        run(cluster, asked, **choice)
    assert ended.value.hint == "the same command goes on with the rest"
    site.fails.clear()
    folder = choice.get("output") or results.latest(cluster.folder)
    assert folder is not None
    return Path(folder) / results.FILE
