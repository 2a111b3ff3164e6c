"""The models have the papers' sizes, and run many at once as each does alone."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from covey.data import own
from covey.engine.modules.forward import forward
from covey.engine.modules.layout import ParameterLayout
from covey.engine.modules.passing import Pass
from covey.engine.task import Task
from covey.errors import ModelError
from covey.models import cnn, lenet, linear, mlp, permfl_cnn, vgg


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("model", "count"),
    [
        *((make(784, 10), 7_850) for make in (linear, mlp)),
        *((make(60, 10), 610) for make in (linear, mlp)),
        *((make(784, 62), 48_670) for make in (linear, mlp)),
        *((make(3072, 100), 307_300) for make in (linear, mlp)),
        (linear(60, 10, bias=False), 600),
        (mlp(784, 100, 10), 79_510),
        (mlp(60, 20, 10), 1_430),
        (mlp(784, 500, 200, 10), 494_710),
        (cnn(), 1_663_370),
        (cnn((3, 32, 32)), 2_156_490),
        (cnn((1, 8, 8), channels=(4,), hidden=6, classes=3, kernel=3), 451),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else type(value).__name__,
)
def test_models_have_the_papers_parameters(model: nn.Module, count: int) -> None:
    assert parameters(model) == count


def test_images_are_flattened() -> None:
    images = torch.zeros(5, 1, 8, 8)
    assert linear(64, 10)(images).shape == mlp(64, 7, 10)(images).shape == (5, 10)


def test_relu_stands_between_layers_only() -> None:
    kinds = [type(layer) for layer in mlp(4, 3, 2)]
    assert kinds == [nn.Flatten, nn.Linear, nn.ReLU, nn.Linear]


def test_cnn_takes_images_flat_or_not() -> None:
    model = cnn((2, 6, 7), channels=(3,), hidden=5, classes=4, kernel=3)
    images = torch.rand(5, 2, 6, 7)
    assert model(images).shape == (5, 4)
    assert torch.equal(model(images), model(images.flatten(1)))


def test_padding_and_stride_decide_what_is_left_of_an_image() -> None:
    model = cnn(
        (1, 9, 8), channels=(2, 3), hidden=(7, 6), classes=4, kernel=3, padding="valid", stride=1
    )
    inputs = [layer.in_features for layer in model if isinstance(layer, nn.Linear)]
    assert inputs == [3 * 3 * 2, 7, 6]
    assert model(torch.rand(5, 72)).shape == (5, 4)


@pytest.mark.parametrize("shape", [(1, 6, 6), (6, 6), (36,)])
def test_examples_without_channels_are_grey_and_flat_ones_square(shape: tuple[int, ...]) -> None:
    model = cnn(shape, channels=(3,), hidden=5, classes=4, kernel=3)
    assert str(model) == str(cnn((1, 6, 6), channels=(3,), hidden=5, classes=4, kernel=3))
    assert model(torch.rand(2, *shape)).shape == (2, 4)


@pytest.mark.parametrize(
    ("model", "count"),
    [
        (permfl_cnn(), 2_362_874),
        (permfl_cnn(net="fmnist"), 421_642),
        (permfl_cnn(classes=62), 2_369_582),
        (permfl_cnn((3, 32, 32), net="cifar100", classes=100), 2_519_780),
        (lenet(), 64_102),
        (vgg(), 247_050),
        (vgg(groups=None), 246_314),
        (vgg(classes=100), 258_660),
        (vgg(head=(128, 128)), 280_074),
        (vgg(head=(512, 512)), 579_594),
    ],
    ids=[
        "mnist", "fmnist", "emnist", "cifar100", "lenet", "vgg", "vgg without norm", "vgg of 100", "vgg 128-128", "vgg 512-512",
    ],
)  # fmt: skip
def test_convolutional_networks_have_the_papers_parameters(model: nn.Module, count: int) -> None:
    assert parameters(model) == count
    image, classes = model[1].unflattened_size, model[-1].out_features
    x = torch.zeros(2, *image)
    assert model(x).shape == model(x.flatten(1)).shape == (2, classes)


def test_the_convolutions_of_vgg_alone() -> None:
    model = vgg(groups=None)
    assert parameters(model) - parameters(model[-1]) == 245_024
    assert model[-1].in_features == 128


def test_layers_of_permfl_for_mnist() -> None:
    kinds = [str(layer) for layer in list(permfl_cnn().children())[2:8]]
    convolution = ["Conv2d(1, 16, kernel_size=(2, 2), stride=(1, 1), padding=valid)", "ReLU()"]
    assert kinds[:2] == convolution
    assert (
        kinds[2]
        == kinds[5]
        == "MaxPool2d(kernel_size=2, stride=1, padding=0, dilation=1, ceil_mode=False)"
    )


def test_layers_of_vgg() -> None:
    kinds = [type(layer) for layer in vgg((1, 4, 4), layers=(4, "M", 6), head=(5,), groups=2)]
    block = [nn.Conv2d, nn.GroupNorm, nn.ReLU]
    ends = [nn.Flatten, nn.Linear, nn.ReLU, nn.Linear]
    assert kinds == [nn.Flatten, nn.Unflatten, *block, nn.MaxPool2d, *block, *ends]


IMPOSSIBLE: list[tuple[Callable[..., nn.Module], Any, str]] = [
    *((mlp, sizes, r"mlp\(.*at least the outputs, each 1 or more") for sizes in ((4,), (4, 0), (0, 3), (4, -2, 3))),
    (linear, (0, 3), r"linear\(0, 3\).*each 1 or more"),
    (linear, (3, 0), r"linear\(3, 0\).*each 1 or more"),
    (cnn, ((1, 28, 28, 1),), "give .channels, height, width."),
    (cnn, ((0, 8, 8),), "each 1 or more"),
    *((cnn, (shape,), "are no images") for shape in ((60,), (), (-4,))),
    (cnn, ((1, 3, 8),), "leave nothing"),
    (cnn, {"channels": (4, 0)}, "channels, hidden, classes, kernel and stride must each be 1 or more"),
    (cnn, {"hidden": (3, -1)}, "must each be 1 or more"),
    (cnn, {"stride": 0}, "must each be 1 or more"),
    (cnn, {"padding": "full"}, "padding='full'.*give 'same' or 'valid'"),
    (cnn, {"kernel": 29, "padding": "valid"}, r"2 poolings leave nothing of \(1, 28, 28\)"),
    (vgg, {"layers": (16, "X")}, r"layers=\(16, 'X'\).*give numbers of 1 or more, and 'M' in layers"),
    (vgg, {"layers": (0,)}, "give numbers of 1 or more"),
    (vgg, {"head": (0,)}, r"head=\(0,\).*give numbers of 1 or more"),
    (vgg, {"layers": (12,)}, "groups=8.*12 channels.*give a divisor, or None"),
    (vgg, {"groups": 0}, "groups=0.*give a divisor, or None"),
    (vgg, {"layers": ("M",) * 6}, r"6 poolings leave nothing of \(3, 32, 32\)"),
    (permfl_cnn, {"net": "emnist"}, r"net='emnist'.*give one of 'mnist', 'fmnist', 'cifar100'"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "given", "words"), IMPOSSIBLE)
def test_what_cannot_be_is_refused(make: Callable[..., nn.Module], given: Any, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        make(**given) if isinstance(given, dict) else make(*given)


SMALL = {
    "permfl mnist": (permfl_cnn((1, 7, 6), classes=3), (1, 7, 6)),
    "permfl fmnist": (permfl_cnn((1, 5, 4), net="fmnist", classes=3), (20,)),
    "lenet": (lenet((2, 16, 17), classes=3), (2, 16, 17)),
    "vgg": (vgg((2, 5, 4), layers=(4, "M", 6), head=(5,), classes=3, groups=2), (2, 5, 4)),
    "vgg without norm": (vgg((1, 4, 4), layers=(4, "M", 3, 3), classes=3, groups=None), (16,)),
}


@pytest.mark.parametrize(("device", "path"), [("cpu", "each"), ("cuda", "batched")])
@pytest.mark.parametrize("name", SMALL)
def test_many_at_once_are_each_alone(name: str, device: str, path: str) -> None:
    """The path of either kind of device, both on this one: values and gradients."""
    module, shape = SMALL[name]
    space, draw = ParameterLayout(module.double()), torch.Generator().manual_seed(2)
    rows = 0.1 * torch.randn(3, space.width, dtype=torch.float64, generator=draw)
    x = torch.randn(3, 2, *shape, dtype=torch.float64, generator=draw)
    many = forward(space, x.shape[2:], device)
    assert many.path == path
    leaves = [slot.view(rows).requires_grad_() for slot in space.slots]
    out = many(Pass(leaves), x)
    gradients = torch.autograd.grad(out.sin().sum(), leaves)
    for i in range(3):
        alone = space.fill(rows[i])
        torch.testing.assert_close(out[i], alone(x[i]), atol=1e-12, rtol=1e-12)
        alone.zero_grad()
        alone(x[i]).sin().sum().backward()
        for slot, gradient in zip(space.slots, gradients, strict=True):
            torch.testing.assert_close(
                gradient[i], _stored(alone, slot.name, slot.transposed), atol=1e-12, rtol=1e-12
            )


def _stored(module: nn.Module, name: str, transposed: bool) -> Tensor:
    gradient = module.get_parameter(name).grad
    assert gradient is not None
    return gradient.t() if transposed else gradient


def test_no_model_draws_at_random_or_needs_vmap() -> None:
    shards = own([(torch.rand(9, 256), torch.arange(9) % 3) for _ in range(2)])
    paths = {
        "linear": "fused", "mlp": "fused", "cnn": "each", "lenet": "each", "permfl_cnn": "each",
        "vgg": "each",
    }  # fmt: skip
    made = {
        "linear": linear(256, 3),
        "mlp": mlp(256, 4, 3),
        "cnn": cnn((256,), channels=(2,), hidden=4, classes=3),
        "lenet": lenet((256,), classes=3),
        "permfl_cnn": permfl_cnn((256,), net="fmnist", classes=3),
        "vgg": vgg((256,), layers=(8, "M", "M"), classes=3),
    }
    assert {name: Task(model, shards).path for name, model in made.items()} == paths
