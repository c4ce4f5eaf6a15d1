"""Every command says what it does, with an example that could be typed."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest
import typer.main
from hvdctl.cli import app


def commands(group: Any, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    found = []
    for name, command in group.commands.items():
        below = (*path, name)
        # A group may do something by itself, as `bench` does.
        found += [(below, command)] if getattr(command, "invoke_without_command", True) else []
        found += commands(command, below) if hasattr(command, "commands") else []
    return found


ALL = commands(typer.main.get_command(app))
KNOWN = dict(ALL)
each = pytest.mark.parametrize(("path", "command"), [pytest.param(*one, id=" ".join(one[0])) for one in ALL])


def test_the_verbs_of_the_design_are_there() -> None:
    wanted = (
        "init schema plan up scale down status top list check ssh jupyter run exec jobs logs cancel push pull bench "
        "predict tune"
    )
    below = {("image", "build"), ("image", "list"), ("report", "list"), ("report", "open"), ("bench", "compare")}
    assert {(verb,) for verb in wanted.split()} | below <= set(KNOWN)


@each
def test_help_says_what_and_shows_an_example(path: tuple[str, ...], command: Any) -> None:
    what, _, rest = command.help.partition("\n\n")
    assert what.rstrip().endswith("."), what
    example = re.search(r"Example: `(.+)`", rest)
    assert example, f"{' '.join(path)} has no example"
    called = [part for part in re.split(r" (?:&&|>|\|) ", example[1]) if part.startswith("hvdctl ")]
    for call in called:
        words = shlex.split(call)[1:]
        verb = next((tuple(words[:n]) for n in (2, 1) if tuple(words[:n]) in KNOWN), None)
        assert verb, f"{call!r} calls no command"
        flags = {flag for parameter in KNOWN[verb].params for flag in parameter.opts}
        ours = words[: words.index("--")] if "--" in words else words
        assert {word for word in ours if word.startswith("-")} <= flags, call
    assert any(tuple(shlex.split(call)[1 : 1 + len(path)]) == path for call in called)


@pytest.mark.parametrize("group", ["gpulab", "image", "report"])
def test_a_group_shows_an_example_too(group: str) -> None:
    example = re.search(r"Example: `hvdctl (.+?)`", typer.main.get_command(app).commands[group].help)  # type: ignore[attr-defined]
    assert example
    assert tuple(example[1].split()[:2]) in KNOWN


@each
def test_every_option_is_described(path: tuple[str, ...], command: Any) -> None:
    for parameter in command.params:
        assert parameter.help or parameter.name == "help", f"{' '.join(path)} {parameter.name}"


@each
def test_what_asks_can_be_told_not_to(path: tuple[str, ...], command: Any) -> None:
    flags = {flag for parameter in command.params for flag in parameter.opts}
    if path in {("down",), ("up",), ("scale",), ("bench",)}:
        assert {"--yes", "-y"} <= flags
    if path not in {("ssh",), ("schema",), ("logs",)}:
        assert "--json" in flags


def test_every_key_of_the_spec_is_a_flag_of_up() -> None:
    from hvdctl.spec import Spec

    flags = {flag.removeprefix("--") for parameter in KNOWN["up",].params for flag in parameter.opts}
    # A provider's own settings are given one by one.
    assert {"option" if key == "options" else key for key in Spec.model_fields} <= flags
