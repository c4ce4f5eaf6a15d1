"""The program of each rank of `run`: takes the function from the share, calls it, puts there what it returned.

python3 -m hvd_cluster.worker FOLDER
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

from hvd_cluster import calls, cells, telling

# What follows in a rank's output is told to the notebook as an error: the cell need not show it twice.
FAILED = "hvd_cluster: this rank failed"
_OURS = (__file__, calls.__file__, cells.__file__)


def main(folder: Path) -> int:
    rank = int(os.environ["HVDCTL_RANK"])
    # TensorFlow tells every rank of its processor at length: that is no news in a cell.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    file = calls.Call(folder, 0).result_file(rank)
    try:
        func, args, kwargs = _unpacked(folder / "func.pkl")
        value = func(*args, **kwargs)
    except BaseException as error:
        try:
            with contextlib.suppress(Exception):  # such as a full share: its log still tells
                _keep(file, _failure(error))
            telling.flush()
            sys.stdout.flush()
            sys.stderr.write(f"{FAILED}\n{_text(error)}")
            sys.stderr.flush()
        finally:
            # A rank that failed must not wait at exit for peers that wait for it.
            os._exit(1)
    _keep(file, _success(value))
    telling.flush()
    return 0


def _unpacked(file: Path) -> Any:
    try:
        return calls.unpack(file)
    except ModuleNotFoundError as error:
        error.add_note("Ranks can't import this module: put it on the share, beside the notebook.")
        raise


def _success(value: Any) -> dict[str, Any]:
    import cloudpickle  # type: ignore[import-not-found, import-untyped, unused-ignore]

    try:
        return {"ok": True, "value": cloudpickle.dumps(value)}
    except Exception as error:
        kind = type(value)
        return {"ok": True, "unpicklable": f"{kind.__module__}.{kind.__qualname__}", "text": str(error)}


def _failure(error: BaseException) -> dict[str, Any]:
    name = type(error).__name__
    text = f"{name}: {error}" if str(error) else name
    return {"ok": False, "type": name, "text": text, "traceback": _text(error), "error": _sent(error)}


def _sent(error: BaseException) -> bytes | None:
    import cloudpickle

    try:
        sent: bytes = cloudpickle.dumps(error)
        pickle.loads(sent)  # noqa: S301 - our own; some exceptions can be pickled but not read again
    except Exception:
        return None
    return sent


def _text(error: BaseException) -> str:
    """The traceback from the user's own function on."""
    return "".join(traceback.format_exception(type(error), error, _own(error.__traceback__)))


def _own(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_frame.f_code.co_filename in _OURS:
        trace = trace.tb_next
    return trace


def _keep(file: Path, outcome: dict[str, Any]) -> None:
    # In place: the notebook looks for this very file, which is there since before we started.
    with file.open("wb") as stream:
        pickle.dump(outcome, stream)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
