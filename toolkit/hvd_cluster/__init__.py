"""Work with every rank of a Horovod cluster from a notebook on its head node.

    import hvd_cluster as hc

    hc.nodes()                              # who is there
    hc.run(train, np=4)                     # a function of the notebook on four ranks; their results as a list
    hc.run(train, live=hc.LivePlot("loss")) # and a figure of what the ranks report while they run

    %%hvd -np 4
    import torch
    hvd.allreduce(torch.ones(3) * rank)     # or a cell, as it stands

    hc.bench()                              # how training scales over the nodes; hc.plot() shows it

Ranks import this package too, for `report`: what it needs is loaded only when it is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hvd_cluster.errors import ClusterError, RankError
    from hvd_cluster.facts import Node, Nodes, nodes
    from hvd_cluster.figures import LivePlot
    from hvd_cluster.launch import run
    from hvd_cluster.magic import load_ipython_extension, unload_ipython_extension
    from hvd_cluster.stored import plot, results
    from hvd_cluster.sweeps import bench
    from hvd_cluster.telling import report

__all__ = [
    "ClusterError",
    "LivePlot",
    "Node",
    "Nodes",
    "RankError",
    "bench",
    "load_ipython_extension",
    "nodes",
    "plot",
    "report",
    "results",
    "run",
    "unload_ipython_extension",
]

_FROM = {
    "ClusterError": "errors",
    "RankError": "errors",
    "Node": "facts",
    "Nodes": "facts",
    "nodes": "facts",
    "LivePlot": "figures",
    "run": "launch",
    "load_ipython_extension": "magic",
    "unload_ipython_extension": "magic",
    "plot": "stored",
    "results": "stored",
    "bench": "sweeps",
    "report": "telling",
}


def __getattr__(name: str) -> Any:
    if name not in _FROM:
        raise AttributeError(f"hvd_cluster has no {name!r}; it has {', '.join(__all__)}")
    value = getattr(importlib.import_module(f"hvd_cluster.{_FROM[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
