"""The plan of a grid: everything that decides its cells, as grid.json holds it.

A sweep tries settings of a file. A comparison is a sweep over methods under a budget: each method
has as many trials, and as many rounds as it can pay for. Everything wrong with a command is said
here, before a folder is made.
"""

from __future__ import annotations

import math
import re
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import covey
from covey import rooms
from covey.advice import levers
from covey.advice.curvature import Probe
from covey.errors import ConfigError, DivergedError
from covey.fields import nearest, spelled
from covey.files import config as files
from covey.files import named
from covey.files.assemble import Experiments
from covey.files.config import Config
from covey.grid import search
from covey.grid.axes import Axis, axis, refuse_repeats
from covey.grid.cells import Budget, Unit, cost, validated
from covey.report.summary import compared_models
from covey.runs.experiment import Experiment
from covey.runs.run import Round

BASELINES = ("local", "finetune")
"""What every comparison has; the other methods are tested against them."""
_PROBED = 2  # rounds that say what a round costs
_SMALLER = (1.0, 0.1, 0.01)  # times the steps, until a probed round does not diverge
_MOST = 20  # times the rounds that the first ones suggest, where later ones may be cheaper


@dataclass(frozen=True)
class Method:
    """One algorithm of a grid: its table, and how many rounds it gets."""

    name: str
    label: str  # of its files
    title: str
    algorithm: dict[str, Any]
    rounds: int
    score_every: int
    budget: Budget | None  # None: rounds cost nothing, and there are as many as the file says
    round_cost: float

    @property
    def trial(self) -> str:
        """What the names of its trials begin with."""
        return f"{self.label}/trial-" if self.label else "trial-"

    @staticmethod
    def of_file(config: Config) -> Method:
        """The file's own algorithm, which a sweep is over; its cells have no label."""
        rounds = (config.rounds, config.score_every)
        name = str(config.algorithm["name"])
        table = config.algorithm
        return Method(name, "", config.method(), table, *rounds, budget=None, round_cost=0.0)

    @staticmethod
    def under(
        budget: Budget, title: str, config: Config, base: Config, costs: Sequence[float]
    ) -> Method:
        """A method with its number of rounds; all methods are scored about equally often."""
        round_cost = _mean(costs)
        rounds = expected = base.rounds
        if round_cost:
            rounds = expected = int(budget.amount / round_cost + 1e-9)
        if round_cost and (budget.unit != "gradients" or len(set(costs)) > 1):
            rounds = _MOST * expected  # of which the budget ends the last ones
        scored = max(1, base.rounds // base.score_every)
        name = str(config.algorithm["name"])
        return Method(
            name=name,
            label=re.sub(r"[^A-Za-z0-9_.-]", "-", name),
            title=title,
            algorithm=dict(config.resolved()["algorithm"]),
            rounds=rounds,
            score_every=max(1, round(expected / scored)),
            budget=budget if round_cost else None,
            round_cost=round_cost,
        )

    @staticmethod
    def read(values: Mapping[str, Any]) -> Method:
        """A method from a plan."""
        budget = values["budget"]
        return Method(**{**values, "budget": None if budget is None else Budget(**budget)})


def sweep(
    path: Path | None,
    changes: Sequence[str],
    name: str,
    trials: int | None,
    told: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """The plan of a sweep over the changes that have several values."""
    search.check(name, trials)
    parsed = [(change, axis(change)) for change in changes]
    axes = [each for _, each in parsed if len(each.values) != 1]
    plain = [change for change, each in parsed if len(each.values) == 1]
    refuse_repeats(each.key for each in axes)
    base = _file(path, plain)
    if not axes:
        raise ConfigError(
            "a sweep needs a key with several values, as in algorithm.lr=0.01:1:log "
            "or algorithm.lam=1,5,15."
        )
    for each in axes:
        for value in each.grid():
            files.load(path, [*plain, f"{each.key}={spelled(value)}"]).learner()
    told("trying a setting")
    first = files.load(path, [*plain, *(f"{each.key}={spelled(each.grid()[0])}" for each in axes)])
    covey.run(first.experiment(first.seed))  # which says what is wrong with it
    return {
        "kind": "sweep",
        **_shared(base, path, axes),
        "search": name,
        "trials": trials or search.TRIALS,
    }


def comparison(
    path: Path | None,
    changes: Sequence[str],
    budget: str,
    trials: int,
    model: str = "",
    told: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """The plan of a comparison under a budget such as "gradients" or "bytes=2e6".

    Without a number the budget is what the file's own algorithm uses. `model` is the one that is
    tuned and reported where a method has it; "": the best.
    """
    unit, amount = _budget(budget)
    if trials < 1:
        raise ConfigError(f"--trials {trials}: give 1 or more; 1 tunes nothing.")
    base, methods, axes = _methods(path, changes)
    if unit == "seconds" and not base.environments:
        sections = rooms.sections().values()
        tables = " or ".join(f"[{each.name}]" for each in sections if each.environment)
        raise ConfigError(
            f"--budget seconds counts modelled seconds, but the file has no table {tables}; "
            "add one, or take --budget gradients or bytes."
        )
    experiments = Experiments()
    measured = methods if amount is not None else {base.method(): base, **methods}
    costs: dict[str, list[float]] = {}
    known: set[str] = set()
    for title, config in measured.items():
        told(f"measuring a round of {title}")
        experiment = experiments.of(config, config.seed)
        records = _probed(experiment)
        costs[title] = [cost(record, unit, experiment) for record in records]
        known |= set(compared_models(records)) if title in methods else set()
    check_model(model, known)
    if amount is None:
        amount = base.rounds * _mean(costs[base.method()])
    if not amount:
        raise ConfigError(
            f"{base.method()}, the file's algorithm, uses no {unit}; "
            f"say how many, as in --budget {unit}=1e6."
        )
    paid = Budget(unit, amount)
    _check_room(paid, {title: _mean(costs[title]) for title in methods})
    told("measuring the curvature of the loss")
    first = next(iter(methods.values()))
    experiment = experiments.of(first, first.seed)
    run = covey.run(replace(validated(experiment), rounds=1))
    curvature = None  # where it cannot be measured
    with suppress(ConfigError):
        curvature = Probe(experiment, run.trained).measure(run.w)
    if curvature is not None and not curvature.typical:
        curvature = None
    return {
        "kind": "compare",
        **_shared(base, path, axes),
        "budget": asdict(paid),
        "trials": trials,
        "model": model,
        "curvature": None if curvature is None else asdict(curvature),
        "methods": [
            asdict(Method.under(paid, title, config, base, costs[title]))
            for title, config in methods.items()
        ],
    }


def _shared(base: Config, path: Path | None, axes: Sequence[Axis]) -> dict[str, Any]:
    """What every plan has: the file, the folder it lies in, and the keys with several values."""
    return {
        "config": base.resolved(),
        "beside": None if path is None else str(path.parent.resolve()),
        "axes": [asdict(each) for each in axes],
    }


def _file(path: Path | None, plain: Sequence[str]) -> Config:
    base = files.load(path, plain)
    if base.protocol == "paper":
        raise ConfigError(
            'protocol = "paper" chooses rounds on test data, and has no validation data to choose '
            'settings by: set protocol = "honest".'
        )
    return base


def _budget(text: str) -> tuple[Unit, float | None]:
    """A budget from its words; None where they have no number."""
    word, equals, number = text.partition("=")
    if word not in typing.get_args(Unit):
        form = "gradients, examples, bytes or seconds, as in --budget bytes=2e6"
        raise ConfigError(f"--budget {text}: give {form}.")
    unit: Any = word
    if not equals:
        return unit, None
    try:
        amount = float(number)
    except ValueError as error:
        raise ConfigError(f"--budget {text}: {number!r} is no number.") from error
    if not 0 < amount < math.inf:
        raise ConfigError(f"--budget {text}: give a finite number above 0.")
    return unit, amount


def _methods(
    path: Path | None, changes: Sequence[str]
) -> tuple[Config, dict[str, Config], list[Axis]]:
    """The file, the methods by title as files that differ in [algorithm] alone, and the axes.

    The methods are those named, else the file's own and its `compare`; the baselines come first.
    """
    names: list[str] = []
    axes: list[Axis] = []
    plain = []
    for change in changes:
        key = change.partition("=")[0].strip()
        if key == "algorithm.name":
            names += map(str, axis(change).values)
        elif key.startswith("algorithm."):
            axes.append(replace(axis(change), key=key.removeprefix("algorithm.")))
        else:
            plain.append(change)
    refuse_repeats(f"algorithm.{each.key}" for each in axes)
    refuse_repeats(f"the method {name}" for name in names)
    base = _file(path, plain)
    tables = {str(table["name"]): table for table in (*base.compared(), base.algorithm)}
    if not names:
        names = [str(table["name"]) for table in (base.algorithm, *base.compared())]
    methods: dict[str, Config] = {}
    for name in (*(name for name in BASELINES if name not in names), *names):
        table = tables.get(name)
        if table is None:
            table = files.load(path, [*plain, f"algorithm.name={name}"]).algorithm
        config = replace(base, algorithm=table, compare=[], name="")
        config.learner()
        # A class of the user's own may be called as one of covey's.
        title = name if config.method() in methods else config.method()
        methods[title] = config
    for each in axes:
        _check_axis(each, methods.values())
    return base, methods, axes


def _check_axis(given: Axis, methods: Iterable[Config]) -> None:
    """Refuse a field that no method has, and a value that a method's field refuses."""
    fields = [(config, named.checked("algorithm", config.algorithm)) for config in methods]
    having = [config for config, own in fields if given.key in own]
    if not having:
        known = sorted({key for _, own in fields for key in own})
        hint = nearest(given.key, known, "algorithm.")
        raise ConfigError(f"unknown key algorithm.{given.key}{hint}: no compared method has it.")
    for config in having:
        for value in given.grid():
            named.make("algorithm", {**config.algorithm, given.key: value})


def check_model(model: str, known: Collection[str]) -> None:
    """Refuse a model that no method has."""
    if model and model not in known:
        listed = ", ".join(sorted(known))
        raise ConfigError(f"--model {model}: no compared method has it; they have {listed}.")


def _probed(experiment: Experiment) -> list[Round]:
    """The first rounds of an algorithm; with smaller steps where they diverge."""
    short = replace(validated(experiment), rounds=_PROBED, score_every=_PROBED)
    covey.run(short)  # which says what is wrong with it
    algorithm: Any = experiment.algorithm
    for factor in _SMALLER:
        steps = {
            step.field: factor * getattr(algorithm, step.field)
            for step in levers.steps(algorithm)
            if factor != 1.0
        }
        with suppress(DivergedError):
            return list(covey.run(replace(short, algorithm=replace(algorithm, **steps))))
    raise ConfigError(
        f"{type(algorithm).__name__} diverges within {_PROBED} rounds, even with a hundredth of "
        "its steps; change its settings in the file."
    )


def _mean(costs: Sequence[float]) -> float:
    return sum(costs) / len(costs)


def _check_room(budget: Budget, round_costs: Mapping[str, float]) -> None:
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
