"""A network that takes examples, and answers, in the units of the user's data."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from covey.data.tables.encoding import ColumnEncoding, Encoding, named_columns
from covey.data.tables.scaling import Scaling


class InUnits(nn.Module):
    """A network with what prepares its inputs before it, and the units of targets after it.

    It takes measured values [n, ...], with a column for each input. NaN is a gap where the data has
    gaps filled. Of a table it also takes a DataFrame or a dict of columns, words included. The bare
    network is `network`.
    """

    def __init__(
        self,
        network: nn.Module,
        scaling: Scaling | None,
        encoding: Encoding | None,
        target: Scaling | None,
    ) -> None:
        super().__init__()
        self.network = network
        self.scaling = scaling
        self.encoding = encoding
        self.target = target

    def forward(self, x: Any) -> Tensor:
        """The network's answers: logits, or values in the units of the targets."""
        inside = next(self.network.parameters())
        if self.encoding is not None and hasattr(x, "keys"):
            x = self.encoding.inputs(named_columns(x, self.encoding))
        if not isinstance(x, Tensor):
            x = torch.from_numpy(np.asarray(x)).to(inside.device)
        if self.encoding is not None and self.encoding.missing == "mean":
            x = torch.where(x.isnan(), x.new_tensor(self.encoding.fill), x)
        if self.scaling is not None:
            x = self.scaling.on(x.device)(x)
        if self.scaling is not None or x.is_floating_point():  # else token ids, which stay whole
            x = x.to(inside.dtype)
        y: Tensor = self.network(x)
        if self.target is not None:
            y = self.target.on(y.device).undone(y)
        return y


def in_units(
    network: nn.Module,
    scaling: Scaling | None,
    encoding: Encoding | None,
    target: Scaling | None,
    features: tuple[str, ...],
) -> nn.Module:
    """The network in the units of the data; itself where these are its own units."""
    if scaling is not None and scaling.kind == "none":
        scaling = None
    if scaling is None and encoding is None and target is None:
        return network
    if encoding is None and features:
        encoding = Encoding(tuple(map(ColumnEncoding, features)))
    return InUnits(network, scaling, encoding, target).train(network.training)
