"""Models of many nodes as a server may hold them, for properties of what it does with them."""

import torch
from hypothesis import strategies as st
from torch import Tensor


@st.composite
def populations(draw: st.DrawFn) -> Tensor:
    """[n, N, P], among them equal, zero and far rows."""
    n, nodes, width = draw(st.integers(1, 2)), draw(st.integers(1, 5)), draw(st.integers(1, 4))
    number = st.sampled_from([0.0, 1.0, -1.0]) | st.floats(-1e3, 1e3, width=32)
    values = draw(st.lists(number, min_size=n * nodes * width, max_size=n * nodes * width))
    return torch.tensor(values, dtype=draw(st.sampled_from([torch.float32, torch.float64]))).view(
        n, nodes, width
    )
