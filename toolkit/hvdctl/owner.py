"""Whose a thing is: the mark on everything that hvdctl makes.

The owner is a home, the folder that holds the clusters of one user. Its id is made once, before anything else, and
outlives every cluster: so the next `up` knows the data that `down --keep-data` left. A mark together with the name of
the cluster tells whose cluster a thing belongs to.

    $HVDCTL_HOME/.owner/owner.json      id, and the owner in words
    $HVDCTL_HOME/.owner/taken/          one empty file for each cluster whose things have another mark, or none, and
                                        that the user said to be theirs
"""

from __future__ import annotations

import getpass
import json
import os
import re
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hvdctl import paths
from hvdctl.cluster import Cluster, write
from hvdctl.errors import HvdctlError, UsageError

MARK = "hvdctl.owner"
NAME = "hvdctl.owner-name"
LABELS = (MARK, NAME)
_NONE = "none"
_UNSAFE = re.compile(r"[^A-Za-z0-9+=._:/@-]")
_LONGEST = 200
_SHORT = 8  # digits of an id that are enough to know it by


@dataclass(frozen=True)
class Owner:
    id: str
    name: str
    """In words: user@host:home."""

    @property
    def labels(self) -> dict[str, str]:
        return {MARK: self.id, NAME: self.name}


@dataclass(frozen=True)
class Claim:
    """One thing of a site that has a cluster's name, whoever made it."""

    thing: str
    """As in `leftovers`: "kind name"."""
    mark: str
    """The id of its owner; empty for a thing that versions of hvdctl without marks made."""
    owner: str
    """The owner in words, or as far as the site knows."""

    @property
    def is_data(self) -> bool:
        return self.thing.startswith("volume ")


def this() -> Owner:
    """The owner that this home is; made if this is the first time that it is asked for."""
    if found := known():
        return found
    file = _file()
    # Linked, not renamed: if two begin at once, the first one counts.
    beside = file.with_name(f".{secrets.token_hex(8)}")
    write(beside, json.dumps({"id": secrets.token_hex(8), "name": _words(paths.home())}, indent=2) + "\n")
    try:
        os.link(beside, file)
    except FileExistsError:
        pass
    finally:
        beside.unlink()
    made = known()
    assert made is not None  # noqa: S101 - it was just linked
    return made


def known() -> Owner | None:
    """The owner that this home is; None before it has made anything."""
    return _of(paths.home())


def of_home(home: Path) -> Owner:
    """The owner that another home of the same user is; a home of an older version has a name alone."""
    try:
        found = _of(home)
    except HvdctlError:
        found = None
    return found or Owner("", _words(home))


def claim(thing: str, labels: dict[str, str] | None) -> Claim:
    """The claim of a thing with these labels, tags or metadata."""
    # Whoever may use the site may have written them: nothing of it reaches a terminal or a file's name as it is.
    found = {name: _UNSAFE.sub("_", (labels or {}).get(name, ""))[:_LONGEST] for name in LABELS}
    mark = found[MARK]
    return Claim(thing, mark, f"{found[NAME] or 'another owner'} (owner {mark})" if mark else "")


def mine(site: str, cluster: str, mark: str) -> bool:
    """Whether a thing of this cluster on this site, with this mark or with none (""), may be changed and removed."""
    return (bool(mark) and mark == _id()) or taken(site, cluster, mark)


def theirs(site: str, cluster: str, claims: Sequence[Claim]) -> list[Claim]:
    """Those that somebody else made."""
    return [claim for claim in claims if claim.mark and not mine(site, cluster, claim.mark)]


def seen(site: str, cluster: str, mark: str) -> bool:
    """Whether such a thing counts as part of a cluster that is only looked at.

    A thing without a mark does if this home knows the cluster: what older versions made does not appear as lost.
    """
    return mine(site, cluster, mark) or (not mark and Cluster(cluster).exists)


def taken(site: str, cluster: str, mark: str) -> bool:
    """Whether the user said that things of this cluster with this mark are theirs."""
    return _taken(site, cluster, mark).exists()


def take(site: str, cluster: str, mark: str) -> None:
    """Remember that the user said so."""
    write(_taken(site, cluster, mark), "")


def means(given: str, mark: str) -> bool:
    """Whether the id of an owner, as the user gave it, is that of a mark; names of jobs have its first digits only."""
    return given == mark or (len(mark) >= _SHORT and given.startswith(mark))


def forget(site: str, cluster: str) -> None:
    """Nothing of the cluster is left on the site: somebody else may have the name."""
    for file in _file().with_name("taken").glob(f"{site}.{cluster}.*"):
        file.unlink(missing_ok=True)


def _id() -> str:
    found = known()
    return found.id if found else ""


def _file() -> Path:
    # No cluster's name begins with a dot.
    return paths.home() / ".owner" / "owner.json"


def _taken(site: str, cluster: str, mark: str) -> Path:
    return _file().with_name("taken") / f"{site}.{cluster}.{re.sub(r'[^0-9a-f]', '-', mark) or _NONE}"


def _of(home: Path) -> Owner | None:
    file = home / ".owner" / "owner.json"
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
        found = Owner(stored["id"], stored["name"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise _corrupt(file, error) from None
    if not (isinstance(found.id, str) and re.fullmatch("[0-9a-f]{16}", found.id) and isinstance(found.name, str)):
        raise _corrupt(file, f"the id is {found.id!r}")
    return found


def _corrupt(file: Path, why: object) -> UsageError:
    return UsageError(
        f"{file} is not what hvdctl wrote: {why}",
        hint="put the file back; the label hvdctl.owner of anything that you made has the id",
    )


def _words(home: Path) -> str:
    """The owner as a person would name it, in characters that every site takes in a label or tag."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # no account has this number
        user = str(os.getuid())
    return _UNSAFE.sub("_", f"{user}@{socket.gethostname()}:{home}")[:_LONGEST]
