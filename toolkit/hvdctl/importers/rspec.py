"""Manifest RSpecs of jFed and GENI testbeds such as the Virtual Wall: logins, jump hosts, interfaces and links."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from xml.etree import ElementTree

from hvdctl.errors import UsageError
from hvdctl.importers.found import Imported, Source
from hvdctl.spec import format_rate, parse_rate

_GENI = "{http://www.geni.net/resources/rspec/3}"
_JFED_PROXY = "{http://jfed.iminds.be/proxy/1.0}proxy"
_KBIT = 1000
# Disks on the network, which are nodes to the testbed.
_STORAGE = "emulab-blockstore"
_HINT = "in jFed, save the manifest of the running experiment (Manifest RSpec view) and import that"


@dataclass(frozen=True)
class _Interface:
    node: str
    address: str | None
    mac: str | None


@dataclass
class _Link:
    name: str
    manifest: _Manifest
    interfaces: dict[str, _Interface]
    """By the name of the node."""
    rates: set[int]
    impaired: bool


@dataclass
class _Manifest:
    source: str
    kind: str
    beside: str = ""
    """What tells its nodes and links from those of other manifests."""
    nodes: dict[str, ElementTree.Element] = field(default_factory=dict)
    """By the experiment's own name for them."""
    interfaces: dict[str, _Interface] = field(default_factory=dict)
    links: list[ElementTree.Element] = field(default_factory=list)


def read(sources: Sequence[Source], user: str | None = None) -> Imported:
    """The machines of one or more manifests, with their addresses on the link that joins most of them."""
    manifests = [_parse(source) for source in sources]
    if len(manifests) > 1:
        for manifest in manifests:
            manifest.beside = f" ({manifest.source})"
    found: dict[str, dict[str, Any]] = {}
    notes: list[str] = []
    without: list[str] = []
    usual: str | None = None
    users: list[set[str]] = []
    for index, manifest in enumerate(manifests):
        for name, node in manifest.nodes.items():
            if _text(node, "sliver_type", "name") == _STORAGE:
                notes.append(f"{name}{manifest.beside} is left out: it is storage, not a machine")
            elif logins := _logins(node):
                found[f"{index}/{name}"] = host = _host(node, name, manifest.source, logins, user, usual)
                usual = usual or host.get("user")
                users.append(set(logins))
            else:
                without.append(f"{name}{manifest.beside}")
    _check(manifests, found, without)
    link = _joining(manifests, set(found))
    for key, host in found.items():
        if link and (interface := link.interfaces.get(key)):
            host |= {"private_address": interface.address} | ({"mac": interface.mac} if interface.mac else {})
    hosts = [_ordered(host) for host in found.values()]
    notes += [] if user else _whose([host.get("user", "") for host in hosts], users)
    notes += _remarks(link, found, manifests)
    return Imported(hosts, rate=_rate(link), notes=notes, source=", ".join(source.name for source in sources))


def _parse(source: Source) -> _Manifest:
    name = source.name
    if re.search(r"<!(DOCTYPE|ENTITY)", source.text):
        raise UsageError(
            f"{name} has a DOCTYPE or entities, which no manifest needs and hvdctl does not read", hint=_HINT
        )
    try:
        root = ElementTree.fromstring(source.text)  # noqa: S314 - what makes it unsafe was refused above
    except ElementTree.ParseError as error:
        raise UsageError(f"{name} is not XML: {error}", hint=_HINT) from None
    if root.tag != f"{_GENI}rspec":
        raise UsageError(f"{name} is XML, but no RSpec of GENI version 3: it begins with {root.tag!r}", hint=_HINT)
    manifest = _Manifest(name, root.get("type", ""), links=root.findall(f"{_GENI}link"))
    for node in root.findall(f"{_GENI}node"):
        node_name = node.get("client_id") or f"number {len(manifest.nodes) + 1}"
        if node_name in manifest.nodes:
            raise UsageError(f"{name}: node {node_name} stands there twice", hint=_HINT)
        manifest.nodes[node_name] = node
        for interface in node.findall(f"{_GENI}interface"):
            ips = [ip.get("address") for ip in interface.findall(f"{_GENI}ip") if ip.get("type", "ipv4") == "ipv4"]
            made = _Interface(node_name, next(iter(ips), None), interface.get("mac_address"))
            manifest.interfaces[interface.get("client_id", "")] = made
    return manifest


def _logins(node: ElementTree.Element) -> dict[str, ElementTree.Element]:
    """The logins by SSH key, the first of each user."""
    proxies = _proxies(node)
    found: dict[str, ElementTree.Element] = {}
    for login in node.iterfind(f"{_GENI}services/{_GENI}login"):
        # A jump host may be listed among the logins.
        if login.get("authentication") == "ssh-keys" and login.get("hostname") and _at(login) not in proxies.values():
            found.setdefault(login.get("username", ""), login)
    return found


def _proxies(node: ElementTree.Element) -> dict[str, str]:
    """The jump hosts by the logins that they are for."""
    return {p.get("for", ""): p.get("proxy", "") for p in node.iterfind(f"{_GENI}services/{_JFED_PROXY}")}


def _host(
    node: ElementTree.Element,
    name: str,
    source: str,
    logins: dict[str, ElementTree.Element],
    user: str | None,
    usual: str | None,
) -> dict[str, Any]:
    """How a node is logged in to, by `user` or else by `usual` where it may."""
    if user is not None and user not in logins:
        names = ", ".join(logins)
        raise UsageError(f"{source}: node {name} has no login for {user!r}", hint=f"choose --user among: {names}")
    login = logins.get(user or usual or "", next(iter(logins.values())))
    port = login.get("port", "22")
    if not re.fullmatch(r"\d{1,5}", port):
        raise UsageError(f"{source}: node {name} has a login at port {port!r}, which is no number", hint=_HINT)
    host: dict[str, Any] = {"address": login.get("hostname")}
    if login.get("username"):
        host["user"] = login.get("username")
    if int(port) != 22:
        host["port"] = int(port)
    if proxy := _proxies(node).get(_at(login)):
        host["proxy"] = proxy
    return host


def _at(login: ElementTree.Element) -> str:
    """The login as the proxy extension names it."""
    return f"{login.get('username', '')}@{login.get('hostname')}:{login.get('port', '22')}"


def _check(manifests: Sequence[_Manifest], found: dict[str, Any], without: Sequence[str]) -> None:
    names = ", ".join(manifest.source for manifest in manifests)
    if not found and not without:
        raise UsageError(f"{names} has no nodes", hint=_HINT)
    if without and any(manifest.kind == "request" for manifest in manifests):
        raise UsageError(f"{names} is a request, which has no logins yet", hint=_HINT)
    if without:
        raise UsageError(
            f"{names}: no login by SSH key for {', '.join(without)}",
            hint="wait until the testbed has them ready, save the manifest again and import that",
        )


def _joining(manifests: Sequence[_Manifest], wanted: set[str]) -> _Link | None:
    """The link with addresses on most of the nodes, the first of several; None where there is none of two nodes."""
    links = [
        _link(element, index, manifests, wanted)
        for index, manifest in enumerate(manifests)
        for element in manifest.links
    ]
    best = max(links, key=lambda link: len(link.interfaces), default=None)
    return best if best and len(best.interfaces) > 1 else None


def _link(element: ElementTree.Element, index: int, manifests: Sequence[_Manifest], wanted: set[str]) -> _Link:
    name = element.get("client_id", "")
    # A link between testbeds stands in the manifests of both, its far ends in the other one.
    order = [index, *(other for other in range(len(manifests)) if other != index)]
    joined: dict[str, _Interface] = {}
    for reference in element.findall(f"{_GENI}interface_ref"):
        for at in order:
            if interface := manifests[at].interfaces.get(reference.get("client_id", "")):
                key = f"{at}/{interface.node}"
                if interface.address and key in wanted:
                    joined.setdefault(key, interface)
                break
    properties = element.findall(f"{_GENI}property")
    rates = {_capacity(p.get("capacity", ""), name, manifests[index].source) for p in properties if p.get("capacity")}
    impaired = any(p.get(what, "0").strip("0.") for p in properties for what in ("latency", "packet_loss"))
    return _Link(name, manifests[index], joined, rates - {0}, impaired)


def _capacity(text: str, link: str, source: str) -> int:
    if not re.fullmatch(r"\d{1,10}", text):
        raise UsageError(f"{source}: link {link} has the capacity {text!r}, which is no number of kbit/s", hint=_HINT)
    return int(text) * _KBIT


def _rate(link: _Link | None) -> int | None:
    if link is None or len(link.rates) != 1:
        return None
    (rate,) = link.rates
    try:
        return parse_rate(format_rate(rate))
    except ValueError as error:
        raise UsageError(
            f"{link.manifest.source}: the capacity of link {link.name}: {error}",
            hint="change it in the experiment, or take `capacity` out of the link in the file: then `net` is left out",
        ) from None


def _whose(taken: Sequence[str], users: Sequence[set[str]]) -> list[str]:
    """Whose logins are taken, where they are not all of one user."""
    chosen = list(dict.fromkeys(taken))
    if len(set().union(*users)) < 2:
        return []
    others = sorted(set.intersection(*users) - (set(chosen) if len(chosen) == 1 else set()))
    choice = f"; --user could choose {', '.join(others)}" if others else ""
    return [f"the logins of {', '.join(chosen)} are taken{choice}"]


def _remarks(link: _Link | None, found: dict[str, Any], manifests: Sequence[_Manifest]) -> list[str]:
    if len(found) < 2:
        return []
    if link is None:
        return ["no link joins the nodes: each gets the address of its login, at which the others must reach it"]
    told = []
    shown = f"link {link.name}{link.manifest.beside}"
    places = [key.partition("/") for key in found if key not in link.interfaces]
    if apart := [f"{name}{manifests[int(index)].beside}" for index, _, name in places]:
        told.append(f"{', '.join(apart)} is not on {shown}: it gets the address of its login")
    if len(link.rates) > 1:
        told.append(f"net is left out: {shown} has different capacities")
    if link.impaired:
        told.append(f"the testbed itself delays or drops packets on {shown}; hvdctl adds nothing to that")
    return told


def _ordered(host: dict[str, Any]) -> dict[str, Any]:
    """The keys in the order in which a person would write them."""
    return {key: host[key] for key in ("address", "user", "port", "private_address", "mac", "proxy") if key in host}


def _text(node: ElementTree.Element, tag: str, attribute: str) -> str:
    inner = node.find(f"{_GENI}{tag}")
    return inner.get(attribute, "") if inner is not None else ""
