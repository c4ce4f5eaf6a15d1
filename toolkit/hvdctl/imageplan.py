"""What goes into the images, and the names that follow from it.

    debian ─┬─ base ─┬─ labfiles (JupyterLab; no framework) ──────────────────┐
            │        └────────────────────────────────┬─ runtime ─┬─ horovod  │
            └─ toolchain (compilers, common objects)  │           └─ lab ─────┴─ jupyter
                 └─ compiled (a framework, Horovod) ──┘

Nodes run `jupyter`, or `horovod` if the spec leaves JupyterLab out; both have the agent as their last layer. Each image
is named by a digest of what goes into it, so an image that exists is an image that is right.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from hvdctl import nodefiles, wheels
from hvdctl.imagebuild import Content

# The files of images/jupyter below the last layer, by the image that they go into.
LABFILES = ("Dockerfile", "trim.sh")
LAB = ("lab.Dockerfile",)
# Those of images/horovod that are not of the compile; hvd-agent and its Dockerfile are of the last layer.
_RUNTIME = ("describe.py", "runtime.Dockerfile")
_AGENT = ("agent.Dockerfile", "hvd-agent")


@dataclass(frozen=True)
class Plan:
    """All inputs of a chain of images, read once: what is built is what the names were made of."""

    framework: str
    cuda: dict[str, Any] | None
    versions: dict[str, Any]
    pins: wheels.Pins
    toolchain: wheels.Pins
    lab: wheels.Pins
    sources: dict[str, dict[str, Content]]
    names: dict[str, str]

    @property
    def title(self) -> str:
        return self.framework if self.cuda is None else f"{self.framework} with CUDA {self.cuda['version']}"


def plan_of(framework: str, cuda: str | None = None) -> Plan:
    pins, toolchain, lab = wheels.pins(framework, cuda), wheels.toolchain(), wheels.lab()
    known = wheels.versions()
    variant = None if cuda is None else wheels.cuda_variant(framework, cuda)
    title = framework if cuda is None else f"{framework}-cuda{cuda}"
    suite = known["debian"]["suite"]
    sources = {folder: nodefiles.folder(folder) for folder in ("debian", "base", "toolchain", "cuda", "vm")}
    horovod, jupyter = nodefiles.folder("horovod"), nodefiles.folder("jupyter")
    sources["compiled"] = {name: horovod[name] for name in horovod if name not in (*_RUNTIME, *_AGENT)}
    sources["runtime"] = {name: horovod[name] for name in _RUNTIME}
    sources["labfiles"] = {name: jupyter[name] for name in LABFILES}
    sources["lab"] = {name: jupyter[name] for name in LAB}
    sources["horovod"] = nodefiles.horovod()
    sources["jupyter"] = nodefiles.jupyter(framework)

    # Each digest covers what is below its image.
    names = {}
    names["debian"] = f"hvdctl/debian:{suite}-{_digest(known['debian'], sources['debian'])}"
    names["base"] = f"hvdctl/base:{_digest(names['debian'], sources['base'])}"
    names["vm"] = f"hvdctl/vm:{_digest(names['debian'], sources['vm'])}"
    parts = (names["debian"], toolchain.digest, known["horovod"], sources["toolchain"])
    names["toolchain"] = f"hvdctl/toolchain:{_digest(*parts)}"
    if variant is not None:
        names["cuda"] = f"hvdctl/cuda:{cuda}-{_digest(names['toolchain'], variant['image'], sources['cuda'])}"
    root = names.get("cuda", names["toolchain"])
    compiled = _digest(root, pins.digest, sources["compiled"])
    names["compiled"] = f"hvdctl/compiled:{title}-{compiled}"
    names["runtime"] = f"hvdctl/runtime:{title}-{_digest(names['base'], compiled, sources['runtime'])}"
    names["horovod"] = f"hvdctl/horovod:{title}-{_digest(names['runtime'], sources['horovod'])}"
    names["labfiles"] = f"hvdctl/labfiles:{_digest(names['base'], lab.digest, sources['labfiles'])}"
    names["lab"] = f"hvdctl/lab:{title}-{_digest(names['runtime'], names['labfiles'], sources['lab'])}"
    names["jupyter"] = f"hvdctl/jupyter:{title}-{_digest(names['lab'], sources['jupyter'])}"
    return Plan(framework, variant, known, pins, toolchain, lab, sources, names)


def _digest(*parts: Any) -> str:
    def plain(value: Any) -> Any:
        return value.hex() if isinstance(value, bytes) else str(value)

    text = json.dumps(parts, sort_keys=True, default=plain)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
