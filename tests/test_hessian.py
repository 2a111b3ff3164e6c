"""Hessian products of many models at once: closed forms, finite differences, each module alone."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.autograd.functional import hvp
from torch.func import functional_call

import covey
from covey import Tree, data, models
from covey.algorithms import PerFedAvg
from covey.engine.task import Batch, Task

INPUTS, CLASSES, SIZES = 9, 4, (20, 5, 300, 33)  # one device has more examples than a block


class Running(nn.Module):
    """A module that only vmap takes: no graph knows the running sum."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(INPUTS, INPUTS), nn.Linear(INPUTS, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.special.i1(self.first(x))  # no layer is known for it
        out: Tensor = self.second(x + torch.relu(hidden))
        return out


def conv(activation: nn.Module) -> nn.Module:
    convolved = [nn.Unflatten(1, (1, 3, 3)), nn.Conv2d(1, 3, 2), activation]
    return nn.Sequential(*convolved, nn.MaxPool2d(2, 1), nn.Flatten(), nn.Linear(3, CLASSES))


def mlp(*activations: nn.Module) -> nn.Module:
    layers: list[nn.Module] = [nn.Linear(INPUTS, 7)]
    for activation in activations:
        layers += [activation, nn.Linear(7, 7)]
    return nn.Sequential(*layers[:-1], nn.Linear(7, CLASSES))


HEAD = nn.Linear(8, CLASSES)
MODULES = {
    "linear": nn.Sequential(nn.Linear(INPUTS, CLASSES)),
    "fused relu": mlp(nn.ReLU(), nn.ReLU()),
    "fused tanh": mlp(nn.Tanh(), nn.Tanh()),
    "fused sigmoid": mlp(nn.Sigmoid()),
    "fused gelu": mlp(nn.SiLU(), nn.GELU(), nn.LeakyReLU()),
    "batched": mlp(nn.Mish(), nn.Softplus(), nn.ReLU6()),
    "batched norm": nn.Sequential(nn.Linear(INPUTS, 8), nn.GroupNorm(2, 8), nn.ELU(), HEAD),
    "each": conv(nn.ReLU()),
    "vmap": Running(),
}
PATHS = {name: name.partition(" ")[0] for name in MODULES} | {"linear": "fused"}
SMOOTH = ("linear", "fused tanh", "fused sigmoid", "batched norm")


def shards(classes: bool = True) -> data.Shards:
    draw = torch.Generator().manual_seed(2)
    pairs = []
    for size in SIZES:
        x = torch.randn(size, INPUTS, generator=draw)
        y = (x @ torch.randn(INPUTS, CLASSES, generator=draw)).argmax(1)
        pairs.append((x, y if classes else torch.randn(size, CLASSES, generator=draw)))
    return data.own_parts(train=pairs, classes=CLASSES) if classes else data.own_parts(train=pairs)


def task(name: str, dtype: torch.dtype = torch.float64, loss: Any = "cross_entropy") -> Task:
    torch.manual_seed(0)
    return Task(MODULES[name], shards(loss != "squared_error"), loss=loss, dtype=dtype)


def rows(here: Task, seed: int) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return 0.5 * torch.randn(len(SIZES), here.space.width, generator=draw).to(here.dtype)


def batch(here: Task, *, weighted: bool = False) -> Batch:
    examples = torch.arange(6)[None] + torch.tensor([[0], [14], [25], [330]])
    weight = torch.ones(examples.shape, dtype=here.dtype)
    weight[1, 3:] = 0
    return Batch((here.x, here.y), examples, weight if weighted else None)


def alone(here: Task, row: Tensor, v: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """H v of one plain module on its own examples, by torch itself."""

    def loss(flat: Tensor) -> Tensor:
        views = [(slot, slot.view(flat[None])[0]) for slot in here.space.slots]
        named = {slot.name: (view.t() if slot.transposed else view) for slot, view in views}
        out = functional_call(here.space.module, named, (x,))
        if y.is_floating_point():
            return 0.5 * (out - y).square().sum(1).mean()
        return nn.functional.cross_entropy(out, y)

    return hvp(loss, row, v)[1]


def difference(here: Task, x: Tensor, some: Batch, v: Tensor, delta: float = 1e-5) -> Tensor:
    ahead, behind = (here.gradients.gradient(x + step * v, some) for step in (delta, -delta))
    return (ahead - behind) / (2 * delta)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("loss", ["cross_entropy", "squared_error"])
@pytest.mark.parametrize("name", MODULES)
def test_many_rows_at_once_are_each_module_alone(name: str, loss: str, weighted: bool) -> None:
    here = task(name, loss=loss)
    assert here.path == PATHS[name]
    x, v, some = rows(here, 1), rows(here, 2), batch(here, weighted=weighted)
    products = here.gradients.hessian_product(x, some, v)
    for i, product in enumerate(products):
        used = slice(3 if weighted and i == 1 else 6)
        expected = alone(here, x[i], v[i], some.x[i, used], some.y[i, used])
        assert expected.abs().max() > 1e-3
        torch.testing.assert_close(product, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("name", SMOOTH)
def test_a_smooth_network_agrees_with_differences_of_its_gradients(name: str) -> None:
    here = task(name)
    x, v, some = rows(here, 1), rows(here, 2), batch(here)
    expected = difference(here, x, some, v)
    torch.testing.assert_close(
        here.gradients.hessian_product(x, some, v), expected, rtol=1e-6, atol=1e-8
    )


def test_least_squares_have_the_closed_form() -> None:
    """f = |X w + b - y|^2 / 2n: H = [X 1]' [X 1] / n for every output on its own."""
    here = task("linear", loss="squared_error")
    x, v, some = rows(here, 1), rows(here, 2), batch(here)
    products = here.gradients.hessian_product(x, some, v)
    weight, bias = here.space.slots
    for i in range(len(x)):
        X = torch.cat([some.x[i], torch.ones(6, 1, dtype=torch.float64)], dim=1)
        along = torch.cat([weight.view(v)[i], bias.view(v)[i][None]])  # [in + 1, out]
        expected = X.T @ X @ along / 6
        torch.testing.assert_close(weight.view(products)[i], expected[:-1], rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(bias.view(products)[i], expected[-1], rtol=1e-12, atol=1e-13)


def test_a_difference_at_1e_3_is_far_off_on_a_relu_network_and_the_exact_product_is_not() -> None:
    """The digits' network at its initial weights; g is the gradient on all examples."""
    shards, ids = data.digits(devices=10), torch.arange(10)
    here = Task(models.mlp(64, 100, 10), shards, dtype=torch.float64)
    x = here.space.initial(0).double().expand(10, -1).contiguous()
    g = here.full_gradient(x, ids)
    exact = here.full_hessian_product(x, ids, g)
    ahead, behind = (here.full_gradient(x + step * g, ids) for step in (1e-3, -1e-3))
    part, products = shards.train, []
    for i in range(10):
        own = part.index[part.offset[i] : part.offset[i + 1]]
        products.append(alone(here, x[i], g[i], here.x[own], here.y[own]))
    expected = torch.stack(products)
    size = expected.norm(dim=1)
    errors = ((ahead - behind) / 2e-3 - expected).norm(dim=1) / size
    print(f"difference off by {100 * errors.median():.0f} % (median)")
    assert errors.median() > 0.1
    assert ((exact - expected).norm(dim=1) / size).max() <= 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", MODULES)
def test_bits_of_a_row_do_not_depend_on_its_neighbours(name: str, dtype: torch.dtype) -> None:
    here = task(name, dtype)
    x, v, ids = rows(here, 1), rows(here, 2), torch.arange(len(SIZES))
    some = batch(here, weighted=True)
    products = here.gradients.hessian_product(x, some, v)
    full = here.full_hessian_product(x, ids, v)
    for chosen in ([0], [3], [2, 0], [1, 2, 3]):
        part = Batch(some.data, some.examples[chosen], some.weight[chosen])
        assert torch.equal(
            here.gradients.hessian_product(x[chosen], part, v[chosen]), products[chosen]
        )
        all_examples = here.full_hessian_product(x[chosen], ids[chosen], v[chosen])
        assert torch.equal(all_examples, full[chosen])
    nobody = Batch(some.data, some.examples[:0])
    assert here.gradients.hessian_product(x[:0], nobody, v[:0]).shape == (0, here.space.width)


@pytest.mark.parametrize("name", ["fused relu", "each", "vmap"])
def test_all_examples_in_blocks_are_all_at_once(name: str) -> None:
    here = task(name)
    x, v = rows(here, 1), rows(here, 2)
    products = here.full_hessian_product(x, torch.arange(len(SIZES)), v)
    starts = torch.cumsum(torch.tensor([0, *SIZES]), 0)
    for i, product in enumerate(products):
        own = slice(int(starts[i]), int(starts[i + 1]))
        expected = alone(here, x[i], v[i], here.x[own], here.y[own])
        torch.testing.assert_close(product, expected, rtol=1e-11, atol=1e-12)


def test_a_loss_of_one_s_own_and_one_without_curvature() -> None:
    def l4(outputs: Tensor, y: Tensor) -> Tensor:
        return (outputs - nn.functional.one_hot(y, CLASSES)).pow(4).sum(1)

    here = task("fused tanh", loss=l4)
    x, v, some = rows(here, 1), rows(here, 2), batch(here)
    expected = difference(here, x, some, v)
    torch.testing.assert_close(
        here.gradients.hessian_product(x, some, v), expected, rtol=1e-6, atol=1e-8
    )
    flat = task("linear", loss=lambda outputs, y: outputs.sum(1))
    assert not flat.gradients.hessian_product(rows(flat, 1), batch(flat), rows(flat, 2)).any()
    assert flat.no_hessian is None


class Once(torch.autograd.Function):
    """x^2 with a gradient and no derivative of it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * g


class Squares(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = Once.apply(torch.special.i1(x))  # no layer is known for it
        return out


def run(model: nn.Module, **more: Any) -> covey.Run:
    algorithm = PerFedAvg(alpha=0.1, steps=3, lr=0.1, batch=6, order="hessian-free", **more)
    tree = Tree.flat(len(SIZES))
    started = covey.run(covey.Experiment(algorithm, shards(), model, tree, rounds=2, score_every=2))
    list(started)
    return started


def test_a_model_that_cannot_be_differentiated_twice_takes_differences_and_says_so() -> None:
    fallback, asked = run(conv(Squares())), run(conv(Squares()), hessian="difference")
    assert torch.equal(fallback.w, asked.w)
    assert "once_differentiable" in fallback.engine["hessian"]
    (note,) = fallback.notes
    assert "PerFedAvg takes differences" in note
    assert "once_differentiable" in note
    assert "hessian" not in asked.engine
    assert asked.notes == []


def test_a_model_that_can_is_exact_and_says_so() -> None:
    exact, asked = run(conv(nn.Tanh())), run(conv(nn.Tanh()), hessian="difference")
    assert exact.engine["hessian"] == "exact, by autograd"
    assert exact.notes == []
    assert not torch.equal(exact.w, asked.w)
    torch.testing.assert_close(exact.w, asked.w, rtol=1e-2, atol=1e-3)
    for started in (exact, asked):
        assert [record.gradients for record in started.history] == [(4 * 3 + 1) * 4] * 2
