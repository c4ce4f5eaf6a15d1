"""`hvdctl jupyter` on a head that is this machine, with a small server in JupyterLab's place."""

from __future__ import annotations

import http.server
import json
import os
import socketserver
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine
from hvdctl import jupyter, ssh, tunnel
from hvdctl.cluster import Cluster
from hvdctl.errors import UsageError
from hvdctl.progress import Silent
from hvdctl.spec import Spec
from support import IMAGE, Hvdctl, answer, make_nodes, stand

TOKEN = "b" * 48


class Lab(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        good = self.headers.get("Authorization") == f"token {TOKEN}"
        self.send_response(200 if good else 403)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass

    def address_string(self) -> str:
        return ""


class Server(socketserver.ThreadingUnixStreamServer):
    def get_request(self) -> tuple[Any, Any]:
        link, _ = super().get_request()
        return link, ("", 0)


@pytest.fixture
def lab(cluster: Cluster, fake_nodes: Path, engine: FakeEngine) -> Iterator[Path]:
    """A head on which JupyterLab answers."""
    stand(engine, "node0", "node1")
    path = f"/tmp/hvd-lab-{os.getpid()}.sock"
    Path(path).unlink(missing_ok=True)
    told = {"installed": True, "wanted": True, "running": True, "answers": True, "token": TOKEN, "socket": path}
    answer(fake_nodes, "jupyter", told)
    with Server(path, Lab) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield fake_nodes
        tunnel.close(cluster)
        server.shutdown()
    Path(path).unlink()


def test_the_url_has_port_and_token_and_the_tunnel_stays(lab: Path, hvdctl: Hvdctl) -> None:
    opened = hvdctl("jupyter", "--name", "demo", "--json")
    assert opened.code == 0, opened.err
    told = json.loads(opened.out)
    assert told["url"] == f"http://127.0.0.1:{told['port']}/lab/tree/notebooks?token={TOKEN}"
    status = hvdctl("jupyter", "--name", "demo", "--status")
    assert status.code == 0
    assert f"open on 127.0.0.1:{told['port']}" in status.out
    assert "answers" in status.out
    assert TOKEN not in status.out + status.err
    closed = hvdctl("jupyter", "--name", "demo", "--stop")
    assert "the tunnel is closed" in closed.out
    assert hvdctl("jupyter", "--name", "demo", "--status").code == 1
    assert "there is no tunnel" in hvdctl("jupyter", "--name", "demo", "--stop").out


def test_the_token_is_in_no_process_and_in_no_file_that_others_can_read(
    lab: Path, hvdctl: Hvdctl, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = tmp_path / "seen"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\nprintf "%s" "$*" > "{seen}"\n')
    browser.chmod(0o755)
    monkeypatch.setenv("BROWSER", f"{browser} %s")
    opened = hvdctl("jupyter", "--name", "demo")
    assert TOKEN in opened.out
    assert "no browser" not in opened.err
    page = Path(seen.read_text().removeprefix("file://"))
    assert TOKEN in page.read_text()
    for file in (one for one in cluster.folder.rglob("*") if one.is_file()):
        if TOKEN.encode() in file.read_bytes():
            assert file == page
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            assert TOKEN.encode() not in entry.read_bytes()
        except OSError:
            continue
    hvdctl("jupyter", "--name", "demo", "--stop")
    assert not page.exists()


def test_without_a_screen_no_browser_is_tried(
    lab: Path, hvdctl: Hvdctl, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    opened = hvdctl("jupyter", "--name", "demo")
    assert opened.code == 0
    assert "open the URL yourself" in opened.err
    assert not (cluster.folder / "jupyter" / "open.html").exists()


def test_rotate_asks_the_head_for_a_new_token(lab: Path, hvdctl: Hvdctl) -> None:
    assert hvdctl("jupyter", "--name", "demo", "--rotate", "--json").code == 0
    assert (lab / "jupyter.words.node0").read_text() == "rotate\n"


def test_what_the_head_can_not_do_is_no_error_of_the_user(
    lab: Path, hvdctl: Hvdctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ssh.agent

    def agent(cluster: Cluster, node: str, *words: str, **more: Any) -> Any:
        if "rotate" in words:
            raise UsageError("JupyterLab: No space left on device")
        return asked(cluster, node, *words, **more)

    monkeypatch.setattr(ssh, "agent", agent)
    refused = hvdctl("jupyter", "--name", "demo", "--rotate")
    assert refused.code == 1
    assert "node0: JupyterLab: No space left on device" in refused.err


def test_a_server_that_does_not_take_the_token_is_told(lab: Path, hvdctl: Hvdctl) -> None:
    told = json.loads((lab / "jupyter.json").read_text())
    answer(lab, "jupyter", told | {"token": "wrong"})
    refused = hvdctl("jupyter", "--name", "demo")
    assert refused.code == 1
    assert "does not take the token" in refused.err


@pytest.mark.parametrize(
    ("change", "said"),
    [({"installed": False}, "has no JupyterLab"), ({"wanted": False}, "not whole yet")],
)
def test_what_is_missing_on_the_head_is_named(lab: Path, hvdctl: Hvdctl, change: dict[str, bool], said: str) -> None:
    told = json.loads((lab / "jupyter.json").read_text())
    answer(lab, "jupyter", told | change)
    refused = hvdctl("jupyter", "--name", "demo")
    assert refused.code == 1
    assert said in refused.err
    status = hvdctl("jupyter", "--name", "demo", "--status")
    assert status.code == 1
    assert said in status.out
    hint = refused.err.strip().splitlines()[-1].strip()
    assert hint.startswith("→") and hint in status.out, "the same way out"


def test_who_waits_for_jupyterlab_is_told_that_the_head_went(
    lab: Path, hvdctl: Hvdctl, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def went(*_: Any) -> int:
        engine.containers.pop(next(key for key, one in engine.containers.items() if "node0" in str(one)))
        monkeypatch.setattr(jupyter, "_asked", lambda *_: 0)
        return 0

    monkeypatch.setattr(jupyter, "_LOOK_S", 0.2)
    monkeypatch.setattr(jupyter, "_asked", went)
    refused = hvdctl("jupyter", "--name", "demo")
    assert refused.code == 1
    assert "the head node0 of 'demo' is lost" in refused.err


def test_who_waits_for_jupyterlab_is_told_that_the_tunnel_was_closed(
    lab: Path, hvdctl: Hvdctl, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jupyter, "_asked", lambda *_: int(tunnel.close(cluster)) * 0)
    refused = hvdctl("jupyter", "--name", "demo")
    assert refused.code == 1
    assert "the tunnel to 'demo' was closed meanwhile" in refused.err


def test_a_lost_head_is_told_with_the_way_back(
    cluster: Cluster, fake_nodes: Path, engine: FakeEngine, hvdctl: Hvdctl
) -> None:
    stand(engine, "node1")
    refused = hvdctl("jupyter", "--name", "demo")
    assert refused.code == 1
    assert "the head node0 of 'demo' is lost" in refused.err
    assert "`hvdctl up --name demo`" in refused.err
    status = hvdctl("jupyter", "--name", "demo", "--status")
    assert status.code == 1
    assert "is lost" in status.out


def test_a_cluster_without_it_says_how_to_get_it(cluster: Cluster, engine: FakeEngine, hvdctl: Hvdctl) -> None:
    stand(engine, "node0", "node1")
    cluster.store_spec(Spec(name="demo", nodes=2, slots=2, image=IMAGE, jupyter=False))
    refused = hvdctl("jupyter", "--name", "demo")
    assert refused.code == 2
    assert "hvdctl up --name demo --jupyter" in refused.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--port", "80"), "1024 to 65535"),
        (("--port", "65536"), "1024 to 65535"),
        (("--port", "x"), "not a whole number"),
        (("--stop", "--status"), "don't go together"),
        (("--stop", "--port", "9000"), "--stop takes none"),
    ],
)
def test_bad_input_is_refused(cluster: Cluster, hvdctl: Hvdctl, words: tuple[str, ...], said: str) -> None:
    refused = hvdctl("jupyter", "--name", "demo", *words)
    assert refused.code == 2
    assert said in refused.err
    assert not (cluster.folder / "jupyter").exists()


def test_no_such_cluster(hvdctl: Hvdctl) -> None:
    for words in ((), ("--stop",), ("--status",)):
        refused = hvdctl("jupyter", "--name", "nobody", *words)
        assert refused.code == 2
        assert "there is no cluster 'nobody'" in refused.err


def test_facts_hold_what_jobs_of_notebooks_need() -> None:
    spec = Spec(name="demo", nodes=2, net=10**9, env={"A": "b"}, image="me:secret@registry.example.org/i:1")
    told = jupyter.facts(spec, make_nodes(2), spec.image)
    assert [node["name"] for node in told["nodes"]] == ["node0", "node1"]
    assert (told["net"], told["env"], told["interface"], told["one_machine"]) == (10**9, {"A": "b"}, "eth0", True)
    assert "secret" not in json.dumps(told)


def test_up_names_jupyterlab_only_where_the_image_has_it(lab: Path, cluster: Cluster) -> None:
    own = Spec(name="demo", image="registry.example.org/i:1")
    assert jupyter.there(cluster, own)
    answer(lab, "jupyter", {"installed": False, "wanted": False, "running": False, "answers": False})
    assert not jupyter.there(cluster, own)
    assert jupyter.there(cluster, Spec(name="demo"))
    assert not jupyter.there(cluster, Spec(name="demo", jupyter=False))


def test_down_ends_the_tunnel(lab: Path, cluster: Cluster, hvdctl: Hvdctl, monkeypatch: pytest.MonkeyPatch) -> None:
    from hvdctl import pipeline, rescue

    assert hvdctl("jupyter", "--name", "demo", "--json").code == 0
    monkeypatch.setattr(pipeline, "_destroy", lambda *_: None)
    monkeypatch.setattr(rescue, "results", lambda *_, **__: None)
    assert pipeline.down("demo", Silent()).left == []
    assert not tunnel.state(cluster)["running"]
    assert not (cluster.folder / "jupyter").exists()
