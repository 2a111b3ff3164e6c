"""Notebooks: tables and drawings of runs, rounds, data and trees; progress; the example."""

import json
import os
import re
import select
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

import covey
from covey import Tree, markup
from covey.algorithms import FedAvg, PerMFL
from covey.data import Names
from covey.runs.progress import ProgressLine
from tools.notebook import cleaned

ROOT = Path(__file__).parent.parent
NOTEBOOK = ROOT / "examples" / "notebook.ipynb"


def parsed(html: str) -> ElementTree.Element:
    """The elements of a piece of HTML, which must be well-formed."""
    return ElementTree.fromstring(f"<body>{html.replace('<br>', '<br/>')}</body>")


def texts(html: str) -> list[list[str]]:
    """The cells of a table, row by row."""
    return [["".join(cell.itertext()) for cell in row] for row in parsed(html).iter("tr")]


def drawn(tree: Tree, kind: str) -> int:
    """How many shapes of a kind the drawing of a tree has."""
    return sum(element.tag.endswith(kind) for element in parsed(tree._repr_html_()).iter())


@pytest.fixture(scope="module")
def run() -> covey.Run:
    """Three rounds on the pumps, the second of which is not scored."""
    data = covey.data.files(str(ROOT / "examples" / "own_data" / "pumps.csv"))
    tree = Tree.grouped(data.edges)
    model = covey.models.linear(6, 3)
    out = covey.run(covey.Experiment(PerMFL(), data, model, tree, rounds=3, score_every=3))
    list(out)
    return out


def test_a_round_is_a_table_of_its_models(run: covey.Run) -> None:
    first, _, last = run.history
    assert texts(first._repr_html_()) == [["not scored"]]
    rows = texts(last._repr_html_())
    assert rows[0][:4] == ["model", "kept by", "validation %", "test %"]
    assert [row[0] for row in rows[1:]] == ["global", "edge", "personal"]
    assert rows[3][1] == "16 devices"
    assert float(rows[3][3]) == pytest.approx(100 * (last.accuracy("personal") or 0), abs=0.005)
    assert "round 3: " in last._repr_html_()


def test_a_run_is_a_table_with_what_it_runs(run: covey.Run) -> None:
    html = run._repr_html_()
    assert "PerMFL on pumps.csv, Tree: 1 server, 4 edges, 16 devices: 3 of 3 rounds" in html
    assert texts(html) == texts(run.history[-1]._repr_html_())
    begun = covey.run(run.experiment)
    assert texts(begun._repr_html_()) == [["not scored yet"]]
    assert repr(begun).endswith("0 of 3 rounds: global, edge, personal>")


def test_numbers_are_shown_by_their_error() -> None:
    draw = torch.Generator().manual_seed(0)
    pairs = [(torch.randn(20, 2, generator=draw), torch.randn(20, generator=draw))] * 2
    data = covey.data.own(pairs)
    model = covey.models.linear(2, 1)
    run = covey.run(covey.Experiment(FedAvg(), data, model, Tree.flat(2), rounds=1))
    (record,) = run
    heads, row = texts(record._repr_html_())
    assert heads[2:4] == ["validation RMSE", "test RMSE"]
    assert row[3] == f"{record.models['global'].scores['test'].rmse:.4g}"
    assert heads[4:] == ["non-zero %"]  # no worst tenth by accuracy
    assert "numbers to predict" in data._repr_html_()


def test_data_is_a_table_of_its_parts(run: covey.Run) -> None:
    data = run.experiment.data
    rows = texts(data._repr_html_())
    counts = data.train.counts().numpy()
    figures = [counts.min(), np.median(counts), counts.max()]
    assert rows[1] == ["train", str(counts.sum()), "16", *(f"{figure:g}" for figure in figures)]
    assert "636 examples of 6, 16 devices, 4 edges, 3 classes, 2 to 3 per device" in (
        data._repr_html_()
    )


def test_names_are_text_and_nothing_else(run: covey.Run) -> None:
    evil = '<script>alert(1)</script>&"'
    html = markup.table([evil], [[evil]], evil)
    assert "<script" not in html
    assert texts(html) == [[evil], [evil]]
    tree = Tree.uniform(2, 2, tiers=("server", evil, "device"))
    assert "<script" not in tree._repr_html_()
    parsed(tree._repr_html_())
    data = covey.data.own([(torch.zeros(4, 2), torch.tensor([0, 1, 0, 1]))], classes=2, name=evil)
    assert "<script" not in data._repr_html_()
    assert data.names == Names()


@pytest.mark.parametrize(
    ("tree", "dots", "lines", "fans"),
    [
        (Tree.grouped([2, 3]), 8, 7, 0),
        (Tree.flat(40), 41, 40, 0),
        (Tree.flat(41), 1, 0, 1),
        (Tree.uniform(3, 4, 100), 16, 15, 12),
        (Tree.grouped([1, 2]).times(2), 12, 10, 0),
        (Tree.uniform(100, 10, 10), 1, 0, 1),
    ],
    ids=["small", "full", "many", "deep", "two seeds", "thousands"],
)
def test_a_tree_is_drawn(tree: Tree, dots: int, lines: int, fans: int) -> None:
    assert drawn(tree, "circle") == dots
    assert drawn(tree, "line") == lines
    assert drawn(tree, "polygon") == fans
    assert len(tree._repr_html_()) < 20_000
    words = [text.text for text in parsed(tree._repr_html_()).iter() if text.tag.endswith("text")]
    assert words[-1] == f"{tree.devices} devices"


@pytest.fixture
def terminal() -> Iterator[tuple[TextIO, int]]:
    """A terminal: where a program writes, and where the user reads."""
    pty = pytest.importorskip("pty")
    reader, writer = pty.openpty()
    with open(writer, "w") as stream:
        yield stream, reader
    os.close(reader)


def shown(reader: int) -> str:
    """What a terminal has shown up to the end of a line; it may come in pieces."""
    text = ""
    while not text.endswith("\n"):
        ready, _, _ = select.select([reader], [], [], 10)
        assert ready, text
        text += os.read(reader, 100_000).decode()
    return text


def small(rounds: int = 3) -> covey.Experiment:
    data = covey.data.digits(devices=4)
    model = covey.models.linear(64, 10)
    return covey.Experiment(FedAvg(steps=1), data, model, Tree.flat(4), rounds=rounds)


def test_progress_is_one_line_on_a_terminal(
    terminal: tuple[TextIO, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, reader = terminal
    monkeypatch.setattr(sys, "stderr", stream)
    records = list(covey.run(small(), progress=True))
    lines = shown(reader).replace("\r\n", "\n").split("\r")
    assert lines[-1].startswith(f"round 3/3  global {records[-1].accuracy():.4f}")
    assert re.search(r" MB  \d+\.\d s *\n$", lines[-1])
    begun = covey.run(small())
    next(begun.progress())
    assert "round 1/3" in shown(reader)


def test_progress_says_nothing_into_a_pipe(capfd: pytest.CaptureFixture[str]) -> None:
    assert len(list(covey.run(small(), progress=True))) == 3
    assert len(list(covey.run(small()).progress())) == 3
    assert capfd.readouterr() == ("", "")


def test_progress_ends_its_line_where_a_run_fails(
    terminal: tuple[TextIO, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, reader = terminal
    monkeypatch.setattr(sys, "stderr", stream)
    run = covey.run(small(), progress=True)
    next(run)
    monkeypatch.setattr(type(run._runs), "_play", lambda self: {}["a fault"])
    with pytest.raises(KeyError):
        next(run)
    assert shown(reader).endswith("\r\n")


def test_progress_of_a_resumed_run_counts_from_where_it_was(
    terminal: tuple[TextIO, int], tmp_path: Path
) -> None:
    stream, reader = terminal
    run = covey.run(small())
    next(run)
    run.save(tmp_path / "run")
    line = ProgressLine(3, stream)
    for record in covey.run(small(), resume=tmp_path / "run"):
        line.show(record)
    assert "round 2/3" in shown(reader).split("\r")[1]


def cells() -> list[dict[str, Any]]:
    read: list[dict[str, Any]] = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return read


def code() -> list[dict[str, Any]]:
    return [cell for cell in cells() if cell["cell_type"] == "code"]


def test_the_example_was_executed_and_is_small() -> None:
    assert NOTEBOOK.stat().st_size < 300_000
    assert [cell["execution_count"] for cell in code()] == list(range(1, len(code()) + 1))
    outputs = [output for cell in code() for output in cell["outputs"]]
    assert {output["output_type"] for output in outputs} == {
        "execute_result",
        "display_data",
        "stream",
    }
    shown = NOTEBOOK.read_text(encoding="utf-8")
    text = re.sub(r'"image/png": "[^"]*"', "", shown)
    assert not re.search(r"/(home|root|tmp|work|usr)/|0x[0-9a-f]{8}|\\r", text)
    notebook = json.loads(shown)
    assert cleaned(json.loads(shown)) == notebook


def test_the_cells_of_the_example_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(NOTEBOOK.parent)
    names: dict[str, Any] = {}
    for cell in code():
        source = "".join(cell["source"]).replace("rounds=60", "rounds=4")
        exec(compile(source, NOTEBOOK.name, "exec"), names)
    assert names["run"].round == 4
    html = ["".join(output["data"]["text/html"]) for output in code()[1]["outputs"]]
    assert html == [names["tree"]._repr_html_()]  # what was committed is what this version shows
    names["plt"].close("all")
