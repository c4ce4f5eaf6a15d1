"""A data set from the share to a node's local disk; runs on the nodes with nothing but Python and tar.

    pack SOURCE SMALL            on the head: what the data set is; small files become a tar on the share, once
    copy SOURCE PACKED TARGET    on every node: what `pack` printed says what is to be copied

Both print one line of JSON. A mark beside the copy holds the source that it was made from, and its state.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def main(argv: list[str]) -> int:
    verbs: dict[str, Callable[..., dict[str, Any]]] = {"pack": pack, "copy": copy}
    try:
        answer = verbs[argv[0]](*argv[1:])
    except (Refused, OSError, subprocess.CalledProcessError) as error:
        answer = {"error": f"{socket.gethostname()}: {error}"}
    sys.stdout.write(json.dumps(answer) + "\n")
    return 1 if "error" in answer else 0


class Refused(Exception):
    """What is asked can't be done; the text is for the user."""


def pack(source: str, small: str, share: str = "/shared") -> dict[str, Any]:
    folder = Path(source).resolve()
    if Path(share) not in folder.parents:
        raise Refused(f"{folder} is not below {share}, which all nodes see")
    if not folder.is_dir():
        raise Refused(f"there is no folder {folder}")
    state, files, size = hashlib.sha256(os.fsencode(folder)), 0, 0
    for where, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            found = Path(where, name).lstat()
            state.update(os.fsencode(f"{where}/{name}") + f"\0{found.st_size}\0{found.st_mtime_ns}\n".encode())
            files += 1
            size += found.st_size
    if not files:
        raise Refused(f"{folder} holds no files")
    stamp = state.hexdigest()[:16]
    answer = {"stamp": stamp, "files": files, "bytes": size, "tar": None, "changed": False}
    if files == 1 or size / files >= int(small):
        return answer
    store = Path(share, ".hvdctl", "staging")
    # By the path too: another folder may have the same name.
    name = f"{folder.name}.{hashlib.sha256(os.fsencode(folder)).hexdigest()[:8]}"
    tar = store / f"{name}.{stamp}.tar"
    if not tar.exists():
        store.mkdir(parents=True, exist_ok=True)
        # Those of earlier states of the source, and one that was cut short.
        for old in store.iterdir():
            if old.name.rsplit(".tar", 1)[0].rsplit(".", 1)[0] == name:
                old.unlink()
        part = tar.with_name(f"{tar.name}.part")
        subprocess.run(["tar", "-C", folder, "-cf", part, "."], check=True)
        part.rename(tar)
        answer["changed"] = True
    return answer | {"tar": str(tar)}


def copy(
    source: str, packed: str, target: str, local: tuple[str, ...] = ("/scratch", "/home/hvd/scratch")
) -> dict[str, Any]:
    told = json.loads(packed)
    folder = Path(source).resolve()
    disk = next((path for path in map(Path, local) if path.is_dir()), Path(local[-1]))
    final = Path(target) if target else disk / folder.name
    mark, part = final.with_name(f"{final.name}.staged"), final.with_name(f"{final.name}.part")
    node, megabytes = socket.gethostname(), told["bytes"] / 1e6
    answer = {"changed": False, "target": str(final), "bytes": told["bytes"], "seconds": 0.0}
    if final.is_dir() and mark.exists():
        held, _, state = mark.read_text().partition("\n")
        if held != str(folder):
            raise Refused(f"{final} holds a copy of {held}: choose another staging_target for {folder}")
        if state == told["stamp"]:
            return answer | {"said": f"{node}: {megabytes:.1f} MB in {final} already"}
    elif os.path.lexists(final):
        raise Refused(f"{final} is there already and was not put there by staging: choose another staging_target")

    final.parent.mkdir(parents=True, exist_ok=True)
    # A mark without a stamp: the folder is ours, and not whole.
    mark.write_text(f"{folder}\n")
    for old in (part, final):
        if old.exists():
            shutil.rmtree(old)
    free = shutil.disk_usage(final.parent).free
    if free < told["bytes"]:
        raise Refused(f"{free / 1e6:.0f} MB are free for {final}, the data set has {megabytes:.0f} MB")
    began = time.monotonic()
    part.mkdir()
    if told["tar"]:
        subprocess.run(["tar", "-C", part, "-xf", told["tar"]], check=True)
    else:
        shutil.copytree(folder, part, symlinks=True, dirs_exist_ok=True)
    seconds = time.monotonic() - began
    part.rename(final)
    mark.write_text(f"{folder}\n{told['stamp']}")
    speed = f"{megabytes:.1f} MB to {final} in {seconds:.1f} s, {megabytes / max(seconds, 1e-3):.1f} MB/s"
    return answer | {
        "changed": True,
        "seconds": round(seconds, 3),
        "said": f"{node}: {told['files']} files, {speed}",
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
