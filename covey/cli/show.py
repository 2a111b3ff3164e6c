"""What a run shows: a bar on a terminal, plain lines elsewhere, a table at the end."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import fmean

from rich.console import Console
from rich.measure import Measurement
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from covey.cli.personalize import Personalized
from covey.report.summary import Figure, RadioFigures, SampleFigures, Summary
from covey.runs.run import Round

Show = Callable[[Sequence[Round]], None]


@contextmanager
def progress(
    console: Console, *, label: str, rounds: int, done: int, hidden: Sequence[str] = ()
) -> Iterator[Show]:
    """Shows rounds as they come, of several seeds with their mean scores; `done` of them had been
    run before.

    Models that are `hidden` are left out.
    """
    total = 0
    scores = ""

    def note(records: Sequence[Round]) -> str:
        nonlocal total, scores
        total += sum(record.bytes() for record in records)
        if records[0].models:
            names = _one_per_tier(records[0]) if console.is_terminal else list(records[0].models)
            scores = " ".join(
                f"{name} {_score(records, name)}" for name in names if name not in hidden
            )
        return f"{scores} {total / 1e6:.1f} MB"

    if not console.is_terminal:

        def line(records: Sequence[Round]) -> None:
            text, first = note(records), records[0]
            if first.models:
                seconds = sum(record.seconds for record in records)
                console.print(
                    f"{label}round {first.round + 1}/{rounds}  {text}  {seconds:.2f} s",
                    highlight=False,
                )

        yield line
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=8),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, TimeRemainingColumn(), console=console) as bar:
        task = bar.add_task(f"{label}round", total=rounds, completed=done, note="")
        yield lambda records: bar.update(task, advance=1, note=note(records))


def text(summary: Summary) -> str:
    """The tables as plain text."""
    out = io.StringIO()
    table(Console(file=out, soft_wrap=True, width=200, no_color=True), summary)
    return out.getvalue().strip("\n") + "\n"


def table(console: Console, summary: Summary) -> None:
    """Every model, then every link."""
    seeds = f"{summary.seeds} seed{'s' if summary.seeds > 1 else ''}"
    part = "validation data" if summary.protocol == "honest" else "TEST data, as the papers do"
    figure = "loss"
    if _classifies(summary):
        figure = "accuracy in %"
    elif _predicts_numbers(summary):
        figure = "errors in the units of the target"
    console.print(
        f"\n{summary.rounds} rounds, {seeds}; test {figure}, each model in the round chosen on {part}:",
        highlight=False,
    )
    print_wide(console, _fitting(console, summary))
    if summary.sample is not None:
        console.print(_sample(summary.sample, percent=_classifies(summary)), highlight=False)
    for line in _gains(summary):
        console.print(line, highlight=False)
    cuts = [f"{m.model} {m.cut:.2g}" for m in summary.models if m.cut]
    if cuts:
        console.print(f"non-zero: entries above the cut ({', '.join(cuts)})", highlight=False)
        angles = [f"{m.model} {m.angle.mean:.1f}" for m in summary.models if m.angle is not None]
        console.print(
            f"angle between a model and its signs, in degrees: {', '.join(angles)}", highlight=False
        )
    if summary.links:
        console.print("\nbytes of training, all rounds of one seed", highlight=False)
        print_wide(console, _links(summary))
    if summary.radio is not None:
        _radio(console, summary.radio)
    if summary.spent:
        total = sum(summary.spent.values())
        shares = ", ".join(
            f"{name} {100 * seconds / total:.0f} %" for name, seconds in summary.spent.items()
        )
        console.print(f"\ntime: {total:.1f} s, of which {shares}", highlight=False)


def print_wide(console: Console, table: Table) -> None:
    """Print a table at its own width: on a narrow console its lines go on, and no figure is cut."""
    width = console.width
    console.width = max(width, _width(console, table))
    try:
        console.print(table, highlight=False)
    finally:
        console.width = width


def _classifies(summary: Summary) -> bool:
    return any(m.accuracy is not None for m in summary.models)


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


def _models(summary: Summary, without: Sequence[str] = ()) -> Table:
    """One row per model of the run, then of the algorithms beside it.

    A column that says the same as the first of its kind, or nothing, is left out.
    """
    models = [*summary.models, *(m for y in summary.yardsticks for m in y.models)]
    names = [summary.labels.get(m.model, m.model) for m in summary.models]
    names += [f"{y.method} {m.model}" for y in summary.yardsticks for m in y.models]
    if _classifies(summary):
        columns = {
            "test % (all)": [_percent(m.accuracy) for m in models],
            "holders": [_percent(m.accuracy_holders) for m in models],
            "mean of devices": [_percent(m.accuracy_uniform) for m in models],
            "worst 10 %": [_percent(m.worst_decile) for m in models],
            "last round": [_percent(m.last) for m in models],
            "best on test (optimistic)": [_percent(m.best_on_test) for m in models],
        }
    elif _predicts_numbers(summary):
        columns = {
            "test RMSE (all)": [_plain(m.rmse) for m in models],
            "MAE": [_plain(m.mae) for m in models],
            "R2": [_plain(m.r2) for m in models],
            "RMSE (holders)": [_plain(m.rmse_holders) for m in models],
            "last round": [_plain(m.rmse_last) for m in models],
            "best on test (optimistic)": [_plain(m.rmse_best_on_test) for m in models],
        }
    else:
        columns = {
            "test loss (all)": [_plain(m.loss) for m in models],
            "holders": [_plain(m.loss_holders) for m in models],
            "last round": [_plain(m.loss_last) for m in models],
        }
    first = next(iter(columns.values()))
    columns = {head: cells for head, cells in columns.items() if cells is first or cells != first}
    columns["round"] = ["/".join(str(k + 1) for k in dict.fromkeys(m.chosen_round)) for m in models]
    if summary.seeds > 1 or len(set(columns["round"])) == 1:
        del columns["round"]
    if any(m.nonzeros.mean < 0.9995 for m in models):
        columns["non-zero %"] = [_percent(m.nonzeros) for m in models]
    columns = {head: cells for head, cells in columns.items() if head not in without}
    out = _columns("model", "kept by", *columns)
    for at, m in enumerate(models):
        kept = f"{m.holders.mean:g} {m.tier}{'s' if m.holders.mean != 1 else ''}"
        out.add_row(names[at], kept, *(cells[at] for cells in columns.values()))
    return out


def _sample(sample: SampleFigures, *, percent: bool) -> str:
    """On how many devices models were scored, and how far that may be from the figure over all
    devices.
    """
    factor = 100 if percent else 1
    known = [(name, error) for name, error in sample.standard_errors.items() if error is not None]
    errors = ", ".join(f"{name} {factor * error:.2g}" for name, error in known)
    devices = f"{sample.devices} device{'s' if sample.devices > 1 else ''}"
    return f"scored on {devices} drawn in each round; standard error of a figure: {errors or 'not known'}"


def _gains(summary: Summary) -> Iterator[str]:
    """Who is better off with a model of its own."""
    for gain in summary.gains:
        who = f"{gain.model} against {gain.other}: {gain.better} of {gain.devices} devices gain, {gain.worse} lose"
        if gain.figure == "rmse":
            yield f"{who} (RMSE: median {-gain.median:+.1f} %, from {-gain.most:+.1f} to {-gain.least:+.1f})"
        else:
            yield f"{who} (median {gain.median:+.1f} points, from {gain.least:+.1f} to {gain.most:+.1f})"


def _radio(console: Console, figures: RadioFigures) -> None:
    """What the rounds took over the air."""
    plan = (
        ""
        if figures.formula_seconds is None
        else f" (by the plan's formulas {figures.formula_seconds})"
    )
    sure = (
        ""
        if figures.certificate is None
        else f"; every plan is optimal to {figures.certificate:.0e}"
    )
    sent = (
        ""
        if figures.formula_bytes is None
        else f", by formula {figures.formula_bytes.mean / 1e6:.3f}"
    )
    console.print(
        f"\nover the air, all rounds of one seed: {figures.seconds} s{plan}, {figures.joules} J of all devices,",
        highlight=False,
    )
    console.print(
        f"of which {figures.upload_joules} J for sending {figures.upload_bytes.mean / 1e6:.3f} MB{sent};"
        f" in a round {figures.left_out} devices left out, {figures.late} late{sure}",
        highlight=False,
    )


def newcomer(console: Console, done: Personalized) -> None:
    """What each model does on a new device."""
    sizes = ", ".join(f"{count} {part}" for part, count in done.counts.items())
    console.print(
        f"a new device with {sizes} examples; its model starts from {done.start}", highlight=False
    )
    parts = [part for part, count in done.counts.items() if count]
    kinds = {part: _kind(done, part) for part in parts}
    heads = {"accuracy": "%", "rmse": "RMSE", "loss": "loss"}
    rows = _columns("model", "", *(f"{part} {heads[kind]}" for part, kind in kinds.items()))
    for name, scores in done.scores.items():
        figures = {part: getattr(scores[part], kind) for part, kind in kinds.items()}
        rows.add_row(
            name, "", *(_one(figures[part], kind == "accuracy") for part, kind in kinds.items())
        )
    print_wide(console, rows)
    console.print(f"personal model: {done.path}", highlight=False)


def _kind(done: Personalized, part: str) -> str:
    """The figure that every model has on a part: accuracy, RMSE or else the loss."""
    for kind in ("accuracy", "rmse"):
        if all(getattr(scores[part], kind) is not None for scores in done.scores.values()):
            return kind
    return "loss"


def _one(figure: float | None, percent: bool) -> str:
    return "-" if figure is None else f"{100 * figure:.2f}" if percent else f"{figure:.4g}"


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
    for at, name in enumerate(names):
        table.add_column(name, justify="left" if at < 2 else "right", no_wrap=True)
    return table


def _one_per_tier(record: Round) -> list[str]:
    """The model of each tier that a bar of one line has room for: the personal one of the devices,
    the first of the others.
    """
    found: dict[str, str] = {}
    for name, model in record.models.items():
        if model.tier not in found or name in ("personal", "new_personal"):
            found[model.tier] = name
    return list(found.values())


def _plain(figure: Figure | None) -> str:
    return "-" if figure is None else str(figure)


def _percent(figure: Figure | None) -> str:
    return "-" if figure is None else figure.percent()


def _score(records: Sequence[Round], name: str) -> str:
    all_scores = [record.models[name].scores for record in records]
    scores = [scores.get("test") or next(iter(scores.values())) for scores in all_scores]
    right = [score.accuracy for score in scores if score.accuracy is not None]
    if right:
        return f"{100 * fmean(right):.1f}%"
    errors = [score.rmse for score in scores if score.rmse is not None]
    if errors:
        return f"RMSE {fmean(errors):.4g}"
    losses = [score.loss for score in scores if score.loss is not None]
    return f"{fmean(losses):.4g}" if losses else "-"
