"""Files replaced in one step: a reader sees the old content or the new one, also after a crash."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from safetensors import SafetensorError

from covey.errors import CheckpointError

LEFT = re.compile(r"\..+\.part(\.\w+)?")
"""The name of a new file, which a process that is killed leaves behind."""


@contextmanager
def replacing(path: Path, suffix: str = "") -> Iterator[Path]:
    """The path of a new file, which takes the place of `path` once it is written and on the disk.

    Where that fails, the new file goes and `path` stays. `suffix` is for writers that look at it.

    >>> from tempfile import mkdtemp
    >>> path = Path(mkdtemp()) / "figures.txt"
    >>> with replacing(path) as part:
    ...     _ = part.write_text("1 2 3")
    >>> path.read_text(), len(list(path.parent.iterdir()))
    ('1 2 3', 1)
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part{suffix}")
    part.unlink(missing_ok=True)  # what a process of the same number left
    try:
        yield part
        sync(part)
        os.replace(part, path)
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


@contextmanager
def refused(path: Path, kept: str = "the state saved before is intact") -> Iterator[None]:
    """Disk and permission errors as one kind, with the path and what remains: `kept`."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"cannot write {path}: {error}; {kept}.") from error


def write(path: Path, content: str | bytes, mode: int = 0o666) -> None:
    """Replace a file by this content; `mode` says who may read it, less what the umask takes."""
    if isinstance(content, str):
        content = content.encode()
    with replacing(path) as part, open(part, "xb", opener=partial(os.open, mode=mode)) as file:
        file.write(content)


def sync(path: Path) -> None:
    """Wait until a file, or a folder's list of files, is on the disk."""
    flags = os.O_RDWR
    if path.is_dir():
        if os.name == "nt":  # Windows opens no folder, and writes its list by itself
            return
        flags = os.O_RDONLY
    handle = os.open(path, flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
