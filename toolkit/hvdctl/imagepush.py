"""An image from this machine's engine to many machines: `python -m hvdctl.imagepush SSH_CONFIG IMAGE NAME=ADDRESS...`.

It goes over SSH to the first machine only, which hands every piece on to the next while it loads it, and so on along
the line: the time grows with the size of the image, hardly with the number of machines. Layers that all of them have
stay here.

Between the machines it is TCP on the cluster's own network, as they can't log in to each other. Each transfer has a
secret, told to every machine over SSH, that seals every piece: see relay.py. And what was loaded is an image of the
right id, or of the right layers and settings where an engine counts ids in another way, or an error.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import random
import re
import resource
import secrets
import select
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from hvdctl import engine, imagearchive, process, relay, ssh
from hvdctl.errors import HvdctlError

# A login shell may have words of its own to say before it.
_MARK = "hvdctl:images"
_LAYERS = f"echo {_MARK}; docker image ls --quiet --no-trunc | sort -u | xargs --no-run-if-empty docker image inspect"
# What is run, as whom, and with what, in the words of `docker image inspect`.
_SETTINGS = (
    "Cmd", "Entrypoint", "Env", "ExposedPorts", "Healthcheck", "Labels", "OnBuild", "Shell", "StopSignal", "User",
    "Volumes", "WorkingDir",
)  # fmt: skip
# Logins at the same time, as sshd by default drops some of more than ten, and seconds for each; a relay waits much
# longer for the last of them.
_AT_ONCE = 8
_LOGIN = 240.0
# Seconds that more is waited here than a relay does, which knows better what it waits for.
_SLACK = 30.0
# Seconds in which the machine that failed may tell so after its neighbours.
_GRACE = 10.0


@dataclass
class Held:
    """What a machine's engine has: its images, and the layers that need not be sent to it."""

    images: list[dict[str, Any]]
    layers: set[tuple[str, ...]]


@dataclass
class Pushed:
    machines: list[str]
    bytes: int
    seconds: float


def push(ssh_config: Path, image: str, machines: Sequence[str], addresses: dict[str, str]) -> Pushed:
    """Give the image to those machines that don't have it."""
    started = time.monotonic()
    client = engine.client(timeout=3600)
    try:
        tag = image if ":" in image.rsplit("/", 1)[-1] else f"{image}:latest"
        wanted = client.images.get(tag).attrs
        layers = list(wanted["RootFS"]["Layers"])
        held = _held(ssh_config, machines)
        missing = [name for name in machines if not _has(held[name], tag, wanted)]
        if not missing:
            return Pushed([], 0, time.monotonic() - started)
        # A layer lies on those below it: only a chain from the bottom that all have can be left out.
        common = 0
        while common < len(layers) and all(tuple(layers[: common + 1]) in held[name].layers for name in missing):
            common += 1
        light = imagearchive.light(client, tag, wanted["Id"], layers[:common])
        chain = _Chain(ssh_config, missing, addresses)
        try:
            chain.start()
            sent = chain.send(light)
        finally:
            chain.end()
        still = _held(ssh_config, missing)
        bad = [name for name in missing if not _has(still[name], tag, wanted, arrived=True)]
        if bad:
            raise HvdctlError(f"image {image} did not arrive on {', '.join(bad)}: {chain.told() or 'without a word'}")
        return Pushed(missing, sent, time.monotonic() - started)
    finally:
        client.close()


class _Chain:
    """One relay on each machine, each told of the one after it; the first is fed from here."""

    def __init__(self, ssh_config: Path, machines: Sequence[str], addresses: dict[str, str]) -> None:
        self._ssh_config = ssh_config
        self._machines = list(machines)
        self._addresses = addresses
        self._secret = secrets.token_bytes(32)
        self._relays: dict[str, subprocess.Popen[bytes]] = {}
        self._said: dict[str, list[str]] = {name: [] for name in machines}
        self._ports: dict[str, int] = {}
        self._ended: set[str] = set()
        # Machine and exit code, in the order of time.
        self._failed: list[tuple[str, int]] = []
        self._over = False
        self._changed = threading.Condition()

    def start(self) -> None:
        """All side by side; when the last one listens, each is told where the next one does."""
        for index, name in enumerate(self._machines):
            if index >= _AT_ONCE:
                self._await_port(self._machines[index - _AT_ONCE])
            threading.Thread(target=self._follow, args=(name, self._login(name)), daemon=True).start()
        for name in self._machines:
            self._await_port(name)
        onward: dict[str, Any] | None = None
        for name in reversed(self._machines):
            self._tell(name, onward)
            onward = {"address": self._addresses[name], "port": self._ports[name]}

    def send(self, pieces: Iterable[bytes]) -> int:
        """Feed the first machine; gives the number of bytes."""
        pipe, sent = cast(IO[bytes], self._relays[self._machines[0]].stdin), 0
        os.set_blocking(pipe.fileno(), False)
        try:
            for number, piece in enumerate(itertools.chain(pieces, [b""])):
                self._write(pipe, relay.sealed(self._secret, number, piece))
                sent += len(piece)
        except BrokenPipeError:
            pass  # what went wrong is told by the machines themselves
        limit = relay.LIMITS["load"] + _SLACK
        with self._changed:
            self._changed.wait_for(lambda: self._failed or len(self._ended) == len(self._machines), limit)
            if self._failed:
                raise self._cause()
            if late := [name for name in self._machines if name not in self._ended]:
                raise HvdctlError(f"{', '.join(late)} took no image within {limit:.0f} s")
        return sent

    def told(self, name: str | None = None) -> str:
        chosen = [name] if name else list(self._said)
        lines = [f"{one}: {line}" for one in chosen for line in self._said[one]]
        return lines[-1] if lines else ""

    def end(self) -> None:
        with self._changed:
            self._over = True
        for one in self._relays.values():
            one.terminate()
        for one in self._relays.values():
            try:
                one.wait(timeout=_SLACK)
            except subprocess.TimeoutExpired:
                one.kill()

    def _login(self, name: str) -> subprocess.Popen[bytes]:
        far = "sudo -n python3 -c " + shlex.quote(Path(relay.__file__).read_text())
        argv = [*ssh.words(self._ssh_config), name, "--", far]
        self._relays[name] = process.start(
            argv, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        listen = self._addresses[name] if name != self._machines[0] else None
        self._tell(name, {"listen": listen, "secret": self._secret.hex()})
        return self._relays[name]

    def _tell(self, name: str, what: dict[str, Any] | None) -> None:
        with contextlib.suppress(BrokenPipeError):  # its end is seen by the one that follows it
            cast(IO[bytes], self._relays[name].stdin).write(json.dumps(what).encode() + b"\n")

    def _follow(self, name: str, one: subprocess.Popen[bytes]) -> None:
        code = self._heard(name, one)
        for pause in ssh.PAUSES:
            if name in self._ports or not ssh.cut(code, "\n".join(self._said[name])):
                break
            time.sleep(random.uniform(pause / 2, pause))  # noqa: S311 - only to come apart
            with self._changed:
                if self._over:
                    break
                self._said[name].clear()
                one = self._login(name)
            code = self._heard(name, one)
        with self._changed:
            self._ended.add(name)
            if code:
                self._failed.append((name, code))
            self._changed.notify_all()

    def _heard(self, name: str, one: subprocess.Popen[bytes]) -> int:
        """What a relay says, kept to its end; its exit code."""
        for line in io.BufferedReader(cast(io.RawIOBase, one.stdout)):
            text = line.decode(errors="replace").strip()
            with self._changed:
                if port := re.fullmatch(r"port (\d+)", text):
                    self._ports[name] = int(port[1])
                    self._changed.notify_all()
                elif text:
                    self._said[name].append(text)
        return one.wait()

    def _await_port(self, name: str) -> None:
        with self._changed:
            self._changed.wait_for(lambda: name in self._ports or self._failed, _LOGIN)
            if self._failed:
                first, code = self._failed[0]
                raise HvdctlError(f"{first} can't take an image: {self.told(first) or f'exit code {code}'}")
            if name not in self._ports:
                raise HvdctlError(f"{name} can't take an image: no answer within {_LOGIN:.0f} s")

    def _write(self, pipe: IO[bytes], piece: bytes) -> None:
        """No longer than a relay waits itself, so that it is the one to tell which machine hangs."""
        ready = select.poll()
        ready.register(pipe, select.POLLOUT)
        rest = memoryview(piece)
        limit = relay.LIMITS["piece"] + _SLACK
        deadline = time.monotonic() + limit
        while rest:
            if self._failed:
                raise BrokenPipeError
            if ready.poll(200):
                rest = rest[os.write(pipe.fileno(), rest) :]
            elif time.monotonic() > deadline:
                raise HvdctlError(f"{self._machines[0]} took nothing of the image for {limit:.0f} s")

    def _cause(self) -> HvdctlError:
        """The machine that failed by itself, not one that lost its neighbour by that and may have said so sooner."""
        neighbours = (relay.BEFORE, relay.AFTER)

        def own() -> list[tuple[str, int]]:
            return [(name, code) for name, code in self._failed if code not in neighbours]

        self._changed.wait_for(lambda: own() or len(self._ended) == len(self._machines), _GRACE)
        name, code = (own() or self._failed)[0]
        # Where none did, the neighbour that was lost hangs.
        place = self._machines.index(name) + {relay.BEFORE: -1, relay.AFTER: 1}.get(code, 0)
        lost = self._machines[max(0, place)]
        return HvdctlError(f"the image did not get to {lost}: {self.told(name) or f'exit code {code}'}")


def _held(ssh_config: Path, machines: Sequence[str]) -> dict[str, Held]:
    """What each machine's engine has, asked of all side by side."""
    words = ssh.words(ssh_config)
    answers = ssh.gather(
        [[*words, name, "--", f"sudo -n sh -c {shlex.quote(_LAYERS)}"] for name in machines], timeout=120
    )
    held = {}
    for name, done in zip(machines, answers, strict=True):
        if done.returncode:
            said = done.stderr.strip().splitlines()
            raise HvdctlError(f"{name}: its Docker engine can't be asked: {said[-1] if said else done.returncode}")
        try:
            images = json.loads(done.stdout.split(f"{_MARK}\n", 1)[1].strip() or "[]")
        except (IndexError, ValueError):
            said = done.stdout.strip().splitlines()
            raise HvdctlError(
                f"{name}: its Docker engine gave no list of its images, but: {said[-1] if said else 'nothing'}"
            ) from None
        layers: set[tuple[str, ...]] = set()
        # containerd's image store loads whole archives only.
        if not any(_of_containerd(one) for one in images):
            for one in images:
                chain = _chain_of(one)
                layers |= {tuple(chain[: end + 1]) for end in range(len(chain))}
        held[name] = Held(images, layers)
    return held


def _of_containerd(image: dict[str, Any]) -> bool:
    """There an image's id is the digest of its manifest, elsewhere that of its configuration."""
    return any(known.endswith(f"@{image['Id']}") for known in image.get("RepoDigests") or [])


def _settings(image: dict[str, Any]) -> dict[str, Any]:
    """All of an image's configuration that containers run by; engines differ in how they write that it is empty."""
    config = image.get("Config") or {}
    return {key: config.get(key) or None for key in _SETTINGS} | {key: image.get(key) for key in ("Architecture", "Os")}


def _chain_of(image: dict[str, Any]) -> list[str]:
    return image["RootFS"].get("Layers") or []


def _has(held: Held, tag: str, wanted: dict[str, Any], *, arrived: bool = False) -> bool:
    """Whether the machine has the image under its name.

    An engine may count ids in another way than the one here. There an image of the same layers, settings and moment is
    the same one; the moment does not count for one that was just loaded without an error.
    """
    for one in held.images:
        if tag in (one.get("RepoTags") or []):
            if one["Id"] == wanted["Id"]:
                return True
            otherwise = _of_containerd(one) or _of_containerd(wanted)
            moment = arrived or one.get("Created") == wanted.get("Created")
            same = (_chain_of(one), _settings(one)) == (_chain_of(wanted), _settings(wanted))
            return otherwise and moment and same
    return False


def main(argv: Sequence[str]) -> int:
    """Prints {"pushed": [...], "bytes": ..., "seconds": ...}; what the role `horovod` calls once for all machines."""
    ssh_config, image, *places = argv
    # Each machine has a login until the end.
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], min(limits[1], 4096)), limits[1]))
    addresses = dict(place.split("=", 1) for place in places)
    expected: tuple[type[Exception], ...] = (HvdctlError, *engine.failures())
    try:
        done = push(Path(ssh_config), image, list(addresses), addresses)
    except expected as error:
        told = error if isinstance(error, HvdctlError) else engine.describe(error)
        print(told.message, file=sys.stderr)  # noqa: T201 - a program of its own
        return 1
    print(json.dumps({"pushed": done.machines, "bytes": done.bytes, "seconds": round(done.seconds, 2)}))  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
