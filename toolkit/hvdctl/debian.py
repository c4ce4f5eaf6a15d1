"""Where the Debian under all images comes from: a registry where one answers, else debootstrap here."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvdctl import engine, process, scratch
from hvdctl.errors import PhaseError, ToolMissing

if TYPE_CHECKING:
    from docker import DockerClient

FALLBACK = "http://deb.debian.org/debian"
FALLBACK_SECURITY = "http://deb.debian.org/debian-security"
# A registry that hasn't said anything by then is taken for absent.
REGISTRY_PATIENCE = 12


@dataclass(frozen=True)
class Source:
    """One line of an apt configuration: where, and for which suite."""

    uri: str
    suite: str


@dataclass(frozen=True)
class Mirror:
    """The places that Debian's packages are taken from."""

    main: str
    security: str

    def sources_list(self, suite: str) -> str:
        """/etc/apt/sources.list for an image."""
        return (
            f"deb {self.main} {suite} main\n"
            f"deb {self.main} {suite}-updates main\n"
            f"deb {self.security} {suite}-security main\n"
        )


def parent(client: DockerClient, image: str, suite: str, say: Callable[[str], None]) -> str:
    """The name of an image with plain Debian, pulled or made here; it has no hvdctl in it yet."""
    made = f"hvdctl/debootstrap:{suite}"
    for name in (image, made):
        if client.images.list(name):
            return name
    say(f"asking a registry for {image}")
    if pull(image):
        return image
    say(f"no registry answers: debootstrap of {suite}")
    bootstrap(client, suite, made, say)
    return made


def pull(image: str) -> bool:
    """Whether the image could be pulled; a registry that is silent for some seconds counts as none."""
    repository, tag = image.rsplit(":", 1)
    hasty = engine.client(timeout=REGISTRY_PATIENCE)
    try:
        for event in hasty.api.pull(repository, tag, stream=True, decode=True):
            if "error" in event:
                return False
    except engine.failures():
        return False
    finally:
        hasty.close()
    return True


def bootstrap(client: DockerClient, suite: str, name: str, say: Callable[[str], None]) -> None:
    """Make a minimal Debian with debootstrap and import it under the name."""
    program = process.tool("debootstrap")
    root = _as_root()
    repository, tag = name.rsplit(":", 1)

    def remove(made: Path) -> None:
        process.lines([*root, "rm", "-rf", "--one-file-system", made], lambda line: None, same_terminal=True)

    # Not below the cache: that may be a home on NFS, where root can't make devices or other users' files.
    with scratch.folder(Path("/var/tmp"), "hvdctl-debian-", remove) as work:  # noqa: S108 - a name of its own there
        tree, archive = work / "root", work / "root.tar"
        # Without the option a missing keyring is a warning: whatever the mirror, or the network, sent would be taken.
        words = ["--force-check-gpg", "--variant=minbase", suite, tree, mirror(suite).main]
        _do([*root, program, *words], say, "debootstrap")
        left_out = (
            "./proc/*",
            "./sys/*",
            "./dev/*",
            "./var/lib/apt/lists/*",
            "./var/cache/apt/*",
            "./var/log/*",
            "./usr/share/doc/*",
            "./usr/share/info/*",
            "./usr/share/locale/*",
            "./usr/share/man/*",
        )
        exclude = [f"--exclude={pattern}" for pattern in left_out]
        _do([*root, "tar", "-C", tree, *exclude, "-cf", archive, "."], say, "tar")
        if root:
            _do([*root, "chown", str(os.getuid()), archive], say, "chown")
        say("importing")
        client.api.import_image_from_file(str(archive), repository, tag, changes=['CMD ["bash"]'])


def mirror(suite: str) -> Mirror:
    """The host's own mirror of the suite, else Debian's."""
    known = list(host_sources())
    return Mirror(
        main=_first(known, suite) or FALLBACK,
        security=_first(known, f"{suite}-security") or FALLBACK_SECURITY,
    )


def host_sources(folder: Path = Path("/etc/apt")) -> Iterable[Source]:
    """What the host's apt is configured with; nothing on hosts without apt."""
    files = [folder / "sources.list", *sorted(folder.glob("sources.list.d/*.list"))]
    for path in files:
        yield from parse_list(_read(path))
    for path in sorted(folder.glob("sources.list.d/*.sources")):
        yield from parse_deb822(_read(path))


def parse_list(text: str) -> Iterable[Source]:
    """One-line style: deb [options] uri suite component..."""
    for line in text.splitlines():
        found = re.match(r"\s*deb\s+(?:\[[^\]]*\]\s+)?(\S+)\s+(\S+)", line)
        if found:
            yield Source(found[1].rstrip("/"), found[2])


def parse_deb822(text: str) -> Iterable[Source]:
    """Stanzas of fields, separated by empty lines; comments may stand between them."""
    plain = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    for stanza in re.split(r"\n\s*\n", plain):
        fields: dict[str, str] = {}
        name = ""
        for line in stanza.splitlines():
            if line[:1].isspace():
                fields[name] = f"{fields.get(name, '')} {line.strip()}"
            elif ":" in line:
                name, _, value = line.partition(":")
                name = name.strip().lower()
                fields[name] = value.strip()
        if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes").lower() in (
            "no",
            "false",
        ):
            continue
        for uri in fields.get("uris", "").split():
            for suite in fields.get("suites", "").split():
                yield Source(uri.rstrip("/"), suite)


def proxy() -> dict[str, str]:
    """The host's apt proxy as a build argument, unless it is on the loopback, out of reach for containers."""
    if not shutil.which("apt-config"):
        return {}
    said = process.capture(["apt-config", "dump", "--format", "%v%n", "Acquire::http::Proxy"])
    address = said.stdout.strip()
    if not address.startswith("http") or re.match(r"https?://(localhost|127\.|\[::1\])", address):
        return {}
    return {"http_proxy": address}


def _first(known: list[Source], suite: str) -> str | None:
    """A plain-HTTP source of the suite: a container without certificates can use no other."""
    return next((source.uri for source in known if source.suite == suite and source.uri.startswith("http://")), None)


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _as_root() -> list[str]:
    if os.geteuid() == 0:
        return []
    sudo = shutil.which("sudo")
    if sudo and process.lines([sudo, "-n", "true"], lambda line: None, same_terminal=True) == 0:
        return [sudo, "-n"]
    raise ToolMissing(
        "no registry answers, and debootstrap needs root to make a Debian image here",
        hint="run `sudo -v` first, or start hvdctl as root once: hvdctl image build",
    )


def _do(argv: list[Any], say: Callable[[str], None], what: str) -> None:
    heard: list[str] = []

    def hear(line: str) -> None:
        heard.append(line)
        say(line.removeprefix("I: "))

    env = {**os.environ, **proxy()}
    if process.lines(argv, hear, env=env, same_terminal=True) != 0:
        if any("No space left on device" in line for line in heard):
            raise PhaseError("the disk is full: no room in /var/tmp for a Debian root", hint="free some space")
        errors = [line for line in heard if line.startswith("E:")]
        unchecked = any("keyring" in line.lower() for line in heard)
        raise PhaseError(
            f"{what} failed: " + (errors or heard or ["without a word"])[-1],
            hint="Debian's keys are needed: apt-get install debian-archive-keyring" if unchecked else "",
        )
