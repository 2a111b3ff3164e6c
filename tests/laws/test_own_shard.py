"""True of every task: a device that holds only its own examples computes the bits that it has among
all others.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from covey import draws
from covey.data import Names, Part, Shards, own_parts
from covey.engine.population import Population
from covey.engine.solvers.objective import Objective
from covey.engine.task import Batch, Task
from covey.errors import ConfigError, DataError, ProgramError
from covey.models import mlp
from tests import given

SIZES = (1, 3, 40, 300)  # one block holds 256, and a device alone might choose a smaller one
IDS = torch.arange(len(SIZES))
SPLITS = ("train", "validation", "test")


def shards(features: tuple[int, ...] = (4,), *, outputs: int | None = None) -> Shards:
    """Devices of very different size; device d has labels below d + 1 only."""

    def part(seed: int, counts: tuple[int, ...]) -> list[tuple[Tensor, Tensor]]:
        generator = torch.Generator().manual_seed(seed)
        pairs = []
        for device, n in enumerate(counts):
            x = torch.randn(n, *features, generator=generator, dtype=torch.float64)
            y = torch.randint(device + 1, (n,), generator=generator)
            if outputs is not None:
                y = torch.randn(n, outputs, generator=generator, dtype=torch.float64)
            pairs.append((x, y))
        return pairs

    classes = 4 if outputs is None else None
    shifted = (*SIZES[1:], 0)
    return own_parts(
        train=part(0, SIZES), validation=part(1, SIZES[::-1]), test=part(2, shifted), classes=classes,
    )  # fmt: skip


class Running(nn.Module):
    """No graph knows the running sum: it runs under vmap."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x + torch.special.i1(self.inner(x)))  # no layer is known for it


CONV = nn.Sequential(nn.Conv1d(1, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(6, 4))
MISH = nn.Sequential(nn.Linear(4, 5), nn.Mish(), nn.Linear(5, 4))
MODELS: dict[str, tuple[nn.Module, Shards, str]] = {
    "fused": (mlp(4, 6, 5, 4), shards(), "fused"),
    "batched": (MISH, shards(), "batched"),
    "convolution": (CONV, shards((1, 4)), "each"),
    "vmap": (Running(), shards(), "vmap"),
    "numbers": (mlp(4, 5, 2), shards(outputs=2), "fused"),
}
every_model = pytest.mark.parametrize("name", MODELS)
every_dtype = pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64], ids=["float32", "float64"]
)


def task(name: str, held: Shards, dtype: torch.dtype, population: Population | None = None) -> Task:
    module, _, path = MODELS[name]
    made = Task(module, held, loss="auto", l2=0.01, dtype=dtype, population=population)
    assert made.path == path
    return made


def rows(made: Task) -> Tensor:
    generator = torch.Generator().manual_seed(9)
    return torch.randn(len(SIZES), made.space.width, generator=generator, dtype=torch.float64).to(
        made.dtype
    )


def both(batch: Batch) -> list[Tensor]:
    return [batch.x, batch.y, torch.zeros(0) if batch.weight is None else batch.weight]


def drawn(made: Task, x: Tensor, ids: Tensor) -> list[Tensor]:
    batches = made.examples.draw(draws.key(3, "law"), ids, 5, range(2, 4))
    gradients = [made.gradients.gradient(x, batch) for batch in batches]
    return [*both(batches[0]), *both(batches[1]), *gradients, made.loss(x, batches[0])]


def cyclic(made: Task, x: Tensor, ids: Tensor) -> list[Tensor]:
    batch = made.examples.cyclic(ids, 7, ids + 3)
    return [*both(batch), made.gradients.gradient(x, batch)]


def spread(made: Task, x: Tensor, ids: Tensor) -> list[Tensor]:
    batch = made.examples.spread(ids, 30)
    return [*both(batch), made.gradients.hessian_product(x, batch, x.flip(1))]


def full(made: Task, x: Tensor, ids: Tensor) -> list[Tensor]:
    return [made.full_gradient(x, ids), made.full_hessian_product(x, ids, x.flip(1))]


def descended(made: Task, x: Tensor, ids: Tensor) -> list[Tensor]:
    batches = made.examples.draw(draws.key(4, "law"), ids, 5, range(3))
    terms = Objective(lr=0.1, steps=3)
    return [given.descended(made, x, lambda step: batches[step], terms)]


def tallies(made: Task, x: Tensor, ids: Tensor) -> list[Tensor]:
    out: list[Tensor] = []
    for split in SPLITS:
        for bins in (0, 5) if made.classifies else (0,):
            tally = made.evaluate(x, split, ids, bins=bins, metrics=True)
            out += [values for values in (tally.sums, tally.calibration) if values is not None]
    return out


def labels(made: Task, x: Tensor, ids: Tensor) -> list[Tensor]:
    return [made.examples.labels(ids)] if made.classifies else []


WORK: dict[str, Callable[[Task, Tensor, Tensor], list[Tensor]]] = {
    "drawn": drawn, "cyclic": cyclic, "spread": spread, "full": full,
    "descended": descended, "tallies": tallies, "labels": labels,
}  # fmt: skip


@every_model
@every_dtype
@pytest.mark.parametrize("work", WORK)
def test_a_device_with_its_own_examples_computes_the_same_bits(
    name: str, dtype: torch.dtype, work: str
) -> None:
    everything = MODELS[name][1]
    population = Population.of(everything)
    whole = task(name, everything, dtype)
    x = rows(whole)
    want = WORK[work](whole, x, IDS)
    for told in (population, population.local()):
        for d in IDS.tolist():
            alone = task(name, everything.only([d]), dtype, told)
            got = WORK[work](alone, x[d : d + 1], IDS[d : d + 1])
            assert len(got) == len(want)
            own = [b[d : d + 1] if b.numel() else b for b in want]
            assert all(map(torch.equal, got, own))


@every_model
@pytest.mark.parametrize("work", WORK)
def test_a_task_without_examples_runs_on_no_rows(name: str, work: str) -> None:
    everything = MODELS[name][1]
    whole = task(name, everything, torch.float32)
    empty = task(name, Shards.none(everything), torch.float32, Population.of(everything))
    nobody = IDS[:0]
    want = WORK[work](whole, rows(whole)[:0], nobody)
    got = WORK[work](empty, rows(empty)[:0], nobody)
    assert [(a.shape, a.dtype) for a in got] == [(b.shape, b.dtype) for b in want]


@every_model
def test_what_all_devices_share_is_told(name: str) -> None:
    everything = MODELS[name][1]
    whole = task(name, everything, torch.float32)
    first, stop = torch.tensor([0, 1, 0]), torch.tensor([2, 4, 4])
    for held in (everything.only([0]), Shards.none(everything)):
        made = task(name, held, torch.float32, Population.of(everything))
        assert made.examples.most_labels == whole.examples.most_labels
        assert [made.examples.block(split) for split in SPLITS] == [
            whole.examples.block(split) for split in SPLITS
        ]
        assert made.targets == whole.targets
        assert made.row_bytes() == whole.row_bytes()
        assert made.no_hessian == whole.no_hessian
        for split in SPLITS:
            assert torch.equal(
                made.examples.total(split, first, stop), whole.examples.total(split, first, stop)
            )


def test_without_being_told_a_device_would_choose_other_blocks() -> None:
    """So the law above can fail."""
    everything = MODELS["fused"][1]
    assert task("fused", everything.only([0]), torch.float32).examples.block("train") == 32
    assert task("fused", everything, torch.float32).examples.block("train") == 256
    assert task("fused", everything.only([0]), torch.float32).examples.most_labels == 1


@pytest.mark.parametrize("work", WORK)
def test_the_examples_of_another_device_are_not_there(work: str) -> None:
    everything = MODELS["fused"][1]
    alone = task("fused", everything.only([1, 3]), torch.float32, Population.of(everything))
    with pytest.raises(ProgramError, match="the examples of device 2 are not on this node"):
        WORK[work](alone, rows(alone)[1:3], IDS[1:3])


def test_a_population_of_other_shards_is_refused() -> None:
    everything = MODELS["fused"][1]
    other = everything.chosen([1, 0, 2, 3])
    with pytest.raises(
        DataError, match="device 1 holds 3 train examples, but the population says 1"
    ):
        task("fused", everything.only([1]), torch.float32, Population.of(other))


def test_only_holds_nothing_of_others() -> None:
    everything = shards()
    alone = everything.only([1])
    mine = [everything.part(split).held(1) for split in SPLITS]
    assert len(alone.x) == len(alone.y) == sum(len(held) for held in mine)
    for split, held in zip(SPLITS, mine, strict=True):
        assert torch.equal(alone.x[alone.part(split).held(1)], everything.x[held])
        assert torch.equal(alone.y[alone.part(split).held(1)], everything.y[held])
        assert alone.part(split).counts().tolist() == [0, len(held), 0, 0]
    assert alone.x.untyped_storage().nbytes() == alone.x.numel() * 8
    with pytest.raises(ProgramError, match="device 2"):
        alone.train.held(2)


def test_only_keeps_the_names_and_the_shape() -> None:
    names = Names(devices=("a", "b", "c", "d"), edges=("p", "q"))
    everything = replace(shards(), edges=(2, 2), names=names)
    for held in (everything.only([2]), Shards.none(everything)):
        assert (held.devices, held.names, held.edges, held.classes) == (4, names, (2, 2), 4)
        assert (held.x.shape[1:], held.x.dtype) == (everything.x.shape[1:], torch.float64)
        assert held.y.dtype == torch.int64
    assert len(Shards.none(everything).x) == 0


def test_examples_that_devices_share_are_copied_to_each() -> None:
    part = Part.of([[0, 1], [1, 2]])
    everything = Shards(
        torch.arange(3.0)[:, None], torch.zeros(3, dtype=torch.int64), part, part, part, classes=1
    )
    assert everything.only([0]).x.tolist() == [[0.0], [1.0]]
    assert everything.only([1]).x.tolist() == [[1.0], [2.0]]
    assert everything.only([1]).only([1]).train.held(1).tolist() == [0, 1]
    with pytest.raises(ProgramError, match="device 0"):
        everything.only([1]).only([0])


def test_several_seeds_side_by_side_know_who_is_absent() -> None:
    both_seeds = Shards.stack([shards().only([1]), shards()])
    assert both_seeds.present.tolist() == [False, True, False, False, True, True, True, True]
    assert torch.equal(both_seeds.only([1]).x, shards().only([1]).x)


@pytest.mark.parametrize("ids", [[4], [-1], [0, 9]])
def test_only_devices_that_exist(ids: list[int]) -> None:
    with pytest.raises(ConfigError, match="number them from 0"):
        shards().only(ids)


@pytest.mark.parametrize("present", [torch.ones(3, dtype=torch.bool), torch.ones(2)])
def test_a_part_says_of_each_device_whether_it_is_there(present: Any) -> None:
    with pytest.raises(DataError, match=r"Part\.present"):
        Part(torch.tensor([0, 1]), torch.tensor([0, 1, 2]), present)
