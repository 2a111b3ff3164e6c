"""A multilayer perceptron: linear layers with ReLU between them (the papers' DNN)."""

from itertools import pairwise

from torch import nn

from covey.errors import ModelError


def mlp(inputs: int, *sizes: int) -> nn.Sequential:
    """A module that flattens an example and passes it through linear layers of these sizes.

    The last size is the number of outputs.

    >>> sum(p.numel() for p in mlp(784, 100, 10).parameters())
    79510
    """
    if not sizes or min(inputs, *sizes) < 1:
        raise ModelError(
            f"mlp{(inputs, *sizes)}: give the inputs and at least the outputs, each 1 or more."
        )
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise((inputs, *sizes)):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
