"""`covey new algorithm`: an algorithm with its test and its experiment, to start from."""

from __future__ import annotations

import keyword
import re
import shlex
from dataclasses import dataclass
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import Annotated

import typer

import covey
from covey.atomic import refused
from covey.errors import ConfigError
from covey.folder.terminal import Console

app = typer.Typer(no_args_is_help=True)
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_TIERS = (2, 3)


@app.callback(help="")
def _new() -> None:
    """Nothing; a group of one command needs it."""


@dataclass(frozen=True)
class AlgorithmNames:
    """What the parts of a new algorithm are called."""

    Name: str  # the class
    stem: str  # the files, and the algorithm in a package
    module: str  # what a program imports

    @staticmethod
    def of(text: str, *, package: bool) -> AlgorithmNames:
        """The names for what a user wrote, as FedMine, fedmine or fed_mine."""
        if not _NAME.fullmatch(text):
            raise ConfigError(
                f"{text!r} cannot be the name of an algorithm; "
                "give up to 64 letters, digits and _, a letter first, as in FedMine."
            )
        name = "".join(word[:1].upper() + word[1:] for word in text.split("_"))
        stem = name.lower()
        return AlgorithmNames(name, stem, f"covey_{stem}" if package else stem)


@app.command()
def algorithm(
    name: Annotated[str, typer.Argument(help="The name of the class, as in FedMine.")],
    folder: Annotated[
        Path | None,
        typer.Option("--dir", metavar="DIR", help="Where to write. Default: the current folder."),
    ] = None,
    tiers: Annotated[
        int,
        typer.Option(help="2: server and devices; 3: edges between them."),
    ] = 2,
    package: Annotated[
        bool,
        typer.Option(
            "--package", help="An installable package in a folder of its own: covey-NAME."
        ),
    ] = False,
) -> None:
    """Write an algorithm, its test and an experiment that runs it.

    All three work as they are: the test holds the algorithm to the laws and computes two rounds by
    hand. With --package, covey finds the algorithm by its name once the package is installed.

    Examples:

      covey new algorithm FedMine

      covey new algorithm FedMine --tiers 3 --dir methods

      covey new algorithm FedMine --package
    """
    if tiers not in _TIERS:
        raise ConfigError(f"--tiers {tiers}: give 2 (server, device) or 3 (server, edge, device).")
    names = AlgorithmNames.of(name, package=package)
    root = folder or Path()
    experiment = f"{names.stem}.toml"
    code, test = f"{names.module}.py", f"test_{names.stem}.py"
    named = f"{names.module}:{names.Name}"
    files: dict[str, str] = {}
    if package:
        root = root / f"covey-{names.stem}"
        code, test = f"{names.module}/__init__.py", f"tests/{test}"
        named = names.stem
        files = {name: _filled(name, names) for name in ("pyproject.toml", "README.md")}
    files[code] = _filled(f"algorithm-{tiers}.py", names)
    files[test] = _filled(f"test-{tiers}.py", names)
    files[experiment] = _filled(f"experiment-{tiers}.toml", names, algorithm=named, file=experiment)
    _check_free(names, root, files)
    written: list[Path] = []
    try:
        for path, text in ((root / name, text) for name, text in files.items()):
            with refused(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                with open(path, "x", encoding="utf-8") as file:
                    written.append(path)
                    file.write(text)
    except BaseException:  # all files, or none
        for path in written:
            path.unlink(missing_ok=True)
        raise
    console = Console()
    for path in written:
        console.print(f"wrote {path}")
    tested = root if package else root / test
    console.print(f"test it: pytest {shlex.quote(str(tested))}")
    if package:
        console.print(f"install it: pip install {shlex.quote(str(root))}")
    console.print(f"run it: covey run {shlex.quote(str(root / experiment))}")


def _filled(template: str, names: AlgorithmNames, **more: str) -> str:
    """A template with the names in it."""
    file = resources.files("covey.cli").joinpath("templates", f"{template}.txt")
    return Template(file.read_text(encoding="utf-8")).substitute(vars(names) | more)


def _check_free(names: AlgorithmNames, root: Path, files: dict[str, str]) -> None:
    """An error if the name means something else already, or if a file or module has it."""
    from covey.files import registry  # it imports torch

    if keyword.iskeyword(names.stem) or names.Name in covey.__all__:
        raise ConfigError(f"{names.Name} means something else in such a file; choose another name.")
    if names.stem in registry.names("algorithms"):
        raise ConfigError(
            f"there is an algorithm {names.stem} already (covey list algorithms {names.stem}); "
            "choose another name."
        )
    if root.exists() and not root.is_dir():
        raise ConfigError(f"--dir {root} is a file; name a folder.")
    taken = [str(root / name) for name in files if (root / name).exists()]
    if taken:
        raise ConfigError(
            f"{taken[0]} exists already, and nothing is overwritten; "
            "choose another name or another --dir, or remove it."
        )
    if find_spec(names.module) is not None:
        raise ConfigError(f"a module {names.module} is installed already; choose another name.")
