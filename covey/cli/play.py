"""Running an experiment into a folder: every seed, checkpoints, interruption, what runs beside it, the end."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape

import covey
from covey.cli.config import Config, load
from covey.cli.described import Described
from covey.cli.folder import Folder, create, environment, refused, unused
from covey.cli.registry import method
from covey.cli.show import progress
from covey.errors import CheckpointError, ConfigError, CoveyError, DivergedError
from covey.report import compare
from covey.report.plot import draw, draw_devices
from covey.report.summary import Summary, summarise
from covey.runs import checkpoint
from covey.runs.devices import from_csv, to_csv
from covey.runs.experiment import Experiment, unlike
from covey.runs.run import Round, Runs, private_part

_ROWS = 8  # that a device holds at most: what it keeps, twice for a round that fails, and what it works with


class Interrupted(CoveyError):
    """The user stopped the run; it is saved."""


def start(config: Config, out: Path | None, console: Console, command: list[str]) -> tuple[Folder, Summary]:
    """A new run in a new folder."""
    for each in (config, *config.yardsticks().values()):
        covey.run(each.experiment(config.seed))  # everything wrong with it is said before a folder is made
    folder = create(out or unused(config.name, str(config.algorithm["name"])))
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
        config = load(path / "config.toml", changes)
        _same_seeds(config, folder)
        return _play(config, folder, console, command)


def _same_seeds(config: Config, folder: Folder) -> None:
    """An error if the folder was made for other seeds than its file says."""
    wanted = range(config.seed, config.seed + config.seeds) if config.seeds > 1 else range(0)
    suffixes = [path.name.removeprefix("seed-") for path in folder.path.glob("seed-*")]
    present = [int(suffix) for suffix in suffixes if suffix.lstrip("-").isdigit()]
    begun = any(folder.seed(seed).checkpoint.exists() for seed in present)
    lacking = begun and set(present) != set(wanted)
    if lacking or set(present) - set(wanted) or (config.seeds > 1 and folder.checkpoint.exists()):
        had = f"the seeds {min(present)} to {max(present)}" if present else "one seed"
        raise ConfigError(
            f"{folder.path / 'config.toml'} says seed = {config.seed} and seeds = {config.seeds}, "
            f"but the run has {had}; put back what it said, or start a new run."
        )


def _play(config: Config, folder: Folder, console: Console, command: list[str]) -> tuple[Folder, Summary]:
    repeat = f"covey run {shlex.quote(str(folder.path / 'config.toml'))}"
    again = f"covey run --resume {shlex.quote(str(folder.path))}"
    places = _places(config, folder)
    try:
        with stoppable(console) as stop:
            folder.sweep()
            _prepare(config, folder, console)
            folder.write("repeat.txt", f"{repeat}\n{again} rounds={config.rounds + 10}\n")
            folder.write_json("environment.json", environment(command))
            histories, engine = _seeds(config, places, console, stop)
            devices = [from_csv((place.path / "devices.csv").read_text()) for place in places.values()]
            private = private_part(next(iter(places.values())).checkpoint)
            others = _beside(config, folder, console, stop)
            summary = summarise(histories, config.protocol, devices, config.learner(), private)
            summary = replace(summary, yardsticks=compare.yardsticks(others, config.protocol))
            folder.write_json("environment.json", environment(command) | {"engine": engine})
            folder.write_json("summary.json", summary.as_dict())
            title = method(config.algorithm["name"])
            with refused(folder.path / "plot.png"):
                draw(histories, folder.path / "plot.png", title, devices)
            with refused(folder.path / "devices.png"):
                draw_devices(histories, folder.path / "devices.png", title, devices)
            if others:
                with refused(folder.path / "compare.png"):
                    compare.draw({config.method(): histories} | others, folder.path / "compare.png")
    except KeyboardInterrupt as error:
        rounds = [_round(place) for place in places.values()]
        state = (
            f"the state after round {max(rounds)} is saved" if any(rounds) else "no round had ended, so there is nothing to save"
        )
        raise Interrupted(f"{state}; go on with: {again}") from error
    except CheckpointError as error:
        raise CheckpointError(f"{error} When that is mended, go on with: {again}") from error
    return folder, summary


Histories = list[list[Round]]


def _places(config: Config, folder: Folder) -> dict[int, Folder]:
    """The folder of every seed."""
    seeds = range(config.seed, config.seed + config.seeds)
    return {seed: folder if config.seeds == 1 else folder.seed(seed) for seed in seeds}


def _prepare(config: Config, folder: Folder, console: Console) -> None:
    """Mend what a crash has damaged, and write the resolved file."""
    for place in _places(config, folder).values():
        _mend(place, console)
        _enough(config, place)
    folder.write("config.toml", config.text())


def _beside(config: Config, folder: Folder, console: Console, stop: Stop) -> dict[str, Histories]:
    """The other algorithms of the file, each in a folder of its own below this one; one that diverges is left out."""
    others = {}
    for name, other in config.yardsticks().items():
        method = other.method()
        console.print(f"beside it: {method}", highlight=False)
        place = folder.beside(name)
        place.make()
        _prepare(other, place, console)
        try:
            histories, _ = _seeds(other, _places(other, place), console, stop)
        except DivergedError as error:
            console.print(f"note: {method} is left out of the table: {error}", highlight=False)
            continue
        place.write_json("summary.json", summarise(histories, other.protocol).as_dict())
        others[method] = histories
    return others


def _seeds(config: Config, places: dict[int, Folder], console: Console, stop: Stop) -> tuple[Histories, dict[str, Any]]:
    """All rounds of every seed: seeds that stand at the same round go on in one go, as many as memory allows."""
    done: dict[int, list[Round]] = {}
    waiting: dict[int, list[int]] = {}
    for seed, place in places.items():
        place.make()
        history = _finished(config, seed, place.checkpoint) if place.checkpoint.exists() else None
        if history is not None:
            more = f"; for more, add rounds={config.rounds + 10}" if config.seeds == 1 else ""
            console.print(f"note: {_label(config, [seed])}all {config.rounds} rounds were run before{more}", highlight=False)
            done[seed] = history
        else:
            waiting.setdefault(_round(place), []).append(seed)
    engine: dict[str, Any] = {}
    diverged: dict[int, DivergedError] = {}
    for seeds in waiting.values():
        experiments = {seed: config.experiment(seed) for seed in seeds}
        size = _together(list(experiments.values()))
        groups = [seeds[start : start + size] for start in range(0, len(seeds), size)]
        while groups:
            some = groups.pop(0)
            try:
                engine = _run(config, {seed: experiments[seed] for seed in some}, places, console, done, stop)
            except DivergedError as error:
                if len(some) == 1:
                    diverged[some[0]] = error
                else:  # the others need not stop for the one that diverged
                    groups = [[seed] for seed in some] + groups
    for seed, reason in diverged.items():
        raise reason if config.seeds == 1 else DivergedError(f"seed {seed}: {reason}") from reason
    return [done[seed] for seed in places], engine


def _run(
    config: Config,
    experiments: dict[int, Experiment],
    places: dict[int, Folder],
    console: Console,
    done: dict[int, list[Round]],
    stop: Stop,
) -> dict[str, Any]:
    """The rounds that some seeds have left, in one go; their histories into `done`."""
    folders = [places[seed] for seed in experiments]
    saved = [folder.checkpoint if folder.checkpoint.exists() else None for folder in folders]
    runs = covey.runs(list(experiments.values()), resume=saved)
    console.print(f"engine: {escape(runs.engine['sentence'])}", highlight=False)
    for note in runs.notes:
        console.print(f"note: {note}", highlight=False)
    for run, folder in zip(runs.seeds, folders, strict=True):
        folder.metrics(run.history)
        folder.write_json("data.json", Described.of(run.trained).as_dict())
    label = _label(config, list(experiments))
    hidden = () if runs.experiment.algorithm.learns_global else ("global",)
    with progress(console, label=label, rounds=config.rounds, done=runs.round, hidden=hidden) as show:
        try:
            for records in runs:
                stop.check()
                show(records)
                for record, folder in zip(records, folders, strict=True):
                    folder.append(record)
                if runs.round % config.checkpoint_every == 0 and runs.round < config.rounds:
                    for run, folder in zip(runs.seeds, folders, strict=True):
                        run.save(folder.checkpoint)
        except (KeyboardInterrupt, SystemExit, CoveyError) as error:  # SystemExit: nobody reads the output any more
            if not isinstance(error, CheckpointError):
                _save(runs, folders)
            raise
    _save(runs, folders)
    done |= {seed: list(run.history) for seed, run in zip(experiments, runs.seeds, strict=True)}
    return runs.engine


def _together(experiments: list[Experiment]) -> int:
    """How many of these seeds run side by side: all, as far as their models fit into memory, or one if they are too unlike."""
    first = experiments[0]
    row = sum(parameter.numel() for parameter in first.model.parameters()) * torch.finfo(first.dtype).bits // 8
    if len(experiments) == 1 or unlike(experiments) is not None:
        return 1
    return max(1, first.memory // (_ROWS * row * first.tree.devices))


def _label(config: Config, seeds: list[int]) -> str:
    if config.seeds == 1:
        return ""
    return f"seed {seeds[0]}  " if len(seeds) == 1 else f"seeds {seeds[0]}-{seeds[-1]}  "


def _round(folder: Folder) -> int:
    return int(checkpoint.read(folder.checkpoint, tensors=False).facts["round"]) if folder.checkpoint.exists() else 0


def _save(runs: Runs, folders: list[Folder]) -> None:
    """The state comes last: a checkpoint of the last round says that everything else is there, an older one redoes it all."""
    for run, folder in zip(runs.seeds, folders, strict=True):
        if run.round == run.experiment.rounds:
            folder.models(run)
            folder.write("devices.csv", to_csv(run.devices()))
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
    experiment = config.experiment(seed)
    wanted = experiment.fingerprint()
    checkpoint.same_experiment(saved, facts["experiment"], wanted, data=experiment.data.name)
    return covey.history(saved)


def _mend(folder: Folder, console: Console) -> None:
    """Put the checkpoint before the last in its place if the last is damaged; what it lacks happens again, bit for bit."""
    older = checkpoint.previous(folder.checkpoint)
    if not folder.checkpoint.exists() or not older.exists():
        return
    try:
        checkpoint.read(folder.checkpoint)
        covey.history(folder.checkpoint)
    except CheckpointError as error:
        if not _whole(older):
            raise
        round = checkpoint.read(older, tensors=False).facts["round"]
        damaged = folder.checkpoint.with_name("checkpoint.damaged.safetensors")
        with refused(folder.checkpoint):
            os.replace(folder.checkpoint, damaged)
            shutil.copy2(older, folder.checkpoint)
        console.print(f"note: {error} It goes on from there, after round {round}; the damaged one is {damaged}.", highlight=False)


def _whole(saved: Path) -> bool:
    """Whether a checkpoint and its records can be read."""
    try:
        checkpoint.read(saved)
        covey.history(saved)
    except CheckpointError:
        return False
    return True


class Stop:
    """Ctrl-C, SIGTERM and SIGHUP end a run once; those that follow leave it the time to save."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self.asked = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            self._console.print("saving the state; one moment", highlight=False)
            return
        self.asked = True
        raise KeyboardInterrupt

    def check(self) -> None:
        """Stop now if a signal came where Python could not raise it, as in a destructor."""
        if self.asked:
            raise KeyboardInterrupt


@contextmanager
def stoppable(console: Console) -> Iterator[Stop]:
    """SIGTERM and SIGHUP stop a run as Ctrl-C does, and no second one comes between the first and the saving."""
    stop = Stop(console)
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # under nohup a hangup is to change nothing
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():  # once stopped, this process only has to say so and end
            signal.signal(number, signal.SIG_IGN if stop.asked else handler)
