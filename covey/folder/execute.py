"""Running an experiment into a folder: every seed, what runs beside it, table and pictures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import covey
from covey.errors import CheckpointError, ConfigError, CoveyError, DivergedError
from covey.files.assemble import Experiments
from covey.files.config import Config, load
from covey.files.data_form import is_census
from covey.folder import recover
from covey.folder.outcome import go_on, write_commands, write_outcome
from covey.folder.own_code import write_config
from covey.folder.seeds import Built, Histories, Seeds, first_runs
from covey.folder.signals import Interrupted, StopSignal, stoppable
from covey.folder.terminal import Console
from covey.folder.trackers import Maker
from covey.report.summary import Summary, summarise
from covey.runs.saved.live_folder import check_store
from covey.runs.saved.run_folder import RunFolder
from covey.runs.saved.status import StatusFile

__all__ = ["Interrupted", "RunCommand"]

_MAY_CHANGE = ("rounds=", "stop=", "stop.", "store=")
"""How changes of a resumed run begin: nothing else leaves the rounds before as they are."""


@dataclass(eq=False)
class RunCommand:
    """A command that runs a file into a folder."""

    console: Console
    words: list[str]
    """The command itself, as it was given."""
    experiments: Experiments = field(default_factory=Experiments)
    """Those of the file, where some were made already."""
    makers: Mapping[str, Maker] = field(default_factory=dict)
    """Of trackers, by name."""
    show: Callable[[Summary], None] = lambda summary: None
    """Receives the summary before the pictures are drawn."""
    anyway: bool = False
    """Whether a run goes on where code of the user's own has changed since."""

    def start(self, config: Config, out: Path | None) -> tuple[RunFolder, Summary]:
        """A new run in a new folder, made once everything wrong with the run has been said."""
        path = out or RunFolder.unused(config.name, str(config.algorithm["name"]))
        _check_data(config, path)
        built = self._rehearsed(config)
        ranks = self.experiments.ranks
        path = Path(ranks.told(str(path)))
        with ranks.together("make the folder"):
            if ranks.leads:
                RunFolder.new(path)
        with ranks.together("find the folder"):
            if not path.is_dir():
                raise ConfigError(
                    f"{ranks} cannot see {path.absolute()}, which rank 0 has made; "
                    "give --out a folder that all machines share."
                )
        folder = RunFolder(path, writes=ranks.leads)
        with folder.lock():
            return folder, self._play(config, folder, built)

    def resume(self, path: Path, changes: list[str]) -> tuple[RunFolder, Summary]:
        """Go on with a run from its last checkpoint, perhaps for more rounds."""
        folder = replace(RunFolder.found(path), writes=self.experiments.ranks.leads)
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
            return folder, self._play(config, folder, {})

    def _rehearsed(self, config: Config) -> Built:
        """The first runs, ready to go.

        The algorithms beside it are built before, one after the other, and dropped again, so that
        no two stand in memory at a time. What is wrong with the file's own algorithm is said first.
        """
        experiments = self.experiments
        experiments.of(config, config.seed)
        try:
            for other in config.yardsticks().values():
                covey.run(experiments.of(other, config.seed), runtime=experiments.runtime)
        except CoveyError:
            first_runs(config, experiments)
            raise
        return first_runs(config, experiments)

    def _play(self, config: Config, folder: RunFolder, built: Built) -> Summary:
        """All rounds that are left, then the summary.

        However it ends, the user is told how to go on.
        """
        more = go_on(folder)
        try:
            with stoppable(self.console, self.experiments.ranks) as stop:
                folder.sweep()
                seeds = self._seeds(config, folder, stop)
                seeds.built = built
                write_commands(config, folder, self.words)
                with StatusFile(folder):
                    histories, engine = seeds.run()
                    others = self._beside(config, folder, stop, seeds.printed)
                    return write_outcome(
                        config, folder, histories, others, engine, self.words, self.show
                    )
        except KeyboardInterrupt as error:
            rounds = max(map(recover.rounds_run, folder.of_seeds(config.every_seed).values()))
            state = "no round had ended, so there is nothing to save"
            if rounds:
                state = f"the state after round {rounds} is saved"
            raise Interrupted(f"{state}; resume with: {more}") from error
        except CheckpointError as error:
            raise CheckpointError(f"{error} After the repair, resume with: {more}") from error

    def _seeds(self, config: Config, folder: RunFolder, stop: StopSignal) -> Seeds:
        """The seeds of one algorithm, ready to run into a folder.

        What a crash has damaged is mended, and what cannot go on is refused.
        """
        folders = folder.of_seeds(config.every_seed)
        begun = {seed: target for seed, target in folders.items() if target.checkpoint.exists()}
        with self.experiments.ranks.together("mend the folder"):
            for seed, target in begun.items() if folder.writes else ():
                recover.mend(target, self.console)
                if self.anyway:
                    recover.take_code(target, self.experiments.of(config, seed))
        for seed, target in begun.items():
            recover.check_rounds(config, target)
            if config.stop is not None:
                recover.check_stop(target, self.experiments.of(config, seed))
        write_config(folder, config)
        return Seeds(config, folders, self.experiments, self.console, stop, makers=self.makers)

    def _beside(
        self, config: Config, folder: RunFolder, stop: StopSignal, printed: set[str]
    ) -> dict[str, Histories]:
        """The other algorithms of the file, each in a folder of its own below this one.

        One that diverges is left out. Notes that were `printed` before are not repeated.
        """
        others = {}
        for name, other in config.yardsticks().items():
            title = other.method()
            self.console.print(f"compared with: {title}")
            place = folder.beside(name)
            place.make()
            seeds = self._seeds(other, place, stop)
            seeds.printed = printed
            seeds.lines = 1
            try:
                with StatusFile(place):
                    histories, _ = seeds.run()
            except DivergedError as error:
                self.console.print(f"note: {title} is left out of the table: {error}")
                continue
            place.write_json(place.summary, summarise(histories, other.protocol).as_dict())
            others[title] = histories
        return others


def _check_data(config: Config, path: Path) -> None:
    """Refuse data that stay with their devices, and a folder for kept rows that cannot be used.

    The simulator needs the examples of all devices.
    """
    if is_census(config):
        fix = "covey deploy local runs its tree on this machine"
        raise ConfigError(f'data.name = "census": the examples stay with their devices; {fix}.')

    if config.store is not None:
        check_store(Path(config.store), path)
