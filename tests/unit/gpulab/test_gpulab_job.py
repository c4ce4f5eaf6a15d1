"""What is submitted, and what is read of the answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hvdctl.errors import HvdctlError
from hvdctl.gpulab.job import Job, Named, announced, owner, request, split_storage
from imecilabt.gpulab.schemas.job2 import NewJobV4
from played import KEY, wanted

GOLDEN = Path(__file__).parents[1] / "golden" / "gpulab"
FULL: dict[str, Any] = {
    "slots": 4,
    "cpus": 3.5,
    "memory": 5 * 2**30 + 1,
    "gpus": 4,
    "gpu_model": ("V100", "1080"),
    "gpu_memory": 11,
    "min_cuda": 12,
    "cluster_id": 4,
    "worker": "slave4A",
    "min_duration": "2 hours",
    "max_duration": "2 days",
    "reservations": ("6a2f5a16-7b6e-4a0a-9c7e-0d7a6bb5c001",),
    "storage": "/project_antwerp/data/demo",
}


@pytest.mark.parametrize("case", ["plain", "full"])
def test_a_request_is_the_same_to_the_byte(case: str) -> None:
    from test_golden import as_text, held

    held(GOLDEN / f"{case}.request", as_text(request(wanted(**(FULL if case == "full" else {})))))


@pytest.mark.parametrize("more", [{}, FULL, {"gpus": 0}, {"image": "me:secret@registry.example.org:5000/a/b:tag"}])
def test_imecs_own_models_take_every_request(more: dict[str, Any]) -> None:
    body = request(wanted(**more))
    read = NewJobV4.model_validate_json(json.dumps(body))
    assert read.name == body["name"]
    assert read.request.docker.port_mappings[0].container_port == 2222
    assert read.request.scheduling.max_duration
    assert read.request.extra.ssh_pub_keys == [KEY]


def test_no_private_key_is_in_a_request() -> None:
    assert "PRIVATE" not in json.dumps(request(wanted()))


def test_another_wish_has_the_same_name_and_another_mark() -> None:
    one, other = request(wanted()), request(wanted(gpus=2))
    assert one["name"] == other["name"]
    assert one["description"] != other["description"]
    assert request(wanted(public_key="ssh-ed25519 OTHER"))["name"] != one["name"], "another home's cluster"


def test_the_name_tells_whose_it_is() -> None:
    name = str(wanted(node="node12", cluster="a-node3-b").name)
    assert Named.of(name) == Named("a-node3-b", "node12", owner(KEY))
    for foreign in ("job", "hvdctl-demo", "hvdctl-demo-node0", "hvdctl-demo-node0-zzzzzzzz", "JupyterHub-singleuser"):
        assert Named.of(foreign) is None


@pytest.mark.parametrize(
    ("path", "parts"),
    [
        ("/project_ghent", ("/project_ghent", "")),
        ("/project_ghent/hvdctl/x", ("/project_ghent", "hvdctl/x")),
    ],
)
def test_a_folder_of_a_storage_is_a_volume_and_a_folder(path: str, parts: tuple[str, str]) -> None:
    assert split_storage(path) == parts


SAID = {"name": "node0", "address": "10.0.0.2", "host_key": "ssh-ed25519 H", "user_key": "ssh-ed25519 U"}


def line(**other: object) -> str:
    return f"hvd-node: {json.dumps(SAID | other)}\n"


def test_a_node_announces_itself_in_the_log() -> None:
    assert announced("", "node0") is None
    assert announced("Pulling\nhvd-node: a refusal\n", "node0") is None
    told = announced(f"Pulling\n{line()}Server listening\n", "node0")
    assert told is not None
    assert (told.address, told.host_key, told.user_key) == ("10.0.0.2", "ssh-ed25519 H", "ssh-ed25519 U")


def test_what_strangers_have_sshd_write_into_the_log_does_not_count() -> None:
    forged = line(user_key="ssh-ed25519 EVIL", host_key="ssh-ed25519 EVIL", address="10.6.6.6")
    told = announced(f"{line()}Server listening\nReceived disconnect from 10.6.6.6: x\n{forged}", "node0")
    assert told is not None
    assert (told.user_key, told.host_key, told.address) == ("ssh-ed25519 U", "ssh-ed25519 H", "10.0.0.2")


@pytest.mark.parametrize(
    "other",
    [
        {"name": "node1"},
        {"address": "10.0.0.2\n  ProxyCommand touch /tmp/x"},
        {"address": None},
        {"host_key": "ssh-ed25519 H\n* ssh-ed25519 EVIL"},
        {"user_key": 'command="x" ssh-ed25519 U'},
        {"user_key": ["ssh-ed25519 U"]},
    ],
)
def test_an_announcement_that_can_not_be_right_is_an_error(other: dict[str, object]) -> None:
    with pytest.raises(HvdctlError, match="what the job of node0 says of itself can't be right"):
        announced(line(**other), "node0")


@pytest.mark.parametrize("key", ["slaveHost", "sshProxyHost", "sshProxyUsername"])
@pytest.mark.parametrize("said", ["h\n  ProxyCommand touch /tmp/x", "h -oProxyCommand=x", "-oProxyCommand=x", "", 7])
def test_a_place_that_is_more_than_a_place_is_none(key: str, said: object) -> None:
    resources = {"slaveHost": "gpu0.example.org", "sshProxyHost": "2001:db8::1", "sshProxyUsername": "me"}
    job = Job.read({"uuid": "u", "state": {"status": "RUNNING", "resources": resources}})
    assert (job.host, job.proxy) == ("gpu0.example.org", "me@2001:db8::1:22")
    job = Job.read({"uuid": "u", "state": {"status": "RUNNING", "resources": resources | {key: said}}})
    assert (job.host if key == "slaveHost" else job.proxy) is None


@pytest.mark.parametrize(
    ("text", "status", "ended", "gone"),
    [
        ("RUNNING", "RUNNING", False, False),
        ("Must Halt", "MUSTHALT", False, True),
        ("ON HOLD", "ONHOLD", False, False),
        ("Cancelled", "CANCELLED", True, True),
        ("halted", "HALTED", True, True),
        ("Teleporting", "TELEPORTING", False, False),
    ],
)
def test_a_state_is_read_however_it_is_written(text: str, status: str, ended: bool, gone: bool) -> None:
    job = Job.read({"uuid": "u", "state": {"status": text}})
    assert (job.status, job.ended, job.gone) == (status, ended, gone)


def test_unknown_fields_are_left_aside_and_nonsense_is_refused() -> None:
    ports = [{"containerPort": 2222, "hostPort": 31000, "speed": 1}, {"containerPort": 1}]
    resources = {"slaveHost": "h", "portMappings": ports}
    proxy = {"sshProxyHost": "b", "sshProxyUsername": "me", "sshProxyPort": None, "aura": "blue"}
    job = Job.read({"uuid": "u", "x": 1, "state": {"status": "RUNNING", "y": [], "resources": resources | proxy}})
    assert (job.host, job.ports, job.proxy) == ("h", {2222: 31000}, "me@b:22")
    wrong: list[Any] = [None, [], {}, {"uuid": "u"}, {"uuid": "u", "state": None}]
    for nonsense in wrong:
        with pytest.raises(ValueError, match="not a job"):
            Job.read(nonsense)
