"""A map-style torch `Dataset` of pairs (x, y), read into arrays once."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

from covey.errors import DataError, shown


def arrays_of(dataset: Dataset[Any], name: str) -> tuple[Any, Any]:
    """All x and all y of a Dataset, in its order.

    The tensors of a `TensorDataset`, or of a `Subset` of one, are taken whole. Any other Dataset is
    read example by example, its transforms included.

    >>> tensors = TensorDataset(torch.tensor([[1.0], [2.0]]), torch.tensor([0, 1]))
    >>> arrays_of(Subset(tensors, [1]), "device 0")
    (tensor([[2.]]), tensor([1]))
    """
    tensors = _tensors(dataset)
    if tensors is None:
        examples = [_example(dataset, number, name) for number in range(_length(dataset, name))]
        return _stacked([x for x, _ in examples], name), _listed([y for _, y in examples])
    if len(tensors) != 2:
        raise DataError(f"{name} has a TensorDataset of {len(tensors)} tensors; give x and y.")
    return tensors[0], tensors[1]


def _tensors(dataset: Dataset[Any]) -> tuple[Tensor, ...] | None:
    """The tensors behind a Dataset, None where examples have to be asked for one by one."""
    # Only the classes themselves: a subclass may change what an example is.
    if type(dataset) is TensorDataset:
        return dataset.tensors
    if type(dataset) is Subset:
        inner = _tensors(dataset.dataset)
        if inner is not None:
            index = torch.as_tensor(dataset.indices, dtype=torch.int64)
            return tuple(tensor[index] for tensor in inner)
    return None


def _length(dataset: Any, name: str) -> int:
    streamed = isinstance(dataset, IterableDataset)
    if streamed or not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise DataError(
            f"{name} is a {type(dataset).__name__} without length or positions; "
            "give a map-style Dataset, or arrays (x, y)."
        )
    return len(dataset)


def _example(dataset: Any, number: int, name: str) -> tuple[Any, Any]:
    try:
        example = dataset[number]
    except Exception as error:  # it is the user's code
        raise DataError(
            f"{name}: example {number} of its {type(dataset).__name__} cannot be read "
            f"({type(error).__name__}: {error}); correct the Dataset or its transform."
        ) from error
    if not isinstance(example, list | tuple) or len(example) != 2:
        raise DataError(
            f"{name}: example {number} of its {type(dataset).__name__} is {shown(example)}; "
            "give a Dataset of pairs (x, y)."
        )
    return example[0], example[1]


def _stacked(values: list[Any], name: str) -> Any:
    """The features of all examples in one array; they may be tensors, arrays or images."""
    if not all(isinstance(value, Tensor) for value in values):
        values = [np.asarray(value) for value in values]
    for number, value in enumerate(values):
        if value.shape != values[0].shape:
            raise DataError(
                f"{name}: x of example 0 has shape {tuple(values[0].shape)}, "
                f"of example {number} {tuple(value.shape)}; "
                "give the Dataset a transform that makes them alike."
            )
    if not values:
        return np.empty(0)
    if isinstance(values[0], Tensor):
        return torch.stack(values)
    return np.stack(values)


def _listed(values: list[Any]) -> Any:
    """The labels of all examples, a tensor or a list of Python values."""
    if values and all(isinstance(value, Tensor) for value in values):
        shapes = {value.shape for value in values}
        if len(shapes) == 1:
            return torch.stack(values)
    return [value.tolist() if isinstance(value, Tensor) else value for value in values]
