"""`covey data` lists what is there and how to get the rest; `covey data check` compares it with
what is published.
"""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from covey.cli.data import app
from covey.data.published.catalog import CATALOG
from covey.errors import DataError
from covey.report.pictures import data_picture
from tests.cli.command import covey, exits
from tests.data import tiny

pytestmark = pytest.mark.pictures


def data(*words: object) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a tiny MNIST whose checksums are the published ones."""
    tiny.write_idx(tmp_path / "mnist", tiny.examples(9, 4))
    sums = {
        file: hashlib.md5((tmp_path / "mnist" / file).read_bytes()).hexdigest()
        for file in tiny.MNIST
    }
    monkeypatch.setitem(CATALOG, "mnist", replace(CATALOG["mnist"], md5=sums))
    return tmp_path


def test_the_list_says_what_is_there_and_how_to_get_the_rest(root: Path) -> None:
    result = data("--data-dir", root)
    assert result.exit_code == 0
    assert f"data folder: {root}" in result.stdout
    assert f"idx in {root / 'mnist'}" in result.stdout
    assert "60,000 + 10,000 images, 10 classes" in result.stdout
    for name, one in CATALOG.items():
        assert name in result.stdout
        assert name == "mnist" or one.page in result.stdout
    (line,) = (line for line in result.stdout.splitlines() if line.startswith("mnist"))
    assert " present " in line
    assert result.stdout.count("missing") == 6


def test_the_list_names_what_a_set_lacks(root: Path) -> None:
    (root / "mnist" / tiny.MNIST[1]).unlink()
    assert f"lacks {tiny.MNIST[1]} in {root / 'mnist'}" in data("--data-dir", root).stdout


def test_the_list_as_json(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COVEY_DATA", str(root))
    rows = json.loads(data("--json").stdout)
    assert [row["name"] for row in rows] == list(CATALOG)
    assert rows[0]["present"]
    assert rows[0]["files"] == [str(root / "mnist" / file) for file in tiny.MNIST]
    assert not rows[1]["present"]
    assert (rows[1]["train"], rows[1]["test"], rows[1]["classes"]) == (60000, 10000, 10)


def test_check_is_content_with_what_is_as_published(root: Path) -> None:
    result = data("check", "mnist", "--data-dir", root)
    assert result.exit_code == 0
    assert result.stdout.count("md5 as published") == 4


def test_check_ends_with_code_2_if_a_file_differs(root: Path) -> None:
    (root / "mnist" / tiny.MNIST[0]).write_bytes(b"other")
    result = data("check", "mnist", "--data-dir", root)
    assert result.exit_code == 2
    assert hashlib.md5(b"other").hexdigest() in result.stdout
    assert "mnist: 1 of 4 files are missing or differ" in result.stdout


def test_check_ends_with_code_2_if_a_file_is_missing(root: Path) -> None:
    result = data("check", "fashion_mnist", "--data-dir", root / "none", "--json")
    assert result.exit_code == 2
    assert [row["text"] for row in json.loads(result.stdout)] == ["missing"] * 4
    checked = data("check", "cifar10", "--data-dir", root / "none")
    assert str(root / "none" / "cifar10") in checked.stdout


def test_check_refuses_a_name_that_nobody_knows() -> None:
    result = data("check", "minst")
    assert isinstance(result.exception, DataError)
    assert "'minst'" in str(result.exception)


@pytest.mark.parametrize("words", [["--help"], ["check", "--help"]])
def test_help_has_examples(words: list[str]) -> None:
    assert "Examples" in data(*words).stdout


def test_show_draws_counts_and_says_nothing_leaks(tmp_path: Path) -> None:
    picture = tmp_path / "who.png"
    ended = exits(
        0, "data", "show", "data.name=digits", "data.devices=6", "tree.edges=2", "--out", picture
    )
    assert picture.read_bytes().startswith(b"\x89PNG")
    for part in (
        "6 devices",
        "2 to 2 per device",
        "overlaps     none",
        "leaks        none",
        str(picture),
    ):
        assert part in ended.out


def test_show_counts_leaks(tmp_path: Path) -> None:
    tiny.write_idx(tmp_path / "mnist", tiny.examples(1800, 200))
    words = (
        "data.name=mnist", "data.partition=legacy2020", "algorithm.name=fedavg", "tree.edges=none",
        "model.name=linear",
    )  # fmt: skip
    ended = exits(
        0, "data", "show", *words, f"data.data_dir={tmp_path}", "--out", tmp_path / "who.png", "--json",
    )  # fmt: skip
    found = json.loads(ended.out)
    assert found["overlaps"]["leaks"] > 100
    assert found["overlaps"]["validation_leaks"] > 50
    plain = covey(
        "data", "show", *words, f"data.data_dir={tmp_path}", "--out", tmp_path / "who.png"
    )
    counts = found["overlaps"]
    assert f"{counts['leaks']:,} of {counts['tested']:,} test examples" in plain.out
    told = f"{counts['validation_leaks']:,} of {counts['validated']:,} validation examples"
    assert told in plain.out
    paper = covey(
        "data", "show", *words, "protocol=paper", f"data.data_dir={tmp_path}", "--out", tmp_path / "who.png",
        "--json",
    )  # fmt: skip
    shown = json.loads(paper.out)
    assert shown["overlaps"]["validated"] == shown["overlaps"]["validation_leaks"] == 0
    sizes = found["sizes"]
    assert shown["sizes"]["train"][3] == sizes["train"][3] + sizes["validation"][3]


def test_the_picture_names_the_leaks_of_validation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    titles: list[str] = []
    monkeypatch.setattr(data_picture, "draw", lambda *_, title: titles.append(title))
    tiny.write_idx(tmp_path / "mnist", tiny.examples(1800, 200))
    words = (
        "data.name=mnist", "data.partition=legacy2020", "algorithm.name=fedavg", "tree.edges=none",
        "model.name=linear",
    )  # fmt: skip
    assert data("show", *words, f"data.data_dir={tmp_path}").exit_code == 0
    assert "test examples are in another" in titles[0]
    assert "validation examples are in another" in titles[0]


def test_a_picture_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    ended = exits(
        4, "data", "show", "data.devices=6", "tree.edges=2", "--out", tmp_path / "none" / "who.png"
    )
    assert "cannot write" in ended.err


@pytest.mark.parametrize("form", ["consecutive", "random", "similar", "worst", "average"])
def test_forms_of_edges(form: str, tmp_path: Path) -> None:
    edges = "none" if form in ("worst", "average") else "4"
    out = tmp_path / "who.png"
    ended = exits(
        0, "data", "show", "data.name=digits", f"tree.edges={edges}", f"tree.form={form}", "--out", out,
        "--json",
    )  # fmt: skip
    found = json.loads(ended.out)
    assert sum(found["edges"]) == 20
    assert len(found["edges"]) == (2 if edges == "none" else 4)


def test_show_counts_copies(tmp_path: Path) -> None:
    rows = [f"d{row % 3},{row // 2},{row // 2},{row % 2}" for row in range(60)]
    text = "\n".join(["device,size,weight,label", *rows])
    (tmp_path / "copies.csv").write_text(text, encoding="utf-8")
    words = ("data.name=files", f"data.path={tmp_path / 'copies.csv'}", "algorithm.name=fedavg")
    shown = ("data", "show", *words, "tree.edges=none", "model.name=linear")
    ended = exits(0, *shown, "--out", tmp_path / "who.png")
    assert "30 of 60 examples equal an earlier one in all features" in ended.out
    found = json.loads(covey(*shown, "--out", tmp_path / "who.png", "--json").out)["copies"]
    assert (found["held"], found["different"]) == (60, 30)
    leaks = f"{found['leaks']} of {found['tested']} test examples equal, in all features, one of"
    assert leaks in ended.out
    assert 0 < found["leaks"] < found["tested"]
