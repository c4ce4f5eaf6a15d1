"""The files of the last layer of a node's image, by their place in the build's context: what changes often."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from hvdctl import paths
from hvdctl.imagebuild import Content

_ROOT = "root"
_OPT = f"{_ROOT}/opt/hvdctl"
_LAB = f"{_ROOT}/opt/jupyter"
# What of images/jupyter goes where; the other files there are of the layer below.
_PLACES = {
    "server_config.py": f"{_LAB}/etc/jupyter/jupyter_server_config.py",
    "jupyter_config.json": f"{_LAB}/etc/jupyter/jupyter_config.json",
    "kernel.json": f"{_LAB}/share/jupyter/kernels/python3/kernel.json",
    "overrides.json": f"{_LAB}/share/jupyter/lab/settings/overrides.json",
    "page_config.json": f"{_LAB}/share/jupyter/lab/settings/page_config.json",
    "ipython_config.py": f"{_ROOT}/opt/venv/etc/ipython/ipython_config.py",
    "monitor.svg": f"{_OPT}/monitor.svg",
    "jupyter": f"{_ROOT}/usr/local/bin/jupyter",
}
# What of hvdctl measures, predicts and draws, and what that imports; no more, as each change of it makes new images.
_ON_NODES = (
    "__init__.py",
    "agent/__init__.py",
    "agent/store.py",
    "arriving.py",
    "bench",
    "cluster.py",
    "errors.py",
    "files.py",
    "incoming.py",
    "inventory.py",
    "jobs.py",
    "keys.py",
    "links.py",
    "owner.py",
    "paths.py",
    "process.py",
    "profile.py",
    "progress.py",
    "providers.py",
    "records.py",
    "redact.py",
    "scratch.py",
    "spec.py",
    "ssh.py",
    "yamltext.py",
)
# Notebooks for one framework only.
_NOTEBOOKS = {
    "training.ipynb": "pytorch",
    "training-tensorflow.ipynb": "tensorflow",
    "scaling.ipynb": "pytorch",
}


def horovod() -> dict[str, Content]:
    """The agent, and the module that is on every node."""
    sources = folder("horovod")
    return {
        "agent.Dockerfile": sources["agent.Dockerfile"],
        f"{_ROOT}/usr/local/bin/hvd-agent": sources["hvd-agent"],
        **_tree(paths.agent(), f"{_OPT}/agent"),
        **_tree(paths.library() / "hvd_cluster", f"{_OPT}/lib/hvd_cluster"),
    }


def jupyter(framework: str) -> dict[str, Content]:
    """The same, and what is for notebooks: settings of JupyterLab, hvdctl's figures and predictions, examples."""
    sources = folder("jupyter")
    return {
        **horovod(),
        **{place: sources[name] for name, place in _PLACES.items()},
        **_tree(paths.library() / "hvdctl", f"{_OPT}/lib/hvdctl", only=_ON_NODES),
        **{f"{_OPT}/notebooks/{name}": text for name, text in _notebooks(framework).items()},
    }


def folder(name: str) -> dict[str, Content]:
    """Name -> bytes of an image's folder, without what is only for people."""
    return {
        path.name: path.read_bytes()
        for path in sorted(paths.asset("images", name).iterdir())
        if path.is_file() and path.suffix != ".md"
    }


def _notebooks(framework: str) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes()
        for path in sorted(paths.asset("examples", "notebooks").glob("*.ipynb"))
        if _NOTEBOOKS.get(path.name, framework) == framework
    }


def _tree(root: Path, place: str, only: Collection[str] | None = None) -> dict[str, Content]:
    return {
        f"{place}/{path.relative_to(root).as_posix()}": path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
        if only is None or {path.relative_to(root).parts[0], path.relative_to(root).as_posix()} & set(only)
    }
