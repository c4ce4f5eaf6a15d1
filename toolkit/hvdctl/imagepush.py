"""An image from this machine's engine to many machines: `python -m hvdctl.imagepush SSH_CONFIG IMAGE NAME=ADDRESS...`.

It goes over SSH to the first machine only, which hands every piece on to the next while it loads it, and so on along
the line: the time grows with the size of the image, hardly with the number of machines. Layers that all of them have
stay here.

Between the machines it is plain TCP on the cluster's own network. A machine takes one connection, from the one that
knows the word that it was told over SSH; and what was loaded is an image of the right id, which is a digest of all its
layers, or an error.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shlex
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from hvdctl import engine, paths, process
from hvdctl.cluster import digest
from hvdctl.errors import HvdctlError

if TYPE_CHECKING:
    from docker import DockerClient

# Runs on a machine, which need not have more than Python and an engine. Its first line of stdin is what it is to do.
_RELAY = Path(__file__).with_name("relay.py")
_LAYERS = "docker image ls --quiet --no-trunc | sort -u | xargs --no-run-if-empty docker image inspect"
_PIECE = 2**20


@dataclass
class Held:
    """What a machine's engine has: images by id, and the layers of all of them."""

    ids: dict[str, list[str]]
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
        found = client.images.get(image)
        wanted = str(found.id)
        layers = list(found.attrs["RootFS"]["Layers"])
        held = _held(ssh_config, machines)
        missing = [name for name in machines if wanted not in held[name].ids or image not in held[name].ids[wanted]]
        if not missing:
            return Pushed([], 0, time.monotonic() - started)
        # A layer lies on those below it: only a chain from the bottom that all have can be left out.
        common = 0
        while common < len(layers) and all(tuple(layers[: common + 1]) in held[name].layers for name in missing):
            common += 1
        light = _light(client, image, wanted, layers[:common])
        chain = _Chain(ssh_config, missing, addresses)
        try:
            sent = chain.send(light)
        finally:
            chain.end()
        still = _held(ssh_config, missing)
        bad = [name for name in missing if wanted not in still[name].ids]
        if bad:
            raise HvdctlError(f"image {image} did not arrive on {', '.join(bad)}: {chain.told() or 'without a word'}")
        return Pushed(missing, sent, time.monotonic() - started)
    finally:
        client.close()


class _Chain:
    """One relay on each machine, each told of the one after it; the first is fed from here."""

    def __init__(self, ssh_config: Path, machines: Sequence[str], addresses: dict[str, str]) -> None:
        self._said: dict[str, list[str]] = {name: [] for name in machines}
        self._relays: dict[str, subprocess.Popen[bytes]] = {}
        onward: dict[str, Any] | None = None
        # From the last to the first: each must know where the next one listens.
        for name in reversed(machines):
            first = name == machines[0]
            word = secrets.token_hex(16)
            task = {"listen": None if first else addresses[name], "word": word, "next": onward}
            relay = self._start(ssh_config, name, task)
            if not first:
                onward = {"address": addresses[name], "port": self._port(name, relay), "word": word}

    def send(self, pieces: Iterable[bytes]) -> int:
        """Feed the first machine; gives the number of bytes."""
        first = next(reversed(self._relays.values()))
        pipe, sent = cast(IO[bytes], first.stdin), 0
        try:
            for piece in pieces:
                pipe.write(piece)
                sent += len(piece)
            pipe.close()
        except BrokenPipeError:
            pass  # what went wrong is told by the machine itself
        for name, relay in self._relays.items():
            try:
                code = relay.wait(timeout=1800)
            except subprocess.TimeoutExpired:
                raise HvdctlError(f"{name} took no image within half an hour") from None
            if code:
                raise HvdctlError(f"the image did not get to {name}: {self.told(name) or f'exit code {code}'}")
        return sent

    def told(self, name: str | None = None) -> str:
        chosen = [name] if name else list(self._said)
        lines = [f"{one}: {line}" for one in chosen for line in self._said[one]]
        return lines[-1] if lines else ""

    def end(self) -> None:
        for relay in self._relays.values():
            if relay.poll() is None:
                relay.terminate()
                relay.wait()

    def _start(self, ssh_config: Path, name: str, task: dict[str, Any]) -> subprocess.Popen[bytes]:
        far = "sudo -n python3 -c " + shlex.quote(_RELAY.read_text())
        argv = [process.tool("ssh"), "-F", str(ssh_config), "-o", "BatchMode=yes", name, "--", far]
        relay = process.start(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self._relays[name] = relay
        threading.Thread(target=self._listen, args=(name, cast(IO[bytes], relay.stderr)), daemon=True).start()
        pipe = cast(IO[bytes], relay.stdin)
        pipe.write(json.dumps(task).encode() + b"\n")
        pipe.flush()
        return relay

    def _port(self, name: str, relay: subprocess.Popen[bytes]) -> int:
        line = cast(IO[bytes], relay.stdout).readline()
        if not line.strip().isdigit():
            raise HvdctlError(f"{name} can't take an image: {self.told(name) or 'ssh ended'}")
        return int(line)

    def _listen(self, name: str, stream: IO[bytes]) -> None:
        for line in stream:
            if line.strip():
                self._said[name].append(line.decode(errors="replace").strip())


def _held(ssh_config: Path, machines: Sequence[str]) -> dict[str, Held]:
    """What each machine's engine has, asked of all side by side."""
    words = [process.tool("ssh"), "-F", str(ssh_config), "-o", "BatchMode=yes"]
    answers = process.gather(
        [[*words, name, "--", f"sudo -n sh -c {shlex.quote(_LAYERS)}"] for name in machines], timeout=120
    )
    held = {}
    for name, done in zip(machines, answers, strict=True):
        if done.returncode:
            said = done.stderr.strip().splitlines()
            raise HvdctlError(f"{name}: its Docker engine can't be asked: {said[-1] if said else done.returncode}")
        ids: dict[str, list[str]] = {}
        layers: set[tuple[str, ...]] = set()
        for one in json.loads(done.stdout or "[]"):
            ids[one["Id"]] = one.get("RepoTags") or []
            chain = one["RootFS"].get("Layers") or []
            layers |= {tuple(chain[: end + 1]) for end in range(len(chain))}
        held[name] = Held(ids, layers)
    return held


def _light(client: DockerClient, image: str, identity: str, left_out: Sequence[str]) -> Iterable[bytes]:
    """The engine's archive of an image without some of its layers, in pieces.

    Where only the last layers are left, it is kept: the engine writes all of them before it can be told which.
    """
    if not left_out:
        return _archive(client.api.get_image(image), set())
    kept = paths.private(paths.cache() / "push") / f"{digest(image, identity, *left_out)}.tar"
    if not kept.exists():
        for old in kept.parent.iterdir():
            old.unlink(missing_ok=True)
        part = kept.with_suffix(f".{os.getpid()}")
        with part.open("wb") as file:
            file.writelines(_archive(client.api.get_image(image), set(left_out)))
        part.replace(kept)
    return _pieces(kept)


def _pieces(file: Path) -> Iterable[bytes]:
    with file.open("rb") as source:
        while piece := source.read(_PIECE):
            yield piece


def _archive(stream: Iterable[bytes], left_out: set[str]) -> Iterable[bytes]:
    """The archive without some of its layers, as it comes."""
    read, write = os.pipe()
    failed: list[BaseException] = []

    def strip() -> None:
        try:
            with (
                os.fdopen(write, "wb") as out,
                tarfile.open(fileobj=out, mode="w|") as lighter,
                tarfile.open(fileobj=cast(IO[bytes], _Stream(stream)), mode="r|") as source,
            ):
                _copy(source, lighter, left_out)
        except BaseException as error:  # told by the reader
            failed.append(error)

    worker = threading.Thread(target=strip, daemon=True)
    worker.start()
    with os.fdopen(read, "rb") as pieces:
        while piece := pieces.read(_PIECE):
            yield piece
    worker.join()
    if failed:
        raise failed[0]


def _copy(source: tarfile.TarFile, lighter: tarfile.TarFile, left_out: set[str]) -> None:
    """Entries of the archive but the layers to be left out.

    The manifest may be the archive's last entry, so a layer is recognised by the digest of its tar, which is its name
    in the image's configuration.
    """

    for entry in source:
        content = source.extractfile(entry) if entry.isfile() else None
        if content is None or not left_out or not _is_layer(entry.name):
            lighter.addfile(entry, content)
            continue
        with tempfile.TemporaryFile() as kept:
            sum_ = hashlib.sha256()
            while piece := content.read(_PIECE):
                sum_.update(piece)
                kept.write(piece)
            if f"sha256:{sum_.hexdigest()}" in left_out:
                continue
            kept.seek(0)
            lighter.addfile(entry, kept)


def _is_layer(name: str) -> bool:
    return name.endswith("/layer.tar") or name.startswith("blobs/sha256/")


class _Stream:
    """Pieces as a file that can be read."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._rest = b""

    def read(self, size: int) -> bytes:
        while len(self._rest) < size:
            piece = next(self._pieces, b"")
            if not piece:
                break
            self._rest += piece
        found, self._rest = self._rest[:size], self._rest[size:]
        return found


def main(argv: Sequence[str]) -> int:
    """Prints {"pushed": [...], "bytes": ..., "seconds": ...}; what the role `horovod` calls once for all machines."""
    ssh_config, image, *places = argv
    addresses = dict(place.split("=", 1) for place in places)
    try:
        done = push(Path(ssh_config), image, list(addresses), addresses)
    except HvdctlError as error:
        print(error.message, file=sys.stderr)  # noqa: T201 - a program of its own
        return 1
    print(json.dumps({"pushed": done.machines, "bytes": done.bytes, "seconds": round(done.seconds, 2)}))  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
