"""The edge: every error becomes one or two lines and an exit code; tracebacks go to a file."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from hvdctl.errors import HvdctlError

INTERRUPTED = 130


def guarded(app: Callable[[], object]) -> None:
    """Run the command line and leave with the right exit code."""
    try:
        app()
    except HvdctlError as error:
        _tell(error.message, error.hint, error.log)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        _tell("interrupted", "run the same command again to go on", None)
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output, such as head(1), has seen enough.
        sys.stderr.close()
        sys.exit(0)
    except Exception as error:
        _tell(f"{type(error).__name__}: {error}", "this is a defect of hvdctl: please report it", _traceback())
        sys.exit(1)


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
