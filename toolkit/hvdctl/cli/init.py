"""`hvdctl init` and `hvdctl schema`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hvdctl.cli.options import JsonOption


def init(
    path: Annotated[Path, typer.Argument(help="File to write.")] = Path("hvdctl.yml"),
    force: Annotated[bool, typer.Option("--force", help="Write over an existing file.")] = False,
    json: JsonOption = False,
) -> None:
    """Write a commented hvdctl.yml with every key.

    Example: `hvdctl init && $EDITOR hvdctl.yml && hvdctl up`
    """
    from hvdctl.cli.terminal import Terminal
    from hvdctl.errors import UsageError
    from hvdctl.files import rewrite
    from hvdctl.spec import template

    terminal = Terminal(as_json=json)
    if path.exists() and not force:
        raise UsageError(f"{path} exists", hint="`hvdctl init --force` writes over it")
    try:
        rewrite(path, template())
    except OSError as error:
        raise UsageError(f"{path} can't be written: {error.strerror}") from None
    terminal.result({"file": str(path)}, lambda: terminal.line(f"wrote {path}; `hvdctl up` makes that cluster"))


def schema() -> None:
    """Print the JSON Schema of hvdctl.yml, for editors.

    Example: `hvdctl schema > hvdctl.schema.json`
    """
    import json

    from hvdctl.cli.terminal import Terminal
    from hvdctl.spec import schema as spec_schema

    Terminal().line(json.dumps(spec_schema(), indent=2))
