"""A network that takes examples, and answers, in the units of the user's data."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from covey.data.encoding import ColumnEncoding, Encoding, named_columns
from covey.data.scaling import Scaling
from covey.data.shards import Names


class Form(Protocol):
    """What says how values become a network's inputs: shards, or their form in a folder."""

    @property
    def scaling(self) -> Scaling | None: ...

    @property
    def encoding(self) -> Encoding | None: ...

    @property
    def target(self) -> Scaling | None: ...

    @property
    def names(self) -> Names: ...


class InUnits(nn.Module):
    """A network with what prepares its inputs before it, and the units of targets after it.

    It takes measured values [n, ...], one column for each word of a column of words, and NaN for a
    gap where the data has gaps filled. Of a table it also takes a DataFrame or a dict of columns.
    The bare network is `network`.
    """

    shift: Tensor | None
    factor: Tensor | None
    fill: Tensor | None
    source: Tensor
    flag: Tensor
    target_shift: Tensor | None
    target_factor: Tensor | None

    def __init__(
        self,
        network: nn.Module,
        scaling: Scaling | None,
        encoding: Encoding | None,
        target: Scaling | None,
    ) -> None:
        super().__init__()
        self.network = network
        self.encoding = encoding
        for name, how in (("", scaling), ("target_", target)):
            self.register_buffer(f"{name}shift", None if how is None else how.shift.double())
            self.register_buffer(f"{name}factor", None if how is None else how.factor.double())
        self.register_buffer("fill", None)
        if encoding is not None and encoding.missing == "mean":
            fill, source, flag = (torch.from_numpy(part) for part in encoding.gaps())
            self.fill = fill
            self.register_buffer("source", source)
            self.register_buffer("flag", flag)

    def forward(self, x: Any) -> Tensor:
        """The network's answers: logits, or values in the units of the targets."""
        inside = next(self.network.parameters())
        if self.encoding is not None and hasattr(x, "keys"):
            x = self.encoding.inputs(named_columns(x, self.encoding))
        if not isinstance(x, Tensor):
            x = torch.from_numpy(np.asarray(x)).to(inside.device)
        if not x.is_floating_point():
            x = x.double()
        if self.fill is not None:
            gaps = x.isnan()
            x = torch.where(gaps, self.fill.to(x.dtype), x)
            x = torch.where(gaps[:, self.source] & self.flag, torch.ones_like(x), x)
        if self.shift is not None and self.factor is not None:
            x = (x - self.shift.to(x.dtype)) * self.factor.to(x.dtype)
        y: Tensor = self.network(x.to(inside.dtype))
        if self.target_shift is not None and self.target_factor is not None:
            y = y / self.target_factor.to(y.dtype) + self.target_shift.to(y.dtype)
        return y


def in_units(network: nn.Module, data: Form) -> nn.Module:
    """The network in the units of the data; itself where these are its own units."""
    scaling = data.scaling
    if scaling is not None and scaling.kind == "none":
        scaling = None
    encoding = data.encoding
    if scaling is None and encoding is None and data.target is None:
        return network
    if encoding is None and data.names.features:
        encoding = Encoding(tuple(map(ColumnEncoding, data.names.features)))
    return InUnits(network, scaling, encoding, data.target).train(network.training)
