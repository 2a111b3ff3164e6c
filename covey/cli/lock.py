"""A lock on an open file: one process at a time has it, and it goes with that process."""

from __future__ import annotations

import sys
from typing import IO


def try_lock(file: IO[str]) -> bool:
    """Lock a file that is open for writing; False where another process has the lock."""
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # the second is how Windows says it
        return False
    return True
