"""Hosts that are reached by SSH: how they are written, and what this machine knows of them without asking them."""

from __future__ import annotations

import base64
import binascii
import getpass
import ipaddress
import re
import socket
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from hvdctl import process
from hvdctl.errors import UsageError

OPENSSH = "install it: apt-get install openssh-client"

_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_USER = r"[A-Za-z_][A-Za-z0-9_.@-]*"
_HOP = rf"(?:{_USER}@)?(?:{_NAME}|\[[0-9A-Fa-f:.]+\])(?::\d{{1,5}})?"


class Host(BaseModel):
    """A machine."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    address: str = Field(description="Name or address at which its SSH server is reached.")
    user: str = Field(default_factory=getpass.getuser, description="Login with sudo; default: your own login name.")
    port: int = Field(22, ge=1, le=65535, description="Port of its SSH server.")
    private_address: str | None = Field(
        None, description="IPv4 address at which the other nodes reach it; null: that of `address`."
    )
    mac: str | None = Field(None, description="MAC address of the interface that has private_address; null: any.")
    proxy: str | None = Field(
        None, description="Jump hosts such as me@bastion:2222, in order, commas between them; null: none."
    )
    host_key: list[str] = Field(
        default_factory=list, description="Its host key as `type base64`, or several; empty: those in your known_hosts."
    )

    @model_validator(mode="before")
    @classmethod
    def _keys_and_values(cls, value: object) -> object:
        if isinstance(value, str):
            raise ValueError(f"{value!r} is not a host with keys and values; write {{address: {value}}}")
        return value

    @field_validator("address")
    @classmethod
    def _address(cls, value: str) -> str:
        # Digits and dots alone are an address, or a mistake in one.
        name = re.fullmatch(_NAME, value) and not re.fullmatch(r"[\d.]+", value)
        if not name and not _is_address(value, (4, 6)):
            raise ValueError(f"{value!r} is not the name or address of a host")
        return value

    @field_validator("user")
    @classmethod
    def _user(cls, value: str) -> str:
        if not re.fullmatch(_USER, value):
            raise ValueError(f"{value!r} is not a login name")
        return value

    @field_validator("private_address")
    @classmethod
    def _private_address(cls, value: str | None) -> str | None:
        if value is not None and not _is_address(value, (4,)):
            raise ValueError(f"{value!r} is not an IPv4 address such as 192.168.0.1")
        return value

    @field_validator("mac")
    @classmethod
    def _mac(cls, value: str | None) -> str | None:
        if value is None:
            return None
        digits = re.sub(r"[:-]", "", value).lower()
        if not re.fullmatch(r"[0-9a-f]{12}", digits):
            raise ValueError(f"{value!r} is not a MAC address such as 02:ed:05:24:51:de")
        return ":".join(re.findall("..", digits))

    @field_validator("proxy")
    @classmethod
    def _proxy(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(rf"{_HOP}(?:,{_HOP})*", value):
            raise ValueError(f"{value!r} is not a jump host; write user@host:port, several with commas between them")
        return value

    @field_validator("host_key", mode="before", json_schema_input_type=str | list[str])
    @classmethod
    def _host_keys(cls, value: object) -> object:
        return [value] if isinstance(value, str) else value

    @field_validator("host_key")
    @classmethod
    def _host_key(cls, value: list[str]) -> list[str]:
        for key in value:
            kind, _, data = key.partition(" ")
            try:
                inner = base64.b64decode(data, validate=True)
            except (binascii.Error, ValueError):
                inner = b""
            if not kind or not inner.startswith(len(kind).to_bytes(4, "big") + kind.encode()):
                raise ValueError(f"{key[:60]!r} is not a host key; write `type base64`, as in known_hosts")
        return value

    @property
    def known_as(self) -> str:
        """Its name in known_hosts."""
        return self.address if self.port == 22 else f"[{self.address}]:{self.port}"

    def __str__(self) -> str:
        at = f"{self.user}@{self.known_as}"
        return f"{at} via {self.proxy}" if self.proxy else at


def private_address(host: Host) -> str:
    """The address on the cluster's own network: the one that was given, else the IPv4 address of the host's name."""
    if host.private_address:
        return host.private_address
    hint = "write the address at which the other nodes reach it as `private_address` of the host"
    try:
        found = str(socket.getaddrinfo(host.address, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0])
    except (OSError, UnicodeError):
        raise UsageError(f"no IPv4 address is known for {host.address!r}", hint=hint) from None
    if ipaddress.ip_address(found).is_loopback:
        raise UsageError(f"{host.address!r} is {found} here, where no other node reaches it", hint=hint)
    return found


def known_hosts() -> tuple[Path, ...]:
    """The files in which the user, or this machine's administrator, keeps host keys."""
    own, common = Path.home() / ".ssh", Path("/etc/ssh")
    files = (own / "known_hosts", own / "known_hosts2", common / "ssh_known_hosts", common / "ssh_known_hosts2")
    return tuple(file for file in files if file.is_file())


def host_keys(hosts: Sequence[Host]) -> list[tuple[str, ...]]:
    """The host keys of each: those that were given, else those in known_hosts, Ed25519 first."""
    known = in_known_hosts([host for host in hosts if not host.host_key])
    return [tuple(host.host_key) or known[host.known_as] for host in hosts]


def in_known_hosts(hosts: Sequence[Host]) -> dict[str, tuple[str, ...]]:
    """The host keys in known_hosts by name; ssh-keygen knows hashed names and patterns."""
    asked = [(host.known_as, file) for host in hosts for file in known_hosts()]
    keygen = process.tool("ssh-keygen", OPENSSH) if asked else ""
    answers = process.gather(([keygen, "-F", name, "-f", file] for name, file in asked), timeout=30)
    found: dict[str, set[str]] = {host.known_as: set() for host in hosts}
    revoked: set[str] = set()
    for (name, _), answer in zip(asked, answers, strict=True):
        for words in map(str.split, answer.stdout.splitlines()):
            if words[:1] == ["@revoked"]:
                revoked.add(" ".join(words[2:4]))
            elif len(words) >= 3 and not words[0].startswith(("#", "@")):
                found[name].add(" ".join(words[1:3]))
    return {name: tuple(sorted(keys - revoked, key=preference)) for name, keys in found.items()}


def preference(key: str) -> tuple[bool, str]:
    return not key.startswith("ssh-ed25519 "), key


def _is_address(value: str, versions: tuple[int, ...]) -> bool:
    try:
        return ipaddress.ip_address(value).version in versions
    except ValueError:
        return False
