"""Starts one run and ends it with the notebook that asked for it, however that ends.

A program of its own, of the standard library alone, in a session that neither an interrupt nor a shutdown of the kernel
reaches. The notebook holds the other end of its stdin: a line with the request first; then a line `done` when the run
has ended, or nothing but the end of the stream when the kernel was interrupted or killed. The run is then cancelled on
all nodes. Last, the folder that function and results went through is removed.

`hvd-agent hold` would not do: it asks the run's own program to end, and a function that computes listens to nobody.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

DONE = b"done\n"


def main() -> int:
    asked = json.loads(sys.stdin.buffer.readline() or b"null")
    if asked is None:
        return 0
    try:
        return _accompany(asked["request"])
    finally:
        shutil.rmtree(asked["folder"], ignore_errors=True)


def _accompany(request: dict[str, object]) -> int:
    code, answer = _agent("submit", stdin=json.dumps(request))
    try:
        sys.stdout.write(answer.strip().replace("\n", " ") + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        pass  # the notebook has gone already: its stdin has ended too
    if code:
        return code
    run = str(json.loads(answer)["id"])
    told = sys.stdin.buffer.read()
    return 0 if told == DONE else _agent("cancel", run)[0]


def _agent(*words: str, stdin: str = "") -> tuple[int, str]:
    try:
        done = subprocess.run(["hvd-agent", *words], input=stdin, capture_output=True, text=True, check=False)
    except OSError as error:
        return 127, json.dumps({"error": f"hvd-agent can't be started: {error}"})
    return done.returncode, done.stdout.strip() or json.dumps({"error": done.stderr.strip()[-2000:]})


if __name__ == "__main__":
    sys.exit(main())
