"""`doctor`: whether Horovod loads here, and what was built into it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from . import store
from .store import AgentError

_BUILD = "/etc/hvdctl/build.json"
_MODULES = {"pytorch": ("torch", "horovod.torch"), "tensorflow": ("tensorflow", "horovod.tensorflow")}

# Run by the Python that Horovod is installed in, which need not be the agent's own.
_PROBE = """
import importlib, json, platform, sys
import horovod
framework = importlib.import_module(sys.argv[1])
binding = importlib.import_module(sys.argv[2])
print(json.dumps({
    "versions": {"python": platform.python_version(), "horovod": horovod.__version__,
                 sys.argv[1]: framework.__version__},
    "gloo": bool(binding.gloo_built()), "mpi": bool(binding.mpi_built()), "nccl": bool(binding.nccl_built()),
}))
"""


def main(argv: list[str]) -> int:
    """Prints {"ok", "framework", "versions", "gloo", "mpi", "nccl", "problems"}."""
    if argv:
        raise AgentError("usage: doctor")
    store.answer(examine(Path(os.environ.get("HVD_BUILD") or _BUILD)))
    return 0


def examine(build: Path) -> dict[str, Any]:
    found: dict[str, Any] = {"versions": {}, "gloo": False, "mpi": False, "nccl": False}
    try:
        framework = store.read(build)["framework"]
        modules = _MODULES[framework]
    except (OSError, ValueError, KeyError) as error:
        return {"ok": False, "framework": None, **found, "problems": [f"{build}: {error}"]}
    problems = []
    try:
        probe = subprocess.run(
            ["python3", "-c", _PROBE, *modules], capture_output=True, text=True, timeout=180, check=False
        )
        found |= json.loads(probe.stdout.strip().splitlines()[-1]) if probe.returncode == 0 else {}
        if probe.returncode != 0:
            said = probe.stderr.strip().splitlines()
            problems.append(f"{modules[1]} doesn't load: {said[-1] if said else probe.returncode}")
    except (OSError, ValueError, IndexError, subprocess.TimeoutExpired) as error:
        problems.append(f"{modules[1]} can't be tried: {error}")
    if not problems and not found["gloo"]:
        problems.append("Horovod was built without Gloo")
    return {"ok": not problems, "framework": framework, **found, "problems": problems}
