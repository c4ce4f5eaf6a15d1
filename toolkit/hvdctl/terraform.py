"""The one place that drives Terraform (or OpenTofu), its events handed on as they come."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hvdctl import paths, plugin, process, terraform_release
from hvdctl.cluster import digest, write
from hvdctl.errors import PhaseError, ToolMissing, UsageError

_STATE = "terraform.tfstate"
_VARIABLES = "terraform.tfvars.json"
_PLANNED = "plan.tfvars.json"
_APPLIED = "applied.tfvars.json"
_LOCK = ".terraform.lock.hcl"
AT_ONCE = 10


@dataclass
class Outcome:
    """What one run of Terraform did, or in a plan would do: addresses by action."""

    changes: dict[str, list[str]] = field(default_factory=dict)
    outputs: dict[str, Any] = field(default_factory=dict)
    drift: list[str] = field(default_factory=list)
    done: int = 0
    recreated: list[str] = field(default_factory=list)
    """In a plan: the nodes that would be recreated, and in words what would end with them."""
    ending: str = ""


def binary() -> str:
    """The program, Terraform before OpenTofu."""
    found = terraform_release.find()
    if found is None:
        raise ToolMissing(
            "neither terraform nor tofu is installed",
            hint="`hvdctl check --fix` downloads Terraform and verifies it",
        )
    return found


def variables(folder: Path) -> dict[str, Any]:
    """What was last applied as a whole in a cluster's folder; empty if that can't be read."""
    return _read(folder / _APPLIED) or _read(folder / _VARIABLES)


def unfinished(folder: Path, *besides: str) -> bool:
    """Whether the last apply did not complete and asked for something else; `besides` names variables of no account."""
    made, asked = variables(folder), _read(folder / _VARIABLES)
    return any(made.get(name) != asked.get(name) for name in (made.keys() | asked.keys()) - set(besides))


def _read(file: Path) -> dict[str, Any]:
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return stored if isinstance(stored, dict) else {}


def holds(folder: Path) -> bool:
    """Whether the state in this folder knows of anything; raises where it can't be read."""
    file = folder / _STATE
    try:
        text = file.read_text(encoding="utf-8")
        # A kill leaves the file empty: Terraform then knows of nothing, although things may have been made.
        if not text.strip():
            return False
        return bool(json.loads(text)["resources"])
    except FileNotFoundError:
        return False
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{file} is not a Terraform state: {error}",
            hint=f"{file}.backup may hold the last good one; `hvdctl down --force` removes by label instead",
        ) from None


class Terraform:
    """A provider's module with its state in a folder of the cluster's."""

    def __init__(self, folder: Path, provider: str, log: Path, *, at_once: int = AT_ONCE) -> None:
        self.folder = folder
        self.at_once = at_once
        self.module = paths.asset("infra", provider)
        self.log = log

    @property
    def has_state(self) -> bool:
        """Whether Terraform knows of anything; raises where its state can't be read."""
        return holds(self.folder)

    def version(self) -> str:
        """What decides, beside the variables, whether a resource stays as it is: the module and hvdctl's own plugin."""
        return digest(self.module, paths.library() / "hvdctl" / "tfprovider")

    def variables(self) -> dict[str, Any]:
        """What was last applied as a whole."""
        found = variables(self.folder)
        if not found:
            raise UsageError(f"{self.folder / _VARIABLES} can't be read", hint="`hvdctl up`")
        return found

    def plan(self, variables: dict[str, Any]) -> Outcome:
        """What `apply` would do; changes nothing, not even what was asked for last."""
        with self._ready(variables, _PLANNED) as env:
            return self._run("plan", env, lambda _: None, refresh=True, var_file=_PLANNED)

    def apply(self, variables: dict[str, Any], on_event: Callable[[str], None]) -> Outcome:
        with self._ready(variables) as env:
            outcome = self._run("apply", env, on_event, auto_approve=True)
        write(self.folder / _APPLIED, json.dumps(variables, indent=2))
        return outcome

    def destroy(self, on_event: Callable[[str], None], *, keep: tuple[str, ...] = ()) -> Outcome:
        """Remove all that the state knows of, but for the resource types to be kept, which are forgotten."""
        with self._ready(None) as env:
            for address in self._addresses(keep):
                self._quiet(env, "state rm", address)
            return self._run("destroy", env, on_event, auto_approve=True)

    @contextlib.contextmanager
    def _ready(self, variables: dict[str, Any] | None, file: str = _VARIABLES) -> Iterator[dict[str, str]]:
        """The environment for Terraform, with module, variables and plugin in place."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        state = self.folder / _STATE
        if state.exists() and not state.read_text().strip():
            state.unlink()
        if variables is not None:
            write(self.folder / file, json.dumps(variables, indent=2))
        with plugin.served(self.log) as attached:
            env = self._environment()
            self._initialise(env)
            yield env | attached

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TF_")}
        config = self.folder / "terraform.rc"
        write(config, plugin.cli_config())
        return kept | {
            "TF_CLI_CONFIG_FILE": str(config),
            "TF_IN_AUTOMATION": "1",
            "TF_INPUT": "0",
            "CHECKPOINT_DISABLE": "1",
            "HVDCTL_PYTHON": sys.executable,
        }

    def _initialise(self, env: dict[str, str]) -> None:
        """Copy the module and run `init`, unless that was done for these very files."""
        stamp = self.folder / ".initialised"
        wanted = digest(self.module, binary())
        if stamp.exists() and stamp.read_text() == wanted:
            return
        for old in (*self.folder.glob("*.tf"), self.folder / _LOCK):
            old.unlink(missing_ok=True)
        for file in (*self.module.glob("*.tf"), *self.module.glob("*.tftpl")):
            shutil.copyfile(file, self.folder / file.name)
        options: dict[str, Any] = {"backend": False, "no_color": True}
        # OpenTofu has a registry of its own, and so other providers. Our own provider is not downloaded.
        if (self.module / _LOCK).exists() and Path(binary()).name != "tofu":
            shutil.copyfile(self.module / _LOCK, self.folder / _LOCK)
            options["lockfile"] = "readonly"
        self._quiet(env, "init", **options)
        write(stamp, wanted)

    def _addresses(self, types: tuple[str, ...]) -> list[str]:
        if not types or not self.has_state:
            return []
        resources = json.loads((self.folder / _STATE).read_text())["resources"]
        return [f"{r['type']}.{r['name']}" for r in resources if r["type"] in types]

    def _argv(self, command: str, *arguments: str, **options: Any) -> list[str]:
        from python_terraform import IsFlagged
        from python_terraform import Terraform as PythonTerraform

        flags = {name: IsFlagged if value is True else value for name, value in options.items()}
        driver = PythonTerraform(terraform_bin_path=binary())
        words: list[str] = driver.generate_cmd_string(command, *arguments, **flags)
        return words

    def _quiet(self, env: dict[str, str], command: str, *arguments: str, **options: Any) -> None:
        said: list[str] = []
        with self.log.open("a") as log:
            argv = self._argv(command, *arguments, **options)
            code = process.lines(argv, said.append, env=env, cwd=self.folder, log=log)
        if code:
            errors = [line.strip(" │╷╵") for line in said if line.strip(" │╷╵")]
            raise PhaseError(f"terraform {command} failed: {' '.join(errors[-6:])}", log=self.log)

    def _run(self, command: str, env: dict[str, str], on_event: Callable[[str], None], **options: Any) -> Outcome:
        outcome = Outcome()
        errors: list[str] = []

        def take(line: str) -> None:
            event = _event(line)
            if event.get("type") == "diagnostic" and event.get("@level") == "error":
                told = event["diagnostic"]
                errors.append(" ".join(f"{told['summary']} {told.get('detail', '')}".split()))
            elif not event and line.strip():
                errors.append(line.strip())
            _take(event, outcome)
            if event.get("type") == "apply_complete":
                outcome.done += 1
                total = sum(len(addresses) for addresses in outcome.changes.values())
                on_event(f"{outcome.done} of {total} resources")

        with self.log.open("a") as log:
            argv = self._argv(command, json=True, lock_timeout="60s", parallelism=self.at_once, **options)
            code = process.lines(argv, take, env=env, cwd=self.folder, log=log)
        if code:
            told = tuple(dict.fromkeys(errors)) or (f"exit code {code}",)
            raise PhaseError(f"terraform {command} failed: {'; '.join(told[:3])}", log=self.log, errors=told)
        return outcome


def _event(line: str) -> dict[str, Any]:
    try:
        event = json.loads(line)
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}


def _take(event: dict[str, Any], outcome: Outcome) -> None:
    """Write down what an event says."""
    kind = event.get("type")
    if kind == "planned_change":
        change = event["change"]
        outcome.changes.setdefault(change["action"], []).append(change["resource"]["addr"])
    elif kind == "resource_drift":
        outcome.drift.append(event["change"]["resource"]["addr"])
    elif kind == "outputs":
        outcome.outputs = {name: value.get("value") for name, value in event["outputs"].items()}
