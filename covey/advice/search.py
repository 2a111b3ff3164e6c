"""Better steps and penalties: proposed by the curvature, tried, kept if validation data confirm.

Every trial is a few rounds of the experiment itself with other values. It is scored on validation
data, never on test data. The curvature is measured at the models it ends with: the curvature of a
model that trains is many times that of the initial one, so that a setting can look stable before a
run and be unstable in it. The best setting after a few rounds need not be the best later: the
advised setting is compared with the file's once more, over three times as many rounds. Nothing
depends on the time that a trial takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any, cast

from covey.advice import levers
from covey.advice.curvature import Curvature, Probe
from covey.errors import ConfigError, DivergedError
from covey.kernel.advice import Proposal, Step
from covey.kernel.algorithm import Algorithm
from covey.runs.experiment import Experiment, describe
from covey.runs.run import Run
from covey.runs.settings import Part

GAIN = 1.0  # points of the score, below which a change is not worth making
_TIE = 0.5  # points within which the smaller step is taken, as the curvature grows later
_WORK = 5e7  # gradients of all devices times parameters in one trial: half a second if small
_MIN_ROUNDS = 8  # of a trial
_MAX_ROUNDS = 20
_HALVINGS = 4  # steps tried
_LONGER = 3  # the rounds of the last comparison, in trials


@dataclass(frozen=True)
class Change:
    """One field of the algorithm, its value in the file, the advised one, and why."""

    field: str
    old: Any
    new: float
    reason: str

    def __str__(self) -> str:
        return f"algorithm.{self.field} = {self.old:g} -> {self.new:g}  ({self.reason})"


@dataclass(frozen=True)
class Trial:
    """The result of a setting after a few rounds.

    `figures` has every judged model's accuracy in per cent, or its loss for regression. `score` is
    their mean, higher is better: of accuracies, or of minus the losses in per cent of those of the
    file's setting. It is -inf where training diverged.
    """

    algorithm: Algorithm
    figures: dict[str, float]
    score: float
    curvature: Curvature
    bytes: int

    @property
    def diverged(self) -> bool:
        return self.score == -math.inf

    def as_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        plain = {
            name: value
            for name, value in vars(self.algorithm).items()
            if isinstance(value, int | float | str)
        }
        return {
            "algorithm": plain,
            "figures": self.figures,
            "diverged": self.diverged,
            "curvature": asdict(self.curvature),
            "bytes": self.bytes,
        }


@dataclass(frozen=True)
class Findings:
    """The advised changes and their result over `rounds` rounds, scored on `part` of the data.

    `trials` are the short ones, of `trial_rounds` rounds. `nothing` says why nothing is advised.
    """

    changes: tuple[Change, ...] = ()
    given: Trial | None = None
    advised: Trial | None = None
    start: Curvature | None = None  # at the initial model
    rounds: int = 0
    trial_rounds: int = 0
    part: str = ""
    trials: tuple[Trial, ...] = ()
    nothing: str = ""
    classifies: bool = True  # figures are in per cent, and higher is better
    metric: str = ""  # the one that `select` names; "": accuracy, or else the loss

    @property
    def curvature(self) -> Curvature | None:
        """The largest curvature along the rounds of the advised setting."""
        return None if self.advised is None else self.advised.curvature

    @property
    def smoothness(self) -> float | None:
        """That of the median device."""
        return None if self.curvature is None else self.curvature.typical

    def as_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {
            "smoothness": self.smoothness,
            "curvature": {
                "start": self.start and asdict(self.start),
                "along": self.curvature and asdict(self.curvature),
            },
            "changes": [
                {**asdict(change), "field": f"algorithm.{change.field}"} for change in self.changes
            ],
            "nothing": self.nothing,
            "part": self.part,
            "rounds": self.rounds,
            "given": self.given and self.given.as_dict(),
            "advised": self.advised and self.advised.as_dict(),
            "trial_rounds": self.trial_rounds,
            "trials": [trial.as_dict() for trial in self.trials],
        }


def improve(experiment: Experiment, *, told: Callable[[str], None] = lambda text: None) -> Findings:
    """Advice on an experiment's steps and penalties; `told` receives what is tried next."""
    if not levers.steps(experiment.algorithm):
        return Findings(nothing=levers.without(experiment.algorithm))
    return _Search(experiment, told).findings()


@dataclass
class _Search:
    """Trials so far, and the best setting."""

    experiment: Experiment
    told: Callable[[str], None]
    trials: list[Trial] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """How many rounds a trial has, what it is scored on, and the curvature at the start."""
        experiment = self.experiment
        protocol = experiment.protocol
        self.part: Part = "train"
        if bool(experiment.data.validation.counts().sum()):
            protocol = "honest"
            self.part = "validation"
        self.experiment = replace(
            experiment,
            protocol=protocol,
            parts=(self.part,),
            score_train_every=None,
            stop=None,
        )
        first = Run(self._short(1, experiment.algorithm))
        self.probe = Probe(self.experiment, first.trained)
        start = self.probe.measure(first.w)
        if start is None:
            problem = "the curvature of the loss is not finite at the initial model"
            raise ConfigError(f"{problem}; `--fast` does not measure it.")
        self.start = start
        gradients = 0
        with suppress(DivergedError):
            gradients = next(iter(first)).gradients
        work = max(gradients * first.w.shape[1], 1)
        rounds = min(max(int(_WORK / work), _MIN_ROUNDS), _MAX_ROUNDS)
        self.rounds = min(rounds, experiment.rounds)
        self.longer = min(_LONGER * self.rounds, experiment.rounds)

    def findings(self) -> Findings:
        """The whole search: steps, the upper models' steps, penalties, and steps again."""
        if self.start.typical == 0:
            nothing = "the loss has no curvature, or its model no second derivative"
            return Findings(start=self.start, nothing=nothing)
        longer = self._short(self.longer, self.experiment.algorithm)
        run = Run(replace(longer, score_every=self.rounds))
        original = self._after(run, self.rounds)
        self.trials.append(original)
        original_later = self._after(run, self.longer)
        first = original.algorithm
        stepped = self._steps(original)
        moved = self._best_of(levers.moves(stepped.algorithm, first, stepped.curvature), stepped)
        loosened = self._best_of(levers.ties(moved.algorithm, first, moved.curvature), moved)
        path = [original, stepped, moved, loosened]
        if loosened is not stepped:
            path.append(self._steps(loosened))
        advised = self._confirmed(path, original_later)
        changes = self._changes(original_later, advised)
        nothing = ""
        if not changes and path[-1] is not original:
            nothing = f"what was better after {self.rounds} rounds was not after {self.longer}"
        return Findings(
            changes,
            original_later,
            advised,
            start=self.start,
            rounds=self.longer,
            trial_rounds=self.rounds,
            part=self.part,
            trials=tuple(self.trials),
            nothing=nothing,
            classifies=self._classifies,
            metric=self.experiment.select.removeprefix("-"),
        )

    def _confirmed(self, path: list[Trial], original: Trial) -> Trial:
        """The last setting of the path that is better than the original over more rounds too.

        Where the original is not stable, one that is as good suffices.
        """
        settings = {describe(trial.algorithm): trial.algorithm for trial in reversed(path)}
        gain = GAIN if _stable(original) else -_TIE
        for algorithm in settings.values():
            if algorithm == original.algorithm:
                break
            self.told(f"the best for {self.longer} rounds")
            trial = self._after(Run(self._short(self.longer, algorithm)), self.longer)
            if not trial.diverged and trial.score >= original.score + gain:
                return trial
        return original

    def _short(self, rounds: int, algorithm: Algorithm) -> Experiment:
        return replace(self.experiment, algorithm=algorithm, rounds=rounds, score_every=rounds)

    def _after(self, run: Run, rounds: int) -> Trial:
        """The result of a run after `rounds` rounds."""
        algorithm = run.experiment.algorithm
        try:
            while run.round < rounds:
                next(run)
        except DivergedError:
            return Trial(algorithm, {}, -math.inf, self.start, 0)
        record = run.history[-1]
        factor = 100 if self._classifies else -1
        names = judged(algorithm, list(record.models))
        figures = {name: factor * record.models[name].quality(self.part) for name in names}
        score = sum(figures.values()) / len(figures)
        if not self._classifies:
            of_file = (self.trials and self.trials[0].figures) or figures
            shares = [value / max(of_file[name], 1e-12) for name, value in figures.items()]
            score = -100 * sum(shares) / len(shares)
        if not all(map(math.isfinite, figures.values())):
            score = -math.inf
        sent = sum(past.bytes() for past in run.history)
        return Trial(algorithm, figures, score, self._along(run), sent)

    @property
    def _classifies(self) -> bool:
        """Whether quality is a share such as accuracy, higher for better.

        Language models are judged by their loss.
        """
        if self.experiment.select:
            return not self.experiment.select.startswith("-")
        if self.experiment.data.by_position and not callable(self.experiment.loss):
            return False
        return self.experiment.data.classes is not None

    def _along(self, run: Run) -> Curvature:
        """The larger of the curvatures at the start and at the models after the trial."""
        largest = self.start
        for name in judged(self.experiment.algorithm, run.models()):
            ids, rows = run.rows(name)
            per_device = run.snapshot(name).tier == "device"
            if name != "global" and not per_device:
                continue
            measured = self.probe.measure(rows, ids if per_device else None)
            if measured is not None:
                largest = largest.joined(measured)
        return largest

    def _steps(self, best: Trial) -> Trial:
        """Steps of the size that the curvature allows, then smaller ones while that is better."""
        steps = levers.steps(best.algorithm)
        sizes = {step.field: levers.safe(step, best.curvature) for step in steps}
        tried = [best]
        for _ in range(_HALVINGS):
            trial = self._propose(best.algorithm, sizes)
            tried.append(trial)
            top = max(past.score for past in tried)
            if trial.score < top - GAIN and _stable(trial):
                break
            for step in steps:  # the safe one now, but between a quarter and a half of the last
                size = sizes[step.field]
                safe = max(size / 4, levers.safe(step, trial.curvature))
                sizes[step.field] = min(size / 2, safe)
        return _chosen(tried, steps[0])

    def _best_of(self, proposals: Iterable[Proposal], best: Trial) -> Trial:
        """The best of these changes, each made to the same setting, if it is better by GAIN."""
        start = best
        for proposal in proposals:
            values = _neat(proposal.values)
            changed: Any = replace(cast(Any, start.algorithm), **values)
            for step in levers.steps(changed):  # which are to be stable under the new penalties
                safe = levers.neat(levers.safe(step, start.curvature))
                if step.field not in values and getattr(changed, step.field) > safe:
                    values[step.field] = safe
            trial = self._propose(start.algorithm, values)
            if trial.score >= best.score + GAIN:
                best = trial
                self.reasons.update(proposal.reasons)
        return best

    def _propose(self, algorithm: Any, values: dict[str, float]) -> Trial:
        """A few rounds with these values in place of the algorithm's own."""
        values = _neat(values)
        self.told(", ".join(f"{name} = {value:g}" for name, value in values.items()))
        changed: Algorithm = replace(algorithm, **values)
        for trial in self.trials:
            if describe(trial.algorithm) == describe(changed):
                return trial
        trial = self._after(Run(self._short(self.rounds, changed)), self.rounds)
        self.trials.append(trial)
        return trial

    def _changes(self, original: Trial, best: Trial) -> tuple[Change, ...]:
        algorithm = original.algorithm
        by_field: dict[str, Step] = {step.field: step for step in levers.steps(algorithm)}
        out = []
        for name, old in vars(algorithm).items():
            new = getattr(best.algorithm, name)
            if new == old:
                continue
            text = self.reasons.get(name, "")
            if name in by_field:
                text = levers.reason(by_field[name], algorithm, new, best.curvature)
            out.append(Change(name, old, new, text))
        return tuple(out)


def _neat(values: dict[str, float]) -> dict[str, float]:
    """These values with two digits."""
    return {name: levers.neat(value) for name, value in values.items()}


def judged(algorithm: Algorithm, models: list[str]) -> list[str]:
    """The models a setting is judged by: the personal ones, else the edges', and the global one.

    The global model of an algorithm with private layers has heads that were not trained.
    """
    own = "personal" if "personal" in models else "edge"
    names = [name for name in (own, "global") if name in models]
    if algorithm.splits and own in names:
        names.remove("global")
    return names or list(models)


def _stable(trial: Trial) -> bool:
    """Whether no step goes beyond what the curvature at the trial's own end allows."""
    return not trial.diverged and all(
        getattr(trial.algorithm, step.field) <= 1.05 * levers.safe(step, trial.curvature)
        for step in levers.steps(trial.algorithm)
    )


def _chosen(tried: list[Trial], step: Step) -> Trial:
    """The first trial if it is stable and none is better by GAIN, else the best, preferably stable.

    Of several that are as good, it is the one with the smallest steps.
    """
    best = max(tried, key=lambda trial: trial.score)
    if best.diverged:
        return tried[0]
    good = [trial for trial in _within(tried, GAIN) if _stable(trial)]
    if not good:
        return best
    if tried[0] in good:
        return tried[0]
    close = _within(good, _TIE)
    return min(close, key=lambda trial: float(getattr(trial.algorithm, step.field)))


def _within(trials: list[Trial], points: float) -> list[Trial]:
    """The trials whose score is within so many points of the best."""
    top = max(trial.score for trial in trials)
    return [trial for trial in trials if trial.score >= top - points]
