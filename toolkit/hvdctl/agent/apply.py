"""`apply`: configuration files and links, written if they differ."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import Any

from . import store
from .store import AgentError

_HOSTS = Path("/etc/hosts")
_BEGIN, _END = "# hvdctl: the nodes of this cluster", "# hvdctl: end"


def main(argv: list[str]) -> int:
    """Takes {"files": [{"path", "content", "mode"}], "links": [{"path", "folder"}], "hosts": [[address, name], ...]},
    packed as one word or as JSON on stdin. A link leads to a folder, which is created if it is missing. `hosts` are
    names for /etc/hosts, where nothing else resolves them.

    Prints {"changed": bool, "paths": [...]}.
    """
    if len(argv) > 1:
        raise AgentError("usage: apply PACKED, or apply < bundle.json")
    bundle = unpacked(argv[0]) if argv else store.request()
    # All are checked before the first is written.
    files = [_checked(entry) for entry in bundle.get("files", [])]
    links = [_checked_link(entry) for entry in bundle.get("links", [])]
    changed = [str(path) for path, content, mode in files if write(path, content, mode)]
    changed += [str(path) for path, folder in links if link(path, folder)]
    if bundle.get("hosts") and name_hosts(_hosts_file(), bundle["hosts"]):
        changed.append(str(_hosts_file()))
    store.answer({"changed": bool(changed), "paths": changed})
    return 0


def write(path: Path, content: bytes, mode: int) -> bool:
    """Make the file so, and say whether it was different."""
    try:
        if path.read_bytes() == content and stat.S_IMODE(path.stat().st_mode) == mode:
            return False
    except OSError:
        _folders(path.parent)
    try:
        store.write_bytes(path, content, mode)
    except OSError as error:
        raise AgentError(f"can't write {path}: {error.strerror}") from None
    return True


def link(path: Path, folder: Path) -> bool:
    """Make the path a link to the folder, and return whether it was something else. What the user has there stays."""
    # A share that is full, or can't be written to, is no reason not to configure a node.
    with contextlib.suppress(AgentError):
        _folders(folder)
    try:
        if path.is_symlink():
            if path.readlink() == folder:
                return False
            path.unlink()
        elif path.exists():
            return False
        path.symlink_to(folder)
    except OSError as error:
        raise AgentError(f"can't make {path} a link to {folder}: {error.strerror}") from None
    return True


def name_hosts(file: Path, hosts: list[tuple[str, str]]) -> bool:
    """Name the nodes in a hosts file, beside what stands there, and say whether that was different."""
    try:
        before = file.read_text(encoding="utf-8")
        kept = before.partition(_BEGIN)[0].rstrip("\n") + "\n"
        after = before.partition(_END)[2].lstrip("\n") if _BEGIN in before else ""
        named = "".join(f"{address} {name}\n" for address, name in hosts)
        wanted = f"{kept}{_BEGIN}\n{named}{_END}\n{after}"
        if wanted == before:
            return False
        # In place: the engine has mounted it there, so that no other file can take its name.
        file.write_text(wanted, encoding="utf-8")
    except OSError as error:
        raise AgentError(f"can't name the nodes in {file}: {error.strerror}") from None
    return True


def _hosts_file() -> Path:
    return Path(os.environ.get("HVD_HOSTS") or _HOSTS)


def unpacked(word: str) -> dict[str, Any]:
    import base64
    import json
    import zlib

    try:
        bundle: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(word, validate=True)))
    except (ValueError, zlib.error) as error:
        raise AgentError(f"the packed bundle can't be read: {error}") from None
    return bundle


def _checked(entry: Any) -> tuple[Path, bytes, int]:
    try:
        path = Path(entry["path"]).expanduser()
        content = entry["content"].encode()
        mode = int(entry.get("mode") or "0644", 8)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise AgentError("a file is {path, content, mode} with the mode in octal, such as 0600") from None
    return _allowed(path), content, mode


def _checked_link(entry: Any) -> tuple[Path, Path]:
    try:
        path, folder = Path(entry["path"]).expanduser(), Path(entry["folder"])
    except (KeyError, TypeError, AttributeError):
        raise AgentError("a link is {path, folder}") from None
    if not folder.is_absolute():
        raise AgentError(f"{folder} is not an absolute path")
    return _allowed(path), folder


def _allowed(path: Path) -> Path:
    """The place itself, which is one that the agent may write to."""
    allowed = [Path.home().resolve(), store.config().resolve()]
    target = path.parent.resolve() / path.name
    if not path.is_absolute() or not any(target.is_relative_to(root) for root in allowed):
        raise AgentError(f"{path} is neither below {allowed[0]} nor below {allowed[1]}")
    return target


def _folders(folder: Path) -> None:
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for path in reversed(missing):
        try:
            path.mkdir(mode=0o700 if ".ssh" in path.parts else 0o755, exist_ok=True)
        except OSError as error:
            raise AgentError(f"can't make {path}: {error.strerror}") from None
