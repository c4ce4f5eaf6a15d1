"""Names and numbers as figures, pages and tables write them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

_MODELS = {
    "resnet50": "ResNet-50",
    "resnet101": "ResNet-101",
    "inception_v3": "Inception V3",
    "vgg16": "VGG-16",
    "alexnet": "AlexNet",
    "googlenet": "GoogLeNet",
    "convnet_cifar10": "ConvNet (CIFAR-10)",
}
# Groups of three digits; no line breaks within a number or before its unit.
_THIN = "\u202f"
_SPACE = "\u00a0"


def model(name: str) -> str:
    return _MODELS.get(name, name)


def device(name: str) -> str:
    kind, _, gpu = name.partition(":")
    return f"emulated {gpu.upper()}" if kind == "emulated" else name


def emulation(points: Sequence[dict[str, Any]]) -> str:
    """What must stand in every figure and table of emulated points; nothing for real ones."""
    emulated = [point for point in points if point["emulated"]]
    if not emulated:
        return ""
    names = dict.fromkeys(device(point["device"]) for point in emulated)
    some = "" if len(emulated) == len(points) else "partly "
    return f"{some}{', '.join(names)}, {dilation(factors(emulated))}"


def factors(points: Iterable[dict[str, Any]]) -> tuple[float, float]:
    """The least and the greatest time dilation."""
    found = [float(point.get("dilation") or 1.0) for point in points]
    return (min(found, default=1.0), max(found, default=1.0))


def dilation(range_: tuple[float, float]) -> str:
    low, high = range_
    if high == 1.0:
        return "no time dilation"
    return f"time dilation {factor(low)}" + (f" to {factor(high)}" if high != low else "")


def factor(value: float) -> str:
    return f"{value:.3g}×"


def link(bits: float | None) -> str:
    """10 Gbit/s, 100 Mbit/s."""
    if bits is None:
        return "link not limited"
    for unit, size in (("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3)):
        if bits >= size * 0.9995:
            return f"{bits / size:.3g}{_SPACE}{unit}"
    return f"{bits:.0f}{_SPACE}bit/s"


def at_link(bits: float | None) -> str:
    return "with no limit on the link" if bits is None else f"at {link(bits)}"


def limited(record: dict[str, Any]) -> str:
    """What links were limited to, and what that stands for: 161 Mbit/s (10 Gbit/s slowed 62×)."""
    factor_ = float(record.get("dilation") or 1.0)
    slowed = f" ({link(record.get('asked'))} slowed {factor(factor_)})" if factor_ != 1 else ""
    return link(record["net"]) + slowed


def sample(record: dict[str, Any]) -> str:
    """How many of all pairs of nodes were measured: 200 of 9 900 pairs; empty if all were."""
    of = record.get("of") or 0
    count = len(record["pairs"])
    return f"{number(count)} of {number(of)} pairs" if count < of else ""


def number(value: float) -> str:
    """Three figures or all of a whole number, digits in groups of three: 1 480, 93.5, 0.042."""
    if value and abs(value) < 100:
        return f"{value:.3g}"
    return f"{value:,.0f}".replace(",", _THIN)


def with_ci(value: float, half: float | None) -> str:
    """A value and half its confidence interval, to the same place: one that shows the interval."""
    if half is None:
        return number(value)
    places = 0 if value >= 100 else 1 if value >= 10 else 2
    while places < 3 and half > 0 and not round(half, places):
        places += 1
    return f"{value:,.{places}f} ± {half:,.{places}f}".replace(",", _THIN)


def percent(share: float) -> str:
    return f"{share * 100:.2g}{_SPACE}%" if 0 < share < 0.1 else f"{share * 100:.0f}{_SPACE}%"


def milliseconds(seconds: float) -> str:
    return number(seconds * 1000)


def size(count: float) -> str:
    for unit, step in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= step:
            return f"{count / step:.3g}{_SPACE}{unit}"
    return f"{count:.0f}{_SPACE}B"


def layout(point: dict[str, Any]) -> str:
    """4x1: four nodes of one rank."""
    return f"{point['nodes']}x{point['slots']}"


def nodes(count: int) -> str:
    return f"{count}{_SPACE}node" if count == 1 else f"{count}{_SPACE}nodes"


def ranks(count: int) -> str:
    return f"{count}{_SPACE}rank" if count == 1 else f"{count}{_SPACE}ranks"


def where(point: dict[str, Any]) -> str:
    """10 nodes; 1 node of 4 ranks."""
    alone = point["slots"] == 1
    return nodes(point["nodes"]) + ("" if alone else f" of {ranks(point['slots'])}")


def batch(point: dict[str, Any]) -> str:
    """What stays the same as ranks are added."""
    if point["scaling"] == "strong":
        return f"global{_SPACE}batch{_SPACE}{point['global_batch']}"
    return f"batch{_SPACE}{point['batch']}"


def axis(name: str, value: Any) -> str:
    """A value on an axis that tells one group of points from another."""
    named = {
        "device": lambda: device(value),
        "slots": lambda: f"{ranks(value)} a node",
        "launcher": lambda: str(value),
        "threads": lambda: "threads not set" if value is None else f"{value} thread{'s' * (value != 1)}",
        "scaling": lambda: f"{value} scaling",
        "data": lambda: f"{value or 'synthetic'} data" if "/" not in str(value) else data(value),
        "fusion_mb": lambda: f"fusion {value} MB" if value is not None else "fusion not set",
        "cycle_ms": lambda: f"cycle {value} ms" if value is not None else "cycle not set",
    }
    return named[name]()


def data(value: str) -> str:
    return f"{value.removeprefix('staged:')}, staged" if value.startswith("staged:") else value


def join(words: Sequence[str]) -> str:
    """a, b and c."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}" if words else ""
