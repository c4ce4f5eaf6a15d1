"""Entries of lists that a person writes: what is wrong with one is told with its place, its key and its value."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, ValidationError

from hvdctl.errors import UsageError

_Entry = TypeVar("_Entry", bound=BaseModel)


def entry(model: type[_Entry], given: object, place: str, example: str) -> _Entry:
    try:
        return model.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"]) or "all of it"
        if first["type"] == "extra_forbidden":
            raise UsageError(
                f"{place}: {key}: there is no such key", hint=f"the keys are: {', '.join(model.model_fields)}"
            ) from None
        if first["type"] == "missing":
            raise UsageError(f"{place}: {key} is missing", hint=example) from None
        raise UsageError(f"{place}: {key}: {first['input']!r}: {first['msg']}", hint=example) from None
