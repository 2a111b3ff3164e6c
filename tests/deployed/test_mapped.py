"""Models and answers in files without names: on other systems, and where there is no room."""

import errno
import mmap
import os
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from covey.deployed.node.disk_store import LARGE
from covey.deployed.node.process import mapped_tensor
from covey.deployed.transport.stored import AnswerFile

ROW = torch.arange(LARGE, dtype=torch.float32)


@pytest.fixture
def as_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without what Windows does not have."""
    for module, name in ((mmap, "MAP_PRIVATE"), (os, "pread"), (os, "pwrite")):
        monkeypatch.delattr(module, name, raising=False)


@pytest.mark.usefixtures("as_on_windows")
def test_a_row_is_parked_without_calls_of_posix(tmp_path: Path) -> None:
    moved = mapped_tensor(ROW.view(2, -1), tmp_path)
    assert moved.data_ptr() != ROW.data_ptr()
    assert torch.equal(moved, ROW.view(2, -1))
    moved += 1  # writing changes memory alone
    assert torch.equal(moved, ROW.view(2, -1) + 1)


@pytest.mark.usefixtures("as_on_windows")
def test_answers_are_stored_without_calls_of_posix(tmp_path: Path) -> None:
    file = AnswerFile(tmp_path)
    answers = {}
    wrong = []

    def exchange(number: int) -> None:
        """Threads write and read at the same time, and share the position of the file."""
        data = bytes([number]) * 10_000
        for _ in range(20):
            stored = file.add(data)
            if stored.read() != data:
                wrong.append(number)
        answers[number] = stored

    threads = [threading.Thread(target=exchange, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert {number: set(stored.read()) for number, stored in answers.items()} == {
        number: {number} for number in range(4)
    }


@pytest.mark.parametrize("fails", ["file", "write", "map"])
def test_a_full_disk_leaves_a_row_in_memory(
    fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    class Full:
        """A file that takes no bytes."""

        write = full

        def __enter__(self) -> "Full":
            return self

        def __exit__(self, *_: object) -> None:
            pass

    patched: dict[str, tuple[Any, str, Any]] = {
        "file": (tempfile, "TemporaryFile", full),
        "write": (tempfile, "TemporaryFile", lambda **_: Full()),
        "map": (mmap, "mmap", full),
    }
    monkeypatch.setattr(*patched[fails])
    assert mapped_tensor(ROW, tmp_path) is ROW
    assert f"stays in memory, since {tmp_path} takes no file" in caplog.text
    assert "No space left" in caplog.text
