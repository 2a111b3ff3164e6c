"""The compiled kernel, where there is one: whole descents of linear stacks on a CPU, and passes
over rows on the wire.

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

ABI = 5
SETS = ("plain", "avx2", "avx512")  # by number, the best last
DTYPES = (torch.float32, torch.float64)
ACTIVATIONS = ("none", "relu", "tanh", "sigmoid")  # by number
LOSSES = ("cross_entropy", "squared_error")
NO_L1, SMOOTH, SOFT = range(3)
MAX_LAYERS = 32

_ERRORS = {
    1: "a batch names an example that is not there",
    2: "a label is not among the model's outputs",
    3: "no memory for the scratch arrays",
    4: f"more than {MAX_LAYERS} layers",
}


class NativeWork(ctypes.Structure):
    """One call, field by field as `struct work` in rows.c."""

    _fields_ = [
        *(
            (name, ctypes.c_int64)
            for name in ("devices", "width", "batch", "batches", "layers", "examples_held")
        ),
        ("table", ctypes.c_void_p),
        ("loss", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("rows", "start", "anchor", "linear", "mask")),
        *(
            (name, ctypes.c_int64)
            for name in ("start_stride", "anchor_stride", "linear_stride", "mask_stride")
        ),
        *(
            (name, ctypes.c_void_p)
            for name in ("x", "y", "examples", "weight", "steps", "lr", "lam", "gamma")
        ),
        *((name, ctypes.c_double) for name in ("decay", "rho")),
        *((name, ctypes.c_int64) for name in ("l1", "part_start", "part_stop", "factored")),
    ]


@dataclass(frozen=True)
class Library:
    """The loaded kernel and the instruction set it runs on."""

    calls: ctypes.CDLL
    number: int

    @property
    def name(self) -> str:
        return SETS[self.number]

    def supports(self, name: str) -> bool:
        """Whether this processor has the instruction set."""
        return bool(self.calls.covey_supports(SETS.index(name)))


def status() -> str:
    """The instruction set in use, or why there is none."""
    return _library.name if isinstance(_library, Library) else f"off: {_library}"


def loaded() -> bool:
    """Whether there is a kernel."""
    return isinstance(_library, Library)


def serves(rows: Tensor) -> bool:
    """Whether the kernel takes such rows: on a CPU, float32 or float64."""
    return isinstance(_library, Library) and rows.device.type == "cpu" and rows.dtype in DTYPES


def descend(work: NativeWork, dtype: torch.dtype) -> None:
    """Run one call; the arrays it points to must be alive."""
    assert isinstance(_library, Library)
    _raise(_library.calls.covey_descend(_library.number, DTYPES.index(dtype), ctypes.byref(work)))


def score(
    work: NativeWork,
    dtype: torch.dtype,
    starts: Tensor,
    counts: Tensor,
) -> tuple[Tensor, Tensor]:
    """Right answers and summed loss of each row on its own examples, float64 [n] each; what `work`
    points to must be alive.
    """
    assert isinstance(_library, Library)
    right, loss = (torch.empty(len(starts), dtype=torch.float64) for _ in range(2))
    at = (tensor.data_ptr() for tensor in (starts, counts, right, loss))
    _raise(
        _library.calls.covey_score(_library.number, DTYPES.index(dtype), ctypes.byref(work), *at)
    )
    return right, loss


def cut_count(rows: Tensor, threshold: float | None) -> tuple[Tensor, Tensor]:
    """The rows with every |v| <= threshold set to +0.0, and how many values of each have any bit
    set, [n] int64.

    New rows; the rows themselves for None. In one pass where the kernel is loaded.

    >>> cut_count(torch.tensor([[-3.0, -0.5, 1.0, -0.0]]), 0.5)
    (tensor([[-3.,  0.,  1.,  0.]]), tensor([2]))
    """
    if not serves(rows) or rows.ndim != 2:
        out = rows if threshold is None else torch.nn.functional.hardshrink(rows, threshold)
        return out, out.detach().view(
            torch.int32 if out.dtype == torch.float32 else torch.int64
        ).count_nonzero(dim=1)
    assert isinstance(_library, Library)
    here = rows.detach().contiguous()
    out = rows if threshold is None else torch.empty_like(here)
    counts = torch.empty(len(here), dtype=torch.int64)
    to = None if threshold is None else out.data_ptr()
    cut = (0, 0.0) if threshold is None else (1, float(threshold))
    twice = DTYPES.index(here.dtype)
    _library.calls.covey_cut_count(
        _library.number, twice, here.data_ptr(), to, *here.shape, *cut, counts.data_ptr()
    )
    return out, counts


def finite(rows: Tensor) -> bool:
    """Whether no value is infinite or not a number."""
    if not serves(rows):
        return bool(torch.isfinite(rows).all())
    assert isinstance(_library, Library)
    here = rows.detach().contiguous()
    return bool(
        _library.calls.covey_finite(
            _library.number, DTYPES.index(here.dtype), here.data_ptr(), here.numel()
        )
    )


def choose(
    group: Numbers,
    keys: Numbers,
    sizes: Numbers,
    turns: int,
    number: Numbers,
) -> None:
    """The permutation of `draws.choose`, in place on `number`; all arrays are contiguous and of 64
    bits.
    """
    assert isinstance(_library, Library)
    given = (group.ctypes.data, keys.ctypes.data, sizes.ctypes.data)
    _library.calls.covey_choose(len(number), *given, turns, number.ctypes.data)


def tanh(x: Tensor) -> Tensor:
    """The kernel's own tanh, which its tests hold to torch's."""
    assert isinstance(_library, Library)
    x = x.contiguous()
    out = torch.empty_like(x)
    _library.calls.covey_tanh(
        _library.number, DTYPES.index(x.dtype), x.data_ptr(), out.data_ptr(), x.numel()
    )
    return out


def packs() -> bool:
    """Whether the kernel makes and reads messages: it does so in the machine's byte order, theirs
    is little-endian.
    """
    return loaded() and sys.byteorder == "little"


def nonzero(values: Values, bits: Bytes) -> int:
    """How many of the values have any bit set, and into `bits` which, lowest bit first."""
    return _on_wire("bits", values, values, len(values), bits)


def squeeze(
    values: Values,
    bits: Bytes,
    to: Values,
) -> None:
    """The values under the bits, as many as `to` holds."""
    _on_wire("squeeze", to, values, bits, len(values), to, len(to))


def spread(
    values: Values,
    bits: Bytes,
    to: Values,
) -> None:
    """The reverse of `squeeze`, zeros elsewhere; `values` may lie at any address."""
    _on_wire("spread", to, values, len(values), bits, len(to), to)


def ones(bits: Bytes, width: int) -> int:
    """How many of the first `width` bits are set."""
    return _on_wire("ones", None, bits, width)


def gap_length(bits: Bytes, width: int) -> int:
    """How many bytes `write_gaps` writes."""
    return _on_wire("gap_length", None, bits, width)


def write_gaps(
    bits: Bytes,
    width: int,
    to: Bytes,
) -> None:
    """The zeros before each set bit, as numbers of seven bits to a byte."""
    _on_wire("write_gaps", None, bits, width, to)


def read_gaps(
    gaps: Bytes,
    sent: int,
    bits: Bytes,
    width: int,
) -> bool:
    """The reverse, into bits that are 0; False where these bytes are not `sent` gaps within the
    width, as short as can be.
    """
    return not _on_wire("read_gaps", None, gaps, len(gaps), sent, bits, width)


def nonzero_halves(
    values: Values,
    bits: Bytes,
    *,
    brain: bool,
) -> None:
    """Into `bits` which of the values `narrow` would not make 0."""
    _on_wire("half_bits", values, values, len(values), bits, brain)


def narrow(
    values: Values,
    to: Bytes,
    *,
    brain: bool,
) -> None:
    """Two bytes for each value: a half, or bfloat16."""
    _on_wire("narrow", values, values, to, len(values), brain)


def widen(
    halves: Bytes,
    to: Values,
    *,
    brain: bool,
) -> int:
    """The reverse; returns how many are a NaN that `narrow` does not make."""
    return _on_wire("widen", to, halves, to, len(to), brain)


def blur(
    values: Values,
    to: Values,
    *,
    brain: bool,
) -> None:
    """What `narrow` and `widen` leave of the values."""
    _on_wire("blur", values, values, to, values.size, brain)


def quantise(
    values: Values,
    to: Small,
    scales: Values,
    *,
    block: int,
    levels: int,
    key: int | None,
) -> None:
    """Integers up to `levels` and the scale of each block, to nearest or, with a key, by the draws
    at that address.
    """
    rounding = (0, 0) if key is None else (1, key & (1 << 64) - 1)
    _on_wire("quantise", values, values, to, scales, len(values), block, levels, *rounding)


def dequantise(
    integers: Small,
    scales: Values,
    to: Values,
    peaks: Bytes,
    *,
    block: int,
) -> None:
    """Integers times scales, and the largest magnitude among the integers of each block."""
    _on_wire("dequantise", to, integers, scales, to, peaks, len(to), block)


def pack_nibbles(integers: Small, to: Bytes) -> None:
    """Two to a byte, the low half first."""
    _on_wire("pack_nibbles", None, integers, to, len(integers))


def unpack_nibbles(packed: Bytes, to: Small) -> None:
    """The reverse."""
    _on_wire("unpack_nibbles", None, packed, to, len(to))


def join(parts: Sequence[Bytes], size: int) -> bytes:
    """The parts one after the other, `size` bytes in all, in large pages: from a few megabytes on,
    faster than b"".join.
    """
    assert isinstance(_library, Library)
    message: bytes = ctypes.pythonapi.PyBytes_FromStringAndSize(
        None, size
    )  # not written yet, and nobody else has it
    at = ctypes.pythonapi.PyBytes_AsString(message)
    _library.calls.covey_large_pages(at, size)
    for part in parts:
        ctypes.memmove(at, part.ctypes.data, len(part))
        at += len(part)
    return message


def _on_wire(name: str, numbers: Values | None, *arguments: NDArray[Any] | int) -> int:
    """Call a pass over a message: for the numbers of a row in their type, or over bytes alone."""
    assert isinstance(_library, Library)
    assert all(isinstance(argument, int) or argument.flags.c_contiguous for argument in arguments)
    kind = () if numbers is None else (_library.number, int(numbers.itemsize == 8))
    plain = (
        argument if isinstance(argument, int) else argument.ctypes.data for argument in arguments
    )
    return int(getattr(_library.calls, f"covey_{name}")(*kind, *plain))


def _raise(wrong: int) -> None:
    if wrong:
        raise (MemoryError if wrong == 3 else IndexError)(
            f"the compiled kernel stopped: {_ERRORS[wrong]}."
        )


def _load(wish: str) -> Library | str:
    """The kernel, or why not."""
    if wish == "0":
        return "COVEY_NATIVE=0"
    if wish and wish not in SETS:
        return f"COVEY_NATIVE={wish} is none of 0, {', '.join(SETS)}"
    files = [Path(__file__).with_name(f"_rows{suffix}") for suffix in EXTENSION_SUFFIXES]
    found = next((file for file in files if file.exists()), None)
    if found is None:
        return "no compiled kernel was found, so torch does its work; install a C compiler and then covey again"
    try:
        calls = ctypes.CDLL(str(found))
        _declare(calls)
        version = calls.covey_abi()
    except (OSError, AttributeError) as error:
        return f"{found.name} does not load ({error}); install covey again"
    if version != ABI:
        return f"{found.name} is version {version}, not {ABI}; install covey again"
    if (ours := _source()) not in (None, source := calls.covey_source().decode()):
        return f"{found.name} was built from another rows.c ({source}, not {ours}); install covey again"
    able = [
        number
        for number, name in enumerate(SETS)
        if calls.covey_supports(number) and wish in ("", name)
    ]
    return Library(calls, able[-1]) if able else f"this processor has no {wish}"


def _source() -> str | None:
    """A hash of the kernel's source, as setup.py makes it; None where only the library was
    installed.
    """
    files = [Path(__file__).with_name(name) for name in ("rows.c", "rows.h")]
    if not all(file.exists() for file in files):
        return None
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


def _declare(calls: ctypes.CDLL) -> None:
    whole, size, at, real = ctypes.c_int, ctypes.c_int64, ctypes.c_void_p, ctypes.c_double
    calls.covey_source.restype = ctypes.c_char_p
    calls.covey_supports.argtypes = [whole]
    calls.covey_descend.argtypes = [whole, whole, at]
    calls.covey_score.argtypes = [whole, whole, at, at, at, at, at]
    calls.covey_cut_count.argtypes = [whole, whole, at, at, size, size, whole, real, at]
    calls.covey_finite.argtypes = [whole, whole, at, size]
    calls.covey_tanh.argtypes = [whole, whole, at, at, size]
    calls.covey_choose.argtypes = [size, at, at, at, size, at]
    calls.covey_bits.argtypes = [whole, whole, at, size, at]
    calls.covey_squeeze.argtypes = [whole, whole, at, at, size, at, size]
    calls.covey_spread.argtypes = [whole, whole, at, size, at, size, at]
    calls.covey_ones.argtypes = calls.covey_gap_length.argtypes = [at, size]
    calls.covey_write_gaps.argtypes = [at, size, at]
    calls.covey_read_gaps.argtypes = [at, size, size, at, size]
    calls.covey_half_bits.argtypes = [whole, whole, at, size, at, whole]
    calls.covey_narrow.argtypes = calls.covey_widen.argtypes = calls.covey_blur.argtypes = [
        whole,
        whole,
        at,
        at,
        size,
        whole,
    ]
    calls.covey_quantise.argtypes = [
        whole,
        whole,
        at,
        at,
        at,
        size,
        size,
        whole,
        whole,
        ctypes.c_uint64,
    ]
    calls.covey_dequantise.argtypes = [whole, whole, at, at, at, at, size, size]
    calls.covey_pack_nibbles.argtypes = calls.covey_unpack_nibbles.argtypes = [at, at, size]
    calls.covey_large_pages.argtypes = [at, size]
    for name in ("bits", "squeeze", "spread", "ones", "gap_length", "write_gaps", "widen"):
        getattr(calls, f"covey_{name}").restype = size
    new, text = ctypes.pythonapi.PyBytes_FromStringAndSize, ctypes.pythonapi.PyBytes_AsString
    new.restype, new.argtypes, text.restype, text.argtypes = (
        ctypes.py_object,
        [at, ctypes.c_ssize_t],
        at,
        [ctypes.py_object],
    )


_library: Library | str = _load(os.environ.get("COVEY_NATIVE", ""))
