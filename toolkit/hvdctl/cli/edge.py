"""The edge: every error becomes one or two lines and an exit code; tracebacks go to a file."""

from __future__ import annotations

import errno
import io
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

_FREE = "free some space there, then run the same command again"
_ELSEWHERE = "HVDCTL_HOME and HVDCTL_CACHE choose other folders"


# Verbs that take a command, with an example.
_OF_COMMANDS = {
    "run": "hvdctl run -- python train.py --epochs 3",
    "exec": "hvdctl exec --all -- head -n 1 /etc/hostname",
}


class Verbs(TyperGroup):
    """The commands; Ctrl-C in one of them is told, where Typer would leave without a word."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Interrupted("interrupted", hint="run the same command again to go on") from None
        except Exception as error:
            # By name: some versions of Typer bring a Click of their own.
            if type(error).__name__ == "NoSuchOption" and ctx.invoked_subcommand in _OF_COMMANDS:
                verb = ctx.invoked_subcommand
                error.message += f"\n  → options of your command go after --, such as: {_OF_COMMANDS[verb]}"  # type: ignore[attr-defined]
            raise


def guarded(app: Callable[[], object]) -> None:
    """Run the command line and leave with the right exit code."""
    for stream in (sys.stdout, sys.stderr):
        # Arguments may not be valid UTF-8, and the encoding of the terminal may lack characters.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    login.hide()
    if sys.stdin.isatty() and sys.stderr.isatty():
        login.ask = _secret
    try:
        app()
    except HvdctlError as error:
        _tell(error.message, error.hint, error.log)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:  # before a command began
        _tell("interrupted", "run the same command again to go on", None)
        sys.exit(Interrupted.exit_code)
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            _tell(f"{error.strerror}: {str(error.filename)[:40]}...", "give a shorter name", None)
            sys.exit(2)
        if isinstance(error, OSError) and error.errno in _REFUSED:
            where = f" ({error.filename})" if error.filename else ""
            # Another HVDCTL_HOME is no way out of a full disk: the clusters in this one would not be known there.
            full = error.errno in {errno.ENOSPC, errno.EDQUOT}
            _tell(f"{error.strerror}{where}", _FREE if full else _ELSEWHERE, _traceback())
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
    from hvdctl import paths, redact

    try:
        folder = paths.cache() / "logs"
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"error-{time.strftime('%Y%m%d-%H%M%S')}.log"
        # An error may quote the command that failed.
        told = redact.text(traceback.format_exc(), sys.argv[1:])
        file.write_text(told, encoding="utf-8", errors="backslashreplace")
    except OSError:
        traceback.print_exc()
        return None
    return file
