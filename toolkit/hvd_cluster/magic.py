"""`%%hvd`: a cell on every rank.

%load_ext hvd_cluster

%%hvd -np 4 --push lr --out sums
hvd.allreduce(torch.tensor(lr * rank), op=hvd.Sum)
"""

from __future__ import annotations

import argparse
import ast
import linecache
import shlex
import sys
import traceback
from typing import Any, NoReturn

from hvd_cluster import cells
from hvd_cluster.calls import goes, pack
from hvd_cluster.errors import ClusterError
from hvd_cluster.facts import facts
from hvd_cluster.launch import execute, ranks_of, request_for
from hvd_cluster.runs import node_of

_USAGE = """Run the cell on every rank of the cluster, or on -np of them.

Output comes as it is said, with the rank before it; the value of a last expression is shown for each rank. In the cell
there are `rank`, `size`, `node`, and `hvd`: Horovod for the framework of this image, initialised. Every cell starts
anew: it sees variables of the notebook that --push names, and none of an earlier %%hvd cell."""


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext hvd_cluster`: the magic is there; loading it again changes nothing."""

    def hvd(line: str, cell: str) -> None:
        run_cell(shell, line, cell)

    hvd.__doc__ = _parser().format_help()
    shell.register_magic_function(hvd, magic_kind="cell", magic_name="hvd")


def unload_ipython_extension(shell: Any) -> None:
    shell.magics_manager.magics["cell"].pop("hvd", None)


def run_cell(shell: Any, line: str, cell: str) -> None:
    """The cell on all ranks; with --out, what each of them had as its last value is kept."""
    from IPython.core.error import UsageError  # type: ignore[import-not-found, unused-ignore]

    options = _options(line)
    name = _cell_name(shell)
    # The first line of the cell is the magic itself: numbers of lines are those that the notebook shows.
    source = f"\n{cell}"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    _check(source, name)
    pushed = {}
    for variable in options.push:
        if variable not in shell.user_ns:
            raise UsageError(f"--push {variable}: the notebook has no variable of this name")
        pushed[variable] = shell.user_ns[variable]
    known = facts()
    try:
        np = ranks_of(options.np, known)
    except ValueError as error:
        raise UsageError(str(error).replace("np=", "-np ")) from None
    kept = options.out is not None
    try:
        packed = pack(cells.execute, (source, name), {"pushed": pushed, "kept": kept}, extra=(name,))
    except TypeError as error:
        wrong = next((variable for variable, value in pushed.items() if not goes(value)), "")
        raise UsageError(f"--push {wrong}: {error.__cause__}, so it can't be sent to the ranks") from None
    request = request_for(known, np, name=_told(cell), env=None)
    found = execute(request, packed, live=None, timeout=None, quiet=options.quiet)
    for rank, (shown, _) in enumerate(found):
        if shown is not None:
            print(_value(rank, node_of(request["hosts"], rank), shown))  # noqa: T201 - the cell's own output
    if kept:
        shell.user_ns[options.out] = [value for _, value in found]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        from IPython.core.error import UsageError

        raise UsageError(f"%%hvd: {message}; %%hvd? tells more")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser("%%hvd", description=_USAGE, add_help=False, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-np", "--np", type=int, help="how many ranks (default: all slots)")
    parser.add_argument("--push", type=_names, default=[], metavar="A,B", help="variables that the ranks get a copy of")
    parser.add_argument("--out", type=_variable, metavar="NAME", help="keep the last value of each rank, as a list")
    parser.add_argument("--quiet", action="store_true", help="don't show what ranks print")
    return parser


def _options(line: str) -> argparse.Namespace:
    from IPython.core.error import UsageError

    try:
        return _parser().parse_args(shlex.split(line))
    except ValueError as error:
        raise UsageError(f"%%hvd {line}: {error}") from None


def _names(text: str) -> list[str]:
    return [_variable(name.strip()) for name in text.split(",") if name.strip()]


def _variable(name: str) -> str:
    if not name.isidentifier():
        raise argparse.ArgumentTypeError(f"{name!r} is no name of a variable")
    return name


def _cell_name(shell: Any) -> str:
    """What the notebook calls the cell that is running."""
    frame = sys._getframe()
    while frame is not None:
        known = shell.compile.format_code_name(frame.f_code.co_filename)
        if known:
            return " ".join(known)
        frame = frame.f_back  # type: ignore[assignment]
    return f"Cell In[{shell.execution_count}]"


def _check(source: str, name: str) -> None:
    """Raise for code that is no Python, with the cell's own line, before any rank is started."""
    try:
        compile(ast.parse(source, name), name, "exec", dont_inherit=True)
    except SyntaxError as error:
        told = "".join(traceback.format_exception_only(error)).replace(f'File "{name}"', name).rstrip()
        if (error.text or "").lstrip().startswith(("%", "!")):
            told += "\nA cell on ranks is plain Python: it has no % and no ! commands."
        # Not a SyntaxError itself: IPython would show all that is between the cell and this line.
        raise ClusterError(f"the cell is no Python; nothing was started\n{told}") from None


def _told(cell: str) -> str:
    """The cell in short, for `hvdctl jobs`."""
    first = next((line.strip() for line in cell.splitlines() if line.strip()), "")
    return f"notebook: %%hvd {first[:60]}"


def _value(rank: int, node: str, shown: str) -> str:
    tag = f"[rank {rank} {node}] => "
    return tag + shown.replace("\n", "\n" + " " * len(tag))
