"""Dropout by address: what masks are, where they go, and what still cannot draw."""

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import covey
from covey import draws
from covey.algorithms import FedAvg, PerFedAvg
from covey.engine.batches import Batch, Draw
from covey.engine.modules import dropout
from covey.engine.modules.dropout import Site
from covey.engine.modules.intercept import Interception
from covey.engine.modules.passing import Pass
from covey.engine.task import Task
from covey.errors import ModelError
from covey.laws import differences, state
from tests import peek
from tests.given import drained, played
from tests.laws.networks import CLASSES, NETWORKS, SIZES, examples
from tests.laws.test_graphs import Rerun

IDS = torch.arange(len(SIZES))


class Functional(nn.Module):
    """A module around a function of its hidden values, which knows whether it trains."""

    def __init__(self, change: Callable[[Tensor, bool], Tensor], kind: str = "Linear") -> None:
        super().__init__()
        self.body: nn.Module = nn.Linear(6, 8)
        if kind == "Conv1d":  # its path is row by row
            self.body = nn.Sequential(nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 2, 3), nn.Flatten())
        self.head = nn.Linear(8, CLASSES)
        self.change = change

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.body(x))
        out: Tensor = self.head(self.change(hidden, self.training))
        return out


def attended(x: Tensor, training: bool) -> Tensor:
    """Attention over four positions of two features."""
    points = x.unflatten(1, (4, 2))
    p = 0.4 if training else 0.0
    out = F.scaled_dot_product_attention(points, points, points, dropout_p=p, is_causal=True)
    return out.flatten(1)


def again(x: Tensor, training: bool) -> Tensor:
    """What a checkpoint computes again in the backward pass; no layer is known for it."""
    return F.dropout(torch.special.i1(x), 0.4, training)


def task_of(model: nn.Module, shape: tuple[int, ...] = (6,), **options: Any) -> Task:
    return Task(model, examples(shape), dtype=torch.float64, **options)


def batch_of(task: Task, address: int = 3, size: int = 5) -> Batch:
    [batch] = task.examples.draw(address, IDS, size)
    return batch.drawing(Draw(77, IDS))


def rows_of(task: Task) -> Tensor:
    draw = torch.Generator().manual_seed(1)
    shape = (len(IDS), task.space.width)
    return 0.3 * torch.randn(shape, dtype=torch.float64, generator=draw)


# Masks


@pytest.mark.parametrize("p", [0.1, 0.5, 0.93])
def test_a_mask_keeps_with_its_probability_and_its_mean_is_one(p: float) -> None:
    site = Site(p, (0, 7), (1, 0))
    [mask] = dropout.masks([site], Draw(5, torch.arange(40)), 300, torch.float64)
    assert mask.shape == (40, 300, 7)
    used = round(p * 65536) / 65536
    assert set(mask.unique().tolist()) == {0.0, 1 / (1 - used)}
    tolerance = 5 * math.sqrt(used / (1 - used) / mask.numel())
    assert abs(mask.mean() - 1) < tolerance
    for axis in ((1, 2), (0, 2), (0, 1)):  # no device, example or entry is special
        count = mask.numel() / mask.mean(axis).numel()
        far = (mask.mean(axis) - 1).abs().max()
        assert far < 5 * math.sqrt(used / (1 - used) / count)


def test_neighbours_of_one_hash_are_independent() -> None:
    [mask] = dropout.masks([Site(0.5, (0,), (1,))], Draw(9, IDS), 40_000, torch.float64)
    signs = (mask - 1).view(len(IDS), -1, 4)
    correlation = torch.einsum("nbi,nbj->ij", signs, signs) / (len(IDS) * 10_000)
    assert (correlation - torch.eye(4)).abs().max() < 5 / math.sqrt(len(IDS) * 10_000)


def test_steps_sites_and_devices_have_masks_of_their_own() -> None:
    site = Site(0.5, (0, 9), (1, 0))
    draw = Draw(5, IDS)
    first, second = dropout.masks([site, site], draw.at(0), 8, torch.float32)
    [later, _] = dropout.masks([site, site], draw.at(1), 8, torch.float32)
    assert not torch.equal(first, second)
    assert not torch.equal(first, later)
    assert not torch.equal(first[0], first[1])
    [alone] = dropout.masks([site], draw.at(0).take(slice(3, 4)), 8, torch.float32)
    assert torch.equal(alone, first[3:4])


def test_an_address_of_each_device_has_the_bits_of_one_for_all() -> None:
    keys = draws.keys([4], 1, "batch").expand(len(IDS))
    words = draws.further(keys, 3, 2)
    assert isinstance(words, Tensor)
    together = Draw(words, IDS).bits(3)
    assert torch.equal(together, Draw(draws.key(4, 1, "batch", 3, 2), IDS).bits(3))


# Gradients


MODELS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "layers": (NETWORKS["dropout layers"].model(), (6,)),
    "channels": (
        nn.Sequential(
            nn.Conv2d(1, 3, 3), nn.Dropout2d(0.5), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3), nn.Linear(48, CLASSES),
        ),
        (1, 6, 6),
    ),
    "F.dropout": (Functional(lambda x, training: F.dropout(x, 0.4, training)), (6,)),
    "in place": (Functional(lambda x, training: F.dropout(x * 1, 0.4, training, True)), (6,)),
    "torch.dropout": (Functional(lambda x, training: torch.dropout(x, 0.4, training)), (6,)),
    "alpha": (Functional(lambda x, training: F.alpha_dropout(x, 0.4, training)), (6,)),
    "row by row": (Functional(lambda x, training: F.dropout(x, 0.4, training), "Conv1d"), (6,)),
    "turned": (Functional(lambda x, training: F.dropout(x.t(), 0.4, training).t()), (6,)),
    "attention": (Functional(attended), (6,)),
    "transformer": (NETWORKS["dropout in attention"].model(), (4, 4)),
}  # fmt: skip
every_model = pytest.mark.parametrize("name", MODELS)


def by_hand(task: Task, row: Tensor, x: Tensor, y: Tensor, masks: tuple[Tensor, ...]) -> Tensor:
    """The gradient of one model by autograd through the module, which is given its masks."""
    module = task.space.fill(row).train()
    with Interception(Pass([], masks)):
        loss = F.cross_entropy(module(x), y)
    loss.backward()
    values = dict(module.named_parameters())
    flat = []
    for slot in task.space.slots:
        gradient = values[slot.name].grad
        assert gradient is not None
        flat.append(slot.oriented(gradient).reshape(-1))
    return torch.cat(flat)


@every_model
def test_a_gradient_is_that_of_the_module_with_these_masks(name: str) -> None:
    model, shape = MODELS[name]
    task = task_of(copy.deepcopy(model), shape)
    rows = rows_of(task)
    batch = batch_of(task)
    masks = dropout.masks(task.sites, Draw(77, IDS), 5, torch.float64)
    assert len(masks) == len(task.sites) > 0
    gradient = task.gradients.gradient(rows, batch)
    for i in range(len(IDS)):
        own = tuple(mask[i] for mask in masks)
        expected = by_hand(task, rows[i], batch.x[i], batch.y[i], own)
        torch.testing.assert_close(gradient[i], expected, atol=1e-12, rtol=1e-10)
    other = batch.drawing(Draw(78, IDS))
    assert not torch.equal(task.gradients.gradient(rows, other), gradient)


def test_torch_drops_as_the_masks_do() -> None:
    """The masks that torch draws itself, read from its outputs, give the outputs of torch."""
    x = torch.rand(6, 4, 3) + 1
    for function, columns in ((F.dropout, 3), (F.dropout1d, 1)):
        dropped = function(x, 0.5)
        mask = 2 * (dropped != 0).to(x)[:, :, :columns]
        with Interception(Pass([], (mask,))):
            assert torch.equal(function(x, 0.5), dropped)
    dropped = F.alpha_dropout(x, 0.5, training=True)
    mask = (dropped > 0).to(x)
    with Interception(Pass([], (mask,))):
        torch.testing.assert_close(F.alpha_dropout(x, 0.5, training=True), dropped)


def test_attention_with_a_mask_of_ones_is_torchs() -> None:
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, 5, 4, generator=draw) for _ in range(3))
    allowed = torch.ones(5, 5, dtype=torch.bool).tril()
    for options in (
        {},
        {"is_causal": True},
        {"attn_mask": allowed},
        {"attn_mask": torch.randn(5, 5)},
        {"scale": 0.3},
    ):
        expected = F.scaled_dot_product_attention(q, k, v, **options)
        with Interception(Pass([], (torch.ones(2, 3, 5, 5),))):
            out = F.scaled_dot_product_attention(q, k, v, dropout_p=0.5, **options)
        torch.testing.assert_close(out, expected)


@every_model
def test_scores_and_outputs_drop_nothing(name: str) -> None:
    model, shape = MODELS[name]
    task = task_of(copy.deepcopy(model), shape)
    rows = rows_of(task)
    batch = batch_of(task)
    outputs = task.outputs(rows, batch)
    for i in range(len(IDS)):
        module = task.space.fill(rows[i])
        assert not module.training
        torch.testing.assert_close(outputs[i], module(batch.x[i]), atol=1e-12, rtol=1e-10)


def test_a_hessian_product_is_the_derivative_of_the_masked_gradient() -> None:
    task = task_of(Functional(lambda x, training: F.dropout(x, 0.4, training)))
    rows = rows_of(task)
    batch = batch_of(task)
    v = torch.ones_like(rows)
    step = 1e-5
    ahead = task.gradients.gradient(rows + step * v, batch)
    behind = task.gradients.gradient(rows - step * v, batch)
    product = task.gradients.hessian_product(rows, batch, v)
    torch.testing.assert_close(product, (ahead - behind) / (2 * step), atol=1e-8, rtol=1e-6)


# Runs


def ended(**changes: Any) -> covey.Run:
    return played(NETWORKS["dropout layers"].experiment(**changes))


def layers(p: float | None) -> nn.Module:
    between = [] if p is None else [nn.Dropout(p)]
    return nn.Sequential(nn.Linear(6, 8), nn.SELU(), *between, nn.Linear(8, CLASSES))


def test_a_probability_of_nothing_has_the_bits_of_no_dropout() -> None:
    """Initial values go by the order of layers alone, so that these two models start alike."""
    without = ended(model=layers(None))
    for p in (0.0, 1e-9):
        assert torch.equal(ended(model=layers(p)).w, without.w)
    assert not torch.equal(ended(model=layers(0.1)).w, without.w)


def test_every_step_on_a_fixed_batch_has_new_masks() -> None:
    seen: list[Tensor] = []
    run = covey.run(NETWORKS["dropout layers"].experiment())
    real = run.runtime.task.gradients.forward

    def spy(pass_: Pass, x: Tensor) -> Tensor:
        if pass_.training and len(x):
            seen.append(pass_.masks[0])
        return real(pass_, x)

    object.__setattr__(run.runtime.task.gradients, "forward", _Spy(spy, real.path))
    next(run)
    # PFedMe: two local rounds of two steps on one batch each.
    assert len(seen) == 4
    for i, mask in enumerate(seen):
        assert not any(torch.equal(mask, other) for other in seen[:i])


class _Spy:
    def __init__(self, call: Callable[[Pass, Tensor], Tensor], path: str) -> None:
        self.call = call
        self.path = path
        self.single = None

    def __call__(self, pass_: Pass, x: Tensor) -> Tensor:
        return self.call(pass_, x)


def test_a_difference_of_gradients_has_one_mask() -> None:
    """Else the noise of two masks, divided by a small step, would be all that is left."""
    plain = {"steps": 1, "lr": 0.3, "alpha": 0.2, "batch": 4, "order": "hessian-free"}
    rows = []
    for hessian in ("exact", "difference"):
        algorithm = PerFedAvg(**plain, hessian=hessian, delta=1e-4)  # type: ignore[arg-type]
        run = ended(algorithm=algorithm, dtype=torch.float64, rounds=1)
        rows.append(run.w)
    torch.testing.assert_close(rows[0], rows[1], atol=1e-5, rtol=1e-4)


def test_gradients_of_all_examples_drop_too() -> None:
    algorithm = FedAvg(steps=2, lr=0.3, batch=None)
    drops = ended(algorithm=algorithm)
    plain = ended(algorithm=algorithm, model=layers(None))
    assert "the model has dropout" in str(drops.engine)
    assert not torch.equal(drops.w, plain.w)
    again = ended(algorithm=algorithm)
    assert differences(state(drops), state(again)) == []


@pytest.mark.parametrize("name", ["dropout layers", "augmented vectors"])
def test_a_replayed_program_draws_by_the_address_of_its_round(name: str) -> None:
    """With what stands in for a CUDA graph, on two seeds side by side."""
    experiments = [NETWORKS[name].experiment(seed=seed, rounds=4) for seed in (0, 1)]
    plain = drained(covey.runs(experiments))
    replayed = covey.runs(experiments)
    peek.use_graphs(replayed.seeds[0], Rerun)
    list(replayed)
    assert peek.graphs(replayed.seeds[0]).replays > 0
    for one, other in zip(plain.seeds, replayed.seeds, strict=True):
        assert differences(state(one), state(other)) == []


def test_a_module_of_a_run_is_in_eval_mode() -> None:
    module = ended().module()
    x = torch.randn(3, 6)
    assert torch.equal(module(x), module(x))


# Refusals


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (nn.Sequential(nn.Linear(6, 3), nn.Dropout(1.0)), "p = 1.0 leaves nothing"),
        (Functional(lambda x, training: F.dropout(x, 0.5)), "give F.dropout training=self.training"),
        (Functional(lambda x, training: F.rrelu(x, training=training)), "draws by aten.rrelu"),
        (Functional(lambda x, training: x + torch.randn(8)), "draws by aten.randn"),
        (
            Functional(lambda x, training: F.dropout(x, 0.1, training and len(x) < 3)),
            "in the same places in every pass",
        ),
        (
            Functional(lambda x, training: checkpoint(again, x, training, use_reentrant=False)),
            r"draws by aten\.bernoulli_.*in the backward pass.*leave out torch.utils.checkpoint",
        ),
        (nn.LSTM(6, 3, num_layers=2, dropout=0.2), r"LSTM with dropout = 0\.2.*nn\.Dropout between"),
    ],
    ids=["all", "always", "rrelu", "randn", "sometimes", "checkpoint", "LSTM"],
)  # fmt: skip
def test_what_no_address_decides_is_refused_by_name(model: nn.Module, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        task_of(model)
