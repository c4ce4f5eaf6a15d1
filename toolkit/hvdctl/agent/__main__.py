"""Loads this folder as the package `agent`, wherever it lies, and runs one verb."""

import importlib.util
import sys
from pathlib import Path


def load() -> None:
    here = Path(__file__).resolve().parent
    # Python put this folder itself on the path, where its modules could shadow those of others.
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != here]
    spec = importlib.util.spec_from_file_location("agent", here / "__init__.py", submodule_search_locations=[str(here)])
    if spec is None or spec.loader is None:
        raise ImportError(f"{here} is not the agent's folder")
    module = importlib.util.module_from_spec(spec)
    sys.modules["agent"] = module
    spec.loader.exec_module(module)


if __name__ == "__main__":
    load()
    sys.exit(importlib.import_module("agent.cli").main(sys.argv[1:]))
