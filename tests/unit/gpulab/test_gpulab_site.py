"""The site `gpulab`: what it refuses, what it tells, and what it gives back."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine
from hvdctl import guards, overview, owner, pipeline, providers
from hvdctl.cluster import Cluster, write
from hvdctl.errors import PhaseError, UsageError
from hvdctl.gpulab import login
from hvdctl.gpulab.emulator import containers, pki
from hvdctl.gpulab.emulator.workers import Worker
from hvdctl.gpulab.job import NOT_WAITED
from hvdctl.gpulab.options import Options, seconds
from hvdctl.gpulab.service import Account, Service
from hvdctl.progress import Silent
from hvdctl.sites import gpulab as site
from hvdctl.spec import Spec, parse
from played import Played, played, wanted
from support import Hvdctl, make_nodes, wait_for

Make = Callable[..., Spec]


class Told(Silent):
    def __init__(self, told: list[str] | None = None) -> None:
        self.told = told if told is not None else []

    def update(self, detail: str) -> None:
        self.told.append(detail)


@pytest.fixture
def spec(lab: Played, keys: Path) -> Make:
    return maker(lab, keys)


def maker(lab: Played, keys: Path) -> Make:
    def make(options: dict[str, Any] | None = None, **more: Any) -> Spec:
        own = {"server": lab.url, "certificate": str(keys / "login.pem"), "project": "demo", **(options or {})}
        own = {key: value for key, value in own.items() if value is not None}
        return parse({"name": "demo", "provider": "gpulab", "options": own, **more}, source="test")

    return make


def submitted(lab: Played, keys: Path, cluster: Cluster, *nodes: str, **more: Any) -> list[str]:
    service = Service(Account(lab.url, keys / "login.pem"))
    key = cluster.key().public
    return [service.submit(wanted(node, cluster=cluster.name, public_key=key, **more)).uuid for node in nodes]


@pytest.mark.parametrize(
    ("text", "found"),
    [("30 minutes", 1800), ("2h", 7200), ("1 day", 86400), ("1.5 hours", 5400), ("90s", 90), ("2 weeks", 1209600)],
)
def test_durations_are_read_as_gpulab_reads_them(text: str, found: int) -> None:
    assert seconds(text) == found


@pytest.mark.parametrize("text", ["1d", "0 hours", "soon", "5", 5, None, "1 year", "-1 hour"])
def test_other_durations_are_refused(text: object) -> None:
    with pytest.raises(ValueError, match="is not a duration; write 30 minutes"):
        seconds(text)


def test_a_good_spec_passes(spec: Make) -> None:
    site.preflight(spec())
    site.preflight(spec({"gpu_model": "v100", "cluster": 4}, nodes=10))


@pytest.mark.parametrize(
    ("options", "more", "told"),
    [
        ({}, {"net": "1g"}, "net: GPULab's network can't be given a rate"),
        ({}, {"nodes": 12}, "nodes: 12 jobs asked, but GPULab runs 10 jobs of a user at once"),
        ({"project": None}, {}, r"options\.project: GPULab needs a project"),
        ({"certificate": None}, {}, r"options\.certificate: GPULab needs your PEM file"),
        ({"certificate": "/gone.pem"}, {}, r"the GPULab login /gone.pem can't be read"),
        (
            {"server": "https://gpulab.example.org/api/"},
            {},
            "image: GPULab can't pull an image that is on this machine",
        ),
        ({}, {"image": "a@sha256:0123"}, "image: GPULab does not take 'a@sha256:0123'"),
        ({}, {"share": "/"}, "share: / is not a storage"),
        ({"cluster": 99}, {}, r"GPULab has no cluster 99; there are: 1, 4"),
        ({"gpu_model": ["H200", "B300"]}, {}, "no GPU of the kind H200 or B300; there are: GeForce GTX 1080 Ti, Tesla"),
        ({"gpu_model": "V100", "cluster": 1}, {}, "no GPU of the kind V100; there are: GeForce GTX 1080 Ti$"),
        ({"worker": "w9"}, {}, "no worker w9; there are: slave1A, slave1B, slave4A, slave4B"),
        ({"worker": "slave4A", "cluster": 1}, {}, "no worker slave4A; there are: slave1A, slave1B$"),
        ({}, {"gpus": 20}, "gpus: 20 asked for one job, but no worker that would do has more than 16"),
        ({"cluster": 1}, {"gpus": 5}, "no worker that would do has more than 4"),
        ({"known_hosts": "/gone/known"}, {}, r"options\.known_hosts: there is no file /gone/known"),
    ],
)
def test_what_gpulab_can_not_give_is_refused_before_anything_is_made(
    spec: Make, lab: Played, options: dict[str, Any], more: dict[str, Any], told: str
) -> None:
    with pytest.raises(UsageError, match=told):
        site.preflight(spec(options, **more))
    assert lab.jobs == []


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"max_duration": "1d"}, r"options\.max_duration: '1d' is not a duration"),
        ({"wait": "soon"}, r"options\.wait: 'soon' is not a duration"),
        ({"gpu_memory": 1}, r"options\.gpu_memory: 1 is not valid"),
        ({"when_short": "panic"}, r"options\.when_short: 'panic' is not valid"),
        ({"gpumodel": "x"}, r"unknown key 'options\.gpumodel'; did you mean 'gpu_model'"),
    ],
)
def test_options_are_checked(spec: Make, options: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        spec(options)


def test_twelve_gpus_are_shared_out_over_the_jobs_that_may_run(spec: Make) -> None:
    with pytest.raises(UsageError) as told:
        site.preflight(spec(nodes=12, gpus=2))
    assert "--layout 8x3" in told.value.hint


def test_variables_of_imecs_client_stand_for_options(
    lab: Played, keys: Path, spec: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPULAB_API_BASE", lab.url)
    monkeypatch.setenv("GPULAB_CERT", str(keys / "login.pem"))
    monkeypatch.setenv("GPULAB_PROJECT", "other")
    found = site.settings(spec({"server": None, "certificate": None, "project": None}))
    assert (found["server"], found["certificate"]) == (lab.url, str(keys / "login.pem"))
    assert found["project"] == "urn:publicid:IDN+ilabt.imec.be+project+other"


@pytest.mark.parametrize(
    ("options", "share", "found"),
    [
        ({}, "auto", "/project_ghent/hvdctl/tester/demo"),
        ({"cluster": 101}, "auto", "/project_antwerp/hvdctl/tester/demo"),
        ({"storage": "/project_madrid/"}, "auto", "/project_madrid/hvdctl/tester/demo"),
        ({"cluster": 101}, "/project_scratch/x", "/project_scratch/x"),
    ],
)
def test_the_share_is_a_folder_of_the_projects_storage(
    spec: Make, options: dict[str, Any], share: str, found: str
) -> None:
    assert site.settings(spec(options, share=share))["storage"] == found


def test_terraform_gets_every_option_and_seconds(spec: Make) -> None:
    found = site.settings(spec({"wait": "2 minutes"}))
    assert set(found) == set(Options.model_fields)
    assert found["wait"] == 120


def test_the_jump_host_takes_the_certificates_key_unless_it_is_locked(spec: Make, keys: Path, tmp_path: Path) -> None:
    found = site.access(spec({"known_hosts": str(tmp_path / "known")}))
    assert (found.key, found.known_hosts) == (keys / "login.pem", (tmp_path / "known",))
    locked = pki.login(keys, tmp_path / "locked.pem", passphrase="x")
    found = site.access(spec({"certificate": str(locked)}))
    assert found.key is None, "the user's own keys and agent"
    assert found.known_hosts[0] == Path("~/.ssh/known_hosts").expanduser()
    assert site.access(spec({"certificate": str(locked), "bastion_key": "/k"})).key == Path("/k")


def test_what_stands_is_told_by_the_names_of_jobs(spec: Make, lab: Played, keys: Path) -> None:
    cluster, other = Cluster("demo"), Cluster("demo-2")
    cluster.store_spec(spec(nodes=2))
    first, second = submitted(lab, keys, cluster, "node0", "node1")
    submitted(lab, keys, other, "node0")
    wait_for(lambda: site.observe("demo") == {"node0": "running", "node1": "running"})
    assert site.clusters() == ["demo", "demo-2"]
    assert [line.split()[1].rsplit("-", 1)[0] for line in site.leftovers("demo")] == [
        "hvdctl-demo-node1",
        "hvdctl-demo-node0",
    ]
    assert "an emulator, its GPUs are only counted" in site.about("demo")
    lab.runner.end(first, 0)
    wait_for(lambda: site.observe("demo") == {"node1": "running"})
    site.sweep("demo", keep_data=False, step=Told())
    assert site.observe("demo") == {}
    assert site.leftovers("demo") == []
    assert [job.submission.name.split("-node")[0] for job in lab.active] == ["hvdctl-demo-2"]
    assert second not in [job.uuid for job in lab.active]


def test_a_name_that_another_home_has_is_refused(spec: Make, lab: Played, keys: Path) -> None:
    theirs = Service(Account(lab.url, keys / "login.pem"))
    job = theirs.submit(wanted(mark="0123456789abcdef", owner="ada@lab:/x"))
    with pytest.raises(UsageError, match=f"cluster 'demo' is somebody else's: job {job.name} belongs to ada@lab:/x"):
        guards.name(Cluster("demo"), spec())
    guards.name(Cluster("other"), spec(name="other"))
    theirs.remove([job])
    guards.name(Cluster("demo"), spec())


def test_only_the_jobs_of_the_nodes_that_are_asked_about_are_looked_for(
    spec: Make, lab: Played, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster("demo")
    cluster.store_spec(spec(nodes=2))
    uuids = submitted(lab, keys, cluster, "node0", "node1")
    cluster.store_nodes([replace(node, id=uuid) for node, uuid in zip(make_nodes(2), uuids, strict=True)])
    wait_for(lambda: site.observe("demo", ["node1"]) == {"node1": "running"})
    asked: list[str] = []
    job = Service.job

    def counted(self: Service, uuid: str) -> object:
        asked.append(uuid)
        return job(self, uuid)

    monkeypatch.setattr(Service, "jobs", lambda self: [])
    monkeypatch.setattr(Service, "job", counted)
    assert site.observe("demo", ["node1"]) == {"node1": "running"}
    assert asked == [uuids[1]]


def test_a_node_counts_that_the_list_of_jobs_leaves_out(
    spec: Make, lab: Played, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster("demo")
    cluster.store_spec(spec())
    (uuid,) = submitted(lab, keys, cluster, "node0")
    cluster.store_nodes([replace(node, id=uuid) for node in make_nodes(1)])
    monkeypatch.setattr(Service, "jobs", lambda self: [])
    wait_for(lambda: site.observe("demo") == {"node0": "running"})
    assert site.leftovers("demo")[0].startswith("job hvdctl-demo-node0-")
    site.sweep("demo", keep_data=False, step=Told())
    assert lab.active == []


def test_a_node_that_is_about_to_end_does_not_hide_its_successor(spec: Make, lab: Played, keys: Path) -> None:
    cluster = Cluster("demo")
    cluster.store_spec(spec())
    (old,) = submitted(lab, keys, cluster, "node0")
    lab.lab.jobs[old].enter("HALTING")
    submitted(lab, keys, cluster, "node0")
    wait_for(lambda: site.observe("demo") == {"node0": "running"})


def test_what_variables_said_when_it_was_made_still_holds_without_them(
    spec: Make, lab: Played, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = spec({"server": None, "certificate": None, "project": None})
    Cluster("demo").store_spec(bare)
    with pytest.raises(UsageError, match="GPULab needs your PEM file"):
        site.observe("demo")
    made = site.settings(spec())
    write(Cluster("demo").terraform / "terraform.tfvars.json", json.dumps({"options": made}))
    submitted(lab, keys, Cluster("demo"), "node0")
    wait_for(lambda: site.observe("demo") == {"node0": "running"})
    assert site.settings(bare)["project"] == made["project"]
    monkeypatch.setenv("GPULAB_PROJECT", "other")
    assert site.settings(bare)["project"].endswith("+other"), "a variable that is set counts"


def test_a_login_that_moved_is_found_by_the_variable(
    spec: Make, lab: Played, keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Cluster("demo").store_spec(spec({"certificate": str(tmp_path / "gone.pem")}))
    with pytest.raises(UsageError, match=r"gone\.pem can't be read"):
        site.leftovers("demo")
    monkeypatch.setenv("GPULAB_CERT", str(keys / "login.pem"))
    assert site.leftovers("demo") == []


def test_jobs_of_the_same_name_of_another_home_are_left_alone(spec: Make, lab: Played, keys: Path) -> None:
    cluster = Cluster("demo")
    cluster.store_spec(spec())
    cluster.key()
    theirs = Service(Account(lab.url, keys / "login.pem")).submit(wanted()).uuid
    assert site.observe("demo") == {}
    site.sweep("demo", keep_data=False, step=Told())
    assert [job.uuid for job in lab.active] == [theirs]


def test_the_storage_of_a_cluster_that_was_up_is_told_as_kept(spec: Make) -> None:
    cluster = Cluster("demo")
    cluster.store_spec(spec())
    assert site.leftovers("demo") == []
    cluster.complete("share", 0)
    assert site.leftovers("demo") == ["storage /project_ghent/hvdctl/tester/demo of project demo"]


def test_the_jobs_of_an_emulator_that_ended_are_gone(
    tmp_path: Path, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with played(tmp_path / "gone") as lab:
        Cluster("demo").store_spec(maker(lab, keys)())
        submitted(lab, keys, Cluster("demo"), "node0")
        assert site.observe("demo")
    assert (site.observe("demo"), site.leftovers("demo"), site.clusters()) == ({}, [], [])
    cleared: list[Path] = []
    monkeypatch.setattr(containers, "clear_killed", cleared.append)
    site.sweep("demo", keep_data=False, step=Told())
    assert cleared == [keys], "one that was killed may have left containers"
    assert site.about("demo") == "GPULab, emulated: the emulator has ended, and its jobs with it"


def test_who_has_nothing_to_do_with_gpulab_is_not_bothered() -> None:
    assert site.clusters() == []
    assert (site.observe("x"), site.leftovers("x"), site.about("x")) == ({}, [], "")


def test_a_list_of_clusters_asks_for_no_pass_phrase(
    spec: Make, keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login, "ask", lambda prompt: pytest.fail("asked"))
    locked = pki.login(keys, tmp_path / "locked.pem", passphrase="x")
    Cluster("demo").store_spec(spec({"certificate": str(locked)}))
    unasked: list[str] = []
    monkeypatch.setattr(providers.REGISTRY["local"].site, "clusters", list)
    found = dict(overview.on_sites(unasked))
    assert providers.REGISTRY["gpulab"] not in found
    assert any("gpulab can't be asked" in line and "has a pass phrase" in line for line in unasked)


TINY = (Worker(name="tiny", cluster=4, gpus=2, cpus=64, memory=256, gpu_model="V100", gpu_memory=32, cuda="12.2"),)


@pytest.mark.parametrize("when_short", ["keep", "cancel"])
def test_a_part_of_the_jobs_is_told_and_kept_or_given_back(
    tmp_path: Path, keys: Path, when_short: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site, "_WATCH_EVERY", 0.02)
    with played(tmp_path / "tiny", TINY) as lab:
        asked = maker(lab, keys)({"when_short": when_short, "wait": 5}, nodes=3)
        cluster = Cluster("demo")
        cluster.store_spec(asked)
        told: list[str] = []
        with pytest.raises(PhaseError) as short, site.watch(asked, Told(told)):
            submitted(lab, keys, cluster, "node0", "node1", "node2")
            wait_for(lambda: any("2 of 3 jobs run; node2 is QUEUED: needs 1 GPU" in line for line in told))
            waited = "can't create job x: job 1 is QUEUED: needs 1 GPU (after 5 s)"
            raise PhaseError(f"terraform apply failed: {waited}", errors=(waited, f"job 2 is QUEUED ({NOT_WAITED})"))
        assert "2 of 3 jobs run; node2 is QUEUED: needs 1 GPU" in told[-1]
        assert short.value.message.startswith(
            "GPULab did not start all jobs within 5 s: 2 of 3 jobs run; node2 is QUEUED"
        )
        if when_short == "keep":
            assert len(lab.active) == 3
            assert site.hint(short.value.message).startswith("jobs that were submitted stay with GPULab")
        else:
            assert lab.active == []
            assert "cancelled, as not all could start: node0, node1, node2" in short.value.message


@pytest.mark.skipif(shutil.which("terraform") is None, reason="Terraform is not on PATH")
def test_all_jobs_are_submitted_while_the_first_ones_wait(tmp_path: Path, keys: Path) -> None:
    """More than Terraform, or a plugin, usually has under way: room for some is no room for all."""
    with played(tmp_path / "tiny", TINY) as lab:
        asked = maker(lab, keys)({"wait": 120}, nodes=24, gpus=2)
        cluster = Cluster("demo")
        cluster.store_spec(asked)
        key = (cluster.key().public, str(cluster.key().private))
        wanted_of_it = pipeline.variables(asked, image="a:1", key=key, host_keys={}, labels=owner.this().labels)
        failed: list[PhaseError] = []

        def apply() -> None:
            try:
                pipeline._terraform(cluster, asked).apply(wanted_of_it, lambda _: None)
            except PhaseError as error:
                failed.append(error)

        applying = threading.Thread(target=apply)
        applying.start()
        try:
            wait_for(lambda: len(lab.active) == 24 or not applying.is_alive())
            assert len(lab.active) == 24
        finally:
            service = Service(Account(lab.url, keys / "login.pem"))
            service.remove([job for job in service.jobs() if job.status == "QUEUED"])
            applying.join(60)
        assert failed, "Terraform ended"


def test_nodes_that_stood_before_are_not_given_back(lab: Played, keys: Path, spec: Make) -> None:
    asked = spec({"when_short": "cancel"}, nodes=2)
    cluster = Cluster("demo")
    cluster.store_spec(asked)
    (old,) = submitted(lab, keys, cluster, "node0")
    cluster.store_nodes([replace(node, id=old) for node in make_nodes(1)])
    with pytest.raises(PhaseError) as short, site.watch(asked, Told()):
        submitted(lab, keys, cluster, "node1")
        followed = f"can't create job y: job 2 is ASSIGNED ({NOT_WAITED})"
        raise PhaseError("...", errors=(followed, followed, followed, "can't create job x: job 1 is FAILED: boom"))
    told = "can't create job x: job 1 is FAILED: boom; cancelled, as not all could start: node1"
    assert short.value.message == told, "the cause, and not what followed from it"
    assert [job.uuid for job in lab.active] == [old]


def test_jobs_are_known_by_their_owner_also_without_a_key(
    spec: Make, lab: Played, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster whose folder is lost is still ours; what another home has under the name is not swept with it."""
    monkeypatch.setenv("GPULAB_CERT", str(keys / "login.pem"))
    monkeypatch.setenv("GPULAB_API_BASE", lab.url)
    service = Service(Account(lab.url, keys / "login.pem"))
    this = owner.this()
    service.submit(wanted(mark=this.id, owner=this.name))
    theirs = service.submit(wanted(mark="0123456789abcdef", owner="ada@lab:/x")).uuid
    assert {claim.owner for claim in site.claims("demo")} == {
        f"{this.name} (owner {this.id[:8]})",
        "ada@lab:/x (owner 01234567)",
    }
    assert len(site.leftovers("demo")) == 1
    site.sweep("demo", keep_data=False, step=Told())
    assert [job.uuid for job in lab.active] == [theirs]


@pytest.mark.parametrize("given", ["0123456789abcdef", "01234567"])
def test_the_whole_id_of_an_owner_names_their_jobs_too(
    hvdctl: Hvdctl, engine: FakeEngine, lab: Played, keys: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    """The name of a job has the first digits only; the owner's home and everything on other sites have all."""
    monkeypatch.setenv("GPULAB_CERT", str(keys / "login.pem"))
    monkeypatch.setenv("GPULAB_API_BASE", lab.url)
    service = Service(Account(lab.url, keys / "login.pem"))
    service.submit(wanted(mark="0123456789abcdef", owner="ada@lab:/x"))
    words = ["down", "--name", "demo", "--force", "-y", "--owner"]
    for other in ("0123456f", "0", "0123456", "0123456f89abcdef"):
        assert hvdctl(*words, other).code == 2
    assert len(lab.active) == 1
    told = hvdctl(*words, given)
    assert (told.code, lab.active) == (0, []), told.err
