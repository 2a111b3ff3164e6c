"""Power cuts of single nodes: a folder is put back to what was synced last.

`power.c`, preloaded into a process, copies a file when it is synced, and the names of a directory
when that is. A cut rebuilds the folder from these copies. Of what was written since, a cut may keep
a random part: pages of 4 KiB, lengths of files, and names of directories.
"""

from __future__ import annotations

import ctypes
import os
import random
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("power.c")
PAGE = 4096


def compiled(folder: Path) -> Path:
    """The library to preload."""
    library = folder / "power.so"
    command = ["cc", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", str(SOURCE), "-o", str(library)]
    subprocess.run(command, check=True)
    return library


def name_of_copy(path: Path) -> str:
    """The name that power.c gives to the copy of a file or directory."""
    facts = _statx(path)
    return f"{facts.inode}-{facts.birth_seconds}.{facts.birth_nanoseconds}"


@dataclass(frozen=True)
class Power:
    """The files below `root`, and the copies of what is durable of them.

    `torn`: a cut keeps a random part of what was not synced; else nothing of it.
    """

    root: Path
    copies: Path
    draw: random.Random
    torn: bool = True

    def watch(self) -> None:
        """Let this process, which has power.c preloaded, copy what it syncs; children inherit it."""
        self.copies.mkdir(parents=True, exist_ok=True)
        library = ctypes.CDLL(None)
        library.covey_power_watch(os.fsencode(self.root), os.fsencode(self.copies))

    def cut(self, folder: Path) -> bool:
        """Cut the power of the machine that has this folder; return whether a file has changed."""
        before = _contents(folder)
        rebuilt = folder.with_name(f"{folder.name}.rebuilt")
        rebuilt.mkdir()
        self._rebuild(name_of_copy(folder), folder, rebuilt)
        shutil.rmtree(folder)
        rebuilt.rename(folder)
        self.settle(folder)
        return _contents(folder) != before

    def settle(self, folder: Path) -> None:
        """Everything in this folder is durable."""
        lines = []
        for path in sorted(folder.iterdir()):
            lines.append(f"{name_of_copy(path)} {path.name}\n")
            if path.is_dir():
                self.settle(path)
            else:
                shutil.copyfile(path, self.copies / name_of_copy(path))
        (self.copies / name_of_copy(folder)).write_text("".join(lines), encoding="utf-8")

    def _rebuild(self, copy: str, live: Path | None, out: Path) -> None:
        """Write what is left of a directory."""
        durable = self._names(copy)
        present: dict[str, str] = {}
        if live is not None and live.is_dir():
            present = {path.name: name_of_copy(path) for path in live.iterdir()}
        for name in sorted({*durable, *present}):
            kept = self._either(durable.get(name), present.get(name))
            if kept is None:
                continue
            path = None
            if live is not None and present.get(name) == kept:
                path = live / name
            self._rebuild_entry(kept, path, out / name)

    def _rebuild_entry(self, copy: str, live: Path | None, out: Path) -> None:
        """Write what is left of a file or directory, which may not be in the folder any more."""
        if live is not None and live.is_dir():
            out.mkdir(mode=live.stat().st_mode & 0o777)
            self._rebuild(copy, live, out)
            return
        durable = b""
        if (self.copies / copy).exists():
            durable = (self.copies / copy).read_bytes()
        content = durable
        if live is not None:
            content = self._mixed(durable, live.read_bytes())
        out.write_bytes(content)

    def _names(self, copy: str) -> dict[str, str]:
        """The durable names of a directory, each with the name of its copy."""
        path = self.copies / copy
        if not path.exists():
            return {}
        lines = path.read_text(encoding="utf-8").splitlines()
        pairs = [line.split(" ", 1) for line in lines]
        return {name: entry for entry, name in pairs}

    def _either(self, durable: str | None, present: str | None) -> str | None:
        """Which of two states of a name is left: the synced one, or perhaps the present one."""
        if self.torn and self.draw.random() < 0.5:
            return present
        return durable

    def _mixed(self, durable: bytes, present: bytes) -> bytes:
        """The synced content with a random part of the pages that were written since."""
        if not self.torn or durable == present:
            return durable
        length = self.draw.choice([len(durable), len(present)])
        pages = []
        for start in range(0, length, PAGE):
            source = self.draw.choice([durable, present])
            size = min(PAGE, length - start)
            pages.append(source[start : start + size].ljust(size, b"\0"))
        return b"".join(pages)


def cut_at_call(number: int) -> None:
    """Kill this process at its n-th call that writes or syncs a watched file."""
    ctypes.CDLL(None).covey_power_cut(ctypes.c_long(number))


def _contents(folder: Path) -> dict[Path, bytes]:
    """All files, but for the index of a write-ahead log, which is made anew in any case."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {path: path.read_bytes() for path in paths if not path.name.endswith("-shm")}


class _Statx(ctypes.Structure):
    """struct statx, as far as it is used."""

    _fields_ = (
        ("head", ctypes.c_uint8 * 32),
        ("inode", ctypes.c_uint64),
        ("middle", ctypes.c_uint8 * 40),
        ("birth_seconds", ctypes.c_int64),
        ("birth_nanoseconds", ctypes.c_uint32),
        ("rest", ctypes.c_uint8 * 512),
    )
    inode: int
    birth_seconds: int
    birth_nanoseconds: int


def _statx(path: Path) -> _Statx:
    """The facts of a file with the time when it was made, which os.stat lacks."""
    facts = _Statx()
    here = -100
    no_follow = 0x100
    basic_and_birth = 0xFFF
    result = ctypes.CDLL(None, use_errno=True).statx(
        here, os.fsencode(path), no_follow, basic_and_birth, ctypes.byref(facts)
    )
    if result != 0:
        raise OSError(ctypes.get_errno(), f"statx of {path}")
    return facts
