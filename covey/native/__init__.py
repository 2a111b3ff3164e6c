"""The native kernel: whole descents of linear stacks on a CPU, and passes over rows on the wire.

`pip install` builds it from rows.c if it finds a compiler; without it everything runs through
torch. COVEY_NATIVE=0 switches it off, COVEY_NATIVE=plain, avx2 or avx512 names the instruction set
instead of the best one.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Numbers = NDArray[np.int64] | NDArray[np.uint64]
Bytes = NDArray[np.uint8]
Small = NDArray[np.int8]
Values = NDArray[np.floating[Any]]

ABI = 6
SETS = ("plain", "avx2", "avx512")  # by number, the best last
DTYPES = (torch.float32, torch.float64)
ACTIVATIONS = (
    "none",
    "relu",
    "tanh",
    "sigmoid",
    "leaky_relu",
    "elu",
    "silu",
    "gelu",
    "gelu_tanh",
)  # by number
LOSSES = ("cross_entropy", "squared_error")
NO_L1, SMOOTH, SOFT = range(3)
MAX_LAYERS = 32
MAX_MOVES = 8

_ERRORS = {
    1: "a batch names an example that is not there",
    2: "a label is not among the model's outputs",
    3: "no memory for the scratch arrays",
    4: f"more than {MAX_LAYERS} layers",
    5: f"more than {MAX_MOVES} moves",
}


_WHOLE, _REAL, _POINTER = ctypes.c_int64, ctypes.c_double, ctypes.c_void_p
_LAYOUT: tuple[tuple[Any, str], ...] = (
    (_WHOLE, "devices width batch batches layers examples_held"),
    (_POINTER, "table"),
    (_WHOLE, "loss"),
    (_POINTER, "rows start anchor linear mask at other"),
    (_WHOLE, "start_stride anchor_stride linear_stride mask_stride at_stride other_stride"),
    (_POINTER, "x y examples weight steps lr lam gamma share"),
    (_REAL, "decay rho linear_scale l2"),
    (_WHOLE, "l1 part_start part_stop fresh factored"),
)
"""`struct work` in rows.c, field by field."""


class NativeWork(ctypes.Structure):
    """One call, as `struct work` in rows.c."""

    _fields_ = [(name, kind) for kind, names in _LAYOUT for name in names.split()]
    arrays: dict[str, Tensor]
    """The arrays that the call reads, by field; they live as long as it."""

    def point(self, field: str, array: Tensor) -> None:
        """Let a field point to an array."""
        self.arrays[field] = array
        setattr(self, field, array.data_ptr())


class NativeAdam(ctypes.Structure):
    """The numbers of a step of Adam, as `struct adam` in rows.c."""

    _fields_ = [
        (name, _REAL) for name in ("beta1", "beta2", "mean_correction", "square_correction")
    ]


@dataclass(frozen=True)
class Library:
    """The loaded kernel and the instruction set it runs on."""

    calls: ctypes.CDLL
    number: int

    @property
    def name(self) -> str:
        """The instruction set."""
        return SETS[self.number]

    def supports(self, name: str) -> bool:
        """Whether this processor has the instruction set."""
        return bool(self.calls.covey_supports(SETS.index(name)))


def status() -> str:
    """The instruction set in use, or why there is none."""
    if isinstance(_library, Library):
        return _library.name
    return f"off: {_library}"


def loaded() -> bool:
    """Whether there is a kernel."""
    return isinstance(_library, Library)


def serves(rows: Tensor) -> bool:
    """Whether the kernel takes such rows: on a CPU, float32 or float64."""
    return isinstance(_library, Library) and rows.device.type == "cpu" and rows.dtype in DTYPES


def descend(work: NativeWork, dtype: torch.dtype) -> None:
    """Run one call; the arrays it points to must be alive."""
    if fault := _call("descend", dtype, ctypes.byref(work)):
        raise _error(fault)


def alternate(moves: Sequence[NativeWork], times: int, dtype: torch.dtype) -> None:
    """Run all moves by turns, `times` times; the arrays they point to must be alive."""
    array = (NativeWork * len(moves))(*moves)
    if fault := _call("alternate", dtype, array, len(moves), times):
        raise _error(fault)


def score(
    work: NativeWork, dtype: torch.dtype, starts: Tensor, counts: Tensor
) -> tuple[Tensor, Tensor]:
    """Right answers and summed loss of each row on its own examples, float64 [n] each.

    The arrays that `work` points to must be alive.
    """
    right = torch.empty(len(starts), dtype=torch.float64)
    loss = torch.empty_like(right)
    if fault := _call("score", dtype, ctypes.byref(work), starts, counts, right, loss):
        raise _error(fault)
    return right, loss


def cut_count(rows: Tensor, threshold: float | None) -> tuple[Tensor, Tensor]:
    """The rows with every |v| <= threshold set to +0.0, and each row's number of non-zeros.

    The number is of values that have any bit set, [n] int64. The rows are new, or the rows
    themselves for a threshold of None. It takes one pass where the kernel is loaded.

    >>> cut_count(torch.tensor([[-3.0, -0.5, 1.0, -0.0]]), 0.5)
    (tensor([[-3.,  0.,  1.,  0.]]), tensor([2]))
    """
    if not serves(rows) or rows.ndim != 2:
        cut = rows
        if threshold is not None:
            cut = torch.nn.functional.hardshrink(rows, threshold)
        whole = torch.int32 if cut.dtype == torch.float32 else torch.int64
        return cut, cut.detach().view(whole).count_nonzero(dim=1)
    values = rows.detach().contiguous()
    counts = torch.empty(len(values), dtype=torch.int64)
    cuts = threshold is not None
    target = torch.empty_like(values) if cuts else None
    limit = float(threshold or 0.0)
    _call("cut_count", values.dtype, values, target, *values.shape, cuts, limit, counts)
    return (rows if target is None else target), counts


def finite(rows: Tensor) -> bool:
    """Whether no value is infinite or not a number."""
    if not serves(rows):
        return bool(torch.isfinite(rows).all())
    values = rows.detach().contiguous()
    return bool(_call("finite", values.dtype, values, values.numel()))


def choose(group: Numbers, keys: Numbers, sizes: Numbers, turns: int, number: Numbers) -> None:
    """The permutation of `draws.choose`, in place on `number`.

    All arrays are contiguous and of 64 bits.
    """
    _call("choose", None, len(number), group, keys, sizes, turns, number)


def normal(states: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """Standard normal numbers [n, width] of nodes whose hashes are `states`, int64 [n].

    They are those of `draws.normal`, to the bit.
    """
    states = states.contiguous()
    out = torch.empty(len(states), width, dtype=dtype)
    _call("normal", dtype, states, len(states), width, out)
    return out


def adam(
    x: Tensor, g: Tensor, moments: tuple[Tensor, Tensor], *, lr: Tensor, numbers: NativeAdam
) -> Tensor:
    """The rows x after a step of Adam along g; the moments change in place.

    All are [n, P], contiguous and of one type; `lr` is float64 [n].
    """
    out = torch.empty_like(x)
    _call("adam", x.dtype, ctypes.byref(numbers), *x.shape, lr, x, g, *moments, out)
    return out


def tanh(x: Tensor) -> Tensor:
    """The kernel's own tanh, which its tests hold to torch's."""
    x = x.contiguous()
    out = torch.empty_like(x)
    _call("tanh", x.dtype, x, out, x.numel())
    return out


def packs() -> bool:
    """Whether the kernel makes and reads messages.

    It does so in the machine's byte order, and messages are little-endian.
    """
    return loaded() and sys.byteorder == "little"


def nonzero(values: Values, bits: Bytes) -> int:
    """How many of the values have any bit set, and into `bits` which, lowest bit first."""
    return _call("bits", values.dtype, values, len(values), bits)


def squeeze(values: Values, bits: Bytes, to: Values) -> None:
    """The values under the bits, as many as `to` holds."""
    _call("squeeze", to.dtype, values, bits, len(values), to, len(to))


def spread(values: Values, bits: Bytes, to: Values) -> None:
    """The reverse of `squeeze`, zeros elsewhere; `values` may lie at any address."""
    _call("spread", to.dtype, values, len(values), bits, len(to), to)


def ones(bits: Bytes, width: int) -> int:
    """How many of the first `width` bits are set."""
    return _call("ones", None, bits, width)


def gap_length(bits: Bytes, width: int) -> int:
    """How many bytes `write_gaps` writes."""
    return _call("gap_length", None, bits, width)


def write_gaps(bits: Bytes, width: int, to: Bytes) -> None:
    """The zeros before each set bit, as numbers of seven bits to a byte."""
    _call("write_gaps", None, bits, width, to)


def read_gaps(gaps: Bytes, sent: int, bits: Bytes, width: int) -> bool:
    """The reverse of `write_gaps`, into bits that are 0.

    False where these bytes are not `sent` gaps within the width, as short as can be.
    """
    return not _call("read_gaps", None, gaps, len(gaps), sent, bits, width)


def nonzero_halves(values: Values, bits: Bytes, *, brain: bool) -> None:
    """Into `bits` which of the values `narrow` would not make 0."""
    _call("half_bits", values.dtype, values, len(values), bits, brain)


def narrow(values: Values, to: Bytes, *, brain: bool) -> None:
    """Two bytes for each value: a half, or bfloat16."""
    _call("narrow", values.dtype, values, to, len(values), brain)


def widen(halves: Bytes, to: Values, *, brain: bool) -> int:
    """The reverse; returns how many are a NaN that `narrow` does not make."""
    return _call("widen", to.dtype, halves, to, len(to), brain)


def blur(values: Values, to: Values, *, brain: bool) -> None:
    """What `narrow` and `widen` leave of the values."""
    _call("blur", values.dtype, values, to, values.size, brain)


def quantise(
    values: Values,
    to: Small,
    scales: Values,
    *,
    block: int,
    levels: int,
    key: int | None,
) -> None:
    """Integers up to `levels`, and the scale of each block.

    Values are rounded to the nearest integer or, with a key, by the draws at that address.
    """
    size = len(values)
    keyed = key is not None
    address = (key or 0) & (1 << 64) - 1
    _call("quantise", values.dtype, values, to, scales, size, block, levels, keyed, address)


def dequantise(
    integers: Small,
    scales: Values,
    to: Values,
    peaks: Bytes,
    *,
    block: int,
) -> None:
    """Integers times scales, and the largest magnitude among the integers of each block."""
    _call("dequantise", to.dtype, integers, scales, to, peaks, len(to), block)


def pack_nibbles(integers: Small, to: Bytes) -> None:
    """Two to a byte, the low half first."""
    _call("pack_nibbles", None, integers, to, len(integers))


def unpack_nibbles(packed: Bytes, to: Small) -> None:
    """The reverse."""
    _call("unpack_nibbles", None, packed, to, len(to))


def join(parts: Sequence[Bytes], size: int) -> bytes:
    """The parts one after the other, `size` bytes in all, in large pages.

    From a few megabytes on it is faster than b"".join.
    """
    assert isinstance(_library, Library)
    # New bytes that are not written yet, and that nobody else has.
    message: bytes = ctypes.pythonapi.PyBytes_FromStringAndSize(None, size)
    address = ctypes.pythonapi.PyBytes_AsString(message)
    _library.calls.covey_large_pages(address, size)
    for part in parts:
        ctypes.memmove(address, part.ctypes.data, len(part))
        address += len(part)
    return message


def _call(name: str, kind: torch.dtype | np.dtype[Any] | None, *arguments: Any) -> int:
    """Call the kernel for numbers of a type, or over bytes alone; arrays go by their addresses."""
    assert isinstance(_library, Library)
    plain: list[Any] = []
    if isinstance(kind, torch.dtype):
        plain += [_library.number, DTYPES.index(kind)]
    elif kind is not None:
        plain += [_library.number, int(kind.itemsize == 8)]
    for argument in arguments:
        if isinstance(argument, Tensor):
            plain.append(argument.data_ptr())
        elif isinstance(argument, np.ndarray):
            assert argument.flags.c_contiguous
            plain.append(argument.ctypes.data)
        else:
            plain.append(argument)
    return int(getattr(_library.calls, f"covey_{name}")(*plain))


def _error(fault: int) -> Exception:
    """The error of this number."""
    kind = MemoryError if fault == 3 else IndexError
    return kind(f"the compiled kernel stopped: {_ERRORS[fault]}.")


def _load(wish: str) -> Library | str:
    """The kernel, or why not."""
    if wish == "0":
        return "COVEY_NATIVE=0"
    if wish and wish not in SETS:
        return f"COVEY_NATIVE={wish} is none of 0, {', '.join(SETS)}"
    file = Path(__file__).with_name(f"_rows{EXTENSION_SUFFIXES[-1]}")  # named after no interpreter
    if not file.exists():
        return (
            "no compiled kernel was found, so torch does its work; "
            "install a C compiler and then covey again"
        )
    try:
        calls = ctypes.CDLL(str(file))
        _declare(calls)
        version = calls.covey_abi()
    except (OSError, AttributeError) as error:
        return f"{file.name} does not load ({error}); install covey again"
    if version != ABI:
        return f"{file.name} is version {version}, not {ABI}; install covey again"
    source = _source()
    built_from = calls.covey_source().decode()
    if source not in (None, built_from):
        fault = f"{file.name} was built from another rows.c ({built_from}, not {source})"
        return f"{fault}; install covey again"
    for name in reversed(SETS):
        number = SETS.index(name)
        if wish in ("", name) and calls.covey_supports(number):
            return Library(calls, number)
    return f"this processor has no {wish}"


def _source() -> str | None:
    """A hash of the kernel's source, as setup.py makes it.

    None where only the library was installed.
    """
    digest = hashlib.sha256()
    for name in ("rows.c", "rows.h", "normal.h"):
        file = Path(__file__).with_name(name)
        if not file.exists():
            return None
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


_KINDS: dict[str, list[Any]] = {
    "typed": [ctypes.c_int, ctypes.c_int],  # the instruction set, and the type of the numbers
    "int": [ctypes.c_int],
    "size": [_WHOLE],
    "real": [_REAL],
    "key": [ctypes.c_uint64],
    "pointer": [_POINTER],
}
_SIGNATURES = {
    "supports": "int",
    "descend": "typed pointer",
    "alternate": "typed pointer size size",
    "score": "typed pointer pointer pointer pointer pointer",
    "cut_count": "typed pointer pointer size size int real pointer",
    "finite": "typed pointer size",
    "tanh": "typed pointer pointer size",
    "adam": "typed pointer size size pointer pointer pointer pointer pointer pointer",
    "normal": "typed pointer size size pointer",
    "choose": "size pointer pointer pointer size pointer",
    "bits": "typed pointer size pointer",
    "squeeze": "typed pointer pointer size pointer size",
    "spread": "typed pointer size pointer size pointer",
    "ones": "pointer size",
    "gap_length": "pointer size",
    "write_gaps": "pointer size pointer",
    "read_gaps": "pointer size size pointer size",
    "half_bits": "typed pointer size pointer int",
    "narrow": "typed pointer pointer size int",
    "widen": "typed pointer pointer size int",
    "blur": "typed pointer pointer size int",
    "quantise": "typed pointer pointer pointer size size int int key",
    "dequantise": "typed pointer pointer pointer pointer size size",
    "pack_nibbles": "pointer pointer size",
    "unpack_nibbles": "pointer pointer size",
    "large_pages": "pointer size",
}
"""The arguments of the kernel's functions."""


def _declare(calls: ctypes.CDLL) -> None:
    """Tell ctypes the types of the kernel's functions."""
    size, pointer = _WHOLE, _POINTER
    for name, arguments in _SIGNATURES.items():
        kinds = [kind for word in arguments.split() for kind in _KINDS[word]]
        getattr(calls, f"covey_{name}").argtypes = kinds
    for name in ("bits", "squeeze", "spread", "ones", "gap_length", "write_gaps", "widen"):
        getattr(calls, f"covey_{name}").restype = size
    calls.covey_source.restype = ctypes.c_char_p
    new_bytes = ctypes.pythonapi.PyBytes_FromStringAndSize
    new_bytes.restype = ctypes.py_object
    new_bytes.argtypes = [pointer, ctypes.c_ssize_t]
    address = ctypes.pythonapi.PyBytes_AsString
    address.restype = pointer
    address.argtypes = [ctypes.py_object]


_library: Library | str = _load(os.environ.get("COVEY_NATIVE", ""))
