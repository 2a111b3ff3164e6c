"""Quantities of a row that stand among its models, where its `quantities` ask for them.

A quantity of a model is named after it, as in "personal loss". Accuracy, loss and non-zeros are of
the last scored round: the one with the best accuracy may be early, before a model is sparse.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from covey.links.meter import Meter
from covey.runs.run import Round
from covey.runs.selection import select

LAST = "last accuracy, %"
NON_ZEROS = "non-zeros, %"
LOSS = "loss"
FALLS = "falls"
SENT = "weights sent, thousands"
LATENCY = "latency, ms"
"""What every row with a clock has: the mean time of a round."""


@dataclass(frozen=True)
class SeedRounds:
    """The rounds of one seed, and whether it ended early.

    It does where it diverges, or a seed that runs beside it.
    """

    rounds: Sequence[Round]
    protocol: Literal["paper", "honest"]
    diverged: bool = False

    @property
    def scored(self) -> list[Round]:
        """The rounds in which models were scored."""
        return [record for record in self.rounds if record.models]

    def best(self) -> Iterator[tuple[str, float]]:
        """Test accuracy in percent of every model, in the round that the protocol chooses."""
        for model in self._models():
            yield model, accuracy(select(self.rounds, model, self.protocol).chosen, model)

    def areas(self) -> Iterator[tuple[str, float]]:
        """The mean over the scored rounds, which says how fast a model learns."""
        for model in self._models():
            accuracies = [accuracy(record, model) for record in self.scored]
            yield model, round(statistics.mean(accuracies), 4)

    def latency(self) -> Iterator[tuple[str, float]]:
        """The mean latency of a round in milliseconds; nothing where there is no clock."""
        if self.rounds and self.rounds[0].environment is not None:
            seconds = [record.modelled_seconds for record in self.rounds]
            yield LATENCY, round(1e3 * statistics.mean(seconds), 4)

    def quantities(self, names: Sequence[str]) -> Iterator[tuple[str, float]]:
        """What a row asks for beside accuracies; nothing where no round was scored."""
        for name in names if self.scored else ():
            if name in OF_ROWS:
                yield name, round(OF_ROWS[name](self), 4)
                continue
            for model in self._models():
                yield f"{model} {name}", round(OF_MODELS[name](self, model), 4)

    def _models(self) -> Sequence[str]:
        return list(self.scored[-1].models) if self.scored else ()

    def last(self, model: str) -> float:
        """Test accuracy in percent in the last scored round."""
        return accuracy(self.scored[-1], model)

    def nonzeros(self, model: str) -> float:
        """The share of entries that are not zero, in percent."""
        return 100 * self.scored[-1].models[model].nonzeros

    def loss(self, model: str) -> float:
        """The mean loss over test examples."""
        loss = self.scored[-1].models[model].scores["test"].loss_fallback
        return math.nan if loss is None else loss

    def falls(self, model: str) -> float:
        """By how many points the accuracy falls from a scored round to the next, in the mean.

        It is 0 where the accuracy never falls. A run that ends early falls to 0 at its end.
        """
        accuracies = [accuracy(record, model) for record in self.scored] + [0.0] * self.diverged
        falls = [max(0.0, before - after) for before, after in itertools.pairwise(accuracies)]
        return statistics.mean(falls) if falls else 0.0

    def sent(self) -> float:
        """The weights that all nodes send upwards in a round, zeros left out, in thousands."""
        counts = [
            Meter(record.traffic).traffic(direction="up", lane="train").nonzeros
            for record in self.rounds
        ]
        return statistics.mean(counts) / 1e3


def accuracy(record: Round, model: str, part: str = "test") -> float:
    """The accuracy on a part in percent."""
    score = record.models[model].scores[part]
    return round(100 * (score.accuracy_fallback or 0.0), 4)


OF_MODELS: Mapping[str, Callable[[SeedRounds, str], float]] = {
    LAST: SeedRounds.last,
    NON_ZEROS: SeedRounds.nonzeros,
    LOSS: SeedRounds.loss,
    FALLS: SeedRounds.falls,
}
OF_ROWS: Mapping[str, Callable[[SeedRounds], float]] = {SENT: SeedRounds.sent}
NAMES = (*OF_MODELS, *OF_ROWS)

_WORST = {LAST: -math.inf, LOSS: math.inf, FALLS: math.inf}
"""What stands for a quantity of a run that has no scored round."""


def name_of(figure: str) -> str | None:
    """The quantity that a figure is of; None where it is the accuracy of a model.

    >>> name_of("personal loss"), name_of("personal")
    ('loss', None)
    """
    return next((name for name in (*NAMES, LATENCY) if figure.endswith(name)), None)


def without_a_score(figure: str) -> float | None:
    """What a run that diverged before its first score counts as.

    Its accuracy is below all others, its loss and its falls are above. Others are unknown.

    >>> without_a_score("personal"), without_a_score("personal loss")
    (-inf, inf)
    """
    name = name_of(figure)
    return -math.inf if name is None else _WORST.get(name)
