"""`covey runs`: what a folder of runs holds."""

import json
import shutil
from pathlib import Path

import pytest

import covey
from covey.errors import DivergedError
from covey.folder.listed import runs_in
from covey.report.summary import summarise
from tests.cli.command import covey as command
from tests.cli.command import exits
from tests.report.folders import FLAT, run_into


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs: finished, stopped after two of its rounds, diverged."""
    place = tmp_path_factory.mktemp("runs")
    run_into(place / "finished")
    summary = summarise([covey.load(place / "finished").history])
    (place / "finished" / "summary.json").write_text(json.dumps(summary.as_dict()))
    cut = Path(shutil.copytree(place / "finished", place / "cut short"))
    for name in ("metrics.jsonl", "nodes.jsonl"):
        lines = (cut / name).read_text().splitlines(keepends=True)
        (cut / name).write_text("".join(lines[:2]))
    for name in ("status.json", "totals.json", "summary.json"):
        (cut / name).unlink()
    with pytest.raises(DivergedError):
        run_into(place / "wild", *FLAT, "model.name=mlp", "algorithm.lr=1e30")
    return place


def test_every_state(folder: Path) -> None:
    by_name = {run.name: run for run in runs_in(folder)}
    assert {name: run.state for name, run in by_name.items()} == {
        "finished": "finished", "cut short": "stopped", "wild": "diverged",
    }  # fmt: skip
    assert [by_name[name].done for name in ("finished", "cut short")] == [4, 2]
    assert all(run.rounds == 4 for run in by_name.values())
    assert "no longer finite" in str(by_name["wild"].reason)
    assert by_name["finished"].started is not None


def test_figures_are_those_of_the_summary(folder: Path) -> None:
    """Read from the summary, or from the rounds where there is none."""
    summary = json.loads((folder / "finished" / "summary.json").read_text())
    figures = {model["model"]: model["accuracy"]["mean"] for model in summary["models"]}
    whole = Path(shutil.copytree(folder / "finished", folder.parent / "whole"))
    (whole / "summary.json").unlink()
    for place in (folder / "finished", whole):
        (run,) = runs_in(place)
        assert run.personal == pytest.approx(figures["personal"])
        assert run.global_ == pytest.approx(figures["global"])
        assert run.bytes == sum(link["down"] + link["up"] for link in summary["links"])
        assert run.seconds == pytest.approx(summary["seconds"])
        assert (run.metric, run.algorithm, run.data) == ("accuracy", "sfedhp", "digits")


def test_the_table(folder: Path) -> None:
    result = exits(0, "runs", folder)
    head, *rows = result.out.splitlines()
    assert head.split() == [
        "run", "algorithm", "data", "state", "rounds", "personal", "global", "MB", "seconds", "started",
    ]  # fmt: skip
    assert len(rows) == 3
    assert any("wild" in row and "diverged" in row for row in rows)
    assert any("cut short" in row and "2/4" in row for row in rows)
    listed = json.loads(command("runs", folder, "--json").out)
    assert {run["name"] for run in listed} == {"finished", "cut short", "wild"}
    assert {"personal", "global", "bytes", "seconds", "reason", "folder"} < set(listed[0])


def test_a_folder_that_cannot_be_read_is_listed(folder: Path, tmp_path: Path) -> None:
    for name, file, text in (("a", "config.toml", "rounds = ["), ("b", "metrics.jsonl", "{}\n")):
        shutil.copytree(folder / "cut short", tmp_path / name)
        (tmp_path / name / file).write_text(text)
    listed = runs_in(tmp_path)
    assert [run.state for run in listed] == ["unreadable"] * 2
    assert "config.toml" in str(listed[0].reason)
    assert "metrics.jsonl" in str(listed[1].reason)
    exits(0, "runs", tmp_path)


def test_no_runs(tmp_path: Path) -> None:
    assert command("runs", tmp_path).out == f"no run in {tmp_path}\n"
    assert "there is no folder" in exits(2, "runs", tmp_path / "nothing").err
