"""The prose is readable and true.

Names resolve, lines and sentences are short, links lead to files and headings, commands exist, and
every block of Python runs or says that it is a fragment. tests/test_readme.py and
tests/test_one_file.py run the blocks.
"""

import ast
import importlib
import re
import shlex
import textwrap
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer

import covey
from covey.cli import main
from covey.files.config import load
from tools import algorithms

ROOT = Path(__file__).parent.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("*.md"))
MAX_LINE = 120
MAX_WORDS = 30
FENCE = re.compile(r"^```(.*?)\n(.*?)^```$", re.S | re.M)
DOTTED = re.compile(r"(?<![\w./\"-])covey(?:\.[A-Za-z_]\w*)+(?!/)")
SENTENCE_END = re.compile(r"(?<=[.!?])[*_)\"]*\s+")
PICTURE = re.compile(r"!\[([^\]]*)\]\(([^)]*)\)")
LINK = re.compile(r"\[([^\]]*)\]\(([^)]*)\)")
CODE = re.compile(r"`[^`]*`")
COMMAND = re.compile(r"^ {4}(?:\.venv/bin/)?covey (.*)|`covey ([^`]*)`", re.M)
NUMBER = re.compile(r"\d*\.?\d+")
COVEY = typer.main.get_command(main.app)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def without_fences(text: str) -> str:
    return FENCE.sub("", text)


def is_table(line: str) -> bool:
    return line.lstrip().startswith("|")


def is_indented_code(line: str) -> bool:
    return line.startswith("    ")


def prose_lines(text: str) -> list[str]:
    """The lines outside fences and tables."""
    return [line for line in without_fences(text).splitlines() if not is_table(line)]


def paragraphs(text: str) -> list[str]:
    """Paragraphs, headings and list items, each on one line and without code or link addresses."""
    blocks: list[list[str]] = [[]]
    for line in prose_lines(text):
        if is_indented_code(line):
            continue
        starts_item = re.match(r"\s*([-*]|\d+\.)\s", line) or line.startswith("#")
        if not line.strip() or starts_item:
            blocks.append([])
        blocks[-1].append(line.strip().lstrip("#-* "))
    plain = [" ".join(block).strip() for block in blocks]
    return [unmarked(block) for block in plain if block]


def unmarked(text: str) -> str:
    """Pictures become their descriptions, links their words, and code one word."""
    text = PICTURE.sub(r"\1.", text)
    text = LINK.sub(r"\1", text)
    return CODE.sub("code", text)


def sentences(text: str) -> list[str]:
    """
    >>> sentences("One fact. Another one: `x.y = 3`! See [the page](a.md).")
    ['One fact.', 'Another one: code!', 'See the page.']
    """
    return [part for block in paragraphs(text) for part in SENTENCE_END.split(block) if part]


def resolve(dotted: str) -> Any:
    """The module, class or function of that name."""
    value: Any = covey
    path = "covey"
    for name in dotted.split(".")[1:]:
        path += f".{name}"
        if not hasattr(value, name):
            importlib.import_module(path)
        value = getattr(value, name)
    return value


@pytest.mark.parametrize("page", [*PAGES, *DECISIONS], ids=name_of)
def test_every_dotted_name_resolves(page: Path) -> None:
    for dotted in sorted(set(DOTTED.findall(page.read_text()))):
        try:
            resolve(dotted)
        except (ImportError, AttributeError) as error:
            pytest.fail(f"{name_of(page)} names {dotted}, which does not resolve: {error}")


@pytest.mark.parametrize("page", [*PAGES, *DECISIONS], ids=name_of)
def test_lines_are_short(page: Path) -> None:
    long = [line for line in prose_lines(page.read_text()) if len(line) > MAX_LINE]
    assert not long


@pytest.mark.parametrize("page", [*PAGES, *DECISIONS], ids=name_of)
def test_sentences_are_short(page: Path) -> None:
    counts = {sentence: len(sentence.split()) for sentence in sentences(page.read_text())}
    long = {sentence: count for sentence, count in counts.items() if count > MAX_WORDS}
    assert not long


@pytest.mark.parametrize("page", [*PAGES, *DECISIONS], ids=name_of)
def test_links_lead_to_files(page: Path) -> None:
    for _, target in LINK.findall(without_fences(page.read_text())):
        file = target.partition("#")[0]
        if file and "://" not in file:
            assert (page.parent / file).exists(), target


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    headings = re.findall(r"^#+ (.*)$", without_fences(page.read_text()), re.M)
    plain = [re.sub(r"[^\w\- ]", "", heading.lower()).strip() for heading in headings]
    return {heading.replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", [*PAGES, *DECISIONS], ids=name_of)
def test_links_lead_to_headings(page: Path) -> None:
    for _, target in LINK.findall(without_fences(page.read_text())):
        file, _, anchor = target.partition("#")
        if anchor and "://" not in file:
            linked = page.parent / file if file else page
            assert anchor in anchors(linked), target


def parse(command: Any, words: list[str], *, mentioned: bool) -> None:
    """Parse a command line, without running it; prose may mention an option without its value."""
    try:
        command.make_context("covey", words, resilient_parsing="..." in words)
    except Exception as error:
        if not mentioned or "requires an argument" not in str(error):
            raise


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_command_and_its_options_exist(page: Path) -> None:
    whole_lines = page.read_text().replace("\\\n", " ")
    for line, inline in COMMAND.findall(whole_lines):
        words = shlex.split((line or inline).replace("\n", " "), comments=True)
        command: Any = main.load(words.pop(0)) if words and words[0] in main.COMMANDS else COVEY
        while words and words[0] in getattr(command, "commands", ()):
            command = command.commands[words.pop(0)]
        if words:
            parse(command, words, mentioned=bool(inline))


@pytest.mark.parametrize("page", PAGES[1:], ids=name_of)  # tests/test_readme.py runs the first
def test_every_block_of_toml_is_toml_and_a_whole_file_loads(page: Path, tmp_path: Path) -> None:
    for kind, block in FENCE.findall(page.read_text()):
        if kind != "toml":
            continue
        tables = tomllib.loads(block)
        if {"algorithm", "data", "model"} <= set(tables):
            file = tmp_path / "page.toml"
            file.write_text(block)
            assert load(file).learner()


def numbers(text: str) -> set[str]:
    """
    >>> sorted(numbers("| 98.74 ± 0.69, some 54 (two: 2) |"))
    ['0.69', '54', '98.74']
    """
    return {number for number in NUMBER.findall(text) if len(number) > 1}


def test_the_figures_to_choose_by_are_those_of_their_sources() -> None:
    page = ROOT / "docs" / "choose.md"
    rows = [line for line in page.read_text().splitlines() if is_table(line) and "](" in line]
    assert len(rows) > 10
    for row in rows:
        sources = [page.parent / target.partition("#")[0] for _, target in LINK.findall(row)]
        measured = set().union(*(numbers(source.read_text()) for source in sources))
        assert numbers(LINK.sub("", row)) <= measured, row


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_bytes()) <= 8000


def test_the_start_page_has_the_figures_of_the_readme() -> None:
    start = (ROOT / "docs" / "index.md").read_text()
    readme = (ROOT / "README.md").read_text()
    demo = readme.partition("## Try it")[2].partition("## Your data")[0]
    rows = [line for line in demo.splitlines() if line.endswith(tuple("0123456789"))]
    assert len(rows) == 6
    for row in rows:
        model = row.partition("  ")[0]
        shown = next(line for line in start.splitlines() if line.startswith(f"| {model} |"))
        assert numbers(shown) <= numbers(row), row


def test_the_speeds_of_the_readme_are_medians_of_one_table() -> None:
    results = (ROOT / "benchmarks" / "RESULTS.md").read_text()
    one = results.partition("<!-- rivals:")[2].partition("<!-- rivals: to here")[0]
    rows = [line for line in (ROOT / "README.md").read_text().splitlines() if "s per round" in line]
    assert len(rows) == 2
    for cell in (cell.strip() for row in rows for cell in row.split("|")[2:5]):
        seconds, _, times = cell.partition(" ")
        assert f"| {float(seconds):.4f} (" in one, cell
        assert not times or f"| **{times.strip('()')}** (" in one, cell


@pytest.mark.parametrize("page", [*PAGES, *DECISIONS], ids=name_of)
def test_a_block_of_python_runs_or_is_a_fragment(page: Path) -> None:
    for kind, block in FENCE.findall(page.read_text()):
        if kind.startswith("python"):
            assert kind in ("python", "python fragment")
            ast.parse(textwrap.dedent(block))
        else:
            assert not re.search(r"^\s*(def|import|class) ", block, re.M), "mark it as python"


def test_the_page_of_algorithms_is_that_of_their_docstrings() -> None:
    text = algorithms.PAGE.read_text()
    assert text == algorithms.page(), "python -m tools.algorithms writes it"
    assert f"[{len(covey.algorithms.ALGORITHMS)} methods]" in (ROOT / "README.md").read_text()


def programs(source: str) -> dict[str, str]:
    """The programs of a file or fragment as syntax trees, without types and comments."""
    trees = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.name in ("server", "edge", "device"):
            node.returns = None
            for argument in node.args.args:
                argument.annotation = None
            trees[node.name] = ast.dump(node)
    return trees


def test_the_programs_of_sfedhp_are_those_of_its_file() -> None:
    text = (ROOT / "docs" / "sfedhp.md").read_text()
    fragment = next(block for kind, block in FENCE.findall(text) if kind == "python fragment")
    file = ROOT / "covey" / "algorithms" / "sfedhp.py"
    assert programs(fragment) == programs(file.read_text())
