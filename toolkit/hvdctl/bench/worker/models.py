"""The networks that bench trains, without torchvision: each has exactly the parameters of the usual PyTorch one.

    python3 models.py > ../catalogue.json

ResNet: arXiv 1512.03385, with the stride in the 3x3 convolution. Inception V3: arXiv 1512.00567. GoogLeNet: arXiv
1409.4842, with batch norm, and 3x3 where the paper has 5x5. VGG-16: arXiv 1409.1556. AlexNet: arXiv 1404.5997, one
tower. The auxiliary heads of the Inception family are left out. convnet_cifar10 is Caffe's cifar10_quick.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn


class Recipe(NamedTuple):
    make: Callable[[], nn.Module]
    image: tuple[int, int, int]
    classes: int


class Layer(NamedTuple):
    name: str
    tensors: list[int]
    macs: int


def build(name: str) -> nn.Module:
    """The network with random weights, on torch's default device."""
    if name not in MODELS:
        raise ValueError(f"no model {name!r}: there are {', '.join(MODELS)}")
    return MODELS[name].make()


def layers(name: str) -> list[Layer]:
    """Every layer with parameters in forward order: bytes of its tensors, multiply-adds of one image's forward pass."""
    found: list[Layer] = []
    with torch.device("meta"), torch.no_grad():
        model = build(name).eval()
        for path, module in model.named_modules():
            if any(True for _ in module.parameters(recurse=False)):
                module.register_forward_hook(_noting(path, found))
        model(torch.empty(1, *MODELS[name].image))
    return found


def catalogue() -> str:
    """The content of catalogue.json, one layer a line."""
    entries = []
    for name, recipe in MODELS.items():
        found = layers(name)
        size = sum(sum(layer.tensors) for layer in found)
        entries.append(
            f'{json.dumps(name)}: {{"parameters": {size // 4}, "gradient_bytes": {size}, '
            f'"image": {json.dumps(recipe.image)}, "classes": {recipe.classes}, "layers": [\n'
            + ",\n".join(f"  {json.dumps(layer)}" for layer in found)
            + "\n]}"
        )
    return "{\n" + ",\n".join(entries) + "\n}\n"


def _noting(name: str, found: list[Layer]) -> Callable[..., None]:
    def note(module: nn.Module, _: Any, output: torch.Tensor) -> None:
        tensors = [tensor.numel() * 4 for tensor in module.parameters(recurse=False)]
        # Each output of a convolution or a linear layer takes one multiply-add for each weight that leads to it.
        weights = 1 if isinstance(module, nn.BatchNorm2d) else math.prod(next(module.parameters()).shape[1:])
        found.append(Layer(name, tensors, output.numel() * weights))

    return note


class Residual(nn.Module):
    """The sum of a body and its shortcut, rectified."""

    def __init__(self, body: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.shortcut = shortcut
        self.relu = nn.ReLU(inplace=True)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.relu(self.body(images) + self.shortcut(images))


class Branches(nn.ModuleList):
    """Several paths from the same input, their channels joined."""

    def __init__(self, *paths: nn.Module) -> None:
        super().__init__(paths)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.cat([path(images) for path in self], dim=1)


def chain(**parts: nn.Module) -> nn.Sequential:
    """Parts one after the other, by name."""
    made = nn.Sequential()
    for name, part in parts.items():
        made.add_module(name, part)
    return made


def conv(
    inputs: int, outputs: int, size: int | tuple[int, int], stride: int = 1, padded: bool = True, eps: float = 1e-5
) -> nn.Sequential:
    """Convolution, batch norm and ReLU; padded, a stride of 1 keeps height and width."""
    height, width = (size, size) if isinstance(size, int) else size
    padding = (height // 2, width // 2) if padded else 0
    return chain(
        conv=nn.Conv2d(inputs, outputs, (height, width), stride, padding, bias=False),
        norm=nn.BatchNorm2d(outputs, eps=eps),
        relu=nn.ReLU(inplace=True),
    )


def head(inputs: int, dropout: float = 0.0) -> nn.Sequential:
    """From feature maps to the scores of 1000 classes."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(dropout), nn.Linear(inputs, 1000))


def resnet(blocks: tuple[int, int, int, int]) -> nn.Module:
    stages: dict[str, nn.Module] = {}
    inputs = 64
    for number, count in enumerate(blocks):
        width = 64 << number
        stage = nn.Sequential()
        for block in range(count):
            stage.append(bottleneck(inputs, width, stride=2 if number and not block else 1))
            inputs = 4 * width
        stages[f"stage{number + 1}"] = stage
    return chain(stem=conv(3, 64, 7, 2), pool=nn.MaxPool2d(3, 2, padding=1), **stages, head=head(inputs))


def bottleneck(inputs: int, width: int, stride: int) -> Residual:
    body = nn.Sequential(conv(inputs, width, 1), conv(width, width, 3, stride), conv(width, 4 * width, 1)[:2])
    if inputs == 4 * width:
        return Residual(body, nn.Identity())
    return Residual(body, conv(inputs, 4 * width, 1, stride)[:2])


def vgg16() -> nn.Module:
    features = nn.Sequential()
    inputs = 3
    for width, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            features.extend([nn.Conv2d(inputs, width, 3, padding=1), nn.ReLU(inplace=True)])
            inputs = width
        features.append(nn.MaxPool2d(2))
    classifier = nn.Sequential(
        *(nn.Flatten(), nn.Linear(512 * 7 * 7, 4096), nn.ReLU(inplace=True), nn.Dropout()),
        *(nn.Linear(4096, 4096), nn.ReLU(inplace=True), nn.Dropout()),
        nn.Linear(4096, 1000),
    )
    return chain(features=features, classifier=classifier)


def alexnet() -> nn.Module:
    features = nn.Sequential(
        *(nn.Conv2d(3, 64, 11, 4, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2)),
        *(nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2)),
        *(nn.Conv2d(192, 384, 3, padding=1), nn.ReLU(inplace=True)),
        *(nn.Conv2d(384, 256, 3, padding=1), nn.ReLU(inplace=True)),
        *(nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2)),
    )
    classifier = nn.Sequential(
        *(nn.Flatten(), nn.Dropout(), nn.Linear(256 * 6 * 6, 4096), nn.ReLU(inplace=True)),
        *(nn.Dropout(), nn.Linear(4096, 4096), nn.ReLU(inplace=True)),
        nn.Linear(4096, 1000),
    )
    return chain(features=features, classifier=classifier)


def googlenet() -> nn.Module:
    def pool(size: int = 3) -> nn.Module:
        return nn.MaxPool2d(size, 2, ceil_mode=True)

    def mixed(inputs: int, one: int, three: tuple[int, int], five: tuple[int, int], pooled: int) -> Branches:
        return Branches(
            conv(inputs, one, 1),
            nn.Sequential(conv(inputs, three[0], 1), conv(three[0], three[1], 3)),
            nn.Sequential(conv(inputs, five[0], 1), conv(five[0], five[1], 3)),
            nn.Sequential(nn.MaxPool2d(3, 1, padding=1), conv(inputs, pooled, 1)),
        )

    return chain(
        stem=nn.Sequential(conv(3, 64, 7, 2), pool(), conv(64, 64, 1), conv(64, 192, 3), pool()),
        mixed3a=mixed(192, 64, (96, 128), (16, 32), 32),
        mixed3b=mixed(256, 128, (128, 192), (32, 96), 64),
        pool3=pool(),
        mixed4a=mixed(480, 192, (96, 208), (16, 48), 64),
        mixed4b=mixed(512, 160, (112, 224), (24, 64), 64),
        mixed4c=mixed(512, 128, (128, 256), (24, 64), 64),
        mixed4d=mixed(512, 112, (144, 288), (32, 64), 64),
        mixed4e=mixed(528, 256, (160, 320), (32, 128), 128),
        pool4=pool(2),
        mixed5a=mixed(832, 256, (160, 320), (32, 128), 128),
        mixed5b=mixed(832, 384, (192, 384), (48, 128), 128),
        head=head(1024, dropout=0.2),
    )


def inception_v3() -> nn.Module:
    """Units 35, 17 and 8 work on maps of that width; `line` is a path of convolutions after each other."""

    def line(inputs: int, *steps: tuple[int, int | tuple[int, int]], shrink: bool = False) -> nn.Sequential:
        made = nn.Sequential()
        for number, (outputs, size) in enumerate(steps, 1):
            last = shrink and number == len(steps)
            made.append(conv(inputs, outputs, size, 2 if last else 1, padded=not last, eps=1e-3))
            inputs = outputs
        return made

    def pooled(inputs: int, outputs: int) -> nn.Sequential:
        return nn.Sequential(nn.AvgPool2d(3, 1, padding=1), *line(inputs, (outputs, 1)))

    def unit35(inputs: int, outputs: int) -> Branches:
        return Branches(
            line(inputs, (64, 1)),
            line(inputs, (48, 1), (64, 5)),
            line(inputs, (64, 1), (96, 3), (96, 3)),
            pooled(inputs, outputs),
        )

    def unit17(width: int) -> Branches:
        flat, tall = (1, 7), (7, 1)
        return Branches(
            line(768, (192, 1)),
            line(768, (width, 1), (width, flat), (192, tall)),
            line(768, (width, 1), (width, tall), (width, flat), (width, tall), (192, flat)),
            pooled(768, 192),
        )

    def unit8(inputs: int) -> Branches:
        def fork() -> Branches:
            return Branches(line(384, (384, (1, 3))), line(384, (384, (3, 1))))

        return Branches(
            line(inputs, (320, 1)),
            line(inputs, (384, 1)).append(fork()),
            line(inputs, (448, 1), (384, 3)).append(fork()),
            pooled(inputs, 192),
        )

    def bare(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Sequential:
        return conv(inputs, outputs, size, stride, padded=False, eps=1e-3)

    return chain(
        stem1=nn.Sequential(bare(3, 32, 3, 2), bare(32, 32, 3), *line(32, (64, 3)), nn.MaxPool2d(3, 2)),
        stem2=nn.Sequential(bare(64, 80, 1), bare(80, 192, 3), nn.MaxPool2d(3, 2)),
        mixed35=nn.Sequential(unit35(192, 32), unit35(256, 64), unit35(288, 64)),
        shrink17=Branches(
            line(288, (384, 3), shrink=True),
            line(288, (64, 1), (96, 3), (96, 3), shrink=True),
            nn.MaxPool2d(3, 2),
        ),
        mixed17=nn.Sequential(unit17(128), unit17(160), unit17(160), unit17(192)),
        shrink8=Branches(
            line(768, (192, 1), (320, 3), shrink=True),
            line(768, (192, 1), (192, (1, 7)), (192, (7, 1)), (192, 3), shrink=True),
            nn.MaxPool2d(3, 2),
        ),
        mixed8=nn.Sequential(unit8(1280), unit8(2048)),
        head=head(2048, dropout=0.5),
    )


def convnet_cifar10() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 32, 5, padding=2), nn.MaxPool2d(3, 2, ceil_mode=True), nn.ReLU(inplace=True)),
        *(nn.Conv2d(32, 32, 5, padding=2), nn.ReLU(inplace=True), nn.AvgPool2d(3, 2, ceil_mode=True)),
        *(nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(inplace=True), nn.AvgPool2d(3, 2, ceil_mode=True)),
        *(nn.Flatten(), nn.Linear(64 * 4 * 4, 64), nn.Linear(64, 10)),
    )


MODELS = {
    "resnet50": Recipe(lambda: resnet((3, 4, 6, 3)), (3, 224, 224), 1000),
    "resnet101": Recipe(lambda: resnet((3, 4, 23, 3)), (3, 224, 224), 1000),
    "inception_v3": Recipe(inception_v3, (3, 299, 299), 1000),
    "vgg16": Recipe(vgg16, (3, 224, 224), 1000),
    "alexnet": Recipe(alexnet, (3, 224, 224), 1000),
    "googlenet": Recipe(googlenet, (3, 224, 224), 1000),
    "convnet_cifar10": Recipe(convnet_cifar10, (3, 32, 32), 10),
}

if __name__ == "__main__":
    sys.stdout.write(catalogue())
