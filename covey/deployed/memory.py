"""How a process gives memory back to the system.

The C library of Linux keeps what a program has freed, for the next time. It learns to keep ever
larger pieces, up to 32 MB, in an arena for every few threads. A process that only aggregates gets
and sends a few large messages, and what is kept of them lies idle until the next round.
"""

from __future__ import annotations

import ctypes
from typing import Any

_MMAP_THRESHOLD = -3
_ARENA_MAX = -8
_PIECE = 2**20
"""Bytes of a piece of memory above which it goes back at once."""
_ARENAS = 2


def give_back_large() -> None:
    """From now on, give large pieces of memory back as soon as they are free, where that can be."""
    mallopt = _function("mallopt")
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _PIECE)
        mallopt(_ARENA_MAX, _ARENAS)


def give_back_free() -> None:
    """Give back what is free now, where that can be."""
    trim = _function("malloc_trim")
    if trim is not None:
        trim(0)


def _function(name: str) -> Any:
    """A function of the C library; None where it has none of this name."""
    try:
        return getattr(ctypes.CDLL(None), name)
    except (OSError, TypeError, AttributeError):
        return None
