"""Modules that no row can stand in for are refused, and what looks alike trains as in torch."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import covey
from covey import Experiment, Tree, data
from covey.algorithms import FedAvg
from covey.engine.task import Task
from covey.errors import ModelError

Pass = Callable[[Any, Tensor], Any]
COUNT = [0]


class Net(nn.Module):
    """Two linear layers and a function that calls them."""

    def __init__(self, run: Pass, **held: Any) -> None:
        super().__init__()
        self.a = nn.Linear(6, 8)
        self.b = nn.Linear(8, 3)
        self.run = run
        for name, value in held.items():
            setattr(self, name, value)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.run(self, x)
        return out


def shards(tokens: int | None = None) -> data.Shards:
    draw = torch.Generator().manual_seed(3)
    pairs = []
    for size in (9, 15, 30):
        x = torch.randn(size, 6, generator=draw, dtype=torch.float64)
        if tokens is not None:
            x = torch.randint(0, tokens, (size, 4), generator=draw)
        pairs.append((x, torch.randint(0, 3, (size,), generator=draw)))
    return data.own(pairs, classes=3, tokens=tokens or False)


def running(net: Any, x: Tensor) -> Any:
    """An operation that no graph knows, so that the module itself runs."""
    return net.b(torch.cumsum(net.a(x), 1))


def counts(net: Any, x: Tensor) -> Any:
    COUNT[0] += 1
    return running(net, x) * COUNT[0]


def averages(net: Any, x: Tensor) -> Any:
    if net.training:
        with torch.no_grad():
            net.mean.mul_(0.9).add_(0.1 * x.mean(0))
    return running(net, x - net.mean)


def keeps_for_scoring(net: Any, x: Tensor) -> Any:
    if net.training:
        net.seen = True
    return running(net, x) * (1 + hasattr(net, "seen") * (not net.training))


def listed(net: Any, x: Tensor) -> Any:
    return net.b(torch.cumsum(F.linear(x, net.weights[0]), 1))


def with_list() -> nn.Module:
    net: Any = Net(listed)
    net.weights = [net.a.weight]
    return net


def patched() -> nn.Module:
    net: Any = nn.Sequential(nn.Linear(6, 3, dtype=torch.float64))
    weight = net[0].weight
    net.forward = lambda x: F.linear(x, weight)
    return net


def hooked() -> nn.Module:
    net = nn.Sequential(nn.Linear(6, 3))
    net[0].weight.register_hook(lambda gradient: 2 * gradient)
    return net


class Doubled(nn.BatchNorm1d):
    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


class Kept(nn.Module):
    """BatchNorm that stays in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
        self.out = nn.Linear(6, 3)

    def train(self, mode: bool = True) -> Kept:
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.norm(x))
        return out


def plain(layer: nn.Module) -> nn.Module:
    return nn.Sequential(layer, nn.Tanh(), nn.Linear(8, 3))


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "counter": (lambda: Net(counts), "keeps something"),
    "buffer": (lambda: Net(averages, mean=nn.Buffer(torch.zeros(6))), "its buffer 'mean'"),
    "for scoring": (lambda: Net(keeps_for_scoring), "keeps something"),
    "spectral": (lambda: plain(nn.utils.spectral_norm(nn.Linear(6, 8))), "'0.weight_u'"),
    "mean": (lambda: Net(lambda net, x: net.b(net.a(x - x.mean(0)))), "other examples"),
    "size": (lambda: Net(lambda net, x: running(net, x) / len(x)), "other examples"),
    "in training": (
        lambda: Net(lambda net, x: running(net, x - x.mean(0) * net.training)),
        "in training mode the model",
    ),
    "random": (lambda: Net(lambda net, x: running(net, x) * random.random()), "the module random"),
    "numpy": (
        lambda: Net(lambda net, x: running(net, x) * np.random.random()),  # noqa: NPY002
        "numpy.random",
    ),
    "list": (with_list, "nn.ParameterList"),
    "closure": (patched, "nn.ParameterList"),
    "hook": (hooked, "'0.weight' has a hook"),
    "no gradient": (lambda: Net(lambda net, x: running(net, x).detach()), "no gradient"),
    "changed": (lambda: Net(lambda net, x: net.b(net.a(x).relu_().add_(1))), "no gradient"),
    "one axis": (lambda: Net(lambda net, x: running(net, x).sum(1)), r"\[examples, classes\]"),
    "weight_norm": (lambda: plain(nn.utils.weight_norm(nn.Linear(6, 8))), "parametrizations"),
    "jit": (lambda: torch.jit.trace(nn.Linear(6, 3), torch.zeros(2, 6)), "before torch.jit"),
    "meta": (lambda: nn.Linear(6, 3, device="meta"), "to_empty"),
    "complex": (
        lambda: Net(running, c=nn.Parameter(torch.ones(2, dtype=torch.complex64))),
        "'c' is complex",
    ),
    "norm": (lambda: nn.Sequential(nn.Linear(6, 3), Doubled(3)), "a forward of its own"),
    "kept": (Kept, "norm = 'frozen'"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", REFUSED)
def test_a_module_that_no_row_stands_in_for_is_refused_by_name(name: str) -> None:
    make, words = REFUSED[name]
    with pytest.raises(ModelError, match=words):
        covey.run(experiment(make()))


@pytest.mark.parametrize("setting", ["scale_grad_by_freq", "sparse"])
def test_embeddings_of_other_gradients_are_refused(setting: str) -> None:
    settings: dict[str, Any] = {setting: True}
    layer = nn.EmbeddingBag(7, 3, mode="sum", **settings)
    with pytest.raises(ModelError, match="set both to False"):
        Task(layer, shards(tokens=7))


def rotated(net: Any, x: Tensor) -> Any:
    """As rotary embeddings are written."""
    pairs = net.a(x).reshape(-1, 4, 2)
    turned = torch.view_as_complex(pairs.contiguous()) * net.rotation
    return net.b(torch.view_as_real(turned).flatten(1))


def complex_product(net: Any, x: Tensor) -> Any:
    weight = torch.view_as_complex(net.weight)
    return net.b(net.a(x) @ weight.real + (net.a(x) @ weight.imag) ** 2)


def changes_inputs(net: Any, x: Tensor) -> Any:
    x.mul_(1.5)
    out, _ = net.lstm(x[:, :, None])
    return net.b(out[:, -1])


def counts_only(net: Any, x: Tensor) -> Any:
    net.steps += 1
    return running(net, x)


TRAINED: dict[str, Callable[[], nn.Module]] = {
    "complex buffer": lambda: Net(rotated, rotation=nn.Buffer(torch.polar(torch.ones(4), torch.arange(4.0)))),
    "complex pairs": lambda: Net(complex_product, odd=nn.Parameter(torch.zeros(1)), weight=nn.Parameter(torch.ones(8, 8, 2))),
    "inputs": lambda: Net(changes_inputs, lstm=nn.LSTM(1, 8, batch_first=True)),
    "a counter without effect": lambda: Net(counts_only, steps=nn.Buffer(torch.tensor(0))),
}  # fmt: skip


def experiment(model: nn.Module) -> Experiment:
    return Experiment(
        algorithm=FedAvg(steps=2, lr=0.1, batch=None),
        data=shards(),
        model=model,
        tree=Tree.flat(3),
        rounds=1,
        start="module",
        dtype=torch.float64,
        workers=1,
    )


def trained(model: nn.Module, x: Tensor, y: Tensor) -> list[Tensor]:
    """The parameters after two steps of plain torch."""
    parameters = list(model.parameters())
    for _ in range(2):
        loss = F.cross_entropy(model(x.clone()), y)
        gradients = torch.autograd.grad(loss, parameters, materialize_grads=True)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter -= 0.1 * gradient
    return [parameter.detach() for parameter in parameters]


def in_double(model: nn.Module) -> nn.Module:
    model = model.double()
    for name, buffer in list(model.named_buffers()):
        if buffer.is_complex():
            setattr(model, name, buffer.to(torch.complex128))
    return model


@pytest.mark.parametrize("name", TRAINED)
def test_what_looks_alike_trains_as_in_torch(name: str) -> None:
    torch.manual_seed(0)
    start = TRAINED[name]()
    run = covey.run(experiment(start))
    next(run)
    examples = run.experiment.data
    ends = []
    for device in range(3):
        torch.manual_seed(0)
        held = examples.train.held(device)
        ends.append(trained(in_double(TRAINED[name]()), examples.x[held], examples.y[held]))
    for parameter, *own in zip(run.module().parameters(), *ends, strict=True):
        expected = torch.stack(own).mean(0)
        torch.testing.assert_close(parameter.detach(), expected, atol=1e-12, rtol=0)
