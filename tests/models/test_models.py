"""The models have the papers' sizes."""

import pytest
import torch
from torch import nn

from covey.errors import ModelError
from covey.models import cnn, linear, mlp


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("sizes", "count"),
    [((784, 10), 7_850), ((60, 10), 610), ((784, 62), 48_670), ((3072, 100), 307_300)],
)
def test_linear_has_the_papers_parameters(sizes: tuple[int, int], count: int) -> None:
    assert parameters(linear(*sizes)) == parameters(mlp(*sizes)) == count


@pytest.mark.parametrize(
    ("sizes", "count"),
    [((784, 100, 10), 79_510), ((60, 20, 10), 1_430), ((784, 500, 200, 10), 494_710)],
)
def test_mlp_has_the_papers_parameters(sizes: tuple[int, ...], count: int) -> None:
    assert parameters(mlp(*sizes)) == count


def test_linear_may_have_no_bias() -> None:
    assert parameters(linear(60, 10, bias=False)) == 600


def test_images_are_flattened() -> None:
    images = torch.zeros(5, 1, 8, 8)
    assert linear(64, 10)(images).shape == mlp(64, 7, 10)(images).shape == (5, 10)


def test_relu_stands_between_layers_only() -> None:
    kinds = [type(layer) for layer in mlp(4, 3, 2)]
    assert kinds == [nn.Flatten, nn.Linear, nn.ReLU, nn.Linear]


@pytest.mark.parametrize("sizes", [(4,), (4, 0), (0, 3), (4, -2, 3)])
def test_mlp_refuses_impossible_sizes(sizes: tuple[int, ...]) -> None:
    with pytest.raises(ModelError, match=r"mlp\(.*at least the outputs, each 1 or more"):
        mlp(*sizes)


@pytest.mark.parametrize("sizes", [(0, 3), (3, 0)])
def test_linear_refuses_impossible_sizes(sizes: tuple[int, int]) -> None:
    with pytest.raises(ModelError, match=rf"linear\({sizes[0]}, {sizes[1]}\).*each 1 or more"):
        linear(*sizes)


@pytest.mark.parametrize(
    ("model", "count"),
    [(cnn(), 1_663_370), (cnn((3, 32, 32)), 2_156_490), (cnn((1, 8, 8), channels=(4,), hidden=6, classes=3, kernel=3), 451)],
)
def test_cnn_has_the_papers_parameters(model: nn.Module, count: int) -> None:
    assert parameters(model) == count


def test_cnn_takes_images_flat_or_not() -> None:
    model = cnn((2, 6, 7), channels=(3,), hidden=5, classes=4, kernel=3)
    images = torch.rand(5, 2, 6, 7)
    assert model(images).shape == (5, 4)
    assert torch.equal(model(images), model(images.flatten(1)))


@pytest.mark.parametrize(
    ("shape", "words"),
    [((28, 28), "give .channels, height, width."), ((0, 8, 8), "each 1 or more"), ((1, 3, 8), "leave nothing")],
)
def test_cnn_refuses_impossible_sizes(shape: tuple[int, ...], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        cnn(shape)
