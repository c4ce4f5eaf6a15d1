"""A model that takes as long as a GPU would and computes nothing, with gradients of the real model's sizes.

The forward pass sleeps; the backward pass sleeps layer by layer, as long as each layer's share of the operations, and
hands over that layer's gradients. What exchanges gradients can't tell it from a real model.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn

FORWARD = 1 / 3


class Clock:
    """When this step began, and when a part of it is over."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.started = 0.0

    def start(self) -> None:
        self.started = time.perf_counter()

    def wait(self, fraction: float) -> None:
        """Sleep until this fraction of the step has passed: a point in time, so that delays don't add up."""
        rest = self.started + fraction * self.seconds - time.perf_counter()
        if rest > 0:
            time.sleep(rest)


class Emulated(nn.Module):
    """Layers as (name, bytes of each tensor, operations), in the order of the forward pass."""

    def __init__(self, layers: list[Any], seconds: float) -> None:
        super().__init__()
        self.clock = Clock(seconds)
        self.stages: list[tuple[float, list[nn.Parameter]]] = []
        total = sum(macs for _, _, macs in layers)
        done = total
        for index, (_, tensors, macs) in enumerate(layers):
            # The last layer's gradients come first.
            until = FORWARD + (1 - FORWARD) * done / total
            done -= macs
            own = [_parameter(size // 4) for size in tensors]
            for number, parameter in enumerate(own):
                self.register_parameter(f"p{index}_{number}", parameter)
            self.stages.append((until, own))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.clock.start()
        for until, own in self.stages:
            x = _Stage.apply(x, self.clock, until, *own)
        self.clock.wait(FORWARD)
        return x


class _Stage(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, clock: Clock, until: float, *own: torch.Tensor) -> torch.Tensor:
        ctx.clock, ctx.until = clock, until
        ctx.gradients = [_flat(parameter.numel(), 1e-3) for parameter in own]
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> Any:
        ctx.clock.wait(ctx.until)
        return (*upstream, None, None, *ctx.gradients)


def _parameter(elements: int) -> nn.Parameter:
    parameter = nn.Parameter(_flat(elements, 0.0))
    parameter.grad = torch.zeros(elements)
    return parameter


def _flat(elements: int, value: float) -> torch.Tensor:
    """One number that looks like many: only the gradient that is sent takes memory."""
    return torch.tensor([value]).expand(elements)
