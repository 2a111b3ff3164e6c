"""Help imports no torch, and every command is there."""

import subprocess
import sys

import pytest

from covey.cli import main

WITHOUT_TORCH = """
import runpy, sys
sys.argv = ["covey", *sys.argv[1:]]
try:
    runpy.run_module("covey", run_name="__main__")
finally:
    print("heavy:", [name for name in ("torch", "numpy", "pydantic") if name in sys.modules])
"""


OWN = ("covey.cli.", "covey.grid.")
HELPED = [name for name, command in main.COMMANDS.items() if command.call.startswith(OWN)]


@pytest.mark.parametrize(
    "words", [["--help"], ["--version"], [], *([name, "--help"] for name in HELPED)], ids=str
)
def test_help_and_version_import_no_torch(words: list[str]) -> None:
    command = [sys.executable, "-c", WITHOUT_TORCH, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    of_typer = "'pydantic'" if words[1:] else ""  # which reads the types of options with it
    assert f"heavy: [{of_typer}]" in done.stdout, done.stderr


@pytest.mark.parametrize("name", main.COMMANDS)
def test_a_command_is_imported_when_it_is_called(name: str) -> None:
    line = main.COMMANDS[name].help
    assert line.endswith(".")
    help = main.load(name).help
    assert help.partition("\n\n")[0] == line
    assert help.count(line) == 1  # the docstring goes on where the line ends


class Impatient:
    """Ctrl-C while a module is imported."""

    def find_spec(self, name: str, *_: object) -> None:
        if name == "covey.cli.doctor":
            raise KeyboardInterrupt


def test_ctrl_c_while_torch_is_imported_shows_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "covey.cli.doctor", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Impatient(), *sys.meta_path])
    monkeypatch.setattr(sys, "argv", ["covey", "doctor"])
    with pytest.raises(SystemExit) as end:
        main.main()
    assert end.value.code == 130
