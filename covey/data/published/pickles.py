"""The CIFAR batches in Python's own format, read without running code from the file.

A pickle is a program. This reader runs the few operations that the official files use: they make
lists, dictionaries, text and numbers, and in place of numpy's functions there are stand-ins that
only note what they are given. Whatever else a file asks for, it is refused.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from covey.errors import DataError


def batch(data: bytes, name: str) -> dict[str, Any]:
    """The dictionary in a pickled batch, its bytes as numpy arrays.

    `name` is for error messages.

    >>> batch(pickle.dumps({"labels": [3, 1]}, protocol=2), "data_batch_1")
    {'labels': [3, 1]}
    """
    try:
        content = _Reader(data).load()
        if not isinstance(content, dict):
            raise TypeError(f"it holds a {type(content).__name__}, not a dictionary")
        return {
            _text(key): value.array() if isinstance(value, _Array) else value
            for key, value in content.items()
        }
    except Exception as error:  # a damaged pickle can fail in any way
        reason = str(error) or type(error).__name__
        if isinstance(error, KeyError):  # the number of an operation, or of something to get again
            reason = f"it asks for {error}, which no batch has"
        raise DataError(
            f"{name} is not a CIFAR batch: {reason}; download the official file again."
        ) from error


# What pickle itself writes of dictionaries of lists, text, bytes, numbers and arrays. There are no
# sets. GET puts the same thing on the stack again, so that lists of lists may be far larger than
# their file: who reads one must not multiply it out.
_OPERATIONS = {
    "PROTO", "FRAME", "STOP", "MARK", "GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD", "EMPTY_DICT",
    "DICT", "SETITEM", "SETITEMS", "EMPTY_LIST", "LIST", "APPEND", "APPENDS", "EMPTY_TUPLE",
    "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "NONE", "NEWTRUE", "NEWFALSE", "INT", "BININT",
    "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "STRING", "BINSTRING",
    "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES",
    "SHORT_BINBYTES", "BINBYTES8", "PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE", "GET", "BINGET",
    "LONG_BINGET",
}  # fmt: skip
_ALL = pickle._Unpickler.dispatch
_CODES = {ord(operation.code): operation.name for operation in pickletools.opcodes}


# The one written in Python: it keeps what a file numbers in a dictionary, where the one written in
# C makes a list as long as the largest number, 2 GB for a file of 9 bytes.
class _Reader(pickle._Unpickler):
    stack: list[Any]
    pop_mark: Callable[[], list[Any]]

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data), encoding="bytes")  # Python 2 wrote the official files

    def set_item(self) -> None:
        value = self.stack.pop()
        key = self.stack.pop()
        self.put([key, value])

    def set_items(self) -> None:
        self.put(self.pop_mark())

    def dictionary(self) -> None:
        items = self.pop_mark()
        self.stack.append({})
        self.put(items)

    def put(self, items: list[Any]) -> None:
        """Keys and values, in turn, into the dictionary on the stack."""
        table = self.stack[-1]
        if not isinstance(table, dict):
            raise pickle.UnpicklingError(f"it sets items of a {type(table).__name__}")
        for key, value in zip(items[::2], items[1::2], strict=True):
            # A hundred bytes can make tuples of tuples whose hash takes years.
            if not isinstance(key, str | bytes):
                raise pickle.UnpicklingError(
                    f"it has a key that is a {type(key).__name__}, not text"
                )
            table[key] = value

    dispatch: ClassVar[dict[int, Callable[..., None]]] = {
        **{code: run for code, run in _ALL.items() if _CODES[code] in _OPERATIONS},
        pickle.SETITEM[0]: set_item,
        pickle.SETITEMS[0]: set_items,
        pickle.DICT[0]: dictionary,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(
                f"it asks for {module}.{name}, which no batch needs and which is not run"
            )
        return _ALLOWED[module, name]


class _StandIns:
    """What a pickle gets in place of numpy's functions.

    They are bound methods, because a pickle could set attributes on plain functions.
    """

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
