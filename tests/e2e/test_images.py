"""The images as a user gets them: really built, really run without privileges, really reached and shaped."""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from hvdctl import engine, images
from hvdctl.progress import Silent

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.models.containers import Container

pytestmark = pytest.mark.docker

T = TypeVar("T")
UNPRIVILEGED: dict[str, Any] = {"user": "1000", "cap_drop": ["ALL"], "security_opt": ["no-new-privileges"]}
MODULES = {"pytorch": "horovod.torch", "tensorflow": "horovod.tensorflow.keras"}


@pytest.fixture(scope="module")
def client() -> Iterator[DockerClient]:
    found = engine.client()
    yield found
    found.close()


@pytest.fixture(scope="module", params=images.FRAMEWORKS)
def image(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Framework and name of its image; the first run on a machine takes minutes."""
    return request.param, images.build(request.param, Silent()).reference


@pytest.fixture(scope="module")
def any_image() -> str:
    return images.build(images.FRAMEWORKS[0], Silent()).reference


@pytest.fixture
def start(client: DockerClient) -> Iterator[Callable[..., Container]]:
    """Starts containers like nodes, and removes them in the end."""
    started: list[Container] = []

    def one(image: str, /, *command: str, **options: Any) -> Container:
        container = client.containers.create(image, list(command), **{**UNPRIVILEGED, **options})
        started.append(container)
        return container

    yield one
    for container in started:
        container.remove(force=True, v=True)


def run(client: DockerClient, name: str, *command: str, **options: Any) -> str:
    said = client.containers.run(
        name, list(command[1:]), entrypoint=command[0], remove=True, stderr=False, **{**UNPRIVILEGED, **options}
    )
    return bytes(said).decode()


def inside(container: Container, *command: str) -> str:
    output = container.exec_run(list(command)).output
    assert isinstance(output, bytes)
    return output.decode().strip()


def eventually(attempt: Callable[[], T | None], what: str, seconds: float = 90) -> T:
    """The first result of the attempt that is not None."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        result = attempt()
        if result is not None:
            return result
        time.sleep(0.3)
    raise AssertionError(f"not within {seconds:.0f} s: {what}")


def test_a_second_build_makes_nothing(image: tuple[str, str]) -> None:
    again = images.build(image[0], Silent())
    assert not again.built
    assert again.reference == image[1]
    assert again.seconds < 10


def test_installed_images_are_listed(image: tuple[str, str]) -> None:
    framework, name = image
    (found,) = (one for one in images.installed() if one.reference == name)
    assert (found.kind, found.framework, found.current) == ("jupyter", framework, True)
    assert found.size > 500e6


def test_horovod_has_gloo_and_mpi(client: DockerClient, image: tuple[str, str]) -> None:
    framework, name = image
    said = run(client, name, "horovodrun", "--check-build")
    ticked = {line.split("]")[1].strip() for line in said.splitlines() if "[X]" in line}
    assert {"Gloo", "MPI", {"pytorch": "PyTorch", "tensorflow": "TensorFlow"}[framework]} <= ticked


def test_the_image_tells_what_it_holds(client: DockerClient, image: tuple[str, str]) -> None:
    framework, name = image
    told = json.loads(run(client, name, "cat", "/etc/hvdctl/build.json"))
    assert told["framework"] == framework
    assert (told["gloo"], told["mpi"], told["nccl"]) == (True, True, False)
    assert told["versions"]["horovod"] == "0.28.1"
    assert told["versions"]["python"].startswith("3.11")
    assert told["versions"]["openmpi"]


@pytest.mark.parametrize("controller", ["--gloo", "--mpi"])
def test_two_ranks_reduce(client: DockerClient, image: tuple[str, str], controller: str) -> None:
    framework, name = image
    tensor = {"pytorch": "torch.ones(3)", "tensorflow": "tensorflow.ones(3)"}[framework]
    module, library = MODULES[framework].removesuffix(".keras"), tensor.split(".")[0]
    code = (
        f"import {library}, {module} as hvd; hvd.init(); "
        f"print('sum', float(hvd.allreduce({tensor}, op=hvd.Sum)[0]), flush=True)"
    )
    said = run(client, name, "horovodrun", controller, "-np", "2", "-H", "localhost:2", "python", "-c", code)
    assert said.count("sum 2.0") == 2


def test_open_mpi_sends_large_allreduces_round_a_ring(client: DockerClient, any_image: str) -> None:
    said = run(client, any_image, "ompi_info", "--param", "coll", "tuned", "--level", "9", "--parsable")
    values = dict(line.split(":param:")[1].split(":value:", 1) for line in said.splitlines() if ":value:" in line)
    assert values["coll_tuned_use_dynamic_rules"].endswith("true")
    rules = run(client, any_image, "cat", values["coll_tuned_dynamic_rules_filename"])
    assert rules.splitlines()[-1] == "524288 4 0 0", "from half a MiB on, algorithm 4"


def test_the_users_api_imports(client: DockerClient, image: tuple[str, str]) -> None:
    framework, name = image
    run(client, name, "python", "-c", f"import {MODULES[framework]}")
    if framework == "pytorch":
        assert "usage" in run(client, name, "torchrun", "--help")


def test_the_agent_starts_with_the_systems_python(client: DockerClient, image: tuple[str, str]) -> None:
    assert "hvd-agent" in run(client, image[1], "ls", "/usr/local/bin")
    folder = run(client, image[1], "sh", "-c", "ls -l /opt/hvdctl/agent && test ! -w /opt/hvdctl/agent")
    assert "__main__.py" in folder


def test_a_volume_and_the_keys_folder_belong_to_the_user(client: DockerClient, any_image: str) -> None:
    volume = client.volumes.create(f"hvdctl-test-{uuid.uuid4().hex[:8]}")
    try:
        said = run(
            client,
            any_image,
            *("sh", "-c", "touch /shared/x && stat -c '%U %a' /etc/hvdctl/ssh /home/hvd/.ssh"),
            volumes={volume.name: {"bind": "/shared", "mode": "rw"}},
        )
    finally:
        volume.remove(force=True)
    assert said.splitlines() == ["hvd 700", "hvd 700"]


def test_a_node_without_its_host_key_says_so(start: Callable[..., Container], any_image: str) -> None:
    node = start(any_image)
    node.start()
    assert node.wait(timeout=60)["StatusCode"] == 78
    assert "ssh_host_ed25519_key is missing" in node.logs().decode()


def test_a_node_answers_on_ssh_with_the_given_host_key(
    start: Callable[..., Container], image: tuple[str, str], tmp_path: Path
) -> None:
    for key in ("host", "user"):
        argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(tmp_path / key)]
        subprocess.run(argv, check=True)
    node = start(image[1], ports={"2222/tcp": ("127.0.0.1", None)})
    files = {
        "ssh_host_ed25519_key": (tmp_path / "host").read_bytes(),
        "authorized_keys": (tmp_path / "user.pub").read_bytes(),
    }
    assert node.put_archive("/etc/hvdctl/ssh", owned_by_hvd(files))
    node.start()
    node.reload()
    published = node.ports["2222/tcp"]
    assert published
    port = published[0]["HostPort"]
    (tmp_path / "known").write_text(f"[127.0.0.1]:{port} {(tmp_path / 'host.pub').read_text()}")
    ssh = ["ssh", "-F", "none", "-p", port, "-i", str(tmp_path / "user"), "-o", "BatchMode=yes"]
    ssh += ["-o", "StrictHostKeyChecking=yes", "-o", f"UserKnownHostsFile={tmp_path / 'known'}", "hvd@127.0.0.1"]

    def remote(*command: str) -> str | None:
        done = subprocess.run([*ssh, *command], capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else None

    assert eventually(lambda: remote("whoami"), "an answer on ssh") == "hvd"
    assert remote("command -v python") == "/opt/venv/bin/python"
    assert remote("bash -lc 'command -v python'") == "/opt/venv/bin/python"
    assert remote("grep -h CapEff /proc/self/status") == "CapEff:\t0000000000000000"


def owned_by_hvd(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode, entry.uid, entry.gid = len(content), 0o600, 1000, 1000
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


@pytest.fixture
def pair(
    client: DockerClient, start: Callable[..., Container], any_image: str
) -> Iterator[tuple[Container, Container]]:
    """Two containers on a network of their own, each with a server that measures throughput."""
    network = client.networks.create(f"hvdctl-test-{uuid.uuid4().hex[:8]}")
    nodes: list[Container] = []
    try:
        for end in "ab":
            options = {"entrypoint": "iperf3", "network": network.name, "name": f"{network.name}-{end}"}
            nodes.append(start(any_image, "-s", **options))
            nodes[-1].start()
        yield nodes[0], nodes[1]
    finally:
        for node in nodes:
            network.disconnect(node, force=True)
        network.remove()


def test_a_link_has_its_rate_in_both_directions(
    client: DockerClient, pair: tuple[Container, Container], any_image: str
) -> None:
    shaped, peer = pair

    def link(rate: str) -> None:
        run(
            client,
            any_image,
            *("hvd-link", "eth0", rate),
            user="0",
            cap_add=["NET_ADMIN"],
            network_mode=f"container:{shaped.id}",
        )

    def shown() -> str:
        return inside(shaped, "hvd-link", "eth0", "show")

    def measured(*direction: str) -> float:
        def once() -> float | None:
            argv = ["iperf3", "-c", str(peer.name), "-t", "3", "-O", "1", "--json", *direction]
            report = json.loads(inside(shaped, *argv))
            received = report.get("end", {}).get("sum_received")
            return float(received["bits_per_second"]) if received else None

        return eventually(once, "a measurement by iperf3")

    assert shown() == "none"
    # Twice the same, then another one: neither fails, and the last one counts.
    for rate in (1_000_000_000, 1_000_000_000, 100_000_000):
        link(str(rate))
        assert shown() == str(rate)
    for direction in ([], ["--reverse"]):
        assert 70e6 < measured(*direction) < 110e6
    link("1000000000")
    for direction in ([], ["--reverse"]):
        assert 300e6 < measured(*direction) < 1100e6
    link("none")
    link("none")
    assert shown() == "none"
    assert "ifb" not in inside(shaped, "ip", "link")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nope0", "show"), "no network device nope0"),
        (("lo", "10g"), "RATE is a whole number"),
        (("lo", "0"), "RATE is a whole number"),
        (("lo",), "usage"),
        (("lo", "1000000"), "NET_ADMIN"),
    ],
)
def test_a_link_that_cannot_be_shaped_is_one_clear_line(
    start: Callable[..., Container], any_image: str, arguments: tuple[str, ...], said: str
) -> None:
    helper = start(any_image, *arguments, entrypoint="hvd-link")
    helper.start()
    assert helper.wait(timeout=60)["StatusCode"] == 1
    logs = helper.logs().decode().splitlines()
    assert len(logs) == 1 and said in logs[0]
