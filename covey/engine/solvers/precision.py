"""The type in which the products of a training step are computed.

With "bf16" the products of the forward and the backward pass take bfloat16 numbers and sum in
fp32. Rows, updates, messages, losses, scores and products with a Hessian stay in the run's type.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch

Compute = Literal["fp32", "bf16"]
_LARGE_STACK = 1_000_000
"""Parameters from which a stack of linear layers is faster in bf16 than in the fp32 kernel.

Three steps of 784-1024-1024-10 took 1.08 to 1.53 times as long in fp32 with batches of 20 to 128,
those of 784-512-10 .52 to 1.09 times.
"""


@dataclass(frozen=True)
class Precision:
    """What products are computed in, and why it is not what was asked for."""

    compute: Compute
    device: str
    reason: str | None = None

    def products(self) -> AbstractContextManager[Any]:
        """The context of a forward pass for training."""
        if self.compute == "fp32":
            return nullcontext()
        # Without a cache: its tensors would outlive a CUDA graph's capture.
        return torch.autocast(self.device, torch.bfloat16, cache_enabled=False)

    def __str__(self) -> str:
        if self.reason is None:
            return self.compute
        return f"{self.compute}, because {self.reason}"


def precision(compute: Compute, device: str, *, stack: int = 0) -> Precision:
    """What products are computed in on this type of device.

    `stack` is the number of parameters where the model is a stack of linear layers, else 0.

    >>> str(precision("bf16", "cpu", stack=79510))
    'fp32, because the fused kernel of small stacks of linear layers is faster in fp32'
    """
    if compute == "fp32":
        return Precision("fp32", device)
    reason = None
    if device == "cpu" and 0 < stack < _LARGE_STACK:
        reason = "the fused kernel of small stacks of linear layers is faster in fp32"
    elif not multiplies_bf16(device):
        reason = f"this {device.upper()} has no instructions for bf16"
    if reason is not None:
        return Precision("fp32", device, reason)
    return Precision("bf16", device)


def multiplies_bf16(device: str) -> bool:
    """Whether a type of device multiplies bfloat16 numbers faster than fp32 ones."""
    if device == "cuda":
        return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    instructions = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    checks = [getattr(torch.cpu, name, None) for name in instructions]
    return any(check() for check in checks if check is not None)
