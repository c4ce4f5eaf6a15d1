"""Ranks of a cluster that answer a bench at once, with steps that take as long as they are told to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hvdctl.bench.plan import Layout
from hvdctl.bench.session import PointFailed
from hvdctl.cluster import Cluster

Request = dict[str, Any]


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
