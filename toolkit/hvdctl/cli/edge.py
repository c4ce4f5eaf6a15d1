"""The edge: every error becomes one or two lines and an exit code; tracebacks go to a file."""

from __future__ import annotations

import errno
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from typer.core import TyperGroup

from hvdctl.errors import HvdctlError, Interrupted
from hvdctl.gpulab import login

# What a machine may refuse to any program; everything else that the system says is ours to foresee.
_REFUSED = {errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR}


class Verbs(TyperGroup):
    """The commands; Ctrl-C in one of them is told, where Typer would leave without a word."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Interrupted("interrupted", hint="run the same command again to go on") from None


def guarded(app: Callable[[], object]) -> None:
    """Run the command line and leave with the right exit code."""
    login.hide()
    if sys.stdin.isatty() and sys.stderr.isatty():
        login.ask = _secret
    try:
        app()
    except HvdctlError as error:
        _tell(error.message, error.hint, error.log)
        sys.exit(error.exit_code)
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _REFUSED:
            where = f" ({error.filename})" if error.filename else ""
            _tell(f"{error.strerror}{where}", "HVDCTL_HOME and HVDCTL_CACHE choose other folders", _traceback())
            sys.exit(1)
        _tell(f"{type(error).__name__}: {error}", "this is a defect of hvdctl: please report it", _traceback())
        sys.exit(1)


def _secret(prompt: str) -> str:
    from hvdctl.cli.terminal import secret

    return secret(prompt)


def _tell(message: str, hint: str, log: Path | None) -> None:
    from hvdctl.cli.terminal import complain

    complain(message, hint, log)


def _traceback() -> Path | None:
    from hvdctl import paths

    try:
        folder = paths.cache() / "logs"
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"error-{time.strftime('%Y%m%d-%H%M%S')}.log"
        file.write_text(traceback.format_exc())
    except OSError:
        traceback.print_exc()
        return None
    return file
