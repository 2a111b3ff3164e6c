"""Locks on open files: one process at a time has one, and it goes with that process.

POSIX has `fcntl` for them. Windows has `msvcrt`, which locks bytes from the file's position on.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import IO

_PAUSE = 0.05  # s between two attempts to lock a byte on Windows


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


def is_locked(path: Path) -> bool:
    """Whether a process has the lock of a file.

    Asking takes the lock for an instant. Those who ask do not see each other where the system has
    locks to share, and who wants the lock itself waits longer than that.
    """
    try:
        with open(path, encoding="utf-8") as file:
            if sys.platform == "win32":
                return not try_lock(file)
            import fcntl

            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def try_lock_byte(file: IO[str], byte: int) -> bool:
    """Lock one byte of a file, whether it exists or not; False where another process has it."""
    try:
        if sys.platform == "win32":
            import msvcrt

            file.seek(byte)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
    except OSError:
        return False
    return True


def lock_byte(file: IO[str], byte: int) -> None:
    """Lock one byte of a file, and wait while another process has it."""
    if sys.platform == "win32":
        while not try_lock_byte(file, byte):
            time.sleep(_PAUSE)
    else:
        import fcntl

        fcntl.lockf(file, fcntl.LOCK_EX, 1, byte)


def unlock_byte(file: IO[str], byte: int) -> None:
    """Give one byte of a file free again."""
    if sys.platform == "win32":
        import msvcrt

        file.seek(byte)
        msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)
    else:
        import fcntl

        fcntl.lockf(file, fcntl.LOCK_UN, 1, byte)
