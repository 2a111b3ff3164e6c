"""compute = "bf16": where it runs, what stays fp32, and how far it is from fp32."""

from typing import Any

import pytest
import torch
from torch import nn

import covey
from covey.algorithms import FedAvg, PerFedAvg
from covey.engine.solvers import precision
from covey.engine.task import Task
from covey.errors import ConfigError
from covey.models import lenet, mlp

HAS_BF16 = precision.multiplies_bf16("cpu")
needs_bf16 = pytest.mark.skipif(not HAS_BF16, reason="this CPU has no instructions for bf16")


def shards() -> covey.data.Shards:
    draw = torch.Generator().manual_seed(0)
    pairs = []
    for _ in range(3):
        x = torch.randn(8, 1, 16, 16, generator=draw)
        pairs.append((x, (x.mean((1, 2, 3)) > 0).long()))
    return covey.data.own(pairs, classes=2)


def net() -> nn.Sequential:
    return lenet((1, 16, 16), classes=2)


def experiment(model: nn.Module, **changes: Any) -> covey.Experiment:
    plain: dict[str, Any] = {"rounds": 1, "compute": "bf16"}
    algorithm = FedAvg(steps=2, lr=0.1, batch=4)
    tree = covey.Tree.flat(3)
    return covey.Experiment(algorithm, shards(), model, tree, **{**plain, **changes})


@needs_bf16
def test_gradients_are_bf16s_and_rows_and_scores_fp32() -> None:
    layers = [nn.Conv2d(1, 4, 3), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(196, 2)]
    model = nn.Sequential(*layers)
    low = Task(model, shards(), compute="bf16")
    high = Task(model, shards())
    row = low.space.initial(0)
    rows = torch.stack([row, 2 * row, row - 0.01])
    ids = torch.arange(3)
    batch = high.examples.spread(ids, 8)
    exact = high.gradients.gradient(rows, batch)
    rounded = low.gradients.gradient(rows, batch)
    assert rounded.dtype == torch.float32
    difference = (rounded - exact).norm(dim=1) / exact.norm(dim=1)
    assert bool((difference > 1e-5).all())  # products were rounded to 8 bits
    assert bool((difference < 0.02).all())
    score = low.evaluate(rows, "train", ids)
    assert torch.equal(score.loss, high.evaluate(rows, "train", ids).loss)
    v = torch.ones_like(rows)
    assert torch.equal(
        low.gradients.hessian_product(rows, batch, v),
        high.gradients.hessian_product(rows, batch, v),
    )


@needs_bf16
def test_a_product_in_bf16_rounds_its_factors_alone() -> None:
    """The gradient of one convolution of one point: a sum of products of rounded numbers."""
    model = nn.Sequential(nn.Conv2d(1, 1, 1, bias=False), nn.Flatten())
    pairs = [(torch.tensor([[[[1.0 + 2.0**-12]]]]), torch.tensor([0.0]))]
    data = covey.data.own(pairs)
    task = Task(model, data, loss="squared_error", compute="bf16")
    batch = task.examples.spread(torch.arange(1), 1)
    weight = torch.tensor([[3.0]])
    gradient = task.gradients.gradient(weight, batch)
    assert gradient.item() == 3.0  # (w x - 0) x, x rounded to 1
    assert Task(model, data, loss="squared_error").gradients.gradient(weight, batch).item() != 3.0


@needs_bf16
def test_a_run_says_what_it_computes_in() -> None:
    run = covey.run(experiment(net()))
    next(run)
    assert run.engine["compute"] == "bf16"
    assert "products in bf16" in run.engine["sentence"]
    assert run.w.dtype == torch.float32
    plain = covey.run(experiment(net(), compute="fp32"))
    assert plain.engine["compute"] == "fp32"
    assert run.experiment.fingerprint() != plain.experiment.fingerprint()


def test_small_stacks_of_linear_layers_stay_in_the_fused_kernel() -> None:
    run = covey.run(experiment(mlp(256, 4, 2)))
    assert run.engine["path"] == "fused"
    assert run.engine["compute"].startswith("fp32, because the fused kernel")
    assert any(note.startswith('compute = "bf16" computes in fp32, because') for note in run.notes)


@needs_bf16
def test_large_stacks_leave_the_fused_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "_LARGE_STACK", 1)
    run = covey.run(experiment(mlp(256, 4, 2)))
    next(run)
    assert run.engine["path"] == "batched"
    assert run.engine["compute"] == "bf16"


def test_a_machine_without_the_instructions_computes_in_fp32(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(precision, "multiplies_bf16", lambda device: False)
    run = covey.run(experiment(net()))
    plain = covey.run(experiment(net(), compute="fp32"))
    next(run)
    next(plain)
    assert "this CPU has no instructions for bf16" in run.engine["compute"]
    assert any("this CPU has no instructions for bf16" in note for note in run.notes)
    assert torch.equal(run.w, plain.w)


@needs_bf16
def test_hessian_products_stay_exact() -> None:
    algorithm = PerFedAvg(steps=1, lr=0.1, alpha=0.1, batch=4)
    run = covey.run(
        covey.Experiment(algorithm, shards(), net(), covey.Tree.flat(3), 1, compute="bf16")
    )
    next(run)
    assert bool(torch.isfinite(run.w).all())


def test_bf16_is_for_float32() -> None:
    with pytest.raises(ConfigError, match=r'compute = "bf16" is for rows of float32'):
        experiment(net(), dtype=torch.float64)
    with pytest.raises(ConfigError, match=r"compute = 'fp8' must be .fp32. or .bf16."):
        experiment(net(), compute="fp8")
