"""Chunks follow the cache, and memory of rows stays with the process."""

import sys
from pathlib import Path

import pytest
import torch

from covey.runtimes.machine import FALLBACK, LARGEST_ROWS, cache_bytes, keep_freed_memory
from covey.runtimes.simulator import Simulator
from tests.laws.cases import PLAIN, finished


def _cache(folder: Path, number: int, kind: str, size: str) -> None:
    index = folder / f"index{number}"
    index.mkdir()
    (index / "type").write_text(f"{kind}\n", encoding="ascii")
    (index / "size").write_text(f"{size}\n", encoding="ascii")


def test_the_largest_cache_that_holds_data_counts(tmp_path: Path) -> None:
    _cache(tmp_path, 0, "Data", "32K")
    _cache(tmp_path, 1, "Instruction", "64M")
    _cache(tmp_path, 2, "Unified", "3M")
    assert cache_bytes(tmp_path) == 3 * 2**20


@pytest.mark.parametrize("size", ["", "unknown", "0K"])
def test_a_cache_of_unknown_size_has_a_fallback(tmp_path: Path, size: str) -> None:
    assert cache_bytes(tmp_path) == FALLBACK
    _cache(tmp_path, 3, "Unified", size)
    assert cache_bytes(tmp_path) == FALLBACK


def test_the_rows_of_a_chunk_fit_their_limit() -> None:
    run = finished(PLAIN["FedAvg"], rounds=1)
    simulator = run.runtime
    assert isinstance(simulator, Simulator)
    assert simulator.chunk_rows is not None
    assert simulator.chunk_rows <= LARGEST_ROWS
    row = simulator.task.space.width * simulator.task.dtype.itemsize
    simulator.grain = 1
    simulator.chunk_rows = 3 * row + 1
    assert simulator._chunk_size(100) == 3
    simulator.chunk_rows = 1  # a chunk has at least one device
    assert simulator._chunk_size(100) == 1
    simulator.chunk_rows = None
    assert simulator._chunk_size(100) > 3


@pytest.mark.skipif(sys.platform != "linux", reason="glibc is Linux's")
def test_freed_rows_are_not_mapped_anew() -> None:
    if not keep_freed_memory():
        pytest.skip("another C library, or its settings are in the environment")
    resource = pytest.importorskip("resource")

    def faults() -> int:
        return int(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)

    before = 0
    for turn in range(8):
        if turn == 4:
            before = faults()
        torch.ones(LARGEST_ROWS // 4)  # 32 MB: 8,192 pages of 4 KiB, or 16 large ones
    assert faults() - before < 4 * 16


def test_settings_of_the_environment_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "131072")
    assert keep_freed_memory.__wrapped__() is False
