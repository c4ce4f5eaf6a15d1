"""Inventories of Ansible."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hvdctl import importers
from hvdctl.errors import UsageError
from hvdctl.importers import ansible
from import_sources import SAMPLES, imported, refusal


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
