"""Published formats are read as they were written; what is damaged, foreign or hostile is refused
by name.
"""

import gzip
import io
import json
import os
import pickle
import re
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covey.data.published import formats, locations, pickles
from covey.data.published.catalog import CATALOG, CIFAR10_BINARY, CIFAR10_PYTHON, known
from covey.data.published.formats import Arrays
from covey.errors import DataError, needed
from tests.data import tiny
from tests.given import refused

COLOUR = (3, 32, 32)


def read(name: str, root: Path) -> Arrays:
    one = known(name)
    found = locations.find(one, root)
    assert not found.missing
    return formats.read(one, found)


def assert_holds(arrays: Arrays, parts: tiny.Parts) -> None:
    """All the parts' examples in order, the last part as the test part."""
    shape = (-1, *arrays.x.shape[1:])
    assert np.array_equal(arrays.x, np.concatenate([x for x, _ in parts]).reshape(shape))
    assert arrays.y.dtype == np.int64
    assert np.array_equal(arrays.y, np.concatenate([y for _, y in parts]))
    assert arrays.train == sum(len(y) for _, y in parts[:-1])
    assert arrays.x.flags.c_contiguous


def test_the_catalog_has_as_many_names_as_classes() -> None:
    assert {name: len(set(one.classes)) for name, one in CATALOG.items()} == {
        "mnist": 10, "fashion_mnist": 10, "emnist-digits": 10, "emnist-byclass": 62,
        "femnist": 62, "cifar10": 10, "cifar100": 100,
    }  # fmt: skip
    assert {way.format for one in CATALOG.values() for way in one.ways} == set(formats.FORMATS)


@pytest.mark.parametrize("packed", [True, False])
def test_idx(tmp_path: Path, packed: bool) -> None:
    parts = tiny.examples(12, 5)
    tiny.write_idx(tmp_path / "mnist", parts, packed=packed)
    assert_holds(read("mnist", tmp_path), parts)


def test_a_gz_file_that_somebody_unpacked_but_did_not_rename(tmp_path: Path) -> None:
    parts = tiny.examples(12, 5)
    tiny.write_files(
        tmp_path,
        {name: gzip.decompress(data) for name, data in tiny.idx_files(parts, tiny.MNIST).items()},
    )
    assert_holds(read("mnist", tmp_path), parts)


@pytest.mark.parametrize("split", ["digits", "byclass"])
@pytest.mark.parametrize("form", ["files", "zip"])
def test_emnist_is_turned_upright(tmp_path: Path, split: str, form: str) -> None:
    parts, one = tiny.examples(12, 5), known("emnist", split)
    names = one.ways[0].files
    if form == "files":
        tiny.write_idx(tmp_path / "gzip", parts, names, turned=True)
    else:
        (tmp_path / "emnist").mkdir()
        with zipfile.ZipFile(tmp_path / "emnist" / "gzip.zip", "w") as archive:
            for name, content in tiny.idx_files(parts, names, turned=True).items():
                archive.writestr(f"gzip/{name}", content)
    assert_holds(read(one.name, tmp_path), parts)


def test_a_damaged_emnist_archive_is_named(tmp_path: Path) -> None:
    (tmp_path / "gzip.zip").write_bytes(b"not at all")
    with refused(str(tmp_path / "gzip.zip"), "damaged"):
        read("emnist-digits", tmp_path)


def test_a_library_that_is_missing_says_what_to_install() -> None:
    with refused("To read it, no_such_library is needed", "pip install '.[parquet]'"):
        needed("no_such_library.io", extra="parquet", to="read it")


def cifar10(form: str) -> tuple[tiny.Parts, dict[str, bytes]]:
    parts = tiny.examples(3, 4, 5, 6, 7, 2, shape=COLOUR)
    if form == "binary":
        return parts, {
            name: tiny.cifar_binary(x, y)
            for name, (x, y) in zip(CIFAR10_BINARY, parts, strict=True)
        }
    return parts, {
        name: tiny.cifar_python(x, labels=y)
        for name, (x, y) in zip(CIFAR10_PYTHON, parts, strict=True)
    }


def cifar100(form: str) -> tuple[tiny.Parts, dict[str, bytes]]:
    parts = tiny.examples(120, 7, shape=COLOUR, classes=100)
    coarse = [(y // 5).astype(np.uint8) for _, y in parts]
    if form == "binary":
        data = [tiny.cifar_binary(x, c, y) for (x, y), c in zip(parts, coarse, strict=True)]
        return parts, dict(zip(("train.bin", "test.bin"), data, strict=True))
    data = [
        tiny.cifar_python(x, coarse_labels=c, fine_labels=y)
        for (x, y), c in zip(parts, coarse, strict=True)
    ]
    return parts, dict(zip(("train", "test"), data, strict=True))


CIFAR = {"cifar10": cifar10, "cifar100": cifar100}


@pytest.mark.parametrize("form", ["binary", "python"])
@pytest.mark.parametrize("name", CIFAR)
def test_cifar(tmp_path: Path, name: str, form: str) -> None:
    parts, files = CIFAR[name](form)
    inside = {"cifar10": {"binary": "cifar-10-batches-bin", "python": "cifar-10-batches-py"}}
    folder = inside.get(name, {}).get(form, f"cifar-100-{form}")
    tiny.write_files(tmp_path / folder, files)
    tiny.write_tar(
        tmp_path / "packed" / f"{name.replace('r1', 'r-1')}-{form}.tar.gz", files, folder
    )
    assert_holds(read(name, tmp_path), parts)
    assert_holds(read(name, tmp_path / "packed"), parts)


def test_pickles_of_python_3_are_read_too() -> None:
    x = np.arange(6, dtype=np.uint8).reshape(2, 3)
    for protocol in (2, 3, 4):
        assert np.array_equal(
            pickles.batch(pickle.dumps({"data": x, "more": x.T}, protocol=protocol), "b")["data"], x
        )
    assert np.array_equal(
        pickles.batch(pickle.dumps({"data": np.asfortranarray(x)}, protocol=2), "b")["data"], x
    )


class Hostile:
    """What a pickle can ask for."""

    def __init__(self, *reduced: Any) -> None:
        self.reduced = reduced

    def __reduce__(self) -> Any:
        return self.reduced


def test_a_hostile_pickle_is_refused_and_runs_nothing(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    bad: list[Any] = [
        Hostile(os.system, (f"touch {mark}",)),
        Hostile(eval, (f"open({str(mark)!r}, 'w')",)),
        Hostile(np.frombuffer, (b"abc",)),
        {"data": Hostile(getattr, ("text", "join")), "labels": [1]},
    ]
    for protocol in (0, 2, 4):
        for thing in bad:
            with refused("data_batch_1", "asks for", "not run"):
                pickles.batch(pickle.dumps(thing, protocol=protocol), "data_batch_1")
    assert not mark.exists()


def test_a_pickle_cannot_change_the_reader() -> None:
    """BUILD with a pair sets attributes, here on what stands in for numpy.dtype."""
    program = b"\x80\x02cnumpy\ndtype\nN}U\x08__code__K\x01s\x86b."
    with refused("b", "download the official file again"):
        pickles.batch(program, "b")


@pytest.mark.parametrize(
    ("thing", "words"),
    [
        ([1, 2], "holds a list"),
        ({"data": np.arange(3.0)}, "array of f8"),
        ({"data": np.array([{}], dtype=object)}, "array of O8"),
        ({"data": Hostile(np.ndarray, ((3,),))}, "not a CIFAR batch"),
    ],
)
def test_pickles_of_other_things_are_refused(thing: Any, words: str) -> None:
    with refused("batch_7", words):
        pickles.batch(pickle.dumps(thing, protocol=2), "batch_7")


def test_a_damaged_pickle_is_refused() -> None:
    whole = tiny.cifar_python(
        *tiny.examples(2, shape=COLOUR)[0][:1], labels=np.zeros(2, dtype=np.uint8)
    )
    for data in (b"", b"nonsense", whole[:-1], whole[: len(whole) // 2], whole[:40]):
        with refused("batch_7 is not a CIFAR batch"):
            pickles.batch(data, "batch_7")


def leaf_users() -> list[dict[str, tuple[tiny.Bytes, tiny.Bytes]]]:
    pairs = tiny.examples(3, 2, 4, 62, classes=62)
    return [
        {"f0001": pairs[0], "f0002": pairs[1]},
        {"f0003": pairs[2]},
        *({f"f{n}": pairs[3]} for n in range(10, 19)),
    ]


def test_leaf_has_writers_and_its_files_are_read_in_the_order_of_their_numbers(
    tmp_path: Path,
) -> None:
    users = leaf_users()
    tiny.write_leaf(tmp_path / "leaf" / "data" / "femnist" / "data" / "all_data", users)
    arrays = read("femnist", tmp_path)
    pairs = {user: pair for file in users for user, pair in file.items()}
    assert arrays.train == len(arrays.y) == sum(len(y) for _, y in pairs.values())
    assert arrays.writer_names == tuple(pairs)
    assert arrays.writers is not None
    for number, (x, y) in enumerate(pairs.values()):
        assert np.array_equal(arrays.x[arrays.writers == number, 0], x)
        assert np.array_equal(arrays.y[arrays.writers == number], y)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("{", "JSONDecodeError"),
        (json.dumps([1]), "cannot be read"),
        (json.dumps({"users": []}), "user_data"),
        (json.dumps({"user_data": {"f1": {"x": [[0.5] * 3], "y": [1]}}}), "cannot be read"),
        (json.dumps({"user_data": {"f1": {"x": [[1.5] * 784], "y": [1]}}}), "not between 0 and 1"),
        (json.dumps({"user_data": {"f1": {"x": [[0.5] * 784], "y": [1, 2]}}}), "2 labels for 1 images"),
        (json.dumps({"user_data": {"f1": {"x": [[0.5] * 784], "y": [62]}}}), "the label 62"),
        (json.dumps({"user_data": {}}), "no example"),
    ],
)  # fmt: skip
def test_a_damaged_leaf_file_is_named(tmp_path: Path, table: str, words: str) -> None:
    (tmp_path / "all_data_0.json").write_text(table)
    with pytest.raises(DataError, match=re.escape(words)):
        read("femnist", tmp_path)


def test_every_cut_of_an_idx_file_is_noticed() -> None:
    whole = tiny.idx(np.arange(24, dtype=np.uint8).reshape(2, 3, 4))
    assert formats.idx(io.BytesIO(whole), "it", 3).shape == (2, 3, 4)
    for length in range(len(whole)):
        with refused("it "):
            formats.idx(io.BytesIO(whole[:length]), "it", 3)
    with refused("it does not have the 24 values"):
        formats.idx(io.BytesIO(whole + b"x"), "it", 3)
    with refused("labels begins with", "1 axes"):
        formats.idx(io.BytesIO(whole), "labels", 1)


def test_a_head_that_speaks_of_more_than_memory_is_refused() -> None:
    with refused("it "):
        formats.idx(io.BytesIO(bytes([0, 0, 8, 3]) + struct.pack(">3I", *[2**32 - 1] * 3)), "it", 3)


def test_a_cut_gz_file_is_named(tmp_path: Path) -> None:
    tiny.write_idx(tmp_path, tiny.examples(12, 5))
    path = tmp_path / tiny.MNIST[2]
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], whole[:-3], b"", whole[:-8] + bytes(8)):
        path.write_bytes(damaged)
        with refused(str(path), "download it again"):
            read("mnist", tmp_path)


def test_labels_that_do_not_fit_the_images_are_refused(tmp_path: Path) -> None:
    (x, y), test = tiny.examples(12, 5)
    tiny.write_idx(tmp_path, [(x, y[:-1]), test])
    with refused("train-labels-idx1-ubyte.gz", "11 labels for 12 images"):
        read("mnist", tmp_path)


def test_labels_beyond_the_classes_and_images_of_another_shape_are_refused(tmp_path: Path) -> None:
    tiny.write_idx(tmp_path / "a" / "mnist", tiny.examples(40, 5, classes=62))
    with refused(str(tmp_path), "image 10 has the label 10", "0 to 9"):
        read("mnist", tmp_path / "a")
    tiny.write_idx(tmp_path / "b" / "mnist", tiny.examples(4, 5, shape=(20, 20)))
    with refused(str(tmp_path), "(1, 20, 20)", "(1, 28, 28)"):
        read("mnist", tmp_path / "b")


def test_a_cut_cifar_batch_is_named(tmp_path: Path) -> None:
    for form, name in (("binary", "data_batch_3.bin"), ("python", "data_batch_3")):
        _, files = cifar10(form)
        tiny.write_files(tmp_path / form, {**files, name: files[name][:-1]})
        with refused(str(tmp_path / form / name), "again"):
            read("cifar10", tmp_path / form)


def test_a_cut_or_incomplete_archive_is_named(tmp_path: Path) -> None:
    _, files = cifar10("binary")
    path = tmp_path / "cifar-10-binary.tar.gz"
    tiny.write_tar(
        path, {name: data for name, data in files.items() if name != "data_batch_2.bin"}, "x"
    )
    with refused(str(path), "lacks data_batch_2.bin"):
        read("cifar10", tmp_path)
    tiny.write_tar(path, files, "x")
    path.write_bytes(path.read_bytes()[:20000])
    with refused(str(path), "damaged"):
        read("cifar10", tmp_path)


def test_a_batch_without_labels_is_refused(tmp_path: Path) -> None:
    parts, files = cifar10("python")
    tiny.write_files(
        tmp_path, {**files, "test_batch": tiny.cifar_python(parts[0][0], fine_labels=parts[0][1])}
    )
    with refused("test_batch has no 'labels'", "fine_labels"):
        read("cifar10", tmp_path)


def arrays() -> Arrays:
    (x, y), *_ = tiny.examples(5, 3)
    return Arrays(x[:, None], y.astype(np.int64), 4, np.array([0, 0, 1, 1, 1]), ("ada", "émile"))


def test_what_is_kept_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "new" / "set.npz"
    assert formats.kept(path) is None
    for one in (arrays(), arrays()._replace(writers=None, writer_names=())):
        formats.keep(path, one, "here")
        back = formats.kept(path, "here")
        assert np.array_equal(back.x, one.x)
        assert np.array_equal(back.y, one.y)
        assert (back.train, back.writers is None) == (one.train, one.writers is None)
        if one.writers is not None:
            assert back.writers is not None
            assert np.array_equal(back.writers, one.writers)
        assert back.writer_names == one.writer_names
    assert formats.kept(path, "elsewhere") is None
    assert [entry.name for entry in path.parent.iterdir()] == ["set.npz"]


def test_a_failed_write_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "set.npz"
    formats.keep(path, arrays(), "here")
    before = path.read_bytes()

    def full(file: io.BufferedWriter, **_: Any) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with refused(str(path), "No space left", "COVEY_DATA"):
        formats.keep(path, arrays(), "there")
    assert path.read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


def test_a_damaged_kept_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "set.npz"
    formats.keep(path, arrays(), "here")
    whole = path.read_bytes()
    for damaged in (b"", whole[:-40], whole[:200] + b"?" + whole[201:]):
        path.write_bytes(damaged)
        with refused(str(path), "delete it"):
            formats.kept(path)
