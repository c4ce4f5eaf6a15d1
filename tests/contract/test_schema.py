"""What is written of hvdctl.yml is in step with the code: the JSON Schema in docs/, the table in the README."""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml
from hvdctl.cli import app
from hvdctl.spec import Spec
from typer.testing import CliRunner

ROOT = Path(__file__).parents[2]


def test_the_schema_in_docs_is_what_the_command_prints() -> None:
    """`hvdctl schema > docs/hvdctl.schema.json` puts it in step again."""
    printed = CliRunner().invoke(app, ["schema"])
    assert printed.exit_code == 0
    assert json.loads((ROOT / "docs" / "hvdctl.schema.json").read_text()) == json.loads(printed.stdout)


def test_the_readme_names_every_key_and_its_default() -> None:
    _, _, after = (ROOT / "README.md").read_text().partition("| key | default |")
    table = dict(re.findall(r"^\| `(\w+)` \| `(.+?)` \|", after.partition("\n\n")[0], re.MULTILINE))
    assert {key: yaml.safe_load(value) for key, value in table.items()} == Spec().stored()
