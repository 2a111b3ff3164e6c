"""The round that a result is reported from, chosen on validation data.

The last round and the best on test are named beside it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from covey.errors import ConfigError
from covey.runs.run import CHOSEN_ON, Round

Protocol = Literal["honest", "paper"]


@dataclass(frozen=True)
class Selection:
    """Three rounds of one run.

    Only `chosen` and `last` are honest figures; `best_on_test` is optimistic, and what papers
    print.
    """

    chosen: Round
    last: Round
    best_on_test: Round


def select(
    history: Sequence[Round],
    model: str = "global",
    protocol: Protocol = "honest",
) -> Selection:
    """The rounds to report for a model.

    `protocol="paper"` has no validation part and chooses on test.
    """
    scored = [record for record in history if model in record.models]
    if not scored:
        raise ConfigError(f"no round of this run scored a model {model!r}.")
    part = CHOSEN_ON[protocol]
    on_test = [_quality(record, model, "test") for record in scored]
    qualities = [_quality(record, model, part) for record in scored]
    if max(qualities) == -math.inf:
        raise ConfigError(
            f"no device has {part} examples to choose a round on; give the data a {part} part."
        )
    chosen = scored[qualities.index(max(qualities))]  # the first of equal rounds wins
    best_on_test = scored[on_test.index(max(on_test))]
    return Selection(chosen, scored[-1], best_on_test)


def _quality(record: Round, model: str, part: str) -> float:
    """How good a model is in a round."""
    if part not in record.models[model].scores:
        raise ConfigError(
            f"round {record.round + 1} was not scored on {part!r}; "
            "add it to the experiment's parts."
        )
    return record.models[model].quality(part)
