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
from covey.cli.folder import Folder, create, environment, unused
from covey.cli.show import progress
from covey.errors import CheckpointError, ConfigError, CoveyError
from covey.report.plot import draw
from covey.report.summary import Summary, summarise
from covey.run import Round, Run


class Interrupted(CoveyError):
    """The user stopped the run; it is saved."""


def start(config: Config, out: Path | None, console: Console, command: list[str]) -> tuple[Folder, Summary]:
    """A new run in a new folder."""
    config.experiment(config.seed)  # everything wrong with it is said before a folder is made
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
    folder.write("config.toml", config.text())
    folder.write("repeat.txt", f"{repeat}\n{again} rounds={config.rounds + 10}\n")
    folder.write_json("environment.json", environment(command))
    histories = []
    try:
        for seed in range(config.seed, config.seed + config.seeds):
            place = folder if config.seeds == 1 else folder.seed(seed)
            histories.append(_seed(config, seed, place, console))
    except KeyboardInterrupt as error:
        raise Interrupted(f"the state is saved; go on with: {again}") from error
    except CheckpointError as error:
        raise CheckpointError(f"{error} When that is mended, go on with: {again}") from error
    summary = summarise(histories, config.protocol)
    folder.write_json("summary.json", summary.as_dict())
    draw(histories, folder.path / "plot.png", title=config.name or config.algorithm["name"])
    return folder, summary


def _seed(config: Config, seed: int, folder: Folder, console: Console) -> list[Round]:
    """All rounds of one seed; those already run come from its checkpoint."""
    label = f"seed {seed}  " if config.seeds > 1 else ""
    saved = folder.checkpoint if folder.checkpoint.exists() else None
    if saved is not None and (history := _finished(saved, config)) is not None:
        return history
    run = covey.run(config.experiment(seed), resume=saved)
    for note in run.notes:
        console.print(f"note: {note}", highlight=False)
    folder.metrics(run.history)
    with _stoppable(), progress(console, label=label, rounds=config.rounds, done=run.round) as show:
        try:
            for record in run:
                show(record)
                folder.append(record)
                if run.round % config.checkpoint_every == 0:
                    run.save(folder.checkpoint)
        except (KeyboardInterrupt, CoveyError) as error:
            if not isinstance(error, CheckpointError):
                _save(run, folder)
            raise
    _save(run, folder)
    folder.models(run)
    return run.history


def _save(run: Run, folder: Folder) -> None:
    """The state and the rounds it has seen; a round lost between the two happens again."""
    run.save(folder.checkpoint)
    folder.metrics(run.history)


def _finished(saved: Path, config: Config) -> list[Round] | None:
    """The history of a seed that needs no more rounds."""
    rounds = checkpoint.read(saved, tensors=False).facts["round"]
    if rounds > config.rounds:
        raise ConfigError(f"rounds = {config.rounds}, but {saved} has run {rounds} already; give more rounds.")
    return covey.history(saved) if rounds == config.rounds else None


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
