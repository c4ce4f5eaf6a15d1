"""Values for Ansible, as YAML: Ansible evaluates text as templates, and what others wrote is to arrive as it is."""

from __future__ import annotations

import re
from typing import Any

import yaml

# Without braces there is no template. Such text stays plain, so that people can read the file.
_PLAIN = re.compile(r"[A-Za-z0-9 ._:/@,=+~\"'-]*")


class _Dumper(yaml.SafeDumper):
    pass


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    if _PLAIN.fullmatch(text):
        return dumper.represent_str(text)
    return dumper.represent_scalar("!unsafe", text, style='"')


_Dumper.add_representer(str, _text)


def dump(values: Any) -> str:
    """The values as YAML in which no text is a template."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False)
