"""The site `vm`: what it refuses, tells of its guests, and finds left."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from fake_guests import Machine
from hvdctl import kvm, process
from hvdctl.errors import HvdctlError, UsageError
from hvdctl.progress import Silent
from hvdctl.sites import vm
from hvdctl.spec import Spec, parse
from hvdctl.tfprovider.machine import HvdSwitch, HvdVirtualMachine
from hvdctl.tfprovider.provider import HvdProvider
from test_tfprovider import Caller


def test_a_switch_is_found_from_anywhere(
    here: Machine, switch: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Under cron and sudo the runtime folder is another one."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "elsewhere"))
    assert vm.leftovers("demo") == [f"switch {switch['socket']}"]
    assert Caller(HvdSwitch(HvdProvider())).read(switch) == switch
    vm.sweep("demo", keep_data=False, step=Silent())
    assert vm.leftovers("demo") == []
    assert not Path(switch["socket"]).exists()


def test_the_guests_are_told_by_what_they_were_started_with(
    here: Machine, planned: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert vm.about("demo") == ""
    caller = Caller(HvdVirtualMachine(HvdProvider()))
    caller.create(planned)
    assert vm.about("demo") == "QEMU 7.2 with TCG, emulated: there is no /dev/kvm"
    # Someone loaded the module meanwhile.
    monkeypatch.setattr(kvm, "acceleration", lambda image: ("kvm", "a guest runs with it"))
    monkeypatch.setattr(kvm, "known", lambda: ("kvm", "a guest runs with it"))
    assert vm.about("demo") == "QEMU 7.2 with TCG, emulated: KVM works only now"
    caller.create(planned | {"name": "node2"})
    assert vm.about("demo") == "QEMU 7.2 with KVM, but node1 with TCG, emulated"
    del here.running["demo", "node1"]
    assert vm.about("demo") == "QEMU 7.2 with KVM"


def test_what_is_left_is_named_and_swept(here: Machine, planned: dict[str, Any], switch: dict[str, Any]) -> None:
    Caller(HvdVirtualMachine(HvdProvider())).create(planned)
    assert vm.observe("demo") == {"node1": "running"}
    assert (vm.observe("demo", ["node1"]), vm.observe("demo", ["node0"])) == ({"node1": "running"}, {})
    assert vm.clusters() == ["demo"]
    pid = here.running["demo", "node1"]
    assert vm.leftovers("demo") == [
        f"process hvdctl-demo-node1 ({pid})",
        "disk hvdctl-demo-node1",
        f"switch {switch['socket']}",
    ]
    here.switches.clear()
    assert vm.observe("demo") == {"node1": "cut off"}
    # Half of it: the process is gone, its disk is not.
    here.running.clear()
    assert "disk hvdctl-demo-node1" in vm.leftovers("demo")
    vm.sweep("demo", keep_data=False, step=Silent())
    assert vm.leftovers("demo") == []


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"gpus": 1}, "gpus: 1 asked, but virtual machines have none"),
        ({"memory": 2**29}, "memory: a machine needs 1g or more"),
        ({"memory": 2**50}, "don't fit"),
        ({"options": {"image": "/no/such"}}, "/no/such has no disk.raw"),
        ({"nodes": 20, "options": {"subnet": "10.9.0.0/28"}}, "has 14 addresses for 20 nodes"),
    ],
)
def test_what_this_machine_can_not_give_is_refused(
    here: Machine, monkeypatch: pytest.MonkeyPatch, keys: dict[str, Any], told: str
) -> None:
    monkeypatch.setattr("hvdctl.process.tool", lambda name: name)
    with pytest.raises(HvdctlError) as refused:
        vm.preflight(Spec(name="demo", provider="vm", **keys))
    assert told in refused.value.message


def test_machines_that_run_may_grow_by_what_is_free(
    here: Machine, planned: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "tool", lambda name: name)
    monkeypatch.setattr(process, "available_memory", lambda: 2**30)
    with pytest.raises(HvdctlError, match=r"1 machines of 2 GiB don't fit: 1\.0 GiB of memory are free$"):
        vm.preflight(Spec(name="demo", provider="vm", nodes=1))
    Caller(HvdVirtualMachine(HvdProvider())).create(planned)
    vm.preflight(Spec(name="demo", provider="vm", nodes=1, memory=3 * 2**30))
    with pytest.raises(HvdctlError, match=r"don't fit: 1\.0 GiB of memory are free beside the 1 that run"):
        vm.preflight(Spec(name="demo", provider="vm", nodes=1, memory=4 * 2**30))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"disk": "5g"}, "options.disk: '5g' is not a disk size; write 20g or more, such as 40g"),
        ({"disk": "lots"}, "options.disk: 'lots' is not a disk size; write 20g or more, such as 40g"),
        ({"disk": "none"}, "options.disk: 'none' is not a disk size; write 20g or more, such as 40g"),
        ({"disk": 7}, "options.disk: 7 is not a disk size"),
        (
            {"subnet": "10.87.0.0"},
            "options.subnet: '10.87.0.0' has no prefix length; write a range such as 10.87.0.0/16",
        ),
        ({"subnet": "10.0.2.0/24"}, "options.subnet: '10.0.2.0/24' is not a free range"),
        ({"subnet": "here"}, "options.subnet: 'here' is not a free range"),
        ({"delay": "2 minutes"}, "options.delay: '2 minutes' is not a delay; write 500us, 2ms, 1s or none"),
        ({"intrenet": False}, "unknown key 'options.intrenet'; did you mean 'internet'?"),
        ({"internet": "no"}, "options.internet"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse({"provider": "vm", "options": options}, source="hvdctl.yml")
    assert told in refused.value.message
