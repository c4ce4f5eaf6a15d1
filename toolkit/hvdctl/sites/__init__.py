"""The sites that nodes come from: one module a provider, each with what `providers.Site` asks for."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import ParamSpec, TypeVar

from hvdctl.errors import HvdctlError

_Asked = ParamSpec("_Asked")
_Answer = TypeVar("_Answer")


def only(seen: Mapping[str, str], nodes: Sequence[str] | None) -> dict[str, str]:
    """The states of the nodes that were asked about; None: all."""
    return {name: state for name, state in seen.items() if nodes is None or name in nodes}


def plainly(
    told: Callable[[Exception], HvdctlError | None],
) -> Callable[[Callable[_Asked, _Answer]], Callable[_Asked, _Answer]]:
    """A decorator: what a site refuses, or that it is silent, as an error of ours.

    `told` puts it into words; what it gives None for is a defect, and passes.
    """

    def decorate(ask: Callable[_Asked, _Answer]) -> Callable[_Asked, _Answer]:
        @functools.wraps(ask)
        def asked(*args: _Asked.args, **kwargs: _Asked.kwargs) -> _Answer:
            try:
                return ask(*args, **kwargs)
            except HvdctlError:
                raise
            except Exception as error:
                known = told(error)
                if known is None:
                    raise
                raise known from error

        return asked

    return decorate
