"""FedBN (Li et al., 2021) by hand, in plain torch: all layers step, the norm layers are not sent."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import covey
from covey import Experiment, Run, Tree
from covey.algorithms import FedAvg, FedBN
from tests.given import drained

EXACT = 1e-12
NORM = ("1.weight", "1.bias")


def examples() -> list[tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(3)
    pairs = []
    for device, count in enumerate((4, 5, 6, 7)):
        x = (1 + device) * torch.randn(count, 3, generator=draw) + device  # features shift
        pairs.append((x.double(), torch.randn(count, generator=draw).double()))
    return pairs


DATA = examples()


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1))


def start(algorithm: covey.Algorithm, **changes: Any) -> Run:
    settings: dict[str, Any] = {"rounds": 3, "parts": ("train",), "dtype": torch.float64}
    shards = covey.data.own_parts(train=DATA)
    return covey.run(
        Experiment(algorithm, shards, network(), Tree.flat(4), **{**settings, **changes})
    )


def trained(model: nn.Module, pair: tuple[Tensor, Tensor], steps: int, lr: float) -> nn.Module:
    """The model after full-batch steps on the mean of (output - y)^2 / 2, by torch."""
    model = copy.deepcopy(model).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    x, y = pair
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (model(x)[:, 0] - y).square().mean() / 2
        loss.backward()
        optimizer.step()
    return model


def parameters(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.named_parameters()}


def deviation(one: nn.Module, other: nn.Module) -> float:
    mine = parameters(one)
    return max(float((mine[name] - value).abs().max()) for name, value in parameters(other).items())


@pytest.mark.parametrize("sample", [None, 2])
def test_rounds_by_hand(sample: int | None) -> None:
    run = start(FedBN(sample=sample, steps=3, lr=0.1, batch=None, weight="samples"))
    w = run.module()
    own: dict[int, nn.Module] = {}
    for record in run:
        asked = record.cohorts["device"]
        for i in asked:
            model = copy.deepcopy(w)
            if i in own:
                mine = parameters(own[i])
                model.load_state_dict({name: mine[name] for name in NORM}, strict=False)
            own[i] = trained(model, DATA[i], 3, 0.1)
        total = sum(len(DATA[i][1]) for i in asked)
        mean = {}
        for name in parameters(w):
            values = [len(DATA[i][1]) / total * parameters(own[i])[name] for i in asked]
            mean[name] = torch.stack(values).sum(0)
        others = {name: value for name, value in mean.items() if name not in NORM}
        w.load_state_dict(others, strict=False)
        assert deviation(run.module(), w) <= EXACT  # whose norm layers stay as they began
        assert all(deviation(run.module("personal", i), own[i]) <= EXACT for i in own)


def test_norm_layers_are_not_sent() -> None:
    run = drained(start(FedBN(steps=1, lr=0.1, batch=None)))
    shared = 3 * 4 + 4 + 4 + 1
    for direction in ("up", "down"):
        assert run.meter.traffic(direction=direction).values == 3 * 4 * shared


def test_the_reported_loss_is_that_of_the_personal_modules() -> None:
    run = start(FedBN(steps=2, lr=0.1, batch=None))
    record = list(run)[-1]
    total = 0.0
    for device, (x, y) in enumerate(DATA):
        outputs = run.module("personal", device).eval()(x)[:, 0]
        total += 0.5 * F.mse_loss(outputs, y, reduction="sum").item()
    loss = record.models["personal"].scores["train"].loss
    assert loss == pytest.approx(total / sum(len(y) for _, y in DATA), abs=EXACT)


def test_with_nothing_private_it_is_fedavg_to_the_bit() -> None:
    settings: dict[str, Any] = {"steps": 3, "lr": 0.1, "batch": 3}
    one = drained(start(FedBN(**settings), private=""))
    other = drained(start(FedAvg(**settings)))
    assert torch.equal(one.w, other.w)
