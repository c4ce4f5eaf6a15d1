"""Every role obeys the same rules, and playbooks list roles only."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

PLAYBOOKS = Path(__file__).parents[2] / "playbooks"
ROLES = sorted(folder.name for folder in (PLAYBOOKS / "roles").iterdir() if folder.is_dir())
BOOKS = sorted(file.name for file in PLAYBOOKS.glob("*.yml"))
# What a task may hold beside its module.
KEYWORDS = {
    "name", "register", "changed_when", "failed_when", "no_log", "when", "loop", "loop_control", "become", "notify",
    "vars", "tags", "environment", "delegate_to", "run_once", "until", "retries", "delay", "args", "check_mode",
    "block", "rescue", "always", "async", "poll", "throttle",
}  # fmt: skip

each = pytest.mark.parametrize("role", ROLES)


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text()) if path.exists() else None


def options(role: str) -> dict[str, Any]:
    found: dict[str, Any] = read(PLAYBOOKS / "roles" / role / "meta" / "argument_specs.yml")["argument_specs"]["main"]
    return found


def tasks(role: str) -> list[dict[str, Any]]:
    files = [file for part in ("tasks", "handlers") for file in (PLAYBOOKS / "roles" / role / part).glob("*.yml")]
    return [task for file in files for task in read(file) or []]


@each
def test_a_role_describes_itself_and_every_variable(role: str) -> None:
    readme = (PLAYBOOKS / "roles" / role / "README.md").read_text()
    told = options(role)
    assert told["short_description"]
    for name, option in told["options"].items():
        assert option["description"], name
        assert option["type"], name
        assert f"`{name}`" in readme, f"{name} is not in the README"


@each
def test_variables_carry_the_name_of_their_role(role: str) -> None:
    known = set(options(role)["options"])
    defaults = set(read(PLAYBOOKS / "roles" / role / "defaults" / "main.yml") or {})
    registered = {task["register"] for task in tasks(role) if "register" in task}
    assert {name for name in known | defaults | registered if not name.startswith(f"{role}_")} == set()
    assert defaults <= known


@each
def test_defaults_and_argument_specs_say_the_same(role: str) -> None:
    defaults = read(PLAYBOOKS / "roles" / role / "defaults" / "main.yml") or {}
    for name, option in options(role)["options"].items():
        assert option.get("default") == defaults.get(name), name
        assert bool(option.get("required")) == (name not in defaults), name


@each
def test_tasks_are_named_and_modules_have_their_full_names(role: str) -> None:
    assert tasks(role)
    for task in tasks(role):
        assert task.get("name", "")[:1].isupper(), task
        for key in set(task) - KEYWORDS:
            assert re.fullmatch(r"[a-z_]+\.[a-z_]+\.[a-z_0-9]+", key), f"{key} in {task['name']}"


@pytest.mark.parametrize("book", BOOKS)
def test_a_playbook_lists_roles_only(book: str) -> None:
    for play in read(PLAYBOOKS / book):
        assert play["name"]
        if "ansible.builtin.import_playbook" in play:
            assert (PLAYBOOKS / play["ansible.builtin.import_playbook"]).exists()
            continue
        assert set(play) <= {
            "name",
            "hosts",
            "gather_facts",
            "roles",
            "become",
            "any_errors_fatal",
            "serial",
            "strategy",
        }
        for role in play["roles"]:
            assert role["role"] in ROLES


def test_every_role_is_used() -> None:
    used = {role["role"] for book in BOOKS for play in read(PLAYBOOKS / book) for role in play.get("roles", [])}
    assert used == set(ROLES)


def test_strict_host_key_checking_is_on() -> None:
    settings = (PLAYBOOKS / "ansible.cfg").read_text()
    assert re.search(r"^host_key_checking = True$", settings, re.MULTILINE)
    assert "StrictHostKeyChecking=no" not in settings
