"""The trackers of `covey run --log`: TensorBoard, MLflow, Weights & Biases, Parquet, or one's own.

Every round comes once, and none of them can end a run (`Tracked`).

All of them write into the run's folder, and nothing leaves the machine unless the variables of
MLflow or Weights & Biases say so (MLFLOW_TRACKING_URI, WANDB_MODE). The step is the round, counted
from 1 as in the table. A log that was not closed, because its process was killed, may lack rounds
or have a part of one: it is written anew from the run's records.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

from covey import atomic, installed
from covey.errors import CheckpointError, ConfigError, needed
from covey.fields import nearest
from covey.files import modules
from covey.folder.terminal import Console
from covey.origin import FAULTS, told
from covey.report.summary import summarise
from covey.runs.saved.run_folder import RunFolder
from covey.runs.scores.record import Round
from covey.runs.seed import Seed
from covey.runs.tracker import RunTracker, Tracker, columns, rows

Maker = Callable[[Path], Tracker]
_LONGEST = 500  # characters of a setting that MLflow keeps


class TensorBoard:
    """Event files in RUN/tensorboard; `tensorboard --logdir runs` shows all runs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "tensorboard"
        self._log = _Log(folder / "tensorboard.txt")
        self.rounds = self._log.rounds
        self._writer: Any = None

    def start(self, config: Mapping[str, Any]) -> None:
        library = needed("torch.utils.tensorboard", extra="tensorboard", to="log to TensorBoard")
        if self._log.name is None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._log.open("tensorboard")
        self._writer = library.SummaryWriter(str(self._folder))
        self._writer.add_text("config", f"```\n{json.dumps(config, indent=1)}\n```")

    def log(self, record: Round) -> None:
        for name, value in record.figures().items():
            self._writer.add_scalar(name, value, record.round + 1)
        self._writer.flush()

    def finish(self, summary: Mapping[str, Any]) -> None:
        self._writer.close()
        self._log.close()


class MLflow:
    """A run of MLflow in RUN/mlruns, or where MLFLOW_TRACKING_URI says."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._log = _Log(folder / "mlflow-run.txt")
        self.rounds = self._log.rounds
        self._client: Any = None

    def start(self, config: Mapping[str, Any]) -> None:
        library = needed("mlflow", extra="mlflow", to="log to MLflow")
        uri = os.environ.get("MLFLOW_TRACKING_URI")
        if not uri:
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
            uri = (self._folder / "mlruns").resolve().as_uri()
        self._client = library.MlflowClient(tracking_uri=uri)
        if self._log.name is not None:
            self._client.update_run(self._log.name, status="RUNNING")
            self._log.open(self._log.name)
            return
        if self._log.broken is not None:
            self._client.set_terminated(self._log.broken, status="KILLED")
        name = str(config.get("name") or "covey")
        known = self._client.get_experiment_by_name(name)
        experiment = known.experiment_id if known else self._client.create_experiment(name)
        run = self._client.create_run(str(experiment), run_name=_title(self._folder))
        self._log.open(run.info.run_id)
        for name, value in flat(config):
            self._client.log_param(run.info.run_id, _plain(name), str(value)[:_LONGEST])

    def log(self, record: Round) -> None:
        entities = needed("mlflow.entities", extra="mlflow", to="log to MLflow")
        now = int(1000 * time.time())
        metrics = [
            entities.Metric(_plain(name), float(value), now, record.round + 1)
            for name, value in record.figures().items()
        ]
        self._client.log_batch(self._log.name, metrics=metrics)

    def finish(self, summary: Mapping[str, Any]) -> None:
        self._client.log_dict(self._log.name, dict(summary), "summary.json")
        status = "FINISHED" if summary["finished"] else "KILLED"
        self._client.set_terminated(self._log.name, status=status)
        self._log.close()


class WandB:
    """An offline run of Weights & Biases in RUN/wandb; `wandb sync` uploads it.

    With WANDB_MODE=online it is uploaded as it goes.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._log = _Log(folder / "wandb-run.txt")
        self.rounds = self._log.rounds
        self._run: Any = None

    def start(self, config: Mapping[str, Any]) -> None:
        library = needed("wandb", extra="wandb", to="log to Weights & Biases")
        self._log.open(self._log.name or secrets.token_hex(4))
        mode = os.environ.get("WANDB_MODE", "offline")
        self._run = library.init(
            project=os.environ.get("WANDB_PROJECT", "covey"),
            id=self._log.name,
            name=_title(self._folder),
            dir=str(self._folder),
            config=dict(config),
            mode=mode,
            resume="allow" if mode == "online" else None,
            reinit="create_new",
            settings=library.Settings(silent=True, console="off"),
        )

    def log(self, record: Round) -> None:
        self._run.log(record.figures(), step=record.round + 1)

    def finish(self, summary: Mapping[str, Any]) -> None:
        self._run.summary["finished"] = summary["finished"]
        self._run.finish(exit_code=0 if summary["finished"] else 1)
        self._log.close()


class Parquet:
    """RUN/metrics.parquet, written when the run ends: one row per round, one column per figure."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def start(self, config: Mapping[str, Any]) -> None:
        needed("pyarrow.parquet", extra="parquet", to="write metrics.parquet")

    def log(self, record: Round) -> None:
        """Nothing: metrics.jsonl has it already."""

    def finish(self, summary: Mapping[str, Any]) -> None:
        arrow = needed("pyarrow", extra="parquet", to="write metrics.parquet")
        parquet = needed("pyarrow.parquet", extra="parquet", to="write metrics.parquet")
        table = rows(RunFolder(self._folder).growing_records().read())
        data = {name: [row.get(name) for row in table] for name in columns(table)}
        with atomic.replacing(self._folder / "metrics.parquet") as part:
            parquet.write_table(arrow.table(data), part)


TRACKERS: dict[str, tuple[Maker, str]] = {
    "tensorboard": (TensorBoard, "tensorboard"),
    "mlflow": (MLflow, "mlflow"),
    "wandb": (WandB, "wandb"),
    "parquet": (Parquet, "pyarrow"),
}
"""By name: what makes a tracker, and the library that it needs."""


def makers(names: Sequence[str]) -> dict[str, Maker]:
    """What makes the trackers of these names; an error, before anything runs, if one cannot be."""
    return {name: _maker(name) for name in names}


def _maker(name: str) -> Maker:
    if ":" in name:
        own: Maker = modules.find("tracker", name, setting=f"--log {name}")
        return own
    declared = installed.find("trackers", name, TRACKERS)
    if declared is not None:
        made = declared.load()
        if not modules.makes(made, "tracker"):
            raise declared.wrong(f"it must be {modules.wanted('tracker')}.")
        return cast(Maker, made)
    if name not in TRACKERS:
        listed = ", ".join(TRACKERS)
        raise ConfigError(
            f"--log {name}: there is no such tracker{nearest(name, TRACKERS)}; there are {listed}, "
            f"or your own as {modules.FORM}."
        )
    make, library = TRACKERS[name]
    extra = "parquet" if library == "pyarrow" else library
    needed(library, extra=extra, to=f"log to {name}")
    return make


class _Log:
    """The name of a log, kept in the run's folder with whether it was closed.

    `name` is None where a new log is to be begun, and then `rounds` is 0. `broken` is one that was
    not closed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.name: str | None = None
        self.broken: str | None = None
        words = path.read_text(encoding="utf-8").split() if path.exists() else []
        if words[1:] == ["closed"]:
            self.name = words[0]
        elif words:
            self.broken = words[0]
        self.rounds: int | None = None if self.name else 0

    def open(self, name: str) -> None:
        """Write to the log of this name from now on."""
        self.name = name
        self._path.write_text(f"{name}\n", encoding="utf-8")

    def close(self) -> None:
        """The log has everything that it was told."""
        self._path.write_text(f"{self.name} closed\n", encoding="utf-8")


def _title(folder: Path) -> str:
    """The run's name where runs are listed: its folder, with the seed where it has several."""
    folder = folder.resolve()
    if folder.name.startswith("seed-"):
        return f"{folder.parent.name}/{folder.name}"
    return folder.name


def flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every setting under one name.

    >>> dict(flat({"rounds": 3, "algorithm": {"lr": 0.1}}))
    {'rounds': 3, 'algorithm.lr': 0.1}
    """
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _plain(name: str) -> str:
    """A name of which MLflow takes every character.

    >>> _plain("notes/device/gain (dB)/mean")
    'notes/device/gain -dB-/mean'
    """
    return re.sub(r"[^A-Za-z0-9_./ -]", "-", name)


@dataclass(frozen=True)
class Past:
    """A seed that has been run before."""

    history: Sequence[Round]
    done: bool = True


@dataclass(eq=False)
class Tracked(RunTracker):
    """The trackers of one seed, told of every round once.

    How many rounds each has is kept in the folder: a resumed run logs from there on, and a tracker
    that is new to the run gets the rounds that it has missed.
    """

    makers: Mapping[str, Maker]
    folder: RunFolder
    console: Console
    config: Mapping[str, Any]
    """The resolved experiment file of the seed."""
    run: Seed | Past
    place: int = 0
    """Of the seed among those that run side by side."""

    _trackers: dict[str, Tracker] = field(default_factory=dict)
    _logged: dict[str, int] = field(default_factory=dict)

    def begin(self) -> None:
        """Start all trackers; each gets the rounds of the history that it has not."""
        with suppress(CheckpointError, ValueError, TypeError):  # a damaged count is none
            known = self.folder.read_json(self.folder.trackers) or {}
            self._logged = {name: int(rounds) for name, rounds in known.items()}
        for name, make in self.makers.items():
            self._try(name, partial(self._start, name, make))
        for record in self.run.history:
            self._log(record)

    def log(self, records: Sequence[Round]) -> None:
        self._log(records[self.place])

    def end(self, error: BaseException | None) -> None:
        history = list(self.run.history)
        summary: dict[str, Any] = {"finished": self.run.done, "rounds": len(history)}
        if any(record.models for record in history):
            summary |= summarise([history], self.config["protocol"]).as_dict()
        for name, tracker in list(self._trackers.items()):
            self._try(name, partial(tracker.finish, summary))
        self._trackers.clear()

    def _start(self, name: str, make: Maker) -> None:
        tracker = make(self.folder.path)
        tracker.start(self.config)
        self._trackers[name] = tracker
        rounds = getattr(tracker, "rounds", None)
        if isinstance(rounds, int):
            self._logged[name] = rounds

    def _log(self, record: Round) -> None:
        """One round, to all trackers that have not had it."""
        new = record.round + 1
        for name, tracker in list(self._trackers.items()):
            if new <= self._logged.get(name, 0):
                continue
            if self._try(name, partial(tracker.log, record)):
                self._logged[name] = new
                with suppress(OSError):  # a disk that fails is the checkpoint's to report
                    atomic.write(self.folder.trackers, json.dumps(self._logged) + "\n")

    def _try(self, name: str, call: Callable[[], None]) -> bool:
        """Whether a call succeeded; a tracker that fails is shown once and called no more."""
        try:
            call()
        except FAULTS as error:
            self._trackers.pop(name, None)
            text = f"the tracker {name} failed: {told(error)} The run goes on without it."
            self.console.print(f"note: {text}")
            return False
        return True
