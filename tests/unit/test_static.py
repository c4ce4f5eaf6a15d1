"""The site `static`: what it takes, refuses and finds."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hvdctl import keys, pipeline
from hvdctl.cluster import Node
from hvdctl.errors import HvdctlError, UsageError
from hvdctl.sites import hosts as hosts_module
from hvdctl.sites import probe, static
from hvdctl.sites.hosts import Host
from hvdctl.spec import Spec, parse
from support import program

INFRA = Path(__file__).parents[2] / "infra" / "static"
needs_terraform = pytest.mark.skipif(shutil.which("terraform") is None, reason="Terraform is not on PATH")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user of whom nothing is known."""
    folder = tmp_path / "home"
    (folder / ".ssh").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("LOGNAME", "ada")
    return folder


@pytest.fixture
def host_key(tmp_path: Path) -> Callable[[str], str]:
    """A host key by a name, the same at every call."""
    return lambda name: keys.ensure(tmp_path / "keys" / name).public


@pytest.fixture
def spec(host_key: Callable[[str], str]) -> Callable[..., Spec]:
    """A spec of so many hosts, with changes to the options and to the hosts of the given numbers."""

    def make(count: int = 2, *, nodes: int | None = None, changes: Any = None, **options: Any) -> Spec:
        made = [
            {"address": f"h{i}.lab", "private_address": f"10.0.0.{i + 1}", "host_key": [host_key(f"h{i}")]}
            | (changes or {}).get(i, {})
            for i in range(count)
        ]
        values = {"name": "demo", "provider": "static", "nodes": nodes or count, "options": {"hosts": made} | options}
        return parse(values, "hvdctl.yml")

    return make


GOOD = {
    "sudo": "yes",
    "os": "debian 12",
    "free": str(20 * 2**20),
    "interface": "eth1",
    "mac": "02:ed:05:24:51:de",
    "addresses": "10.20.0.4/24 10.0.0.1/24 ",
    "owner": "",
    "ours": "",
}


def told(**facts: str) -> str:
    return "".join(f"hvdctl:{name}={value}\n" for name, value in (GOOD | facts).items())


@pytest.fixture
def answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_path: Callable[[Path], None]) -> Path:
    """An ssh that says what NODE.out, NODE.err and NODE.code of this folder hold, and keeps its settings there."""
    folder, programs = tmp_path / "answers", tmp_path / "programs"
    folder.mkdir()
    programs.mkdir()
    ssh = programs / "ssh"
    ssh.write_text(
        "#!/bin/sh\n"
        'config=$2; node=$5; cd "$ANSWERS" || exit 9\n'
        'printf "%s\\n" "$*" >"$node.words"\n'
        'stat -c %a "$config" "${config%/*}" "${config%/*}/known_hosts" >modes\n'
        'cp "$config" config; cp "${config%/*}/known_hosts" .\n'
        'cat "$node.out" 2>/dev/null || cat default.out\n'
        'cat "$node.err" >&2 2>/dev/null\n'
        'exit "$(cat "$node.code" 2>/dev/null || echo 0)"\n'
    )
    ssh.chmod(0o755)
    (folder / "default.out").write_text(told())
    monkeypatch.setenv("ANSWERS", str(folder))
    on_path(programs)
    return folder


# What can be written.


def test_a_host_has_defaults_for_all_but_its_address() -> None:
    host = Host(address="h0.lab")
    assert (host.user, host.port, host.private_address, host.proxy, host.host_key) == ("ada", 22, None, None, [])
    options = static.Options()
    assert (options.hosts, options.key, options.firewall, options.delay) == ([], None, True, None)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("address", "2001:db8::1"),
        ("address", "n095-04a.wall2.ilabt.iminds.be"),
        ("user", "first.last@corp"),
        ("proxy", "me@gate:2222,inner,root@[2001:db8::1]:22"),
        ("mac", "02-ED-05-24-51-DE"),
    ],
)
def test_what_a_host_may_have(key: str, value: str, spec: Callable[..., Spec]) -> None:
    (host,) = static.Options.model_validate(spec(1, changes={0: {key: value}}).options).hosts
    assert getattr(host, key) == (value if key != "mac" else "02:ed:05:24:51:de")


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("address", "-oProxyCommand=id", "options.hosts.0.address: '-oProxyCommand=id' is not the name or address"),
        ("address", "a b", "'a b' is not the name or address of a host"),
        ("address", "h0\nProxyCommand id", "is not the name or address of a host"),
        ("user", "-l", "options.hosts.0.user: '-l' is not a login name"),
        ("user", "a b", "'a b' is not a login name"),
        ("port", 70000, "options.hosts.0.port: 70000 is not valid"),
        ("port", "22", "options.hosts.0.port: '22' is not valid"),
        ("private_address", "h0.lab", "'h0.lab' is not an IPv4 address such as 192.168.0.1"),
        ("private_address", "2001:db8::1", "is not an IPv4 address"),
        ("mac", "eth1", "'eth1' is not a MAC address"),
        ("proxy", "gate -W x", "'gate -W x' is not a jump host"),
        ("proxy", "-J", "'-J' is not a jump host"),
        ("proxy", "gate,", "'gate,' is not a jump host"),
        ("host_key", ["ssh-ed25519 AAAA"], "'ssh-ed25519 AAAA' is not a host key; write `type base64`"),
        ("host_key", ["h0.lab ssh-ed25519 AAAA"], "is not a host key"),
        ("address", "10.0.0.300", "'10.0.0.300' is not the name or address of a host"),
        ("address", "10.0.0", "'10.0.0' is not the name or address of a host"),
        ("adress", "x", "unknown key 'options.hosts.0.adress'; did you mean 'address'?"),
    ],
)
def test_a_bad_host_is_refused_by_key(key: str, value: object, said: str, spec: Callable[..., Spec]) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        spec(1, changes={0: {key: value}})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"key": "id_ed25519"}, "options.key: 'id_ed25519' is not the path of a private key; write it from /"),
        ({"key": "/k/id_ed25519.pub"}, "'/k/id_ed25519.pub' is the public key; name the private one, /k/id_ed25519"),
        ({"hosts": ["n1", "n2"]}, "options.hosts.0: 'n1' is not a host with keys and values; write {address: n1}"),
        ({"delay": "2 ms"}, "options.delay: '2 ms' is not a delay"),
        ({"delay": "fast"}, "options.delay: 'fast' is not a delay"),
        ({"firewall": "yes"}, "options.firewall: 'yes' is not valid"),
        ({"host": []}, "unknown key 'options.host'; did you mean 'hosts'?"),
    ],
)
def test_bad_options_are_refused_by_key(options: dict[str, Any], said: str, spec: Callable[..., Spec]) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        spec(1, **options)


def test_one_host_key_needs_no_list(spec: Callable[..., Spec], host_key: Callable[[str], str]) -> None:
    given = spec(1, changes={0: {"host_key": host_key("h0")}})
    assert static.access(given).host_keys == {"node0": (host_key("h0"),)}


# Host keys.


def test_host_keys_are_those_of_the_spec_before_those_that_are_known(
    home: Path, spec: Callable[..., Spec], host_key: Callable[[str], str]
) -> None:
    known = home / ".ssh" / "known_hosts"
    known.write_text(f"h0.lab {host_key('stale')}\nh1.lab {host_key('h1')} me@here\n")
    access = static.access(spec(3, nodes=2, changes={1: {"host_key": []}}))
    assert access.host_keys == {"node0": (host_key("h0"),), "node1": (host_key("h1"),)}
    assert access.key is None
    assert access.known_hosts[0] == known


def test_hashed_names_ports_and_patterns_are_known(
    home: Path, spec: Callable[..., Spec], host_key: Callable[[str], str]
) -> None:
    known = home / ".ssh" / "known_hosts"
    known.write_text(f"h0.lab {host_key('a')}\n[h1.lab]:2222 {host_key('b')}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", known], check=True, capture_output=True)
    assert ".lab" not in known.read_text()
    known.write_text(known.read_text() + f"*.lab,!h1.lab,!h0.lab {host_key('c')}\n")
    empty: dict[str, Any] = {"host_key": []}
    found = static.access(spec(3, changes={0: empty, 1: empty | {"port": 2222}, 2: empty})).host_keys
    assert found == {name: (host_key(key),) for name, key in (("node0", "a"), ("node1", "b"), ("node2", "c"))}


def test_ed25519_goes_first_and_revoked_keys_and_authorities_do_not_count(
    home: Path, host_key: Callable[[str], str]
) -> None:
    ecdsa = home / "ecdsa"
    subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-C", "", "-f", ecdsa], check=True)
    other = ecdsa.with_suffix(".pub").read_text().strip()
    (home / ".ssh" / "known_hosts").write_text(
        f"h0.lab {other}\nh0.lab {host_key('a')}\nh0.lab {host_key('bad')}\n"
        f"@revoked * {host_key('bad')}\n@cert-authority *.lab {host_key('ca')}\n"
    )
    assert hosts_module.host_keys([Host(address="h0.lab")]) == [(host_key("a"), other)]


def test_an_unknown_host_key_is_never_trusted(home: Path, spec: Callable[..., Spec], answers: Path) -> None:
    empty: dict[str, Any] = {"host_key": []}
    for ask in (static.access, static.preflight, static.settings):
        with pytest.raises(
            UsageError, match=r"no host key is known of h0\.lab, \[h1\.lab\]:2222, and hvdctl"
        ) as refused:
            ask(spec(3, changes={0: empty, 1: empty | {"port": 2222}}))
        assert "`hvdctl import --scan --force FILE` (with the same flags as before)" in refused.value.hint
        assert "ssh-keyscan" in refused.value.hint
    with pytest.raises(UsageError, match="no host key is known of h0") as refused:
        static.access(spec(1, changes={0: empty | {"proxy": "gate"}}))
    assert "log in to each once with ssh" in refused.value.hint
    assert "ssh-keyscan" not in refused.value.hint, "which goes through no jump host"
    assert list(answers.glob("*.words")) == [], "nobody was connected to"


# Private addresses and Terraform.


def test_a_private_address_is_looked_up_where_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"h0.lab": "10.0.0.7", "here": "127.0.1.1"}

    def resolve(name: str, *_: object) -> list[Any]:
        if name not in names:
            raise OSError("unknown")
        return [(None, None, None, None, (names[name], 0))]

    monkeypatch.setattr("socket.getaddrinfo", resolve)
    assert hosts_module.private_address(Host(address="h0.lab")) == "10.0.0.7"
    assert hosts_module.private_address(Host(address="gone", private_address="10.1.1.1")) == "10.1.1.1"
    with pytest.raises(UsageError, match="no IPv4 address is known for 'gone'"):
        hosts_module.private_address(Host(address="gone"))
    with pytest.raises(UsageError, match=re.escape("'here' is 127.0.1.1 here, where no other node reaches it")):
        hosts_module.private_address(Host(address="here"))


def terraform(folder: Path, given: dict[str, Any], *command: str) -> subprocess.CompletedProcess[str]:
    if not folder.exists():
        shutil.copytree(INFRA, folder)
    (folder / "terraform.tfvars.json").write_text(json.dumps(given))
    env = {**os.environ, "CHECKPOINT_DISABLE": "1", "TF_IN_AUTOMATION": "1", "TF_CLI_CONFIG_FILE": os.devnull}
    words = ["terraform", *command, "-no-color"]
    return subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, check=False)


@needs_terraform
def test_terraform_turns_the_first_hosts_into_nodes(
    tmp_path: Path, home: Path, spec: Callable[..., Spec], host_key: Callable[[str], str]
) -> None:
    (home / ".ssh" / "known_hosts").write_text(f"h1.lab {host_key('h1')}\n")
    asked = spec(3, nodes=2, changes={1: {"host_key": [], "proxy": "me@gate", "user": "root"}}, delay="2ms")
    given = pipeline.variables(asked, image="x", key=("k", "f"), host_keys={})
    done = terraform(tmp_path / "module", given, "apply", "-auto-approve", "-input=false")
    assert done.returncode == 0, done.stdout + done.stderr
    state = json.loads((tmp_path / "module" / "terraform.tfstate").read_text())
    assert state["resources"] == []
    nodes = [Node.read(node) for node in state["outputs"]["nodes"]["value"]]
    assert [(n.name, n.role, n.kind, n.address, n.private_address, n.ssh_user, n.ssh_proxy) for n in nodes] == [
        ("node0", "head", "machine", "h0.lab", "10.0.0.1", "ada", None),
        ("node1", "worker", "machine", "h1.lab", "10.0.0.2", "root", "me@gate"),
    ]
    assert all(node.id.startswith(static.ID) for node in nodes)
    assert static.planned(asked) == nodes

    # The same host under a new key was installed anew.
    given["options"]["hosts"][1]["host_key"] = [host_key("new")]
    assert terraform(tmp_path / "module", given, "apply", "-auto-approve", "-input=false").returncode == 0
    state = json.loads((tmp_path / "module" / "terraform.tfstate").read_text())
    again = [node["id"] for node in state["outputs"]["nodes"]["value"]]
    assert again[0] == nodes[0].id
    assert again[1] != nodes[1].id


@needs_terraform
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"nodes": 3}, "options: 2 hosts for 3 nodes; add hosts or ask for fewer nodes."),
        ({"private_address": "h0.lab"}, "options: private_address of a host is an IPv4 address"),
        ({"host_key": []}, "options: host_key of a host has at least one key"),
    ],
)
def test_terraform_refuses_what_hvdctl_would_not_give(
    tmp_path: Path, spec: Callable[..., Spec], change: dict[str, Any], said: str
) -> None:
    given = pipeline.variables(spec(2), image="x", key=("k", "f"), host_keys={})
    given["nodes"] = change.pop("nodes", 2)
    given["options"]["hosts"][0] |= change
    done = terraform(tmp_path / "module", given, "plan", "-input=false")
    assert done.returncode == 1
    assert said in " ".join(done.stderr.replace("│", " ").split())


def test_terraform_takes_exactly_what_the_options_are() -> None:
    text = (INFRA / "options.tf").read_text().partition("default =")[0]
    named = set(re.findall(r"^ +(\w+) += +(?:optional\(|string|number|bool|list)", text, re.MULTILINE))
    assert named == {*static.Options.model_fields, *Host.model_fields}


# Preflight.


def test_preflight_says_how_to_get_hosts(spec: Callable[..., Spec]) -> None:
    with pytest.raises(UsageError, match="provider static has no hosts") as refused:
        static.preflight(spec(0, nodes=2))
    assert "hvdctl import FILE" in refused.value.hint
    with pytest.raises(UsageError, match=r"nodes: 3 asked, but options\.hosts has 2") as refused:
        static.preflight(spec(2, nodes=3))
    assert "--nodes 2" in refused.value.hint


def test_preflight_refuses_hosts_that_are_the_same(spec: Callable[..., Spec], answers: Path) -> None:
    with pytest.raises(UsageError, match=r"h0\.lab stands there twice"):
        static.preflight(spec(3, nodes=2, changes={2: {"address": "h0.lab"}}))
    with pytest.raises(UsageError, match=r"ada@h0\.lab and ada@h1\.lab both have the private address 10\.0\.0\.1"):
        static.preflight(spec(2, changes={1: {"private_address": "10.0.0.1"}}))
    static.preflight(spec(2, changes={1: {"address": "h0.lab", "port": 2222}}))


def test_preflight_looks_at_the_key_first(tmp_path: Path, spec: Callable[..., Spec], answers: Path) -> None:
    key = tmp_path / "login"
    with pytest.raises(UsageError, match=f"options.key: there is no file {key}"):
        static.preflight(spec(key=str(key)))
    key.write_text("x")
    key.chmod(0o644)
    with pytest.raises(UsageError, match=re.escape(f"{key} is open to others (0644), so ssh refuses it")) as refused:
        static.preflight(spec(key=str(key)))
    assert refused.value.hint == f"chmod 600 {key}"
    key.chmod(0o600)
    static.preflight(spec(key=str(key)))
    assert f'IdentityFile "{key}"' in (answers / "config").read_text()


def test_preflight_asks_every_host_once_and_strictly(
    spec: Callable[..., Spec], answers: Path, host_key: Callable[[str], str]
) -> None:
    static.preflight(spec(3, nodes=2, changes={1: {"proxy": "me@gate:2200", "port": 2222}}))
    assert sorted(file.name for file in answers.glob("*.words")) == ["node0.machine.words", "node1.machine.words"]
    words = (answers / "node1.machine.words").read_text()
    assert "-o BatchMode=yes" in words
    assert "10.0.0.2 demo" in words
    assert (answers / "modes").read_text().split() == ["600", "700", "600"]
    config = (answers / "config").read_text()
    blocks = {block.split()[1]: block for block in re.split(r"(?m)^(?=Host )", config) if block.strip()}
    assert {"node0.machine", "node1.machine", "*"} <= set(blocks), "the jump host is that of the last"
    for block in blocks.values():
        assert "StrictHostKeyChecking yes" in block
        assert "ConnectTimeout 10" in block
    assert "ProxyJump me@gate:2200" in blocks["node1.machine"]
    assert "ProxyJump" not in blocks["node0.machine"]
    assert (answers / "known_hosts").read_text() == (
        f"node0.machine.demo.hvdctl {host_key('h0')}\nnode1.machine.demo.hvdctl {host_key('h1')}\n"
    )


def test_preflight_names_every_bad_host(spec: Callable[..., Spec], answers: Path) -> None:
    (answers / "node0.machine.out").write_text(told(sudo="no", os="ubuntu 20.04"))
    (answers / "node2.machine.out").touch()
    (answers / "node2.machine.err").write_text("ssh: connect to host h2.lab port 22: Connection refused\n")
    (answers / "node2.machine.code").write_text("255")
    with pytest.raises(HvdctlError) as refused:
        static.preflight(spec(3))
    first, *lines = refused.value.message.splitlines()
    assert first == "not all hosts can be used:"
    assert [line.split(":")[0].strip() for line in lines] == ["node0 (ada@h0.lab)"] * 2 + ["node2 (ada@h2.lab)"]
    assert "nothing was changed" in refused.value.hint


CHANGED = """\
@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @
The fingerprint for the ED25519 key sent by the remote host is
SHA256:scm06+7x60sbuTAyqq3pSozWhFh14fo1uQ3F2dRHvAc.
Host key for node0.machine.demo.hvdctl has changed and you have requested strict checking.
Host key verification failed.
"""
UNKNOWN = (
    "No ED25519 host key is known for gate and you have requested strict checking.\nHost key verification failed.\n"
)
CUT = "kex_exchange_identification: Connection closed by remote host\n"


@pytest.mark.parametrize(
    ("proxy", "code", "stderr", "said"),
    [
        (
            None,
            255,
            "ssh: connect to host h port 22: Connection refused\n",
            "can't be reached: ssh: connect to host h port",
        ),
        (None, 255, "ssh: Could not resolve hostname h: Name or service not known\n", "(~/.ssh/config is not read)"),
        (None, 124, "no answer within 45 s", "can't be reached: no answer within 45 s"),
        (None, 255, "ada@h: Permission denied (publickey).\n", "refused the key; use another `options.key` or `user`"),
        (None, 255, CHANGED, "only if SHA256:scm06+7x60sbuTAyqq3pSozWhFh14fo1uQ3F2dRHvAc is its own, put that key"),
        (None, 255, UNKNOWN.replace("gate", "h"), "shows a host key that is not known"),
        (None, 255, CUT, "can't be reached: kex_exchange_identification"),
        (
            None,
            1,
            "This account is currently not available.\n",
            "the login works, but its shell does not: This account",
        ),
        ("gate", 255, "me@gate: Permission denied (publickey).\n" + CUT, "its jump host gate refused the key"),
        ("gate", 255, CHANGED + CUT, "its jump host gate shows another host key than the known one"),
        ("gate", 255, UNKNOWN + CUT, "its jump host gate shows a host key that is not known"),
        (
            "gate",
            255,
            "ssh: connect to host gate port 22: No route to host\n" + CUT,
            "its jump host gate can't be reached",
        ),
        ("gate", 255, "stdio forwarding failed\n" + CUT, "can't be reached: stdio forwarding failed"),
        ("gate", 255, "ada@h: Permission denied (publickey).\n", "refused the key"),
    ],
)
def test_what_ssh_says_becomes_what_to_do(proxy: str | None, code: int, stderr: str, said: str) -> None:
    done = subprocess.CompletedProcess([], code, "Welcome!\n", stderr)
    (problem,) = probe.problems(Host(address="h", proxy=proxy), "10.0.0.1", done)
    assert said in problem
    assert problem.startswith("its jump host") == said.startswith("its jump host")


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({}, None),
        ({"sudo": "no"}, "`sudo -n true` was refused; allow 'ada' sudo without a password"),
        ({"sudo": "missing"}, "has no sudo; install it: apt-get install sudo"),
        ({"os": "debian 11"}, None),
        ({"os": "debian 13"}, None),
        ({"os": "ubuntu 22.04"}, None),
        ({"os": "debian 10"}, "runs debian 10; it must be Debian 11, Ubuntu 22.04 or a later one"),
        ({"os": "ubuntu 20.04"}, "runs ubuntu 20.04"),
        ({"os": "ubuntu 22.02"}, "runs ubuntu 22.02"),
        ({"os": "rocky 9.3"}, "runs rocky 9.3"),
        ({"os": "debian "}, "runs debian;"),
        ({"os": " "}, "runs an unknown system"),
        ({"free": str(6 * 2**20)}, None),
        ({"free": str(6 * 2**20 - 1)}, "has 6.0 GiB free in /, 6 GiB are needed"),
        ({"free": "1048576"}, "has 1.0 GiB free in /"),
        ({"free": "1048576", "ours": "yes"}, None),
        ({"free": ""}, "has 0.0 GiB free"),
        ({"interface": ""}, "has no interface with 10.0.0.1, its addresses are 10.20.0.4/24 10.0.0.1/24; write"),
        ({"interface": "", "addresses": ""}, "its addresses are not known"),
        ({"ours": "yes", "owner": "mine me@h:/clusters"}, None),
        ({"ours": "yes", "owner": "older"}, None),
        ({"ours": "yes", "owner": "theirs"}, "is part of another cluster 'demo'; choose another --name"),
        ({"owner": "theirs ada@lab:/home/ada"}, "is part of another cluster 'demo', of ada@lab:/home/ada; choose"),
        ({"mac": "02:00:00:00:00:01"}, "has 10.0.0.1 on eth1 (02:00:00:00:00:01), not on 02:ed:05:24:51:de"),
    ],
)
def test_what_a_host_says_of_itself_is_judged(facts: dict[str, str], said: str | None) -> None:
    done = subprocess.CompletedProcess([], 0, f"Welcome to h!\n{told(**facts)}", "")
    problems = list(probe.problems(Host(address="h", mac=GOOD["mac"]), "10.0.0.1", done, "demo", {"mine", "older"}))
    assert len(problems) == (said is not None)
    assert said is None or said in problems[0]


@pytest.mark.parametrize("sudo", ["yes", "no", "missing"])
def test_the_script_of_preflight_says_what_is_there(
    tmp_path: Path, fake_nodes: Path, monkeypatch: pytest.MonkeyPatch, spec: Callable[..., Spec], sudo: str
) -> None:
    """As a host's own shell runs it, with a few of its programs replaced, and no others than it needs."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("ssh", "sh", "grep", "awk", "cat"):
        (tools / name).symlink_to(str(shutil.which(name)))
    program(tools, "df", "echo 'Filesystem 1024-blocks Used Available'; echo '/dev/vda1 100 50 7340032 1% /'")
    program(
        tools,
        "ip",
        "case $* in '-o -4 addr show to 10.0.0.1') echo '3: lo inet 10.0.0.1/24 scope global';;\n"
        "'-o -4 addr show') printf '1: lo inet 127.0.0.1/8\\n2: eth0 inet 10.9.0.2/24\\n3: eth1 inet 10.0.0.1/24\\n';;"
        " esac",
    )
    if sudo != "missing":
        program(tools, "sudo", "[ $2 = test ] && exit 0; exit " + ("0" if sudo == "yes" else "1"))
    monkeypatch.setenv("PATH", str(tools))
    nodes = [static._node(0, Host(address="h0.lab", private_address="10.0.0.1"))]
    (done,) = probe._ask("demo", nodes, static.access(spec(1)))
    facts = dict(line.removeprefix("hvdctl:").split("=", 1) for line in done.stdout.splitlines())
    here = platform.freedesktop_os_release()
    assert facts == {
        "sudo": sudo,
        "os": f"{here['ID']} {here.get('VERSION_ID', '')}",
        "free": "7340032",
        "interface": "lo",
        "mac": "00:00:00:00:00:00",
        "addresses": "10.9.0.2/24 10.0.0.1/24 ",
        "owner": "",
        "ours": "" if sudo == "missing" else "yes",
    }


def test_known_hosts_of_this_machine_count_as_well(home: Path) -> None:
    assert all(file.parent == Path("/etc/ssh") for file in hosts_module.known_hosts())
    (home / ".ssh" / "known_hosts2").touch()
    assert hosts_module.known_hosts()[0] == home / ".ssh" / "known_hosts2"
    assert stat.S_ISREG(hosts_module.known_hosts()[0].stat().st_mode)
