"""Running an experiment into a folder: every seed, checkpoints, interruption, the end."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from rich.console import Console

import covey
from covey import checkpoint
from covey.cli.config import Config, load
from covey.cli.folder import Folder, create, environment, refused, unused
from covey.cli.show import progress
from covey.errors import CheckpointError, ConfigError, CoveyError
from covey.report.plot import draw
from covey.report.summary import Summary, summarise
from covey.run import Round, Run


class Interrupted(CoveyError):
    """The user stopped the run; it is saved."""


def start(config: Config, out: Path | None, console: Console, command: list[str]) -> tuple[Folder, Summary]:
    """A new run in a new folder."""
    covey.run(config.experiment(config.seed))  # everything wrong with it is said before a folder is made
    folder = create(out or unused(config.name or config.algorithm["name"]))
    with folder.lock():
        return _play(config, folder, console, command)


def resume(path: Path, changes: list[str], console: Console, command: list[str]) -> tuple[Folder, Summary]:
    """Go on with a run from its last checkpoint, perhaps for more rounds."""
    if not (path / "config.toml").exists():
        raise ConfigError(f"{path} is not a run folder: it has no config.toml.")
    if other := [change for change in changes if not change.startswith("rounds=")]:
        raise ConfigError(f"{other[0]!r}: a resumed run may only get more rounds; start a new one for other changes.")
    folder = Folder(path)
    with folder.lock():
        return _play(load(path / "config.toml", changes), folder, console, command)


def _play(config: Config, folder: Folder, console: Console, command: list[str]) -> tuple[Folder, Summary]:
    repeat = f"covey run {shlex.quote(str(folder.path / 'config.toml'))}"
    again = f"covey run --resume {shlex.quote(str(folder.path))}"
    places = {seed: folder if config.seeds == 1 else folder.seed(seed) for seed in range(config.seed, config.seed + config.seeds)}
    try:
        with _stoppable():
            for place in places.values():
                _enough(config, place)
            folder.sweep()
            folder.write("config.toml", config.text())
            folder.write("repeat.txt", f"{repeat}\n{again} rounds={config.rounds + 10}\n")
            folder.write_json("environment.json", environment(command))
            histories = [_seed(config, seed, place, console) for seed, place in places.items()]
            summary = summarise(histories, config.protocol)
            folder.write_json("summary.json", summary.as_dict())
            with refused(folder.path / "plot.png"):
                draw(histories, folder.path / "plot.png", title=config.name or config.algorithm["name"])
    except KeyboardInterrupt as error:
        raise Interrupted(f"the state is saved; go on with: {again}") from error
    except CheckpointError as error:
        raise CheckpointError(f"{error} When that is mended, go on with: {again}") from error
    return folder, summary


def _seed(config: Config, seed: int, folder: Folder, console: Console) -> list[Round]:
    """All rounds of one seed; those already run come from its checkpoint."""
    label = f"seed {seed}  " if config.seeds > 1 else ""
    folder.make()
    saved = folder.checkpoint if folder.checkpoint.exists() else None
    if saved is not None and (history := _finished(config, seed, saved)) is not None:
        more = f"; for more, add rounds={config.rounds + 10}" if config.seeds == 1 else ""
        console.print(f"note: {label}all {config.rounds} rounds were run before{more}", highlight=False)
        return history
    run = covey.run(config.experiment(seed), resume=saved)
    for note in run.notes:
        console.print(f"note: {note}", highlight=False)
    folder.metrics(run.history)
    with progress(console, label=label, rounds=config.rounds, done=run.round) as show:
        try:
            for record in run:
                show(record)
                folder.append(record)
                if run.round % config.checkpoint_every == 0 and run.round < config.rounds:
                    run.save(folder.checkpoint)
        except (KeyboardInterrupt, SystemExit, CoveyError) as error:  # SystemExit: nobody reads the output any more
            if not isinstance(error, CheckpointError):
                _save(run, folder)
            raise
    _save(run, folder)
    return list(run.history)


def _save(run: Run, folder: Folder) -> None:
    """The state comes last: a checkpoint of the last round says that everything else is there, an older one redoes it all."""
    if run.round == run.experiment.rounds:
        folder.models(run)
    folder.metrics(run.history)
    run.save(folder.checkpoint)


def _enough(config: Config, folder: Folder) -> None:
    """An error, before anything is written, if more rounds were run already than are wanted."""
    if folder.checkpoint.exists():
        rounds = checkpoint.read(folder.checkpoint, tensors=False).facts["round"]
        if rounds > config.rounds:
            raise ConfigError(f"rounds = {config.rounds}, but {folder.checkpoint} has run {rounds} already; give more rounds.")


def _finished(config: Config, seed: int, saved: Path) -> list[Round] | None:
    """The history of a seed that needs no more rounds; its checkpoint must be whole and its own."""
    facts = checkpoint.read(saved).facts
    if facts["round"] < config.rounds:
        return None
    checkpoint.same_experiment(saved, facts["experiment"], config.experiment(seed).fingerprint())
    return covey.history(saved)


@contextmanager
def _stoppable() -> Iterator[None]:
    """SIGTERM stops a run as Ctrl-C does."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
