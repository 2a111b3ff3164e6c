"""A linear model: regression or, with cross-entropy, logistic regression (the papers' MLR)."""

from torch import nn

from covey.errors import ModelError


def linear(inputs: int, outputs: int, *, bias: bool = True) -> nn.Sequential:
    """A module that flattens an example and maps it to `outputs` scores, without a softmax.

    >>> sum(p.numel() for p in linear(784, 10).parameters())
    7850
    """
    if min(inputs, outputs) < 1:
        raise ModelError(
            f"linear({inputs}, {outputs}): give the numbers of inputs and outputs, each 1 or more."
        )
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, outputs, bias=bias))
