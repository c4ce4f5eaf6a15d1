"""What a node uses, and what all of them use: kernels of both kinds as folders of files, real streams of samples."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_node import Node, wait_for
from hvdctl.agent import gpus, meters
from hvdctl.agent.sample import Options, Sampler, grown

GIB = 2**30
CORES = float(len(os.sched_getaffinity(0)))


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of 16 GiB with four cores, seen from a container of it."""
    root = tmp_path / "system"
    lay(
        root,
        {
            "proc/stat": "cpu  100 0 50 800 10 0 5 3 0 0\n" + "".join(f"cpu{i} 1 1 1 1\n" for i in range(4)),
            "proc/meminfo": f"MemTotal: {16 * 2**20} kB\nMemFree: 1 kB\nMemAvailable: {12 * 2**20} kB\n",
            "proc/self/cgroup": "0::/\n",
            "proc/1/environ": "PATH=/bin\0",
            "proc/net/dev": "a\nb\n    lo: 99 0 0 0 0 0 0 0 99 0\n  eth0: 1000 1 0 0 0 0 0 0 500 1\n",
        },
    )
    monkeypatch.setenv("HVD_SYSTEM", str(root))
    return root


def lay(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def version_2(root: Path, below: str = "", limit: str = "max", quota: str = "max") -> None:
    files = {
        "cpu.stat": "usage_usec 5000000\nuser_usec 1\n",
        "cpu.max": f"{quota} 100000\n",
        "memory.current": f"{3 * GIB}\n",
        "memory.max": f"{limit}\n",
        "memory.stat": f"anon 1\ninactive_file {GIB}\n",
    }
    lay(root, {f"sys/fs/cgroup{below}/{name}": text for name, text in files.items()})


def version_1(root: Path, limit: int = 2**63 - 4096, quota: int = -1) -> None:
    files = {
        "cpuacct/cpuacct.usage": "7000000000\n",
        "cpu/cpu.cfs_quota_us": f"{quota}\n",
        "cpu/cpu.cfs_period_us": "100000\n",
        "memory/memory.usage_in_bytes": f"{3 * GIB}\n",
        "memory/memory.limit_in_bytes": f"{limit}\n",
        "memory/memory.stat": f"inactive_file 5\ntotal_inactive_file {GIB}\n",
    }
    lay(root, {f"sys/fs/cgroup/{name}": text for name, text in files.items()})
    # The engine shows the container's own group, while the kernel names it from the host's root.
    lines = [f"{n}:{name}:/docker/abc\n" for n, name in ((4, "memory"), (2, "cpuacct"), (1, "cpu"))]
    lay(root, {"proc/self/cgroup": "".join(lines) + "0::/docker/abc\n"})


def test_a_container_of_version_2_without_limits(system: Path) -> None:
    version_2(system)
    found = meters.meter()
    assert (found.scope, found.cpu_seconds(), found.cpus()) == ("container", 5.0, CORES)
    assert found.memory() == (2 * GIB, 16 * GIB)


def test_limits_of_a_container_are_the_whole(system: Path) -> None:
    version_2(system, limit=str(4 * GIB), quota="50000")
    found = meters.meter()
    assert (found.cpus(), found.memory()[1]) == (0.5, 4 * GIB)


def test_among_all_groups_of_the_host_the_own_one_is_read(system: Path) -> None:
    version_2(system, below="/system.slice/docker-abc.scope", limit=str(GIB * 8))
    lay(system, {"proc/self/cgroup": "0::/system.slice/docker-abc.scope\n", "sys/fs/cgroup/cpu.stat": "usage_usec 9\n"})
    assert meters.meter().memory() == (2 * GIB, 8 * GIB)


def test_a_container_of_version_1(system: Path) -> None:
    version_1(system)
    found = meters.meter()
    assert (found.scope, found.cpu_seconds(), found.cpus()) == ("container", 7.0, CORES)
    assert found.memory() == (2 * GIB, 16 * GIB)
    version_1(system, limit=4 * GIB, quota=25000)
    assert (found.cpus(), found.memory()[1]) == (0.25, 4 * GIB)


@pytest.mark.parametrize("flag", [False, True])
def test_a_node_with_a_machine_of_its_own_tells_of_the_machine(system: Path, flag: bool) -> None:
    version_2(system)
    if not flag:
        lay(system, {"proc/1/environ": "PATH=/bin\0HVD_LISTEN=127.0.0.1 10.0.0.2\0"})
    found = meters.meter(machine=flag)
    assert (found.scope, found.cpus(), found.memory()) == ("machine", 4.0, (4 * GIB, 16 * GIB))
    assert found.cpu_seconds() == 155 / os.sysconf("SC_CLK_TCK")


def test_the_role_still_tells_such_a_node_where_to_listen() -> None:
    role = Path(__file__).parents[3] / "playbooks" / "roles" / "horovod" / "vars" / "main.yml"
    assert "--env=HVD_LISTEN=" in role.read_text(), "by this the agent knows that it has a machine to itself"


def test_without_a_cgroup_to_be_seen_it_is_the_machine(system: Path) -> None:
    assert meters.meter().scope == "machine"


def test_only_ranks_are_counted_not_their_launchers(system: Path) -> None:
    agent = "/usr/bin/python3\0-I\0/opt/hvdctl/agent\0"
    launcher = f"mpirun\0-np\x002\0env\0HVDCTL_RUN=3\0{agent}rank\x003\0"
    others = [f"{agent}supervise\x003\0", launcher, "python\0train.py\0rank\0", ""]
    lines = [f"{agent}rank\x003\0", *others]
    lay(system, {f"proc/{10 + index}/cmdline": line for index, line in enumerate(lines)})
    assert meters.ranks() == 1


def test_rates_are_of_the_time_in_between_and_a_counter_that_began_anew_is_unknown(
    system: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version_2(system)
    monkeypatch.setattr(meters, "interface", lambda: "eth0")
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    sampler = Sampler(Options())
    clock[0] += 2.0
    used = f"usage_usec {5_000_000 + int(CORES * 1e6)}\n"
    lay(system, {"sys/fs/cgroup/cpu.stat": used, "proc/net/dev": "  eth0:1001000 1 0 0 0 0 0 0 500 1\n"})
    told = sampler.sample()
    assert (told["cpu"], told["rx_bits"], told["tx_bits"]) == (0.5, 4_000_000, 0)
    clock[0] += 1.0
    lay(system, {"sys/fs/cgroup/cpu.stat": "usage_usec 7\n", "proc/net/dev": "  eth0: 5 1 0 0 0 0 0 0 700 1\n"})
    told = sampler.sample()
    assert (told["cpu"], told["rx_bits"], told["tx_bits"]) == (None, None, 1600)
    lay(system, {"proc/net/dev": ""})
    assert sampler.sample()["tx_bits"] is None
    assert grown(None, 3) is None and grown(3, 3) == 0


def test_gpus_as_nvidia_smi_tells_them() -> None:
    assert gpus.parse("Tesla P100, 87, 1024, 16280\nA card, with a comma, [N/A], [N/A], 4096\nnonsense\n") == [
        {"name": "Tesla P100", "use": 0.87, "memory": GIB, "memory_limit": 16280 * 2**20},
        {"name": "A card, with a comma", "use": None, "memory": None, "memory_limit": 4 * GIB},
    ]


@pytest.fixture
def programs(node: Node, tmp_path: Path) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    node.env["PATH"] = f"{folder}:{node.env['PATH']}"
    return folder


def program(file: Path, script: str) -> None:
    file.write_text("#!/bin/sh\n" + script)
    file.chmod(0o755)


def test_a_sample_of_this_machine(node: Node, programs: Path) -> None:
    program(
        programs / "nvidia-smi",
        'case "$*" in *--query-gpu=name,*--format=csv,noheader,nounits) echo "P100, 50, 1, 2";; *) exit 9;; esac\n',
    )
    told = node.ask("sample", "--count", "1", "--every", "0.2")
    assert 0 <= told["cpu"] <= 1 and told["cpus"] > 0
    assert 0 < told["memory"] <= told["memory_limit"]
    assert told["gpus"] == [{"name": "P100", "use": 0.5, "memory": 2**20, "memory_limit": 2**21}]
    program(programs / "nvidia-smi", "echo 'no driver' >&2; exit 9\n")
    assert node.ask("sample", "--count", "1", "--every", "0.2")["gpus"] == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--every", "0"], "0.2 to 60 seconds, not 0"),
        (["--every", "nan"], "0.2 to 60 seconds, not nan"),
        (["--count", "0"], "at least 1, not 0"),
        (["--every"], "usage: "),
        (["--often"], "usage: "),
    ],
)
@pytest.mark.parametrize("verb", ["sample", "top"])
def test_bad_options_are_named(node: Node, verb: str, words: list[str], said: str) -> None:
    done = node.call(verb, *words)
    assert done.returncode == 2
    assert said in json.loads(done.stdout)["error"]


def test_sampling_ends_at_once_when_its_reader_goes(node: Node) -> None:
    child = node.start("sample", "--every", "60", stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline()
    child.stdout.close()
    assert child.wait(10) == 0


@pytest.fixture
def cluster(node: Node, programs: Path, tmp_path: Path) -> Iterator[Path]:
    """This machine as node0, and others behind a small ssh; those in the file `down` refuse."""
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "name").write_text("node0\n")
    (home / "hostfile").write_text("node0 slots=1\nnode1 slots=1\n")
    node.env |= {"HOME": str(home), "HVD_CONFIG": str(tmp_path / "etc"), "MARK": str(home)}
    node.env.pop("HVD_CLUSTER_FILE", None)
    program(
        programs / "ssh",
        'while [ "${1#-}" != "$1" ]; do [ "$1" = -o ] && shift; shift; done\n'
        f'grep -qsx "$1" {home}/down && {{ echo "ssh: connect to host $1: refused" >&2; exit 255; }}\n'
        f'grep -qsx "$1" {home}/older && {{ echo \'{{"error": "no verb: sample"}}\'; exit 2; }}\n'
        'shift; exec sh -c "$*"\n',
    )
    yield home
    wait_for(lambda: not marked(home))


def marked(home: Path) -> list[str]:
    """What runs with the mark of these nodes."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if f"MARK={home}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append((entry / "cmdline").read_text())
        except OSError:
            continue
    return found


def test_all_nodes_in_one_document(node: Node, cluster: Path) -> None:
    done = node.call("top", "--count", "2", "--every", "0.2")
    first, second = (json.loads(line) for line in done.stdout.splitlines())
    assert [(one["node"], one["role"]) for one in first["nodes"]] == [("node0", "head"), ("node1", "worker")]
    assert all("cpu" in one for one in (*first["nodes"], *second["nodes"]))
    assert second["time"] > first["time"]


def test_the_description_of_the_cluster_comes_before_the_hostfile(node: Node, cluster: Path) -> None:
    described: dict[str, Any] = {"nodes": [{"name": "node0"}, {"name": "node1"}, {"name": "node2"}]}
    (cluster / ".hvdctl").mkdir()
    (cluster / ".hvdctl" / "cluster.json").write_text(json.dumps(described))
    assert len(node.ask("top", "--count", "1")["nodes"]) == 3
    elsewhere = cluster / "other.json"
    elsewhere.write_text(json.dumps({"nodes": described["nodes"][:1]}))
    node.env["HVD_CLUSTER_FILE"] = str(elsewhere)
    assert len(node.ask("top", "--count", "1")["nodes"]) == 1


def test_a_lost_node_is_told_and_tried_again_while_the_others_go_on(node: Node, cluster: Path) -> None:
    (cluster / "hostfile").write_text("node0 slots=1\nnode1 slots=1\nnode2 slots=1\n")
    (cluster / "down").write_text("node1\n")
    (cluster / "older").write_text("node2\n")
    child = node.start("top", "--every", "0.2", stdout=subprocess.PIPE)
    assert child.stdout is not None
    deadline = time.monotonic() + 60
    # On a busy machine the first line may not have all.
    while "no answer yet" in str(nodes := json.loads(child.stdout.readline())["nodes"]):
        assert time.monotonic() < deadline
    assert "cpu" in nodes[0]
    assert nodes[1] == {"node": "node1", "lost": "ssh: connect to host node1: refused", "role": "worker"}
    assert nodes[2]["lost"] == "its image is of an older hvdctl"
    (cluster / "down").unlink()
    while "cpu" not in json.loads(child.stdout.readline())["nodes"][1]:
        assert time.monotonic() < deadline
    # A node that is added is found, one that goes is not missed.
    (cluster / "hostfile").write_text("node0 slots=1\nnode3 slots=1\n")
    while [one["node"] for one in json.loads(child.stdout.readline())["nodes"] if "cpu" in one] != ["node0", "node3"]:
        assert time.monotonic() < deadline
    child.stdout.close()
    child.wait(10)


@pytest.mark.parametrize("how", ["reader", "term", "kill"])
def test_nothing_runs_on_any_node_when_it_has_ended(node: Node, cluster: Path, how: str) -> None:
    child = node.start("top", "--every", "60", stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline()
    assert len(marked(cluster)) >= 3
    {"reader": child.stdout.close, "term": child.terminate, "kill": child.kill}[how]()
    child.wait(10)
    wait_for(lambda: not marked(cluster))
    child.stdout.close()


def test_top_outside_of_a_cluster_says_so(node: Node, tmp_path: Path) -> None:
    node.env["HOME"] = str(tmp_path)
    assert "runs on a node of a cluster" in json.loads(node.call("top").stdout)["error"]
