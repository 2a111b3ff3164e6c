"""Locks on open files: one process at a time has one, and it goes with that process.

POSIX has `fcntl` for them. Windows has `msvcrt`, which locks bytes from the file's position on.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from covey.errors import ConfigError

_PAUSE = 0.05  # s between two attempts
_NO_LINKS = getattr(os, "O_NOFOLLOW", 0)  # Windows has none


def open_lock(path: Path) -> IO[str]:
    """The file of a lock, made if it is not there; an OSError where it is a symbolic link.

    What is in it stays. Others cannot open it, since whoever can read a file can lock it.
    """
    file = open(path, "a+", encoding="utf-8", opener=_open)  # noqa: SIM115
    if sys.platform != "win32":
        with suppress(PermissionError):  # the file of another user
            os.fchmod(file.fileno(), 0o600)
    return file


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | _NO_LINKS, 0o600)


@contextmanager
def locked(path: Path, busy: str, seconds: float = 1.0) -> Iterator[IO[str]]:
    """With the lock of a file; a ConfigError that begins with `busy` where another process has it.

    It is waited for: who has just been stopped may still be on its way out. The error ends with
    what the file says of the other process, if anything.
    """
    try:
        file = open_lock(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be opened: {error.strerror}.") from error
    with file:
        until = time.monotonic() + seconds
        while not try_lock(file):
            if time.monotonic() > until:
                with suppress(OSError):  # Windows does not let others read it
                    file.seek(0)
                    busy = " ".join([busy, *file.read(200).splitlines()])
                raise ConfigError(f"{busy}.")
            time.sleep(_PAUSE)
        yield file


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
    locks to share, and who wants the lock itself waits longer than that. The file of another user
    cannot be opened: it is taken to be locked.
    """
    try:
        with open(path, encoding="utf-8", opener=_open) as file:
            if sys.platform == "win32":
                return not try_lock(file)
            import fcntl

            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
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
