"""What a rank does with the code of a `%%hvd` cell."""

from __future__ import annotations

import ast
import os
from types import CodeType
from typing import Any

from hvd_cluster.calls import goes
from hvd_cluster.facts import here

_LONGEST = 4000


def execute(source: str, name: str, pushed: dict[str, Any], kept: bool) -> tuple[str | None, Any]:
    """Run the code; the last expression's value as text, and the value itself where it is kept."""
    body, last = _split(source, name)
    space: dict[str, Any] = {
        "__name__": "__main__",
        "rank": int(os.environ.get("HOROVOD_RANK", 0)),
        "size": int(os.environ.get("HOROVOD_SIZE", 1)),
        "node": here(),
        **pushed,
    }
    if "hvd" not in space and any("hvd" in _names(code) for code in (body, last) if code is not None):
        space["hvd"] = horovod()
    exec(body, space)  # noqa: S102 - it is what the user asked for
    if last is None:
        return None, None
    value = eval(last, space)  # noqa: S307 - as above
    if kept and not goes(value):
        raise TypeError(f"--out: the last value is of type {type(value).__name__}, which can't be sent to the notebook")
    return _shown(value), value if kept else None


def horovod() -> Any:
    """Horovod for the framework of this image, initialised."""
    from importlib import import_module
    from importlib.util import find_spec

    framework = "torch" if find_spec("torch") is not None else "tensorflow"
    hvd = import_module(f"horovod.{framework}")
    hvd.init()
    return hvd


def _split(source: str, name: str) -> tuple[CodeType, CodeType | None]:
    """The statements, and the last expression where there is one that no semicolon hides."""
    tree = ast.parse(source, name)
    last = None
    end = tree.body[-1] if tree.body else None
    if isinstance(end, ast.Expr) and not _hidden(source, end):
        tree.body.pop()
        last = compile(ast.Expression(end.value), name, "eval", dont_inherit=True)
    return compile(tree, name, "exec", dont_inherit=True), last


def _hidden(source: str, last: ast.Expr) -> bool:
    line = source.encode().splitlines()[(last.end_lineno or 1) - 1]
    return line[last.end_col_offset :].lstrip().startswith(b";")


def _names(code: CodeType) -> set[str]:
    """All names that the code and the functions in it use."""
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= _names(constant)
    return found


def _shown(value: Any) -> str | None:
    if value is None:
        return None
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ... ({len(text)} characters)"
