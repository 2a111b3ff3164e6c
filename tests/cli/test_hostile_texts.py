"""Texts that others wrote, such as names of devices: no styles, no formulas, no escape sequences."""

import csv
import io
import re
from pathlib import Path

import pytest

from covey.cli.main import app, main
from covey.folder.terminal import Console
from covey.runs.csv_text import csv_text
from covey.runs.scores import devices
from tests.cli.command import SMALL, Result, covey, exits

ESCAPE = "\x1b[31mred"
NAMES = [
    '=HYPERLINK("http://evil","x")', "+cmd|' /C calc'!A0", "@SUM(1)", "-2+3+cmd", ESCAPE, "[/red]",
    "$\\frac$",
]  # fmt: skip
MARKUP = ["[/red]", "[bold]x\x1b[31m:heart:"]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """A run whose devices and classes have such names, and what it printed."""
    folder = tmp_path_factory.mktemp("names")
    with open(folder / "d.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["device", "a", "b", "label"])
        for device in NAMES:
            for row in range(24):
                writer.writerow([device, row % 7, row % 5, NAMES[row % 6]])
    (folder / "x.toml").write_text(
        'name = "x"\nrounds = 2\nmetrics = ["confusion"]\nmodel = { name = "linear" }\n'
        f'algorithm = {{ name = "ditto" }}\ndata = {{ name = "files", path = "{folder}/d.csv" }}\n'
    )
    return folder, covey("run", folder / "x.toml", "--out", folder / "run")


def cells(text: str) -> list[str]:
    return [cell for row in csv.reader(io.StringIO(text)) for cell in row]


def formulas(text: str) -> list[str]:
    starts = [cell for cell in cells(text) if cell.startswith(("=", "+", "-", "@"))]
    return [cell for cell in starts if not re.fullmatch(r"[-+]?[0-9.e+-]+", cell)]


@pytest.mark.parametrize("name", ["devices.csv", "confusion.csv"])
def test_no_cell_of_a_run_is_a_formula(table: tuple[Path, Result], name: str) -> None:
    folder, ran = table
    assert ran.code == 0, ran.err
    text = (folder / "run" / name).read_text()
    assert not formulas(text)
    assert "'@SUM(1)" in cells(text)


def test_names_come_back_from_their_file(table: tuple[Path, Result]) -> None:
    folder, _ = table
    scores = devices.from_csv((folder / "run" / "devices.csv").read_text())
    assert {score.device for score in scores} == set(NAMES)
    odd = ["'=x", "''", "-1", "+1e5", "\tx", "pump"]
    written = csv_text(["name"], [[name] for name in odd])
    assert cells(written) == ["name", "''=x", "'''", "-1", "+1e5", "'\tx", "pump"]


def test_no_cell_of_predictions_is_a_formula(table: tuple[Path, Result]) -> None:
    folder, _ = table
    words = ("predict", folder / "run", "--data", folder / "d.csv")
    shown = exits(0, *words)
    assert not formulas(shown.out)
    assert "\x1b" not in shown.out
    exits(0, *words, "--out", folder / "p.csv")
    assert not formulas((folder / "p.csv").read_text())


def test_no_escape_of_a_name_reaches_the_terminal(table: tuple[Path, Result]) -> None:
    folder, ran = table
    for words in (
        ["show", folder / "run", "--devices"],
        ["export", folder / "run", "--node", ESCAPE],
    ):
        ended = exits(0, *words)
        assert "[31mred" in ended.out
        assert "\x1b" not in ended.out + ended.err
    assert "\x1b" not in ran.out + ran.err
    refused = exits(2, "export", folder / "run", "--node", "\x1b]0;title\x07\x9b2J\u202e")
    assert not re.search("[\x07\x1b\x9b\u202e]", refused.err)


@pytest.mark.parametrize("name", MARKUP)
def test_a_folder_may_be_called_as_a_style_is(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name of a folder ended a finished run: rich took it for a style that nothing opened."""
    monkeypatch.chdir(tmp_path)
    shown = name.replace("\x1b", "")
    for words in (
        ["run", *SMALL, "rounds=1", "--out", name],
        ["report", name],
        ["runs", Path(name).parent],
    ):
        assert Path(shown).name in exits(0, *words).out
    assert f"folder: {shown}" in exits(0, "run", "--resume", name, "rounds=2").out


def test_a_terminal_keeps_its_own_colours() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, color_system="standard")
    console.print("[red]mine[/] \\[red]theirs", markup=True)
    console.print("[red]theirs\x1b[31m")
    assert out.getvalue() == "\x1b[31mmine\x1b[0m [red]theirs\n[red]theirs[31m\n"


def test_every_command_prints_through_this_console() -> None:
    """With rich's own a text of somebody else would be markup again."""
    assert callable(app)
    assert callable(main)
    folder = Path(__file__).parents[2] / "covey"
    for file in folder.rglob("*.py"):
        if file.name != "terminal.py":
            assert "from rich.console import Console" not in file.read_text(), file
            assert "typer.echo" not in file.read_text(), file
