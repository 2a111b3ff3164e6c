"""What a run shows: a bar on a terminal, plain lines elsewhere, a table at the end."""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean
from typing import TYPE_CHECKING, Any

import rich.progress
from rich.measure import Measurement
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from covey.folder.personalize import Personalized
from covey.folder.terminal import Console
from covey.report.summary import ModelFigures, OverSeeds, SampleFigures, Summary
from covey.runs.run import Round
from covey.runs.scores.devices import DeviceScore
from covey.runs.scores.headline import asked_for, for_devices, headline, named
from covey.runs.tracker import RunTracker

if TYPE_CHECKING:
    from covey.folder.load import Loaded

LINES = 8  # of progress without a terminal, after the first


@dataclass(eq=False)
class ProgressBar(RunTracker):
    """Shows rounds as they come, with the mean scores of several seeds and the bytes so far.

    On a terminal it is a bar; elsewhere a line for the first scored round, then at most `lines`
    more, evenly spaced. `done` rounds were run before. Models that are `hidden` are left out.
    """

    console: Console
    rounds: int
    done: int
    label: str = ""
    hidden: Sequence[str] = ()
    lines: int = LINES
    notes: Sequence[str] = ()
    """Told by `say` as they come; rounds may add some."""
    say: Callable[[str], None] = print

    _bar: rich.progress.Progress | None = None
    _bytes: int = 0
    _scores: str = ""
    _part: int = -1  # the last part of the run that has its line; -1 before the first line

    def begin(self) -> None:
        self._tell_notes()
        if self.console.is_terminal:
            self._bar = rich.progress.Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=8),
                MofNCompleteColumn(),
                TextColumn("{task.fields[note]}", markup=False),
                TimeRemainingColumn(),
                console=self.console,
            )
            self._bar.start()
            self._bar.add_task(
                f"{self.label}round", total=self.rounds, completed=self.done, note=""
            )

    def log(self, records: Sequence[Round]) -> None:
        first = records[0]
        self._bytes += sum(record.bytes() for record in records)
        if first.models:
            self._scores = self._scores_of(records)
        text = f"{self._scores} {self._bytes / 1e6:.1f} MB"
        part = self.lines * (first.round + 1) // self.rounds
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], advance=1, note=text)
        elif first.models and part > self._part:
            self._part = part
            seconds = sum(record.seconds for record in records)
            place = f"{self.label}round {first.round + 1}/{self.rounds}"
            self.console.print(f"{place}  {text}  {seconds:.2f} s")
        self._tell_notes()

    def end(self, error: BaseException | None) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _scores_of(self, records: Sequence[Round]) -> str:
        """The models' scores; a bar has room for the devices' personal one and one per tier."""
        models = records[0].models
        names = list(models)
        if self._bar is not None:
            by_tier: dict[str, str] = {}
            for name, model in models.items():
                if model.tier not in by_tier or name in ("personal", "new_personal"):
                    by_tier[model.tier] = name
            names = list(by_tier.values())
        shown = [name for name in names if name not in self.hidden]
        return " ".join(f"{name} {_score(records, name)}" for name in shown)

    def _tell_notes(self) -> None:
        for note in self.notes:
            self.say(f"note: {note}")


def text(summary: Summary) -> str:
    """The tables as plain text."""
    out = io.StringIO()
    table(Console(file=out, width=200, no_color=True), summary)
    return out.getvalue().strip("\n") + "\n"


def table(console: Console, summary: Summary) -> None:
    """Every model, then every link."""
    console.print(_heading(summary))
    out = _models(summary)
    for count in range(1, len(_DISPENSABLE) + 1):
        if _width(console, out) <= console.width:
            break
        out = _models(summary, without=_DISPENSABLE[:count])
    print_wide(console, out)
    if summary.sample is not None:
        console.print(_sample(summary.sample))
    if summary.uncounted:
        few = plural(summary.uncounted, "device")
        told = "in the accuracy alone, together" if _has(summary, "accuracy") else "in no figure"
        console.print(f"{few} with fewer test examples than `least` counted {told}")
    for line in _gains(summary):
        console.print(line)
    cuts = [f"{m.model} {m.cut:.2g}" for m in summary.models if m.cut]
    if cuts:
        console.print(f"non-zero: entries above the cut ({', '.join(cuts)})")
        angles = [f"{m.model} {m.angle.mean:.1f}" for m in summary.models if m.angle is not None]
        console.print(f"angle between a model and its signs, in degrees: {', '.join(angles)}")
    if summary.links:
        console.print("\nbytes of training, all rounds of one seed")
        print_wide(console, _links(summary))
    for line in summary.environment.lines() if summary.environment else ():
        console.print(line)
    if summary.spent:
        total = sum(summary.spent.values())
        shares = ", ".join(
            f"{name} {100 * seconds / total:.0f} %" for name, seconds in summary.spent.items()
        )
        console.print(f"\ntime: {total:.1f} s, of which {shares}")


def _heading(summary: Summary) -> str:
    """The line above the table of the models."""
    seeds = plural(summary.seeds, "seed")
    part = "TEST data, as the papers do"
    if summary.protocol == "honest":
        part = "validation data"
    figure = "loss"
    if summary.select:
        figure = named(summary.select).axis
    elif _has(summary, "perplexity"):
        figure = "accuracy in % and perplexity, per token"
    elif _has(summary, "accuracy"):
        figure = "accuracy in %"
    elif _has(summary, "rmse"):
        figure = "errors in the units of the target"
    rounds = str(summary.rounds)
    if summary.rounds_by_seed:
        rounds = f"{min(summary.rounds_by_seed)} to {max(summary.rounds_by_seed)}"
    length = f"{rounds} rounds, {seeds}"
    by = f" by {named(summary.select).title}" if summary.select else ""
    return f"\n{length}; test {figure}, each model in the round chosen{by} on {part}:"


def plural(count: float, noun: str) -> str:
    """A number and its noun.

    >>> plural(1, "seed"), plural(1200, "round")
    ('1 seed', '1,200 rounds')
    """
    ending = "" if count == 1 else "s"
    return f"{count:,} {noun}{ending}"


def print_wide(console: Console, table: Table) -> None:
    """Print a table at its own width: on a narrow console its lines go on, and no figure is cut."""
    width = console.width
    console.width = max(width, _width(console, table))
    try:
        console.print(table)
    finally:
        console.width = width


def _has(summary: Summary, figure: str) -> bool:
    """Whether a model has this figure: of classes, of numbers, or of tokens."""
    return any(getattr(model, figure) is not None for model in summary.models)


def _width(console: Console, table: Table) -> int:
    """The width at which no cell is cut."""
    return Measurement.get(console, console.options.update(width=10_000), table).maximum


_DISPENSABLE = ("best on test (optimistic)", "mean of devices", "round")
"""Columns that a narrow console does without, the first first; summary.json has them all."""


_OF_SELECT = {
    "holders": "metrics_holders",
    "last round": "metrics_last",
    "best on test (optimistic)": "metrics_best_on_test",
}
"""Of the metric by which rounds are chosen; heading, attribute."""
_OF_CLASSES = {
    "test % (all)": "accuracy",
    "holders": "accuracy_holders",
    "mean of devices": "accuracy_uniform",
    "worst 10 %": "worst_decile",
    "last round": "last",
    "best on test (optimistic)": "best_on_test",
}
_OF_NUMBERS = {
    "test RMSE (all)": "rmse",
    "MAE": "mae",
    "R2": "r2",
    "RMSE (holders)": "rmse_holders",
    "last round": "rmse_last",
    "best on test (optimistic)": "rmse_best_on_test",
}
_OF_LOSSES = {"test loss (all)": "loss", "holders": "loss_holders", "last round": "loss_last"}
_BESIDE = {"test %": "accuracy", "worst 10 %": "worst_decile"}
_NUMBERS_BESIDE = {"RMSE": "rmse", "MAE": "mae", "R2": "r2", "perplexity": "perplexity"}
"""The columns of the table of the models, and the figure of a model that each one has."""


def _cells(
    models: Sequence[ModelFigures], figures: dict[str, str], spell: Callable[[Any], str]
) -> dict[str, list[str]]:
    """Every column's cells, one per model."""
    columns: dict[str, list[str]] = {head: [] for head in figures}
    for model in models:
        for head, name in figures.items():
            columns[head].append(spell(getattr(model, name)))
    return columns


def _models(summary: Summary, without: Sequence[str] = ()) -> Table:
    """One row per model of the run, then of the algorithms beside it.

    A column that says the same as the first of its kind, or nothing, is left out.
    """
    models = list(summary.models)
    names = [summary.labels.get(model.model, model.model) for model in models]
    for other in summary.yardsticks:
        models += other.models
        names += [f"{other.method} {model.model}" for model in other.models]
    columns = _figures(summary, models)
    rounds = ["/".join(str(k + 1) for k in dict.fromkeys(m.chosen_round)) for m in models]
    if summary.seeds == 1 and len(set(rounds)) > 1:
        columns["round"] = rounds
    if any(model.nonzeros.mean < 0.9995 for model in models):
        columns["non-zero %"] = [_percent(model.nonzeros) for model in models]
    heads = [head for head in columns if head not in without]
    out = table_of(["model", "kept by", *heads], ("model", "kept by"))
    for position, model in enumerate(models):
        ending = "" if model.holders.mean == 1 else "s"
        holders = f"{model.holders.mean:g} {model.tier}{ending}"
        out.add_row(names[position], holders, *(columns[head][position] for head in heads))
    return out


def _figures(summary: Summary, models: Sequence[ModelFigures]) -> dict[str, list[str]]:
    """The columns of figures; those that equal the first one are left out.

    The metric by which rounds are chosen comes first.
    """
    columns = _usual(summary, models)
    select = summary.select
    if select and not named(select).percent:
        heads = {f"test {named(select).title} (all)": "metrics", **_OF_SELECT}
        columns = _cells(models, heads, lambda metrics: _plain(metrics.get(select))) | columns
    first = next(iter(columns))
    shown = {summary.select, *_SHOWN}
    for name in dict.fromkeys(chain(*[model.metrics for model in models])):
        if name not in shown:
            columns[name] = [_plain(model.metrics.get(name)) for model in models]
    same = [head for head in columns if head != first and columns[head] == columns[first]]
    return {head: cells for head, cells in columns.items() if head not in same}


def _usual(summary: Summary, models: Sequence[ModelFigures]) -> dict[str, list[str]]:
    """The figures that every run has; beside a metric of `select`, in the chosen round alone."""
    if summary.select and not named(summary.select).percent:
        columns = _cells(models, _BESIDE, _percent) | _cells(models, _NUMBERS_BESIDE, _plain)
        columns.pop(named(summary.select).title, None)
        return {head: cells for head, cells in columns.items() if set(cells) != {"-"}}
    if _has(summary, "accuracy"):
        columns = _cells(models, _OF_CLASSES, _percent)
        if _has(summary, "perplexity"):
            first = next(iter(columns))
            perplexities = [_plain(model.perplexity) for model in models]
            columns = {first: columns[first], "perplexity": perplexities} | columns
    elif _has(summary, "rmse"):
        columns = _cells(models, _OF_NUMBERS, _plain)
    else:
        columns = _cells(models, _OF_LOSSES, _plain)
    return columns


_SHOWN = ("accuracy", "rmse", "mae", "r2", "perplexity")
"""Metrics that have columns of their own in every table."""


def _sample(sample: SampleFigures) -> str:
    """How many devices models were scored on, and the standard error of a figure."""
    metric = named(sample.metric)
    figure = "a figure" if metric.percent else metric.title
    errors = [
        f"{name} {metric.scaled(error):.2g}"
        for name, error in sample.standard_errors.items()
        if error is not None
    ]
    devices = plural(sample.devices, "device")
    listed = ", ".join(errors) or "unknown"
    return f"scored on {devices} drawn in each round; standard error of {figure}: {listed}"


def _gains(summary: Summary) -> Iterator[str]:
    """Who is better off with a model of its own."""
    for gain in summary.gains:
        pair = f"{gain.model} against {gain.other}"
        counts = f"{gain.better} of {gain.devices} devices gain, {gain.worse} lose"
        metric = named(gain.figure)
        what = "" if metric.percent else f"{metric.title}: "
        if what and not metric.relative:
            what = f"gain in {what}"
        limits = gain.ends(gain.least, gain.most)
        together = f"; together {gain.difference}" if gain.difference else ""
        yield f"{pair}: {counts} ({what}median {gain.signed(gain.median)}, from {limits}){together}"


def devices(console: Console, seeds: Sequence[Loaded], wanted: str | None) -> None:
    """A row per device, all models side by side; worst first by the most personal one.

    `wanted` is the metric; None: the one by which rounds are chosen.
    """
    lines = [(seed.seed, line) for seed in seeds for line in seed.devices()]
    tested = [(seed, line) for seed, line in lines if line.part == "test"]
    compared = [line for _, line in tested]
    metric = for_devices(headline(seeds[0].history), compared)
    if wanted is not None:
        metric = asked_for(wanted, headline(seeds[0].history), compared)
    figures: dict[tuple[int, str], dict[str, float | None]] = {}
    first: dict[tuple[int, str], DeviceScore] = {}
    for seed, line in tested:
        figures.setdefault((seed, line.device), {})[line.model] = metric.of_device(line)
        first.setdefault((seed, line.device), line)
    models = seeds[0].models()
    own = seeds[0].most_personal()
    with_seeds = len(seeds) > 1
    with_edges = any(line.edge is not None for line in compared)
    heads = ["seed"] * with_seeds + ["device"] + ["edge"] * with_edges
    numbers = ["test examples", *(f"{name} {metric.unit}" for name in models)]
    table = table_of([*heads, *numbers], heads)

    def goodness(key: tuple[int, str]) -> float:
        """A number whose min is that of the worst device; devices without a figure come last."""
        figure = figures[key].get(own)
        return float("inf") if figure is None else -metric.badness(figure)

    for seed, device in sorted(figures, key=goodness):
        line = first[seed, device]
        words = [str(seed)] * with_seeds + [device] + [line.edge or ""] * with_edges
        cells = [metric.text(figures[seed, device].get(name), digits=1) for name in models]
        table.add_row(*words, str(line.examples), *cells)
    print_wide(console, table)


def newcomer(console: Console, done: Personalized) -> None:
    """What each model does on a new device."""
    sizes = ", ".join(f"{count} {part}" for part, count in done.counts.items())
    console.print(f"{done.device}: a new device with {sizes} examples")
    console.print(f"its model starts from {done.start}")
    parts = [part for part, count in done.counts.items() if count]
    shown = [(part, done.metric) for part in parts]
    if "test" in parts:
        shown += [("test", metric) for metric in done.others("test")]
    heads = ["model", "", *(f"{part} {metric.unit}" for part, metric in shown)]
    rows = table_of(heads, ("model", ""))
    for name, scores in done.scores.items():
        rows.add_row(name, "", *(metric.text(metric.of(scores[part])) for part, metric in shown))
    print_wide(console, rows)
    console.print(f"personal model: {done.path}")


def _links(summary: Summary) -> Table:
    heads = ["link", "", "MB down", "MB up", "of dense", "by formula", "non-zero"]
    links = table_of(heads, ("link", ""))
    for k in summary.links:
        share = f"{100 * k.nonzeros:.1f}" if k.nonzeros is not None else "-"
        ratios = ["-", "-"]
        if k.dense:
            formula = k.formula_paper / k.formula_dense
            ratios = [f"{(k.down + k.up) / k.dense:.3f}", f"{formula:.3f}"]
        links.add_row(k.link, "", f"{k.down / 1e6:.3f}", f"{k.up / 1e6:.3f}", *ratios, share)
    return links


def table_of(heads: Iterable[str], words: Collection[str]) -> Table:
    """A table without rows; the columns of `words` stand left, those of numbers right."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for head in heads:
        table.add_column(head, justify="left" if head in words else "right", no_wrap=True)
    return table


def _plain(figure: OverSeeds | None) -> str:
    return "-" if figure is None else str(figure)


def _percent(figure: OverSeeds | None) -> str:
    return "-" if figure is None else figure.percent()


def _score(records: Sequence[Round], name: str) -> str:
    metric = headline(records)
    figures = (metric.of_holders(record.models[name].tested) for record in records)
    known = [figure for figure in figures if figure is not None]
    if not known:
        return "-"
    if metric.percent:
        return f"{100 * fmean(known):.1f}%"
    return metric.with_unit(fmean(known))
