"""New examples, in the units of a run's data, as the inputs of its models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from covey.data.arrays.windows import ids as token_numbers
from covey.data.shards import some
from covey.data.tables.encoding import named_columns
from covey.data.tables.files import token_ids
from covey.data.units import in_units
from covey.errors import DataError

if TYPE_CHECKING:
    from covey.files.data_form import DataForm

Array = npt.NDArray[Any]


def inputs(examples: Any, form: DataForm, dtype: torch.dtype) -> Tensor:
    """Examples as the model takes them: columns in order, one shape, scaled."""
    if isinstance(examples, str):
        examples = [examples]
    is_list = isinstance(examples, list | tuple) and len(examples) > 0
    if form.tokens is not None and is_list and all(isinstance(text, str) for text in examples):
        examples = _encoded(examples, form)
    has_columns = isinstance(examples, Mapping) or hasattr(examples, "columns")
    if form.encoding is not None and has_columns:
        examples = form.encoding.inputs(named_columns(examples, form.encoding))
    values = _array(examples, form.names.features)
    shape = tuple(form.shape)
    if values.shape == shape:
        values = values[None]
    fits = values.ndim > 0 and values.size == len(values) * int(np.prod(shape))
    if not fits:
        raise DataError(
            f"examples of shape {values.shape[1:]}, but this run was trained on {shape}."
        )
    if not len(values):
        raise DataError("there are no examples to predict; give at least one.")
    values = values.reshape(len(values), *shape)
    if form.tokens is None:
        return _scaled(values, form, dtype)
    x = token_ids(torch.from_numpy(np.ascontiguousarray(values)))
    if int(x.min()) < 0 or int(x.max()) >= form.tokens:
        raise DataError(
            f"the token ids are {int(x.min())} to {int(x.max())}, but this run knows "
            f"0 to {form.tokens - 1}."
        )
    return x


def with_units(network: nn.Module, form: DataForm) -> nn.Module:
    """A network of a run that takes and answers values in the units of the data."""
    return in_units(network, form.scaling, form.encoding, form.target, form.names.features)


def _encoded(texts: Sequence[str], form: DataForm) -> Array:
    """The token ids of texts, [n, T]; a short one is filled up with id 0 at its end."""
    tokens = form.names.tokens
    length = form.shape[0]
    if not tokens:
        raise DataError("the tokens of this run have no characters; give token ids.")
    out = np.zeros((len(texts), length), dtype=np.int64)
    for row, text in enumerate(texts):
        if len(text) > length:
            raise DataError(
                f"text {row} has {len(text)} characters, but this run was trained on "
                f"{length}; give the last {length} of them."
            )
        out[row, : len(text)] = token_numbers(text, tokens)
    return out


def _scaled(values: Array, form: DataForm, dtype: torch.dtype) -> Tensor:
    """Measured values [n, ...] as inputs, by the scaling of the training data."""
    measured = torch.from_numpy(np.ascontiguousarray(values))
    x = (measured if form.scaling is None else form.scaling(measured)).to(dtype)
    bad = (~torch.isfinite(x).flatten(1)).nonzero()
    if len(bad):
        row, column = bad[0].tolist()
        name = f"value {column}"
        if form.names.features:
            name = f"column {form.names.features[column]!r}"
        raise DataError(
            f"{name} of example {row} is {values.reshape(len(values), -1)[row, column]}, which is "
            "no finite number of this run's type; remove or fill it first."
        )
    return x


def _array(examples: Any, features: Sequence[str]) -> Array:
    """The numbers of an array, a tensor, or the named columns of a DataFrame or a dict.

    >>> _array({"wear": [1, 2], "heat": [3, 4]}, ["heat", "wear"])
    array([[3., 1.],
           [4., 2.]])
    """
    header = getattr(examples, "columns", None)
    if isinstance(examples, Mapping):
        header = examples
    if header is None or not features:
        return _numbers(examples, "the examples")
    there = [str(column) for column in header]
    missing = [name for name in features if name not in there]
    if missing:
        lacking = f"the examples lack the column{'s' if len(missing) > 1 else ''} {some(missing)}"
        raise DataError(f"{lacking}; this run was trained on {', '.join(features)}.")
    columns = [_numbers(examples[name], f"column {name!r} of the examples") for name in features]
    return np.stack([np.atleast_1d(column) for column in columns], axis=-1)


def _numbers(values: Any, name: str) -> Array:
    """Numbers in the type they are scaled in.

    Pixels stay bytes and float32 stays float32, as in training.
    """
    if isinstance(values, Tensor):
        values = values.detach().cpu().numpy()
    try:
        array = np.asarray(values)
        if array.dtype in (np.uint8, np.float32):
            return array
        return array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"{name} are not numbers: {error}.") from error
