"""Many models at once give what each module gives alone, values and gradients."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from covey.engine.modules.forward import forward
from covey.engine.modules.layout import ParameterLayout
from covey.engine.modules.passing import Pass
from covey.models import linear, mlp

N, B = 4, 5


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.norm = nn.Linear(6, 6), nn.Linear(6, 3), nn.LayerNorm(6)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        return self.second(self.norm(x + torch.tanh(self.first(x))))


class Running(nn.Module):
    """Has an operation that the graph does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.cumsum(x, dim=1))


def stack(*activations: nn.Module) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Flatten()]
    for activation in activations:
        layers += [nn.Linear(6, 6), activation]
    return nn.Sequential(*layers, nn.Linear(6, 3))


def frozen_bias() -> nn.Sequential:
    module = mlp(6, 4, 3)
    module[1].bias.requires_grad_(False)
    return module


def shared_activation() -> nn.Sequential:
    act = nn.Tanh()
    return nn.Sequential(nn.Linear(6, 6), act, nn.Linear(6, 6), act, nn.Linear(6, 3))


def shared_layer() -> nn.Sequential:
    layer = nn.Linear(6, 6)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.ReLU(), nn.Linear(6, 3))


def check(module: nn.Module, x: Tensor, path: str) -> None:
    space = ParameterLayout(module.double())
    passes = forward(space, x.shape[2:], sample=x[0])
    assert passes.path == path
    rows = torch.randn(
        N, space.width, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )
    leaves = [slot.view(rows).clone().requires_grad_() for slot in space.slots]
    out = passes(Pass(leaves), x)
    gradients = torch.autograd.grad(out.sin().sum(), leaves)
    for i in range(N):
        alone = space.fill(rows[i])
        expected = alone(x[i])
        torch.testing.assert_close(out[i], expected, atol=1e-12, rtol=1e-12)
        alone.zero_grad()
        expected.sin().sum().backward()
        named = dict(alone.named_parameters())
        for slot, gradient in zip(space.slots, gradients, strict=True):
            own = named[slot.name].grad
            torch.testing.assert_close(
                gradient[i], own.t() if slot.transposed else own, atol=1e-12, rtol=1e-12
            )
    assert passes(Pass([leaf[:0] for leaf in leaves]), x[:0]).shape == (0, *out.shape[1:])


def inputs(*shape: int) -> Tensor:
    return torch.randn(
        N, B, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )


@pytest.mark.parametrize(
    "activation",
    [
        nn.ReLU(), nn.ReLU6(), nn.LeakyReLU(), nn.ELU(), nn.SELU(), nn.GELU(), nn.SiLU(), nn.Mish(), nn.Tanh(), nn.Sigmoid(),
        nn.Softplus(), nn.Hardtanh(), nn.Hardswish(), nn.Identity(), nn.Dropout(0.0),
    ],
    ids=lambda a: type(a).__name__,
)  # fmt: skip
def test_stacks_of_linear_layers(activation: nn.Module) -> None:
    check(stack(activation, nn.Tanh()), inputs(2, 3), "batched")


@pytest.mark.parametrize(
    "module",
    [
        mlp(6, 5, 4, 3), linear(6, 3), linear(6, 3, bias=False), nn.Linear(6, 3),
        nn.Sequential(nn.Sequential(nn.Linear(6, 4), nn.ReLU()), nn.Linear(4, 3)),
        frozen_bias(),
    ],
    ids=["mlp", "linear", "no bias", "bare", "nested", "frozen bias"],
)  # fmt: skip
def test_other_shapes_of_stacks(module: nn.Module) -> None:
    check(module, inputs(6), "batched")


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (Residual(), (2, 3)),
        (nn.Sequential(nn.Linear(6, 4), nn.ReLU(inplace=True), nn.Linear(4, 3)), (6,)),
    ],
    ids=["residual", "in place"],
)
def test_graphs_of_known_layers_are_batched(module: nn.Module, shape: tuple[int, ...]) -> None:
    check(module, inputs(*shape), "batched")


def test_any_other_module_runs_through_vmap() -> None:
    check(Running(), inputs(6), "vmap")


@pytest.mark.parametrize(
    ("module", "path"),
    [(shared_activation(), "batched"), (shared_layer(), "batched")],
    ids=["activation", "layer"],
)
def test_one_module_may_stand_in_two_places(module: nn.Module, path: str) -> None:
    check(module, inputs(6), path)


class Recurrent(nn.Module):
    def __init__(self, kind: Callable[..., nn.RNNBase]) -> None:
        super().__init__()
        self.memory = kind(3, 4, batch_first=True)
        self.out = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.memory(x)
        return self.out(states[:, -1])


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_what_vmap_cannot_run_runs_row_by_row(kind: Callable[..., nn.RNNBase]) -> None:
    x = inputs(5, 3)
    module = Recurrent(kind)
    passes = forward(ParameterLayout(module.double()), x.shape[2:], sample=x[0])
    assert isinstance(passes.graph, str)
    assert "vmap has no rule for aten::" in passes.graph
    check(module, x, "each")


@pytest.mark.parametrize("kind", ["register_full_backward_hook", "register_full_backward_pre_hook"])
def test_backward_hooks_are_called_row_by_row(kind: str) -> None:
    def stop(layer: nn.Module, *gradients: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(torch.zeros_like(gradient) for gradient in gradients[0])

    x = inputs(6)
    module = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    getattr(module[1], kind)(stop)
    space = ParameterLayout(module)
    passes = forward(space, x.shape[2:], sample=x[0])
    assert passes.path == "each"
    leaves = [slot.view(torch.randn(len(x), space.width).double()) for slot in space.slots]
    for leaf in leaves:
        leaf.requires_grad_()
    gradients = torch.autograd.grad(passes(Pass(leaves), x).sum(), leaves)
    moved = [bool(gradient.any()) for gradient in gradients]
    assert moved == [False, False, True, True]


class Halved(nn.Module):
    """A hook of a tensor in forward, which does not see a gradient under vmap."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 4)
        self.out = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(x))
        if hidden.requires_grad:
            hidden.register_hook(lambda gradient: gradient * 0.5)
        return self.out(hidden)


def test_hooks_of_tensors_are_called_row_by_row() -> None:
    check(Halved(), inputs(6), "each")


def test_order_of_private_layers_changes_nothing() -> None:
    module = mlp(6, 4, 3).double()
    plain, private = ParameterLayout(module), ParameterLayout(module, private=["1.*"])
    row = torch.randn(1, plain.width, dtype=torch.float64)
    other = private.row(plain.fill(row[0]))[None]
    x = inputs(6)[:1]
    assert not torch.equal(row, other)
    a = forward(plain, x.shape[2:])(Pass([slot.view(row) for slot in plain.slots]), x)
    b = forward(private, x.shape[2:])(Pass([slot.view(other) for slot in private.slots]), x)
    assert torch.equal(a, b)
