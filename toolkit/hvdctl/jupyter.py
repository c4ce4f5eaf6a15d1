"""JupyterLab on the head: what notebooks are told, and the way from this machine to it."""

from __future__ import annotations

import html
import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from hvdctl import __version__, jobs, owner, providers, ssh, tunnel
from hvdctl.cluster import Cluster, Node, write
from hvdctl.errors import HvdctlError, UsageError
from hvdctl.progress import Step
from hvdctl.spec import Spec, masked

# On an emulated machine it starts in minutes.
_ANSWER_S = 240.0
_TIMEOUT_S = 5.0
# How often one who waits looks whether the head is still there.
_LOOK_S = 5.0
_NONE: dict[str, Any] = {"installed": False, "wanted": False, "running": False, "answers": False, "log": []}


@dataclass(frozen=True)
class Opened:
    """The way to JupyterLab; `moved` is the port that was asked for and is taken by another program."""

    url: str
    port: int
    moved: int | None


def facts(spec: Spec, nodes: Sequence[Node], image: str) -> dict[str, Any]:
    """What `hvd_cluster` knows on the head, so that jobs of notebooks start as those of `hvdctl run`. Pure."""
    return {
        "cluster": spec.name,
        "provider": spec.provider,
        "framework": spec.framework,
        "net": spec.net,
        "nodes": [
            {
                "name": node.name,
                "role": node.role,
                "kind": node.kind,
                "id": node.id,
                "slots": node.slots,
                "gpus": node.gpus,
                "address": node.private_address,
            }
            for node in nodes
        ],
        "env": spec.env,
        "cpus": spec.cpus,
        "interface": jobs.interface(nodes),
        "image": masked(image),
        "one_machine": providers.one_machine(spec),
        "hvdctl": __version__,
    }


def variables(cluster: Cluster, spec: Spec, told: dict[str, Any]) -> dict[str, Any]:
    """The variables of the role; the facts go by a file of the cluster's folder. No JupyterLab, no tunnel."""
    if not spec.jupyter:
        close(cluster)
    try:
        about = providers.REGISTRY[spec.provider].site.about(cluster.name)
    except HvdctlError:
        about = ""
    file = _file(cluster, "facts.json")
    # Numbers of runs go on after `down`, and figures of benches say what the nodes are: also those of notebooks.
    told = told | {"after": jobs.last_kept(cluster), "about": about, "owner": owner.this().id}
    write(file, json.dumps(told, indent=1) + "\n")
    return {"jupyter_wanted": spec.jupyter, "jupyter_facts": str(file)}


def there(cluster: Cluster, spec: Spec) -> bool:
    """Whether the nodes have the JupyterLab that was asked for: an image of the user's own need not."""
    if not spec.jupyter or spec.image == "auto":
        return spec.jupyter
    try:
        return bool(_server(cluster, ssh.pick(cluster))["installed"])
    except HvdctlError:
        return False  # lost since it was configured: `status` tells


def open_(cluster: Cluster, step: Step, *, port: int | None = None, rotate: bool = False) -> Opened:
    """Make the way to JupyterLab, and return when it answers there."""
    head = _head(cluster)
    _require(cluster, head, step)
    given = _told(cluster, head, "rotate" if rotate else "token")
    step.update("opening the tunnel")
    stands, moved = tunnel.open_(cluster, head.name, str(given["socket"]), port)
    step.update("waiting for JupyterLab")
    _wait(cluster, stands, str(given["token"]))
    url = f"http://127.0.0.1:{stands}/lab/tree/notebooks?token={given['token']}"
    return Opened(url, stands, moved)


def status(cluster: Cluster) -> dict[str, Any]:
    """How the tunnel stands, and what runs on the head."""
    cluster.spec()
    told: dict[str, Any] = {"cluster": cluster.name, "tunnel": tunnel.state(cluster)}
    try:
        server = _server(cluster, _head(cluster))
    except HvdctlError as error:
        return told | {"server": None, "problem": error.message, "hint": error.hint}
    missing = _missing(cluster, server)
    problem, hint = (missing.message, missing.hint) if missing else (None, "")
    return told | {"server": server, "problem": problem, "hint": hint}


def page(cluster: Cluster, url: str) -> Path:
    """A page of the user's own that leads to the URL: a browser's command line can be read by everybody here."""
    file = _file(cluster, "open.html")
    there = html.escape(url, quote=True)
    write(
        file,
        f'<!DOCTYPE html><meta charset="utf-8"><title>JupyterLab</title>'
        f'<meta http-equiv="refresh" content="0;url={there}"><a href="{there}">JupyterLab</a>\n',
    )
    return file


def close(cluster: Cluster) -> bool:
    """End the tunnel, and forget the page with the token; says whether there was one."""
    _file(cluster, "open.html").unlink(missing_ok=True)
    return tunnel.close(cluster)


def _head(cluster: Cluster) -> Node:
    """The head, or an error where it is lost."""
    head = ssh.pick(cluster)
    if jobs.lost(cluster, [head.name]):
        raise HvdctlError(
            f"the head {head.name} of {cluster.name!r} is lost, and JupyterLab with it",
            hint=f"`hvdctl up --name {cluster.name}` makes it anew; what is on the share is kept",
        )
    return head


def _server(cluster: Cluster, head: Node) -> dict[str, Any]:
    """What the head's agent says of JupyterLab; of an image of an older hvdctl, that there is none."""
    try:
        return cast(dict[str, Any], ssh.agent(cluster, head.name, "jupyter", "status"))
    except UsageError as error:
        if "no verb" not in error.message:
            raise
        return _NONE


def _require(cluster: Cluster, head: Node, step: Step) -> None:
    """JupyterLab is there and was asked to run, or an error that says what to do."""
    step.update("asking the head")
    told = _server(cluster, head) if cluster.spec().jupyter else _NONE
    if missing := _missing(cluster, told):
        raise missing
    if not told["running"]:
        _told(cluster, head, "resume")


def _told(cluster: Cluster, head: Node, verb: str) -> dict[str, Any]:
    """The answer to a word for JupyterLab; what the head can't do is nothing that the user wrote."""
    try:
        return cast(dict[str, Any], ssh.agent(cluster, head.name, "jupyter", verb))
    except UsageError as error:
        raise HvdctlError(
            f"{head.name}: {error.message}", hint=f"`hvdctl check --name {cluster.name}` looks at the nodes"
        ) from None


def _missing(cluster: Cluster, server: dict[str, Any]) -> HvdctlError | None:
    """Why there is none to be reached, with the way to one; None where it is there and was asked to run."""
    name, spec = cluster.name, cluster.spec()
    if not spec.jupyter:
        return UsageError(
            f"cluster {name!r} was made without JupyterLab (jupyter: false)",
            hint=f"`hvdctl up --name {name} --jupyter` makes its nodes anew with it",
        )
    if not server["installed"]:
        return HvdctlError(
            f"the image of {name!r} has no JupyterLab: {masked(spec.image)}",
            hint="use --image auto, or an image from `hvdctl image push`",
        )
    if not server["wanted"]:
        return HvdctlError(f"cluster {name!r} is not whole yet", hint=f"`hvdctl up --name {name}` goes on with it")
    return None


def _wait(cluster: Cluster, port: int, token: str) -> None:
    """Return when JupyterLab takes the token at the near end of the tunnel."""
    began = looked = time.monotonic()
    while True:
        way = tunnel.state(cluster)
        if not way["running"]:
            raise HvdctlError(
                f"the tunnel to {cluster.name!r} was closed meanwhile",
                hint=f"`hvdctl status --name {cluster.name}` shows what stands",
            )
        # What listens there while the tunnel is away is not ours to tell the token.
        code = _asked(port, token) if way["open"] else 0
        if code == 200:
            return
        if code in (401, 403):
            raise HvdctlError(
                f"what answers on port {port} does not take the token of {cluster.name!r}",
                hint=f"`hvdctl jupyter --name {cluster.name} --stop`, then open it again",
            )
        if time.monotonic() > looked + _LOOK_S:
            _head(cluster)
            looked = time.monotonic()
        if time.monotonic() > began + _ANSWER_S:
            server = status(cluster)["server"] or {}
            said = "; ".join(server.get("log") or []) or "it says nothing"
            raise HvdctlError(f"JupyterLab gave no answer within {_ANSWER_S:.0f} s: {said}")
        time.sleep(0.1)


def _asked(port: int, token: str) -> int:
    """The answer's code; 0 where there is none yet."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/api/status", headers={"Authorization": f"token {token}"})
    # The user's proxy is none for this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=_TIMEOUT_S) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except (OSError, http.client.HTTPException):
        return 0


def _file(cluster: Cluster, name: str) -> Path:
    return cluster.folder / "jupyter" / name
