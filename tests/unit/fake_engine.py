"""A small Docker engine: enough of its HTTP interface, on a Unix socket, for what hvdctl asks of a real one."""

from __future__ import annotations

import base64
import contextlib
import io
import itertools
import json
import re
import socketserver
import struct
import tarfile
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

Answer = tuple[int, Any]


IMAGE_ID = "0" * 64


class FakeEngine:
    """Holds images, containers, networks and volumes; `link_error` makes the helper that sets links fail."""

    def __init__(self, socket: Path) -> None:
        self.url = f"unix://{socket}"
        self.images = {"test/node:1"}
        # Those of hvdctl have some.
        self.labels: dict[str, dict[str, str]] = {}
        self.starts = itertools.count(1)
        self.runtimes: dict[str, Any] = {"runc": {}}
        self.containers: dict[str, dict[str, Any]] = {}
        self.networks: dict[str, dict[str, Any]] = {}
        self.volumes: dict[str, dict[str, Any]] = {}
        self.link_error = ""
        self.dies_at_start = False
        self.refuses: dict[str, str] = {}
        self.calls: list[str] = []
        self._made = 0
        self._lock = threading.RLock()
        self._server = _server(socket, self)
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def names(self, kind: str) -> list[str]:
        """The names of what stands, such as names("containers")."""
        return sorted(thing["Name"].lstrip("/") for thing in getattr(self, kind).values())

    def container(self, name: str) -> dict[str, Any]:
        return next(c for c in self.containers.values() if c["Name"] == f"/{name}")

    def links(self) -> dict[str, str]:
        """The rate last set for each container."""
        return {c["Name"].lstrip("/"): c["link"] for c in self.containers.values() if "link" in c}

    def answer(self, method: str, path: str, query: dict[str, str], body: bytes) -> Answer:
        path = re.sub(r"^/v1\.\d+", "", path)
        with self._lock:
            self.calls.append(f"{method} {path}")
            for start, message in self.refuses.items():
                if f"{method} {path}".startswith(start):
                    return 500, {"message": message}
            for verb, pattern, act in self._routes():
                if verb == method and (match := re.fullmatch(pattern, path)):
                    try:
                        return act(*match.groups(), query=query, body=body)
                    except KeyError as error:
                        return 404, {"message": f"no such thing: {error}"}
        return 501, {"message": f"the fake engine does not know {method} {path}"}

    def _routes(self) -> list[tuple[str, str, Callable[..., Answer]]]:
        return [
            ("GET", "/_ping", lambda **_: (200, "OK")),
            ("GET", "/version", lambda **_: (200, {"ApiVersion": "1.41", "Version": "20.10.0-fake"})),
            ("GET", "/info", lambda **_: (200, {"Runtimes": self.runtimes, "MemTotal": 8 * 2**30})),
            ("GET", "/images/json", self._list_images),
            ("GET", "/images/(.+)/json", self._image),
            ("GET", "/containers/json", self._list_containers),
            ("POST", "/containers/create", self._create_container),
            ("GET", "/containers/([^/]+)/json", lambda key, **_: (200, self._find(key))),
            ("PUT", "/containers/([^/]+)/archive", self._put_archive),
            ("GET", "/containers/([^/]+)/archive", self._get_archive),
            ("POST", "/containers/([^/]+)/start", self._start),
            ("POST", "/containers/([^/]+)/update", self._update),
            ("POST", "/containers/([^/]+)/wait", lambda key, **_: (200, {"StatusCode": self._find(key)["code"]})),
            ("GET", "/containers/([^/]+)/logs", lambda key, **_: (200, _frame(self._find(key)["said"]))),
            ("DELETE", "/containers/([^/]+)", self._remove_container),
            ("GET", "/networks", lambda query, **_: (200, _filtered(self.networks.values(), query))),
            ("POST", "/networks/create", self._create_network),
            ("GET", "/networks/([^/]+)", lambda key, **_: (200, self._network(key))),
            ("DELETE", "/networks/([^/]+)", self._remove_network),
            ("GET", "/volumes", lambda query, **_: (200, {"Volumes": _filtered(self.volumes.values(), query)})),
            ("POST", "/volumes/create", self._create_volume),
            ("GET", "/volumes/([^/]+)", lambda key, **_: (200, self.volumes[key])),
            ("DELETE", "/volumes/([^/]+)", lambda key, **_: (204, self.volumes.pop(key) and "")),
        ]

    def _list_images(self, query: dict[str, str], **_: Any) -> Answer:
        held = [
            {"Id": name, "RepoTags": [name], "Name": name, "Labels": self.labels.get(name, {})} for name in self.images
        ]
        return 200, _filtered(held, query)

    def _image(self, name: str, **_: Any) -> Answer:
        if name not in self.images and name != IMAGE_ID:
            return 404, {"message": f"No such image: {name}"}
        labels = self.labels.get(name, {})
        facts = {"Size": 5 * 10**8, "Created": labels.get("created", "2026-01-01T00:00:00.5Z")}
        return 200, {"Id": f"sha256:{name}", "RepoTags": [name], "Config": {"Labels": labels}, **facts}

    def _find(self, key: str) -> dict[str, Any]:
        for found in self.containers.values():
            if key in (found["Id"], found["Name"].lstrip("/")):
                return found
        raise KeyError(key)

    def _list_containers(self, query: dict[str, str], **_: Any) -> Answer:
        return 200, _filtered(self.containers.values(), query)

    def _create_container(self, query: dict[str, str], body: bytes) -> Answer:
        asked = json.loads(body)
        self._made += 1
        name = query.get("name", f"unnamed{self._made}")
        if any(c["Name"] == f"/{name}" for c in self.containers.values()):
            return 409, {"message": f"The name {name} is already in use"}
        host = asked.get("HostConfig") or {}
        identity = f"c{self._made:063d}"
        networks = {
            net: {"NetworkID": found["Id"], "IPAddress": ""}
            for net in (asked.get("NetworkingConfig") or {}).get("EndpointsConfig", {})
            for found in self.networks.values()
            if found["Name"] == net
        }
        mounts = [
            {"Destination": m["Target"], ("Name" if m["Type"] == "volume" else "Source"): m["Source"]}
            for m in host.get("Mounts") or []
        ]
        self.containers[identity] = {
            "Id": identity,
            "Name": f"/{name}",
            "Image": f"sha256:{IMAGE_ID}",
            "Labels": asked.get("Labels") or {},
            "Config": {**asked, "Labels": asked.get("Labels") or {}, "Tty": False},
            "HostConfig": {"Memory": 0, "CpuQuota": 0, **host, "LogConfig": {"Type": "none"}},
            "State": {"Status": "created", "StartedAt": "0001-01-01T00:00:00Z"},
            "Mounts": mounts,
            "NetworkSettings": {"Networks": networks},
            "files": {},
            "said": "",
            "code": 0,
            "number": self._made,
        }
        return 201, {"Id": identity, "Warnings": []}

    def _put_archive(self, key: str, query: dict[str, str], body: bytes) -> Answer:
        with tarfile.open(fileobj=io.BytesIO(body)) as tar:
            for member in tar:
                content = tar.extractfile(member)
                assert content is not None
                self._find(key)["files"][f"{query['path']}/{member.name}"] = (
                    content.read().decode(),
                    oct(member.mode),
                    member.uid,
                )
        return 200, ""

    def _get_archive(self, key: str, query: dict[str, str], **_: Any) -> Answer:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            for path, (text, _mode, _uid) in self._find(key)["files"].items():
                if path.startswith(query["path"]):
                    info = tarfile.TarInfo(path.lstrip("/"))
                    info.size = len(text.encode())
                    tar.addfile(info, io.BytesIO(text.encode()))
        return 200, buffer.getvalue()

    def _start(self, key: str, **_: Any) -> Answer:
        found = self._find(key)
        host = found["HostConfig"]
        if str(host.get("NetworkMode", "")).startswith("container:"):
            found["State"]["Status"] = "exited"
            found["said"], found["code"] = self.link_error, 1 if self.link_error else 0
            if not self.link_error:
                self._find(host["NetworkMode"].removeprefix("container:"))["link"] = found["Config"]["Cmd"][1]
            return 204, ""
        if self.dies_at_start:
            found["State"]["Status"], found["said"] = "exited", "sshd: no hostkeys available\n"
            return 204, ""
        found["State"] = {"Status": "running", "StartedAt": f"start {next(self.starts)}"}
        for network in found["NetworkSettings"]["Networks"].values():
            network["IPAddress"] = f"10.99.0.{found['number'] + 1}"
        return 204, ""

    def _update(self, key: str, body: bytes, **_: Any) -> Answer:
        self._find(key)["HostConfig"].update(json.loads(body))
        return 200, {"Warnings": []}

    def _remove_container(self, key: str, **_: Any) -> Answer:
        self.containers.pop(self._find(key)["Id"])
        return 204, ""

    def _network(self, key: str) -> dict[str, Any]:
        for found in self.networks.values():
            if key in (found["Id"], found["Name"]):
                held = {
                    c["Id"]: {"Name": c["Name"]}
                    for c in self.containers.values()
                    if found["Name"] in c["NetworkSettings"]["Networks"] and c["State"]["Status"] == "running"
                }
                return {**found, "Containers": held}
        raise KeyError(key)

    def _create_network(self, body: bytes, **_: Any) -> Answer:
        asked = json.loads(body)
        self._made += 1
        identity = f"n{self._made:063d}"
        self.networks[identity] = {"Id": identity, "Name": asked["Name"], "Labels": asked.get("Labels") or {}}
        return 201, {"Id": identity}

    def _remove_network(self, key: str, **_: Any) -> Answer:
        found = self._network(key)
        if found["Containers"]:
            return 403, {"message": f"network {found['Name']} has active endpoints"}
        self.networks.pop(found["Id"])
        return 204, ""

    def _create_volume(self, body: bytes, **_: Any) -> Answer:
        asked = json.loads(body)
        made = {"Name": asked["Name"], "Labels": asked.get("Labels") or {}}
        return 201, self.volumes.setdefault(asked["Name"], made)


def _filtered(things: Any, query: dict[str, str]) -> list[dict[str, Any]]:
    filters = json.loads(query.get("filters", "{}"))

    def fits(thing: dict[str, Any]) -> bool:
        for label in filters.get("label", []):
            name, sign, value = label.partition("=")
            if name not in thing["Labels"] or (sign and thing["Labels"][name] != value):
                return False
        return all(name in thing["Name"] for name in filters.get("name", []))

    return [thing for thing in things if fits(thing)]


def _frame(text: str) -> bytes:
    """Output as the engine sends it: a header for each piece."""
    data = text.encode()
    return struct.pack(">BxxxL", 2, len(data)) + data if data else b""


def _server(socket: Path, engine: FakeEngine) -> socketserver.BaseServer:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            split = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(split.query).items()}
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            code, said = engine.answer(self.command, unquote(split.path), query, body)
            data = said if isinstance(said, bytes) else (said if isinstance(said, str) else json.dumps(said)).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(data)))
            self.send_header("Content-Type", "application/json")
            stat = base64.b64encode(b'{"name": "ssh", "size": 0, "mode": 0}').decode()
            self.send_header("X-Docker-Container-Path-Stat", stat)
            self.end_headers()
            with contextlib.suppress(BrokenPipeError):  # the caller was interrupted
                self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = _serve

        def log_message(self, *_: object) -> None:
            pass

        def address_string(self) -> str:
            return "engine"

    class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
        daemon_threads = True
        request_queue_size = 64

    return Server(str(socket), Handler)
