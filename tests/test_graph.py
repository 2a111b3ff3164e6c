"""Graphs of a user's modules: every known operation is the module's own, and traps fall back."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import covey
from covey import Experiment, Tree
from covey.algorithms import FedAvg
from covey.data import own
from covey.engine.modules.forward import Forward, forward
from covey.engine.modules.layout import ParameterLayout
from covey.engine.modules.passing import Pass

N = 7
B = 3


class Net(nn.Module):
    """A linear layer, one operation, and what the operation may use."""

    mask: Tensor
    table: Tensor

    def __init__(self, operation: Callable[[Net, Tensor], Tensor], features: int = 6) -> None:
        super().__init__()
        self.operation = operation
        self.first = nn.Linear(features, 6)
        self.second = nn.Linear(6, 6)
        self.scale = nn.Parameter(torch.linspace(0.5, 2, 6))
        self.square = nn.Parameter(torch.linspace(-1, 1, 36).view(6, 6))
        self.words = nn.Embedding(5, 6, padding_idx=2)
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.norm = nn.LayerNorm(6)
        self.groups = nn.GroupNorm(2, 4)
        self.images = nn.Conv2d(1, 4, 3, padding=1)
        self.up = nn.ConvTranspose2d(4, 2, 2, stride=2, groups=2)
        self.line = nn.Conv1d(4, 4, 3, padding=1, padding_mode="circular")
        self.register_buffer("mask", torch.ones(4, 4).tril() == 0)
        self.register_buffer("table", torch.linspace(-1, 1, 24).view(4, 6))

    def forward(self, x: Tensor) -> Tensor:
        return self.operation(self, self.first(x))


FEATURES: dict[str, Callable[[Net, Tensor], Tensor]] = {
    "add a parameter": lambda m, x: x + m.scale,
    "multiply by a parameter": lambda m, x: torch.tanh(x) * m.scale,
    "residual": lambda m, x: x + torch.relu(m.second(x)),
    "subtract, divide": lambda m, x: (1 - x) / (2 + m.scale**2) - x / 3 + 1 / (x * x + 1),
    "constants": lambda m, x: 2 * x + torch.arange(6) * 0.1,
    "a buffer": lambda m, x: x * m.table[0] + m.table.sum(),
    "in place": lambda m, x: F.relu(m.second(x).add_(1.0), inplace=True) * m.second(x).tanh_(),
    "a parameter as weight": lambda m, x: F.linear(x, m.square) @ m.square.t(),
    "a computed weight": lambda m, x: F.linear(x, torch.tanh(m.square) * m.scale, m.scale),
    "a bias and a weight [in, out]": lambda m, x: torch.addmm(m.scale, x, m.square),
    "a weight twice": lambda m, x: m.second(torch.tanh(m.second(x))),
    "a weight tied": lambda m, x: F.linear(torch.tanh(m.second(x)), m.second.weight),
    "softmax": lambda m, x: F.softmax(x, dim=-1) * m.scale,
    "softmax over examples": lambda m, x: x.softmax(0),
    "log softmax": lambda m, x: torch.log_softmax(x, 1),
    "cat": lambda m, x: torch.cat([x, m.second(x)], dim=1),
    "cat from the back": lambda m, x: torch.cat([x.unsqueeze(1), m.second(x)[:, None]], dim=-2),
    "stack": lambda m, x: torch.stack([x, m.second(x)], dim=1).mean(1),
    "a class token": lambda m, x: torch.cat([m.scale.expand(len(x), 1, -1), x.unsqueeze(1)], 1),
    "chunk": lambda m, x: x.chunk(2, dim=-1)[0] * torch.sigmoid(x.chunk(2, -1)[1]),
    "split": lambda m, x: torch.split(x, [2, 4], dim=1)[1].exp(),
    "unbind": lambda m, x: x.view(-1, 2, 3).unbind(1)[0],
    "glu": lambda m, x: F.glu(x),
    "view": lambda m, x: x.view(x.size(0), 2, 3).transpose(1, 2).reshape(x.shape[0], -1),
    "view of all examples": lambda m, x: m.second(x.view(len(x) * 2, 3).repeat(1, 2)).view(len(x), -1),
    "permute": lambda m, x: x.unflatten(1, (2, 3)).permute(0, 2, 1).contiguous().flatten(1),
    "mean": lambda m, x: x.view(-1, 2, 3).mean(dim=(1, 2), keepdim=True).squeeze(2) * m.scale,
    "mean of the last axis": lambda m, x: m.second(x).mean(-1, keepdim=True) * m.scale,
    "sum, amax": lambda m, x: x.view(-1, 3, 2).sum(1) + x.view(-1, 3, 2).amax(1),
    "max": lambda m, x: x.view(-1, 3, 2).max(dim=1).values,
    "variance": lambda m, x: (x - x.mean(1, keepdim=True)).square().mean(1, keepdim=True) + x,
    "normalize": lambda m, x: F.normalize(x, dim=1) * m.scale,
    "slices": lambda m, x: x[:, 1:4] + x[..., -3:] * x[:, :1],
    "select": lambda m, x: x[:, 2, None] * m.scale + x.select(1, 0)[:, None],
    "squeeze": lambda m, x: x[:, None].squeeze(1).unsqueeze(-1).squeeze(),
    "where": lambda m, x: torch.where(m.table[0] > 0, x, 0.0) + m.scale,
    "layer norm": lambda m, x: m.norm(x) + F.layer_norm(x, (6,)),
    "rms norm": lambda m, x: F.rms_norm(x, (6,), m.scale),
    "einsum by hand": lambda m, x: (x.unsqueeze(1) @ m.square.view(1, 6, 6)).squeeze(1),
    "gram": lambda m, x: torch.bmm(x.view(-1, 2, 3), x.view(-1, 3, 2)).flatten(1),
    "zeros of the batch": lambda m, x: torch.tanh(m.second(x.new_zeros(len(x), 6)) + x),
    "detach": lambda m, x: x.detach() * m.scale + x,
    "shape in Python": lambda m, x: x / math.sqrt(x.shape[-1]) if x.dim() == 2 else x,
    "variance over an axis": lambda m, x: (x - 1) / x.std(1, keepdim=True) + x.var(dim=1, unbiased=False)[:, None],
    "einsum": lambda m, x: torch.einsum("bi,ij->bj", x, m.square) + torch.einsum("bi, bi -> b", x, x)[:, None],
    "prelu": lambda m, x: F.prelu(x, m.scale) + F.prelu(x, m.scale[:1]),
    "roll": lambda m, x: x.roll(2, 1) + torch.roll(x, (1, 0), (1, 0)),
    "flip": lambda m, x: x.flip(1) + x.clone(),
    "repeat": lambda m, x: m.scale.repeat(len(x), 1) * x,
    "clamp, pow": lambda m, x: x.clamp(-1, 1) ** 2 + x.abs().sqrt() + x.square() ** 1.5,
}  # fmt: skip
"""Operations on [B, 6]."""
SEQUENCES: dict[str, Callable[[Net, Tensor], Tensor]] = {
    "attention by hand": lambda m, x: (x @ m.second(x).transpose(1, 2) / 6).masked_fill(m.mask, -math.inf).softmax(-1) @ x,
    "fused attention": lambda m, x: F.scaled_dot_product_attention(*(m.second(x).view(-1, 4, 2, 3).transpose(1, 2) for _ in "qkv"), is_causal=True),
    "attention with a mask": lambda m, x: F.scaled_dot_product_attention(x[:, None], m.second(x)[:, None], x[:, None], m.mask.logical_not()).squeeze(1),
    "multi-head attention": lambda m, x: m.attention(x, x, x, need_weights=False)[0],
    "attention to others": lambda m, x: m.attention(x, m.second(x), x, need_weights=False, attn_mask=m.mask)[0],
    "positions": lambda m, x: m.norm(x + m.table + m.words(torch.arange(4))),
    "linear on several axes": lambda m, x: m.second(x)[:, -1],
    "mean over time": lambda m, x: m.second(x).mean(dim=1),
    "group norm": lambda m, x: m.groups(x) + F.avg_pool1d(x, 3, 1, 1),
}  # fmt: skip
"""Operations on [B, 4, 6]."""
IMAGES: dict[str, Callable[[Net, Tensor], Tensor]] = {
    "convolution": lambda m, x: F.max_pool2d(F.relu(m.images(x[:, None])), 2).flatten(1),
    "residual": lambda m, x: F.relu(m.images(x[:, None]) + x[:, None]).mean((2, 3)),
    "dense": lambda m, x: torch.cat([m.images(x[:, None]), m.images(x[:, None]).tanh()], 1).amax((2, 3)),
    "transposed": lambda m, x: m.up(m.images(x[:, None])),
    "gates": lambda m, x: (lambda y: y * torch.sigmoid(F.adaptive_avg_pool2d(y, 1)))(m.images(x[:, None])),
    "circular": lambda m, x: m.line(x),
    "shuffled": lambda m, x: F.pixel_shuffle(m.images(x[:, None]), 2),
    "slopes of channels": lambda m, x: F.prelu(m.images(x[:, None]), m.scale[:4]),
    "upsampled": lambda m, x: F.interpolate(m.groups(m.images(x[:, None])), scale_factor=2.0),
    "a weight of its own": lambda m, x: F.conv2d(x[:, None], m.square.view(4, 1, 3, 3), m.scale[:4]),
}  # fmt: skip
"""Operations on [B, 4, 6] with convolutions."""
CASES = {
    **{f"features: {name}": (operation, (6,)) for name, operation in FEATURES.items()},
    **{f"sequences: {name}": (operation, (4, 6)) for name, operation in SEQUENCES.items()},
    **{f"images: {name}": (operation, (4, 6)) for name, operation in IMAGES.items()},
}
each_case = pytest.mark.parametrize("name", CASES)


def world(module: nn.Module, shape: tuple[int, ...], dtype: torch.dtype = torch.float64) -> Any:
    """A module's layout, rows near its weights, and inputs."""
    space = ParameterLayout(module.to(dtype))
    draw = torch.Generator().manual_seed(1)
    noise = 0.3 * torch.randn(N, space.width, generator=draw)
    rows = space.row(module) + noise.to(dtype)
    x = torch.randn(N, B, *shape, generator=draw).to(dtype)
    return space, rows, x


def outcome(passes: Forward, space: ParameterLayout, rows: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Outputs, and gradients as rows."""
    leaves = [slot.view(rows).detach().requires_grad_() for slot in space.slots]
    out = passes(Pass(leaves), x)
    gradients = torch.autograd.grad(out.sin().sum(), leaves, materialize_grads=True, allow_unused=True)  # fmt: skip
    return out.detach(), torch.cat([gradient.flatten(1) for gradient in gradients], 1)


def alone(space: ParameterLayout, row: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """The same of the module itself."""
    module = space.fill(row)
    out = module(x)
    named = dict(module.named_parameters())
    own = [named[slot.name] for slot in space.slots]
    gradients = torch.autograd.grad(out.sin().sum(), own, materialize_grads=True, allow_unused=True)
    pairs = zip(space.slots, gradients, strict=True)
    return out.detach(), torch.cat([slot.oriented(gradient).flatten() for slot, gradient in pairs])


@each_case
def test_a_known_operation_is_that_of_the_module(name: str) -> None:
    operation, shape = CASES[name]
    space, rows, x = world(Net(operation), shape)
    passes = forward(space, x.shape[2:])
    assert not isinstance(passes.graph, str), passes.graph
    assert passes.path == ("each" if name.startswith("images") else "batched")
    out, gradients = outcome(passes, space, rows, x)
    for i in range(0, N, 3):
        expected = alone(space, rows[i], x[i])
        torch.testing.assert_close((out[i], gradients[i]), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@each_case
def test_bits_of_a_row_do_not_depend_on_its_neighbours(name: str, dtype: torch.dtype) -> None:
    operation, shape = CASES[name]
    space, rows, x = world(Net(operation), shape, dtype)
    passes = forward(space, x.shape[2:])
    out, gradients = outcome(passes, space, rows, x)
    for chosen in ([0], [6], [2, 0], [1, 2, 3]):
        some = outcome(passes, space, rows[chosen], x[chosen])
        assert torch.equal(some[0], out[chosen]), chosen
        assert torch.equal(some[1], gradients[chosen]), chosen


NODES: tuple[Callable[[Any, Tensor, Tensor], Tensor], ...] = (
    lambda m, a, b: m.first(a),
    lambda m, a, b: torch.tanh(a) + b,
    lambda m, a, b: a * torch.sigmoid(b),
    lambda m, a, b: m.norm(a) - m.scale,
    lambda m, a, b: F.relu(a) * m.scale,
    lambda m, a, b: torch.cat([a[:, :2], b[:, 2:]], dim=1),
    lambda m, a, b: m.second(F.gelu(a)) + a,
    lambda m, a, b: (a.unsqueeze(2) @ b.unsqueeze(1)).mean(2),
)


class Random(nn.Module):
    """A random graph: every node takes one or two of the values before it, each of six numbers."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        plan = random.Random(seed)
        self.first = nn.Linear(6, 6)
        self.second = nn.Linear(6, 6)
        self.norm = nn.LayerNorm(6)
        self.scale = nn.Parameter(torch.ones(6))
        self.choices = [plan.randrange(len(NODES)) for _ in range(9)]
        self.sources = [plan.sample(range(i + 1), min(2, i + 1)) for i in range(9)]

    def forward(self, x: Tensor) -> Tensor:
        values = [x]
        for choice, sources in zip(self.choices, self.sources, strict=True):
            made = NODES[choice](self, values[sources[0]], values[sources[-1]])
            values.append(made)
        return self.first(torch.stack(values).sum(0))


@pytest.mark.parametrize("seed", range(6))
def test_random_graphs_are_the_modules(seed: int) -> None:
    space, rows, x = world(Random(seed), (6,))
    passes = forward(space, x.shape[2:])
    assert passes.path == "batched", passes.graph
    out, gradients = outcome(passes, space, rows, x)
    expected = alone(space, rows[4], x[4])
    torch.testing.assert_close((out[4], gradients[4]), expected, rtol=1e-10, atol=1e-10)
    some = outcome(passes, space, rows[4:5], x[4:5])
    assert torch.equal(some[0], out[4:5])
    assert torch.equal(some[1], gradients[4:5])


# What a recording cannot be trusted with


class Trap(nn.Module):
    """A linear layer, then what a forward pass had better not do."""

    count: Tensor

    def __init__(self, forward: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.out = nn.Linear(6, 3)
        self.register_buffer("count", torch.zeros(()))
        self.tensors = [torch.ones(3)]
        self.trap = forward

    def forward(self, x: Tensor) -> Any:
        return self.trap(self, self.out(x))


class Twisted(torch.autograd.Function):
    """Twice its input, with the gradient of thrice."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 3 * gradient


def written(module: Trap, x: Tensor) -> Tensor:
    part = x[:, :1]
    part += 1
    return x


def counted(module: Trap, x: Tensor) -> Tensor:
    module.count += 1
    return x * module.count


def without_gradient(module: Trap, x: Tensor) -> Tensor:
    with torch.no_grad():
        scale = x.abs().amax()
    return x / scale


def hidden(module: Trap, x: Tensor) -> Tensor:
    try:
        return x if x.sum() > 0 else -x
    except Exception:
        return x


TRAPS: dict[str, tuple[Callable[[Any, Tensor], Any], str]] = {
    "training": (lambda m, x: 2 * x if m.training else x, "differs between training and scoring"),
    "the size of the batch": (lambda m, x: x * 2 if len(x) > 6 else x + 1, "depends on the size of the batch"),
    "a number of the batch": (lambda m, x: x / len(x), "div is used in a way that is not known"),
    "values": (lambda m, x: x if x.sum() > 0 else -x, "reads values into Python"),
    "values, caught": (hidden, "reads values into Python"),
    "an item": (lambda m, x: x * x.max().item(), "reads values into Python"),
    "numpy": (lambda m, x: x + float(x.detach().numpy()[0, 0]), "reads values into Python"),
    "a buffer that changes": (counted, "changes a tensor that it holds"),
    "a view that changes": (written, "other outputs than the module"),
    "writing": (lambda m, x: x.index_fill_(1, torch.tensor([0]), 0.0), "not a known operation"),
    "a gradient of its own": (lambda m, x: Twisted.apply(x), "other gradients than the module"),
    "no gradient": (without_gradient, "switches gradients on or off"),
    "a tensor in a list": (lambda m, x: x * m.tensors[0], "origin is unknown"),
    "a dict": (lambda m, x: {"out": x}, "returns dict"),
    "noise": (lambda m, x: x + torch.randn(3), "draws at random"),
    "an unknown operation": (lambda m, x: torch.cumsum(x, 1), "cumsum is not a known operation"),
    "data": (lambda m, x: x * m.out.weight.data.sum(), "without its gradient"),
    "not finite": (lambda m, x: x.abs().log().exp() / 0.0, "not finite"),
}  # fmt: skip


@pytest.mark.parametrize("name", TRAPS)
def test_what_a_recording_would_get_wrong_is_refused_with_the_reason(name: str) -> None:
    operation, words = TRAPS[name]
    passes = forward(ParameterLayout(Trap(operation)), torch.Size([6]))
    assert passes.path == "vmap"
    assert isinstance(passes.graph, str)
    assert words in passes.graph


def test_hooks_and_compiled_modules_are_refused() -> None:
    hooked = nn.Sequential(nn.Linear(6, 3))
    hooked[0].register_forward_hook(lambda layer, args, out: out * 2)
    compiled = nn.Linear(6, 3)
    compiled.compile(backend="eager")
    for module, words in ((hooked, "it has hooks"), (compiled, "it is compiled")):
        passes = forward(ParameterLayout(module), torch.Size([6]))
        assert isinstance(passes.graph, str)
        assert words in passes.graph


class Ids(nn.Module):
    """Takes integers, as numbers of words and as numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(5, 4, padding_idx=1)
        self.out = nn.Linear(7, 2)

    def forward(self, x: Tensor) -> Tensor:
        words = self.words(x).mean(1)
        numbers = x.to(torch.float32)
        return self.out(torch.cat([words, numbers.float()], dim=1))


def test_integers_and_the_type_of_the_parameters() -> None:
    draw = torch.Generator().manual_seed(1)
    x = torch.randint(5, (N, B, 3), generator=draw)
    module = Ids()
    space = ParameterLayout(module)
    passes = forward(space, x.shape[2:], sample=x[0])
    assert passes.path == "batched", passes.graph
    rows = space.row(module) + 0.3 * torch.randn(N, space.width, generator=draw)
    out, gradients = outcome(passes, space, rows, x)
    expected = alone(space, rows[3], x[3])
    torch.testing.assert_close((out[3], gradients[3]), expected, rtol=1e-5, atol=1e-5)
    some = outcome(passes, space, rows[3:4], x[3:4])
    assert torch.equal(some[1], gradients[3:4])


class Cached(nn.Module):
    """Makes its positions in the first pass and keeps them."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(6, 3)
        self.positions: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.positions is None:
            self.positions = torch.arange(x.shape[1], dtype=x.dtype).sin()
        return self.out(x + self.positions)


def test_constants_that_are_kept_from_the_first_pass_on_are_constants() -> None:
    space, rows, x = world(Cached(), (6,))
    passes = forward(space, x.shape[2:])
    assert passes.path == "batched", passes.graph
    out, _ = outcome(passes, space, rows, x)
    torch.testing.assert_close(out[1], alone(space, rows[1], x[1])[0], rtol=1e-12, atol=1e-12)


class Low(nn.Module):
    """A weight of low rank as a parametrization."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.randn(1, 6, generator=torch.Generator().manual_seed(0)))

    def forward(self, weight: Tensor) -> Tensor:
        return weight + weight.sum(1, keepdim=True) @ self.down


def test_parametrizations_are_part_of_the_graph() -> None:
    module = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))
    nn.utils.parametrize.register_parametrization(module[0], "weight", Low())
    space, rows, x = world(module, (6,))
    passes = forward(space, x.shape[2:])
    assert passes.path == "batched"
    out, gradients = outcome(passes, space, rows, x)
    expected = alone(space, rows[2], x[2])
    torch.testing.assert_close((out[2], gradients[2]), expected, rtol=1e-12, atol=1e-12)


# The whole way


class Classes(nn.Module):
    """The network 6-5-3 as people write it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(6, 5)
        self.fc2 = nn.Linear(5, 3)
        self.dropout = nn.Dropout(0.0)

    def forward(self, x: Tensor, *, slope: float = 0.0) -> Tensor:
        x = x.view(-1, 6)
        assert x.shape[1] == 6
        return self.fc2(self.dropout(F.relu(self.fc1(x))))


def test_a_class_is_fused_and_has_the_bits_of_the_sequential() -> None:
    draw = torch.Generator().manual_seed(0)
    pairs = [(torch.randn(9, 2, 3, generator=draw), torch.arange(9) % 3) for _ in range(4)]
    rows = []
    plain = nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    for model in (Classes(), plain):
        run = covey.run(
            Experiment(FedAvg(), data=own(pairs), model=model, tree=Tree.flat(4), rounds=2)
        )
        assert run.engine["path"] == "fused"
        for _ in run:
            pass
        rows.append(run.w)
    assert torch.equal(rows[0], rows[1])
