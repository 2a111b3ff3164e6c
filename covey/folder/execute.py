"""Running an experiment into a folder: every seed, what runs beside it, table and pictures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import covey
from covey.errors import CheckpointError, ConfigError, CoveyError, DivergedError
from covey.files.assemble import Experiments
from covey.files.config import Config, load
from covey.files.data_form import is_census
from covey.folder import recover
from covey.folder.folder import create, unused
from covey.folder.outcome import go_on, write_commands, write_outcome
from covey.folder.own_code import write_config
from covey.folder.seeds import Histories, Seeds, Start
from covey.folder.stop import Interrupted, Stop, stoppable
from covey.folder.terminal import Console
from covey.folder.trackers import Maker
from covey.report.summary import Summary, summarise
from covey.runs.saved.live_folder import check_store
from covey.runs.saved.run_folder import RunFolder
from covey.runs.saved.status import StatusFile

__all__ = ["Interrupted", "resume", "start"]

Shown = Callable[[Summary], None]
"""Receives the summary of a run."""
_MAY_CHANGE = ("rounds=", "stop=", "stop.", "store=")
"""How changes of a resumed run begin: nothing else leaves the rounds before as they are."""


def start(
    config: Config,
    out: Path | None,
    console: Console,
    command: list[str],
    experiments: Experiments | None = None,
    makers: Mapping[str, Maker] | None = None,
    show: Shown = lambda summary: None,
) -> tuple[RunFolder, Summary]:
    """A new run in a new folder; everything wrong with it is said before the folder is made.

    `experiments` are those of the file, where some were made already. `makers` make trackers.
    `show` receives the summary before the pictures are drawn.
    """
    experiments = experiments or Experiments()
    path = out or unused(config.name, str(config.algorithm["name"]))
    _check_data(config, path)
    first = _rehearsed(config, experiments)
    path = Path(experiments.ranks.told(str(path)))
    with experiments.ranks.together("make the folder"):
        if experiments.ranks.leads:
            create(path)
    with experiments.ranks.together("find the folder"):
        if not path.is_dir():
            raise ConfigError(
                f"{experiments.ranks} cannot see {path.absolute()}, which rank 0 has made; "
                "give --out a folder that all machines share."
            )
    folder = RunFolder(path, writes=experiments.ranks.leads)
    with folder.lock():
        new = _Command(config, folder, console, command, experiments, makers or {}, show)
        return new.play(first)


def resume(
    path: Path,
    changes: list[str],
    console: Console,
    command: list[str],
    experiments: Experiments | None = None,
    makers: Mapping[str, Maker] | None = None,
    show: Shown = lambda summary: None,
    *,
    anyway: bool = False,
) -> tuple[RunFolder, Summary]:
    """Go on with a run from its last checkpoint, perhaps for more rounds.

    With `anyway`, it goes on where code of the user's own has changed since.
    """
    experiments = experiments or Experiments()
    folder = replace(RunFolder.found(path), writes=experiments.ranks.leads)
    if other := [change for change in changes if not change.startswith(_MAY_CHANGE)]:
        rule = (
            "a resumed run may only get more rounds, another stop or another store; "
            "start a new one for others"
        )
        raise ConfigError(f"{other[0]!r}: {rule}.")
    with folder.lock():
        config = load(folder.config, changes)
        _check_data(config, path)
        recover.check_seeds(config, folder)
        before = load(folder.config, []).rounds
        recover.check_schedule(config, folder.of_seeds(config.every_seed).values(), before)
        resumed = _Command(
            config, folder, console, command, experiments, makers or {}, show, True, anyway
        )
        return resumed.play(None)


def _check_data(config: Config, path: Path) -> None:
    """Refuse data that stay with their devices, and a folder for kept rows that cannot be used.

    The simulator needs the examples of all devices.
    """
    if is_census(config):
        fix = "covey deploy local runs its tree on this machine"
        raise ConfigError(f'data.name = "census": the examples stay with their devices; {fix}.')

    if config.store is not None:
        check_store(Path(config.store), path)


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
    folder: RunFolder
    console: Console
    command: list[str]
    experiments: Experiments
    makers: Mapping[str, Maker]
    show: Shown
    resumed: bool = False
    anyway: bool = False

    def play(self, first: Start | None) -> tuple[RunFolder, Summary]:
        """All rounds that are left, then the summary.

        However it ends, the user is told how to go on.
        """
        folders = self.folder.of_seeds(self.config.every_seed)
        more = go_on(self.folder)
        try:
            with stoppable(self.console, self.experiments.ranks) as stop:
                self.folder.sweep()
                seeds = self._seeds(self.config, self.folder, stop)
                seeds.start = first
                write_commands(self.config, self.folder, self.command)
                with StatusFile(self.folder):
                    histories, engine = seeds.run()
                    others = self._beside(stop, seeds.printed)
                    summary = write_outcome(
                        self.config,
                        self.folder,
                        histories,
                        others,
                        engine,
                        self.command,
                        self.show,
                    )
        except KeyboardInterrupt as error:
            rounds = max(recover.rounds_run(folder) for folder in folders.values())
            state = "no round had ended, so there is nothing to save"
            if rounds:
                state = f"the state after round {rounds} is saved"
            raise Interrupted(f"{state}; resume with: {more}") from error
        except CheckpointError as error:
            raise CheckpointError(f"{error} After the repair, resume with: {more}") from error
        return self.folder, summary

    def _seeds(self, config: Config, folder: RunFolder, stop: Stop) -> Seeds:
        """The seeds of one algorithm, ready to run into a folder."""
        if self.resumed:
            self._mend(config, folder)
        write_config(folder, config)
        folders = folder.of_seeds(config.every_seed)
        return Seeds(config, folders, self.experiments, self.console, stop, makers=self.makers)

    def _mend(self, config: Config, folder: RunFolder) -> None:
        """Mend what a crash has damaged; refuse what cannot go on."""
        targets = folder.of_seeds(config.every_seed)
        with self.experiments.ranks.together("mend the folder"):
            for seed, target in targets.items() if folder.writes else ():
                recover.mend(target, self.console)
                if self.anyway:
                    recover.take_code(target, self.experiments.of(config, seed))
        for seed, target in targets.items():
            recover.check_rounds(config, target)
            if config.stop is not None:
                recover.check_stop(target, self.experiments.of(config, seed))

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
            seeds = self._seeds(other, folder, stop)
            seeds.printed = printed
            seeds.lines = 1
            try:
                with StatusFile(folder):
                    histories, _ = seeds.run()
            except DivergedError as error:
                self.console.print(f"note: {title} is left out of the table: {error}")
                continue
            folder.write_json(folder.summary, summarise(histories, other.protocol).as_dict())
            others[title] = histories
        return others
