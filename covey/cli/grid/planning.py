"""The plan of `covey compare`: methods at equal budget, their trials, and their final runs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import covey
from covey.advice import levers
from covey.advice.curvature import Curvature, Probe
from covey.cli import config as files
from covey.cli import named
from covey.cli.assemble import Experiments
from covey.cli.config import Config
from covey.cli.grid.axes import Axis, axis, refuse_repeats
from covey.cli.grid.cells import UNITS, Budget, Unit, cost, validated
from covey.cli.grid.method import Method
from covey.cli.validate import nearest
from covey.errors import ConfigError, DivergedError
from covey.report.reported import models
from covey.runs.experiment import Experiment
from covey.runs.run import Round

BASELINES = ("local", "finetune")
"""What every comparison has; the other methods are tested against them."""
TRIALS = 8

_PROBED = 2  # rounds that say what a round costs
_SMALLER = (1.0, 0.1, 0.01)  # times the steps, until a probed round does not diverge
_MOST = 20  # times the rounds that the first ones suggest, where later ones may be cheaper


@dataclass(frozen=True)
class Options:
    """The options of the command; `amount` None: what the file's own algorithm uses."""

    unit: Unit = "gradients"
    amount: float | None = None
    trials: int = TRIALS
    model: str = ""  # the one that is tuned and reported where a method has it; "": the best


def options(budget: str, trials: int, model: str = "") -> Options:
    """The options from their words, such as "bytes=2e6"."""
    unit, equals, text = budget.partition("=")
    kinds = {name: name for name in UNITS}
    if unit not in kinds:
        form = "gradients, examples, bytes or seconds, as in --budget bytes=2e6"
        raise ConfigError(f"--budget {budget}: give {form}.")
    if trials < 1:
        raise ConfigError(f"--trials {trials}: give 1 or more; 1 tunes nothing.")
    amount = None
    if equals:
        amount = _amount(budget, text)
    return Options(kinds[unit], amount, trials, model)


def _amount(budget: str, text: str) -> float:
    try:
        amount = float(text)
    except ValueError as error:
        raise ConfigError(f"--budget {budget}: {text!r} is no number.") from error
    if not 0 < amount < math.inf:
        raise ConfigError(f"--budget {budget}: give a finite number above 0.")
    return amount


def plan(
    path: Path | None,
    changes: Sequence[str],
    options: Options,
    told: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """The whole plan; everything wrong with the command is said here, before a folder is made."""
    base, methods, axes = _read(path, changes)
    _check_budget(base, options)
    experiments = Experiments()
    measured = dict(methods)
    if options.amount is None:  # the budget is what the file's own algorithm uses
        measured = {base.method(): base, **methods}
    costs: dict[str, list[float]] = {}
    known: set[str] = set()
    for title, config in measured.items():
        told(f"measuring a round of {title}")
        experiment = experiments.of(config, config.seed)
        records = _probed(experiment)
        costs[title] = [cost(record, options.unit, experiment) for record in records]
        known |= set(models(records)) if title in methods else set()
    check_model(options.model, known)
    budget = _budget(base, options, costs.get(base.method(), []))
    _check_room(budget, {title: _mean(costs[title]) for title in methods})
    told("measuring the curvature of the loss")
    first = next(iter(methods.values()))
    curvature = _curvature(experiments.of(first, first.seed))
    listed = [
        asdict(_method(title, config, base, budget, costs[title]))
        for title, config in methods.items()
    ]
    return {
        "kind": "compare",
        "config": base.resolved(),
        "beside": None if path is None else str(path.parent.resolve()),
        "budget": asdict(budget),
        "trials": options.trials,
        "model": options.model,
        "curvature": None if curvature is None else asdict(curvature),
        "axes": [asdict(each) for each in axes],
        "methods": listed,
    }


def _read(
    path: Path | None, changes: Sequence[str]
) -> tuple[Config, dict[str, Config], list[Axis]]:
    """The file, the methods by title as files that differ in [algorithm] alone, and the axes."""
    names: list[str] = []
    axes: list[Axis] = []
    plain = []
    for change in changes:
        key = change.partition("=")[0].strip()
        if key == "algorithm.name":
            names += [str(value) for value in axis(change).values]
        elif key.startswith("algorithm."):
            given = axis(change)
            axes.append(replace(given, key=key.removeprefix("algorithm.")))
        else:
            plain.append(change)
    refuse_repeats([f"algorithm.{each.key}" for each in axes])
    refuse_repeats([f"the method {name}" for name in names])
    base = files.load(path, plain)
    if base.protocol == "paper":
        raise ConfigError(
            'protocol = "paper" chooses rounds on test data; '
            'a comparison chooses on validation data: set protocol = "honest".'
        )
    methods = {}
    for name in _listed(base, names):
        config = _of_method(base, name, path, plain)
        title = config.method()
        if title in methods:  # a class of the user's own may be called as one of covey's
            title = name
        methods[title] = config
    for each in axes:
        _check_axis(each, methods)
    return base, methods, axes


def _listed(base: Config, names: Sequence[str]) -> list[str]:
    """The methods: those named, else the file's own and its `compare`; the baselines first."""
    wanted = list(names)
    if not wanted:
        wanted = [str(base.algorithm["name"])]
        wanted += [str(table["name"]) for table in base.compared()]
    added = [name for name in BASELINES if name not in wanted]
    return [*added, *wanted]


def _of_method(base: Config, name: str, path: Path | None, plain: Sequence[str]) -> Config:
    """The file with another algorithm: at the settings of the file, where it has some."""
    tables = {str(table["name"]): table for table in base.compared()}
    tables[str(base.algorithm["name"])] = base.algorithm
    if name in tables:
        table = tables[name]
    else:
        table = files.load(path, [*plain, f"algorithm.name={name}"]).algorithm
    config = base.model_copy(update={"algorithm": table, "compare": [], "name": ""})
    config.learner()
    return config


def _check_axis(given: Axis, methods: dict[str, Config]) -> None:
    """Refuse a field that no method has, and a value that a method's field refuses."""
    having = []
    known: set[str] = set()
    for config in methods.values():
        fields = named.checked("algorithm", config.algorithm).model_dump()
        known |= fields.keys()
        if given.key in fields:
            having.append(config)
    if not having:
        hint = nearest(given.key, sorted(known), "algorithm.")
        raise ConfigError(f"unknown key algorithm.{given.key}{hint}: no compared method has it.")
    for config in having:
        for value in given.grid():
            named.make("algorithm", {**config.algorithm, given.key: value})


def _check_budget(base: Config, options: Options) -> None:
    if options.unit == "seconds" and base.radio is None:
        raise ConfigError(
            "--budget seconds counts modelled seconds, but the file has no table [radio]; "
            "add one, or take --budget gradients or bytes."
        )


def check_model(model: str, known: Collection[str]) -> None:
    """Refuse a model that no method has."""
    if model and model not in known:
        listed = ", ".join(sorted(known))
        raise ConfigError(f"--model {model}: no compared method has it; they have {listed}.")


def _probed(experiment: Experiment) -> list[Round]:
    """The first rounds of an algorithm; with smaller steps where they diverge."""
    short = replace(validated(experiment), rounds=_PROBED, score_every=_PROBED)
    covey.run(short)  # which says what is wrong with it
    for factor in _SMALLER:
        with suppress(DivergedError):
            return list(covey.run(_with_steps(short, factor)))
    name = type(experiment.algorithm).__name__
    raise ConfigError(
        f"{name} diverges within {_PROBED} rounds, even with a hundredth of its steps; "
        "change its settings in the file."
    )


def _with_steps(experiment: Experiment, factor: float) -> Experiment:
    algorithm: Any = experiment.algorithm
    if factor == 1.0:
        return experiment
    steps = {
        step.field: factor * getattr(algorithm, step.field) for step in levers.steps(algorithm)
    }
    return replace(experiment, algorithm=replace(algorithm, **steps))


def _mean(costs: Sequence[float]) -> float:
    return sum(costs) / len(costs)


def _budget(base: Config, options: Options, costs: Sequence[float]) -> Budget:
    if options.amount is not None:
        return Budget(options.unit, options.amount)
    amount = base.rounds * _mean(costs)
    if not amount:
        raise ConfigError(
            f"{base.method()}, the file's algorithm, uses no {options.unit}; "
            f"say how many, as in --budget {options.unit}=1e6."
        )
    return Budget(options.unit, amount)


def _check_room(budget: Budget, round_costs: dict[str, float]) -> None:
    """Refuse a budget that is less than one round of some method."""
    short = {title: each for title, each in round_costs.items() if each > budget.amount}
    if not short:
        return
    listed = ", ".join(f"{title} {math.ceil(each):,}" for title, each in short.items())
    least = math.ceil(max(short.values()))
    raise ConfigError(
        f"--budget {budget.unit}={budget.amount:g} is less than one round of some methods takes: "
        f"{listed} {budget.unit}; give {budget.unit}={least} or more, or leave them out."
    )


def _method(
    title: str, config: Config, base: Config, budget: Budget, costs: Sequence[float]
) -> Method:
    """A method with its number of rounds; all methods are scored about equally often."""
    round_cost = _mean(costs)
    expected = base.rounds
    if round_cost:
        expected = int(budget.amount / round_cost + 1e-9)
    rounds = expected
    if round_cost and (budget.unit != "gradients" or len(set(costs)) > 1):
        rounds = _MOST * expected
    scored = max(1, base.rounds // base.score_every)
    return Method(
        name=str(config.algorithm["name"]),
        label=re.sub(r"[^A-Za-z0-9_.-]", "-", str(config.algorithm["name"])),
        title=title,
        algorithm=dict(config.resolved()["algorithm"]),
        rounds=rounds,
        score_every=max(1, round(expected / scored)),
        budget=budget if round_cost else None,
        round_cost=round_cost,
    )


def _curvature(experiment: Experiment) -> Curvature | None:
    """The curvature of the loss at the initial model; None where it cannot be measured."""
    run = covey.run(replace(validated(experiment), rounds=1))
    try:
        measured = Probe(experiment, run.trained).measure(run.w)
    except ConfigError:
        return None
    if measured is None or not measured.typical:
        return None
    return measured
