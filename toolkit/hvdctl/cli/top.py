"""`hvdctl top`."""

from __future__ import annotations

import signal
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hvdctl.cli import options as o

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

_STEPS = "▁▂▃▄▅▆▇█"
_HISTORY = 120
_COLUMNS = ("node", "cpu", "memory", "in", "out", "gpu", "ranks")


def top(
    name: o.NameOption = None,
    every: Annotated[
        float, typer.Option("--every", help="Seconds between two looks, 0.2 to 60.", metavar="SECONDS", parser=o.number)
    ] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="One look, and leave.")] = False,
    json: Annotated[
        bool, typer.Option("--json", help="A JSON document on a line for each look; with --once, one document.")
    ] = False,
) -> None:
    """Watch CPU, memory, network and GPUs of every node, live; q or Ctrl-C leaves.

    Example: `hvdctl top --every 2`
    """
    from hvdctl import top as library

    library.check_interval(every)
    cluster = o.find_cluster(name)
    live = not json and not once and sys.stdout.isatty()
    try:
        if live:
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the terminal is given back as it was
            with _keys() as keys:
                _live(cluster.name, library.documents(cluster, every=every, keys=keys))
        else:
            documents = library.documents(cluster, every=every, count=1 if once else None)
            _lines(documents, as_json=json, once=once)
    except KeyboardInterrupt:
        return  # the way to leave
    except BrokenPipeError:
        _deaf()


def _lines(documents: Iterator[dict[str, Any]], *, as_json: bool, once: bool) -> None:
    """Whole lines, for logs and other programs; one table for one look."""
    import json

    from hvdctl.cli.terminal import Terminal

    terminal = Terminal(as_json=as_json)
    for document in documents:
        if as_json and once:
            terminal.result(document, lambda: None)
        elif as_json:
            terminal.line(json.dumps(document))
        elif once:
            rows = [_row(node) for node in document["nodes"]]
            shown = [i for i, column in enumerate(_COLUMNS) if column != "gpu" or any(row[i] for row in rows)]
            terminal.table([_COLUMNS[i] for i in shown], [[row[i] for i in shown] for row in rows])
        else:
            at = time.strftime("%H:%M:%S", time.localtime(document["time"]))
            for node in document["nodes"]:
                row = _row(node)
                words = [f"{column} {word}" for column, word in zip(_COLUMNS, row, strict=True) if word][1:]
                terminal.line("  ".join([at, node["node"], *([row[1]] if "lost" in node else words)]))
        sys.stdout.flush()


def _row(node: dict[str, Any]) -> list[str]:
    """The cells of a node, as text."""
    if "lost" in node:
        return [node["node"], f"lost: {node['lost']}", *[""] * (len(_COLUMNS) - 2)]
    return [
        node["node"],
        f"{_percent(node['cpu'])} of {node['cpus']:g}",
        f"{_size(node['memory'])} of {_size(node['memory_limit'])}",
        f"{_mega(node['rx_bits'])} Mbit/s",
        f"{_mega(node['tx_bits'])} Mbit/s",
        "; ".join(_gpu(gpu) for gpu in node["gpus"]),
        str(node["ranks"]),
    ]


def _live(cluster: str, documents: Iterator[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(highlight=False)
    history: dict[str, deque[dict[str, Any]]] = {}
    waiting = Text(f"Cluster {cluster}: asking the nodes ...")
    with Live(waiting, console=console, screen=True, auto_refresh=False) as live:
        live.refresh()
        for document in documents:
            nodes = document["nodes"]
            history = {node["node"]: history.get(node["node"], deque(maxlen=_HISTORY)) for node in nodes}
            for node in nodes:
                history[node["node"]].append(node)
            live.update(_screen(cluster, document, history, console.width, console.height), refresh=True)


def _screen(
    cluster: str, document: dict[str, Any], history: dict[str, deque[dict[str, Any]]], width: int, height: int
) -> Group:
    from rich.console import Group
    from rich.text import Text

    nodes = document["nodes"]
    lost = [node for node in nodes if "lost" in node]
    at = time.strftime("%H:%M:%S", time.localtime(document["time"]))
    state = f"{len(nodes)} node{'' if len(nodes) == 1 else 's'}" + (f", {len(lost)} lost" if lost else "")
    why = [Text(f"{node['node']} is lost: {node['lost']}", "red", no_wrap=True, overflow="ellipsis") for node in lost]
    why = why[: max(1, height // 4)]
    # The head line, an empty one, the names of the columns, the reasons, and the last line.
    room = max(1, height - 4 - len(why))
    shown = nodes if len(nodes) <= room else nodes[: room - 1]
    head = Text.assemble((f"Cluster {cluster}", "bold"), f"  {state}  {at}  ", ("q leaves", "dim"))
    parts: list[Text | Table] = [head, Text(""), _table(shown, history, width), *why]
    if len(shown) < len(nodes):
        parts.append(Text(f"... and {len(nodes) - len(shown)} more: the terminal is too low to show them", "dim"))
    return Group(*parts)


def _table(nodes: Sequence[dict[str, Any]], history: dict[str, deque[dict[str, Any]]], width: int) -> Table:
    from rich.table import Table

    names = max([4, *(len(node["node"]) for node in nodes)])
    gpus = any(node.get("gpus") for node in nodes)
    # What is left beside the figures goes to the curves, three or four of them.
    curve = min(30, (width - names - (69 if gpus else 55)) // (4 if gpus else 3))
    curve = curve if curve > 2 else 0
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False, header_style="dim")
    table.add_column("NODE", no_wrap=True)
    for title in ("CPU", "MEMORY", "IN, Mbit/s", "OUT, Mbit/s", *(["GPU"] if gpus else [])):
        table.add_column(title, no_wrap=True)
    table.add_column("RANKS", no_wrap=True, justify="right")
    for node in nodes:
        table.add_row(*_cells(node, history[node["node"]], curve, gpus))
    return table


def _cells(node: dict[str, Any], past: Sequence[dict[str, Any]], curve: int, gpus: bool) -> list[Text]:
    from rich.text import Text

    if "lost" in node:
        return [Text(node["node"], "bold red"), Text("lost", "red")]
    peak = max([*(one.get(way) or 0 for one in past for way in ("rx_bits", "tx_bits")), 1e6])
    link = node["link"] or peak

    def cell(color: str, values: Sequence[float | None], text: str, room: int) -> Text:
        return Text.assemble((_curve(values, curve), color), " " if curve else "", text.rjust(room))

    def way(color: str, key: str) -> Text:
        return cell(color, [_part(one.get(key), link) for one in past], _mega(node[key]), 6)

    cells = [
        Text(node["node"], "bold"),
        cell("cyan", [one.get("cpu") for one in past], f"{_percent(node['cpu'])} of {node['cpus']:g}", 11),
        Text(f"{_size(node['memory'])}/{_size(node['memory_limit'])}".rjust(17)),
        way("green", "rx_bits"),
        way("yellow", "tx_bits"),
    ]
    if gpus:
        use = "  ".join(_percent(gpu["use"]) for gpu in node["gpus"]) or "none"
        cells.append(cell("blue", [_busiest(one) for one in past], use, 12))
    return [*cells, Text(str(node["ranks"]))]


def _curve(values: Sequence[float | None], width: int) -> str:
    """The last values, each 0 to 1, as a line of blocks; a gap where there is none."""
    if not width:
        return ""
    steps = [" " if value is None else _STEPS[round(max(0.0, min(1.0, value)) * (len(_STEPS) - 1))] for value in values]
    return "".join(steps[-width:]).rjust(width)


def _part(value: float | None, whole: float) -> float | None:
    return None if value is None else value / whole


def _busiest(sample: dict[str, Any]) -> float | None:
    return max((gpu["use"] for gpu in sample.get("gpus", []) if gpu["use"] is not None), default=None)


def _percent(value: float | None) -> str:
    return "?" if value is None else f"{value * 100:.0f} %"


def _size(count: float | None) -> str:
    if count is None:
        return "?"
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


def _mega(bits: float | None) -> str:
    if bits is None:
        return "?"
    return f"{bits / 1e6:.0f}" if bits >= 10e6 else f"{bits / 1e6:.1f}"


def _gpu(gpu: dict[str, Any]) -> str:
    return f"{gpu['name']} {_percent(gpu['use'])}, {_size(gpu['memory'])} of {_size(gpu['memory_limit'])}"


class _Keys:
    """Single keys of the terminal, as they are pressed."""

    def fileno(self) -> int:
        return sys.stdin.fileno()

    def leave(self) -> bool:
        import os

        pressed = os.read(self.fileno(), 64)
        return not pressed or b"q" in pressed.lower()


@contextmanager
def _keys() -> Iterator[_Keys | None]:
    """The keyboard without waiting for Enter, and without an echo; given back as it was."""
    if not sys.stdin.isatty():
        yield None
        return
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield _Keys()
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _deaf() -> None:
    """The reader of our output has gone, as `head` does; nothing may be written at exit either."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
