"""Labels as they stand in a file become class numbers or targets."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
import torch
from torch import Tensor

from covey.data.shards import some
from covey.data.tables.tables import complaint, is_number, number, unusable
from covey.errors import DataError

Complain = Callable[[int, str], None]  # takes a row and what is wrong with its label

_TRUTHS = {"true": 1.0, "false": 0.0}
_WHOLE = re.compile(r"[+-]?[0-9]+")
_ODD = {
    "text": "not a number as others are",
    "fraction": "a number where others are text",
}
YES_OR_NO = ("0.0", "1.0")
"""What a library writes for 0 and 1 in a column of floats: two classes."""


@dataclass(frozen=True, eq=False)
class LabelTargets:
    """What a model is to say of each example."""

    y: Tensor  # [rows] int64 class numbers, or float32; of several columns [rows, columns]
    classes: int | None = None  # None: regression
    names: tuple[str, ...] = ()  # of the classes
    labels: tuple[str, ...] = ()  # of the columns, where there are several
    yes_no: bool = False  # whether the columns are yes-or-no labels


def classes_of(labels: Sequence[str], complain: Complain) -> Sequence[str] | None:
    """The classes among labels, in order, or None where labels are fractions and so not classes.

    >>> labels = (["10", "9", "10"], ["ok", "9", "hot"], ["1", "2.5"], ["1.0", "0.0"])
    >>> tuple(classes_of(texts, print) for texts in labels)
    (['9', '10'], ['9', 'hot', 'ok'], None, ('0.0', '1.0'))

    Text among fractions, or a fraction among text, is a mistake: the rarer kind is complained of.
    """
    kinds = {label: "fraction" if is_number(label) else "text" for label in set(labels)}
    kinds |= {label: "whole" for label in kinds if _WHOLE.fullmatch(label)}
    have = Counter(map(kinds.__getitem__, labels))
    if have["text"] and have["fraction"]:
        odd = min("text", "fraction", key=have.__getitem__)
        for row, label in enumerate(labels):
            if kinds[label] == odd:
                complain(row, f"label {label!r} is {_ODD[odd]}")
    if have["text"]:
        return sorted(kinds)
    # As Decimal, because Python makes no int of thousands of digits.
    if have["fraction"]:
        return YES_OR_NO if kinds.keys() == set(YES_OR_NO) else None
    return sorted(kinds, key=lambda label: (Decimal(label), label))


def doubt(column: str, classes: Sequence[str], rows: int) -> str:
    """What to ask where classes are so many whole numbers that they may be numbers; else empty."""
    count = len(classes)
    few = count <= 10 or (count <= 50 and 20 * count <= rows)
    if few or not all(map(_WHOLE.fullmatch, classes)):
        return ""
    return (
        f"the label column {column!r} has {count} different whole numbers in {rows} rows, and "
        "nothing says what they are; add one of these lines at the top of the file, or as an "
        'argument of Experiment:\n  loss = "mse"  # they are numbers to predict\n'
        f'  loss = "cross_entropy"  # they are {count} classes'
    )


def targets(
    labels: Sequence[str], classes: Sequence[str] | None, complain: Complain
) -> LabelTargets:
    """The number of each label among the classes, or the number it is where there are none.

    >>> targets(["hot", "ok", "hot"], ["ok", "hot"], print).y, targets(["2", "2.5"], None, print).y
    (tensor([1, 0, 1]), tensor([2.0000, 2.5000]))
    """
    if classes is None:
        y = np.array(list(map(number, labels)))
        for row in np.flatnonzero(unusable(y)).tolist():
            complain(row, f"label {complaint(labels[row])}")
        return LabelTargets(torch.from_numpy(y).to(torch.float32))
    code = {name: index for index, name in enumerate(classes)}
    numbers = [code.get(label, -1) for label in labels]
    for row, label in enumerate(labels):
        if numbers[row] < 0:
            complain(row, f"label {label!r} is not among the classes {some(classes)}")
    return LabelTargets(torch.tensor(numbers), len(classes), tuple(classes))


def several(
    columns: Mapping[str, Sequence[str]], complain: Complain, *, numbers: bool | None = None
) -> LabelTargets:
    """The targets of several label columns, [rows, columns]: yes-or-no labels, or numbers.

    Columns of 0 and 1, or of true and false, are labels, unless `numbers`. Columns of both kinds
    are refused.

    >>> several({"hot": ["0", "1"], "wet": ["1", "1"]}, print).y.tolist()
    [[0.0, 1.0], [1.0, 1.0]]
    >>> several({"heat": ["0.5", "2"], "flow": ["1", "7"]}, print).yes_no
    False
    """
    yes_no = _are_yes_or_no(columns) if numbers is None else not numbers
    values = []
    for name, cells in columns.items():
        column = np.array([_target(cell) for cell in cells])
        wrong = unusable(column)
        if yes_no:
            wrong |= (column != 0) & (column != 1)
        for row in np.flatnonzero(wrong).tolist():
            why = complaint(cells[row])
            if yes_no and is_number(cells[row]):
                why = f"is {cells[row]}, not 0 or 1"
            complain(row, f"column {name!r} {why}")
        values.append(column)
    y = torch.from_numpy(np.stack(values, axis=1)).to(torch.float32)
    return LabelTargets(y, labels=tuple(columns), yes_no=yes_no)


def _target(cell: str) -> float:
    """The number in a cell; true is 1 and false is 0."""
    return _TRUTHS.get(cell.lower(), number(cell))


def _are_yes_or_no(columns: Mapping[str, Sequence[str]]) -> bool:
    """Whether all columns are yes-or-no labels; an error if only some of them are."""
    names = ", ".join(map(repr, columns))
    labels: list[str] = []
    others: list[str] = []
    for name, cells in columns.items():
        values = [_target(cell) for cell in set(cells)]
        present = [value for value in values if not math.isnan(value)]
        if 2 * len(present) < len(values):
            raise DataError(
                f"label lists {names}, but {name!r} holds words, such as {cells[0]!r}; several "
                "label columns hold 0 and 1, or numbers, so give one column of classes, or leave "
                "this one out."
            )
        kind = labels if set(present) <= {0.0, 1.0} else others
        kind.append(name)
    if labels and others:
        raise DataError(
            f"label lists {names}: {some(labels)} holds 0 and 1, but {some(others)} other numbers; "
            'give columns of one kind, or set loss = "squared_error" to predict all as numbers.'
        )
    return not others
