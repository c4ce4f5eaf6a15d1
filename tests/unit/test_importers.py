"""From manifests, inventories and host lists to the keys of a spec."""

from __future__ import annotations

import itertools
import random
import re
from pathlib import Path
from typing import Any

import pytest
from hvdctl import importers
from hvdctl.errors import UsageError
from hvdctl.importers import ansible, hostlist
from hvdctl.spec import parse

SAMPLES = Path(__file__).parents[2] / "inventory" / "samples"
BASTION = "fffjproxy@bastion.test.iminds.be:22"
GATE = "trainer@gate.lab.example:2200"
GENI = "http://www.geni.net/resources/rspec/3"


def imported(*sources: str | Path, **choice: Any) -> dict[str, Any]:
    return importers.spec(importers.read([str(source) for source in sources], **choice))


def refusal(*sources: str | Path, **choice: Any) -> UsageError:
    with pytest.raises(UsageError) as refused:
        imported(*sources, **choice)
    assert "\n" not in refused.value.message
    assert refused.value.hint
    return refused.value


def wall(node: str, last: int, mac: str, user: str = "jdoe") -> dict[str, Any]:
    return {
        "address": f"{node}.wall2.ilabt.iminds.be",
        "user": user,
        "private_address": f"192.168.0.{last}",
        "mac": mac,
        "proxy": BASTION,
    }


GOLDEN: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (
        "virtual-wall.rspec",
        {},
        {
            "provider": "static",
            "nodes": 3,
            "net": "1g",
            "options": {
                "hosts": [
                    wall("n095-04a", 1, "02ed052451de"),
                    wall("n095-04b", 2, "02bcba641360"),
                    wall("n095-05a", 3, "0265b6205ad1"),
                ]
            },
        },
    ),
    (
        "lab.ini",
        {"group": "gpu"},
        {
            "provider": "static",
            "nodes": 3,
            "options": {
                "key": "~/.ssh/lab_ed25519",
                "hosts": [
                    {"address": f"gpu0{n}.lab.example", "user": "trainer", "port": 2222, "proxy": GATE}
                    for n in (1, 2, 3)
                ],
            },
        },
    ),
    (
        "lab.yml",
        {},
        {
            "provider": "static",
            "nodes": 2,
            "slots": 4,
            "options": {
                "hosts": [
                    {"address": "10.20.0.11", "user": "trainer", "private_address": "10.30.0.11", "proxy": GATE},
                    {
                        "address": "10.20.0.12",
                        "user": "trainer",
                        "port": 2222,
                        "private_address": "10.30.0.12",
                        "proxy": GATE,
                    },
                ]
            },
        },
    ),
    (
        "pbs_nodefile",
        {},
        {
            "provider": "static",
            "nodes": 3,
            "slots": 4,
            "options": {"hosts": [{"address": f"r3i1n{n}.cluster.example"} for n in (4, 5, 9)]},
        },
    ),
    (
        "slurm_nodelist",
        {},
        {
            "provider": "static",
            "nodes": 5,
            "options": {"hosts": [{"address": name} for name in ("gpu01", "gpu02", "gpu03", "gpu07", "login1")]},
        },
    ),
]


@pytest.mark.parametrize(("sample", "choice", "wanted"), GOLDEN, ids=[case[0] for case in GOLDEN])
def test_a_sample_gives_this_spec(sample: str, choice: dict[str, Any], wanted: dict[str, Any]) -> None:
    given = imported(SAMPLES / sample, **choice)
    assert given == wanted
    assert list(given) == list(wanted), "in the order in which a person would write them"
    assert parse(given, sample).nodes == wanted["nodes"]


def test_every_sample_is_tried_and_described() -> None:
    readme = (SAMPLES.parent / "README.md").read_text()
    names = {file.name for file in SAMPLES.iterdir()}
    assert names == {case[0] for case in GOLDEN}
    assert all(f"[`{name}`](samples/{name})" in readme for name in names)


# Manifests.


def manifest(*nodes: str, links: str = "", kind: str = "manifest") -> str:
    return f'<rspec xmlns="{GENI}" type="{kind}">{"".join(nodes)}{links}</rspec>'


def node(name: str, *logins: str, interface: str = "", sliver: str = "raw-pc", extra: str = "") -> str:
    made = "".join(
        f'<login authentication="ssh-keys" hostname="{login.partition("@")[2]}" port="22"'
        f' username="{login.partition("@")[0]}"/>'
        for login in logins
    )
    return (
        f'<node client_id="{name}"><sliver_type name="{sliver}"/><services>{made}{extra}</services>{interface}</node>'
    )


def nic(name: str, address: str) -> str:
    return f'<interface client_id="{name}"><ip address="{address}" netmask="255.255.255.0" type="ipv4"/></interface>'


def link(name: str, *ends: str, capacity: str = "") -> str:
    refs = "".join(f'<interface_ref client_id="{end}"/>' for end in ends)
    rate = f'<property source_id="a" dest_id="b" capacity="{capacity}"/>' if capacity else ""
    return f'<link client_id="{name}">{refs}{rate}</link>'


@pytest.fixture
def file(tmp_path: Path) -> Any:
    def write(name: str, text: str | bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def test_the_login_of_the_named_user_is_taken(file: Any) -> None:
    given = imported(SAMPLES / "virtual-wall.rspec", user="asmith")
    assert {host["user"] for host in given["options"]["hosts"]} == {"asmith"}
    assert {host["proxy"] for host in given["options"]["hosts"]} == {BASTION}
    refused = refusal(SAMPLES / "virtual-wall.rspec", user="eve")
    assert "node node0 has no login for 'eve'" in refused.message
    assert refused.hint == "choose --user among: jdoe, asmith", "and not the jump host's"


def test_whose_logins_are_taken_is_told_where_there_are_others(file: Any) -> None:
    (note,) = importers.read([str(SAMPLES / "virtual-wall.rspec")]).notes
    assert note == "the logins of jdoe are taken; --user could choose asmith"
    assert importers.read([str(SAMPLES / "virtual-wall.rspec")], user="asmith").notes == []
    text = manifest(node("a", "me@a", "eve@a"), node("b", "you@b"))
    assert importers.read([str(file("m.xml", text))]).notes[0] == "the logins of me, you are taken"


def test_all_nodes_get_the_user_of_the_first_where_they_have_it(file: Any) -> None:
    text = manifest(node("a", "me@a", "you@a"), node("b", "you@b", "me@b"), node("c", "you@c"))
    assert [host["user"] for host in imported(file("m.xml", text))["options"]["hosts"]] == ["me", "me", "you"]


def test_the_link_that_joins_most_nodes_gives_addresses_and_rate(file: Any) -> None:
    nodes = [
        node("a", "me@a", interface=nic("a:0", "10.0.0.1") + nic("a:1", "10.1.0.1")),
        node("b", "me@b", interface=nic("b:0", "10.0.0.2") + nic("b:1", "10.1.0.2")),
        node("c", "me@c", interface=nic("c:1", "10.1.0.3")),
    ]
    links = link("pair", "a:0", "b:0", capacity="100000") + link("lan", "a:1", "b:1", "c:1", capacity="10000000")
    given = imported(file("m.rspec", manifest(*nodes, links=links)))
    assert [host["private_address"] for host in given["options"]["hosts"]] == ["10.1.0.1", "10.1.0.2", "10.1.0.3"]
    assert given["net"] == "10g"


def test_a_node_apart_from_the_link_is_told(file: Any) -> None:
    nodes = [
        node("a", "me@a", interface=nic("a:0", "10.0.0.1")),
        node("b", "me@b", interface=nic("b:0", "10.0.0.2")),
        node("c", "me@c"),
    ]
    found = importers.read([str(file("m.rspec", manifest(*nodes, links=link("pair", "a:0", "b:0"))))])
    assert "private_address" not in found.hosts[2]
    assert found.notes == ["c is not on link pair: it gets the address of its login"]
    assert found.rate is None


@pytest.mark.parametrize(
    ("links", "told"),
    [
        ("", "no link joins the nodes"),
        (
            '<link client_id="l"><interface_ref client_id="a:0"/><interface_ref client_id="b:0"/>'
            '<property capacity="1000000" latency="0.0"/><property capacity="10000" latency="0"/></link>',
            "net is left out: link l has different capacities",
        ),
        (
            '<link client_id="l"><interface_ref client_id="a:0"/><interface_ref client_id="b:0"/>'
            '<property latency="10" packet_loss="0"/></link>',
            "the testbed itself delays or drops packets on link l",
        ),
    ],
)
def test_what_is_assumed_is_told(file: Any, links: str, told: str) -> None:
    nodes = [
        node("a", "me@a", interface=nic("a:0", "10.0.0.1")),
        node("b", "me@b", interface=nic("b:0", "10.0.0.2")),
    ]
    (note,) = importers.read([str(file("m.rspec", manifest(*nodes, links=links)))]).notes
    assert note.startswith(told)


def test_a_link_between_testbeds_is_seen_whole(file: Any) -> None:
    """Both manifests name both of its ends; the names of nodes may be the same in both."""
    ends = link("wan", "one:0", "two:0", capacity="1000000")
    one = file("one.rspec", manifest(node("n", "me@a", interface=nic("one:0", "10.0.0.1")), links=ends))
    two = file("two.rspec", manifest(node("n", "me@b", interface=nic("two:0", "10.0.0.2")), links=ends))
    given = imported(one, two)
    assert [(host["address"], host["private_address"]) for host in given["options"]["hosts"]] == [
        ("a", "10.0.0.1"),
        ("b", "10.0.0.2"),
    ]
    assert given["net"] == "1g"


def test_notes_on_several_manifests_name_the_file(file: Any) -> None:
    pair = [node(n, f"me@{n}", interface=nic(f"{n}:0", f"10.0.0.{i}")) for i, n in enumerate("ab", 1)]
    slow = '<property capacity="1000000"/><property capacity="10000" latency="5"/></link>'
    links = link("lan", "a:0", "b:0").replace("</link>", slow)
    one, two = file("one.rspec", manifest(*pair, links=links)), file("two.rspec", manifest(node("n", "me@n")))
    notes = importers.read([str(one), str(two)]).notes
    assert notes[0] == f"n ({two}) is not on link lan ({one}): it gets the address of its login"
    assert notes[1] == f"net is left out: link lan ({one}) has different capacities"
    assert f"on link lan ({one})" in notes[2]


def test_a_rate_that_can_not_be_used_names_file_link_and_way_out(file: Any) -> None:
    pair = [node(n, f"me@{n}", interface=nic(f"{n}:0", f"10.0.0.{i}")) for i, n in enumerate("ab", 1)]
    refused = refusal(file("m.rspec", manifest(*pair, links=link("lan", "a:0", "b:0", capacity="64"))))
    assert re.search(r"m\.rspec: the capacity of link lan: '64k' is not a link rate", refused.message)
    assert "take `capacity` out of the link" in refused.hint


def test_a_host_in_two_manifests_is_refused(file: Any) -> None:
    one, two = file("one.rspec", manifest(node("n", "me@a"))), file("two.rspec", manifest(node("m", "me@a")))
    assert "a stands there twice" in refusal(one, two).message


def test_storage_is_left_out(file: Any) -> None:
    text = manifest(node("a", "me@a"), node("disk", sliver="emulab-blockstore"))
    found = importers.read([str(file("m.rspec", text))])
    assert [host["address"] for host in found.hosts] == ["a"]
    assert found.notes == ["disk is left out: it is storage, not a machine"]


DOCTYPE = '<!DOCTYPE r [<!ENTITY a "x">]>'


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("nodes: 3", "m.rspec is not XML: syntax error: line 1"),
        (manifest(node("a", "me@a")).replace("</rspec>", "\n</rpsec>"), "is not XML: mismatched tag: line 2"),
        ("", "m.rspec is not XML: no element found"),
        (DOCTYPE + manifest(node("a", "me@&a;")), "has a DOCTYPE or entities"),
        (f'<?xml version="1.0"?>\n{DOCTYPE}\n<r/>', "has a DOCTYPE or entities"),
        ("<html><body/></html>", "no RSpec of GENI version 3: it begins with 'html'"),
        ('<rspec xmlns="http://www.protogeni.net/resources/rspec/2"/>', "no RSpec of GENI version 3"),
        (manifest(), "m.rspec has no nodes"),
        (manifest(node("a", "me@a"), node("b"), node("c")), "no login by SSH key for b, c"),
        (manifest(node("a"), kind="request"), "is a request, which has no logins yet"),
        (manifest(node("a", "me@a"), node("a", "me@b")), "node a stands there twice"),
        (manifest(node("a", "me@a").replace('"22"', '"ssh"')), "node a has a login at port 'ssh'"),
        (
            manifest(
                node("a", "me@a", interface=nic("a:0", "10.0.0.1")),
                node("b", "me@b", interface=nic("b:0", "10.0.0.2")),
                links=link("lan", "a:0", "b:0", capacity="fast"),
            ),
            "link lan has the capacity 'fast'",
        ),
        (manifest(node("a", "me@-oProxyCommand=x")), "'-oProxyCommand=x' is not the name or address of a host"),
    ],
)
def test_a_bad_manifest_is_refused_by_name(file: Any, text: str, told: str) -> None:
    refused = refusal(file("m.rspec", text))
    assert told in refused.message


def test_entities_can_not_hide_in_another_encoding(file: Any) -> None:
    text = f'<?xml version="1.0" encoding="UTF-16"?>{DOCTYPE}<r/>'
    assert "is not text in UTF-8" in refusal(file("m.rspec", text.encode("utf-16"))).message


# Inventories.


def test_hosts_come_in_the_order_of_the_inventory(file: Any) -> None:
    text = "zeta\n[b]\nn[08:10].lab\n[a]\nalpha ansible_host=10.0.0.1 ansible_port=2200\n[all:vars]\nansible_user=me\n"
    hosts = imported(file("hosts", text))["options"]["hosts"]
    assert [host["address"] for host in hosts] == ["zeta", "n08.lab", "n09.lab", "n10.lab", "10.0.0.1"]
    assert {host["user"] for host in hosts} == {"me"}
    assert hosts[-1]["port"] == 2200
    assert {host["user"] for host in imported(file("hosts", text), user="you")["options"]["hosts"]} == {"you"}


def test_variables_beside_the_inventory_count(file: Any, tmp_path: Path) -> None:
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars" / "all.yml").write_text("ansible_user: trainer\n")
    assert imported(file("hosts.ini", "n1\n"))["options"]["hosts"] == [{"address": "n1", "user": "trainer"}]


def test_what_can_run_is_never_run(file: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither an executable inventory, nor settings in the environment or the folder that ask for it."""
    script = file("hosts.ini", f"#!/bin/sh\ntouch {tmp_path}/ran\necho '{{}}'\n[gpu]\nn1\n")
    script.chmod(0o755)
    file("ansible.cfg", "[inventory]\nenable_plugins = script\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANSIBLE_INVENTORY_ENABLED", "script")
    refusal(script)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("arguments", "proxy", "left"),
    [
        ("", None, []),
        ("-J me@gate:2200", "me@gate:2200", []),
        ("-Jgate", "gate", []),
        ("-C -J one,two", "one,two", ["-C"]),
        ("-o ProxyJump=gate -o StrictHostKeyChecking=no", "gate", ["-o", "StrictHostKeyChecking=no"]),
        ("-oProxyJump=none", None, []),
        ("-o 'ProxyJump gate'", "gate", []),
        ('-o ProxyCommand="ssh -W %h:%p -q me@gate"', "me@gate", []),
        ("-o ProxyCommand='ssh -qW %h:%p -i /k -l me -p 2200 gate'", "me@gate:2200", []),
        ("-o 'ProxyCommand /usr/bin/ssh gate -W %h:%p'", "gate", []),
    ],
)
def test_the_jump_host_is_found_in_arguments_of_ssh(arguments: str, proxy: str | None, left: list[str]) -> None:
    assert ansible.jump(arguments, "x") == (proxy, left)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("-o ProxyCommand='nc -X 5 -x proxy:1080 %h %p'", "a ProxyCommand that is no jump host: nc"),
        ("-o ProxyCommand='ssh gate nc %h %p'", "a ProxyCommand that is no jump host: ssh gate nc"),
        ("-o ProxyCommand='ssh -F /c -W %h:%p gate'", "a ProxyCommand that is no jump host"),
        ("-F /etc/lab/ssh_config", "has SSH settings in a file, /etc/lab/ssh_config"),
        ("-o 'ProxyJump", "can't be split into words"),
    ],
)
def test_arguments_that_can_not_be_taken_over_are_refused(arguments: str, told: str) -> None:
    with pytest.raises(UsageError, match=re.escape(told)):
        ansible.jump(arguments, "lab.ini: ansible_ssh_common_args of n1")


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("x.yml", "all:\n  hosts:\n    a: [\n", "x.yml is not an inventory that Ansible can read: YAML parsing failed"),
        ("x.yml", "all:\n  hosts: [a]\n", 'Invalid "hosts" entry for "all" group'),
        ("x.ini", "[gpu]\na\n[gpu:bogus]\nb\n", "Section [gpu:bogus] has unknown type: bogus"),
        ("x.ini", "", "has no hosts in 'all'"),
        ("x.ini", "[gpu]\na ansible_host={{lab}}\n", "ansible_host of a is a template, '{{lab}}'"),
        ("x.ini", "[gpu]\na ansible_connection=local\n", "a is not reached by SSH, but by 'local'"),
        ("x.ini", "[gpu]\na ansible_port=ssh\n", "ansible_port of a is 'ssh'"),
        ("x.ini", "[gpu]\na ansible_ssh_private_key_file=/k\nb\n", "a and b have different login keys, /k and none"),
        ("x.ini", "[gpu]\na hvd_slots=2\nb hvd_slots=4\n", "hvd_slots of a is 2, of b 4"),
        ("x.ini", "[gpu]\na\nb ansible_host=a\n", "a stands there twice"),
        ("x.ini", "[gpu]\na ansible_host=-oX\n", "'-oX' is not the name or address of a host"),
        ("x.ini", "[gpu]\na hvd_private_address=lab\n", "'lab' is not an IPv4 address"),
    ],
)
def test_a_bad_inventory_is_refused_by_name(file: Any, name: str, text: str, told: str) -> None:
    assert told in refusal(file(name, text)).message


def test_a_group_that_is_not_there_is_refused(file: Any) -> None:
    refused = refusal(SAMPLES / "lab.ini", group="tpu")
    assert refused.message.endswith("lab.ini has no group 'tpu'")
    assert refused.hint == "it has: gpu, storage"
    assert "only an Ansible inventory has groups" in refusal(SAMPLES / "pbs_nodefile", group="gpu").message


def test_where_login_keys_differ_a_group_can_be_chosen(file: Any) -> None:
    hint = "a cluster has one: choose a group by --group (gpu, storage), or give it with --key"
    assert refusal(SAMPLES / "lab.ini").hint == hint
    mixed = file("x.ini", "[gpu]\na ansible_ssh_private_key_file=/k\nb\n")
    assert refusal(mixed, group="gpu").hint == "a cluster has one: give it with --key"


def test_the_named_key_settles_which_one(file: Any) -> None:
    inventory = file("x.ini", "[gpu]\na ansible_ssh_private_key_file=/k\nb\n")
    assert importers.read([str(inventory)], key="/other").key == "/other"


def test_what_is_not_taken_over_is_told(file: Any) -> None:
    found = importers.read([str(file("x.ini", "[g]\na\nb\n[g:vars]\nansible_password=x\nansible_ssh_args=-C\n"))])
    assert found.notes == [
        "ansible_password is left out: hvdctl logs in with keys, and sudo must not ask",
        "ansible_ssh_args is not taken over: -C",
    ]


# Host lists.


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("n1", "n1"),
        ("gpu[01-03,07],login1", "gpu01 gpu02 gpu03 gpu07 login1"),
        ("n[8-11]", "n8 n9 n10 n11"),
        ("n[08-11]", "n08 n09 n10 n11"),
        ("n[098-101]x", "n098x n099x n100x n101x"),
        ("r[1-2]n[01-02,5]", "r1n01 r1n02 r1n5 r2n01 r2n02 r2n5"),
        ("[1-2].lab", "1.lab 2.lab"),
        ("a,b[3],c", "a b3 c"),
    ],
)
def test_an_expression_stands_for_these_names(expression: str, names: str) -> None:
    assert list(hostlist.expand(expression, "x")) == names.split()


@pytest.mark.parametrize("seed", range(40))
def test_what_is_folded_unfolds(seed: int) -> None:
    """Numbers of one width that are folded into ranges, as SLURM folds them, come back as they were."""
    draw = random.Random(seed)
    width = draw.choice([1, 2, 3, 5])
    numbers = sorted(draw.sample(range(10 ** min(width, 3)), draw.randint(1, min(10**width, 40))))
    runs = [
        [number for _, number in run]
        for _, run in itertools.groupby(enumerate(numbers), key=lambda item: item[1] - item[0])
    ]
    folded = ",".join(
        str(run[0]).zfill(width) + (f"-{str(run[-1]).zfill(width)}" if len(run) > 1 else "") for run in runs
    )
    prefix, suffix = draw.choice(["n", "gpu-", "r1c"]), draw.choice(["", ".lab", "-ib"])
    unfolded = list(hostlist.expand(f"{prefix}[{folded}]{suffix},last", "x"))
    assert unfolded == [*(f"{prefix}{str(number).zfill(width)}{suffix}" for number in numbers), "last"]


@pytest.mark.parametrize("seed", range(20))
def test_brackets_multiply(seed: int) -> None:
    draw = random.Random(seed)
    sizes = [draw.randint(1, 4) for _ in range(draw.randint(1, 4))]
    names = list(hostlist.expand("-".join(f"x[1-{size}]" for size in sizes), "x"))
    assert names == ["-".join(f"x{n}" for n in at) for at in itertools.product(*(range(1, s + 1) for s in sizes))]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("expression", "told"),
    [
        ("n[3-1]", "'3-1' in [3-1] is not a number or a range"),
        ("n[a-c]", "'a-c' in [a-c]"),
        ("n[]", "'' in []"),
        ("n[1-2", "the brackets in 'n[1-2' don't match"),
        ("n1-2],x", "the brackets in 'n1-2]' don't match"),
        ("n[1-[2-3]]", "the brackets in"),
        ("a,,b", "a name is missing beside a comma in 'a,,b'"),
        ("a,b,", "a name is missing beside a comma"),
        ("n1:4,n2:4", "'n1:4' could have 4 slots, as in a machinefile of MPICH, or be at port 4"),
        ("10.0.0.300,n1", "'10.0.0.300' is not the name or address of a host"),
        ("n[0-99999999]", "[0-99999999] stands for more than 512 hosts"),
        ("n[1-500][1-500][1-500]", "more than 512 hosts"),
        ("a@b@c,d", "'a@b@c' is not a host"),
        ("a:port,b", "'a:port' is not a host"),
    ],
)
def test_a_bad_expression_is_refused(expression: str, told: str) -> None:
    assert told in refusal(expression).message


def test_lines_may_have_users_ports_slots_and_comments(file: Any) -> None:
    text = "# the lab\nme@n1:2222 slots=4  # head\n\nn[2-3]    slots=4\n2001:db8::7 slots=4\n"
    given = imported(file("hosts", text))
    assert given["slots"] == 4
    assert given["options"]["hosts"] == [
        {"address": "n1", "user": "me", "port": 2222},
        {"address": "n2"},
        {"address": "n3"},
        {"address": "2001:db8::7"},
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("n1\nn2 four slots\n", "hosts, line 2: 'n2 four slots' is not a host"),
        ("n1\nn2 slots=0\n", "hosts, line 2: 'n2 slots=0' is not a host"),
        ("n1\nn1\nn2\n", "n1 has 2 slots and n2 has 1"),
        ("# nothing\n", "hosts has no hosts"),
        ("n_1/\n", "'n_1/' is not the name or address of a host"),
        (b"\xff\xfe\x00", "is not text in UTF-8"),
    ],
)
def test_a_bad_list_is_refused_by_line(file: Any, text: str | bytes, told: str) -> None:
    assert told in refusal(file("hosts", text)).message


def test_a_number_behind_a_name_is_a_port_or_refused(file: Any) -> None:
    """MPICH's machinefiles have slots there."""
    refused = refusal(file("hosts", "n1\nn2:16\n"))
    assert "hosts, line 2: 'n2:16' could have 16 slots" in refused.message
    assert refused.hint == "write `n2 slots=16`, or with a login me@n2:16 for the port"
    taken = imported(file("hosts", "n1:22\nn2:2222\nme@n3:222\n2001:db8::7\n"))["options"]["hosts"]
    assert [host.get("port") for host in taken] == [None, 2222, 222, None]


def test_a_single_host_has_a_comma() -> None:
    assert imported("me@n01,")["options"]["hosts"] == [{"address": "n01", "user": "me"}]
    refused = refusal("n01")
    assert refused.message == "there is no file n01"
    assert refused.hint.endswith("a single host needs a file, or a comma: `hvdctl import n01,`")
    assert "comma" not in refusal("gone.rspec").hint
    assert "empty name" in refusal("").message


def test_a_job_tells_its_hosts() -> None:
    job = importers.from_job({"SLURM_JOB_NODELIST": "gpu[1-2]", "SLURM_TASKS_PER_NODE": "8(x2)"}, user="me")
    assert job.hosts == [{"address": "gpu1", "user": "me"}, {"address": "gpu2", "user": "me"}]
    assert (job.slots, job.notes) == (8, [])
    uneven = importers.from_job({"SLURM_JOB_NODELIST": "gpu[1-2]", "SLURM_TASKS_PER_NODE": "8,4"})
    assert uneven.slots is None
    assert "SLURM_TASKS_PER_NODE is 8,4" in uneven.notes[0]
    assert importers.from_job({"PBS_NODEFILE": str(SAMPLES / "pbs_nodefile")}).slots == 4
    with pytest.raises(UsageError, match="this is no job of SLURM or PBS") as refused:
        importers.from_job({})
    assert "jFed or GENI manifest, an Ansible inventory or a list of hosts" in refused.value.hint


def test_files_that_are_not_there_or_not_files(tmp_path: Path) -> None:
    assert f"there is no file {tmp_path}/gone.ini" in refusal(tmp_path / "gone.ini").message
    assert f"{tmp_path} is a folder" in refusal(tmp_path).message


def test_files_of_several_kinds_are_put_together(file: Any) -> None:
    given = imported(file("hosts", "n1\n"), file("m.rspec", manifest(node("a", "me@a"))))
    assert [host["address"] for host in given["options"]["hosts"]] == ["a", "n1"]
    refused = refusal(file("two", "n1\nn1\n"), file("four", "n2 slots=4\n"))
    assert "the files have different slots: 2 and 4" in refused.message


def test_what_one_file_says_is_not_spread_to_the_hosts_of_another(file: Any) -> None:
    pair = [node(n, f"me@{n}", interface=nic(f"{n}:0", f"10.0.0.{i}")) for i, n in enumerate("ab", 1)]
    wall = file("m.rspec", manifest(*pair, links=link("lan", "a:0", "b:0", capacity="1000000")))
    listed = file("hosts", "n1 slots=4\n")
    found = importers.read([str(listed), str(wall)])
    assert (found.slots, found.rate) == (None, None)
    assert found.notes == [
        f"slots is left out, as it would be that of all nodes: {listed} has 4, {wall} none",
        f"net is left out, as it would be that of all nodes: {wall} has 1g, {listed} none",
    ]


def test_a_login_key_for_the_hosts_of_other_files_is_told(file: Any) -> None:
    inventory, listed = file("x.ini", "a ansible_ssh_private_key_file=/k\n"), file("hosts", "n1\n")
    found = importers.read([str(inventory), str(listed)])
    assert (found.key, found.notes) == ("/k", [f"the login key /k is used for the hosts of {listed} too"])
    assert importers.read([str(inventory), str(listed)], key="/mine").notes == []
