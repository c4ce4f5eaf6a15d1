"""Environment variables for jobs from where they are on no command line: hvdctl's own environment, and files."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from hvdctl.errors import UsageError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_QUOTED = re.compile(r"""(?:"((?:[^"\\]|\\.)*)"|'([^']*)')\s*(?:#.*)?""")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}
_FORM = "a line is NAME=VALUE, or NAME for the value in this environment; # starts a comment"


def collect(given: Sequence[str], files: Sequence[Path]) -> dict[str, str]:
    """The variables of --env-file, the later file over the earlier one, and of --env over all of them."""
    found: dict[str, str] = {}
    for file in files:
        found |= read(file)
    for word in given:
        name, mark, value = word.partition("=")
        if not _NAME.fullmatch(name):
            # A word without its `=` may be a secret as well.
            shown = f" {name!r}" if mark else ""
            raise UsageError(
                f"--env{shown} does not begin with the name of an environment variable",
                hint="for example --env OMP_NUM_THREADS=4, or --env TOKEN for the value in this environment",
            )
        found[name] = value if mark else _ours(name, "--env")
    return found


def read(file: Path) -> dict[str, str]:
    """The variables of a file such as `.env`. No error quotes a value."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8"
        raise UsageError(f"--env-file {file} can't be read: {why}") from None
    found = {}
    for number, line in enumerate(text.split("\n"), 1):
        line = line.strip().removeprefix("export ").strip()
        if not line or line.startswith("#"):
            continue
        name, mark, value = line.partition("=")
        name = name.strip()
        place = f"--env-file {file}, line {number}"
        if not _NAME.fullmatch(name):
            raise UsageError(f"{place}: that is not the name of an environment variable", hint=_FORM)
        found[name] = _value(value.strip(), place) if mark else _ours(name, place)
    return found


def _value(text: str, place: str) -> str:
    if text[:1] not in ('"', "'"):
        return re.sub(r"(^|\s+)#.*", "", text)
    match = _QUOTED.fullmatch(text)
    if not match:
        raise UsageError(f"{place}: the quote does not end where the value does", hint=_FORM)
    if match[1] is None:
        return match[2]
    return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[1]), match[1])


def _ours(name: str, place: str) -> str:
    value = os.environ.get(name)
    if value is None:
        raise UsageError(
            f"{place}: {name} is not set in this environment", hint=f"`export {name}=...` first, or write {name}=VALUE"
        )
    return value
