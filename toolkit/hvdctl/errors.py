"""Every error that hvdctl expects.

    HvdctlError                exit 1: something outside went wrong
    ├── UsageError             exit 2: what the user wrote, or a stored file, can't be used; nothing was changed
    ├── LockedError            exit 3: another hvdctl works on this cluster
    ├── ToolMissing            exit 4: a program or the Docker engine is not there
    ├── PhaseError             exit 1: terraform, ansible or an image build failed; `log` names the full log
    ├── JobFailed              the job's own exit code
    └── Interrupted            exit 130: Ctrl-C

The message says what was wrong and with which value; the hint says what to do.
"""

from __future__ import annotations

from pathlib import Path


class HvdctlError(Exception):
    """What went wrong in one line, and what to do about it in another."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "", log: Path | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.log = log


class UsageError(HvdctlError):
    exit_code = 2


class LockedError(HvdctlError):
    exit_code = 3


class ToolMissing(HvdctlError):
    exit_code = 4


class PhaseError(HvdctlError):
    """`hosts` are the names in the inventory of those that failed, where it was some of them; `errors` are all that
    were told, where the message has the first ones only.
    """

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        log: Path | None = None,
        hosts: frozenset[str] = frozenset(),
        errors: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message, hint=hint, log=log)
        self.hosts = hosts
        self.errors = errors


class JobFailed(HvdctlError):
    def __init__(self, message: str, *, exit_code: int, hint: str = "", log: Path | None = None) -> None:
        super().__init__(message, hint=hint, log=log)
        self.exit_code = exit_code


class Interrupted(HvdctlError):
    exit_code = 130
