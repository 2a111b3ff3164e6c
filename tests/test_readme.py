"""The programs in README.md run as they stand."""

import re
from pathlib import Path

import pytest
from rich.console import Console

from covey.cli.config import load
from covey.cli.play import start

BLOCKS = re.findall(r"```python\n(.*?)```", (Path(__file__).parent.parent / "README.md").read_text(), re.S)


@pytest.mark.parametrize("block", BLOCKS)
def test_a_program_of_the_readme_runs(block: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(block, "README.md", "exec"), {})
    assert "round" in capsys.readouterr().out


def test_the_shortest_file_of_the_readme_runs(tmp_path: Path) -> None:
    text = (Path(__file__).parent.parent / "README.md").read_text()
    (file := tmp_path / "file.toml").write_text(re.search(r"```toml\n(.*?)```", text, re.S)[1])  # type: ignore[index]
    start(load(file, ["rounds=1"]), tmp_path / "out", Console(), [])
    assert (tmp_path / "out" / "plot.png").exists()


def test_the_readme_has_the_shortest_program_and_one_with_own_data() -> None:
    assert len(BLOCKS) == 2
