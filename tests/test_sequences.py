"""Token ids stay whole numbers, and every position with a label counts once."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import covey
from covey import Experiment, Tree, data, models
from covey.algorithms import FedAvg, Local, PFedGP
from covey.data import NO_TARGET, Part, Scaling, Shards
from covey.data.arrays.windows import UNKNOWN, Windows, token_names
from covey.engine.gradients import _shares
from covey.engine.task import Task
from covey.errors import ConfigError, DataError, ModelError
from covey.runs.scores import devices, record
from tests.laws.networks import LENGTH, TOKENS, lstm, sentences, transformer

NETWORKS = {"lstm": lstm, "transformer": transformer}
IDS = torch.arange(5)

every_network = pytest.mark.parametrize("name", NETWORKS)


def rows(task: Task) -> Tensor:
    return torch.stack([task.space.initial(seed).to(task.dtype) for seed in range(len(IDS))])


def flat_gradient(task: Task, module: nn.Module, loss: Tensor) -> Tensor:
    """The gradient of a module, in the order of a row."""
    gradients = torch.autograd.grad(loss, list(module.parameters()))
    with torch.no_grad():
        for parameter, gradient in zip(module.parameters(), gradients, strict=True):
            parameter.copy_(gradient)
    return task.space.row(module)


def torch_loss(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Torch's own mean over the tokens that have a target."""
    return F.cross_entropy(module(x).flatten(0, 1), y.flatten())


@every_network
def test_the_loss_of_a_device_is_torchs_mean_over_its_tokens(name: str) -> None:
    shards = sentences()
    task = Task(NETWORKS[name](), shards, dtype=torch.float64)
    start = rows(task)
    gradient = task.full_gradient(start, IDS)
    score = task.evaluate(start, "train", IDS)
    batch = task.examples.spread(IDS, 4)
    of_batch = task.gradients.gradient(start, batch)
    for device in range(len(IDS)):
        held = shards.train.held(device)
        module = task.space.fill(start[device])
        loss = torch_loss(module, shards.x[held], shards.y[held])
        torch.testing.assert_close(score.loss[device] / score.count[device], loss.detach())
        torch.testing.assert_close(gradient[device], flat_gradient(task, module, loss))
        own = batch.weight[device] == 1
        module = task.space.fill(start[device])
        loss = torch_loss(module, batch.x[device][own], batch.y[device][own])
        torch.testing.assert_close(task.loss(start, batch)[device], loss.detach())
        torch.testing.assert_close(of_batch[device], flat_gradient(task, module, loss))


def test_positions_weigh_the_same_to_the_last_digit_in_float64() -> None:
    there = torch.tensor([[True] * 23 + [False] * 7])
    shares = _shares(torch.zeros(1, 30, dtype=torch.float64), there)
    assert shares[0].tolist() == [1 / 23] * 23 + [0.0] * 7


def test_products_with_the_hessian_are_derivatives_of_the_gradient() -> None:
    task = Task(transformer(), sentences(), dtype=torch.float64)
    assert task.no_hessian is None
    start = rows(task)
    v = torch.randn(start.shape, generator=torch.Generator().manual_seed(1), dtype=start.dtype)
    step = 1e-6
    up = task.full_gradient(start + step * v, IDS)
    down = task.full_gradient(start - step * v, IDS)
    product = task.full_hessian_product(start, IDS, v)
    torch.testing.assert_close(product, (up - down) / (2 * step), rtol=1e-5, atol=1e-7)


@every_network
def test_positions_without_a_target_change_no_bit(name: str) -> None:
    shards = sentences()
    masked = shards.y == NO_TARGET
    assert bool(masked.any())
    noise = torch.randint(1, TOKENS, shards.x.shape, generator=torch.Generator().manual_seed(2))
    other = dataclasses.replace(shards, x=torch.where(masked, noise, shards.x))
    assert not torch.equal(other.x, shards.x)
    network = {"lstm": models.lstm, "transformer": models.transformer}[name]
    gradients = []
    for examples in (shards, other):
        task = Task(network(TOKENS, TOKENS), examples)
        start = task.space.initial(0).repeat(len(IDS), 1)
        gradients.append(task.full_gradient(start, IDS))
    assert torch.equal(*gradients)


@every_network
def test_the_embedding_of_padding_stays_zero(name: str) -> None:
    task = Task(NETWORKS[name](), sentences())
    run = covey.run(
        Experiment(
            FedAvg(steps=2, lr=0.5, batch=4), task.shards, NETWORKS[name](), Tree.flat(5), rounds=1
        )
    )
    next(run)
    embedding = run.module().embedding
    assert isinstance(embedding, nn.Embedding)
    assert bool((embedding.weight[0] == 0).all())
    assert bool((embedding.weight[1:] != 0).all())


class Unigram(nn.Module):
    """The same scores at every position, whatever the tokens are."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Parameter(torch.zeros(TOKENS))

    def forward(self, x: Tensor) -> Tensor:
        return self.scores.expand(*x.shape, -1)


def test_a_unigram_model_reaches_the_entropy_of_the_token_counts() -> None:
    shards = sentences()
    learner = Local(steps=200, lr=3.5, batch=None)
    settings: dict[str, Any] = {
        "rounds": 1,
        "dtype": torch.float64,
        "parts": ("train", "validation", "test"),
    }
    run = covey.run(Experiment(learner, shards, Unigram(), Tree.flat(5), **settings))
    next(run)
    counts = torch.from_numpy(shards.labels()).double()
    shares = counts / counts.sum(1, keepdim=True)
    entropy = -torch.special.xlogy(shares, shares).sum(1)
    lines = [line for line in run.devices() if line.model == "personal" and line.part == "train"]
    for device, line in enumerate(lines):
        # A token that does not occur has probability 0, which gradients reach slowly.
        assert line.perplexity == pytest.approx(math.exp(entropy[device]), rel=2e-3)
        assert line.examples == len(shards.train.held(device))
        assert line.tokens == counts[device].sum()
    score = run.history[0].models["personal"].scores["train"]
    over_all = (entropy * counts.sum(1)).sum() / counts.sum()
    assert score.perplexity == pytest.approx(math.exp(over_all), rel=2e-3)


def test_a_loss_of_ones_own_sees_positions_as_examples() -> None:
    shapes = []

    def smooth(outputs: Tensor, y: Tensor) -> Tensor:
        shapes.append((tuple(outputs.shape[1:]), y.ndim, int(y.min())))
        return F.cross_entropy(outputs, y, reduction="none", label_smoothing=0.1)

    shards = sentences()
    task = Task(lstm(), shards, loss=smooth)
    assert set(shapes) == {((TOKENS,), 1, 0)} or set(shapes) == {((TOKENS,), 1, 1)}
    assert [metric.name for metric in task.metrics] == ["accuracy", "loss"]
    start = rows(task)
    held = shards.train.held(1)
    module = task.space.fill(start[1])
    loss = F.cross_entropy(
        module(shards.x[held]).flatten(0, 1), shards.y[held].flatten(), label_smoothing=0.1
    )
    gradient = flat_gradient(task, module, loss)
    torch.testing.assert_close(task.full_gradient(start, IDS)[1], gradient)


def test_a_run_says_its_perplexity() -> None:
    run = covey.run(
        Experiment(FedAvg(steps=1, batch=4), sentences(), lstm(), Tree.flat(5), rounds=2)
    )
    first, second = list(run)
    score = first.models["global"].scores["test"]
    assert score.perplexity == math.exp(score.loss or 0)
    assert f"(perplexity {score.perplexity:.4g})" in str(first)
    assert first.figures()["global/test/perplexity"] == score.perplexity
    again = record.read(json.loads(json.dumps(first.as_dict())))
    assert again.models["global"].scores["test"] == score
    scores = second.models["global"].scores["test"]
    assert second.models["global"].quality("test") == -(scores.loss_fallback or 0)
    text = devices.to_csv(run.devices())
    assert devices.from_csv(text) == run.devices()
    assert text.splitlines()[0].endswith("tokens,perplexity,last_perplexity")


def test_calibration_is_per_token() -> None:
    shards = sentences()
    run = covey.run(Experiment(FedAvg(steps=1, batch=4), shards, lstm(), Tree.flat(5), rounds=1))
    score = next(run).models["global"].scores["test"]
    found = run.calibration()["global"]
    assert found.count == int(shards.target_counts("test").sum())
    assert found.log_loss == pytest.approx(score.loss, rel=1e-5)
    assert found.accuracy == score.accuracy


def test_a_sequence_has_one_class_by_its_last_token_or_the_mean() -> None:
    draw = torch.Generator().manual_seed(3)
    x = torch.randint(1, TOKENS, (12, LENGTH), generator=draw)
    shards = data.own([(x, x[:, 0] % 2)] * 2, tokens=TOKENS)
    assert not shards.by_position
    assert shards.classes == 2
    short = x.clone()
    short[:, 3:] = 0
    for network in (models.lstm, models.gru, models.transformer):
        for pool in ("last", "mean"):
            module = network(TOKENS, 2, by_position=False, pool=pool, padding=0)
            assert Task(module, shards).classifies
            torch.testing.assert_close(module(short), module(short[:, :3]))


@pytest.mark.parametrize("network", [models.lstm, models.transformer])
def test_networks_of_tokens_may_drop(network: Any) -> None:
    shards = sentences()
    drops = Experiment(
        FedAvg(steps=1, batch=4), shards, network(TOKENS, TOKENS, dropout=0.5), Tree.flat(5), 1
    )
    keeps = dataclasses.replace(drops, model=network(TOKENS, TOKENS))
    ends = []
    for experiment in (drops, drops, keeps):
        run = covey.run(experiment)
        next(run)
        ends.append(run.w)
    assert torch.equal(ends[0], ends[1])
    assert not torch.equal(ends[0], ends[2])


def pairs(x: Any, y: Any) -> list[tuple[Any, Any]]:
    return [(np.asarray(x), np.asarray(y))]


IDS_OF_TWO = [[0, 1, 2], [2, 1, 0]]


@pytest.mark.parametrize(
    ("x", "y", "tokens", "fault"),
    [
        (IDS_OF_TWO, [0, 1], False, "if they are token ids, say how many"),
        (IDS_OF_TWO, [0, 1], 2, "not among the 2 tokens 0 to 1 in 2 of 2 .*example 0: .* = 2"),
        ([[0, -1], [1, 1]], [0, 1], True, "the first is example 0: .* = -1"),
        ([[0.0, 1.0], [1.0, 1.0]], [0, 1], True, "give whole numbers"),
        (IDS_OF_TWO, [[0, 1], [1, 1]], True, "Labels per position need as many positions"),
        (IDS_OF_TWO, [[0, 1, -1], [1, 1, 1]], True, r"y\[0, 2\] = -1.*give -100"),
        (IDS_OF_TWO, [[0, 1, 1], [-100, -100, -100]], True, "no label at any position.*example 1"),
        (IDS_OF_TWO, [[0, 1, 1], [1, 1, 1]], 0, "tokens = 0; give how many"),
    ],
)
def test_tokens_and_labels_that_cannot_be(x: Any, y: Any, tokens: Any, fault: str) -> None:
    with pytest.raises(DataError, match=f"(?is){fault}"):
        data.own(pairs(x, y), split=(1, 0, 0), tokens=tokens)


def test_token_ids_are_not_scaled() -> None:
    part = Part.of([[0, 1]])
    x = torch.tensor(IDS_OF_TWO)
    y = torch.tensor([0, 1])
    half = Scaling("half", torch.zeros(()), torch.ones(()))
    with pytest.raises(DataError, match="cannot be scaled"):
        Shards(x, y, part, part, part, classes=2, tokens=3, scaling=half)
    with pytest.raises(DataError, match=r"x is torch\.int32, but token ids are int64"):
        Shards(x.int(), y, part, part, part, classes=2, tokens=3)


def test_numbers_from_tokens_keep_their_fractions() -> None:
    shards = data.own(pairs(IDS_OF_TWO, [0.5, 1.5]), split=(1, 0, 0), tokens=True)
    assert shards.y.tolist() == [0.5, 1.5]
    assert shards.x.dtype == torch.int64
    task = Task(models.gru(3, 1, by_position=False), shards, loss="auto", dtype=torch.float64)
    assert task.x.dtype == torch.int64
    assert task.targets == 1


def test_models_that_do_not_fit_say_what_to_do() -> None:
    shards = sentences()
    with pytest.raises(ModelError, match=r"token id 5 .*give its nn.Embedding 6 entries"):
        Task(models.lstm(TOKENS - 1, TOKENS), shards)
    with pytest.raises(ModelError, match=r"token ids \(nn.Embedding looks them up\)"):
        Task(nn.Sequential(nn.Flatten(), nn.Linear(LENGTH, TOKENS)), shards)
    with pytest.raises(ModelError, match=r"return \[examples, positions, classes\]"):
        Task(models.lstm(TOKENS, TOKENS, by_position=False), shards)
    with pytest.raises(ConfigError, match=r"per position.*needs one per example"):
        next(covey.run(Experiment(PFedGP(), shards, lstm(), Tree.flat(5), rounds=1)))
    with pytest.raises(ConfigError, match="has a label per position"):
        shards.numbers()
    with pytest.raises(ModelError, match="give an even width that the heads divide"):
        models.transformer(4, 4, width=6, heads=4)
    with pytest.raises(ModelError, match="give 'last' or 'mean'"):
        models.gru(4, 4, pool="first")  # type: ignore[arg-type]


def test_every_character_but_the_first_is_predicted_once() -> None:
    text = "to be or not"
    windows = Windows.of([text, "ab"], 5)
    tokens = token_names(windows.vocabulary(torch.tensor([0, 1, 2])))
    x, y = windows.encoded(tokens)
    said = "".join(tokens[k] for row in y[:-1] for k in row.tolist() if k != NO_TARGET)
    assert said == text[1:]
    assert [piece.tolist() for piece in windows.pieces] == [[0, 1, 2], [3]]
    assert x[-1].tolist() == [tokens.index("a") if "a" in tokens else 0, 0, 0, 0, 0]
    assert tokens[0] == UNKNOWN
    with pytest.raises(DataError, match="the text of device 1 has fewer than 2"):
        Windows.of(["ab", "a"], 5)


def test_texts_of_a_table_and_of_edges(tmp_path: Path) -> None:
    table = tmp_path / "said.csv"
    table.write_text(
        'device,edge,text\nada,north,"to be"\nbob,south,or not\nada,north,again\n', encoding="utf-8"
    )
    shards = data.text(str(table), length=4, split=(1, 0, 0))
    assert shards.names.devices == ("ada", "bob")
    assert shards.names.edges == ("north", "south")
    assert shards.edges == (1, 1)
    assert shards.target_counts("train").tolist() == [len("to be\nagain") - 1, len("or not") - 1]
    for edge, name in (("north", "ada"), ("south", "bob")):
        (tmp_path / "folder" / edge).mkdir(parents=True)
        path = tmp_path / "folder" / edge / f"{name}.txt"
        path.write_text("to be or not", encoding="utf-8")
    assert data.text(str(tmp_path / "folder"), length=4).names.edges == ("north", "south")
    with pytest.raises(DataError, match="no column 'words'; it has device, edge, text"):
        data.text(str(table), column="words")
    with pytest.raises(DataError, match=r"no folder of \.txt files"):
        data.text(str(tmp_path / "none"))
    table.write_bytes("text,device\nZürich,a\n".encode("latin-1"))
    with pytest.raises(
        DataError, match=r"said\.csv is not text in UTF-8 .*; save it as CSV in UTF"
    ):
        data.text(str(table))
    (tmp_path / "folder" / "north" / "latin.txt").write_bytes("Zürich".encode("latin-1"))
    with pytest.raises(DataError, match=r"latin\.txt is not text in UTF-8 .*; save it in UTF-8"):
        data.text(str(tmp_path / "folder"))


def test_speakers_are_drawn_from_the_seed() -> None:
    some = data.speakers(devices=3, characters=200, seed=1)
    again = data.speakers(devices=3, characters=200, seed=1)
    other = data.speakers(devices=3, characters=200, seed=2)
    assert some.fingerprint() == again.fingerprint() != other.fingerprint()
    assert some.tokens == other.tokens
    assert int((some.x == 0).sum()) == int((some.y == NO_TARGET).sum())  # the alphabet is whole
    with pytest.raises(DataError, match="variety=0"):
        data.speakers(variety=0)


def test_files_of_token_ids(tmp_path: Path) -> None:
    table = tmp_path / "tokens.csv"
    rows = ["device,first,second,label", "a,3,1,x", "a,0,2,y", "b,1,1,x", "b,2,2,y"]
    table.write_text("\n".join(rows), encoding="utf-8")
    shards = data.files(str(table), tokens=True, split=(1, 0, 0))
    assert shards.x.tolist() == [[3, 1], [0, 2], [1, 1], [2, 2]]
    assert (shards.tokens, shards.scaling) == (4, None)
    with pytest.raises(DataError, match="token ids are not scaled"):
        data.files(str(table), tokens=True, normalise="unit")
    table.write_text("\n".join([*rows, "b,1.5,2,y"]), encoding="utf-8")
    with pytest.raises(DataError, match=r"the first is 1\.5 in example 4"):
        data.files(str(table), tokens=True)
