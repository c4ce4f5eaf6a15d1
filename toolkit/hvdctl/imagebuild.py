"""One build by the Docker engine: context sent, progress told, log kept, a failure put into words."""

from __future__ import annotations

import re
import tarfile
import tempfile
from collections import deque
from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from hvdctl import engine, paths
from hvdctl.errors import HvdctlError, PhaseError
from hvdctl.progress import Step

if TYPE_CHECKING:
    from docker import DockerClient

Content = bytes | Path

_PERCENT = re.compile(r"^\s*\[\s*(\d+)%\]")
_TROUBLE = re.compile(r"\b(error|fatal|failed|cannot|can't|unable|no such|not found)\b", re.IGNORECASE)
_FULL = "no space left on device"
# Some instructions of a Dockerfile have many lines; the log has all of them.
_LONG_COMMAND = re.compile(r"(The command '.{60}).*(?=' returned)", re.DOTALL)


class Builder:
    """Builds the images of one chain and writes all that the engine says into one log."""

    def __init__(self, client: DockerClient, log: Path, labels: Mapping[str, str], *, fresh: bool) -> None:
        self._client = client
        self._labels = dict(labels)
        self._fresh = fresh
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("")

    def build(
        self,
        names: Mapping[str, str],
        kind: str,
        context: Mapping[str, Content],
        arguments: Mapping[str, str],
        step: Step,
        dockerfile: str = "Dockerfile",
    ) -> None:
        """Build names[kind] from the context, which maps file names to bytes or to files on disk."""
        name = names[kind]
        labels = {
            **self._labels,
            "hvdctl.image": kind,
            "hvdctl.digest": name.rsplit("-", 1)[-1].rsplit(":", 1)[-1],
        }
        if kind in ("debian", "base", "toolchain", "labfiles", "vm"):
            labels["hvdctl.framework"] = ""
        heard = Lines(self.log, step)
        with packed(context) as archive:
            step.update("sending files")
            events = self._client.api.build(
                fileobj=archive,
                custom_context=True,
                dockerfile=dockerfile,
                tag=name,
                buildargs=dict(arguments),
                labels=labels,
                nocache=self._fresh,
                rm=True,
                forcerm=True,
                decode=True,
            )
            for event in events:
                heard.event(event)
        if heard.error or not heard.finished:
            raise heard.failure(name)

    def teller(self, step: Step) -> Callable[[str], None]:
        """Shows a line beside the phase and keeps it in the log, for steps that the engine has no part in."""
        return Lines(self.log, step).line


class Lines:
    """What a build says, line by line: to the log in full, to the phase in short, the end kept for errors."""

    def __init__(self, log: Path, step: Step) -> None:
        self.log = log
        self._step = step
        self._last: deque[str] = deque(maxlen=60)
        self._rest = ""
        self._compiling = False
        self.error = ""
        self.finished = False

    def event(self, event: Mapping[str, Any]) -> None:
        """Take in one message of the engine; the last one of a good build names the image."""
        if "error" in event:
            self.error = str(event["error"]).strip()
            self.line(self.error)
        *whole, self._rest = (self._rest + event.get("stream", "")).split("\n")
        for line in whole:
            self.line(line)
        self.finished = self.finished or "ID" in (event.get("aux") or {})

    def line(self, line: str) -> None:
        # A progress bar rewrites its line: only the last state counts.
        text = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", line.rstrip("\r\n").rsplit("\r", 1)[-1])
        if not text.strip():
            return
        with self.log.open("a") as log:
            log.write(text + "\n")
        self._last.append(text.strip())
        percent = _PERCENT.match(text)
        if percent:
            self._step.update(f"compiling, {percent[1]} %")
        # Between two percentages a compiler only says its own command lines.
        self._compiling = bool(percent) or (self._compiling and not text.startswith("Step "))
        if not self._compiling:
            self._step.update(text.strip()[:100])

    def failure(self, name: str) -> HvdctlError:
        """Why the image was not built, in the few lines that tell it."""
        if any(_FULL in line.lower() for line in [*self._last, self.error]):
            return PhaseError(
                f"{name} was not built: the disk is full",
                hint="docker system df shows what the engine holds, docker image prune frees space",
                log=self.log,
            )
        if not self.error:
            return PhaseError(
                f"{name} was not built: the Docker engine went away in the middle",
                hint=f"{engine.START}, then run this again: finished steps are kept",
                log=self.log,
            )
        telling = [line for line in self._last if _TROUBLE.search(line) and line != self.error]
        error = _LONG_COMMAND.sub(r"\1 ...", self.error)
        shown = telling[-3:] or [line for line in self._last if line != self.error][-3:]
        return PhaseError(
            "\n  ".join([f"{name} was not built: {error}", *(line[:200] for line in shown)]),
            hint="run it again after a fix: finished steps are kept",
            log=self.log,
        )


def packed(context: Mapping[str, Content]) -> IO[bytes]:
    """The context as an open tar file: the same bytes for the same contents, scripts executable."""
    room = paths.cache()
    room.mkdir(parents=True, exist_ok=True)
    archive = tempfile.TemporaryFile(dir=room)  # noqa: SIM115 - the caller closes it
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, content in context.items():
            entry = tarfile.TarInfo(name)
            if isinstance(content, Path):
                entry.size = content.stat().st_size
                with content.open("rb") as source:
                    tar.addfile(entry, source)
            else:
                entry.size = len(content)
                entry.mode = 0o755 if content.startswith(b"#!") else 0o644
                tar.addfile(entry, BytesIO(content))
    archive.seek(0)
    return archive
