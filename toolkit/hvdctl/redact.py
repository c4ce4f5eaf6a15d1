"""Command lines without the secrets in them, for everything that is stored."""

from __future__ import annotations

import re
from collections.abc import Sequence

HIDDEN = "..."

_ASSIGNMENT = re.compile(r"(?P<name>-{0,2}[A-Za-z_][\w.-]*)=(?P<value>.*)", re.DOTALL)
# What is no secret is still worth reading in a record: `lr=0.1`, `--epochs=3`.
_SECRET = re.compile(
    r"(^|[_.-])(pass(word|wd|phrase)?|secret|token|credentials?|auth|(api|access|private|secret)[_-]?key)$",
    re.IGNORECASE,
)
_GLUED = re.compile(r"([a-z0-9])([A-Z])|(?<=[a-z])(?=(password|token|secret)$)")
_LEAST = 6


def words(command: Sequence[str]) -> list[str]:
    """The words of a job's command, with `...` in place of what `env` sets and of values with a secret's name."""
    found: list[str] = []
    after_env = False
    for word in command:
        match = _ASSIGNMENT.fullmatch(word)
        if match and (after_env or _secret(match["name"])):
            word = f"{match['name']}={HIDDEN}"
        # `env -i A=b C=d program`: options and assignments come before the program.
        after_env = word.rpartition("/")[2] == "env" or (after_env and (match is not None or word.startswith("-")))
        found.append(word)
    return found


def hvdctl(arguments: Sequence[str]) -> list[str]:
    """The arguments of a call of hvdctl: as `words`, and without the values of --env."""
    end = list(arguments).index("--") if "--" in arguments else len(arguments)
    return [*_flags(arguments[:end]), *words(arguments[end:])]


def values(arguments: Sequence[str]) -> list[str]:
    """What `hvdctl` hides of these arguments, but for values that are too short to be found in a text."""
    hidden = [
        whole[len(shown) - len(HIDDEN) :]
        for whole, shown in zip(arguments, hvdctl(arguments), strict=True)
        if whole != shown
    ]
    return sorted({value for value in hidden if len(value) >= _LEAST}, key=len, reverse=True)


def text(text: str, arguments: Sequence[str]) -> str:
    """A text that may quote the arguments, without their secrets."""
    for value in values(arguments):
        text = text.replace(value, HIDDEN)
    return text


def _flags(arguments: Sequence[str]) -> list[str]:
    plain = words(arguments)
    for index, word in enumerate(arguments):
        given = word.removeprefix("--env=") if word.startswith("--env=") else ""
        if given:
            plain[index] = f"--env={_named(given)}"
        elif index and arguments[index - 1] == "--env":
            plain[index] = _named(word)
        elif word.startswith("--option="):
            plain[index] = f"--option={words([word.removeprefix('--option=')])[0]}"
    return plain


def _named(word: str) -> str:
    name, mark, _ = word.partition("=")
    return f"{name}={HIDDEN}" if mark else word


def _secret(name: str) -> bool:
    return _SECRET.search(_GLUED.sub(r"\1_\2", name.lstrip("-"))) is not None
