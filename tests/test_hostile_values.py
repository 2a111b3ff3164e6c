# mypy: disable-error-code="arg-type"
# Values of wrong types are what is tested.
"""Every number a user can write is taken or refused by a CoveyError, whatever it is: never a
traceback.
"""

import dataclasses
import math
import typing
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import torch

import covey
from covey import CoveyError, Experiment, Tree
from covey.algorithms import ALGORITHMS, FedAvg
from covey.algorithms.nested import Level, Nested
from covey.codecs import CODECS
from covey.data import Shards, digits, partition, recipes, synthetic
from covey.data.partitions.named_partitions import PARTITIONS, deal
from covey.errors import ConfigError, DataError, DivergedError, shown
from covey.kernel.algorithm import Algorithm
from covey.links.spec import wire
from covey.models import linear

HOSTILE: list[Any] = [
    *(
        0, -1, 10**23, 1e308, -1e308, 1e-308, math.inf, -math.inf, math.nan, "", [], True,
        "x" * 10_000,
    ),
    *(None, [math.nan], [[]], {}, 2**63, -(2**63) - 1, 10**5000, 1e30, 1e-300),
]  # fmt: skip
NOT_FINITE = [math.inf, -math.inf, math.nan, 1e308, -1e308, 10**5000]
DATA = synthetic(devices=4, sizes=[8] * 4)
MODEL = linear(60, 10)
LEVELS = (Level("server"), Level("device", lam=1.0, name="personal"))
REQUIRED: dict[type, dict[str, Any]] = {
    Nested: {"levels": LEVELS},
    Level: {"tier": "device", "name": "p", "lam": 1.0},
}
KINDS = [*ALGORITHMS.values(), Level]


def made(kind: type, field: str, value: Any) -> Any:
    return kind(**{**REQUIRED.get(kind, {}), field: value})


def fields() -> Iterator[tuple[type, dataclasses.Field[Any]]]:
    for kind in KINDS:
        for field in dataclasses.fields(kind):
            yield kind, field


def test_a_field_of_an_algorithm_takes_or_refuses_any_value() -> None:
    taken, refused = 0, 0
    for kind, field in fields():
        for value in HOSTILE:
            try:
                made(kind, field.name, value)
                taken += 1
            except CoveyError as error:
                refused += 1
                assert len(str(error)) < 500, field.name  # noqa: PT017
    assert taken > 200
    assert refused > 3000


def test_no_field_of_an_algorithm_takes_what_is_not_finite() -> None:
    seen = 0
    for kind, field in fields():
        for value in NOT_FINITE:
            seen += 1
            with pytest.raises(CoveyError) as caught:
                made(kind, field.name, value)
            assert isinstance(caught.value, ConfigError), field.name
    assert seen > 1000


def extremes() -> Iterator[tuple[str, Algorithm]]:
    """Every algorithm with one field as large or small as it is taken; counts would only take
    longer.
    """
    for kind, field in fields():
        hint = typing.get_type_hints(kind)[field.name]
        if float not in (hint, *typing.get_args(hint)) or "sample" in field.name:
            continue
        for value in (1e30, 1e-308):
            with suppress(CoveyError):
                thing = made(kind, field.name, value)
                yield (
                    f"{kind.__name__}.{field.name} = {value}",
                    thing if kind is not Level else Nested((LEVELS[0], thing)),
                )


def test_extreme_values_are_trained_with_or_refused() -> None:
    """A run that diverges says so."""
    count = 0
    for what, algorithm in extremes():
        tree = Tree.grouped([2, 2]) if "edge" in algorithm.tiers() else Tree.flat(4)
        try:
            with suppress(CoveyError):
                # rehearsed, not trained
                covey.run(Experiment(algorithm, DATA, MODEL, tree, rounds=1))
            count += 1
        except Exception as error:
            raise AssertionError(what) from error
    assert count > 80


@pytest.mark.parametrize("lr", [1e30, 1e9])
def test_a_step_that_leads_nowhere_diverges(lr: float) -> None:
    run = covey.run(Experiment(FedAvg(lr=lr), DATA, MODEL, Tree.flat(4), rounds=9, l2=1.0))
    with pytest.raises(DivergedError):
        list(run)


PLAIN: dict[str, Any] = {
    "algorithm": FedAvg(), "data": DATA, "model": MODEL, "tree": Tree.flat(4), "rounds": 1,
}  # fmt: skip
COUNTS = [
    "rounds", "score_every", "score_train_every", "workers", "memory", "holdout_devices", "seed",
]  # fmt: skip


def test_a_field_of_an_experiment_takes_or_refuses_any_value() -> None:
    refused = 0
    for field in dataclasses.fields(Experiment):
        if field.name == "device":
            continue  # torch's to say
        for value in [*HOSTILE, object(), (10**23,), ["x"], [True]]:
            try:
                Experiment(**{**PLAIN, field.name: value})
            except CoveyError as error:
                refused += 1
                assert len(str(error)) < 500, field.name  # noqa: PT017
    assert refused > 400


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("value", [10**23, -(10**23), 10**5000, 1e308, math.nan], ids=shown)
def test_counts_beyond_all_bounds_are_refused_before_anything_is_made(
    name: str, value: Any
) -> None:
    with pytest.raises(ConfigError, match=name):
        Experiment(**{**PLAIN, name: value})


@pytest.mark.parametrize("value", [math.inf, math.nan, 1e308])
def test_l2_is_finite(value: float) -> None:
    with pytest.raises(ConfigError, match="l2"):
        Experiment(**{**PLAIN, "l2": value})


@pytest.mark.parametrize("codec", [7, None, ["dense"], True, math.nan])
def test_a_codec_is_a_name_or_a_table(codec: Any) -> None:
    with pytest.raises(ConfigError, match="codec"):
        Experiment(**{**PLAIN, "codec": codec})


def test_an_option_of_a_codec_takes_or_refuses_any_value() -> None:
    for name, codec in CODECS.items():
        options: list[Any] = (
            [field.name for field in dataclasses.fields(codec)]
            if dataclasses.is_dataclass(codec)
            else []
        )
        for option in (*options, "keep", "update", "feedback", "nonsense"):
            for value in HOSTILE:
                if isinstance(value, int) and abs(value) > 10**100:
                    continue
                with suppress(CoveyError):
                    wire({"name": name, option: value}, "codec.server-device", "up")


Y = torch.arange(10).repeat_interleave(60)


@pytest.mark.parametrize("name", PARTITIONS)
def test_an_argument_of_a_partition_takes_or_refuses_any_value(name: str) -> None:
    taken = 0
    for argument in ("devices", "labels", "alpha", "split", "seed"):
        for value in HOSTILE:
            with suppress(CoveyError):
                deal(Y, partition=name, **{argument: value})
                taken += 1
    assert taken < 60


def test_arguments_of_data_take_or_refuse_any_value() -> None:
    for argument in ("alpha", "beta", "devices", "seed", "split", "sizes"):
        for value in HOSTILE:
            with suppress(CoveyError):
                made = synthetic(**{"devices": 2, "sizes": [9, 9], argument: value})
                assert isinstance(made, Shards)


@pytest.mark.parametrize(
    ("argument", "value"), [("devices", 10**23), ("alpha", math.inf), ("labels", 0), ("seed", -1)]
)
def test_digits_refuses(argument: str, value: Any) -> None:
    with pytest.raises(DataError, match=argument):
        digits(**{argument: value})


@pytest.mark.parametrize("value", NOT_FINITE, ids=shown)
def test_data_takes_no_number_that_is_not_finite(value: Any) -> None:
    for arguments in (
        {"alpha": value},
        {"beta": value},
        {"devices": value},
        {"split": (value, 0.5, 0.5)},
    ):
        with pytest.raises(CoveyError):
            synthetic(**{"devices": 2, **arguments})
    with pytest.raises(CoveyError):
        partition.dirichlet(Y, devices=2, alpha=value)
    with pytest.raises(CoveyError):
        recipes.sfedhp(Y, train_per_label=2, test_per_label=2, validation_share=value)


def test_a_value_in_a_message_is_short() -> None:
    assert shown("x" * 10_000) == "'" + "x" * 99 + "..."
    assert "digits" in shown(10**5000)
