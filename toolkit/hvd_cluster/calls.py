"""A function on its way to the ranks, and what they send back: a private folder on the share for each run.

func.pkl      the function with its arguments, and the source of the cells it comes from
result-N.pkl  what rank N returned, or how it failed; empty until then
live-N.jsonl  what rank N reported

Files are made before the ranks start: over NFS a file that was once looked for in vain stays unseen for long.
"""

from __future__ import annotations

import inspect
import linecache
import os
import pickle
import secrets
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvd_cluster.errors import ClusterError, RankError, WrongType
from hvd_cluster.facts import facts, here, share
from hvd_cluster.telling import live_file

# A share may show what another node wrote a moment late.
_PATIENCE_S = 3.0
_LARGEST_SOURCE = 1 << 20


@dataclass(frozen=True)
class Call:
    """The folder of one run's function."""

    folder: Path
    np: int

    @classmethod
    def create(cls, packed: bytes, np: int) -> Call:
        """The folder with all its files, for us alone."""
        folder = private_folder()
        try:
            made = cls(folder, np)
            _write(folder / "func.pkl", packed)
            for rank in range(np):
                _write(made.result_file(rank), b"")
                _write(live_file(folder, rank), b"")
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise ClusterError(f"the function can't be put on the share, {error.filename}: {error.strerror}") from None
        return made

    def result_file(self, rank: int) -> Path:
        return self.folder / f"result-{rank}.pkl"

    def outcome(self, rank: int, *, patient: bool) -> dict[str, Any] | None:
        """What a rank sent; None where it sent nothing."""
        deadline = time.monotonic() + (_PATIENCE_S if patient else 0)
        while True:
            try:
                outcome: dict[str, Any] = pickle.loads(self.result_file(rank).read_bytes())  # noqa: S301 - our own
                return outcome
            except (OSError, EOFError, pickle.UnpicklingError):
                if time.monotonic() >= deadline:
                    return None
            time.sleep(0.1)


def private_folder() -> Path:
    """A new folder on the share that none but this user can look into."""
    # A folder for each owner: two clusters of one name may share a folder of the machines', and clear up there.
    whose = facts().owner
    base = share() / (f".hvd_cluster-{whose}" if whose else ".hvd_cluster")
    folder = base / f"{_owner(os.getpid())}.{secrets.token_hex(8)}"
    try:
        base.mkdir(mode=0o700, exist_ok=True)
        _clear(base)
        folder.mkdir(mode=0o700)
    except OSError as error:
        raise ClusterError(f"nothing can be written to the share, {error.filename}: {error.strerror}") from None
    return folder


def pack(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], extra: Sequence[str] = ()) -> bytes:
    """The function and all it needs as bytes, with the sources of `extra` code; what can't go is named."""
    import cloudpickle  # type: ignore[import-not-found, import-untyped, unused-ignore]

    try:
        sent = cloudpickle.dumps((func, tuple(args), dict(kwargs)))
    except Exception as error:
        raise WrongType(f"{_culprit(func, args, kwargs)} can't be sent to the ranks: {error}") from error
    return pickle.dumps({"call": sent, "sources": _sources(sent, extra)})


def unpack(file: Path) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """On a rank: the function with its arguments; tracebacks will show the lines of the notebook's cells."""
    content = pickle.loads(file.read_bytes())  # noqa: S301 - from our own notebook, in a folder of our own
    for name, text in content["sources"].items():
        # Without a time: nothing then looks for a file of this name.
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    found: tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]] = pickle.loads(content["call"])  # noqa: S301
    return found


def value_of(outcome: Mapping[str, Any], rank: int, node: str, run: int) -> Any:
    """The result of a rank that ended well."""
    if "unpicklable" in outcome:
        raise RankError(
            f"its result is of type {outcome['unpicklable']}, which can't be sent back: {outcome['text']}; "
            "return numbers, arrays, dictionaries or the like",
            rank=rank,
            node=node,
            run=run,
        )
    try:
        return pickle.loads(outcome["value"])  # noqa: S301 - from our own rank
    except Exception as error:
        told = f"its result can't be read here: {type(error).__name__}: {error}"
        raise RankError(told, rank=rank, node=node, run=run) from error


def _owner(pid: int) -> str:
    """A process of this node: by its start too, as numbers come again, and by the cluster, as several may share."""
    try:
        born = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        born = "gone"
    return f"{_home()}.{pid}.{born}"


def _home() -> str:
    return f"{facts().cluster}.{here()}"


def _clear(base: Path) -> None:
    """Remove what kernels of this node left that were killed before their run began, or with their node."""
    for folder in base.glob(f"{_home()}.*.*.*"):
        owner, _, _ = folder.name.rpartition(".")
        pid = owner.split(".")[-2]
        if pid.isdecimal() and owner != _owner(int(pid)):
            shutil.rmtree(folder, ignore_errors=True)


def _write(file: Path, content: bytes) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(content)


def _sources(sent: bytes, extra: Sequence[str]) -> dict[str, str]:
    """The text of code that is in no file, such as cells: of what is sent, and of nothing else."""
    found = {}
    for name, entry in list(linecache.cache.items()):
        if len(entry) == 4 and (name in extra or name.encode() in sent) and not Path(name).exists():
            text = "".join(entry[2])
            if len(text) <= _LARGEST_SOURCE:
                found[name] = text
    return found


def _culprit(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Which part it is that can't be pickled, in words."""
    name = getattr(func, "__name__", type(func).__name__)
    parts = [(f"argument {index} of {name},", value) for index, value in enumerate(args)]
    parts += [(f"argument {key!r} of {name},", value) for key, value in kwargs.items()]
    try:
        used = inspect.getclosurevars(func)
        parts += [(f"{key!r}, which {name} uses,", value) for key, value in {**used.globals, **used.nonlocals}.items()]
    except (TypeError, ValueError):
        pass
    for words, value in parts:
        if not goes(value):
            return f"{words} a {type(value).__name__},"
    return name


def goes(value: Any) -> bool:
    """Whether a value can be sent to ranks."""
    import cloudpickle

    try:
        cloudpickle.dumps(value)
    except Exception:
        return False
    return True
