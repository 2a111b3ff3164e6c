"""An experiment's fingerprint: what decides the bits is in it, what does not is not."""

import dataclasses
import functools
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import covey
from covey import Experiment, Tree
from covey.algorithms import FedAvg, Local, SFedHP
from covey.data import Shards, synthetic
from covey.errors import ConfigError
from covey.models import mlp
from covey.runs.experiment import describe
from covey.runs.saved.fingerprint import program_fingerprint

DATA = synthetic(devices=4, sizes=[12] * 4)
MODEL = mlp(60, 10)


def experiment(**more: Any) -> Experiment:
    plain = {"algorithm": FedAvg(), "data": DATA, "model": MODEL, "tree": Tree.flat(4), "rounds": 2}
    return Experiment(**{**plain, **more})


def own_loss(outputs: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(outputs, y, reduction="none")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("algorithm", FedAvg(lr=0.03)), ("data", synthetic(devices=4, sizes=[13] * 4)), ("model", mlp(60, 4, 10)),
        ("tree", Tree.grouped([2, 2])), ("loss", own_loss), ("l2", 0.1), ("seed", 3), ("idle", "train"),
        ("codec", "bitmap"), ("batches", "cyclic"), ("protocol", "paper"), ("dtype", torch.float64),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_what_decides_the_bits_is_in_the_fingerprint(name: str, value: Any) -> None:
    one, two = experiment().fingerprint(), experiment(**{name: value}).fingerprint()
    also = ["initial"] if name in ("seed", "model", "dtype") else []  # the row it starts from
    assert [key for key in one if one[key] != two[key]] == [name, *also]


KEYS = (
    *("draws", "covey"),
    *("l2", "seed", "private", "idle", "codec", "batches", "protocol", "start", "augment"),
    *("norm", "solver", "schedules", "dtype", "compute", "holdout_devices", "metrics", "select"),
    *("algorithm", "data", "model", "initial", "loss", "tree"),
    *("algorithm code", "model code"),
)
"""In this order a checkpoint of another experiment is compared, so that the simplest difference is
named.
"""


@pytest.mark.parametrize("more", [{}, {"seed": 3}, {"dtype": torch.float64}], ids=str)
def test_the_fingerprint_is_that_of_the_program_and_that_of_the_data(more: dict[str, Any]) -> None:
    whole = experiment(**more)
    program = program_fingerprint(whole)
    assert tuple(whole.fingerprint()) == KEYS
    assert tuple(program) == tuple(key for key in KEYS if key != "data")
    assert program | {"data": DATA.fingerprint()} == whole.fingerprint()


def test_nodes_with_other_examples_have_the_same_program() -> None:
    whole = experiment()
    held = [DATA.only([0]), DATA.only([1]), Shards.none(DATA)]
    nodes = [experiment(data=shards) for shards in held]
    assert all(program_fingerprint(node) == program_fingerprint(whole) for node in nodes)
    digests = [shards.fingerprint() for shards in (DATA, *held)]
    assert len(set(digests)) == 4
    assert DATA.only([1]).fingerprint() == held[1].fingerprint()


def test_another_program_is_told_apart_without_data() -> None:
    plain = program_fingerprint(experiment())
    for more in (
        {"algorithm": FedAvg(lr=0.03)},
        {"model": mlp(60, 4, 10)},
        {"codec": "bitmap"},
        {"l2": 0.1},
    ):
        assert program_fingerprint(experiment(**more)) != plain


@dataclass(frozen=True)
class Splitting(Local):
    splits: ClassVar[bool] = True


def test_private_layers_are_for_algorithms_that_split_and_decide_the_bits() -> None:
    with pytest.raises(ConfigError, match="FedAvg shares all layers, so they would be sent"):
        experiment(algorithm=FedAvg(), private=("1.*",))
    one, two = (
        experiment(algorithm=Splitting(), private=private).fingerprint()
        for private in ((), ("1.*",))
    )
    assert one["private"] != two["private"]
    assert two == experiment(algorithm=Splitting(), private="1.*").fingerprint()


def test_another_algorithm_of_the_same_name_is_another_experiment() -> None:
    one = experiment(algorithm=Local()).fingerprint()
    two = experiment(algorithm=Splitting()).fingerprint()
    assert one["algorithm code"] != two["algorithm code"]


def test_a_run_may_start_from_the_module_it_is_given() -> None:
    model = mlp(60, 10)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.125)
    assert covey.run(experiment(model=model, start="module")).w.eq(0.125).all()
    assert not covey.run(experiment(model=model)).w.eq(0.125).any()


@pytest.mark.parametrize(
    ("name", "value"),
    [("rounds", 9), ("score_every", 2), ("parts", ("test",)), ("workers", 3), ("memory", 10**6)],
)
def test_what_does_not_is_not(name: str, value: Any) -> None:
    assert experiment().fingerprint() == experiment(**{name: value}).fingerprint()


def test_values_that_the_seed_replaces_are_not() -> None:
    torch.manual_seed(0)
    one = experiment(model=mlp(60, 10)).fingerprint()
    assert one == experiment(model=mlp(60, 10)).fingerprint()


def test_values_that_stay_are() -> None:
    class Scaled(nn.Module):
        def __init__(self, scale: float) -> None:
            super().__init__()
            self.inner, self.scale = (
                nn.Linear(60, 10),
                nn.Parameter(torch.tensor(scale), requires_grad=False),
            )

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x) * self.scale

    one = Scaled(1.0)
    two = Scaled(2.0)
    two.inner.load_state_dict(one.inner.state_dict())
    assert experiment(model=one).fingerprint() != experiment(model=two).fingerprint()


@pytest.mark.parametrize(
    "loss",
    [nn.CrossEntropyLoss(reduction="none"), functools.partial(F.cross_entropy, reduction="none")],
)
def test_a_loss_may_be_any_callable(loss: Any) -> None:
    next(covey.run(experiment(loss=loss)))


def test_an_experiment_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        experiment().rounds = 3


def test_describe_shows_every_field() -> None:
    text = describe(SFedHP(lam1=3.5))
    assert text.startswith("SFedHP(lam1=3.5, lam2=")
    assert all(f"{field.name}=" in text for field in dataclasses.fields(SFedHP))
    assert describe(4) == "4"


@pytest.mark.parametrize(
    "device", ["mps", "xla", "meta", "mps:0", "cpu:1", "cuda:9", "", "cuda:", None, 2.5]
)
@pytest.mark.parametrize("count", [0, 2])
def test_a_device_that_cannot_be_used_names_those_that_can(
    device: Any, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    with pytest.raises(
        ConfigError, match=f"device = {device!r}.*(use 'cpu'|must be text)"
    ) as caught:
        experiment(device=device)
    named = "'cuda:0' to 'cuda:1'" in str(caught.value)
    assert named == (count > 0 and isinstance(device, str))


def test_devices_of_this_machine_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for device in ("cpu", "cuda", "cuda:0", "cuda:1"):
        assert experiment(device=device).device == device
