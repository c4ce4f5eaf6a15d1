"""What this image holds, as JSON: asked from the libraries themselves, not from the build's arguments."""

import json
import platform
import subprocess
from importlib import import_module, metadata

FRAMEWORKS = {"pytorch": ("torch", "horovod.torch"), "tensorflow": ("tensorflow", "horovod.tensorflow")}


def main() -> None:
    framework, module = next((name, names[1]) for name, names in FRAMEWORKS.items() if _has(names[0]))
    library = FRAMEWORKS[framework][0]
    hvd = import_module(module)
    mpirun = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, check=True)
    described = {
        "framework": framework,
        "versions": {
            library: import_module(library).__version__,
            "horovod": metadata.version("horovod"),
            "numpy": metadata.version("numpy"),
            "openmpi": mpirun.stdout.split("\n")[0].split()[-1],
            "python": platform.python_version(),
        },
        "gloo": bool(hvd.gloo_built()),
        "mpi": bool(hvd.mpi_built()),
        "nccl": bool(hvd.nccl_built()),
    }
    print(json.dumps(described, indent=2))


def _has(distribution: str) -> bool:
    try:
        import_module(distribution)
    except ModuleNotFoundError:
        return False
    return True


main()
