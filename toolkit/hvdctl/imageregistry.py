"""The image of the nodes in a registry, for services that pull it themselves."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from hvdctl import engine
from hvdctl.errors import HvdctlError, UsageError
from hvdctl.progress import Progress, Step
from hvdctl.spec import masked

_TARGET = re.compile(r"(?P<name>(?:[\w.-]+(?::\d+)?/)?[a-z0-9._-]+(?:/[a-z0-9._-]+)*)(?::(?P<tag>[\w][\w.-]{0,127}))?")


def check(target: str) -> tuple[str, str]:
    """Name and tag of where an image is to go, or an error."""
    found = _TARGET.fullmatch(target)
    if found is None or "/" not in target:
        raise UsageError(
            f"{masked(target)!r} is not a place in a registry",
            hint="write REGISTRY/IMAGE:TAG, such as registry.example.org/me/hvd:1",
        )
    return found["name"], found["tag"] or "latest"


def push(reference: str, target: str, progress: Progress) -> str:
    """Send an image that the engine holds to a registry, with the engine's own login there; its name from then on."""
    name, tag = check(target)
    client = engine.client(timeout=3600)
    try:
        with progress.phase(f"Pushing {name}:{tag}") as step:
            ours = client.images.get(reference)
            before = client.images.list(f"{name}:{tag}")
            ours.tag(name, tag)
            try:
                _follow(client.api.push(name, tag, stream=True, decode=True), name, step)
            finally:
                # The name was only lent: what had it before has it again.
                for image in before:
                    image.tag(name, tag)
                if not before:
                    client.images.remove(f"{name}:{tag}")
    except engine.failures() as error:
        known = engine.describe(error)
        raise type(known)(f"{name}:{tag} was not pushed: {known.message}", hint=known.hint) from error
    finally:
        client.close()
    return f"{name}:{tag}"


def _follow(events: Iterable[dict[str, Any]], name: str, step: Step) -> None:
    """Tell how far it is, and what went wrong."""
    sent: dict[str, tuple[int, int]] = {}
    for event in events:
        if error := event.get("error"):
            raise _failure(str(error), name)
        detail = event.get("progressDetail") or {}
        if event.get("id") and detail.get("total"):
            sent[event["id"]] = (min(detail.get("current", 0), detail["total"]), detail["total"])
            done, total = map(sum, zip(*sent.values(), strict=True))
            step.update(f"{done / 1e6:.0f} of {total / 1e6:.0f} MB")


def _failure(error: str, name: str) -> HvdctlError:
    registry = name.partition("/")[0]
    if re.search(r"denied|unauthorized|authentication|no basic auth", error, re.IGNORECASE):
        return HvdctlError(f"{registry} does not take {name}: {error}", hint=f"docker login {registry}")
    return HvdctlError(f"{name} was not pushed: {error}", hint=f"is {registry} the registry, and does it answer?")
