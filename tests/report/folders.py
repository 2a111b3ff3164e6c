"""Run folders as `covey run` makes them, without its table and pictures, which take longer."""

from __future__ import annotations

import io
from pathlib import Path

from covey.files.assemble import Experiments
from covey.files.config import Config, load
from covey.folder.seeds import Seeds
from covey.folder.signals import stoppable
from covey.folder.terminal import Console
from covey.runs.saved.run_folder import RunFolder
from covey.runs.saved.status import StatusFile
from tests.cli.command import BASE, SMALL

FLAT = (*SMALL[1:-1], "algorithm.name=fedavg", "codec=dense")
"""The changes of SMALL for an algorithm of two tiers."""


def run_into(folder: Path, *changes: str, file: Path = BASE, runtime: str = "simulator") -> Path:
    """Run a small experiment with these changes into a folder, and what is compared with it."""
    if file == BASE and not any(change.startswith("algorithm.name") for change in changes):
        changes = (*SMALL[1:], *changes)
    config = load(file, changes)
    place = RunFolder(folder)
    place.make()
    with place.lock():
        _play(config, place, runtime)
    return folder


def _play(config: Config, folder: RunFolder, runtime: str) -> None:
    folder.make()
    folder.write("config.toml", config.text())
    console = Console(file=io.StringIO())
    with stoppable(console) as stop, StatusFile(folder):
        places = folder.of_seeds(config.every_seed)
        Seeds(config, places, Experiments(runtime), console, stop).run()
        for name, other in config.yardsticks().items():
            _play(other, folder.beside(name), runtime)
