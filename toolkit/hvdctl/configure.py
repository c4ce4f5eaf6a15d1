"""Ansible: site.yml and verify.yml through ansible-runner, their events handed on, their output logged."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hvdctl import interrupts, paths, process, scratch, verbatim
from hvdctl.cluster import Cluster, write
from hvdctl.errors import PhaseError

# In these a host that fails does not keep the others from the end.
_EACH_BY_ITSELF = {"teardown.yml"}
# Of each play alone, and in the environment of all that it starts.
_SOCKETS = "ANSIBLE_SSH_CONTROL_PATH_DIR"
# ansible-runner looks for Ctrl-C whenever Ansible prints something and after this time, which is 5 s by default. It
# reads settings from a file only: those given to `run` are dropped if there is no such file.
_SETTINGS = {"suppress_ansible_output": True, "pexpect_timeout": 0.5}
# What Ansible, ansible-runner and its plugins read from the environment. The user's own settings are for the user's own
# playbooks: they could turn off host key checking, or load other plugins.
_SETTINGS_OF_OTHERS = (
    "ANSIBLE_",
    "_ANSIBLE_",
    "AWX_",
    "RUNNER_",
    "ORIGINAL_STDOUT_CALLBACK",
    "AD_HOC_COMMAND_ID",
    "PROJECT_UPDATE_ID",
    "JOB_ID",
)
_FAILED = {"runner_on_failed": "failed", "runner_on_unreachable": "can't be reached"}


def play(
    cluster: Cluster,
    playbook: str,
    variables: dict[str, Any],
    on_event: Callable[[str], None],
    *,
    limit: Sequence[str] = (),
    answers: dict[str, dict[str, Any]] | None = None,
) -> int:
    """Run a playbook on the cluster's inventory; the number of changes, or an error that names the hosts.

    `answers` takes the last JSON that a task printed on each host.
    """
    import ansible_runner

    problems: list[str] = []
    failed: set[str] = set()
    reached: set[str] = set()
    changes = 0
    log_file = cluster.log("ansible")
    work = cluster.folder / "ansible"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(mode=0o700, parents=True)
    write(work / "env" / "settings", json.dumps(_SETTINGS))
    # A file, and not the argument: what is given on the command line is evaluated as templates.
    write(work / "env" / "extravars", verbatim.dump(variables))

    # A socket's path must be short, that of a cluster's folder need not be.
    with log_file.open("a", encoding="utf-8") as log, scratch.folder() as sockets:

        def take(event: dict[str, Any]) -> bool:
            nonlocal changes
            if event.get("event") == "playbook_on_stats":
                changes = sum(event["event_data"].get("changed", {}).values())
                reached.update(event["event_data"].get("processed", {}))
            if event.get("stdout"):
                log.write(event["stdout"] + "\n")
            if text := describe(event):
                on_event(text)
            if problem := failure(event):
                problems.append(problem)
                failed.add(event["event_data"].get("host", ""))
            if answers is not None:
                answers.update(_answer(event))
            return False

        with interrupts.counted() as pressed:
            with _without(_SETTINGS_OF_OTHERS):
                runner = ansible_runner.interface.init_runner(
                    private_data_dir=str(work),
                    project_dir=str(paths.asset("playbooks")),
                    playbook=playbook,
                    inventory=str(cluster.inventory),
                    limit=",".join(limit) or None,
                    envvars=_environment(work, sockets),
                    event_handler=take,
                    quiet=True,
                    suppress_env_files=True,
                    # Without it ansible-runner takes the signals for itself, and keeps them.
                    cancel_callback=lambda: pressed() > 0,
                )
            runner.run()
            # One that comes as the play ends counts too.
            interrupted = runner.status == "canceled" or pressed() > 0
        # It writes down the whole environment that it was called in, with whatever secrets are in that.
        for written in work.glob("artifacts/*/command"):
            written.unlink()
        # Ansible's workers are in sessions of their own, and go on when it is killed. Connections are kept for some
        # seconds, and the one to a jump host for hours if the node behind it is gone by then.
        process.end(f"{_SOCKETS}={sockets}")
        if interrupted:
            raise KeyboardInterrupt
        if runner.status != "successful" and not problems:
            log.write(runner.stdout.read())
    if runner.status != "successful":
        more = f"; and {len(problems) - 3} more" if len(problems) > 3 else ""
        told = "; ".join(problems[:3]) + more or f"ansible-playbook ended with {runner.rc}"
        stopped = sorted(reached - failed) if playbook not in _EACH_BY_ITSELF else []
        others = f"; unfinished because of that: {', '.join(stopped)}" if stopped else ""
        raise PhaseError(f"configuration failed: {told}{others}", log=log_file, hosts=frozenset(failed))
    return changes


def describe(event: dict[str, Any]) -> str:
    """What an Ansible event is about, in a few words; nothing for most."""
    data = event.get("event_data", {})
    if event.get("event") == "playbook_on_task_start":
        return str(data.get("name") or data.get("task") or "")
    return ""


def failure(event: dict[str, Any]) -> str:
    """Host and reason of a failed task; nothing for all other events."""
    if event.get("event") not in _FAILED:
        return ""
    data = event.get("event_data", {})
    if data.get("ignore_errors"):
        return ""
    result = data.get("res", {})
    said = _agent_said(result.get("stdout"))
    words = [result.get(key) for key in ("msg", "stderr", "stdout")]
    if result.get("rc"):
        words = [*words[1:], words[0]]  # Ansible's own word is that the command failed
    reason = said or next((word for word in words if word), "no reason given")
    reason = " ".join(str(reason).split())[-400:]
    return f"{data.get('host')} {_FAILED[event['event']]} in {data.get('task')!r}: {reason}"


def _agent_said(stdout: object) -> str:
    """What the node's agent found wrong, where it was the one that answered."""
    answer = _json(stdout)
    return "; ".join(answer.get("problems") or [answer.get("error", "")])


def _answer(event: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The JSON that a task printed, by host; nothing for most events."""
    data = event.get("event_data", {})
    said = _json(data.get("res", {}).get("stdout")) if event.get("event") == "runner_on_ok" else {}
    return {data["host"]: said} if said else {}


def _json(stdout: object) -> dict[str, Any]:
    try:
        answer = json.loads(str(stdout))
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


def _environment(work: Path, sockets: Path) -> dict[str, str]:
    # ansible-playbook lies beside the interpreter, which need not be on PATH.
    search = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return {
        "PATH": search,
        "ANSIBLE_CONFIG": str(paths.asset("playbooks", "ansible.cfg")),
        "ANSIBLE_HOME": str(work / "home"),
        # ansible-runner turns it off unless it is set here, and the environment wins over ansible.cfg.
        "ANSIBLE_HOST_KEY_CHECKING": "True",
        _SOCKETS: str(sockets),
        "ANSIBLE_ROLES_PATH": str(paths.asset("playbooks", "roles")),
        "LC_ALL": "C.UTF-8",
    }


@contextmanager
def _without(prefixes: tuple[str, ...]) -> Iterator[None]:
    """Hide variables of our own environment, of which ansible-runner hands on all when it is set up."""
    hidden = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith(prefixes)}
    try:
        yield
    finally:
        os.environ.update(hidden)
