"""The compiled kernel, where there is one: whole descents of linear stacks on a CPU, and two passes over rows on the wire.

`pip install` builds it from rows.c if it finds a compiler; without it everything runs through torch. COVEY_NATIVE=0 switches it
off, COVEY_NATIVE=plain, avx2 or avx512 names the instruction set instead of the best one.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Numbers = NDArray[np.int64] | NDArray[np.uint64]

ABI = 4
SETS = ("plain", "avx2", "avx512")  # by number, the best last
DTYPES = (torch.float32, torch.float64)
ACTIVATIONS = ("none", "relu", "tanh", "sigmoid")  # by number
LOSSES = ("cross_entropy", "squared_error")
NO_L1, SMOOTH, SOFT = range(3)
MOST_LAYERS = 32

_ERRORS = {
    1: "a batch names an example that is not there",
    2: "a label is not among the model's outputs",
    3: "no memory for the scratch arrays",
    4: f"more than {MOST_LAYERS} layers",
}


class Work(ctypes.Structure):
    """One call, field by field as `struct work` in rows.c."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("devices", "width", "batch", "batches", "layers", "examples_held")),
        ("table", ctypes.c_void_p),
        ("loss", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("rows", "start", "anchor", "linear", "mask")),
        *((name, ctypes.c_int64) for name in ("start_stride", "anchor_stride", "linear_stride", "mask_stride")),
        *((name, ctypes.c_void_p) for name in ("x", "y", "examples", "weight", "steps", "lr", "lam", "gamma")),
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


def descend(work: Work, dtype: torch.dtype) -> None:
    """Run one call; the arrays it points to must be alive."""
    assert isinstance(_library, Library)
    _raise(_library.calls.covey_descend(_library.number, DTYPES.index(dtype), ctypes.byref(work)))


def score(work: Work, dtype: torch.dtype, starts: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Right answers and summed loss of each row on its own examples, float64 [n] each; what `work` points to must be alive."""
    assert isinstance(_library, Library)
    right, loss = (torch.empty(len(starts), dtype=torch.float64) for _ in range(2))
    at = (tensor.data_ptr() for tensor in (starts, counts, right, loss))
    _raise(_library.calls.covey_score(_library.number, DTYPES.index(dtype), ctypes.byref(work), *at))
    return right, loss


def cut_count(rows: Tensor, threshold: float | None) -> tuple[Tensor, Tensor]:
    """The rows with every |v| <= threshold set to +0.0, and how many values of each have any bit set, [n] int64.

    New rows; the rows themselves for None. In one pass where the kernel is loaded.

    >>> cut_count(torch.tensor([[-3.0, -0.5, 1.0, -0.0]]), 0.5)
    (tensor([[-3.,  0.,  1.,  0.]]), tensor([2]))
    """
    if not serves(rows) or rows.ndim != 2:
        out = rows if threshold is None else torch.nn.functional.hardshrink(rows, threshold)
        return out, out.detach().view(torch.int32 if out.dtype == torch.float32 else torch.int64).count_nonzero(dim=1)
    assert isinstance(_library, Library)
    here = rows.detach().contiguous()
    out = rows if threshold is None else torch.empty_like(here)
    counts = torch.empty(len(here), dtype=torch.int64)
    to = None if threshold is None else out.data_ptr()
    cut = (0, 0.0) if threshold is None else (1, float(threshold))
    twice = DTYPES.index(here.dtype)
    _library.calls.covey_cut_count(_library.number, twice, here.data_ptr(), to, *here.shape, *cut, counts.data_ptr())
    return out, counts


def finite(rows: Tensor) -> bool:
    """Whether no value is infinite or not a number."""
    if not serves(rows):
        return bool(torch.isfinite(rows).all())
    assert isinstance(_library, Library)
    here = rows.detach().contiguous()
    return bool(_library.calls.covey_finite(_library.number, DTYPES.index(here.dtype), here.data_ptr(), here.numel()))


def choose(group: Numbers, keys: Numbers, sizes: Numbers, turns: int, number: Numbers) -> None:
    """The permutation of `draws.choose`, in place on `number`; all arrays are contiguous and of 64 bits."""
    assert isinstance(_library, Library)
    given = (group.ctypes.data, keys.ctypes.data, sizes.ctypes.data)
    _library.calls.covey_choose(len(number), *given, turns, number.ctypes.data)


def tanh(x: Tensor) -> Tensor:
    """The kernel's own tanh, which its tests hold to torch's."""
    assert isinstance(_library, Library)
    x = x.contiguous()
    out = torch.empty_like(x)
    _library.calls.covey_tanh(_library.number, DTYPES.index(x.dtype), x.data_ptr(), out.data_ptr(), x.numel())
    return out


def _raise(wrong: int) -> None:
    if wrong:
        raise (MemoryError if wrong == 3 else IndexError)(f"the compiled kernel stopped: {_ERRORS[wrong]}.")


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
    able = [number for number, name in enumerate(SETS) if calls.covey_supports(number) and wish in ("", name)]
    return Library(calls, able[-1]) if able else f"this processor has no {wish}"


def _source() -> str | None:
    """A hash of the kernel's source, as setup.py makes it; None where only the library was installed."""
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


_library: Library | str = _load(os.environ.get("COVEY_NATIVE", ""))
