"""Personal models for devices that were not in training, from the models that a run has left."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import torch
from torch import Tensor, nn

from covey.atomic import refused
from covey.data import Shards, device_file, device_text
from covey.data.shards import SPLITS
from covey.engine.measures.metrics import DEFAULTS
from covey.errors import ConfigError
from covey.files.config import Config, load
from covey.files.data_form import DataForm
from covey.folder.formats import KEY, units
from covey.folder.models import RunModels
from covey.runs.newcomers import Newcomers
from covey.runs.saved import checkpoint, snapshot
from covey.runs.saved.run_folder import RunFolder
from covey.runs.scores.headline import Headline, named
from covey.runs.scores.scoring import Score, score_of
from covey.types import Rows


@dataclass(frozen=True)
class Personalized:
    """The personal model of a new device.

    Its file, the model it started from, and every model's score on the new device.
    """

    device: str
    path: Path
    start: str  # "global", or the edge's name
    scores: dict[str, dict[str, Score]]  # by model ("global", "edge", "personal"), then part
    counts: dict[str, int]
    select: str = ""  # the metric by which the run's rounds were chosen, as `Model.select`

    @property
    def metric(self) -> Headline:
        """The metric by which models are judged: that of the run, or a default."""
        every = [score for scores in self.scores.values() for score in scores.values()]
        if self.select:
            return named(self.select)
        for name in DEFAULTS:
            if all(score.figure(name) is not None for score in every):
                return named(name)
        return named("loss")

    def others(self, part: str) -> list[Headline]:
        """The other metrics that models have on a part."""
        names: dict[str, None] = {}
        for scores in self.scores.values():
            score = scores[part]
            names |= dict.fromkeys(score.shown)
        names.pop(self.metric.name, None)
        return [named(name) for name in names]

    def as_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        scores = {
            name: {part: score.as_dict(whole=True) for part, score in parts.items()}
            for name, parts in self.scores.items()
        }
        return {
            "device": self.device,
            "metric": self.metric.name,
            "higher_is_better": self.metric.higher,
            "file": str(self.path),
            "start": self.start,
            "examples": self.counts,
            "scores": scores,
        }


def personalize(
    run: Path,
    data: Path,
    edge: str | None,
    out: Path | None,
    changes: list[str],
    seed: int | None,
    *,
    trust: bool = False,
) -> list[Personalized]:
    """The personal model of every device whose data is in a file, beside the run or in `out`.

    `out` is a file or, for several devices, a folder. Models start from those of the round that the
    run's table reports.
    """
    config, folder, seed = _run(run, changes, seed, trust)
    form = DataForm.read(folder.data)
    shards = _shards(data, form, config, seed)
    experiment = config.like(shards, seed)
    new = Newcomers([experiment], [shards])
    space = new.task.space
    w = snapshot.read(folder.model("global"), space).rows.to(new.task.device)
    above, names = _edges(folder, form, new)
    start = _start(new, above, names, edge)
    models = new.models(w, [above], config.rounds, start)
    parts = [part for part in SPLITS if shards.part(part).counts().any()]
    with torch.no_grad():
        tallies = {
            name: new.tallies(name, rows, parts, config.rounds) for name, rows in models.items()
        }
    statistics = None
    if space.norms:
        statistics = new.task.statistics(models["personal"], new.ids).cpu()
    paths = {data.stem: out or folder.newcomer(data.stem)}
    if shards.devices > 1:
        paths = {
            name: RunFolder(out or folder.path).newcomer(quote(name, safe=""))
            for name in shards.names.devices
        }
    done = []
    for number, (device, path) in enumerate(paths.items()):
        counts = {part: int(shards.part(part).counts()[number]) for part in SPLITS}
        scores = {
            name: {
                part: score_of(tally, slice(number, number + 1), new.task)
                for part, tally in by_part.items()
                if counts[part]
            }
            for name, by_part in tallies.items()
        }
        own = None
        if statistics is not None:
            own = statistics[number]
        module = space.fill(models["personal"][number].cpu(), own)
        _write(path, module, config, data, form)
        begun = "global"
        if start is not None:
            begun = names[int(start[number])]
        done.append(Personalized(device, path, begun, scores, counts, experiment.select))
    return done


def _edges(folder: RunFolder, form: DataForm, new: Newcomers) -> tuple[Rows, list[str]]:
    """The models of edges, and what the edges are called: their numbers if nothing else.

    There are none where the run has no models of the tier above devices.
    """
    name = new.algorithm.above()
    space = new.task.space
    if name == "global" or not folder.model(name).exists():
        return torch.zeros(0, space.width), []
    kept = snapshot.read(folder.model(name), space)
    numbers = kept.ids.tolist()
    names = list(map(str, numbers))
    if form.names.edges and len(new.algorithm.tiers()) > 2:
        names = [form.names.edges[number] for number in numbers]
    return kept.rows.to(new.task.device), names


def _start(new: Newcomers, above: Rows, names: Sequence[str], edge: str | None) -> Tensor | None:
    """The edge whose model every device starts from, [n]; None where there are no edges."""
    if edge is None:
        return new.fitting([above]) if names else None
    if edge not in names:
        reason = f"the edges are {', '.join(names)}"
        if not names:
            reason = "this algorithm has no edge models; leave it out"
        raise ConfigError(f"--edge {edge}: {reason}.")
    return torch.full((len(new.ids),), names.index(edge))


def _run(
    run: Path, changes: list[str], seed: int | None, trust: bool
) -> tuple[Config, RunFolder, int]:
    """The run's file with changes, and the folder and number of one of its seeds."""
    models = RunModels(RunFolder.found(run), seed, trust=trust)
    if other := [
        change
        for change in changes
        if not change.startswith(("algorithm.", "device=", "data.label="))
    ]:
        raise ConfigError(
            f"{other[0]!r}: of a finished run only the algorithm's fields may change, "
            "as in algorithm.steps=50."
        )
    if models.file.refusal is not None:
        raise ConfigError(models.file.refusal)
    if not models.place.model("global").exists():
        raise ConfigError(
            f"{models.place.path} has no models yet; finish the run first: covey run --resume {run}"
        )
    return load(models.file.folder.config, changes), models.place, models.seed


def _shards(path: Path, form: DataForm, config: Config, seed: int) -> Shards:
    if path.suffix.lower() == ".txt" and form.names.tokens:
        return device_text(path, tokens=form.names.tokens, length=form.shape[0], seed=seed)
    classes = form.names.classes or form.classes
    label: Any = config.data.get("label", "label")
    return device_file(
        path,
        features=form.names.features,
        classes=classes,
        scaling=form.scaling,
        shape=form.shape,
        label=label,
        device=str(config.data.get("device", "device")),
        yes_no=form.yes_no,
        tokens=form.tokens,
        encoding=form.encoding,
        target=form.target,
        decimal=str(config.data.get("decimal", ".")),
        seed=seed,
    )


def _write(
    path: Path,
    module: nn.Module,
    config: Config,
    data: Path,
    form: DataForm,
) -> None:
    """The personal model as a module's state, in one step; its metadata are those of an export."""
    state = {name: value.contiguous() for name, value in module.state_dict().items()}
    metadata = {"model": "personal", "algorithm": str(config.algorithm["name"]), "data": data.name}
    facts = units(form.scaling, form.target)
    facts |= {"classes": form.names.classes, "features": form.names.features}
    metadata[KEY] = json.dumps(facts)
    with refused(path):
        path.parent.mkdir(exist_ok=True)
        checkpoint.write_tensors(path, state, metadata)
