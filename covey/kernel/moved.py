"""Numbers on their way between main memory and the device of the rows.

Whoever captures a round for a GPU replays it on fixed memory. Then `provider` gives the memory in
which a number lies there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

Provider = Callable[[Tensor], Tensor]
"""From numbers in main memory to the same numbers on the device."""


class _Current(threading.local):
    provider: Provider | None = None


_current = _Current()


def on_device(numbers: Tensor, device: torch.device) -> Tensor:
    """The numbers on a device, without waiting for what a GPU is doing."""
    if numbers.device.type != "cpu":
        return numbers
    if _current.provider is not None:
        return _current.provider(numbers)
    return numbers.to(device, non_blocking=True)


@contextmanager
def provided(provider: Provider) -> Iterator[None]:
    """Let this thread get all numbers on the device from `provider`."""
    before = _current.provider
    _current.provider = provider
    try:
        yield
    finally:
        _current.provider = before


def in_main_memory(values: Sequence[Tensor]) -> list[Tensor]:
    """The same tensors in main memory; those of one type on a GPU come in one copy."""
    waiting: dict[torch.dtype, list[Tensor]] = {}
    for tensor in values:
        if tensor.device.type != "cpu":
            waiting.setdefault(tensor.dtype, []).append(tensor)
    arrived: dict[torch.dtype, Iterator[Tensor]] = {}
    for dtype, tensors in waiting.items():
        together = torch.cat([tensor.reshape(-1) for tensor in tensors]).cpu()
        sizes = [tensor.numel() for tensor in tensors]
        arrived[dtype] = iter(torch.split(together, sizes))
    out = []
    for tensor in values:
        if tensor.device.type != "cpu":
            tensor = next(arrived[tensor.dtype]).view(tensor.shape)
        out.append(tensor)
    return out
