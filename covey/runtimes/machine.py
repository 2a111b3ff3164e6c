"""Facts of the machine that decide how work is cut, and how freed memory is kept."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
FALLBACK = 2**24
"""Bytes of the last cache where the system does not tell them."""
LARGEST_ROWS = 2**25 - 2**16
"""Bytes of an array above which glibc maps fresh pages for every allocation."""

_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3
_KEPT = 2**30
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


def cache_bytes(folder: Path = CACHES) -> int:
    """The size of the largest data cache that the first core uses, `FALLBACK` if unknown."""
    sizes = []
    for index in sorted(folder.glob("index*")):
        try:
            kind = (index / "type").read_text(encoding="ascii").strip()
            text = (index / "size").read_text(encoding="ascii").strip()
        except OSError:
            continue
        if kind != "Instruction":
            sizes.append(_bytes(text))
    return max(sizes, default=0) or FALLBACK


def _bytes(text: str) -> int:
    """A size as the system writes it; 0 if it is not one.

    >>> _bytes("32768K")
    33554432
    """
    unit = _UNITS.get(text[-1:], 1)
    digits = text.rstrip("KMG")
    if not digits.isdigit():
        return 0
    return int(digits) * unit


@cache
def keep_freed_memory() -> bool:
    """Let the C library keep memory that rows no longer need; return whether it does.

    By default glibc gives large arrays back to the system. The next round then takes a page fault
    for every 4 KiB of its rows. At most 1 GiB of free memory is kept. Settings of the environment
    (MALLOC_..., GLIBC_TUNABLES) win. Other C libraries are left as they are.
    """
    if any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    thresholds = {_MMAP_THRESHOLD: 2**25, _TRIM_THRESHOLD: _KEPT}
    taken = [library.mallopt(option, value) for option, value in thresholds.items()]
    return all(taken)
