"""What a run shows: a bar on a terminal, plain lines elsewhere, a table at the end."""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import fmean

from rich.measure import Measurement
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from covey.cli.personalize import Personalized
from covey.cli.terminal import Console
from covey.report.summary import Figure, ModelFigures, RadioFigures, SampleFigures, Summary
from covey.runs.headline import headline, named
from covey.runs.run import Round

Show = Callable[[Sequence[Round]], None]
LINES = 8  # of progress without a terminal, after the first


@contextmanager
def progress(
    console: Console,
    *,
    label: str,
    rounds: int,
    done: int,
    hidden: Sequence[str] = (),
    lines: int = LINES,
) -> Iterator[Show]:
    """Show rounds as they come, with the mean scores of several seeds.

    `done` rounds were run before. Models that are `hidden` are left out. Without a terminal, the
    first scored round has a line, and at most `lines` later ones.
    """
    notes = _Notes(hidden, wide=not console.is_terminal)
    if not console.is_terminal:
        yield _Lines(console, label, rounds, notes, lines)
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=8),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    )
    with Progress(*columns, TimeRemainingColumn(), console=console) as bar:
        task = bar.add_task(f"{label}round", total=rounds, completed=done, note="")
        yield lambda records: bar.update(task, advance=1, note=notes.add(records))


class _Notes:
    """The text beside a round's number: the last scores, and the bytes of all rounds so far."""

    def __init__(self, hidden: Sequence[str], *, wide: bool) -> None:
        self._hidden = hidden
        self._wide = wide  # there is room for every model
        self._bytes = 0
        self._scores = ""

    def add(self, records: Sequence[Round]) -> str:
        """The text after one more round of every seed."""
        first = records[0]
        self._bytes += sum(record.bytes() for record in records)
        if first.models:
            names = list(first.models) if self._wide else _one_per_tier(first)
            shown = [name for name in names if name not in self._hidden]
            self._scores = " ".join(f"{name} {_score(records, name)}" for name in shown)
        return f"{self._scores} {self._bytes / 1e6:.1f} MB"


class _Lines:
    """One line for the first scored round, then at most `lines` more, evenly spaced."""

    def __init__(
        self, console: Console, label: str, rounds: int, notes: _Notes, lines: int
    ) -> None:
        self._console = console
        self._label = label
        self._rounds = rounds
        self._notes = notes
        self._lines = lines
        self._printed = -1  # the last part of the run that has its line; -1 before the first line

    def __call__(self, records: Sequence[Round]) -> None:
        """Add a round of every seed; print a line if one is due."""
        text = self._notes.add(records)
        round = records[0].round + 1
        part = self._lines * round // self._rounds
        if not records[0].models or part <= self._printed:
            return
        self._printed = part
        seconds = sum(record.seconds for record in records)
        head = f"{self._label}round {round}/{self._rounds}"
        self._console.print(f"{head}  {text}  {seconds:.2f} s")


def text(summary: Summary) -> str:
    """The tables as plain text."""
    out = io.StringIO()
    table(Console(file=out, width=200, no_color=True), summary)
    return out.getvalue().strip("\n") + "\n"


def table(console: Console, summary: Summary) -> None:
    """Every model, then every link."""
    console.print(_heading(summary))
    print_wide(console, _fitting(console, summary))
    if summary.sample is not None:
        console.print(_sample(summary.sample))
    if summary.uncounted:
        few = plural(summary.uncounted, "device")
        told = "in the accuracy alone, together" if _classifies(summary) else "in no figure"
        console.print(f"{few} with fewer test examples than `least` counted {told}")
    for line in _gains(summary):
        console.print(line)
    _sparsity(console, summary)
    if summary.links:
        console.print("\nbytes of training, all rounds of one seed")
        print_wide(console, _links(summary))
    if summary.radio is not None:
        _radio(console, summary.radio)
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
    elif _has_perplexity(summary):
        figure = "accuracy in % and perplexity, per token"
    elif _classifies(summary):
        figure = "accuracy in %"
    elif _predicts_numbers(summary):
        figure = "errors in the units of the target"
    rounds = str(summary.rounds)
    if summary.rounds_by_seed:
        rounds = f"{min(summary.rounds_by_seed)} to {max(summary.rounds_by_seed)}"
    length = f"{rounds} rounds, {seeds}"
    by = f" by {named(summary.select).title}" if summary.select else ""
    return f"\n{length}; test {figure}, each model in the round chosen{by} on {part}:"


def _sparsity(console: Console, summary: Summary) -> None:
    """Where entries count as zero, and the angles of the models to their signs."""
    cuts = [f"{m.model} {m.cut:.2g}" for m in summary.models if m.cut]
    if cuts:
        console.print(f"non-zero: entries above the cut ({', '.join(cuts)})")
        angles = [f"{m.model} {m.angle.mean:.1f}" for m in summary.models if m.angle is not None]
        console.print(f"angle between a model and its signs, in degrees: {', '.join(angles)}")


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


def _classifies(summary: Summary) -> bool:
    return any(m.accuracy is not None for m in summary.models)


def _has_perplexity(summary: Summary) -> bool:
    return any(m.perplexity is not None for m in summary.models)


def _predicts_numbers(summary: Summary) -> bool:
    return any(m.rmse is not None for m in summary.models)


def _width(console: Console, table: Table) -> int:
    """The width at which no cell is cut."""
    return Measurement.get(console, console.options.update(width=10_000), table).maximum


_DISPENSABLE = ("best on test (optimistic)", "mean of devices", "round")
"""Columns that a narrow console does without, the first first; summary.json has them all."""


def _fitting(console: Console, summary: Summary) -> Table:
    """The table of the models with as many columns as the console has room for."""
    out = _models(summary)
    for count in range(1, len(_DISPENSABLE) + 1):
        if _width(console, out) <= console.width:
            break
        out = _models(summary, without=_DISPENSABLE[:count])
    return out


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
"""The columns of the table of the models, and the figure of a model that each one has."""


def _cells(
    models: Sequence[ModelFigures], figures: dict[str, str], spell: Callable[[Figure | None], str]
) -> dict[str, list[str]]:
    """Every column's cells, one per model."""
    return {
        head: [spell(getattr(model, name)) for model in models] for head, name in figures.items()
    }


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
    rounds = [_rounds(model) for model in models]
    if summary.seeds == 1 and len(set(rounds)) > 1:
        columns["round"] = rounds
    if any(model.nonzeros.mean < 0.9995 for model in models):
        columns["non-zero %"] = [_percent(model.nonzeros) for model in models]
    heads = [head for head in columns if head not in without]
    out = _columns("model", "kept by", *heads)
    for position, model in enumerate(models):
        ending = "" if model.holders.mean == 1 else "s"
        holders = f"{model.holders.mean:g} {model.tier}{ending}"
        out.add_row(names[position], holders, *(columns[head][position] for head in heads))
    return out


def _figures(summary: Summary, models: Sequence[ModelFigures]) -> dict[str, list[str]]:
    """The columns of figures; those that equal the first one are left out.

    The metric by which rounds are chosen comes first.
    """
    columns = _of_select(summary.select, models) | _usual(summary, models)
    first = next(iter(columns))
    columns |= _metrics(models, {summary.select, *_SHOWN})
    same = [head for head in columns if head != first and columns[head] == columns[first]]
    return {head: cells for head, cells in columns.items() if head not in same}


def _of_select(select: str, models: Sequence[ModelFigures]) -> dict[str, list[str]]:
    """The metric by which rounds are chosen, also of the holders and in other rounds."""
    metric = named(select)
    if not select or metric.percent:
        return {}

    def cells(figures: Callable[[ModelFigures], Mapping[str, Figure | None]]) -> list[str]:
        return [_plain(figures(model).get(select)) for model in models]

    return {
        f"test {metric.title} (all)": cells(lambda model: model.metrics),
        "holders": cells(lambda model: model.metrics_holders),
        "last round": cells(lambda model: model.metrics_last),
        "best on test (optimistic)": cells(lambda model: model.metrics_best_on_test),
    }


def _usual(summary: Summary, models: Sequence[ModelFigures]) -> dict[str, list[str]]:
    """The figures that every run has; beside a metric of `select`, in the chosen round alone."""
    if summary.select and not named(summary.select).percent:
        return _beside(summary, models)
    if _classifies(summary):
        columns = _cells(models, _OF_CLASSES, _percent)
        if _has_perplexity(summary):
            columns = _with_perplexity(columns, models)
    elif _predicts_numbers(summary):
        columns = _cells(models, _OF_NUMBERS, _plain)
    else:
        columns = _cells(models, _OF_LOSSES, _plain)
    return columns


_BESIDE = {"test %": "accuracy", "worst 10 %": "worst_decile"}
_NUMBERS_BESIDE = {"RMSE": "rmse", "MAE": "mae", "R2": "r2", "perplexity": "perplexity"}


def _beside(summary: Summary, models: Sequence[ModelFigures]) -> dict[str, list[str]]:
    """The figures that every run has beside the metric by which rounds are chosen."""
    columns = _cells(models, _BESIDE, _percent) | _cells(models, _NUMBERS_BESIDE, _plain)
    columns.pop(named(summary.select).title, None)
    return {head: cells for head, cells in columns.items() if set(cells) != {"-"}}


_SHOWN = ("accuracy", "rmse", "mae", "r2", "perplexity")
"""Metrics that have columns of their own in every table."""


def _metrics(models: Sequence[ModelFigures], shown: Collection[str]) -> dict[str, list[str]]:
    """A column for each metric that the experiment asks for, but those that are shown already."""
    names = dict.fromkeys(name for model in models for name in model.metrics)
    return {
        name: [_plain(model.metrics.get(name)) for model in models]
        for name in names
        if name not in shown
    }


def _with_perplexity(
    columns: dict[str, list[str]], models: Sequence[ModelFigures]
) -> dict[str, list[str]]:
    """The columns with perplexities after the first."""
    first, *others = columns
    perplexities = [_plain(model.perplexity) for model in models]
    out = {first: columns[first], "perplexity": perplexities}
    for head in others:
        out[head] = columns[head]
    return out


def _rounds(model: ModelFigures) -> str:
    """The rounds in which a model is reported, counted from 1."""
    return "/".join(str(round + 1) for round in dict.fromkeys(model.chosen_round))


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


def _radio(console: Console, figures: RadioFigures) -> None:
    """What the rounds took over the air."""
    plan = ""
    if figures.formula_seconds is not None:
        plan = f" ({figures.formula_seconds} by the plan's formulas)"
    sure = ""
    if figures.certificate is not None:
        sure = f"; optimality gap of every plan at most {figures.certificate:.0e}"
    sent = ""
    if figures.formula_bytes is not None:
        sent = f", by formula {figures.formula_bytes.mean / 1e6:.3f}"
    total = f"{figures.seconds} s{plan}, {figures.joules} J for all devices"
    console.print(f"\nover the air, all rounds of one seed: {total}")
    megabytes = f"{figures.upload_bytes.mean / 1e6:.3f} MB{sent}"
    uploads = f"uploads: {figures.upload_joules} J for {megabytes}"
    missing = f"per round: {figures.left_out} devices excluded, {figures.late} late"
    console.print(f"{uploads}; {missing}{sure}")


def newcomer(console: Console, done: Personalized) -> None:
    """What each model does on a new device."""
    sizes = ", ".join(f"{count} {part}" for part, count in done.counts.items())
    console.print(f"{done.device}: a new device with {sizes} examples")
    console.print(f"its model starts from {done.start}")
    parts = [part for part, count in done.counts.items() if count]
    columns = [(part, done.metric) for part in parts]
    if "test" in parts:
        columns += [("test", metric) for metric in done.others("test")]
    rows = _columns("model", "", *(f"{part} {metric.unit}" for part, metric in columns))
    for name, scores in done.scores.items():
        rows.add_row(name, "", *(metric.text(metric.of(scores[part])) for part, metric in columns))
    print_wide(console, rows)
    console.print(f"personal model: {done.path}")


def _links(summary: Summary) -> Table:
    links = _columns("link", "", "MB down", "MB up", "of dense", "by formula", "non-zero")
    for k in summary.links:
        share = f"{100 * k.nonzeros:.1f}" if k.nonzeros is not None else "-"
        ratios = [
            f"{a / b:.3f}" if b else "-"
            for a, b in ((k.down + k.up, k.dense), (k.formula_paper, k.formula_dense))
        ]
        links.add_row(k.link, "", f"{k.down / 1e6:.3f}", f"{k.up / 1e6:.3f}", *ratios, share)
    return links


def _columns(*names: str) -> Table:
    """Two columns of words, then numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for position, name in enumerate(names):
        table.add_column(name, justify="left" if position < 2 else "right", no_wrap=True)
    return table


def _one_per_tier(record: Round) -> list[str]:
    """The model of each tier that one line has room for.

    It is the personal one of the devices, and the first one of the other tiers.
    """
    by_tier: dict[str, str] = {}
    for name, model in record.models.items():
        if model.tier not in by_tier or name in ("personal", "new_personal"):
            by_tier[model.tier] = name
    return list(by_tier.values())


def _plain(figure: Figure | None) -> str:
    return "-" if figure is None else str(figure)


def _percent(figure: Figure | None) -> str:
    return "-" if figure is None else figure.percent()


def _score(records: Sequence[Round], name: str) -> str:
    by_part = [record.models[name].scores for record in records]
    scores = [parts.get("test") or next(iter(parts.values())) for parts in by_part]
    metric = headline(records)
    known = _known(metric.of_holders(score) for score in scores)
    if not known:
        return "-"
    if metric.percent:
        return f"{100 * fmean(known):.1f}%"
    return metric.with_unit(fmean(known))


def _known(figures: Iterable[float | None]) -> list[float]:
    return [figure for figure in figures if figure is not None]
