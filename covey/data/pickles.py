"""Python's own format of the CIFAR batches, read without running anything that such a file asks to run.

A pickle is a program. This reader gives it lists, dictionaries, text and numbers, and in place of numpy's functions
stand-ins that only note what they are given; whatever else a file asks for, it is refused.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from covey.errors import DataError


def batch(data: bytes, name: str) -> dict[str, Any]:
    """The dictionary in a pickled batch, its arrays of bytes as numpy arrays; `name` is for the message.

    >>> batch(pickle.dumps({"labels": [3, 1]}, protocol=2), "data_batch_1")
    {'labels': [3, 1]}
    """
    try:
        found = _Reader(data).load()
        if not isinstance(found, dict):
            raise TypeError(f"it holds a {type(found).__name__}, not a dictionary")
        return {_text(key): value.array() if isinstance(value, _Array) else value for key, value in found.items()}
    except Exception as error:  # a damaged pickle can fail in any way
        raise DataError(f"{name} is not a CIFAR batch: {error}; get the official file again.") from error


class _Reader(pickle.Unpickler):
    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data), encoding="bytes")  # the official files were written by Python 2

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no batch needs and which is not run")
        return _ALLOWED[module, name]


class _StandIns:
    """What a pickle is given for numpy's functions; as bound methods, since it could set attributes on plain ones."""

    def array(self, *_: Any) -> _Array:
        return _Array()

    def type(self, code: Any, *_: Any) -> _Type:
        return _Type(_text(code))

    def bytes(self, text: str, encoding: Any) -> bytes:
        """Python 3 writes bytes as Latin-1 text where Python 2 is to read it."""
        if _text(encoding) not in ("latin1", "latin-1"):
            raise pickle.UnpicklingError(f"it encodes by {encoding!r}, which no batch does")
        return text.encode("latin-1")


_ALLOWED: dict[tuple[str, str], Callable[..., Any] | str] = {
    ("numpy.core.multiarray", "_reconstruct"): _StandIns().array,
    ("numpy._core.multiarray", "_reconstruct"): _StandIns().array,
    ("numpy", "ndarray"): "ndarray",
    ("numpy", "dtype"): _StandIns().type,
    ("_codecs", "encode"): _StandIns().bytes,
}


@dataclass
class _Type:
    code: str

    def __setstate__(self, state: Any) -> None:
        """Byte order and the like: a byte has none."""


class _Array:
    state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def array(self) -> npt.NDArray[np.uint8]:
        _, shape, kind, by_columns, raw = self.state
        if not isinstance(kind, _Type) or kind.code not in ("u1", "uint8"):
            raise TypeError(f"it has an array of {getattr(kind, 'code', kind)}, not of bytes")
        return np.frombuffer(raw, dtype=np.uint8).reshape(shape, order="F" if by_columns else "C")


def _text(name: Any) -> str:
    return name.decode("latin-1") if isinstance(name, bytes) else str(name)
