"""The site `gpulab`: what of a cluster stands as jobs of GPULab, asked by the names of the jobs.

Who asks is told by the options, else by the variables that imec's own client takes.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, cast

from pydantic import ValidationError

from hvdctl import owner as marks
from hvdctl.errors import HvdctlError, PhaseError, UsageError
from hvdctl.gpulab import account, limits
from hvdctl.gpulab.job import NOT_WAITED, RUNNING, Named, owner
from hvdctl.gpulab.options import Options
from hvdctl.progress import Progress, Step
from hvdctl.providers import Access
from hvdctl.sites import only
from hvdctl.spec import masked

if TYPE_CHECKING:
    from hvdctl.gpulab.job import Job
    from hvdctl.gpulab.service import Account, Service
    from hvdctl.spec import Spec

_IMAGE = re.compile(r"([\w.+-]+:[^@ ]+@)?([\w.-]+(:\d+)?/)?[a-z0-9._-]+(/[a-z0-9._-]+)*(:[\w.-]{1,127})?")
_WATCH_EVERY = 5.0
_WAITS = r"\bis (QUEUED|ASSIGNED|STARTING|ONHOLD)\b"
_WAITED = rf"{_WAITS}.*\(after \d+ s\)"
_MOST_CAUSES = 3
_ENDED = r"\bis (FINISHED|FAILED|CANCELLED|CANCELLING|DELETED|HALTED)\b"
_HINTS = (
    (
        _ENDED,
        "can GPULab pull the image, and is its storage there? `gpulab-cli debug ID` may tell more",
    ),
    (
        _WAITS,
        "jobs that were submitted stay with GPULab: `hvdctl up` goes on waiting, `hvdctl down` cancels all; "
        "--option wait=DURATION waits longer, --option when_short=cancel cancels all by itself",
    ),
)


def preflight(spec: Spec) -> None:
    """Raise where GPULab does not know the caller, or can't give what is asked."""
    from hvdctl.gpulab.service import Service, local

    options = _options(spec)
    if spec.net is not None:
        raise UsageError(
            "net: GPULab's network can't be given a rate", hint="use --net none; `hvdctl check` measures it"
        )
    limits.nodes(spec.nodes, spec.gpus)
    if account.value(options, "project") is None:
        raise UsageError("options.project: GPULab needs a project", hint="--option project=NAME, or GPULAB_PROJECT")
    asking = account.of(options)
    if spec.image == "auto" and not local(asking.server):
        raise UsageError(
            "image: GPULab can't pull an image that is on this machine only",
            hint="push it to a registry that GPULab reaches, then --image REGISTRY/IMAGE:TAG (docs/gpulab.md)",
        )
    if spec.image != "auto" and not _IMAGE.fullmatch(spec.image):
        raise UsageError(
            f"image: GPULab does not take {masked(spec.image)!r}", hint="write REGISTRY/IMAGE:TAG, without a digest"
        )
    if len(PurePosixPath(_storage(spec)).parts) < 2:
        raise UsageError(
            f"share: {spec.share} is not a storage of GPULab's", hint="write /project_ghent or a folder of it"
        )
    if options.known_hosts and not Path(options.known_hosts).expanduser().exists():
        raise UsageError(
            f"options.known_hosts: there is no file {options.known_hosts}", hint="leave it out for your own"
        )
    limits.workers(options, spec.gpus, Service(asking).workers())


def access(spec: Spec) -> Access:
    """How the jump host is logged in to; the nodes themselves have the cluster's own key."""
    from hvdctl.gpulab import login

    options = _options(spec)
    key = Path(options.bastion_key).expanduser() if options.bastion_key else None
    if key is None:
        own = login.read(account.of(options).certificate)
        key = None if own.locked else own.file
    known = [options.known_hosts] if options.known_hosts else ["~/.ssh/known_hosts", "/etc/ssh/ssh_known_hosts"]
    return Access({}, key, tuple(Path(file).expanduser().absolute() for file in known))


def settings(spec: Spec) -> dict[str, Any]:
    from hvdctl.gpulab import login

    options = _options(spec)
    asking = account.of(options)
    project = account.value(options, "project")
    return dict(options) | {
        "server": asking.server,
        "certificate": str(asking.certificate),
        "server_certificate": str(asking.server_certificate) if asking.server_certificate else None,
        "passphrase_file": str(asking.passphrase_file) if asking.passphrase_file else None,
        "project": login.read(asking.certificate).project(project) if project else None,
        "storage": _storage(spec),
    }


def prepare(spec: Spec, progress: Progress) -> None:
    pass  # the Horovod image is all


@contextmanager
def watch(spec: Spec, step: Step) -> Iterator[None]:
    """Tell which jobs wait and why; where not all could start, cancel those that could, if that is asked."""
    from hvdctl.cluster import Cluster

    before = {node.id for node in Cluster(spec.name).nodes()}
    over = threading.Event()
    threading.Thread(target=_tell_of_the_queue, args=(spec, step, over), daemon=True).start()
    try:
        yield
    except PhaseError as error:
        over.set()
        error.message = _short(spec, error)
        if _options(spec).when_short == "cancel":
            _cancel_all(spec.name, before, error)
        raise
    finally:
        over.set()


def observe(cluster: str, nodes: Sequence[str] | None = None) -> dict[str, str]:
    """GPULab's word on each node's job; one that has ended is none any more."""
    standing = [job for job in _jobs(cluster, nodes) if not job.ended]
    # One that is about to end may have its successor already.
    return only({_node(job): job.status.lower() for job in sorted(standing, key=lambda job: not job.gone)}, nodes)


def about(cluster: str) -> str:
    from hvdctl.gpulab.service import ended

    spec = _stored_spec(cluster)
    if spec is None:
        return ""
    options = _options(spec)
    if ended(account.of(options).server):
        return "GPULab, emulated: the emulator has ended, and its jobs with it"
    jobs = _jobs(cluster)
    workers = sorted({job.worker for job in jobs if job.worker and not job.gone})
    told = [
        f"GPULab on {', '.join(workers)}" if workers else "GPULab",
        f"jobs end {options.max_duration} after their start",
        _queue(jobs, spec.nodes),
        "an emulator, its GPUs are only counted" if emulated(spec) else "",
    ]
    return "; ".join(filter(None, told))


def emulated(spec: Spec) -> bool:
    """Whether it is an emulator: its nodes share this machine."""
    from hvdctl.gpulab.service import local

    return local(account.of(_options(spec)).server)


def hint(message: str) -> str:
    return next((hint for pattern, hint in _HINTS if re.search(pattern, message)), "")


def claims(cluster: str, spec: Spec | None = None) -> list[marks.Claim]:
    return [
        marks.Claim(
            f"job {job.name}", _mark(cluster, job), f"{job.owner or 'another owner'} (owner {_named(job).owner})"
        )
        for service in _where(cluster, thorough=spec is not None, spec=spec)
        for job in _all(service, cluster)
        if not job.ended
    ]


def leftovers(cluster: str) -> list[str]:
    from hvdctl.cluster import Cluster

    left = [f"job {job.name} ({job.uuid}, {job.status})" for job in _jobs(cluster) if not job.ended]
    stored = _stored_spec(cluster)
    if stored is not None and Cluster(cluster).record("share"):
        left.append(f"storage {_storage(stored)} of project {account.value(_options(stored), 'project')}")
    return left


def sweep(cluster: str, *, keep_data: bool, step: Step) -> None:
    """Cancel all jobs of the cluster. What is on the project's storage is the project's, and stays."""
    from hvdctl.gpulab.emulator import containers
    from hvdctl.gpulab.service import ended

    options = _stored(cluster)
    if options is not None and ended((asking := account.of(options)).server):
        containers.clear_killed(asking.certificate.parent)  # the emulator keeps the login in its own folder
        return
    for service in _where(cluster, thorough=True):
        found = [job for job in _of(service, cluster) if not job.ended]
        step.update(f"{len(found)} jobs")
        service.remove(found)


def clusters() -> list[str]:
    """Those of the accounts that clusters of this home are of, and of the one that the variables name."""
    from hvdctl.gpulab.service import Service

    services = [Service.quick(asking) for asking in _accounts()]
    return sorted({_named(job).cluster for service in services for job in service.jobs() if not job.ended})


def _accounts() -> Iterator[Account]:
    """All accounts that this home has to do with, but for those of emulators that have ended."""
    from hvdctl.cluster import known
    from hvdctl.gpulab import login
    from hvdctl.gpulab.service import ended

    stored = [options for cluster in known() if (options := _stored(cluster.name))]
    if os.environ.get("GPULAB_CERT"):
        stored.append(Options())
    for asking in dict.fromkeys(account.of(options) for options in stored):
        if not login.at_hand(login.read(asking.certificate), asking.passphrase_file):
            raise UsageError(f"the key in {asking.certificate} has a pass phrase", hint=f"set {login.VARIABLE}")
        if not ended(asking.server):
            yield asking


def _tell_of_the_queue(spec: Spec, step: Step, over: threading.Event) -> None:
    while not over.wait(_WATCH_EVERY):
        told = _asked_queue(spec)
        if told and not over.is_set():
            step.update(told)


def _asked_queue(spec: Spec) -> str:
    try:
        return _queue(_jobs(spec.name), spec.nodes)
    except HvdctlError:
        return ""  # Terraform says what is wrong


def _queue(jobs: list[Job], nodes: int) -> str:
    """Which jobs wait and why, in the service's own words; empty where none does."""
    standing = sorted((job for job in jobs if not job.gone), key=_node)
    waiting = [job for job in standing if job.status != RUNNING]
    why = [f"{_node(job)} is {job.status}" + (f": {job.why}" if job.why else "") for job in waiting]
    return f"{len(standing) - len(waiting)} of {nodes} jobs run; {'; '.join(why)}" if why else ""


def _short(spec: Spec, error: PhaseError) -> str:
    """What Terraform says, without what only follows from it; in fewer words where it is only that jobs wait."""
    causes = [told for told in error.errors if NOT_WAITED not in told]
    if not causes:
        return error.message
    if all(re.search(_WAITED, told) for told in causes) and (queue := _asked_queue(spec)):
        return f"GPULab did not start all jobs within {_options(spec).wait} s: {queue}"
    return "; ".join(causes[:_MOST_CAUSES])


def _cancel_all(cluster: str, before: set[str], error: PhaseError) -> None:
    """Give back what was started in vain, and say so beside the reason."""
    try:
        given_back = _give_back(cluster, before)
    except HvdctlError as other:
        error.message += f"; what was started could not be cancelled: {other.message}"
        return
    if given_back:
        error.message += f"; cancelled, as not all could start: {', '.join(given_back)}"
        error.hint = "--option wait=DURATION waits longer, --option when_short=keep keeps what runs"


def _give_back(cluster: str, before: set[str]) -> list[str]:
    """Cancel the jobs that were not there before; the nodes that they were to be."""
    given_back: list[str] = []
    for service in _where(cluster, thorough=True):
        new = [job for job in _of(service, cluster) if not job.ended and job.uuid not in before]
        service.remove(new)
        given_back += map(_node, new)
    return sorted(given_back)


def _storage(spec: Spec) -> str:
    return account.storage(_options(spec), spec.share, spec.name)


def _options(spec: Spec) -> Options:
    """The spec's own; what it leaves to variables that are not set here as it was when the cluster was made."""
    options = cast(Options, spec.own())
    made = _made_with(spec.name)
    return options.model_copy(
        update={key: made[key] for key in account.VARIABLES if account.value(options, key) is None and made.get(key)}
    )


def _made_with(cluster: str) -> dict[str, Any]:
    """The options that Terraform was last given."""
    from hvdctl.cluster import Cluster
    from hvdctl.terraform import variables

    stored = variables(Cluster(cluster).terraform).get("options")
    return stored if isinstance(stored, dict) else {}


def _where(cluster: str, *, thorough: bool = False, spec: Spec | None = None) -> Iterator[Service]:
    """The cluster's account; of a cluster that this home does not know, every account that `clusters` asks. None if
    it was an emulator that has ended, and all jobs with it.
    """
    from hvdctl.gpulab.service import Service, ended

    options = _options(spec) if spec else _stored(cluster)
    accounts = _accounts() if options is None else [account.of(options)]
    for asking in accounts:
        if not ended(asking.server):
            yield Service(asking) if thorough else Service.quick(asking)


def _jobs(cluster: str, nodes: Sequence[str] | None = None) -> list[Job]:
    return [job for service in _where(cluster) for job in _of(service, cluster, nodes)]


def _of(service: Service, cluster: str, nodes: Sequence[str] | None = None) -> list[Job]:
    """The jobs of a cluster that this home may cancel."""
    return [job for job in _all(service, cluster, nodes) if marks.mine("gpulab", cluster, _mark(cluster, job))]


def _all(service: Service, cluster: str, nodes: Sequence[str] | None = None) -> list[Job]:
    """The jobs of a cluster's name, whoever submitted them; `nodes` are those that must not be missed, None: all."""
    from hvdctl.cluster import Cluster

    found = {job.uuid: job for job in service.jobs()}
    # A list has an end; nodes that we know of count wherever they stand in it.
    known = Cluster(cluster).nodes() if _stored(cluster) else []
    for node in (node for node in known if nodes is None or node.name in nodes):
        if node.id not in found and (job := service.job(node.id)) and Named.of(job.name):
            found[job.uuid] = job
    return [job for job in found.values() if _named(job).cluster == cluster]


def _mark(cluster: str, job: Job) -> str:
    """The id of a job's owner; of another home, the part of it that is in the job's name."""
    from hvdctl.cluster import Cluster

    short, this = _named(job).owner, marks.known()
    key = Cluster(cluster).ssh / "id_ed25519.pub"
    of_key = key.exists() and owner(key.read_text()) == short  # as earlier versions named jobs
    if of_key or (this and this.id.startswith(short)):
        return marks.this().id
    return short


def _named(job: Job) -> Named:
    named = Named.of(job.name)
    assert named is not None  # noqa: S101 - the service gives no others
    return named


def _node(job: Job) -> str:
    return _named(job).node


def _stored(cluster: str) -> Options | None:
    spec = _stored_spec(cluster)
    return _options(spec) if spec else None


def _stored_spec(cluster: str) -> Spec | None:
    """A cluster of ours on GPULab, as it was last asked for."""
    from hvdctl.cluster import Cluster

    try:
        spec = Cluster(cluster).spec()
    except (HvdctlError, ValidationError):  # `down --force` works without
        return None
    return spec if spec.provider == "gpulab" else None
