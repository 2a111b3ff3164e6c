"""The facts of runs, from their folders, as one JSON value, and the report that shows them.

docs/watch.md has its keys. A key is left out where there is nothing to say. Sums of single nodes
are checked against the figures that the run recorded.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import covey
from covey.errors import CheckpointError, ConfigError
from covey.report.page.page import build
from covey.report.run_files import RunFiles, SeedRecord, intact
from covey.report.seed_facts import SeedFacts, thinned_to
from covey.report.summary import labels
from covey.runs.saved import status
from covey.runs.saved.run_folder import RunFolder

FORMAT = 2


class Facts:
    """The facts of the runs in some folders; those under way are read again and again."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self.folders = list(map(Path, folders))
        self._files: dict[Path, RunFiles] = {}
        if not self.folders:
            raise ConfigError("name at least one run folder.")
        for folder in self.folders:
            self._files_of(folder)

    def read(self) -> dict[str, Any]:
        """The facts as they are now."""
        with intact(f"a file in {', '.join(map(str, self.folders))}"):
            runs = [run for folder in self.folders for run in self._with_compared(folder)]
            keys = _unique([run.key for run in runs])
            begun = [record for run in runs for record in run.records]
            if not begun:
                first = self.folders[0]
                raise ConfigError(f"{first} has no rounds yet; wait for its run to begin.")
            rounds = thinned_to(begun)
            populations: list[dict[str, Any]] = []
            methods = [run.method for run in runs]
            out = []
            for run, key, title in zip(runs, keys, methods, strict=True):
                if methods.count(title) > 1:
                    title = f"{title} ({run.key})"
                out.append({"key": key, "title": title, **run.as_dict(populations, rounds)})
            return {
                "format": FORMAT,
                "made_by": f"covey {covey.__version__}",
                "title": _title(runs),
                "baselines": [key for run, key in zip(runs, keys, strict=True) if run.beside],
                "populations": populations,
                "runs": out,
            }

    @property
    def running(self) -> bool:
        """Whether one of the runs is under way."""
        return any(status.running(folder) for folder in self.folders)

    def _files_of(self, folder: Path) -> RunFiles:
        """The files of a run, read on from where they ended unless its settings have changed."""
        files = RunFiles(folder)
        known = self._files.get(folder)
        if known is None or known.settings != files.settings:  # `rounds` may have grown
            self._files[folder] = files
        return self._files[folder]

    def _with_compared(self, folder: Path) -> list[_Run]:
        """A run and the algorithms that ran beside it; of these, the ones that have begun."""
        files = self._files_of(folder)
        out = [_Run(files, files.read(), beside=False)]
        for other in RunFolder.inside(RunFolder(folder).compared):
            files = self._files_of(other.path)
            records = files.read()
            if records:
                out.append(_Run(files, records, beside=True))
        return out


def facts(folders: Iterable[Path]) -> dict[str, Any]:
    """The facts of the runs in some folders, as JSON can hold them."""
    return Facts(folders).read()


@dataclass(frozen=True, eq=False)
class _Run:
    """One run, with what its seeds have written."""

    files: RunFiles
    records: Sequence[SeedRecord]
    beside: bool

    @property
    def key(self) -> str:
        """The name of the folder; of an algorithm beside another one, with the other's before."""
        folder = self.files.folder.absolute()
        if self.beside:
            return f"{folder.parent.parent.name}/{folder.name}"
        return folder.name

    @property
    def method(self) -> str:
        """What the algorithm calls itself; the name in the file where no seed has begun."""
        if self.records:
            return str(self.records[0].described.get("method", ""))
        return str(self.files.settings.get("algorithm", {}).get("name", ""))

    def as_dict(self, populations: list[dict[str, Any]], rounds: int) -> dict[str, Any]:
        """All facts but the key and the title; new populations are added to `populations`."""
        files = self.files
        where = status.read(files.folder)
        done = [len(record.history) for record in self.records]
        out: dict[str, Any] = {
            "folder": str(files.folder),
            "command": f"covey run {shlex.quote(str(RunFolder(files.folder).config))}",
            "state": where.state,
            "finished": where.state == "finished",
            "planned": files.rounds,
            "done": min(done) if len(done) == len(files.seeds) else 0,  # by the slowest seed
            "protocol": files.protocol,
            "settings": files.settings,
            "metric": "accuracy",
            "parameters": 0,
            "slots": {},
            "seeds": [],
        }
        if where.reason is not None:
            out["reason"] = where.reason
        if where.started is not None:
            out["started"] = where.started
        if self.records:
            out |= self._of_seeds(populations, rounds)
        return out

    def _of_seeds(self, populations: list[dict[str, Any]], rounds: int) -> dict[str, Any]:
        """What follows from the seeds that have begun."""
        seeds = [SeedFacts(record, self.files.protocol) for record in self.records]
        first = seeds[0]
        described = first.record.described
        out: dict[str, Any] = {
            "metric": first.metric,
            "parameters": described["parameters"],
            "slots": described["slots"],
            "seeds": [seed.as_dict(populations, rounds) for seed in seeds],
        }
        metrics = [
            {"name": metric.name, "higher": metric.higher} for metric in first.metrics.values()
        ]
        if metrics:
            out |= {"metrics": metrics, "shown": first.shown.name}
        last = {name: chosen.last.models[name] for name, chosen in first.selections.items()}
        names = labels({name: model.tier for name, model in last.items()}, described["private"])
        if names:
            out["labels"] = names
        for model in list(last.values())[:1]:
            drawn = model.scores["test"].sampled
            if drawn is not None:
                out["sample"] = {"devices": drawn}
        return out


def as_json(value: dict[str, Any]) -> str:
    """The facts as text; a CheckpointError where a number in them is not finite."""
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)
    except ValueError as error:
        raise CheckpointError(f"the facts hold a number that is not finite: {error}.") from error


def _unique(keys: Sequence[str]) -> list[str]:
    """The keys, numbered where two are the same."""
    out: list[str] = []
    for key in keys:
        new = key
        number = 1
        while new in out:
            number += 1
            new = f"{key} ({number})"
        out.append(new)
    return out


def _title(runs: Sequence[_Run]) -> str:
    """What the page is about: the data and the number of devices, or the number of runs."""
    names = set()
    for run in runs:
        data = run.files.settings.get("data", {}).get("name", "data")
        names |= {f"{data} on {each.described['sizes'][-1]:,} devices" for each in run.records}
    return names.pop() if len(names) == 1 else f"{len(runs)} runs"


def write(runs: Sequence[Path], page: Path) -> None:
    """Write the page of these runs, in one step."""
    folder = RunFolder(page.parent)
    if page.is_dir():
        raise ConfigError(f"--out {page} is a folder; name a file, as in {RunFolder(page).report}.")
    if not page.parent.is_dir():
        raise ConfigError(f"--out {page}: there is no folder {page.parent}; create it first.")
    value = Facts(runs).read()
    first = value["runs"][0]
    if not any(seed["models"] for run in value["runs"] for seed in run["seeds"]):
        raise ConfigError(
            f"{first['folder']} has no scored round yet "
            f"({first['done']} of {first['planned']} rounds run); "
            f"wait, or resume it with covey run --resume {first['folder']}."
        )
    for other in value["runs"][1:]:
        _check_data(first, other)
    folder.write(page, build(value))


def _check_data(first: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    """Refuse runs of different data: their figures cannot be compared."""
    ours = _data_settings(first)
    theirs = _data_settings(other)
    for name in sorted(ours.keys() | theirs.keys()):
        if ours.get(name) != theirs.get(name):
            raise ConfigError(
                f"{first['folder']} and {other['folder']} have different data: {name} = "
                f"{ours.get(name)!r} and {theirs.get(name)!r}; write one report for each."
            )


def _data_settings(run: Mapping[str, Any]) -> dict[str, Any]:
    """What decides which examples the devices of a run have."""
    settings = run["settings"]
    out = {f"data.{name}": value for name, value in settings.get("data", {}).items()}
    out["holdout_devices"] = settings.get("holdout_devices")
    return out
