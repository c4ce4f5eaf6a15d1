"""What is imported in these tests: samples, and manifests as they are needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hvdctl import importers
from hvdctl.errors import UsageError

SAMPLES = Path(__file__).parents[2] / "inventory" / "samples"
BASTION = "fffjproxy@bastion.test.iminds.be:22"
GENI = "http://www.geni.net/resources/rspec/3"


def imported(*sources: str | Path, **choice: Any) -> dict[str, Any]:
    return importers.spec(importers.read([str(source) for source in sources], **choice))


def refusal(*sources: str | Path, **choice: Any) -> UsageError:
    with pytest.raises(UsageError) as refused:
        imported(*sources, **choice)
    assert "\n" not in refused.value.message
    assert refused.value.hint
    return refused.value


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
