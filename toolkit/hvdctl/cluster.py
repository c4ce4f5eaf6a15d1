"""A cluster's folder: what is known of it between two commands, and who may change it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shlex
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from hvdctl import keys, paths, redact
from hvdctl.errors import LockedError, UsageError
from hvdctl.files import write as write
from hvdctl.spec import Spec, masked, parse


@dataclass(frozen=True)
class Node:
    """One machine or container, as Terraform's contract gives it."""

    id: str
    name: str
    role: str
    kind: str
    address: str
    private_address: str
    ssh_user: str
    ssh_port: int
    ssh_proxy: str | None
    slots: int
    gpus: int
    host_key: str | None = None
    """Public host key of a node that made its own; None where it got the one that this cluster has for it."""
    user_key: str | None = None
    """Public key with which such a node logs in on the others."""

    @property
    def place(self) -> str:
        """Where it is reached, as a person would write it."""
        direct = self.kind == "container" and self.host_key is None
        return self.address if direct else f"{self.ssh_user}@{self.address}:{self.ssh_port}"

    @classmethod
    def read(cls, data: dict[str, Any]) -> Node:
        """From stored data, which may have more keys than this version knows."""
        known: dict[str, Any] = {
            field.name: data[field.name] for field in fields(cls) if field.default is MISSING or field.name in data
        }
        return cls(**known)


class Cluster:
    """The folder of one cluster. Reading never creates it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.folder = paths.home() / name

    # What lies where.

    @property
    def terraform(self) -> Path:
        return self.folder / "terraform"

    @property
    def ssh(self) -> Path:
        return self.folder / "ssh"

    @property
    def ssh_config(self) -> Path:
        return self.ssh / "config"

    @property
    def known_hosts(self) -> Path:
        return self.ssh / "known_hosts"

    @property
    def inventory(self) -> Path:
        return self.folder / "inventory" / "hosts.yml"

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    def log(self, name: str) -> Path:
        return paths.private(self.folder / "logs") / f"{name}.log"

    # What is known.

    @property
    def exists(self) -> bool:
        """Whether it has a spec, also one that can't be read: reading it says what is wrong."""
        try:
            (self.folder / "spec.json").stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            return error.errno != errno.ENAMETOOLONG
        return True

    @property
    def is_remnant(self) -> bool:
        """Whether an `up` that was killed in its first moment left its folder: nothing was made yet, also no spec."""
        kept = {"runs", "bench"}
        return not self.exists and self.folder.is_dir() and any(one.name not in kept for one in self.folder.iterdir())

    def stored_spec(self) -> dict[str, Any] | None:
        """The keys of the last spec that was asked for; None for a cluster that never was.

        Keys of another version of hvdctl are left out.
        """
        stored = self._read("spec.json")
        if stored is None:
            return None
        if stored.get("name") != self.name:
            raise self._corrupt("spec.json", f"it is of cluster {stored.get('name')!r}")
        return {key: value for key, value in stored.items() if key in Spec.model_fields}

    def spec(self) -> Spec:
        stored = self.stored_spec()
        if stored is None:
            raise UsageError(
                f"there is no cluster {self.name!r}",
                hint=f"`hvdctl up --name {self.name}` makes it; `hvdctl list` shows what there is",
            )
        return parse(stored, source=str(self.folder / "spec.json"))

    def store_spec(self, spec: Spec) -> None:
        self._write("spec.json", spec.stored())

    def nodes(self) -> list[Node]:
        """The nodes as Terraform last gave them, the head first; none before the first `up`."""
        data = self._read("nodes.json") or {}
        try:
            nodes = [Node.read(node) for node in data.get("nodes", [])]
        except (KeyError, TypeError) as error:
            raise self._corrupt("nodes.json", f"missing {error}") from None
        try:
            return TypeAdapter(list[Node]).validate_python([asdict(node) for node in nodes])
        except ValidationError as error:
            (_, *place), told = error.errors()[0]["loc"], error.errors()[0]["msg"]
            raise self._corrupt("nodes.json", f"{place[0]} of a node: {told[:1].lower()}{told[1:]}") from None

    def store_nodes(self, nodes: list[Node]) -> None:
        self._write("nodes.json", {"nodes": [asdict(node) for node in nodes]})

    def record(self, phase: str) -> dict[str, Any]:
        """What a phase wrote down when it was last completed."""
        found = (self._read("phases.json") or {}).get(phase, {})
        if not isinstance(found, dict):
            raise self._corrupt("phases.json", f"{type(found).__name__} in place of an object at {phase!r}")
        return found

    @property
    def has_records(self) -> bool:
        """Whether any phase ever wrote something down."""
        return (self.folder / "phases.json").exists()

    def complete(self, phase: str, seconds: float, **facts: Any) -> None:
        phases = self._read("phases.json") or {}
        phases[phase] = {"ended": time.time(), "seconds": round(seconds, 3), **facts}
        self._write("phases.json", phases)

    def forget(self, phase: str) -> None:
        phases = self._read("phases.json") or {}
        if phases.pop(phase, None) is not None:
            self._write("phases.json", phases)

    # Keys.

    def key(self) -> keys.KeyPair:
        return keys.ensure(self.ssh / "id_ed25519")

    def key_mark(self) -> str:
        """The mark that machines got from earlier versions of hvdctl, before there were owners; empty without a key."""
        file = keys.KeyPair(self.ssh / "id_ed25519").public_file
        return digest(file.read_text().strip()) if file.exists() else ""

    def host_key(self, node: str) -> keys.KeyPair:
        return keys.ensure(self.ssh / "host_keys" / node)

    # Who may change it.

    @contextlib.contextmanager
    def locked(self, command: str) -> Iterator[None]:
        """Hold the cluster; refuse, naming the holder, where another hvdctl has it."""
        file = paths.private(self.folder) / "lock"
        with file.open("a+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise self._held(file) from None
            if not (file.exists() and os.path.samestat(file.stat(), os.fstat(lock.fileno()))):
                raise self._held(file)  # a `down` removed the file between our two steps
            lock.seek(0)
            lock.truncate()
            json.dump({"pid": os.getpid(), "command": command, "since": time.time()}, lock)
            lock.flush()
            yield

    def remove(self) -> None:
        """Forget the cluster; keep what its user measured, the runs and benches."""
        for entry in sorted(self.folder.iterdir() if self.folder.exists() else []):
            if entry.name in {"runs", "bench"} and any(entry.iterdir()):
                continue
            if entry.is_dir():
                shutil.rmtree(entry)
            elif entry.name not in {"spec.json", "lock"}:
                entry.unlink()
        # The spec last: while it is there, the cluster is known and `down` can be repeated. Then the lock: whoever
        # finds it gone makes a cluster of its own here.
        (self.folder / "spec.json").unlink(missing_ok=True)
        (self.folder / "lock").unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.folder.rmdir()

    def _held(self, file: Path) -> LockedError:
        try:
            holder = json.loads(file.read_text())
            since = max(0, time.time() - holder["since"])
            who = f"`hvdctl {holder['command']}` (process {holder['pid']}, for {since:.0f} s)"
        except (OSError, ValueError, KeyError, TypeError):
            who = "another hvdctl"
        return LockedError(f"cluster {self.name!r} is held by {who}", hint="wait for it to end")

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            data = json.loads((self.folder / name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except NotADirectoryError:
            raise  # the home is no folder
        except OSError as error:
            yours = "it needs to be a file of yours; what `sudo hvdctl` made belongs to root"
            raise UsageError(
                f"{self.folder / name} can't be read: {error.strerror}",
                hint=yours if isinstance(error, PermissionError) else "",
            ) from None
        except ValueError as error:
            raise self._corrupt(name, str(error)) from None
        if not isinstance(data, dict):
            raise self._corrupt(name, f"{type(data).__name__} in place of an object")
        return data

    def _write(self, name: str, data: dict[str, Any]) -> None:
        write(self.folder / name, json.dumps(data, indent=2) + "\n")

    def _corrupt(self, name: str, why: str) -> UsageError:
        return UsageError(
            f"{self.folder / name} is not what hvdctl wrote: {why}",
            hint=f"put the file back, or `hvdctl down --name {self.name} --force` removes the cluster by its label",
        )


def known() -> list[Cluster]:
    """Every cluster that has a folder with a spec."""
    home = paths.home()
    folders = sorted(home.iterdir()) if home.is_dir() else []
    # A name that begins with a dot is no cluster's.
    named = (Cluster(folder.name) for folder in folders if not folder.name.startswith("."))
    return [cluster for cluster in named if cluster.exists]


def digest(*parts: object) -> str:
    """A short fingerprint of texts, bytes, files and folders."""
    sum_ = hashlib.sha256()
    for part in parts:
        if isinstance(part, Path):
            files = [part] if part.is_file() else sorted(p for p in part.rglob("*") if p.is_file())
            for file in (f for f in files if "__pycache__" not in f.parts):
                sum_.update(str(file.relative_to(part)).encode() + b"\0" + file.read_bytes() + b"\0")
        else:
            sum_.update((part if isinstance(part, bytes) else str(part).encode()) + b"\0")
    return sum_.hexdigest()[:16]


def command_line() -> str:
    """How this hvdctl was called, for the holder of a lock, without what may be secret."""
    return masked(shlex.join(redact.hvdctl(sys.argv[1:])))
