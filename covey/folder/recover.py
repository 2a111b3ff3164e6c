"""What a run folder holds from before.

How far each seed is, what a crash has damaged, and whether it is the same run.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import covey
from covey.atomic import refused
from covey.errors import CheckpointError, ConfigError
from covey.files.config import Config
from covey.folder.terminal import Console
from covey.runs.experiment import Experiment
from covey.runs.run import Round
from covey.runs.saved import checkpoint, rank_parts
from covey.runs.saved.run_folder import RunFolder
from covey.runs.stopping import StopCount


def rounds_run(folder: RunFolder) -> int:
    """How many rounds the checkpoint of a folder has run; 0 where there is none."""
    return int(folder.saved_facts().get("round", 0))


def check_seeds(config: Config, folder: RunFolder) -> None:
    """An error if the folder was made for other seeds than its file says."""
    wanted = set()
    if config.seeds > 1:
        wanted = set(config.every_seed)
    there = folder.seeds_there()
    present = set(there)
    begun = any(seed.checkpoint.exists() for seed in there.values())
    lacking = begun and present != wanted
    other = bool(present - wanted)
    alone = config.seeds > 1 and folder.checkpoint.exists()
    if lacking or other or alone:
        had = "one seed"
        if present:
            had = f"the seeds {min(present)} to {max(present)}"
        raise ConfigError(
            f"{folder.config} says seed = {config.seed} and seeds = {config.seeds}, "
            f"but the run has {had}; restore the file, or start a new run."
        )


def check_rounds(config: Config, folder: RunFolder) -> None:
    """An error, before anything is written, if more rounds were run already than are wanted."""
    rounds = rounds_run(folder)
    if rounds > config.rounds:
        already = f"{folder.checkpoint} has run {rounds} already"
        raise ConfigError(f"rounds = {config.rounds}, but {already}; give more rounds.")


def check_schedule(config: Config, folders: Iterable[RunFolder], before: int) -> None:
    """An error, before anything is written, if a run with a schedule gets other rounds.

    `before` is the number of rounds that the run had.
    """
    begun = any(folder.checkpoint.exists() for folder in folders)
    schedule = config.schedule()
    if not begun or schedule is None or config.rounds == before:
        return
    raise ConfigError(
        f"rounds = {config.rounds}, but the run began with {schedule} over {before} rounds, and "
        "others would change the rates of the rounds before; leave out rounds, or start a new run."
    )


def check_stop(folder: RunFolder, experiment: Experiment) -> None:
    """An error, before anything is written, if another `stop` than before would have ended it."""
    stop = experiment.early_stop()
    rounds = rounds_run(folder)
    if stop is None or not 0 < rounds < experiment.rounds or stopped_early(folder, experiment):
        return
    patience = StopCount(stop, experiment)
    if patience.ended(history(folder, experiment)):
        fix = "to go on, give stop more patience, or leave it out"
        raise ConfigError(f"{folder.checkpoint}: {patience.reason(rounds)}; {fix}.")


def finished(folder: RunFolder, experiment: Experiment) -> bool:
    """Whether a seed needs no more rounds; its checkpoint must be whole."""
    if not folder.checkpoint.exists():
        return False
    facts = checkpoint.read(folder.checkpoint).facts
    rank_parts.check(folder.checkpoint, facts)
    return bool(facts["round"] >= experiment.rounds) or _stopped_by(facts, experiment)


def stopped_early(folder: RunFolder, experiment: Experiment) -> bool:
    """Whether a seed has rounds left and ended by the experiment's own rule of `stop`."""
    facts = folder.saved_facts()
    return facts["round"] < experiment.rounds and _stopped_by(facts, experiment)


def _stopped_by(facts: dict[str, Any], experiment: Experiment) -> bool:
    stop = experiment.early_stop()
    return stop is not None and facts.get("stopped") == stop.text


def history(folder: RunFolder, experiment: Experiment) -> list[Round]:
    """The records of a seed whose checkpoint must be this experiment's."""
    facts = checkpoint.read_facts(folder.checkpoint)
    wanted = experiment.fingerprint()
    saved = facts["experiment"]
    checkpoint.same_experiment(folder.checkpoint, saved, wanted, data=experiment.data.name)
    return covey.history(folder.checkpoint)


def take_code(folder: RunFolder, experiment: Experiment) -> None:
    """Let a checkpoint go on with the code of today; everything else must be as it was."""
    saved = checkpoint.read(folder.checkpoint)
    wanted = experiment.fingerprint()
    facts = saved.facts["experiment"]
    code = [name for name in facts if name.endswith(checkpoint.CODE) and name in wanted]
    if any(facts[name] != wanted[name] for name in code):
        facts |= {name: wanted[name] for name in code}
        checkpoint.write(folder.checkpoint, saved)


def mend(folder: RunFolder, console: Console) -> None:
    """Put the checkpoint before the last in its place if the last is damaged.

    What it lacks happens again, bit for bit.
    """
    older = checkpoint.previous(folder.checkpoint)
    if not older.exists():
        return
    try:
        _check_whole(folder.checkpoint)
    except CheckpointError as error:
        try:
            _check_whole(older)
        except CheckpointError:
            raise error from None
        round = checkpoint.read_facts(older)["round"]
        with refused(folder.checkpoint):
            os.replace(folder.checkpoint, folder.damaged)
            shutil.copy2(older, folder.checkpoint)
        goes_on = (
            f"The run continues after round {round}; the damaged checkpoint is {folder.damaged}."
        )
        console.print(f"note: {error} {goes_on}")


def _check_whole(saved: Path) -> None:
    """An error unless a checkpoint, its parts and its records can be read."""
    facts = checkpoint.read(saved).facts
    rank_parts.check(saved, facts)
    covey.history(saved)
