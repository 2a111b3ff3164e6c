"""Examples without labels, for a finished run to predict.

They have the run's features, and may name their devices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from covey.data.encoding import Encoding
from covey.data.table_readers import read
from covey.data.tables import Columns, Faults, Table
from covey.errors import DataError


def unlabelled(
    path: Path,
    columns: Columns,
    *,
    features: Sequence[str],
    shape: tuple[int, ...],
    faults: Faults,
    encoding: Encoding | None = None,
) -> Table:
    """The rows of a file in the form of the training data.

    Columns of labels, edges and parts are not read. `features` are the columns that were trained
    on, in order; empty where they have no names. Then all columns are features that are not called
    as `columns` says. An `encoding` makes inputs of words and gaps as it did in training.
    """
    if not path.exists():
        raise DataError(f"there is no file {path}; paths start at the current folder.")
    named = path.suffix.lower() != ".npz" and bool(features)
    if not named:
        encoding = None  # an array x has the columns of inputs
    wanted = replace(columns, features=tuple(features) if named else None, labelled=False)
    wanted = replace(wanted, text=())  # without an encoding, every feature was a number
    if encoding is not None:
        wanted = replace(
            wanted,
            features=encoding.features,
            text=encoding.text,
            missing=encoding.missing,
        )
    table = read(path, wanted, faults)
    if encoding is not None:
        faults.refuse("correct or remove them")
        table = encoding.applied(table)
    have = table.x.shape[1:]
    if math.prod(have) != math.prod(shape):
        raise DataError(f"{path} has examples of shape {have}, but the run was trained on {shape}.")
    return replace(table, x=table.x.reshape(len(table.x), *shape))
