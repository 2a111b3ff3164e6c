"""The programs in README.md and docs/ run as they stand; tests/test_one_file.py runs those of
docs/write-an-algorithm.md.
"""

import re
import runpy
from pathlib import Path

import pytest

from covey.files.config import load
from covey.folder.execute import RunCommand
from covey.folder.terminal import Console

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
BLOCKS = {
    f"{page.name}-{number}": block
    for page in PAGES
    if page.name != "write-an-algorithm.md"
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.S))
}


@pytest.mark.parametrize("name", BLOCKS)
def test_a_program_of_the_pages_runs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    block = BLOCKS[name]
    Path("examples").symlink_to(ROOT / "examples")  # as in a clone
    exec(compile(block, "a page", "exec"), {"__name__": "a_page"})
    assert "round" in capsys.readouterr().out


def test_the_table_and_the_file_of_the_readme_are_those_of_the_example(tmp_path: Path) -> None:
    example = ROOT / "examples" / "compressors"
    text = (ROOT / "README.md").read_text()
    block = re.search(r"```toml\n(.*?)```", text, re.S)[1]
    assert len(block.splitlines()) == 8
    assert (example / "compressors.toml").read_text().endswith(f"\n{block}")
    lines = (example / "compressors.csv").read_text().splitlines()
    assert "\n".join(["```", *lines[:4], "```"]) in text
    config = load(example / "compressors.toml", ["rounds=1"])
    RunCommand(Console(), []).start(config, tmp_path / "out")
    assert (tmp_path / "out" / "plot.png").exists()


def test_the_table_of_the_example_is_what_its_script_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    script = ROOT / "examples" / "compressors" / "make.py"
    written: list[str] = []
    monkeypatch.setattr(Path, "write_text", lambda _, text: written.append(text))
    runpy.run_path(str(script), run_name="__main__")
    assert written == [script.with_name("compressors.csv").read_text()]


def test_the_pages_have_programs() -> None:
    pages = {name.partition("-")[0] for name in BLOCKS}
    assert pages >= {
        "README.md", "data.md", "idea.md", "index.md", "measure.md", "model.md", "trees.md",
        "use.md",
    }  # fmt: skip
