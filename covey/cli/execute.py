"""Running an experiment into a folder: every seed, what runs beside it, table and pictures."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

import covey
from covey.cli import recover
from covey.cli.assemble import Experiments
from covey.cli.config import Config, load
from covey.cli.folder import Folder, create, environment, refused, unused
from covey.cli.registry import method
from covey.cli.seeds import Histories, Seeds, Start, folders_of
from covey.cli.stop import Interrupted, Stop, stoppable
from covey.cli.trackers import Maker
from covey.errors import CheckpointError, ConfigError, CoveyError, DivergedError
from covey.report.summary import Summary, summarise
from covey.runs.devices import DeviceScore, from_csv
from covey.runs.live_folder import check_store
from covey.runs.run import private_part
from covey.runtimes.ranks import Ranks

__all__ = ["Interrupted", "resume", "start"]

_MAY_CHANGE = ("rounds=", "stop=", "stop.", "store=")
"""How changes of a resumed run begin: nothing else leaves the rounds before as they are."""


def start(
    config: Config,
    out: Path | None,
    console: Console,
    command: list[str],
    experiments: Experiments | None = None,
    makers: Mapping[str, Maker] | None = None,
) -> tuple[Folder, Summary]:
    """A new run in a new folder; everything wrong with it is said before the folder is made.

    `experiments` are those of the file, where some were made already. `makers` make trackers.
    """
    experiments = experiments or Experiments()
    path = out or unused(config.name, str(config.algorithm["name"]))
    _check_store(config, path)
    first = _rehearsed(config, experiments)
    folder = _same_folder(path, experiments.ranks)
    with folder.lock():
        return _Command(config, folder, console, command, experiments, makers or {}).play(first)


def resume(
    path: Path,
    changes: list[str],
    console: Console,
    command: list[str],
    experiments: Experiments | None = None,
    makers: Mapping[str, Maker] | None = None,
) -> tuple[Folder, Summary]:
    """Go on with a run from its last checkpoint, perhaps for more rounds."""
    experiments = experiments or Experiments()
    if not (path / "config.toml").exists():
        raise ConfigError(f"{path} is not a run folder: it has no config.toml.")
    if other := [change for change in changes if not change.startswith(_MAY_CHANGE)]:
        rule = (
            "a resumed run may only get more rounds, another stop or another store; "
            "start a new one for others"
        )
        raise ConfigError(f"{other[0]!r}: {rule}.")
    folder = Folder(path, writes=experiments.ranks.leads)
    with folder.lock():
        config = load(path / "config.toml", changes)
        _check_store(config, path)
        recover.check_seeds(config, folder)
        before = load(path / "config.toml", []).rounds
        recover.check_schedule(config, folders_of(config, folder).values(), before)
        return _Command(config, folder, console, command, experiments, makers or {}).play(None)


def _check_store(config: Config, path: Path) -> None:
    """Refuse a folder for kept rows that this run cannot use, where it has one."""
    if config.store is not None:
        check_store(Path(config.store), path)


def _same_folder(path: Path, ranks: Ranks) -> Folder:
    """A new folder that rank 0 makes and all ranks see."""
    path = Path(ranks.told(str(path)))
    with ranks.together("make the folder"):
        if ranks.leads:
            create(path)
    with ranks.together("find the folder"):
        if not path.is_dir():
            raise ConfigError(
                f"{ranks} cannot see {path.absolute()}, which rank 0 has made; "
                "give --out a folder that all machines share."
            )
    return Folder(path, writes=ranks.leads)


def _rehearsed(config: Config, experiments: Experiments) -> Start:
    """The first runs, ready to go.

    The algorithms beside it are built before, one after the other, and dropped again, so that no
    two stand in memory at a time. What is wrong with the file's own algorithm is said first.
    """
    experiments.of(config, config.seed)
    try:
        for other in config.yardsticks().values():
            covey.run(experiments.of(other, config.seed), runtime=experiments.runtime)
    except CoveyError:
        Start.of(config, experiments)
        raise
    return Start.of(config, experiments)


@dataclass(eq=False)
class _Command:
    """One command that runs a file into a folder."""

    config: Config
    folder: Folder
    console: Console
    command: list[str]
    experiments: Experiments
    makers: Mapping[str, Maker]

    def play(self, first: Start | None) -> tuple[Folder, Summary]:
        """All rounds that are left, then the summary.

        However it ends, the user is told how to go on.
        """
        folders = folders_of(self.config, self.folder)
        go_on = f"covey run --resume {shlex.quote(str(self.folder.path))}"
        try:
            with stoppable(self.console, self.experiments.ranks) as stop:
                self.folder.sweep()
                self._prepare(self.config, self.folder)
                self._write_commands(go_on)
                seeds = Seeds(
                    self.config,
                    folders,
                    self.experiments,
                    self.console,
                    stop,
                    first,
                    makers=self.makers,
                )
                with self.folder.status():
                    histories, engine = seeds.run()
                    others = self._beside(stop, seeds.printed)
                    summary = self._finish(histories, others, engine)
        except KeyboardInterrupt as error:
            rounds = max(recover.rounds_run(folder) for folder in folders.values())
            state = "no round had ended, so there is nothing to save"
            if rounds:
                state = f"the state after round {rounds} is saved"
            raise Interrupted(f"{state}; resume with: {go_on}") from error
        except CheckpointError as error:
            raise CheckpointError(f"{error} After the repair, resume with: {go_on}") from error
        return self.folder, summary

    def _prepare(self, config: Config, folder: Folder) -> None:
        """Mend what a crash has damaged, and write the resolved file."""
        targets = folders_of(config, folder)
        with self.experiments.ranks.together("mend the folder"):
            if folder.writes:
                for target in targets.values():
                    recover.mend(target, self.console)
        for seed, target in targets.items():
            recover.check_rounds(config, target)
            if config.stop is not None:
                recover.check_stop(target, self.experiments.of(config, seed))
        folder.write("config.toml", config.text())

    def _write_commands(self, go_on: str) -> None:
        """How to repeat the run, and on what it was run."""
        repeat = f"covey run {shlex.quote(str(self.folder.path / 'config.toml'))}"
        more = f"{go_on} rounds={self.config.rounds + 10}"
        if self.config.schedule() is not None:
            more = go_on
        self.folder.write("repeat.txt", f"{repeat}\n{more}\n")
        self.folder.write_json("environment.json", environment(self.command))

    def _beside(self, stop: Stop, printed: set[str]) -> dict[str, Histories]:
        """The other algorithms of the file, each in a folder of its own below this one.

        One that diverges is left out. Notes that were `printed` before are not repeated.
        """
        others = {}
        for name, other in self.config.yardsticks().items():
            title = other.method()
            self.console.print(f"compared with: {title}")
            folder = self.folder.beside(name)
            folder.make()
            self._prepare(other, folder)
            seeds = Seeds(
                other,
                folders_of(other, folder),
                self.experiments,
                self.console,
                stop,
                makers=self.makers,
            )
            seeds.printed = printed
            seeds.lines = 1
            try:
                with folder.status():
                    histories, _ = seeds.run()
            except DivergedError as error:
                self.console.print(f"note: {title} is left out of the table: {error}")
                continue
            folder.write_json("summary.json", summarise(histories, other.protocol).as_dict())
            others[title] = histories
        return others

    def _finish(
        self,
        histories: Histories,
        others: dict[str, Histories],
        engine: dict[str, Any],
    ) -> Summary:
        """The summary and the pictures."""
        from covey.report import compare

        config = self.config
        if not self.folder.writes:
            return summarise(histories, config.protocol)
        folders = list(folders_of(config, self.folder).values())
        devices = [
            from_csv((folder.path / "devices.csv").read_text(encoding="utf-8"))
            for folder in folders
        ]
        private = private_part(folders[0].checkpoint)
        summary = summarise(histories, config.protocol, devices, config.learner(), private)
        summary = replace(summary, yardsticks=compare.yardsticks(others, config.protocol))
        self.folder.write_json("environment.json", environment(self.command) | {"engine": engine})
        self.folder.write_json("summary.json", summary.as_dict())
        self._draw(histories, others, devices)
        return summary

    def _draw(
        self,
        histories: Histories,
        others: dict[str, Histories],
        devices: list[list[DeviceScore]],
    ) -> None:
        from covey.report import compare
        from covey.report.plot import draw, draw_devices

        title = method(self.config.algorithm["name"])
        plot, per_device, compared = (
            self.folder.path / f"{name}.png" for name in ("plot", "devices", "compare")
        )
        with refused(plot):
            draw(histories, plot, title, devices)
        with refused(per_device):
            draw_devices(histories, per_device, title, devices)
        if others:
            with refused(compared):
                compare.draw({self.config.method(): histories} | others, compared)
