"""A lock on an open file: one process at a time has it, and it goes with that process."""

from __future__ import annotations

import sys
from pathlib import Path
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
    """Lock one byte of a file, which need not exist; False where another process has it.

    One process has all bytes of a file through one open file: closing it releases all.
    """
    try:
        _lock_byte(file, byte)
    except (BlockingIOError, PermissionError):
        return False
    return True


def unlock_byte(file: IO[str], byte: int) -> None:
    """Release one byte of a file."""
    if sys.platform == "win32":
        import msvcrt

        file.seek(byte)
        msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)
    else:
        import fcntl

        fcntl.lockf(file, fcntl.LOCK_UN, 1, byte)


def _lock_byte(file: IO[str], byte: int) -> None:
    if sys.platform == "win32":
        import msvcrt

        file.seek(byte)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
