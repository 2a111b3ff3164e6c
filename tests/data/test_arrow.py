"""Folders that Hugging Face's `save_to_disk` writes, made here as that library makes them."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covey.data import arrow, frame
from tests.data.test_frames import COLUMNS, Plain
from tests.given import refused

pyarrow = pytest.importorskip("pyarrow")
WHOLE = (1, 0, 0)


def saved(folder: Path, columns: dict[str, Any], kinds: dict[str, Any] | None = None) -> Path:
    """One part in two Arrow files."""
    folder.mkdir(parents=True, exist_ok=True)
    table = pyarrow.table(columns)
    half = table.num_rows // 2
    files = []
    for number, rows in enumerate((table.slice(0, half), table.slice(half))):
        files.append({"filename": f"data-0000{number}-of-00002.arrow"})
        with (
            pyarrow.OSFile(str(folder / files[-1]["filename"]), "wb") as file,
            pyarrow.ipc.new_stream(file, table.schema) as writer,
        ):
            writer.write_table(rows)
    (folder / "state.json").write_text(json.dumps({"_data_files": files}), encoding="utf-8")
    info = {"features": kinds or {}}
    (folder / "dataset_info.json").write_text(json.dumps(info), encoding="utf-8")
    return folder


def png(value: int) -> dict[str, Any]:
    image = pytest.importorskip("PIL.Image")
    stream = io.BytesIO()
    image.fromarray(np.full((4, 5, 3), value, dtype=np.uint8)).save(stream, "png")
    return {"bytes": stream.getvalue(), "path": None}


KINDS = {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": ["dog", "cat"]}}


def photos() -> dict[str, Any]:
    return {
        "image": [png(v) for v in (0, 51, 102, 255)],
        "label": [0, 1, 1, 0],
        "user": list("aabb"),
    }


@pytest.mark.parametrize(
    "options", [{}, {"features": ["heat"]}, {"label": "heat", "exclude": ["label"]}]
)
def test_a_saved_table_is_the_frame_it_was(tmp_path: Path, options: dict[str, Any]) -> None:
    shards = arrow(str(saved(tmp_path, COLUMNS)), **options)
    expected = frame(Plain(COLUMNS), **options)
    assert shards.fingerprint() == expected.fingerprint()
    assert shards.names == expected.names


def test_images_are_decoded_and_classes_keep_their_order(tmp_path: Path) -> None:
    shards = arrow(str(saved(tmp_path, photos(), KINDS)), device="user", split=WHOLE)
    assert shards.names.classes == ("dog", "cat")
    assert shards.y.tolist() == [0, 1, 1, 0]
    assert tuple(shards.x.shape) == (4, 3, 4, 5)
    assert (shards.x.mean(dim=(1, 2, 3)) * 255).round().tolist() == [0, 51, 102, 255]
    assert shards.names.devices == ("a", "b")


def test_parts_are_those_of_the_folder(tmp_path: Path) -> None:
    for name in ("train", "val", "test"):
        saved(tmp_path / name, photos(), KINDS)
    index = {"splits": ["train", "val", "test"]}
    (tmp_path / "dataset_dict.json").write_text(json.dumps(index), encoding="utf-8")
    shards = arrow(str(tmp_path), device="user", size=3, grey=True)
    counts = [shards.part(part).counts().tolist() for part in ("train", "validation", "test")]
    assert counts == [[2, 2]] * 3
    assert tuple(shards.x.shape[1:]) == (1, 3, 3)
    index["splits"].append("extra")
    (tmp_path / "dataset_dict.json").write_text(json.dumps(index), encoding="utf-8")
    with refused("parts train, val, test, extra", "extra"):
        arrow(str(tmp_path))


def test_an_image_that_is_missing_or_broken_is_named(tmp_path: Path) -> None:
    columns = photos()
    columns["image"][2] = None
    columns["image"][3] = {"bytes": b"no", "path": None}
    with refused("2 images cannot be read", "row 2", "row 3"):
        arrow(str(saved(tmp_path, columns, KINDS)), device="user")


def test_a_label_without_a_class_is_a_gap(tmp_path: Path) -> None:
    columns = {**photos(), "label": [0, 1, 1, -1]}
    folder = str(saved(tmp_path, columns, KINDS))
    with refused("row 3: column 'label' is empty"):
        arrow(folder, device="user")
    assert len(arrow(folder, device="user", missing="drop").x) == 3


def test_columns_of_lists_are_refused_by_name(tmp_path: Path) -> None:
    with refused("column 'heat' holds list", "exclude"):
        arrow(str(saved(tmp_path, {**COLUMNS, "heat": [[1.0, 2.0]] * 9})))


def test_folders_that_are_not_such_are_refused(tmp_path: Path) -> None:
    with refused("no folder"):
        arrow(str(tmp_path / "nowhere"))
    with refused("neither state.json nor dataset_dict.json", "save_to_disk"):
        arrow(str(tmp_path))
    with refused("no column 'device'", "partition"):
        arrow(str(saved(tmp_path, photos(), KINDS)))
    with refused("images and other columns"):
        arrow(str(tmp_path), device="user", features=["image", "user"])
    (tmp_path / "data-00001-of-00002.arrow").write_bytes(b"damaged")
    with refused("data-00001-of-00002.arrow cannot be read", "save the data set again"):
        arrow(str(tmp_path), device="user")
    (tmp_path / "state.json").write_text("[", encoding="utf-8")
    with refused("state.json cannot be read"):
        arrow(str(tmp_path), device="user")


def test_a_file_of_more_than_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = saved(tmp_path / "own", COLUMNS)
    monkeypatch.setattr("covey.data.tables.npz.memory", lambda: 10)
    with refused("own", "bytes of memory"):
        arrow(str(folder))
