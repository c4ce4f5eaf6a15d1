"""Clusters on machines, and machines as a testbed tells of them."""

from __future__ import annotations

import re
import subprocess
from typing import Any

from hvdctl import qemu
from hvdctl.sites import vm

from .conftest import Hvdctl


class Machines(Hvdctl):
    """A cluster whose machines can be reached below its nodes."""

    report: dict[str, Any]

    def left(self) -> list[str]:
        with self.owned():
            return vm.leftovers(self.name)

    def running(self) -> dict[str, int]:
        """The processes of its machines, by node."""
        with self.owned():
            return qemu.running(self.name)

    def on(self, machine: str, script: str, code: int | None = 0, timeout: float = 300) -> str:
        """Run a script on a machine itself, as root."""
        done = subprocess.run(
            ["ssh", "-F", str(self.folder / "ssh" / "config"), "-o", "BatchMode=yes", machine, "sudo", "sh", "-s"],
            input=script,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if code is not None:
            assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    def recap(self) -> dict[str, dict[str, int]]:
        """What Ansible says in the end of its last run, by host."""
        text = re.sub(r"\x1b\[[0-9;]*m", "", (self.folder / "logs" / "ansible.log").read_text())
        last = text.rsplit("PLAY RECAP", 1)[1]
        return {
            found[1]: {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", found[2])}
            for found in re.finditer(r"^(\S+)\s+: (.*)$", last, re.MULTILINE)
        }


class Lab(Machines):
    """The same machines, given to `static` in a home of its own."""

    def left(self) -> list[str]:
        return []


def manifest(ports: dict[str, int]) -> str:
    """As jFed saves it."""
    nodes = "".join(
        f'<node client_id="{name}" exclusive="true" component_id="urn:publicid:IDN+wall2.ilabt.iminds.be+node+{name}">'
        f'<interface client_id="{name}:if0" mac_address="5254008700{index:02x}">'
        f'<ip address="10.87.0.{index + 1}" netmask="255.255.0.0" type="ipv4"/></interface>'
        f'<services><login authentication="ssh-keys" hostname="127.0.0.1" port="{port}" username="hvdctl"/></services>'
        "</node>"
        for index, (name, port) in enumerate(ports.items())
    )
    refs = "".join(f'<interface_ref client_id="{name}:if0"/>' for name in ports)
    return (
        '<?xml version="1.0"?>\n<rspec xmlns="http://www.geni.net/resources/rspec/3" type="manifest">'
        f'{nodes}<link client_id="link0">{refs}</link></rspec>\n'
    )
