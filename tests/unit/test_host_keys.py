"""A server with another host key in a node's place gets nothing, whichever way hvdctl goes: all that runs is real."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pexpect
import pytest
import yaml
from hvdctl import (
    access,
    configure,
    engine,
    imagepush,
    inventory,
    jobs,
    keys,
    links,
    machines,
    paths,
    providers,
    reach,
    ssh,
    top,
    tunnel,
    verbatim,
)
from hvdctl.agent import launchers
from hvdctl.cluster import Cluster, Node, write
from hvdctl.errors import HvdctlError
from hvdctl.progress import Silent
from hvdctl.providers import Access
from hvdctl.sites import probe
from hvdctl.sites.hosts import Host
from hvdctl.spec import Spec
from ssh_server import SshServer, serving
from support import IMAGE, make_nodes, program, wait_for

FAKES = Path(__file__).parent / "fakes" / "nodes"


class Lab:
    """A cluster of one node, and all the servers on the way to it; any of them may have another host key."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cluster = Cluster("demo")
        agent = folder / "agent"
        agent.mkdir()
        for verb, told in {"apply": {"changed": True}, "verify": {"ok": True}, "jupyter": {}, "list": []}.items():
            (agent / f"{verb}.json").write_text(json.dumps(told))
        # Only the servers run such commands: the clients are the real ones.
        self.env = {"PATH": f"{FAKES}:/usr/bin:/bin", "FAKE_NODES": str(agent), "NODE": "node0"}
        self.machine, self.bastion = (self.server(name) for name in ("machine", "bastion"))
        self.node = self.server("node")

    def server(self, name: str) -> SshServer:
        return SshServer(keys.ensure(self.folder / "keys" / name).private, self.env)

    @contextlib.contextmanager
    def listening(self, *strangers: str, kind: str = "container", jump: Sequence[str] = ()) -> Iterator[None]:
        """All servers listen, these with another host key than the known one; the files of the cluster are written.

        The way leads through the servers in `jump`.
        """
        known = {name: getattr(self, name).public for name in ("machine", "bastion", "node")}
        for name in strangers:
            getattr(self, name).host_key = keys.ensure(self.folder / "other" / name).private
        with serving(self.machine, self.bastion, self.node):
            self.machine.routes["127.0.0.1", inventory.NODE_PORT] = self.node.port
            self.write(known, kind, jump)
            yield

    def write(self, known: dict[str, str], kind: str, jump: Sequence[str]) -> None:
        there = self.node if kind == "container" else self.machine
        ports = {name: getattr(self, name).port for name in jump}
        proxy = ",".join(f"me@127.0.0.1:{port}" for port in ports.values()) or None
        (node,) = make_nodes(1)
        node = replace(node, kind=kind, address="127.0.0.1", ssh_port=there.port, ssh_proxy=proxy)
        node = replace(node, private_address="127.0.0.1", host_key=known["node"])
        self.cluster.store_nodes([node])
        self.cluster.store_spec(Spec(name="demo", nodes=1, image=IMAGE))
        self.cluster.complete("configure", 0, ids=[node.id])
        hops = self.folder / "hops"
        write(hops, "".join(f"[127.0.0.1]:{port} {known[name]}\n" for name, port in ports.items()))
        self.access = Access({"node0": (known["machine"],)}, self.cluster.key().private, (hops,))
        access.written(self.cluster, Spec(name="demo"), [node])
        write(self.cluster.inventory, verbatim.dump(inventory.inventory("demo", [node], self.cluster.ssh_config)))

    @property
    def nodes(self) -> list[Node]:
        return self.cluster.nodes()


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    made = Lab(tmp_path)
    client: Any = SimpleNamespace(
        images=SimpleNamespace(get=lambda name: SimpleNamespace(attrs={"Id": "1", "RootFS": {"Layers": []}})),
        close=lambda: None,
    )
    monkeypatch.setattr(engine, "client", lambda timeout=60: client)
    monkeypatch.setattr(jobs, "lost", lambda cluster, hosts: [])
    monkeypatch.setattr(jobs, "_RECONNECTS", 0)
    # Ansible pauses before each of its retries.
    settings = configure._environment
    once = {"ANSIBLE_SSH_RETRIES": "0"}
    monkeypatch.setattr(configure, "_environment", lambda work, sockets: settings(work, sockets) | once)
    monkeypatch.setattr(providers.REGISTRY["local"].site, "access", lambda spec: made.access, raising=False)
    return made


def play(lab: Lab, *tasks: dict[str, Any]) -> None:
    book = lab.folder / "book.yml"
    book.write_text(yaml.safe_dump([{"hosts": "containers", "gather_facts": False, "tasks": list(tasks)}]))
    configure.play(lab.cluster, str(book), {}, lambda _: None)


def up(lab: Lab) -> None:
    facts = lab.folder / "facts.json"
    write(facts, '{"env": {"TOKEN": "secret"}}')
    variables = {"node_bundle": "x", "verify_nonce": "n", "jupyter_wanted": True, "jupyter_facts": str(facts)}
    configure.play(lab.cluster, "site.yml", variables, lambda _: None, limit=["node0"])


def shell(lab: Lab) -> None:
    """`hvdctl ssh` by somebody who answers every question with yes."""
    argv = ssh.argv(lab.cluster, "node0", tty=True)
    with contextlib.closing(pexpect.spawn(argv[0], argv[1:], timeout=20)) as child:
        child.sendline("yes")
        child.sendline("exit")
        child.expect(pexpect.EOF)
        child.wait()
    if child.exitstatus:
        raise HvdctlError("refused")


def relay(lab: Lab) -> None:
    chain = imagepush._Chain(lab.cluster.ssh_config, ["node0"], {"node0": "127.0.0.1"})
    try:
        chain.start()
    finally:
        chain.end()


def tunnelled(lab: Lab) -> None:
    """`tunnel.open_`, which would wait for a second try."""
    with tunnel._turn(lab.cluster):
        tunnel._start(lab.cluster, "node0", "/nowhere.sock", tunnel.free(tunnel.PORT))
    try:
        wait_for(lambda: tunnel.state(lab.cluster)["open"] or tunnel.state(lab.cluster)["problem"])
        if problem := tunnel.state(lab.cluster)["problem"]:
            raise HvdctlError(problem)
    finally:
        tunnel.close(lab.cluster)


def watched(lab: Lab) -> None:
    for _ in top.documents(lab.cluster, count=1):
        pass


def file(lab: Lab) -> Path:
    (lab.folder / "file").write_text("secret")
    return lab.folder / "file"


WAYS: dict[str, Callable[[Lab], object]] = {
    "ssh": lambda lab: ssh.run(lab.cluster, "node0", ["true"]),
    "agent": lambda lab: ssh.agent(lab.cluster, "node0", "list"),
    "submit": lambda lab: jobs.submit(lab.cluster, {"env": {"TOKEN": "secret"}}),
    "follow": lambda lab: jobs.follow(lab.cluster, 1, lambda _: None, interrupts=lambda: 0, say=lambda _: None),
    "shell": shell,
    "push": lambda lab: jobs.push(lab.cluster, [file(lab)], "/shared/x"),
    "pull": lambda lab: jobs.pull(lab.cluster, "/shared/x", lab.folder / "pulled"),
    "sync": lambda lab: jobs.sync(lab.cluster, file(lab).parent / "keys", "/shared/work", given=True),
    "site.yml": up,
    "copy": lambda lab: play(lab, {"ansible.builtin.copy": {"src": str(file(lab)), "dest": str(lab.folder / "got")}}),
    "fetch": lambda lab: play(lab, {"ansible.builtin.fetch": {"src": "/etc/hostname", "dest": str(lab.folder)}}),
    "tunnel": tunnelled,
    "top": watched,
    "link": lambda lab: links.measure(lab.cluster, "node0", "node0", None),
    "image": lambda lab: imagepush.push(lab.cluster.ssh_config, IMAGE, ["node0"], {"node0": "127.0.0.1"}),
    "relay": relay,
}
THROUGH = ("ssh", "push", "site.yml", "tunnel", "relay")


@pytest.mark.parametrize("way", WAYS)
def test_the_right_node_is_given_all(way: str, lab: Lab) -> None:
    """What the tests below see is refused because of the host key, and of nothing else."""
    with lab.listening(), contextlib.suppress(HvdctlError):
        WAYS[way](lab)
    assert lab.node.users
    assert way == "tunnel" or lab.node.commands


@pytest.mark.parametrize("way", WAYS)
def test_a_stranger_in_the_place_of_a_node_is_given_nothing(way: str, lab: Lab) -> None:
    with lab.listening("node"), pytest.raises(HvdctlError):
        WAYS[way](lab)
    assert lab.node.received_nothing


@pytest.mark.parametrize("way", THROUGH)
def test_a_stranger_in_the_place_of_a_jump_host_is_given_nothing(way: str, lab: Lab) -> None:
    with lab.listening("bastion", jump=["bastion"]), pytest.raises(HvdctlError):
        WAYS[way](lab)
    assert lab.bastion.received_nothing
    assert not lab.node.connections


@pytest.mark.parametrize("way", THROUGH)
def test_a_stranger_behind_the_right_jump_host_is_given_nothing(way: str, lab: Lab) -> None:
    with lab.listening("node", jump=["bastion"]), pytest.raises(HvdctlError):
        WAYS[way](lab)
    assert lab.bastion.forwards
    assert lab.node.received_nothing


@pytest.mark.parametrize("stranger", ["", "bastion", "machine", "node"])
def test_a_stranger_anywhere_in_a_chain_of_jump_hosts_is_given_nothing(stranger: str, lab: Lab) -> None:
    with lab.listening(*filter(None, [stranger]), jump=["bastion", "machine"]):
        if not stranger:
            ssh.run(lab.cluster, "node0", ["true"])
            assert lab.node.commands == ["true"]
            return
        with pytest.raises(HvdctlError, match="Host key verification failed"):
            ssh.run(lab.cluster, "node0", ["true"])
    way = [lab.bastion, lab.machine, lab.node]
    at = way.index(getattr(lab, stranger))
    assert way[at].received_nothing
    assert all(server.users for server in way[:at])
    assert not any(server.connections for server in way[at + 1 :])


@pytest.mark.parametrize("way", THROUGH)
@pytest.mark.parametrize("stranger", ["machine", "node"])
def test_a_stranger_on_the_way_to_a_container_of_a_machine_is_given_nothing(way: str, stranger: str, lab: Lab) -> None:
    with lab.listening(stranger, kind="machine"), pytest.raises(HvdctlError):
        WAYS[way](lab)
    assert getattr(lab, stranger).received_nothing
    assert bool(lab.node.connections) == (stranger == "node")


@pytest.mark.parametrize("stranger", ["", "machine", "bastion"])
def test_a_machine_that_is_waited_for_must_have_its_own_key(stranger: str, lab: Lab) -> None:
    with lab.listening(*filter(None, [stranger]), kind="machine", jump=["bastion"]):
        if not stranger:
            machines.wait(lab.cluster, lab.nodes, Silent(), None, 20)
            assert lab.machine.commands == ["true"]
            return
        who = "jump host that" if stranger == "bastion" else r"node0.machine \(127.0.0.1:\d+\)"
        with pytest.raises(HvdctlError, match=rf"{who} shows another host key than the known one"):
            machines.wait(lab.cluster, lab.nodes, Silent(), None, 20)
    assert getattr(lab, stranger).received_nothing
    assert not lab.machine.users


@pytest.mark.parametrize("stranger", ["", "machine", "bastion"])
def test_a_host_that_is_looked_at_before_it_is_taken_must_have_its_own_key(stranger: str, lab: Lab) -> None:
    with lab.listening(*filter(None, [stranger]), kind="machine", jump=["bastion"]):
        proxy = f"me@127.0.0.1:{lab.bastion.port}"
        host = Host.model_construct(address="127.0.0.1", port=lab.machine.port, user="me", proxy=proxy, mac=None)
        found = probe.refusals("demo", [host], lab.nodes, lab.access)
    assert bool(lab.machine.users) == (not stranger)
    if stranger:
        assert getattr(lab, stranger).received_nothing
        assert "another host key than the known one" in found[0]


def test_connections_are_tried_by_nobody_but_the_nodes(lab: Lab) -> None:
    with lab.listening("node"), pytest.raises(HvdctlError):
        reach.probe(lab.cluster, lab.nodes * 2)
    assert lab.node.received_nothing


def test_settings_of_the_users_own_do_not_make_ansible_careless(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANSIBLE_HOST_KEY_CHECKING", "False")
    monkeypatch.setenv("ANSIBLE_SSH_ARGS", "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null")
    monkeypatch.setenv("ANSIBLE_SSH_COMMON_ARGS", "-o StrictHostKeyChecking=no")
    monkeypatch.setenv("ANSIBLE_CALLBACK_PLUGINS", str(lab.folder))
    (lab.folder / "spy.py").write_text(f"open({str(lab.folder / 'loaded')!r}, 'w')")
    with lab.listening("node"), pytest.raises(HvdctlError, match="Host key verification failed"):
        up(lab)
    assert lab.node.received_nothing
    assert not (lab.folder / "loaded").exists()


# From node to node.


@pytest.fixture
def on_a_node(lab: Lab, on_path: Callable[[Path], None]) -> Lab:
    """The ssh of a node: the files that it carries, here in this folder."""
    own = lab.folder / "node-ssh"
    own.mkdir()
    theirs = f"-F {own}/config -o UserKnownHostsFile={own}/known_hosts -o IdentityFile={lab.cluster.key().private}"
    program(lab.folder / "programs", "ssh", f'exec {shutil.which("ssh")} {theirs} "$@"')
    on_path(lab.folder / "programs")
    return lab


def carried(lab: Lab, known: str) -> None:
    """The files that are given to each node, as `hvd-agent apply` writes them."""
    bundle = inventory.bundle("demo", lab.nodes, {"node0": (known,)}, lab.cluster.key().public)
    for entry in bundle["files"]:
        if "/.ssh/" in entry["path"]:
            write(lab.folder / "node-ssh" / Path(entry["path"]).name, entry["content"])


HOROVOD = """
import subprocess, sys
class launch:
    def run_commandline():
        sys.exit(subprocess.run(f"{remote.SSH_COMMAND_PREFIX} node0 echo rank", shell=True).returncode)
class remote:
    SSH_COMMAND_PREFIX = "ssh -o PasswordAuthentication=no -o StrictHostKeyChecking=no"
"""


@pytest.mark.parametrize("stranger", [False, True])
@pytest.mark.parametrize("launcher", ["horovod", "mpi", "torch"])
def test_launchers_hand_nothing_to_a_stranger(launcher: str, stranger: bool, on_a_node: Lab) -> None:
    lab = on_a_node
    known = lab.node.public
    with lab.listening(*(["node"] if stranger else [])):
        carried(lab, known)
        done = subprocess.run(started(lab, launcher), capture_output=True, text=True, timeout=30, check=False)
    if stranger:
        assert done.returncode
        assert "Host key verification failed" in done.stderr
        assert lab.node.received_nothing
    else:
        assert (done.returncode, done.stdout) == (0, "rank\n"), done.stderr


def started(lab: Lab, launcher: str) -> list[str]:
    """A process that starts a rank on node0, as each launcher does it."""
    request = launchers.Request(1, 2, launcher, (("here", 1), ("node0", 1)))
    place = launchers.Place("here", ("agent",), str(paths.agent() / "horovodrun.py"))
    if launcher == "torch":
        return launchers.ssh("node0", ["echo", "rank"])
    (command,) = launchers.commands(request, place)
    if launcher == "mpi":
        # Open MPI calls its rsh agent with the host and the command, and no options but -x.
        agent = command.argv[command.argv.index("plm_rsh_agent") + 1]
        return [agent, "-x", "node0", "echo", "rank"]
    # Horovod's own prefix of every ssh command line, which agent/horovodrun.py replaces.
    runner = lab.folder / "horovod" / "runner"
    (runner / "util").mkdir(parents=True)
    (lab.folder / "horovod" / "__init__.py").touch()
    (runner / "__init__.py").write_text(HOROVOD)
    (runner / "util" / "__init__.py").write_text("from horovod.runner import remote")
    code = f"import runpy, sys; sys.path.insert(0, {str(lab.folder)!r}); "
    return [sys.executable, "-c", code + f"runpy.run_path({place.driver!r}, run_name='__main__')"]


def test_one_module_alone_calls_ssh() -> None:
    package = Path(ssh.__file__).parent
    assert [file.name for file in package.rglob("*.py") if 'tool("ssh")' in file.read_text()] == ["ssh.py"]
