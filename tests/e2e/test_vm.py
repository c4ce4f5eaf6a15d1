"""Two virtual machines, booted by Terraform, made Horovod hosts by Ansible; then the same two as machines of `static`.

The tests stand in the order in which they are run: each leaves the machines as the next one needs them.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from hvdctl import qemu, vmimage
from hvdctl.cluster import Cluster
from hvdctl.progress import Silent

from .conftest import Result, asked, wait_for
from .machines import Lab, Machines, manifest

TOOLS = (qemu.BINARY, "qemu-img", "vde_switch")

pytestmark = [
    pytest.mark.vm,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(
        not all(map(shutil.which, TOOLS)), reason="QEMU or vde2 is not installed: scripts/system.sh --tests"
    ),
]

RATE = "200m"
OUTSIDER = "10.87.77.77"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    vmimage.build("pytorch", Silent())
    made = Machines(tmp_path_factory.mktemp("vm") / "home")
    try:
        words = ("--provider", "vm", "--nodes", "2", "--net", RATE, "--option", "internet=false", "--json")
        made.report = made("up", *words).data
        yield made
    finally:
        with contextlib.suppress(Exception):
            made("down", "-y", "--force", code=None)
        assert made.left() == []


def test_ssh_answers_not_long_after_the_guests_own_boot(pair: Machines) -> None:
    waited = pair.report["seconds"]["waiting for the machines"] + pair.report["seconds"]["provisioning"]
    own = []
    for machine in ("node0.machine", "node1.machine"):
        said = wait_for(partial(finished, pair, machine))
        own.append(boot_seconds(said))
    print(f"boot to SSH of both: {waited:.1f} s; the guests' own boot: {own[0]:.1f} and {own[1]:.1f} s")
    assert waited <= 1.3 * max(own)


def finished(pair: Machines, machine: str) -> str | None:
    said = pair.on(machine, "systemd-analyze time", code=None)
    return said if "Startup finished" in said else None


def boot_seconds(said: str) -> float:
    total = re.search(r"= (?:(\d+)min )?([\d.]+)(m?s)", said)
    assert total, said
    return 60 * int(total[1] or 0) + float(total[2]) / (1000 if total[3] == "ms" else 1)


def test_status_says_what_the_machines_run_on(pair: Machines) -> None:
    told = pair("status")
    assert re.search(r"QEMU [\d.]+ with (KVM|TCG, emulated: .+)", told.out)
    assert pair("status", "--json").data["state"] == "up"


def test_another_home_neither_takes_nor_ends_them(pair: Machines, tmp_path: Path) -> None:
    other = replace(pair, home=tmp_path / "home")
    for words in (("down", "-y"), ("down", "-y", "--force")):
        refused = other(*words, code=2)
        assert f"cluster {pair.name!r} is somebody else's: process hvdctl-{pair.name}-node" in refused.err
        assert str(pair.home) in refused.err
    assert other.running() == {}
    assert len(pair.running()) == 2


def test_nothing_listens_but_ssh_and_the_node(pair: Machines) -> None:
    """On the machines: sshd, and on the cluster's own addresses what the share and the node need."""
    listening = pair.on("node1.machine", "ss -Hltn | awk '{print $4}'").split()
    ours = {"127.0.0.1:2222", "10.87.0.2:2222"}
    assert ours <= set(listening)
    assert not [place for place in listening if place.endswith(":2222") and place not in ours]
    user = pair.on(
        "node1.machine", f"docker inspect -f '{{{{.Config.User}}}} {{{{.HostConfig.CapDrop}}}}' hvdctl-{pair.name}"
    )
    assert user.split() == ["74830:74830", "[ALL]"]


def test_the_first_account_of_a_machine_gets_no_key(pair: Machines) -> None:
    pid = pair.on("node1.machine", f"docker inspect -f '{{{{.State.Pid}}}}' hvdctl-{pair.name}").strip()
    read = f"setpriv --reuid %d --clear-groups cat /proc/{pid}/root/etc/hvdctl/ssh/id_ed25519"
    assert "PRIVATE KEY" in pair.on("node1.machine", read % 0)
    assert "PRIVATE KEY" not in pair.on("node1.machine", read % 1000, code=None)


def test_packets_of_jobs_do_not_reach_the_network_that_leads_to_this_machine(pair: Machines) -> None:
    """These machines have `internet: false`, so QEMU refuses what arrives there; what jobs send never arrives."""
    ask = (
        "import socket\n"
        'try: socket.create_connection(("10.0.2.2", 9), 5)\n'
        "except OSError as error: print(type(error).__name__)\n"
    )
    assert pair("exec", "node1", "--", "python3", "-c", ask).out.strip() == "TimeoutError"
    assert pair.on("node1.machine", f"python3 -c '{ask}'").strip() == "ConnectionRefusedError"


def test_the_share_is_a_kernel_nfs_and_the_same_on_both(pair: Machines) -> None:
    mounted = pair.on("node1.machine", "grep ' /shared ' /proc/mounts")
    assert re.match(r"\S+:/\S* /shared nfs4 rw", mounted), mounted
    pair("exec", "node0", "--", "sh", "-c", "echo from the head >/shared/a")
    assert pair("exec", "node1", "--", "cat", "/shared/a").out.strip() == "from the head"
    pair("exec", "node1", "--", "sh", "-c", "echo from the worker >/shared/b")
    assert pair("exec", "node0", "--", "cat", "/shared/b").out.strip() == "from the worker"


def test_an_address_outside_the_cluster_gets_neither_port_nor_share(pair: Machines) -> None:
    """From a network namespace of the worker, on the same wire with an address that the cluster does not know."""
    pair.on(
        "node1.machine",
        "ip netns add outsider && ip link add out0 link eth1 type macvlan mode bridge\n"
        f"ip link set out0 netns outsider && ip -n outsider addr add {OUTSIDER}/16 dev out0\n"
        "ip -n outsider link set out0 up",
    )
    try:
        pair.on("node0.machine", "systemd-run --unit=listener --collect python3 -m http.server 8099")
        ask = 'python3 -c \'import socket; socket.create_connection(("10.87.0.1", 8099), 5); print("open")\''
        wait_for(lambda: "open" in pair.on("node1.machine", ask, code=None), 60)
        refused = pair.on("node1.machine", f"ip netns exec outsider {ask}", code=None)
        assert "open" not in refused
        assert "imed out" in refused, refused
        # Past the firewall the export itself refuses.
        pair.on("node0.machine", "systemctl stop listener hvdctl-firewall")
        source = pair.on("node1.machine", "awk '$2 == \"/shared\" {print $1}' /proc/mounts").strip()
        mount = f"mount -t nfs4 -o soft,timeo=50,retrans=1,retry=0 {source} /mnt/x"
        said = pair.on("node1.machine", f"mkdir -p /mnt/x; ip netns exec outsider {mount}", code=None)
        assert re.search("denied|not permitted|No such file", said), said
        assert "/mnt/x" not in pair.on("node1.machine", "cat /proc/mounts")
        # The very same words from an address of the cluster.
        assert "a\n" in pair.on("node1.machine", f"{mount} && ls /mnt/x && umount /mnt/x")
    finally:
        pair.on("node1.machine", "ip netns del outsider", code=None)
        pair.on("node0.machine", "systemctl start hvdctl-firewall", code=None)
    assert "table inet hvdctl" in pair.on("node0.machine", "nft list tables")


def test_a_horovod_job_spans_both_machines(pair: Machines) -> None:
    # Emulated on a busy machine, one rank may come minutes after the other; the head has JupyterLab's start beside it.
    done = pair("run", "--env", "HOROVOD_GLOO_TIMEOUT_SECONDS=600", "--", "python", "allreduce.py")
    assert done.out.count("sum 3 of 2 by gloo") == 2, done.out


WHERE = """
import os
import hvd_cluster as hc
print(hc.run(lambda: os.uname().nodename, quiet=True))
"""


def test_jupyterlab_and_functions_on_both_machines(pair: Machines) -> None:
    url = pair("jupyter", "--json").data["url"]
    token = url.partition("token=")[2]
    assert asked(url, "/api/contents/notebooks", token) == 200
    assert asked(url, "/api/contents/notebooks") == 403
    listening = pair.on("node0.machine", "ss -Hltnp | grep -c jupyter-lab", code=None)
    assert listening.strip() == "0"
    told = pair("exec", "node0", "--", "python3", "-c", WHERE)
    assert "['node0', 'node1']" in told.out
    looked = pair("top", "--once", "--json").data
    assert [(node["node"], node["scope"]) for node in looked["nodes"]] == [("node0", "machine"), ("node1", "machine")]


RELINK = """
import sys
from hvdctl import pipeline
from hvdctl.cluster import Cluster
from hvdctl.progress import Silent
pipeline.relink(Cluster(sys.argv[1]), int(sys.argv[2]), Silent())
"""


def test_links_get_another_rate_while_the_cluster_stands(pair: Machines) -> None:
    """As a bench does it; back to the spec's own in the end."""
    for rate in (100_000_000, 200_000_000):
        subprocess.run([sys.executable, "-c", RELINK, pair.name, str(rate)], env=pair.env, timeout=300, check=True)
        shown = pair("exec", "--all", "--json", "--", "hvd-link", "eth1", "show").data
        assert [node["stdout"].strip() for node in shown] == [str(rate)] * 2


def test_a_second_run_changes_nothing(pair: Machines) -> None:
    phases = json.loads((pair.folder / "phases.json").read_text())
    del phases["configure"]
    (pair.folder / "phases.json").write_text(json.dumps(phases))
    assert pair("up", "--json").data["configured"]
    recap = pair.recap()
    assert set(recap) == {"node0", "node1", "node0.machine", "node1.machine"}
    assert {host: told["changed"] for host, told in recap.items()} == dict.fromkeys(recap, 0)


def test_the_worker_comes_back_from_a_reboot_as_it_was(pair: Machines) -> None:
    before = pair.on("node1.machine", "cat /proc/sys/kernel/random/boot_id")
    pair.on("node1.machine", "systemctl reboot", code=None)
    wait_for(lambda: before != pair.on("node1.machine", "cat /proc/sys/kernel/random/boot_id", code=None) != "", 600)

    def seen() -> bool:
        return pair("exec", "node1", "--", "cat", "/shared/a", code=None).out.strip() == "from the head"

    wait_for(seen, 300)
    assert "table inet hvdctl" in pair.on("node1.machine", "nft list tables")
    shown = pair("exec", "node1", "--", "hvd-link", "eth1", "show").out.strip()
    assert shown == "200000000"


def test_a_head_that_crashed_comes_back_with_its_share_while_a_third_machine_comes(pair: Machines) -> None:
    """Both boot at the same time. What was on the head's disk stays, and the worker sees it again."""
    was = pair.ids()
    url = pair("jupyter", "--json").data["url"]
    pair("exec", "node1", "--", "sh", "-c", "echo kept >/shared/c")
    os.kill(pair.running()["node0"], signal.SIGKILL)
    wait_for(lambda: "node0" not in pair.running())
    assert pair("status", "--json", code=1).data["lost"] == ["node0"]
    assert pair("scale", "--nodes", "3", "--json").data["configured"]
    now = pair.ids()
    assert now["node1"] == was["node1"]
    assert now["node0"] != was["node0"]
    for node in ("node0", "node1", "node2"):
        assert pair("exec", node, "--", "cat", "/shared/a", "/shared/c").out.split() == ["from", "the", "head", "kept"]
    assert pair("exec", "node2", "--", "ssh", "node1", "hostname").out.strip() == "node1"
    # Its token was on that disk, and the tunnel finds it by itself.
    wait_for(lambda: asked(url, "/api/status", url.partition("token=")[2]) == 200, 300)


def test_the_head_is_not_made_anew_without_a_word(pair: Machines) -> None:
    was = pair.ids()
    refused = pair("up", "--option", "disk=40g", code=2)
    assert "anew, with the loss of all data on its share" in refused.err
    assert pair.ids() == was
    assert "disk" not in pair("status", "--json").data["spec"]["options"]


def test_the_third_machine_goes(pair: Machines) -> None:
    was = pair.ids()
    pair("scale", "--nodes", "2", "-y")
    assert pair.ids() == {name: was[name] for name in ("node0", "node1")}
    assert sorted(pair.running()) == ["node0", "node1"]
    assert "10.87.0.3" not in pair.on("node0.machine", "nft list ruleset; exportfs -s; cat /etc/hosts")


@pytest.fixture(scope="module")
def lab(pair: Machines, tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """The machines as someone else's, with nothing of hvdctl on them."""
    folder = tmp_path_factory.mktemp("lab")
    made = Lab(folder / "home", cwd=folder)
    cluster = Cluster.__new__(Cluster)
    cluster.name, cluster.folder = pair.name, pair.folder
    from hvdctl import configure

    configure.play(cluster, "teardown.yml", {}, lambda _: None)
    ports = {node["name"]: node["ssh_port"] for node in pair("status", "--json").data["nodes"]}
    keys = {}
    for line in (pair.folder / "ssh" / "known_hosts").read_text().splitlines():
        name, key = line.split(" ", 1)
        keys[name.split(".")[0], ".machine." in name] = key
    home = folder / "user"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "known_hosts").write_text(
        "".join(f"[127.0.0.1]:{ports[node]} {keys[node, True]}\n" for node in ports)
        + "".join(f"10.87.0.{index + 1} {keys[f'node{index}', True]}\n" for index in range(2))
    )
    (folder / "facts.json").write_text(
        json.dumps({"ports": ports, "home": str(home), "key": str(pair.folder / "ssh" / "id_ed25519")})
    )
    # The share's data went with the teardown, so `down` has none to bring home.
    for phase in ("share", "configure"):
        cluster.forget(phase)
    return made


@pytest.fixture
def facts(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((lab.cwd / "facts.json").read_text())
    monkeypatch.setenv("HOME", found["home"])
    return found


def test_what_is_wrong_with_a_machine_is_named_and_nothing_is_changed(
    pair: Machines, lab: Lab, facts: dict[str, Any]
) -> None:
    good = {"user": "hvdctl", "address": "127.0.0.1"}
    hosts = [
        {**good, "port": port, "private_address": f"10.87.0.{index + 1}"}
        for index, port in enumerate(facts["ports"].values())
    ]
    other = lab.cwd / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other)], check=True)
    changed = (other.with_suffix(".pub")).read_text().rsplit(" ", 1)[0]
    cases: list[tuple[dict[str, Any], str]] = [
        ({"key": str(other)}, "refused the key"),
        ({"hosts": [hosts[0], {**hosts[1], "port": 1}]}, "[127.0.0.1]:1"),
        ({"hosts": [hosts[0], {**hosts[1], "port": 1, "host_key": [changed]}]}, "can't be reached"),
        ({"hosts": [hosts[0], {**hosts[1], "host_key": [changed]}]}, "shows another host key"),
        ({"hosts": [hosts[0], {**hosts[1], "private_address": "10.87.9.9"}]}, "has no interface with 10.87.9.9"),
        ({"hosts": [hosts[0]]}, "nodes: 2 asked, but options.hosts has 1"),
    ]

    def refused(number: int, change: dict[str, Any]) -> Result:
        spec = {"provider": "static", "nodes": 2, "options": {"hosts": hosts, "key": facts["key"], **change}}
        file = lab.cwd / f"bad{number}.yml"
        file.write_text(yaml.safe_dump(spec))
        return Lab(lab.cwd / f"bad{number}", cwd=lab.cwd)("up", "--file", file.name, code=None)

    # At the same time and each in a home of its own: most of a refusal is waiting for an emulated machine.
    with ThreadPoolExecutor(len(cases)) as pool:
        results = list(pool.map(refused, range(len(cases)), [change for change, _ in cases]))
    for (_, told), result in zip(cases, results, strict=True):
        assert result.code in (1, 2), result.out + result.err
        assert told in result.err, result.err
        assert "→" in result.err or "hint" in result.err
    assert "no such" in pair.on("node0.machine", "ls /etc/hvdctl/*", code=None).lower()


def test_a_host_list_a_manifest_and_an_inventory_lead_to_the_same_cluster(
    pair: Machines, lab: Lab, facts: dict[str, Any]
) -> None:
    """The machines of the list are behind a jump host, and have only the addresses that it knows."""
    ports = facts["ports"]
    (lab.cwd / "nodes.txt").write_text("10.87.0.1\n10.87.0.2\n")
    proxy = f"hvdctl@127.0.0.1:{ports['node0']}"
    lab_import(lab, facts, "nodes.txt", "list.yml", "--user", "hvdctl", "--proxy", proxy, "--name", lab.name)
    report = lab("up", "--file", "list.yml", "--json").data
    assert report["configured"]
    assert [node["ssh_proxy"] for node in lab("status", "--json").data["nodes"]] == [proxy] * 2
    assert lab("status", "--json").data["state"] == "up"
    lab("exec", "node1", "--", "sh", "-c", "echo here >/shared/from-static")
    assert lab("exec", "node0", "--", "cat", "/shared/from-static").out.strip() == "here"

    (lab.cwd / "wall.rspec").write_text(manifest(ports))
    imported = lab_import(lab, facts, "wall.rspec", "wall.yml")
    assert [host["private_address"] for host in imported["options"]["hosts"]] == ["10.87.0.1", "10.87.0.2"]
    stranger = Lab(lab.cwd / "home of another", name=lab.name, cwd=lab.cwd)
    assert "is part of another cluster" in stranger("up", "--file", "wall.yml", code=1).err
    assert lab("status", "--json").data["state"] == "up"
    lab("up", "--file", "wall.yml")
    assert [node["ssh_proxy"] for node in lab("status", "--json").data["nodes"]] == [None] * 2
    assert lab("exec", "node1", "--", "cat", "/shared/from-static").out.strip() == "here"

    (lab.cwd / "lab.ini").write_text(
        "[nodes]\n"
        + "".join(
            f"{name} ansible_host=127.0.0.1 ansible_port={port} ansible_user=hvdctl "
            f"hvd_private_address=10.87.0.{index + 1}\n"
            for index, (name, port) in enumerate(ports.items())
        )
    )
    lab_import(lab, facts, "lab.ini", "ini.yml")
    assert not lab("up", "--file", "ini.yml", "--json").data["configured"], "they are the same machines"


def lab_import(lab: Lab, facts: dict[str, Any], source: str, target: str, *words: str) -> dict[str, Any]:
    done = subprocess.run(
        [*lab.argv("import", source, "--output", target, "--key", facts["key"], *words)],
        cwd=lab.cwd,
        env={**lab.env, "HOME": facts["home"]},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # The pair has had JupyterLab, which takes minutes of an emulated machine's time.
    with (lab.cwd / target).open("a") as file:
        file.write("jupyter: false\n")
    found: dict[str, Any] = yaml.safe_load((lab.cwd / target).read_text())
    return found


def test_down_of_static_undoes_all_and_leaves_the_machines(pair: Machines, lab: Lab, facts: dict[str, Any]) -> None:
    assert "0 left" in lab("down", "-y").out
    for machine in ("node0.machine", "node1.machine"):
        look = "docker ps -aq; ls -d /etc/hvdctl/* /srv/hvdctl/*; nft list tables; tc qdisc show"
        left = pair.on(machine, look, code=None)
        assert "hvdctl" not in left.replace("/etc/hvdctl/*", "").replace("/srv/hvdctl/*", ""), left
        assert "tbf" not in left
        assert "/shared" not in pair.on(machine, "cat /proc/mounts /etc/fstab")
        pair.on(machine, "test ! -e /usr/local/sbin/hvd-link")
        folders = "/etc/systemd/system /var/lib /etc/security/limits.d /etc/exports.d"
        assert "hvd" not in pair.on(machine, f"ls {folders}; cat /etc/hosts", code=None)
    assert len(pair.running()) == 2


def test_down_leaves_nothing(pair: Machines) -> None:
    assert "0 left" in pair("down", "-y").out
    assert pair.left() == []
    assert pair.running() == {}
    with pair.owned():
        assert not qemu.switch_folder(pair.name).exists()
    assert not (pair.folder / "lock").exists()
    assert {entry.name for entry in pair.home.iterdir()} <= {".owner", pair.name}
    assert not list(Path(pair.folder).glob("vm/*"))
