"""Chunks follow the cache, and memory of rows stays with the process."""

import subprocess
import sys
from pathlib import Path

import pytest

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


# A process of its own: a test that ran `covey node` may have given this one other settings.
# It takes memory from the C library itself: torch aligns its arrays, and for the first ten or so it
# depends on their addresses whether one fits into the hole that another left.
_FAULTS_OF_FREED_ROWS = f"""
import ctypes
import resource
import sys
from covey.runtimes.machine import keep_freed_memory

library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
library.malloc.argtypes = [ctypes.c_size_t]
library.free.argtypes = [ctypes.c_void_p]


def faults_of_four():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    arrays = [library.malloc({LARGEST_ROWS}) for _ in range(4)]
    for array in arrays:
        ctypes.memset(array, 1, {LARGEST_ROWS})
    for array in arrays:
        library.free(array)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


kept = sys.argv[1] == "default" or keep_freed_memory()
faults_of_four()
faults_of_four()
print(faults_of_four() if kept else "not kept")
"""


def _faults(settings: str) -> int:
    """Page faults of four arrays of 32 MB, after as many were freed."""
    words = [sys.executable, "-c", _FAULTS_OF_FREED_ROWS, settings]
    faults = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    if faults == "not kept":
        pytest.skip("another C library, or its settings are in the environment")
    return int(faults)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc is Linux's")
def test_freed_rows_are_not_mapped_anew() -> None:
    assert _faults("kept") < 16
    assert _faults("default") >= 4 * 8  # of 4 KiB: 8,192 an array; of large pages: 16


def test_settings_of_the_environment_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "131072")
    assert keep_freed_memory.__wrapped__() is False
