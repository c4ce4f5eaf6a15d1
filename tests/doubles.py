"""Keeps stand-ins true: one that replaces a function or class of this project takes the parameters of the real one."""

from __future__ import annotations

import inspect
import pkgutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeGuard

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = [ROOT / folder for folder in ("toolkit", "scripts", "playbooks", "images")]
NOTHING = object()
_MANY = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
_plain: Callable[..., None] = pytest.MonkeyPatch.setattr


def watch() -> None:
    """From now on every `setattr` of every MonkeyPatch compares signatures, also those of its contexts."""
    pytest.MonkeyPatch.setattr = checked  # type: ignore[method-assign]


def checked(
    self: pytest.MonkeyPatch, target: Any, name: Any = NOTHING, value: Any = NOTHING, raising: bool = True
) -> None:
    """pytest's own setattr, which also compares signatures."""
    __tracebackhide__ = True
    owner, attribute, double = target, name, value
    if isinstance(target, str) and value is NOTHING:
        path, _, attribute = target.rpartition(".")
        double = name
        try:
            owner = pkgutil.resolve_name(path)
        except (ImportError, AttributeError, ValueError):
            owner = None  # pytest itself reports it
    compare(owner, attribute, double)
    given = [one for one in (target, name, value) if one is not NOTHING]
    _plain(self, *given, raising=raising)


def compare(owner: Any, name: str, double: Any) -> None:
    """Raise TypeError if the double takes other parameters than what it replaces in a module, class or object."""
    before = inspect.getattr_static(owner, name, None)
    real = before.__func__ if isinstance(before, staticmethod | classmethod) else before
    if not ours(real) or not callable(double):
        return
    try:
        wanted, found = inspect.signature(real), inspect.signature(double)
    except (TypeError, ValueError):
        return  # a builtin without a signature
    if isinstance(before, classmethod) and not isinstance(double, classmethod):
        wanted = without_self(wanted)
    elif isinstance(double, classmethod):
        found = inspect.signature(double.__func__)
    elif inspect.isfunction(before) and not inspect.ismodule(owner):
        # Only a function in a class gets `self`.
        bound = not inspect.isclass(owner) and name not in getattr(owner, "__dict__", {})
        if bound or (inspect.isclass(owner) and not inspect.isfunction(double)):
            wanted = without_self(wanted)
    check(f"{getattr(owner, '__name__', owner)}.{name}", wanted, found)


def without_self(signature: inspect.Signature) -> inspect.Signature:
    return signature.replace(parameters=list(signature.parameters.values())[1:])


def ours(thing: Any) -> TypeGuard[Callable[..., Any]]:
    """Whether this is a function, also a cached one, or a class of the project's own code."""
    if inspect.isclass(thing):
        file = getattr(sys.modules.get(thing.__module__), "__file__", None)
    else:
        code = getattr(inspect.unwrap(thing), "__code__", None) if callable(thing) else None
        file = code.co_filename if code else None
    return file is not None and any(Path(file).is_relative_to(folder) for folder in FOLDERS)


def check(name: str, real: inspect.Signature, double: inspect.Signature) -> None:
    """Raise TypeError if a call that fits the real signature does not mean the same to the double.

    A double may take `*args` and `**kwargs`, a name that begins with `_` for a parameter that it ignores, and may lack
    a parameter with a default value: a call that gives it fails. It has no parameter that the real one lacks.
    """
    theirs = double.parameters
    positional = [one for one in theirs.values() if one.kind is not one.KEYWORD_ONLY and one.kind not in _MANY]
    kinds = {one.kind for one in theirs.values()}
    known: set[str] = set()
    for place, wanted in enumerate(real.parameters.values()):
        known.add(wanted.name)
        if wanted.kind in _MANY:
            fits = wanted.kind in kinds
        elif wanted.kind is wanted.KEYWORD_ONLY:
            fits = wanted.name in theirs or wanted.VAR_KEYWORD in kinds or wanted.default is not wanted.empty
        elif place < len(positional):
            found = positional[place]
            # A name that no call can give means nothing.
            fits = found.name == wanted.name or found.name.startswith("_") or found.kind is found.POSITIONAL_ONLY
            known.add(found.name)
        else:
            fits = wanted.VAR_POSITIONAL in kinds or wanted.default is not wanted.empty
        if not fits:
            raise TypeError(f"{name}{real} is replaced by {double}: that has no {wanted.name} in its place")
    many = {one.kind for one in real.parameters.values()} & _MANY
    for more in theirs.values():
        by_place = more.kind in (more.POSITIONAL_ONLY, more.POSITIONAL_OR_KEYWORD)
        open_ended = (more.VAR_POSITIONAL if by_place else more.VAR_KEYWORD) in many
        unnamed = more.kind is more.POSITIONAL_ONLY and more.default is not more.empty
        if more.name not in known and more.kind not in _MANY and not open_ended and not unnamed:
            raise TypeError(f"{name}{real} is replaced by {double}: the real one has no {more.name}")
