"""Every command says what it does, with an example that could be typed."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path
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


def called(file: Path) -> set[tuple[str, ...]]:
    """The verbs that a test file types: hvdctl("image", "list", ...), or a list with "hvdctl" and these words.

    `cluster` is what tests on real engines call hvdctl.
    """
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"hvdctl", "cluster"}:
            words = literals(node.args)
        elif isinstance(node, ast.List) and "hvdctl" in (listed := literals(node.elts)):
            words = listed[listed.index("hvdctl") + 1 :]
        else:
            continue
        verb = next((tuple(words[:n]) for n in (2, 1) if tuple(words[:n]) in KNOWN), None)
        if verb and "--help" not in words:
            found.add(verb)
    return found


def literals(nodes: list[ast.expr]) -> list[str]:
    """The strings among them; what is no literal is an empty one."""
    return [node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else "" for node in nodes]


def test_every_verb_is_typed_by_a_test() -> None:
    tests = Path(__file__).parents[1].rglob("test_*.py")
    assert set(KNOWN) - {verb for file in tests for verb in called(file)} == set()


def test_what_only_speaks_of_a_verb_does_not_type_it(tmp_path: Path) -> None:
    file = tmp_path / "test_x.py"
    file.write_text(
        '"""stage"""\nlog.append("stage")\nhvdctl("tune", "--help")\nother("top")\nwords = ["list", "plan"]\n'
        'hvdctl("bench", "compare", "a")\nrun([python, "-m", "hvdctl", "gpulab", "emulate", *more])\ncluster("up")\n'
    )
    assert called(file) == {("bench", "compare"), ("gpulab", "emulate"), ("up",)}


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
