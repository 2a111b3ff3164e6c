# mypy: disable-error-code="arg-type"
# Values of wrong types are what is tested.
"""The range of a field is its annotation, checked when an algorithm is made: the author writes it
once.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import math
import typing
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import pytest
import torch

import covey
from covey import Algorithm, Nodes, Rows, fields
from covey.algorithms import ALGORITHMS
from covey.algorithms.nested import Level
from covey.errors import ConfigError
from covey.fields import (
    Count,
    CountPerNode,
    NonNegative,
    Positive,
    PositivePerNode,
    Probability,
    ProbabilityPerNode,
    Range,
    Share,
    SharePerNode,
    Whole,
)
from tests.laws.cases import CASES, experiment

if typing.TYPE_CHECKING:
    from nowhere import Unknown  # type: ignore[import-not-found]


class Still(Algorithm):
    """An algorithm that does nothing."""

    sends: ClassVar[str] = "nothing"

    def server(self, me: Nodes, w: Rows) -> Rows:
        return w


@dataclass(frozen=True)
class Ranged(Still):
    positive: Positive = 0.5
    not_negative: NonNegative = 0.5
    share: Share = 0.5
    probability: Probability = 0.5
    count: Count = 5
    whole: Whole = 5
    optional: Count | None = 5
    near: Annotated[float, Range(-2, 2)] = 0.5
    positives: PositivePerNode = 0.5
    shares: SharePerNode = 0.5
    probabilities: ProbabilityPerNode = 0.5
    counts: CountPerNode = 5
    planned_share: SharePerNode | typing.Literal["plan"] = 0.5


TAKEN = [
    ("positive", [1e-308, 1, 1e30]),
    ("not_negative", [0, 0.0, 1e30]),
    ("share", [0, 1, 0.3]),
    ("probability", [1e-4, 0.9999]),
    ("count", [1, 10**9]),
    ("whole", [0, 10**9]),
    ("optional", [1, None]),
    ("near", [-2, 2, 0]),
    ("positives", [1, [0.1, 2], (3,)]),
    ("shares", [[0, 1, 0.5]]),
    ("probabilities", [[0.5, 0.1]]),
    ("counts", [[1, 2], 3]),
    ("planned_share", ["plan", 0, [0.5, 1]]),
]
NAMES = [name for name, _ in TAKEN]
REFUSED = [
    ("positive", 0, "must be above 0"),
    ("positive", -1.0, "must be above 0"),
    ("positive", True, "must be a number above 0"),
    ("not_negative", -1e-9, "must be 0 or more"),
    ("share", 1.1, "must be between 0 and 1"),
    ("probability", 1, "must be between 0.0001 and 0.9999"),
    ("count", 0, "must be a whole number between 1 and 1,000,000,000"),
    ("count", 10**9 + 1, "must be a whole number between 1 and 1,000,000,000"),
    ("count", 2.0, "must be a whole number between 1"),
    ("whole", -1, "must be a whole number between 0 and 1,000,000,000"),
    ("optional", 0, "must be a whole number between 1"),
    ("optional", 1.5, 'or "none"'),
    ("near", 2.1, "must be between -2 and 2"),
    ("positives", [0.1, 0], "must be above 0"),
    ("positives", [], "is empty; give one value for all nodes, or one for each"),
    ("positives", "no", "must be a number above 0 or a list above 0"),
    ("shares", [0.5, 2], "must be between 0 and 1"),
    ("counts", [1, 0], "must be a whole number between 1"),
    ("counts", [1, 2.5], "must be a whole number between 1"),
    ("planned_share", 1.5, "must be between 0 and 1"),
    ("planned_share", "plans", 'or "plan"'),
]


@pytest.mark.parametrize(("name", "values"), TAKEN, ids=NAMES)
def test_what_is_in_the_range_is_taken(name: str, values: list[Any]) -> None:
    for value in values:
        assert getattr(Ranged(**{name: value}), name) == value


@pytest.mark.parametrize(("name", "value", "rule"), REFUSED, ids=lambda value: str(value))
def test_what_is_not_is_refused_with_the_rule(name: str, value: Any, rule: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Ranged(**{name: value})
    message = str(caught.value)
    assert message.startswith(f"Ranged: {name}")
    assert rule in message


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, -math.inf, 1e31, 10**5000],
    ids=["nan", "inf", "-inf", "1e31", "long"],
)
def test_no_field_takes_what_is_not_finite(name: str, value: float) -> None:
    for given in (value, [value]):
        with pytest.raises(ConfigError, match=f"Ranged: {name}"):
            Ranged(**{name: given})


def test_the_class_shows_its_fields_to_tools() -> None:
    assert list(inspect.signature(Ranged).parameters) == NAMES
    assert typing.get_type_hints(Ranged)["optional"] == int | None


@dataclass(frozen=True)
class Own(Still):
    """With a rule of its own, which may rely on the others."""

    low: Positive = 1.0
    high: Positive = 2.0

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ConfigError(f"Own: low = {self.low} must not be above high = {self.high}.")


def test_a_rule_of_the_algorithms_own_comes_after_the_ranges() -> None:
    with pytest.raises(ConfigError, match=r"low = 3.0 must not be above high"):
        Own(low=3.0)
    with pytest.raises(ConfigError, match=r"Own: low = 'x' must be a number"):
        Own(low="x")
    with pytest.raises(ConfigError, match=r"Own: high = 0.0 must be above 0"):
        dataclasses.replace(Own(), high=0.0)


@dataclass(frozen=True)
class Deeper(Own):
    more: Count = 1


def test_a_class_below_has_the_rules_of_the_one_above() -> None:
    with pytest.raises(ConfigError, match=r"Deeper: more = 0 must be a whole number"):
        Deeper(more=0)
    with pytest.raises(ConfigError, match=r"low = 3.0 must not be above high"):
        Deeper(low=3.0)


@dataclass(frozen=True)
class Loose(Still):
    """What users write: no ranges, defaults that their types do not have, types of their own."""

    clip: float = math.inf
    lr: float = None  # type: ignore[assignment]
    table: dict[str, float] = dataclasses.field(default_factory=dict)
    sizes: tuple[int, ...] = (1, 2)
    start: torch.Tensor | None = None
    anything: Any = None


def test_what_has_no_range_keeps_its_freedom() -> None:
    Loose()
    Loose(clip=-3.0, lr=0.1, table={"a": 1.0}, sizes=(), start=torch.zeros(2), anything=object())
    for name, value in (("clip", math.nan), ("clip", "3"), ("sizes", (1, 2.5))):
        with pytest.raises(ConfigError, match=f"Loose: {name}"):
            Loose(**{name: value})


@pytest.mark.parametrize(
    "whole", [np.int64(3), np.array(3), torch.tensor(3)], ids=["numpy", "array", "tensor"]
)
def test_a_number_of_numpys_or_torchs_becomes_pythons(whole: Any) -> None:
    half = whole / 2
    made = Ranged(count=whole, positive=half, counts=[whole, 2])
    assert (made.count, made.positive, made.counts) == (3, 1.5, [3, 2])
    assert [type(value) for value in (made.count, made.positive, *made.counts)] == [
        int, float, int, int,
    ]  # fmt: skip
    with pytest.raises(ConfigError, match=r"Ranged: count = 1.5 must be a whole number"):
        Ranged(count=half)


def test_a_tensor_without_axes_stays_where_the_type_is_no_number() -> None:
    value = torch.tensor(2.0, requires_grad=True)
    loose = Loose(start=value, anything=value)
    assert loose.start is loose.anything is value


class Mode(enum.StrEnum):
    FAST = "fast"
    SLOW = "slow"


class Depth(enum.IntEnum):
    ONE = 1
    TWO = 2


class Pair(typing.NamedTuple):
    first: int
    second: int


Rate = typing.NewType("Rate", float)


@dataclass(frozen=True)
class Typed(Still):
    mode: Mode | None = None
    depth: Depth = Depth.ONE
    pair: Pair | None = None
    rate: Rate = Rate(0.1)
    thing: object = None
    sizes: typing.Collection[int] = ()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mode", Mode.SLOW),
        ("depth", Depth.TWO),
        ("pair", Pair(3, 4)),
        ("rate", 0.2),
        ("thing", "text"),
        ("sizes", [1, 2]),
    ],
)
def test_a_value_of_an_annotated_class_is_taken_whatever_it_is_built_on(
    name: str, value: Any
) -> None:
    assert getattr(Typed(**{name: value}), name) is value


def test_a_plain_value_is_none_of_a_class() -> None:
    for name in ("mode", "depth"):
        with pytest.raises(ConfigError, match=f"Typed: {name} = 'fast' must be"):
            Typed(**{name: "fast"})


@dataclass(frozen=True)
class Unresolved(Still):
    known: Count = 1
    other: Unknown | None = None


def test_annotations_that_only_a_type_checker_knows_are_no_error() -> None:
    Unresolved(known=3)
    with pytest.raises(ConfigError, match="Unresolved: known = nan"):
        Unresolved(known=math.nan)


@dataclass(frozen=True)
class Older(Still):
    """As algorithms were written before ranges were annotations."""

    steps: int = 3
    lr: float = 0.1
    shares: fields.PerNode = 0.5

    def __post_init__(self) -> None:
        covey.require(self, lr=None, steps=(1, 1e9), shares=(0, 1))


def test_require_still_works() -> None:
    Older(steps=5, lr=0.2, shares=[0.0, 1.0])
    for name, value, rule in (
        ("lr", 0, "above 0"),
        ("steps", 0, "between 1"),
        ("shares", [0.5, 2], "between 0 and 1"),
    ):
        with pytest.raises(ConfigError, match=rf"Older: {name}.* = .* must be {rule}"):
            Older(**{name: value})


@pytest.mark.parametrize("kind", [*ALGORITHMS.values(), Level], ids=lambda kind: kind.__name__)
def test_every_number_of_a_shipped_algorithm_has_a_range_and_its_default_lies_in_it(
    kind: type,
) -> None:
    for name, option in fields.options(kind).items():
        hint = option.hint
        if name in ("sample", "device_sample", "pull"):
            continue
        for arm in fields._arms(hint):
            if arm.hint in (int, float):
                assert arm.rules, name
                assert option.default is None or option.default in arm.rules[0]
                assert arm.rules[0].whole == (arm.hint is int), name


@pytest.mark.parametrize("key", ["parts", "private", "radio", "protocol", "rounds"])
def test_an_array_is_no_option(key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        experiment(CASES["FedAvg"], **{key: np.array([1, 2])})
