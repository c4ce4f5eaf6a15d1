"""YAML as a person writes it: hvdctl.yml, values of --option.

Words mean what they mean in YAML 1.2, which knows no dates, no `1:30` for 90, no `yes` for true and no `010` for 8.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

import yaml

_TAG = "tag:yaml.org,2002:"
_NUMBERS = {f"{_TAG}int", f"{_TAG}float"}
# A number that would change if it were written again is a text: 007, and anything with more digits than a number needs.
_INT = r"[-+]?(?:0|[1-9][0-9]{0,39})|0o[0-7]{1,40}|0x[0-9a-fA-F]{1,40}"
_FLOAT = (
    r"[-+]?(?:\.[0-9]{1,40}|(?:0|[1-9][0-9]{0,39})(?:\.[0-9]{0,40})?)(?:[eE][-+]?[0-9]{1,4})?|[-+]?\.(?:inf|Inf|INF)"
)
_FLOAT += r"|\.(?:nan|NaN|NAN)"
_MOST_VALUES = 100_000


class NotYamlError(ValueError):
    """What is wrong, and in which line if that is known."""

    def __init__(self, problem: str, line: int | None = None) -> None:
        super().__init__(problem)
        self.line = line


def load(text: str, verbatim: Collection[str] = ()) -> Any:
    """The one document of a text. Below the top-level keys of `verbatim`, numbers stay the text that was written."""
    try:
        loader: Any = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _check_size(node)
        for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
            if isinstance(key, yaml.ScalarNode) and key.value in verbatim and isinstance(value, yaml.MappingNode):
                _keep_numbers(value)
        return loader.construct_document(node)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise NotYamlError(str(getattr(error, "problem", None) or error), mark.line + 1 if mark else None) from None
    except RecursionError:
        raise NotYamlError("it is nested too deeply") from None
    except ValueError as error:  # an explicit tag, such as `!!int x`
        raise NotYamlError(str(error)[:200]) from None


class _Loader(yaml.SafeLoader):
    """Resolves words as YAML 1.2 does, and refuses a key that stands twice, of which YAML would take the last."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - as in its base

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                continue  # refused by the loader itself
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} stands twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)

    def construct_yaml_int(self, node: Any) -> int:
        return int(self.construct_scalar(node), 0)


_Loader.add_constructor(f"{_TAG}int", _Loader.construct_yaml_int)
for _name, _pattern, _first in (
    ("bool", "true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", "~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("int", _INT, "-+0123456789"),
    ("float", _FLOAT, "-+.0123456789"),
    ("merge", "<<", "<"),
):
    _Loader.add_implicit_resolver(f"{_TAG}{_name}", re.compile(f"(?:{_pattern})$"), list(_first))


def _check_size(root: Any) -> None:
    """Raise if the document refers to itself, or is made very large by references."""
    sizes: dict[int, int | None] = {}

    def size(node: Any) -> int:
        if isinstance(node, yaml.ScalarNode):
            return 1
        if id(node) in sizes:
            known = sizes[id(node)]
            if known is None:
                raise NotYamlError("it refers to itself", node.start_mark.line + 1)
            return known
        sizes[id(node)] = None
        parts = (part for pair in node.value for part in (pair if isinstance(pair, tuple) else (pair,)))
        total = sizes[id(node)] = 1 + sum(size(part) for part in parts)
        if total > _MOST_VALUES:
            raise NotYamlError(f"it has more than {_MOST_VALUES} values", node.start_mark.line + 1)
        return total

    size(root)


def _keep_numbers(mapping: Any) -> None:
    for _, value in mapping.value:
        if isinstance(value, yaml.ScalarNode) and value.tag in _NUMBERS:
            value.tag = f"{_TAG}str"
