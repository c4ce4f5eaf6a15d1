"""In place of the ranks' program of a bench: answers at once, with steps that take as long as they are told to."""

import json
import os
import time
from pathlib import Path
from typing import Any

assert os.environ["HVD_BENCH_LAUNCHER"] == "horovod-gloo"
folder = Path(os.environ["HVD_RUNS"]) / os.environ["HVDCTL_RUN"]
ranks = json.loads((folder / "run.json").read_text())["np"]


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    if asked["op"] == "hello":
        versions = {"torch": "2", "python": "3.11", "horovod": "0.28.1", "mpi": None}
        return {"versions": versions, "machine": {"cpu": "a CPU", "cores": 2}, "nodes": []}
    if asked["op"] == "allreduce":
        return {"rows": [{"bytes": n, "time_s": n / 1e8, "alg_bits": 8e8, "bus_bits": 8e8} for n in asked["sizes"]]}
    if os.environ.get("BENCH_STUCK"):
        (folder / "stuck").touch()
        time.sleep(300)
    step = 0.01 * asked["batch"] * (1 if ranks == 1 else 1.25)
    return {
        "step_times_s": [0.9 * step, step, 1.1 * step],
        "split_s": {"compute": 0.8 * step, "exposed": 0.15 * step, "waiting": 0.05 * step},
        "overhead": 0.01,
        "half_width": 0.02,
        "converged": True,
        "start_s": 0.2,
    }


seen = 0
while int(os.environ["HVDCTL_RANK"]) == 0:
    lines = (folder / "inbox").read_text().splitlines() if (folder / "inbox").exists() else []
    for line in lines[seen:]:
        asked = json.loads(line)
        if asked["op"] == "end":
            raise SystemExit
        told = {"seq": asked["seq"], "event": "result", "found": answer(asked)}
        if asked.get("batch") == 13:
            told = {"seq": asked["seq"], "event": "error", "reason": "13 is refused"}
        with (folder / "outbox").open("a") as out:
            out.write(json.dumps(told) + "\n")
    seen = len(lines)
    time.sleep(0.02)
