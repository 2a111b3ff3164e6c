"""Folders of images become shards; broken ones are named before anything is decoded."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from covey.data import images
from covey.errors import ConfigError
from covey.files.config import load
from tests.given import refused

image = pytest.importorskip("PIL.Image")
rng = np.random.default_rng(0)
WHOLE = (1, 0, 0)


def saved(path: Path, pixels: Any, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.fromarray(pixels).save(path, **options)
    return path


def colour(height: int = 4, width: int = 6) -> Any:
    return rng.integers(0, 256, (height, width, 3)).astype(np.uint8)


def grey(height: int = 4, width: int = 6) -> Any:
    return rng.integers(0, 256, (height, width)).astype(np.uint8)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for device in ("b", "a"):
        for label in ("dog", "cat"):
            for number in range(3):
                saved(tmp_path / device / label / f"{number}.png", colour())
    return tmp_path


def test_every_pixel_arrives_at_its_device(photos: Path) -> None:
    shards = images(str(photos), split=WHOLE)
    assert shards.names.devices == ("a", "b")
    assert shards.names.classes == ("cat", "dog")
    assert tuple(shards.x.shape) == (12, 3, 4, 6)
    held = shards.train.held(1)
    dogs = shards.x[held[shards.y[held] == 1]]
    files = sorted((photos / "b" / "dog").iterdir())
    expected = np.stack([np.asarray(image.open(path)) for path in files]).transpose(0, 3, 1, 2)
    have = sorted((dogs * 255).round().byte().flatten(1).tolist())
    assert have == sorted(expected.reshape(3, -1).tolist())


def test_folders_above_devices_are_edges(photos: Path) -> None:
    (photos / "north").mkdir()
    (photos / "south").mkdir()
    (photos / "b").rename(photos / "north" / "b")
    (photos / "a").rename(photos / "south" / "a")
    shards = images(str(photos), split=WHOLE)
    assert (shards.names.edges, shards.edges) == (("north", "south"), (1, 1))
    assert shards.names.devices == ("b", "a")


def test_a_partition_deals_folders_of_labels(photos: Path) -> None:
    shards = images(str(photos / "a"), partition="iid", devices=2, split=WHOLE)
    assert shards.train.counts().tolist() == [3, 3]
    assert shards.names.classes == ("cat", "dog")


def test_labels_that_are_numbers_are_in_their_order(tmp_path: Path) -> None:
    for label in ("10", "9", "0"):
        saved(tmp_path / "a" / label / "x.png", grey())
    shards = images(str(tmp_path), split=WHOLE)
    assert shards.names.classes == ("0", "9", "10")


def test_grey_images_have_one_channel_unless_one_has_colour(tmp_path: Path) -> None:
    for number in range(3):
        saved(tmp_path / "a" / "x" / f"{number}.png", grey())
    assert images(str(tmp_path), split=WHOLE).x.shape[1] == 1
    saved(tmp_path / "a" / "x" / "3.png", colour())
    assert images(str(tmp_path), split=WHOLE).x.shape[1] == 3
    assert images(str(tmp_path), split=WHOLE, grey=True).x.shape[1] == 1


@pytest.mark.parametrize(("size", "shape"), [(2, (2, 2)), ((2, 3), (2, 3)), ([8, 5], (8, 5))])
def test_images_are_brought_to_a_size(photos: Path, size: Any, shape: tuple[int, int]) -> None:
    saved(photos / "a" / "cat" / "flat.png", np.full((9, 7, 3), 51, dtype=np.uint8))
    shards = images(str(photos), size=size, split=WHOLE)
    assert tuple(shards.x.shape[2:]) == shape
    assert bool(((shards.x * 255).round() == 51).flatten(1).all(dim=1).any())


def test_a_photograph_is_turned_upright(tmp_path: Path) -> None:
    pixels = np.zeros((4, 6), dtype=np.uint8)
    pixels[0] = 255  # the top as it is stored is on the right once turned
    exif = image.Exif()
    exif[274] = 6
    saved(tmp_path / "a" / "x" / "1.png", pixels, exif=exif)
    shards = images(str(tmp_path), split=WHOLE)
    assert tuple(shards.x.shape[2:]) == (6, 4)
    assert shards.x[0, 0].mean(dim=0).tolist() == [0.0, 0.0, 0.0, 1.0]


def test_a_scaling_by_training_parts_is_kept(photos: Path) -> None:
    shards = images(str(photos), normalise="channel", split=WHOLE)
    assert shards.scaling is not None
    torch.testing.assert_close(shards.x.mean(dim=(0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)


def test_broken_images_are_named_together(photos: Path) -> None:
    (photos / "a" / "cat" / "0.png").write_bytes(b"not an image")
    whole = (photos / "b" / "dog" / "1.png").read_bytes()
    (photos / "b" / "dog" / "0.png").write_bytes(b"")
    with refused("2 images cannot be read", "a/cat/0.png", "b/dog/0.png"):
        images(str(photos))
    saved(photos / "a" / "cat" / "0.png", colour())
    (photos / "b" / "dog" / "0.png").write_bytes(whole[: len(whole) // 2])
    with refused("1 image cannot be read", "b/dog/0.png", "truncated"):
        images(str(photos))


def test_sixteen_bits_are_refused(photos: Path) -> None:
    saved(photos / "a" / "cat" / "deep.png", grey().astype(np.uint16))
    with refused("deep.png", "I;16", "save it with 8"):
        images(str(photos))


def test_different_sizes_need_one(photos: Path) -> None:
    saved(photos / "b" / "dog" / "large.png", colour(9, 9))
    with refused("4 x 6 pixels", "large.png", "9 x 9", "size = 32"):
        images(str(photos))


@pytest.mark.parametrize("size", [0, -1, 2.5, (1, 2, 3), True, "big"])
def test_refuses_a_size_that_is_none(photos: Path, size: Any) -> None:
    with refused("size =", "pixels"):
        images(str(photos), size=size)


def test_layouts_that_say_too_little_are_explained(photos: Path) -> None:
    with refused("names a label and no device", "DEVICE/LABEL", 'partition = "iid"'):
        images(str(photos / "a"))
    with refused("with a partition", "LABEL/name.png"):
        images(str(photos), partition="iid", devices=2)
    with refused("different depths"):
        images(str(photos / "a" / "cat"))
    saved(photos / "stray.png", colour())
    with refused("different depths", "stray.png"):
        images(str(photos))
    with refused("no folder"):
        images(str(photos / "nowhere"))
    with refused("cannot be looked up"):
        images("a" * 5000)
    (photos / "empty").mkdir()
    with refused("no image", "DEVICE/LABEL"):
        images(str(photos / "empty"))


def test_folders_of_parts_are_not_devices(photos: Path) -> None:
    (photos / "a").rename(photos / "train")
    (photos / "b").rename(photos / "test")
    with refused("test, train", "seem to be parts", "partition"):
        images(str(photos))


def test_a_device_has_one_edge(photos: Path) -> None:
    for edge in ("north", "south"):
        saved(photos / "under" / edge / "a" / "cat" / "1.png", colour())
    with refused("device 'a'", "'north' and 'south'"):
        images(str(photos / "under"))


def test_an_experiment_file_names_the_folder_and_the_model_follows(photos: Path) -> None:
    lines = [
        '[algorithm]\nname = "fedavg"',
        '[data]\nname = "images"\npath = "."\nsize = [8, 9]\ngrey = true',
        '[model]\nname = "linear"',
    ]
    file = photos / "own.toml"
    file.write_text("\n".join(lines), encoding="utf-8")
    experiment = load(file).experiment(0)
    assert experiment.data.name == photos.name
    assert experiment.model(experiment.data.x[:2]).shape == (2, 2)
    with pytest.raises(ConfigError, match=re.escape('data.size = "big"')):
        load(file, ["data.size=big"]).experiment(0)


def test_a_palette_with_transparency_lies_on_white_without_a_warning(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    for label in ("dog", "cat"):
        for number in range(3):
            path = tmp_path / "a" / label / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            icon = image.new("P", (2, 1))
            icon.putpalette([10, 20, 30, 40, 50, 60])
            icon.putdata([0, 1])
            icon.save(path, transparency=bytes([0, 255]))
    shards = images(str(tmp_path), split=WHOLE, normalise="none")
    assert not recwarn.list
    assert shards.x[0, :, 0].T.tolist() == [[255, 255, 255], [40, 50, 60]]


def test_an_experiment_file_with_one_side_of_two_is_told_what_a_size_is(photos: Path) -> None:
    file = photos / "own.toml"
    text = '[data]\nname = "images"\npath = "."\nsize = [16]\n'
    file.write_text(text + '[algorithm]\nname = "local"\n[model]\nname = "linear"\n', "utf-8")
    with pytest.raises(ConfigError, match=r"size = \[16\]; give a side in pixels .* or a height"):
        load(file).experiment(0)
