"""Stands for horovodrun: one shell line per rank, tagged output, all ended when one fails."""

import argparse
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from shlex import quote

from horovod.runner.util import remote


def gloo_built(verbose=False):
    raise AssertionError("imports a framework")


def _check_all_hosts_ssh_successful(*args, **options):
    raise AssertionError("logs in to every host")


def run_commandline():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gloo", action="store_true")
    parser.add_argument("-np", type=int)
    parser.add_argument("-H", dest="hosts")
    parser.add_argument("--network-interfaces")
    parser.add_argument("--start-timeout")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    assert gloo_built() and _check_all_hosts_ssh_successful([])
    places = [host for entry in args.hosts.split(",") for host in [entry.split(":")[0]] * int(entry.split(":")[1])]
    ranks = [_start(rank, host, args.command) for rank, host in enumerate(places[: args.np])]
    signal.signal(signal.SIGTERM, lambda *_: [rank.terminate() for rank in ranks])
    readers = [threading.Thread(target=_tag, args=pair) for pair in enumerate(ranks)]
    for reader in readers:
        reader.start()
    codes = _wait(ranks)
    for reader in readers:
        reader.join()
    if any(codes):
        raise RuntimeError("Horovod detected that one or more processes exited with non-zero status")


def _start(rank, host, command):
    line = f"env HOROVOD_RANK={rank} " + " ".join(quote(word) for word in command)
    if host != "localhost":
        line = f"{remote.SSH_COMMAND_PREFIX} {host} {quote(f'cd {Path.cwd()} ; {line}')}"
    return subprocess.Popen(line, shell=True, stdout=subprocess.PIPE, start_new_session=True)


def _tag(rank, process):
    for line in process.stdout:
        sys.stdout.buffer.write(b"[%d]<stdout>:" % rank + line)
        sys.stdout.buffer.flush()


def _wait(ranks):
    left = list(ranks)
    while left:
        for process in list(left):
            try:
                code = process.wait(0.02)
            except subprocess.TimeoutExpired:
                continue
            left.remove(process)
            if code:
                for other in left:
                    os.killpg(other.pid, signal.SIGTERM)
    return [process.returncode for process in ranks]
