"""What vmap does otherwise than a module alone, and what a module leaves out."""

import torch
from torch import Tensor, nn

import covey
from covey.data import own
from covey.engine.task import Task
from covey.laws import differences, state
from tests.laws.networks import CLASSES, FEDAVG, FLAT, SIZES

IDS = torch.arange(len(SIZES))


class Words(nn.Module):
    """An embedding with padding, and a parameter that the pass does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(5, 4, padding_idx=0)
        self.head = nn.Linear(4, CLASSES)
        self.pooler = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.words(x.long()).mean(1)
        out: Tensor = self.head(torch.special.i1(hidden))  # no layer is known for it
        return out


def texts() -> covey.data.Shards:
    draw = torch.Generator().manual_seed(0)
    pairs = []
    for size in SIZES:
        x = torch.randint(0, 5, (size, 7), generator=draw).float()
        y = torch.randint(0, CLASSES, (size,), generator=draw)
        pairs.append((x, y))
    return own(pairs, classes=CLASSES)


def test_padding_learns_nothing_in_any_model_of_vmap() -> None:
    task = Task(Words(), texts(), dtype=torch.float64)
    assert task.path == "vmap"
    [batch] = task.examples.draw(1, IDS, 4)
    draw = torch.Generator().manual_seed(1)
    rows = torch.randn(len(IDS), task.space.width, dtype=torch.float64, generator=draw)
    gradient = task.gradients.gradient(rows, batch)
    by_name = {slot.name: slot.view(gradient) for slot in task.space.slots}
    assert bool((by_name["words.weight"][:, 0] == 0).all())
    assert bool((by_name["pooler.weight"] == 0).all())
    for i in range(len(IDS)):
        module = task.space.fill(rows[i])
        loss = nn.functional.cross_entropy(module(batch.x[i]), batch.y[i])
        loss.backward()
        expected = module.get_parameter("words.weight").grad
        torch.testing.assert_close(by_name["words.weight"][i], expected)
    product = task.gradients.hessian_product(rows, batch, torch.ones_like(rows))
    assert bool(torch.isfinite(product).all())


def test_a_run_with_padding_is_the_same_in_chunks() -> None:
    states = []
    for memory in (2**31, 1):
        experiment = covey.Experiment(
            FEDAVG, texts(), Words(), FLAT, rounds=1, workers=1, memory=memory
        )
        run = covey.run(experiment)
        for _ in run:
            pass
        states.append(state(run))
    assert differences(*states) == []
