"""The run folders in a folder, as a table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from covey.errors import CheckpointError, ConfigError, CoveyError
from covey.folder.show import print_wide, table_of
from covey.folder.terminal import Console
from covey.report.run_files import RunFiles
from covey.report.seed_facts import SeedFacts
from covey.runs.saved import status
from covey.runs.saved.run_folder import RunFolder
from covey.runs.saved.status import State
from covey.runs.scores.headline import named

_WORDS = ("run", "algorithm", "data", "state", "started")
"""The columns of words."""
_FIGURES = ("accuracy", "rmse", "loss")
"""The figures of a model in summary.json by which a run without `select` is judged."""


@dataclass(frozen=True)
class ListedRun:
    """One run folder.

    `personal` and `global_` are test figures in the chosen round, means over seeds, as `metric`
    says; `bytes` are those of training in one seed, `seconds` those of all seeds.
    """

    name: str
    folder: str
    state: State | str
    algorithm: str = ""
    data: str = ""
    done: int = 0
    rounds: int = 0
    seeds: int = 0
    metric: str = ""
    personal: float | None = None
    global_: float | None = None
    bytes: int = 0
    seconds: float = 0.0
    started: str | None = None
    reason: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        out = asdict(self)
        return {key.rstrip("_"): value for key, value in out.items()}

    def cells(self) -> dict[str, str]:
        """What a table says of the run, by column."""
        metric = named(self.metric)
        return {
            "run": self.name,
            "algorithm": self.algorithm,
            "data": self.data,
            "state": self.state,
            "rounds": f"{self.done}/{self.rounds}",
            "personal": metric.with_unit(self.personal),
            "global": metric.with_unit(self.global_),
            "MB": f"{self.bytes / 1e6:.1f}",
            "seconds": f"{self.seconds:.1f}",
            "started": (self.started or "-").removesuffix("+00:00").replace("T", " "),
        }


def print_runs(folder: Path, as_json: bool, only: State | None = None) -> None:
    """Print the runs in a folder, or those in one state; the newest last."""
    listed = [run for run in runs_in(folder) if only in (None, run.state)]
    if as_json:
        print(json.dumps([run.as_dict() for run in listed]))
        return
    console = Console()
    if not listed:
        kind = "run" if only is None else f"{only} run"
        console.print(f"no {kind} in {folder}")
        return
    rows = [run.cells() for run in listed]
    table = table_of(rows[0], _WORDS)
    for row in rows:
        table.add_row(*row.values())
    print_wide(console, table)


def runs_in(folder: Path) -> list[ListedRun]:
    """The runs in a folder, or the one that it is itself; the oldest first."""
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}; `covey run` makes runs/.")
    folders = [folder]
    if not RunFolder(folder).config.exists():
        folders = [run.path for run in RunFolder.inside(folder)]
    listed = []
    for path in folders:
        try:
            listed.append(_read(path))
        except CoveyError as error:
            listed.append(ListedRun(path.name, str(path), "unreadable", reason=str(error)))
    return sorted(listed, key=lambda run: (run.started or "", run.name))


def _read(folder: Path) -> ListedRun:
    files = RunFiles(folder)
    where = status.read(folder)
    settings = files.settings
    figures: dict[str, Any] = {}
    if where.state == "finished":
        figures = _of_summary(folder)
    if not figures:
        figures = _of_rounds(files)
    return ListedRun(
        name=folder.absolute().name,
        folder=str(folder),
        state=where.state,
        algorithm=str(settings.get("algorithm", {}).get("name", "")),
        data=str(settings.get("data", {}).get("name", "")),
        rounds=files.rounds,
        seeds=len(files.seeds),
        started=where.started,
        reason=where.reason,
        **figures,
    )


def _of_summary(folder: Path) -> dict[str, Any]:
    """The figures of a finished run, from its summary; none where that cannot be read."""
    try:
        run = RunFolder(folder)
        summary = run.read_json(run.summary) or {}
        models = {model["model"]: model for model in summary["models"]}
        known = [name for name in _FIGURES if any(model.get(name) for model in models.values())]
        metric = str(summary.get("select", "")) or next(iter(known), "")
        return {
            "done": min(map(int, summary.get("rounds_by_seed") or [summary["rounds"]])),
            "seconds": float(summary["seconds"]),
            "bytes": sum(int(link["down"]) + int(link["up"]) for link in summary["links"]),
            "metric": metric,
            "personal": _mean(models.get("personal"), metric),
            "global_": _mean(models.get("global"), metric),
        }
    except (CheckpointError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _mean(model: Mapping[str, Any] | None, metric: str) -> float | None:
    """The figure of a model in a summary."""
    if model is None:
        return None
    figure = model.get("metrics", {}).get(metric) or model.get(metric)
    return float(figure["mean"]) if figure else None


def _of_rounds(files: RunFiles) -> dict[str, Any]:
    """The figures of a run so far, from its records."""
    records = files.read()
    if not records:
        return {}
    seeds = [SeedFacts(record, files.protocol) for record in records]
    done = [len(record.history) for record in records]
    if len(done) < len(files.seeds):
        done.append(0)
    return {
        "done": min(done),
        "seconds": sum(record.seconds for seed in records for record in seed.history),
        "bytes": sum(record.bytes() for record in records[0].history),
        "metric": seeds[0].shown.name,
        "personal": _chosen(seeds, "personal"),
        "global_": _chosen(seeds, "global"),
    }


def _chosen(seeds: Sequence[SeedFacts], model: str) -> float | None:
    """The mean over seeds of a model's figure in its chosen round."""
    values = [seed.chosen_value(model) for seed in seeds]
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
