"""GPULab's API: every call, tried again where that can do no harm, and what is wrong in plain words."""

from __future__ import annotations

import random
import socket
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from hvdctl.errors import HvdctlError, UsageError
from hvdctl.gpulab import login as logins
from hvdctl.gpulab.job import Job, Named, request
from hvdctl.gpulab.login import Login

if TYPE_CHECKING:
    import httpx

    from hvdctl.gpulab.job import Wanted

SERVER = "https://gpulab.ilabt.imec.be/api/"
_API = "gpulab/v4.0/"
_TIMEOUT = 30.0
_PAGE = 500
_TRY_AGAIN = frozenset({429, 500, 502, 503, 504})
_PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0, 8.0)
_QUICK_TIMEOUT, _QUICK_PAUSES = 10.0, (0.5, 1.0)
_LONGEST = 30.0
"""Seconds that a server may ask us to wait; one that asks for more is busy for good."""
_END_PATIENCE = 60.0
_END_EVERY = 0.5
_EMULATE = "`hvdctl gpulab emulate` starts one; where it has another port now: `hvdctl up --file FOLDER/hvdctl.yml`"


@dataclass(frozen=True)
class Account:
    """Where the service is and who asks it."""

    server: str
    certificate: Path
    server_certificate: Path | None = None
    passphrase_file: Path | None = None


class Silent(HvdctlError):
    """No answer, or one that says to come again: what was asked for may have been done all the same."""

    pause: float | None = None
    """Seconds that the service asks to be left alone for."""


class Service:
    """The API on behalf of one user. Safe to use from many threads."""

    def __init__(self, account: Account, pauses: Sequence[float] = _PAUSES, timeout: float = _TIMEOUT) -> None:
        self.account = account
        self.login: Login = logins.read(account.certificate)
        self.server = address(account.server)
        self._pauses = pauses
        self._client = _client(self.login, account, self.server, timeout)

    @classmethod
    def quick(cls, account: Account) -> Service:
        """For a look that is not worth a long wait."""
        return cls(account, _QUICK_PAUSES, _QUICK_TIMEOUT)

    def workers(self) -> list[dict[str, Any]]:
        found = self._json("GET", "slaves")
        return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []

    def job(self, uuid: str) -> Job | None:
        """None where the service knows of no such job."""
        answer = self._ask("GET", f"jobs/{uuid}", fine=(HTTPStatus.NOT_FOUND,))
        return None if answer.status_code == HTTPStatus.NOT_FOUND else _read(_decoded(answer))

    def jobs(self) -> list[Job]:
        """The user's own that hvdctl submitted, whatever their state; one that can't be read is left out."""
        found = self._json("GET", "jobs", params={"user_urn": self.login.urn, "page_size": _PAGE})
        items = found.get("items") if isinstance(found, dict) else None
        if not isinstance(items, list):
            raise HvdctlError(f"{self.server} answers with something else than a list of jobs: {str(found)[:200]}")
        if len(items) >= _PAGE:
            raise HvdctlError(
                f"GPULab lists {len(items)} jobs of yours, and there may be more than hvdctl sees",
                hint="remove old ones: `gpulab-cli rm --finished ID`",
            )
        jobs = []
        for item in items:
            try:
                job = Job.read(item)
            except ValueError:
                continue
            if Named.of(job.name):
                jobs.append(job)
        return jobs

    def log(self, uuid: str) -> str:
        answer = self._ask("GET", f"jobs/{uuid}/log", fine=(HTTPStatus.NOT_FOUND,))
        return "" if answer.status_code == HTTPStatus.NOT_FOUND else answer.text

    def events(self, uuid: str) -> list[str]:
        """What the service wrote down of a job beside its states."""
        found = _decoded(self._ask("GET", f"jobs/{uuid}/debug"))
        return [str(one["msg"]) for one in found if isinstance(one, dict) and one.get("msg")]

    def submit(self, wanted: Wanted) -> Job:
        """One job for what is wanted, however often this is called and whatever becomes of the connection.

        A submission can't be repeated blindly. So the job is looked for by its name, which is of this node alone,
        before every attempt, and what turns out to be there twice is cancelled but for the oldest.
        """
        body = request(wanted)
        for pause in self._pauses:
            if found := self._standing(body):
                return found
            try:
                return self._posted(body)
            except Silent as error:
                # What was not answered may still be on its way into the service's books.
                self._rest(pause, error)
        return self._standing(body) or self._posted(body)

    def cancel(self, jobs: Sequence[Job]) -> None:
        """End jobs, and return when all have ended; one that can't be told to end does not keep the others."""
        failed: list[HvdctlError] = []
        for job in (job for job in jobs if not job.ended):
            try:
                self._end(job.uuid)
            except HvdctlError as error:
                failed.append(error)
        if failed:
            raise failed[0]
        deadline = time.monotonic() + _END_PATIENCE
        waiting = {job.uuid: job for job in jobs if not job.ended}
        while waiting:
            for uuid in list(waiting):
                now = self.job(uuid)
                if now is None or now.ended:
                    del waiting[uuid]
            if waiting and time.monotonic() > deadline:
                names = ", ".join(job.name for job in waiting.values())
                raise HvdctlError(f"cancelled, and not ended within {_END_PATIENCE:.0f} s: {names}")
            if waiting:
                time.sleep(_END_EVERY)

    def remove(self, jobs: Sequence[Job]) -> None:
        """End jobs and take them off the list of jobs."""
        self.cancel(jobs)
        refused = (HTTPStatus.NOT_FOUND, HTTPStatus.FORBIDDEN, HTTPStatus.CONFLICT)
        for job in jobs:
            self._ask("DELETE", f"jobs/{job.uuid}", params={"finished": "true"}, fine=refused)

    def _end(self, uuid: str) -> None:
        # One that has ended meanwhile is as well.
        over = (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT, HTTPStatus.BAD_REQUEST)
        answer = self._ask("PUT", f"jobs/{uuid}/state/status", content="CANCELLED", fine=over)
        if answer.status_code in over:
            now = self.job(uuid)
            if now is not None and not now.gone:
                raise HvdctlError(f"job {uuid} can't be cancelled: {_said(answer)}")

    def _standing(self, body: dict[str, Any]) -> Job | None:
        """The job of this name that waits or runs; those that were asked for in another way are ended."""
        same = [job for job in self.jobs() if job.name == body["name"] and not job.gone]
        ours = sorted((job for job in same if job.description == body["description"]), key=lambda job: job.created)
        self.cancel([job for job in same if job not in ours[:1]])
        return ours[0] if ours else None

    def _posted(self, body: dict[str, Any]) -> Job:
        """The job that stays: an earlier attempt, or an hvdctl that was killed, may have made one too."""
        uuid = self._once("POST", "jobs", json=body).text.strip().strip('"')
        job = self._standing(body) or self.job(uuid)
        if job is None:
            raise HvdctlError(f"{self.server} took a job as {uuid!r} and does not know it")
        return job

    def _json(self, method: str, path: str, **options: Any) -> Any:
        return _decoded(self._ask(method, path, **options))

    def _ask(self, method: str, path: str, *, fine: Sequence[int] = (), **options: Any) -> httpx.Response:
        """The answer to a call that may be repeated."""
        for pause in self._pauses:
            try:
                return self._once(method, path, fine=fine, **options)
            except Silent as error:
                self._rest(pause, error)
        return self._once(method, path, fine=fine, **options)

    def _once(self, method: str, path: str, *, fine: Sequence[int] = (), **options: Any) -> httpx.Response:
        import httpx

        try:
            answer = self._client.request(method, f"{self.server}{_API}{path}", **options)
        except httpx.TransportError as error:
            raise self._unreached(error) from None
        if answer.is_success or answer.status_code in fine:
            return answer
        if answer.status_code in _TRY_AGAIN:
            raise _busy(answer, f"{self.server} answers {answer.status_code} to {method} {path}")
        raise _refused(answer, f"{method} {path}", self.login)

    def _rest(self, pause: float, error: Silent) -> None:
        asked = error.pause or 0.0
        if asked > _LONGEST:
            raise error
        time.sleep(max(asked, random.uniform(pause / 2, pause)))  # noqa: S311 - only to come apart

    def _unreached(self, error: httpx.TransportError) -> HvdctlError:
        import httpx

        if isinstance(error.__context__, ssl.SSLError) or "CERTIFICATE" in str(error).upper() or "SSL" in str(error):
            if local(self.server):
                return UsageError(
                    f"another emulator answers at {self.server}, or none that knows this login: {error}",
                    hint="`hvdctl up --file FOLDER/hvdctl.yml` moves a cluster to it, `down --force` gives it up",
                )
            return UsageError(
                f"no trusted connection to {self.server}: {error}",
                hint="is it the right server? --option server_certificate=FILE names the authority of its certificate",
            )
        if isinstance(error, httpx.ConnectError) and local(self.server):
            return HvdctlError(f"no emulator answers at {self.server}", hint=_EMULATE)
        told = str(error) or type(error).__name__
        hint = "check the network and --option server=URL; a server that does not know your certificate may hang up too"
        return Silent(f"{self.server} can't be reached: {told}", hint=hint)


def address(server: str) -> str:
    """The base address in its one form; plain HTTP only on this machine, as the login would be open to all."""
    parts = urlsplit(server)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise UsageError(f"options.server: {server!r} is not an address such as {SERVER}")
    if parts.scheme == "http" and not local(server):
        raise UsageError(
            f"options.server: {server} is plain HTTP beyond this machine, which can't know who asks",
            hint="write https://...",
        )
    return server.rstrip("/") + "/"


def local(server: str) -> bool:
    """Whether it is on this machine: an emulator."""
    return urlsplit(server).hostname in {"127.0.0.1", "localhost", "::1"}


def ended(server: str) -> bool:
    """Whether it is an emulator that runs no more, and whose jobs have ended with it."""
    parts = urlsplit(server)
    if not local(server):
        return False
    try:
        socket.create_connection((parts.hostname or "", parts.port or 443), timeout=2).close()
    except OSError:
        return True
    return False


def _client(login: Login, account: Account, server: str, timeout: float) -> httpx.Client:
    import httpx

    verify: ssl.SSLContext | bool = False
    if server.startswith("https:"):
        verify = logins.context(login, account.server_certificate, account.passphrase_file)
    # Proxies would take the place of the user's certificate.
    return httpx.Client(verify=verify, timeout=timeout, trust_env=False, headers={"User-Agent": "hvdctl"})


def _refused(answer: httpx.Response, what: str, login: Login) -> HvdctlError:
    told = f"GPULab refuses {what} ({answer.status_code}): {_said(answer)}"
    hints = {
        401: f"it does not know {login.urn}: is the certificate of the right portal?",
        403: f"{login.urn} may not do that: is --option project=NAME one of your projects?",
    }
    return HvdctlError(told, hint=hints.get(answer.status_code, ""))


def _busy(answer: httpx.Response, told: str) -> Silent:
    asked = answer.headers.get("Retry-After", "")
    busy = Silent(f"{told}: {_said(answer)}", hint="GPULab has a fault or is busy: try again later")
    busy.pause = float(asked) if asked.isdigit() else None
    return busy


def _said(answer: httpx.Response) -> str:
    return " ".join(answer.text.split())[:400] or answer.reason_phrase


def _decoded(answer: httpx.Response) -> Any:
    try:
        return answer.json()
    except ValueError:
        raise HvdctlError(f"{answer.url} answers with something else than JSON: {_said(answer)}") from None


def _read(data: Any) -> Job:
    try:
        return Job.read(data)
    except ValueError as error:
        raise HvdctlError(f"GPULab's answer is {error}") from None
