"""The folder of an emulator: certificates and keys that stay, and files that say how to reach the one that runs."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import yaml

from hvdctl import keys, owner, paths
from hvdctl.cluster import digest
from hvdctl.errors import LockedError
from hvdctl.gpulab.emulator import pki

PROJECT = "demo"


@dataclass(frozen=True)
class Home:
    folder: Path

    @property
    def id(self) -> str:
        """What the engine's things of this folder are labelled with.

        The path is no part of it: folders of the same path may share an engine, as in two containers.
        """
        return digest(self.host_key.public, owner.this().id)[:8]

    @property
    def login(self) -> Path:
        return self.folder / "login.pem"

    @property
    def ca(self) -> Path:
        return self.folder / "ca.pem"

    @property
    def server(self) -> Path:
        return self.folder / "server.pem"

    @property
    def spec(self) -> Path:
        return self.folder / "hvdctl.yml"

    @property
    def jobs(self) -> Path:
        return paths.private(self.folder / "jobs")

    @property
    def host_key(self) -> keys.KeyPair:
        return keys.ensure(self.folder / "ssh_host_key")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Only one emulator at a time; raises with the process of the other."""
        paths.private(self.folder)
        with (self.folder / "lock").open("a+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                lock.seek(0)
                raise LockedError(
                    f"an emulator works on {self.folder} already: process {lock.read().strip() or 'unknown'}",
                    hint="end it, or give this one a folder of its own with --folder",
                ) from None
            lock.truncate(0)
            lock.write(f"{os.getpid()}\n")
            lock.flush()
            yield

    @property
    def last_ports(self) -> tuple[int, int]:
        """Those of the API and of SSH when an emulator last ran here; 0 where none did."""
        try:
            about = json.loads(self._about.read_text())
            return urlsplit(about["url"]).port or 0, int(about["ssh_port"])
        except (OSError, ValueError, KeyError, TypeError):
            return 0, 0

    @property
    def last_id(self) -> str:
        """The label of the emulator that last ran here, perhaps started with another HVDCTL_HOME; empty if unknown."""
        try:
            return str(json.loads(self._about.read_text())["label"])
        except (OSError, ValueError, KeyError, TypeError):
            return ""

    @property
    def _about(self) -> Path:
        return self.folder / "emulator.json"

    def prepare(self) -> None:
        """All that stays from one start to the next is there."""
        pki.ensure(self.folder)
        keys.ensure(self.folder / "ssh_host_key")

    def describe(self, url: str, ssh_port: int, *, secure: bool) -> None:
        """Write how the emulator that runs is reached."""
        known_hosts = self.folder / "known_hosts"
        known_hosts.write_text(f"[127.0.0.1]:{ssh_port} {self.host_key.public}\n")
        options = {
            "server": url,
            "certificate": str(self.login),
            **({"server_certificate": str(self.ca)} if secure else {}),
            "project": PROJECT,
            "known_hosts": str(known_hosts),
        }
        self.spec.write_text(yaml.safe_dump({"provider": "gpulab", "options": options}, sort_keys=False))
        about = {"pid": os.getpid(), "url": url, "ssh_port": ssh_port, "project": PROJECT, "label": self.id}
        self._about.write_text(json.dumps(about, indent=2) + "\n")
