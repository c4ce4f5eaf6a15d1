"""Manifests of testbeds."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hvdctl import importers
from import_sources import BASTION, SAMPLES, imported, link, manifest, nic, node, refusal


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
