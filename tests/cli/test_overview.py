"""`covey --help` does not import torch, and shows the commands that there are."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from covey.cli import main, overview

WITHOUT_TORCH = """
import runpy, sys
sys.argv = ["covey", *sys.argv[1:]]
try:
    runpy.run_module("covey", run_name="__main__")
finally:
    heavy = [name for name in ("torch", "numpy", "pydantic") if name in sys.modules]
    print(f"heavy: {heavy}")
"""


@pytest.mark.parametrize("words", [["--help"], ["--version"], []], ids=str)
def test_help_and_version_import_no_torch(words: list[str]) -> None:
    command = [sys.executable, "-c", WITHOUT_TORCH, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "heavy: []" in done.stdout, done.stderr


def test_the_overview_is_the_help_of_the_whole_command() -> None:
    runner = CliRunner(env={"COLUMNS": "100", "TERMINAL_WIDTH": "100"})
    light = runner.invoke(overview.overview(), ["--help"], prog_name="covey")
    whole = runner.invoke(main.app, ["--help"], prog_name="covey")
    assert "reproduce" in whole.output
    assert light.output == whole.output
    assert light.exit_code == whole.exit_code == 0


class Impatient:
    """Ctrl-C while a module is imported."""

    def find_spec(self, name: str, *_: object) -> None:
        if name == "covey.cli.main":
            raise KeyboardInterrupt


def test_ctrl_c_while_torch_is_imported_shows_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "covey.cli.main")
    monkeypatch.delattr("covey.cli.main")
    monkeypatch.setattr(sys, "meta_path", [Impatient(), *sys.meta_path])
    monkeypatch.setattr(sys, "argv", ["covey", "doctor"])
    with pytest.raises(SystemExit) as end:
        overview.main()
    assert end.value.code == 130
