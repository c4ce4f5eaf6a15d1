from __future__ import annotations

import json
from typing import Any

import pytest
from emulator_lab import body, parsed
from hvdctl.gpulab.emulator.submission import Unusable, parse, seconds
from imecilabt.gpulab.schemas.job2 import NewJobV4


def told(sent: dict[str, Any]) -> str:
    with pytest.raises(Unusable) as refused:
        parse(json.dumps(sent).encode())
    return str(refused.value)


@pytest.mark.parametrize(
    ("part", "given", "complaint"),
    [
        ("resources", {"gpuMemoryGb": 1}, "request.resources.gpuMemoryGb: 1: Input should be greater than"),
        ("resources", {"cpus": 0}, "request.resources.cpus: 0: "),
        ("resources", {"killIdle": 3}, "request.resources.killIdle: there is no such field (given: 3)"),
        ("scheduling", {"killIdle": True}, "request.scheduling.killIdle: there is no such field (given: True)"),
        ("scheduling", {"maxDuration": "1d"}, "request.scheduling.maxDuration: '1d': is not a duration"),
        ("scheduling", {"maxDuration": "5 s"}, "request.scheduling.maxDuration: '5 s': is less than the minute"),
        ("docker", {"image": "a@sha256:" + "0" * 64}, "digests are not taken"),
        ("docker", {"image": "no image"}, "request.docker.image: 'no image': is not an image"),
        ("docker", {"workingDir": "/project"}, "request.docker.workingDir: '/project': is not a folder"),
        ("docker", {"environment": {"a-b": "1"}}, "request.docker.environment"),
        ("docker", {"user": "1000:1000"}, "request.docker.user: '1000:1000': "),
        ("docker", {"portMappings": [{"containerPort": 0}]}, "request.docker.portMappings.0.containerPort: 0: "),
        ("docker", {"storage": [{"hostPath": "tmpfs"}]}, "tmpfs needs a containerPath and a sizeGb"),
        ("docker", {"storage": [{}]}, "needs a hostPath or a containerPath"),
        ("extra", {"sshPubKeys": ["nonsense"]}, "'nonsense' is not a public key"),
        ("extra", {"emailOnRun": ["nobody"]}, "request.extra.emailOnRun.0: 'nobody': "),
    ],
)
def test_a_complaint_names_field_and_value(part: str, given: Any, complaint: str) -> None:
    assert complaint in told(body(**{part: given}))


@pytest.mark.parametrize(
    "field", ["name", "owner", "request.resources.cpus", "request.resources.gpus", "request.docker.image"]
)
def test_what_is_required_is_missed(field: str) -> None:
    sent = body()
    *way, last = field.split(".")
    holder: Any = sent
    for step in way:
        holder = holder[step]
    del holder[last]
    assert told(sent) == f"{field}: is required and missing"


def test_a_body_that_is_no_json_is_refused() -> None:
    with pytest.raises(Unusable, match=r"the body: .*Invalid JSON"):
        parse(b"{")


@pytest.mark.parametrize(
    ("text", "length"), [("90 s", 90), ("5min", 300), ("2h", 7200), ("1 day", 86400), ("1.5 weeks", 907200)]
)
def test_durations(text: str, length: int) -> None:
    assert seconds(text) == length


@pytest.mark.parametrize("text", ["1d", "1", "day", "1 month", "-1 h", ""])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        seconds(text)


def test_both_durations_are_there_although_none_was_given() -> None:
    scheduling = parsed(scheduling={"minDuration": None}).request.scheduling
    assert (scheduling.min_duration, scheduling.max_duration) == ("1 hour", "2 days")


def test_the_login_of_a_registry_is_apart_from_the_image() -> None:
    docker = parsed(docker={"image": "me:secret@registry.example:5000/a/b:1"}).request.docker
    assert docker.reference == "registry.example:5000/a/b:1"
    assert docker.login == ("me", "secret")
    assert parsed().request.docker.login is None


def test_short_forms_are_completed() -> None:
    docker = parsed(docker={"storage": ["/project_ghent", {"hostPath": ".ssh"}], "portMappings": [22]}).request.docker
    assert [(one.host_path, one.container_path) for one in docker.storage] == [
        ("/project_ghent/", "/project_ghent/"),
        (".ssh/", "/root/.ssh/"),
    ]
    assert docker.port_mappings[0].container_port == 22


@pytest.mark.parametrize(
    "given",
    [
        {"interactive": True, "notBefore": "2030-01-01T00:00:00Z"},
        {"notBefore": "2030-01-02T00:00:00Z", "notAfter": "2030-01-01T00:00:00Z"},
        {"notBefore": "2030-01-02T00:00:00"},
    ],
)
def test_windows_that_make_no_sense(given: dict[str, Any]) -> None:
    assert "request.scheduling" in told(body(scheduling=given))


def test_what_imec_s_client_sends_is_taken() -> None:
    """Their model of a request, dumped the way their client does."""
    mine = body(
        resources={"gpuModel": "V100", "clusterId": 4, "minCudaVersion": 11},
        docker={
            "environment": {"A": 1, "B": True, "C": "x"},
            "storage": [
                {"hostPath": "/project_ghent", "containerPath": "/p"},
                {"hostPath": ".ssh"},
                {"hostPath": "tmpfs", "containerPath": "/t", "sizeGb": 2},
            ],
            "portMappings": [22, {"containerPort": 80, "hostPort": 8080}],
            "workingDir": "/p/",
            "groupAdd": "users",
        },
        scheduling={"killableAfter": "2h", "maxSimultaneousJobs": {"bucketName": "b", "bucketMax": 2}},
    )
    sent = NewJobV4.model_validate(mine).model_dump(mode="json", exclude_none=True)
    taken = parse(json.dumps(sent).encode()).request
    assert taken.scheduling.min_duration == "2h"
    assert taken.docker.environment == {"A": 1, "B": True, "C": "x"}
    assert taken.docker.tmpfs_gb == 2
    assert taken.docker.group_add == ["users"]
    assert taken.resources.gpu_model == ["V100"]
