"""Numbers on their way from main memory to the device of the rows.

Whoever captures a round for a GPU replays it on fixed memory. Then `provider` gives the memory in
which a number lies there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
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
