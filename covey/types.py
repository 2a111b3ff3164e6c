"""The two shapes everything is made of."""

from torch import Tensor

Rows = Tensor
"""One flat vector per node, [n, width]."""
Ids = Tensor
"""Node ids within a tier, int64 [n]."""
