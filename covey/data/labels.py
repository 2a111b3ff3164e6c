"""Labels as they stand in a file become class numbers or targets."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
import torch
from torch import Tensor

from covey.data.shards import some
from covey.data.tables import complaint, is_number, number, unusable

Complain = Callable[[int, str], None]  # takes a row and what is wrong with its label

_WHOLE = re.compile(r"[+-]?[0-9]+")


@dataclass(frozen=True, eq=False)
class Targets:
    """What a model is to say of each example."""

    y: Tensor  # [rows] int64 class numbers, or float32
    classes: int | None = None  # None: regression
    names: tuple[str, ...] = ()  # of the classes


def classes_of(labels: Sequence[str], complain: Complain) -> Sequence[str] | None:
    """The classes among labels, in order, or None where labels are fractions and so not classes.

    >>> labels = (["10", "9", "10"], ["ok", "9", "hot"], ["1", "2.5"])
    >>> tuple(classes_of(texts, print) for texts in labels)
    (['9', '10'], ['9', 'hot', 'ok'], None)

    Text among fractions, or a fraction among text, is a mistake: the rarer kind is complained of.
    """
    kinds = {label: _kind(label) for label in set(labels)}
    have = Counter(map(kinds.__getitem__, labels))
    if have["text"] and have["fraction"]:
        odd = min("text", "fraction", key=have.__getitem__)
        for row in [row for row, label in enumerate(labels) if kinds[label] == odd]:
            complain(row, f"label {labels[row]!r} is {_ODD[odd]}")
    if have["text"]:
        return sorted(kinds)
    # As Decimal, because Python makes no int of thousands of digits.
    if have["fraction"]:
        return None
    return sorted(kinds, key=lambda label: (Decimal(label), label))


def targets(labels: Sequence[str], classes: Sequence[str] | None, complain: Complain) -> Targets:
    """The number of each label among the classes, or the number it is where there are none.

    >>> targets(["hot", "ok", "hot"], ["ok", "hot"], print).y, targets(["2", "2.5"], None, print).y
    (tensor([1, 0, 1]), tensor([2.0000, 2.5000]))
    """
    if classes is None:
        return _numbers(labels, complain)
    code = {name: index for index, name in enumerate(classes)}
    numbers = [code.get(label, -1) for label in labels]
    for row in [row for row, index in enumerate(numbers) if index < 0]:
        complain(
            row,
            f"label {labels[row]!r} is not among the classes {some(classes)}",
        )
    return Targets(torch.tensor(numbers), len(classes), tuple(classes))


def _numbers(labels: Sequence[str], complain: Complain) -> Targets:
    y = np.array(list(map(number, labels)))
    for row in np.flatnonzero(unusable(y)).tolist():
        complain(row, f"label {complaint(labels[row])}")
    return Targets(torch.from_numpy(y).to(torch.float32))


_ODD = {
    "text": "not a number as others are",
    "fraction": "a number where others are text",
}


def _kind(label: str) -> str:
    if _WHOLE.fullmatch(label):
        return "whole"
    return "fraction" if is_number(label) else "text"
