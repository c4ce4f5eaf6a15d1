"""Keeps stand-ins true: one that replaces a function of this project takes the parameters of that function."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeGuard

import pytest

ROOT = Path(__file__).parents[1]
NOTHING = object()
_MANY = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}


class StrictMonkeyPatch(pytest.MonkeyPatch):  # type: ignore[misc]  # final, but nothing else is called at every setattr
    """pytest's own, which also compares signatures."""

    def setattr(self, target: Any, name: Any, value: Any = NOTHING, raising: bool = True) -> None:
        before = None if value is NOTHING else inspect.getattr_static(target, name, None)
        if isinstance(before, staticmethod | classmethod):
            before = before.__func__
        if ours(before) and (inspect.isfunction(value) or inspect.ismethod(value)):
            check(f"{getattr(target, '__name__', target)}.{name}", before, value)
        if value is NOTHING:
            super().setattr(target, name, raising=raising)
        else:
            super().setattr(target, name, value, raising=raising)


def ours(thing: Any) -> TypeGuard[Callable[..., Any]]:
    """Whether this is a function of the project's own code."""
    if not inspect.isfunction(thing):
        return False
    file = Path(inspect.unwrap(thing).__code__.co_filename)
    return any(file.is_relative_to(ROOT / folder) for folder in ("toolkit", "scripts", "playbooks", "images"))


def check(name: str, real: Callable[..., Any], double: Callable[..., Any]) -> None:
    """Raise TypeError if a call that fits the real function does not mean the same to the double.

    A double may take `*args` and `**kwargs`, a name that begins with `_` for a parameter that it ignores, and may lack
    a parameter with a default value: a call that gives it fails.
    """
    theirs = inspect.signature(double).parameters
    positional = [one for one in theirs.values() if one.kind is not one.KEYWORD_ONLY and one.kind not in _MANY]
    kinds = {one.kind for one in theirs.values()}
    for place, wanted in enumerate(inspect.signature(real).parameters.values()):
        if wanted.kind in _MANY:
            fits = wanted.kind in kinds
        elif wanted.kind is wanted.KEYWORD_ONLY:
            fits = wanted.name in theirs or wanted.VAR_KEYWORD in kinds or wanted.default is not wanted.empty
        elif place < len(positional):
            found = positional[place].name
            fits = found == wanted.name or found.startswith("_")
        else:
            fits = wanted.VAR_POSITIONAL in kinds or wanted.default is not wanted.empty
        if not fits:
            raise TypeError(
                f"{name}{inspect.signature(real)} is replaced by {inspect.signature(double)}: "
                f"that has no {wanted.name} in its place"
            )
