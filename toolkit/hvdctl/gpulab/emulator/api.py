"""GPULab's calls over HTTP, version 4.0."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from aiohttp import web

from hvdctl.gpulab.emulator import clusters, pki, states, submission
from hvdctl.gpulab.emulator.faults import Fault, Faults, bent
from hvdctl.gpulab.emulator.jobs import Address, Job, User, told
from hvdctl.gpulab.emulator.lab import Lab, Refused
from hvdctl.gpulab.emulator.ranges import part
from hvdctl.gpulab.emulator.sshd import HOST

if TYPE_CHECKING:
    from aiohttp.typedefs import Handler

BASE = "/api/gpulab/v4.0/"
# The newest client that was tried; a newer number would make it advise an upgrade.
_CLIENT = "3.11.12"
_PAGE = 10
# Other names may lead here too, if whoever serves them says so: without certificates nothing else tells.
_NAMES = {HOST, "localhost"}
# An empty log makes the client ask again at once: don't let it spin.
_EMPTY_LOG_WAIT = 0.3


class Api:
    """The handlers of one lab. `default_user` is whoever comes without a certificate, where that is allowed."""

    def __init__(self, lab: Lab, ssh: Address, faults: Faults, default_user: User | None = None) -> None:
        self.lab = lab
        self.ssh = ssh
        self.faults = faults
        self.default_user = default_user
        # The public keys of all certificates that a user came with.
        self.keys: dict[str, set[str]] = {}

    def app(self) -> web.Application:
        made = web.Application(middlewares=[self._local, self._faulty, self._plain], client_max_size=4 * 1024**2)
        made.add_routes(
            [
                web.get(BASE + "version", self._version),
                web.get(BASE + "clusters", self._clusters),
                web.get(BASE + "slaves", self._slaves),
                web.post(BASE + "jobs", self._submit),
                web.get(BASE + "jobs", self._list),
                web.get(BASE + "jobs/{uuid}", self._get),
                web.delete(BASE + "jobs/{uuid}", self._remove),
                web.put(BASE + "jobs/{uuid}/state/status", self._change),
                web.get(BASE + "jobs/{uuid}/log", self._log),
                web.get(BASE + "jobs/{uuid}/debug", self._debug),
            ]
        )
        return made

    @web.middleware
    async def _plain(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refusals as their sentence."""
        try:
            return await handler(request)
        except Refused as error:
            return web.Response(status=error.status, text=error.message)
        except states.NotPossible as error:
            return web.Response(status=409, text=str(error))
        except submission.Unusable as error:
            return web.Response(status=400, text=str(error))

    @web.middleware
    async def _local(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Only programs of this machine: no page in a browser, whatever name of this machine it uses.

        Browsers name the page's origin in each request that changes something, and send JSON to another site only if
        that one agrees, which this one never does.
        """
        if "Origin" in request.headers or request.headers.get("Sec-Fetch-Site", "none") != "none":
            return web.Response(status=403, text="requests of web pages are not taken")
        if self.default_user and _name(request.headers.get("Host", "")) not in _NAMES:
            return web.Response(status=403, text=f"this is not {request.headers.get('Host', '')!r}: use {HOST}")
        if request.method == "POST" and request.content_type != "application/json":
            return web.Response(status=415, text=f"Content-Type is {request.content_type!r}, not 'application/json'")
        return await handler(request)

    @web.middleware
    async def _faulty(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        fault = self.faults.take(request.method, request.path.removeprefix(BASE))
        if fault is None:
            return await handler(request)
        return await _with(fault, request, handler)

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"latest_client_version": _CLIENT})

    async def _clusters(self, request: web.Request) -> web.Response:
        return web.json_response(clusters.clusters(self.lab.workers, self.lab.jobs.values()))

    async def _slaves(self, request: web.Request) -> web.Response:
        return web.json_response(clusters.slaves(self.lab.workers, self.lab.jobs.values(), self.lab.runner.host))

    async def _submit(self, request: web.Request) -> web.Response:
        user = self._user(request)
        asked = submission.parse(await request.read())
        job = self.lab.submit(asked, user, hold=_flag(request, "hold"))
        return web.Response(text=job.uuid)

    async def _list(self, request: web.Request) -> web.Response:
        user = self._user(request)
        wanted = request.query.get("user_urn", "").lower()
        found = [
            job
            for job in reversed(self.lab.jobs.values())
            if job.status != states.DELETED
            and (
                not wanted
                or job.user.urn.lower() == wanted
                or (_flag(request, "other_user_running") and job.status == states.RUNNING)
            )
        ]
        return web.json_response({"items": [self._told(job, user) for job in found[: _count(request, "page_size")]]})

    async def _get(self, request: web.Request) -> web.Response:
        return web.json_response(self._told(self._job(request), self._user(request)))

    async def _change(self, request: web.Request) -> web.Response:
        job = self._own(request)
        # Whatever it is called: the client sends no Content-Type.
        wanted = states.named((await request.read()).decode(errors="replace"))
        if wanted not in states.ALL:
            raise Refused(400, f"{wanted!r} is not a state; there are: {', '.join(sorted(states.ALL))}")
        self.lab.ask(job, wanted)
        return web.Response(text=job.uuid)

    async def _remove(self, request: web.Request) -> web.Response:
        job = self._own(request)
        force = _flag(request, "force")
        states.removable(job.status, finished=_flag(request, "finished"), force=force)
        await self.lab.remove(job, real=_flag(request, "real"), force=force)
        return web.Response(text=job.uuid)

    async def _log(self, request: web.Request) -> web.Response:
        log = self.lab.log(self._own(request).uuid)
        found = part(request.headers.get("Range"), log.size)
        if found.status == 204:
            return web.Response(status=204)
        if found.start == found.end:
            await asyncio.sleep(_EMPTY_LOG_WAIT)
        headers = {"Content-Range": found.content_range} if found.content_range else {}
        body = await asyncio.to_thread(log.read, found.start, found.end)
        return web.Response(status=found.status, body=body, headers=headers, content_type="text/plain")

    async def _debug(self, request: web.Request) -> web.Response:
        return web.json_response(self._own(request).events)

    def _user(self, request: web.Request) -> User:
        """Who asks: the first URI and the e-mail of the certificate."""
        secure = request.transport.get_extra_info("ssl_object") if request.transport else None
        if secure is None:
            if self.default_user:
                return self.default_user
            raise Refused(401, "no login certificate")
        names = secure.getpeercert().get("subjectAltName", ())
        urn = next((value for kind, value in names if kind == "URI"), None)
        if urn is None:
            raise Refused(401, "the login certificate names no user: it has no URI as subject's alternative name")
        email = next((value for kind, value in names if kind == "email"), None)
        user = User(urn, email or pki.email_of(urn.rsplit("+", 1)[-1]))
        self.keys.setdefault(user.name, set()).add(pki.public_key(secure.getpeercert(binary_form=True)))
        return user

    def _job(self, request: web.Request) -> Job:
        uuid = request.match_info["uuid"]
        job = self.lab.jobs.get(uuid)
        if job is None:
            raise Refused(404, f"there is no job {uuid}")
        return job

    def _own(self, request: web.Request) -> Job:
        job, user = self._job(request), self._user(request)
        if job.user.urn != user.urn:
            raise Refused(403, f"job {job.uuid} is not one of user {user.name}")
        return job

    def _told(self, job: Job, viewer: User) -> dict[str, Any]:
        # Of a project is whoever has submitted to it.
        same = any(other.user.urn == viewer.urn and other.project == job.project for other in self.lab.jobs.values())
        return told(job, self.ssh, owner=job.user.urn == viewer.urn, same_project=same)


async def _with(fault: Fault, request: web.Request, handler: Handler) -> web.StreamResponse:
    """The answer with the fault in it, or no answer at all."""
    if fault.drop == "before":
        return _hang_up(request)
    if fault.status is not None and fault.drop is None:
        await asyncio.sleep(fault.delay)
        return web.Response(status=fault.status, text=fault.body)
    answer = await handler(request)
    await asyncio.sleep(fault.delay)
    if fault.drop == "after":
        return _hang_up(request)
    if isinstance(answer, web.Response) and answer.content_type == "application/json":
        return web.json_response(bent(json.loads(answer.text or ""), fault), status=answer.status)
    return answer


def _hang_up(request: web.Request) -> web.Response:
    if request.transport:
        request.transport.abort()
    return web.Response(status=500)


def _name(host: str) -> str:
    return host.partition(":")[0].lower()


def _flag(request: web.Request, name: str) -> bool:
    return request.query.get(name, "").lower() in {"true", "1", "yes"}


def _count(request: web.Request, name: str) -> int:
    given = request.query.get(name) or str(_PAGE)
    if not given.isdigit() or not int(given):
        raise Refused(400, f"{name}: {given!r} is not a number of jobs")
    return int(given)
