from __future__ import annotations

from pathlib import Path

import pytest
from hvdctl import links
from hvdctl.cluster import Cluster
from hvdctl.errors import HvdctlError
from hvdctl.links import Measured


def test_what_the_far_end_received_is_measured(cluster: Cluster, fake_nodes: Path) -> None:
    measured = links.measure(cluster, "node0", "node1", 10**9)
    assert measured == Measured("node0", "node1", 957e6, 10**9)
    called = (fake_nodes / "ssh.log").read_text()
    assert "node1 iperf3 --server" in called
    assert "node0 iperf3 --client 10.99.0.3" in called


def test_a_server_that_is_not_up_yet_is_waited_for(cluster: Cluster, fake_nodes: Path) -> None:
    (fake_nodes / "refusals").write_text("3")
    assert links.measure(cluster, "node0", "node1", None).bits == 957e6
    assert (fake_nodes / "refusals").read_text().strip() == "0"


def test_a_link_that_can_not_be_measured_says_why(
    cluster: Cluster, fake_nodes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "_SERVER_WAIT", 0)
    (fake_nodes / "refusals").write_text("1000")
    with pytest.raises(HvdctlError, match=r"the link from node0 to node1 can't be measured: .*Connection refused"):
        links.measure(cluster, "node0", "node1", None)


def test_a_node_that_is_down_is_named(cluster: Cluster, fake_nodes: Path) -> None:
    (fake_nodes / "down").write_text("node0\n")
    with pytest.raises(HvdctlError, match=r"node0 can't be reached: .*Connection refused"):
        links.measure(cluster, "node0", "node1", None)


@pytest.mark.parametrize(
    ("bits", "asked", "short", "told"),
    [
        (9.56e9, None, False, "a to b: 9.56 Gbit/s, not limited"),
        (957e6, 10**9, False, "a to b: 957 Mbit/s of 1 Gbit/s asked"),
        (850e6, 10**9, False, "a to b: 850 Mbit/s of 1 Gbit/s asked"),
        (6.1e9, 10**10, True, "their CPUs are the limit"),
        (50e6, 10**8, True, "other work may use the machine"),
    ],
)
def test_a_rate_is_told_honestly(bits: float, asked: int | None, short: bool, told: str) -> None:
    measured = Measured("a", "b", bits, asked)
    assert measured.short is short
    assert told in str(measured)
    assert ("can't reach it" in str(measured)) is short
