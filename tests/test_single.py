"""The pass of one model at a time: what the module computes, with channels last inside."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from covey.engine.modules import single
from covey.engine.modules.forward import forward
from covey.engine.modules.layout import ParameterLayout
from covey.engine.modules.passing import Pass


class Series(nn.Module):
    """Dilated convolutions of a series with skips, and a mean over its points."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(2, 4, 3, padding="same")
        self.second = nn.Conv1d(4, 4, 3, stride=2, padding=2, dilation=2, groups=2)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        x = F.relu(x + F.interpolate(self.second(x), size=x.shape[-1]))
        out: Tensor = self.head(x.mean(-1))
        return out


class Images(nn.Module):
    """Branches side by side, an adaptive mean, a transposed convolution and a view."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Conv2d(3, 4, 1)
        self.three = nn.Conv2d(3, 4, 3, padding=1)
        self.up = nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.head = nn.Linear(4 * 36, 3)
        self.gate = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(torch.cat([self.one(x), self.three(x)], dim=1))
        x = F.relu(self.up(F.max_pool2d(x, 2)))
        gate = torch.sigmoid(self.gate(F.adaptive_avg_pool2d(x, 1).flatten(1)))
        x = x * gate[:, :, None, None]
        out: Tensor = self.head(x.view(x.size(0), -1))
        return out


class Tied(nn.Module):
    """One weight in two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        self.again = nn.Conv2d(3, 3, 3, padding=1)
        self.again.weight = self.conv.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.again(self.conv(x))
        return out.flatten(1)


MODELS = {"series": (Series, (2, 9)), "images": (Images, (3, 6, 6)), "tied": (Tied, (3, 4, 4))}


def leaves_of(space: ParameterLayout) -> list[Tensor]:
    row = space.initial(3)[None].to(space.row(space.module))
    stored = [slot.view(row)[0] for slot in space.slots]
    return [value.detach().requires_grad_() for value in space.oriented(stored)]


@pytest.mark.parametrize("by_graph", [True, False], ids=["graph", "module"])
@pytest.mark.parametrize("name", MODELS)
def test_outputs_and_gradients_are_the_modules_own(name: str, by_graph: bool) -> None:
    model, shape = MODELS[name]
    space = ParameterLayout(model().double())
    one = single.of_module(space)
    if by_graph:
        chosen = forward(space, torch.Size(shape)).single
        assert chosen is not None
        one = chosen
    leaves = leaves_of(space)
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(5, *shape, generator=draw, dtype=torch.float64)
    out = one(Pass(leaves, training=True), x)
    gradients = torch.autograd.grad(out.sin().sum(), leaves)
    module = space.fill(space.initial(3).double())
    expected = module(x)
    expected.sin().sum().backward()
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)
    for slot, gradient in zip(space.slots, gradients, strict=True):
        own = module.get_parameter(slot.name).grad
        torch.testing.assert_close(gradient, own, rtol=1e-12, atol=1e-12)


class Layouts(TorchDispatchMode):
    """Notes whether the operands of a ReLU's backward pass have one layout."""

    def __init__(self) -> None:
        super().__init__()
        self.alike: list[bool] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func is torch.ops.aten.threshold_backward.default:
            self.alike.append(args[0].stride() == args[1].stride())
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["series", "images"])
def test_gradients_of_a_relu_have_its_layout(name: str) -> None:
    """Else its backward pass is thirty times slower."""
    model, shape = MODELS[name]
    space = ParameterLayout(model())
    one = forward(space, torch.Size(shape)).single
    assert one is not None
    leaves = leaves_of(space)
    with Layouts() as layouts:
        out = one(Pass(leaves, training=True), torch.randn(5, *shape))
        torch.autograd.grad(out.sum(), leaves)
    assert layouts.alike == [True, True]


def test_examples_are_not_changed() -> None:
    """A ReLU in place acts on what the pass made itself."""
    module = nn.Sequential(nn.ReLU(inplace=True), nn.Conv1d(2, 2, 3), nn.ReLU(), nn.Flatten())
    space = ParameterLayout(module)
    one = forward(space, torch.Size((2, 5))).single
    assert one is not None
    x = torch.randn(4, 2, 5)
    before = x.clone()
    one(Pass(leaves_of(space)), x)
    assert torch.equal(x, before)


def computed(layer: nn.LSTM) -> nn.LSTM:
    """The layer with a weight that is computed from two others."""
    nn.utils.parametrizations.weight_norm(layer, "weight_hh_l0")
    return layer


def frozen(layer: nn.LSTM) -> nn.LSTM:
    """The layer with a weight that no row holds."""
    layer.weight_hh_l0.requires_grad_(False)
    return layer


@pytest.mark.parametrize("change", [nn.Identity(), computed, frozen])
def test_recurrent_layers_take_the_parameters_of_each_pass(
    change: Callable[[nn.LSTM], nn.LSTM],
) -> None:
    torch.manual_seed(0)
    layer = change(nn.LSTM(4, 3, num_layers=2, bidirectional=True, batch_first=True))
    x = torch.randn(5, 6, 4)

    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.layer(x)[0][:, -1]
            return out

    module = Last()
    space = ParameterLayout(module)
    step = single.of_module(space)
    with torch.no_grad():
        for _ in range(2):  # the second pass has other parameters
            for parameter in module.parameters():
                if parameter.requires_grad:
                    parameter.copy_(torch.randn_like(parameter))
            row = space.row(module)[None]
            parameters = [slot.oriented(slot.view(row)[0]) for slot in space.slots]
            assert torch.equal(step(Pass(parameters), x), module(x))
