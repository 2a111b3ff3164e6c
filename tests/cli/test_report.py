"""`covey report` and the page that `covey run` leaves in its folder."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import covey, exits

QUICK = ("rounds=2", "data.devices=8", "tree.edges=2", "seeds=1", "compare=[]", "holdout_devices=0")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two runs of the same data, and what the first one printed."""
    folder = tmp_path_factory.mktemp("runs")
    first = covey("run", "--out", folder / "one", *QUICK)
    second = covey("run", "--out", folder / "two", *QUICK, "algorithm.name=permfl")
    assert (first.code, second.code) == (0, 0)
    (folder / "printed.txt").write_text(first.out)
    return folder


def facts_of(page: Path) -> dict[str, Any]:
    """The facts in a page."""
    match = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text())
    return json.loads(match[1])


def test_a_run_leaves_its_report_and_names_it_first(runs: Path) -> None:
    page = facts_of(runs / "one" / "report.html")
    [shown] = page["runs"]
    assert shown["folder"] == str(runs / "one")
    assert shown["done"] == 2
    assert shown["seeds"][0]["sizes"] == [1, 2, 8]
    said = (runs / "printed.txt").read_text()
    assert said.index("report.html") < said.index("plot.png")


def test_the_report_of_one_run_goes_into_its_folder(runs: Path) -> None:
    page = runs / "one" / "report.html"
    before = facts_of(page)
    page.unlink()
    assert str(page) in exits(0, "report", runs / "one").out
    assert facts_of(page) == before


def test_runs_side_by_side(runs: Path, tmp_path: Path) -> None:
    page = tmp_path / "both.html"
    exits(0, "report", runs / "one", runs / "two", "--out", page)
    titles = [shown["title"] for shown in facts_of(page)["runs"]]
    assert len(set(titles)) == 2


def test_what_is_no_run_folder_is_refused(runs: Path, tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        assert f"{folder} is not a run folder" in exits(2, "report", runs / "one", folder).err


def test_runs_of_different_data_are_refused(runs: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(runs / "two", other)
    settings = (other / "config.toml").read_text()
    (other / "config.toml").write_text(settings.replace("labels = 2", "labels = 3"))
    page = tmp_path / "page.html"
    ended = exits(2, "report", runs / "one", other, "--out", page)
    assert "different data: data.labels = 2 and 3" in ended.err
    assert not page.exists()


def test_a_run_without_a_scored_round_is_refused(runs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "unscored"
    folder.mkdir()
    (folder / "config.toml").write_text((runs / "one" / "config.toml").read_text())
    assert str(folder) in exits(2, "report", folder).err
    assert not (folder / "report.html").exists()


def test_a_target_that_cannot_be_written_is_refused(runs: Path, tmp_path: Path) -> None:
    for target in (tmp_path, tmp_path / "nowhere" / "page.html"):
        assert f"--out {target}" in exits(2, "report", runs / "one", "--out", target).err
