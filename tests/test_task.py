"""Stacked gradients and scores against one module and one device at a time."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from covey.data import Shards, own_parts, synthetic
from covey.engine.task import Batch, Task
from covey.errors import ConfigError, DataError, ModelError
from covey.models import linear, mlp
from tests import given

SIZES = (1, 3, 300, 700)  # one block holds 256
IDS = torch.arange(len(SIZES))


def random(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def labelled(
    sizes: tuple[int, ...] = SIZES, features: tuple[int, ...] = (4,), classes: int = 3
) -> Shards:
    def part(seed: int, counts: tuple[int, ...]) -> list[tuple[Tensor, Tensor]]:
        return given.labelled(counts, features, classes=classes, seed=seed, dtype=torch.float64)

    shifted = (*sizes[1:], 0)  # so that some device has nothing to test on
    return own_parts(
        train=part(0, sizes), validation=part(1, sizes[::-1]), test=part(2, shifted), classes=classes,
    )  # fmt: skip


def targets(outputs: int | None) -> Shards:
    g = random(3)
    shape = () if outputs is None else (outputs,)
    pairs = [
        (
            torch.randn(n, 4, generator=g, dtype=torch.float64),
            torch.randn(n, *shape, generator=g, dtype=torch.float64),
        )
        for n in SIZES
    ]
    return own_parts(train=pairs, test=pairs)


def cubed(outputs: Tensor, y: Tensor) -> Tensor:
    """A loss of the user's own."""
    return (outputs.gather(1, y[:, None])[:, 0] - 1).abs() ** 3


def half_square(outputs: Tensor, y: Tensor) -> Tensor:
    return 0.5 * (outputs - y.reshape(outputs.shape)).square().sum(1)


def cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(outputs, y, reduction="none")


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x + torch.tanh(self.inner(x)))


TANH = nn.Sequential(
    nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 5), nn.Sigmoid(), nn.Linear(5, 3, bias=False)
)
GELU = nn.Sequential(nn.Linear(4, 5), nn.GELU(), nn.Linear(5, 3))
CASES: dict[str, Any] = {
    "mlp": (mlp(4, 6, 5, 3), labelled(), "cross_entropy", cross_entropy),
    "linear": (linear(4, 3), labelled(), "cross_entropy", cross_entropy),
    "tanh": (TANH, labelled(), "cross_entropy", cross_entropy),
    "gelu": (GELU, labelled(), "cross_entropy", cross_entropy),
    "residual": (Residual(), labelled(), "cross_entropy", cross_entropy),
    "convolution": (
        nn.Sequential(nn.Conv1d(1, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(6, 3)),
        labelled(features=(1, 4)), "cross_entropy", cross_entropy,
    ),
    "own loss": (mlp(4, 5, 3), labelled(), cubed, cubed),
    "squared error": (mlp(4, 5, 2), targets(2), "squared_error", half_square),
    "squared error of one": (mlp(4, 5, 1), targets(None), "squared_error", half_square),
}  # fmt: skip


def made(name: str) -> tuple[Task, Shards, Callable[[Tensor, Tensor], Tensor], Tensor]:
    module, shards, loss, naive = CASES[name]
    task = Task(module, shards, loss=loss, dtype=torch.float64)
    return (
        task,
        shards,
        naive,
        torch.randn(len(SIZES), task.space.width, generator=random(4), dtype=torch.float64),
    )


def gradient_alone(
    task: Task, row: Tensor, x: Tensor, y: Tensor, loss: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    module = task.space.fill(row)
    module.zero_grad()
    loss(module(x), y).mean().backward()
    named = dict(module.named_parameters())
    parts = [
        named[s.name].grad.t() if s.transposed else named[s.name].grad for s in task.space.slots
    ]
    return torch.cat([part.reshape(-1) for part in parts])


def close(got: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(got, expected, atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize("name", CASES)
def test_full_gradient_of_ragged_devices(name: str) -> None:
    task, shards, loss, rows = made(name)
    got = task.full_gradient(rows, IDS)
    for d in range(len(SIZES)):
        held = shards.train.held(d)
        close(got[d], gradient_alone(task, rows[d], shards.x[held], shards.y[held], loss))


@pytest.mark.parametrize("name", CASES)
def test_gradient_of_a_batch(name: str) -> None:
    task, shards, loss, rows = made(name)
    batch = drawn(task, 7, IDS, 9)
    before = rows.clone()
    got = task.gradients.gradient(rows, batch)
    assert torch.equal(rows, before)
    for d in range(len(SIZES)):
        close(got[d], gradient_alone(task, rows[d], batch.x[d], batch.y[d], loss))
        own = {tuple(example.flatten().tolist()) for example in shards.x[shards.train.held(d)]}
        assert {tuple(example.flatten().tolist()) for example in batch.x[d]} <= own
    some = drawn(task, 7, IDS[[2]], 9)
    assert torch.equal(some.x[0], batch.x[2])
    assert not torch.equal(drawn(task, 8, IDS, 9).x, batch.x)


@pytest.mark.parametrize("name", CASES)
def test_loss_of_a_batch_and_of_a_short_one(name: str) -> None:
    task, _, loss, rows = made(name)
    with torch.no_grad():
        batch = drawn(task, 7, IDS, 9)
        lap = task.examples.cyclic(IDS, 200, torch.tensor([0, 0, 1, 3]))
        whole, short = task.loss(rows, batch), task.loss(rows, lap)
        for d, length in enumerate((1, 3, 100, 100)):
            module = task.space.fill(rows[d])
            torch.testing.assert_close(whole[d], loss(module(batch.x[d]), batch.y[d]).mean())
            torch.testing.assert_close(
                short[d], loss(module(lap.x[d, :length]), lap.y[d, :length]).mean()
            )
    assert task.loss(rows[:0], drawn(task, 7, IDS[:0], 9)).shape == (0,)


@pytest.mark.parametrize("name", CASES)
def test_gradient_of_a_short_batch(name: str) -> None:
    task, shards, loss, rows = made(name)
    got = task.gradients.gradient(rows, task.examples.cyclic(IDS, 200, torch.tensor([0, 0, 1, 3])))
    lengths = ((0, 1), (0, 3), (200, 300), (600, 700))
    for d, (start, stop) in enumerate(lengths):
        held = shards.train.held(d)[start:stop]
        close(got[d], gradient_alone(task, rows[d], shards.x[held], shards.y[held], loss))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("part", ["train", "validation", "test"])
def test_evaluate_is_a_loop_over_devices(name: str, part: str) -> None:
    task, shards, loss, rows = made(name)
    tally = task.evaluate(rows, part, IDS)
    for d in range(len(SIZES)):
        held = shards.part(part).held(d)
        assert tally.count[d] == len(held)
        with torch.no_grad():
            outputs = task.space.fill(rows[d])(shards.x[held])
        torch.testing.assert_close(
            tally.loss[d], loss(outputs, shards.y[held]).sum() if len(held) else tally.loss[d] * 0
        )
        right = (
            int((outputs.argmax(1) == shards.y[held]).sum()) if shards.classes and len(held) else 0
        )
        assert tally.right[d] == right
    assert tally.loss.dtype == torch.float64


def test_cyclic_batches_walk_the_examples_in_order() -> None:
    x = torch.arange(12.0, dtype=torch.float64)[:, None]
    y = torch.zeros(12, dtype=torch.int64)
    shards = own_parts(train=[(x[:7], y[:7]), (x[7:9], y[7:9]), (x[9:], y[9:])], classes=2)
    task = Task(linear(1, 2), shards, dtype=torch.float64)
    ids = torch.arange(3)
    seen: list[list[Any]] = [[], [], []]
    for turn in range(6):
        batch = task.examples.cyclic(ids, 3, torch.full((3,), turn))
        assert batch.weight is not None
        for d in range(3):
            seen[d].append(batch.x[d, batch.weight[d] == 1, 0].tolist())
    assert seen[0] == 2 * [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0], [6.0]]
    assert seen[1] == 6 * [[7.0, 8.0]]
    assert seen[2] == 6 * [[9.0, 10.0, 11.0]]
    # every device has a turn of its own
    apart = task.examples.cyclic(ids, 3, torch.tensor([2, 0, 5]))
    assert apart.x[0, 0].item() == 6
    assert apart.weight[0].tolist() == [1, 0, 0]


@pytest.mark.parametrize("name", CASES)
def test_bits_of_a_row_do_not_depend_on_its_neighbours(name: str) -> None:
    task, _, _, rows = made(name)
    full = task.full_gradient(rows, IDS)
    tally = task.evaluate(rows, "test", IDS)
    steps = task.gradients.gradient(rows, drawn(task, 1, IDS, 8))
    for chosen in ([0], [1], [2], [3], [3, 0], [1, 2, 3]):
        some = IDS[chosen]
        assert torch.equal(task.full_gradient(rows[chosen], some), full[chosen])
        assert torch.equal(task.evaluate(rows[chosen], "test", some).loss, tally.loss[chosen])
        assert torch.equal(
            task.gradients.gradient(rows[chosen], drawn(task, 1, some, 8)), steps[chosen]
        )


@pytest.mark.parametrize("name", CASES)
def test_no_rows_at_all(name: str) -> None:
    task, _, _, rows = made(name)
    assert task.gradients.gradient(rows[:0], drawn(task, 7, IDS[:0], 9)).shape == (
        0,
        task.space.width,
    )
    assert task.full_gradient(rows[:0], IDS[:0]).shape == (0, task.space.width)
    assert task.evaluate(rows[:0], "test", IDS[:0]).loss.shape == (0,)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_everything_is_of_the_wanted_type(dtype: torch.dtype) -> None:
    task = Task(mlp(4, 3), labelled(), dtype=dtype)
    rows = torch.zeros(len(SIZES), task.space.width, dtype=dtype)
    steps = (task.full_gradient(rows, IDS), task.gradients.gradient(rows, drawn(task, 0, IDS, 2)))
    assert {task.x.dtype, *(step.dtype for step in steps)} == {dtype}
    assert task.y.dtype == torch.int64
    assert task.examples.counts("train", IDS).tolist() == list(SIZES)


def test_the_module_given_is_not_changed() -> None:
    module = mlp(4, 3)
    Task(module, labelled(), dtype=torch.float64)
    assert next(module.parameters()).dtype == torch.float32


def test_soft_labels() -> None:
    g = random(6)
    pairs = [
        (torch.randn(5, 4, generator=g), torch.softmax(torch.randn(5, 3, generator=g), 1))
        for _ in range(2)
    ]
    shards = own_parts(train=pairs)
    task = Task(linear(4, 3), shards, dtype=torch.float64)
    rows = torch.randn(2, task.space.width, generator=g, dtype=torch.float64)
    got = task.full_gradient(rows, torch.arange(2))
    for d in range(2):
        held = shards.train.held(d)
        expected = gradient_alone(
            task, rows[d], shards.x[held].double(), shards.y[held].double(), cross_entropy
        )
        close(got[d], expected)


def test_a_linear_layer_on_the_last_of_several_axes() -> None:
    module = nn.Sequential(nn.Linear(4, 2), nn.Flatten(), nn.Linear(10, 3))
    assert Task(module, labelled(features=(5, 4))).space.width == 4 * 2 + 2 + 10 * 3 + 3


@pytest.mark.parametrize(
    ("module", "shards", "loss", "error", "words"),
    [
        (mlp(5, 3), labelled(), "cross_entropy", ModelError, "does not take examples"),
        (mlp(4, 2), labelled(), "cross_entropy", ModelError, "has 2 outputs, but the labels need 3"),
        (mlp(4, 3), labelled(), "hinge", ConfigError, "loss = 'hinge': choose one of cross_entropy, squared_error"),
        (mlp(4, 3), labelled(), "squared_error", DataError, "the loss does not take outputs"),
        (mlp(4, 3), targets(2), "squared_error", DataError, "the loss does not take outputs"),
        (mlp(4, 3), labelled(), lambda out, y: out, ConfigError, "loss"),
    ],
    ids=["inputs", "outputs", "unknown", "labels as targets", "targets", "a loss with two axes"],
)  # fmt: skip
def test_what_does_not_fit_is_said_at_once(
    module: nn.Module, shards: Shards, loss: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        Task(module, shards, loss=loss)


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Conv1d(1, 3, 4)

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(self.inside(x[:, None])[:, :, 0], 0.5)


def test_a_model_that_draws_at_random_is_refused_row_by_row_too() -> None:
    with pytest.raises(ModelError, match="drops at random in eval mode too"):
        Task(Noisy(), labelled())


def drawn(task: Task, address: int, ids: torch.Tensor, size: int) -> Batch:
    return task.examples.draw(address, ids, size)[0]


def test_a_step_is_drawn_alike_alone_and_among_others() -> None:
    task = Task(mlp(60, 4, 10), synthetic(devices=3, sizes=[20, 30, 40]))
    ids = torch.arange(3)
    together = task.examples.draw(5, ids, 7, range(4, 9))
    alone = task.examples.draw(5, ids, 7, range(6, 7))
    assert torch.equal(together[2].examples, alone[0].examples)
    assert not torch.equal(together[2].examples, together[3].examples)
