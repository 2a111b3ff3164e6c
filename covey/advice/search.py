"""Better steps and penalties for an experiment: proposed by the curvature, tried, kept if
validation data confirm.

Every trial is a few rounds of the experiment itself with other values, scored on validation data,
never on test data, and the curvature is measured at the models it ends with: the curvature of a
model that trains is many times that of the initial one, so that a setting can look stable before a
run and be unstable in it. What is best after a few rounds need not be best later: the advised
setting is held against the given one once more, over three times as many rounds. Nothing depends on
the time that a trial takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from covey.advice import levers
from covey.advice.curvature import Curvature, Probe
from covey.errors import ConfigError, DivergedError
from covey.kernel.advice import Proposal, Step
from covey.kernel.algorithm import Algorithm
from covey.runs.experiment import Experiment, describe
from covey.runs.run import Round, Run

GAIN = 1.0  # points of the score, below which a change is not worth making
_TIE = 0.5  # points within which the smaller step is taken, as the curvature grows later
_WORK = 5e7  # gradients of all devices times parameters in one trial: about half a second for small models
_FEWEST, _MOST = 8, 20  # rounds of a trial
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
    """What a setting comes to after a few rounds.

    `figures` has every judged model's accuracy in per cent, or its loss for regression; `score` is
    their mean, higher is better: of accuracies, or of minus the losses in per cent of the given
    setting's. It is -inf where training diverged.
    """

    algorithm: Algorithm
    figures: dict[str, float]
    score: float
    curvature: Curvature
    bytes: int

    @property
    def diverged(self) -> bool:
        return self.score == -math.inf


@dataclass(frozen=True)
class Findings:
    """The advised changes and what they come to over `rounds` rounds, scored on `part` of the data.

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
    classifies: bool = True

    @property
    def curvature(self) -> Curvature | None:
        """The largest curvature along the rounds of the advised setting."""
        return None if self.advised is None else self.advised.curvature


def improve(experiment: Experiment, *, told: Callable[[str], None] = lambda text: None) -> Findings:
    """Advice on an experiment's steps and penalties; `told` hears what is tried next."""
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

    def findings(self) -> Findings:
        """The whole search: steps, then the upper models' steps, then penalties, then steps again."""
        self._prepare()
        if self.start.typical == 0:
            return Findings(
                start=self.start,
                nothing="the loss has no curvature, or its model no second derivative",
            )
        given, given_later = self._given()
        ways = [given]
        ways.append(self._steps(ways[-1]))
        ways.append(
            self._best_of(
                levers.moves(ways[-1].algorithm, given.algorithm, ways[-1].curvature), ways[-1]
            )
        )
        ways.append(
            self._best_of(
                levers.ties(ways[-1].algorithm, given.algorithm, ways[-1].curvature), ways[-1]
            )
        )
        if ways[-1] is not ways[1]:
            ways.append(self._steps(ways[-1]))
        advised = self._confirmed(ways, given_later)
        changes = self._changes(given_later, advised)
        nothing = ""
        if not changes and ways[-1] is not given:
            nothing = f"what was better after {self.rounds} rounds was not after {self.longer}"
        return Findings(
            changes,
            given_later,
            advised,
            start=self.start,
            rounds=self.longer,
            trial_rounds=self.rounds,
            part=self.part,
            trials=tuple(self.trials),
            nothing=nothing,
            classifies=self._classifies,
        )

    def _given(self) -> tuple[Trial, Trial]:
        """The file's own setting after a trial's rounds, and after those of the last comparison."""
        run = Run(
            replace(self._short(self.longer, self.experiment.algorithm), score_every=self.rounds)
        )
        trials: list[Trial] = []
        for end in (self.rounds, self.longer):
            trial = self._after(run, end)
            if not trials:
                self.trials.append(trial)
            trials.append(trial)
        return trials[0], trials[1]

    def _confirmed(self, ways: list[Trial], given: Trial) -> Trial:
        """The last setting on the way that is better than the given one, or as good and stable,
        over more rounds too.
        """
        settings = dict.fromkeys(describe(way.algorithm) for way in reversed(ways))
        by_name = {describe(way.algorithm): way.algorithm for way in ways}
        wanted = GAIN
        if not _stable(given):
            wanted = -_TIE
        for name in settings:
            algorithm = by_name[name]
            if algorithm == given.algorithm:
                break
            self.told(f"the best for {self.longer} rounds")
            trial = self._after(Run(self._short(self.longer, algorithm)), self.longer)
            if not trial.diverged and trial.score >= given.score + wanted:
                return trial
        return given

    def _prepare(self) -> None:
        """How many rounds a trial has, what it is scored on, and the curvature at the start."""
        e = self.experiment
        has_validation = bool(e.data.validation.counts().sum())
        self.part = "validation" if has_validation else "train"
        self.experiment = replace(
            e,
            protocol="honest" if has_validation else e.protocol,
            parts=(self.part,),
            score_train_every=None,
        )
        first = Run(self._short(1, e.algorithm))
        self.probe = Probe(self.experiment, first.trained)
        start = self.probe.measure(first.w)
        if start is None:
            raise ConfigError(
                "the curvature of the loss is not finite at the initial model; `--fast` does not measure it."
            )
        self.start = start
        gradients = _first_round(first)
        work = max(gradients * first.w.shape[1], 1)
        rounds = min(max(int(_WORK / work), _FEWEST), _MOST)
        self.rounds = min(rounds, e.rounds)
        self.longer = min(_LONGER * self.rounds, e.rounds)

    def _short(self, rounds: int, algorithm: Algorithm) -> Experiment:
        return replace(self.experiment, algorithm=algorithm, rounds=rounds, score_every=rounds)

    def _try(self, algorithm: Algorithm) -> Trial:
        """A few rounds with this setting."""
        for trial in self.trials:
            if describe(trial.algorithm) == describe(algorithm):
                return trial
        trial = self._after(Run(self._short(self.rounds, algorithm)), self.rounds)
        self.trials.append(trial)
        return trial

    def _after(self, run: Run, rounds: int) -> Trial:
        """What a run comes to when it has had so many rounds."""
        algorithm = run.experiment.algorithm
        try:
            while run.round < rounds:
                next(run)
        except DivergedError:
            return Trial(algorithm, {}, -math.inf, self.start, 0)
        figures = self._figures(run.history[-1])
        sent = sum(past.bytes() for past in run.history)
        return Trial(algorithm, figures, self._score(figures), self._along(run), sent)

    def _figures(self, record: Round) -> dict[str, float]:
        """Accuracy in per cent, or the loss, of every model that is judged."""
        out = {}
        for name in judged(self.experiment.algorithm, list(record.models)):
            quality = record.models[name].quality(self.part)
            out[name] = 100 * quality if self._classifies else -quality
        return out

    @property
    def _classifies(self) -> bool:
        return self.experiment.data.classes is not None

    def _score(self, figures: dict[str, float]) -> float:
        values = list(figures.values())
        if not all(math.isfinite(value) for value in values):
            return -math.inf
        if self._classifies:
            return sum(values) / len(values)
        reference = self.trials[0].figures if self.trials and self.trials[0].figures else figures
        shares = [value / max(reference[name], 1e-12) for name, value in figures.items()]
        return -100 * sum(shares) / len(shares)

    def _along(self, run: Run) -> Curvature:
        """The larger of the curvatures at the start and at the models after the trial."""
        most = self.start
        for name in judged(self.experiment.algorithm, run.models()):
            ids, rows = run.rows(name)
            per_device = run.snapshot(name).tier == "device"
            if name != "global" and not per_device:
                continue
            measured = self.probe.measure(rows, ids if per_device else None)
            if measured is not None:
                most = most.joined(measured)
        return most

    def _steps(self, best: Trial) -> Trial:
        """Steps of the size that the curvature allows, then smaller ones as long as that is better."""
        steps = levers.steps(best.algorithm)
        sizes = {step.field: levers.safe(step, best.curvature) for step in steps}
        tried = [best]
        for _ in range(_HALVINGS):
            trial = self._propose(best.algorithm, Proposal(sizes, {}))
            tried.append(trial)
            if trial.score < max(t.score for t in tried) - GAIN and _stable(trial):
                break
            sizes = {
                step.field: _shorter(step, sizes[step.field], trial.curvature) for step in steps
            }
        return _chosen(tried, steps[0])

    def _best_of(self, proposals: Any, best: Trial) -> Trial:
        """The best of some changes, each made to the same setting, if it is better by the gain
        asked for.
        """
        start = best
        for proposal in proposals:
            trial = self._propose(start.algorithm, self._with_safe_steps(start, proposal))
            if trial.score >= best.score + GAIN:
                best = trial
                self.reasons.update(proposal.reasons)
        return best

    def _with_safe_steps(self, start: Trial, proposal: Proposal) -> Proposal:
        """The proposal with steps that are stable under its penalties."""
        values = {name: levers.neat(value) for name, value in proposal.values.items()}
        changed = _with(start.algorithm, values)
        for step in levers.steps(changed):
            safe = levers.neat(levers.safe(step, start.curvature))
            if step.field not in values and getattr(changed, step.field) > safe:
                values[step.field] = safe
        return Proposal(values, proposal.reasons)

    def _propose(self, algorithm: Algorithm, proposal: Proposal) -> Trial:
        values = {name: levers.neat(value) for name, value in proposal.values.items()}
        self.told(", ".join(f"{name} = {value:g}" for name, value in values.items()))
        return self._try(_with(algorithm, values))

    def _changes(self, given: Trial, best: Trial) -> tuple[Change, ...]:
        by_field: dict[str, Step] = {step.field: step for step in levers.steps(given.algorithm)}
        out = []
        for name in vars(given.algorithm):
            old = getattr(given.algorithm, name)
            new = getattr(best.algorithm, name)
            if new == old:
                continue
            text = self.reasons.get(name, "")
            if name in by_field:
                text = levers.reason(by_field[name], given.algorithm, new, best.curvature)
            out.append(Change(name, old, new, text))
        return tuple(out)


def _with(algorithm: Any, values: dict[str, float]) -> Algorithm:
    """The algorithm with other values; steps are found in dataclasses alone."""
    changed: Algorithm = replace(algorithm, **values)
    return changed


def judged(algorithm: Algorithm, models: list[str]) -> list[str]:
    """The models a setting is judged by: the personal ones, else the edges', and the global one.

    The global model of an algorithm with private layers stands under heads that nobody trained.
    """
    own = "personal" if "personal" in models else "edge"
    names = [name for name in (own, "global") if name in models]
    if algorithm.splits and own in names:
        names.remove("global")
    return names or list(models)


def _shorter(step: Step, size: float, L: Curvature) -> float:
    """The next size to try: what is safe now, but between a quarter and a half of the last."""
    return min(size / 2, max(size / 4, levers.safe(step, L)))


def _first_round(run: Run) -> int:
    """How many gradients the first round takes; 0 if it diverges."""
    try:
        return next(iter(run)).gradients
    except DivergedError:
        return 0


def _stable(trial: Trial) -> bool:
    """Whether no step goes beyond what the curvature at the trial's own end allows."""
    if trial.diverged:
        return False
    for step in levers.steps(trial.algorithm):
        size = float(getattr(trial.algorithm, step.field))
        if not size <= 1.05 * levers.safe(step, trial.curvature):
            return False
    return True


def _chosen(tried: list[Trial], step: Step) -> Trial:
    """The first trial if it is stable and nothing is better by the gain asked for, else the best,
    by preference a stable one.

    Of several as good, the one with the smallest steps.
    """
    top = max(trial.score for trial in tried)
    if top == -math.inf or (tried[0].score >= top - GAIN and _stable(tried[0])):
        return tried[0]
    good = [trial for trial in tried if trial.score >= top - GAIN and _stable(trial)]
    if not good:
        return max(tried, key=lambda trial: trial.score)
    best = max(trial.score for trial in good)
    equal = [trial for trial in good if trial.score >= best - _TIE]
    return min(equal, key=lambda trial: float(getattr(trial.algorithm, step.field)))
