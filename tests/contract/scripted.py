"""A machine that is a folder: the roles' scripts run in it, with stand-ins for what would reach beyond it."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

PLAYBOOKS = Path(__file__).parents[2] / "playbooks"

STALE = 'case $* in *.hvdctl-*) echo "stat: Stale file handle" >&2; exit 1 ;; esac\nexec /usr/bin/stat "$@"'

SYSTEMCTL = r"""
for last in "$@"; do :; done
case $* in
    is-enabled*) [ -e "$ROOT/enabled-$last" ] ;;
    enable*) : >"$ROOT/enabled-$last" ;;
    "is-active --quiet docker.service") [ ! -e "$ROOT/docker-stopped" ] ;;
    "start docker.service") [ ! -e "$ROOT/docker-broken" ] && rm -f "$ROOT/docker-stopped" ;;
    is-active*) [ -e "$ROOT/active-$last" ] ;;
    "start shared.mount") echo "node0:/x $ROOT/shared nfs4 rw 0 0" >"$ROOT/proc/mounts" ;;
    "stop shared.mount"*) : >"$ROOT/proc/mounts" ;;
    start*) : >"$ROOT/active-$last" ;;
    show*) echo no ;;
esac
"""


class Machine:
    def __init__(self, root: Path) -> None:
        self.root = root
        for folder in ("bin", "proc", "etc/hvdctl/demo", "etc/systemd/system", "usr/local/sbin"):
            (root / folder).mkdir(parents=True)
        self.write("proc/mounts", "")
        self.write("etc/hosts", "127.0.0.1 localhost\n")
        self.write("var/lib/dpkg/status", "")
        for name in ("chown", "sleep", "exportfs", "umount", "journalctl"):
            self.command(name)
        self.command("systemctl", SYSTEMCTL)

    def write(self, path: str, text: str) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def command(self, name: str, does: str = "") -> None:
        """A command of this name that notes its arguments, then does that."""
        noted = f'#!/bin/sh\nROOT={self.root}\necho "{name} $*" >>"$ROOT/calls"\n{does}\n'
        self.write(f"bin/{name}", noted).chmod(0o755)

    def has(self, path: str) -> bool:
        return (self.root / path).exists()

    @property
    def calls(self) -> list[str]:
        return (self.root / "calls").read_text().splitlines() if self.has("calls") else []

    def forget(self) -> None:
        (self.root / "calls").unlink(missing_ok=True)

    def within(self, text: str) -> str:
        """The same script, with the machine's folders in the place of this one's."""
        text = text.replace("PATH=/usr/local/sbin:", f"PATH={self.root}/bin:{self.root}/usr/local/sbin:")
        paths = r"etc|srv|shared|var/lib|proc/mounts|usr/local/sbin/|usr/lib/systemd|run/systemd|run/docker|snap"
        return re.sub(rf"(?<![\w:/])/(?=(?:{paths})\b)(?!etc/os-release)", f"{self.root}/", text)

    def run(self, role: str, script: str, **settings: str) -> subprocess.CompletedProcess[str]:
        return self.shell((PLAYBOOKS / "roles" / role / "files" / script).read_text(), **settings)

    def shell(self, code: str, **settings: str) -> subprocess.CompletedProcess[str]:
        lines = [f"HVD_{name}='{value}'" for name, value in ({"CLUSTER": "demo"} | settings).items()]
        prelude = (PLAYBOOKS / "files" / "prelude.sh").read_text()
        whole = self.within("\n".join([*lines, prelude, code]))
        return subprocess.run(["sh", "-c", whole], capture_output=True, text=True, check=False, timeout=60)

    def probe(self, **env: str) -> dict[str, str]:
        script = self.within((PLAYBOOKS / "roles" / "preflight" / "files" / "probe.sh").read_text())
        script = script.replace('PATH="$PATH:/usr/sbin:/sbin"', f'PATH="{self.root}/bin:$PATH"')
        env = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "HVD_ADDRESS": "203.0.113.7", "HVD_SHARE": "auto"} | env
        done = subprocess.run(["/bin/sh", "-c", script], env=env, capture_output=True, text=True, check=True)
        told: dict[str, str] = json.loads(done.stdout)
        return told
