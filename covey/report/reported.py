"""The models by which algorithms are compared with each other, and those beside a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from covey.report.summary import Summary, Yardstick, gains_over, summarise
from covey.runs.run import Round
from covey.runs.scores.devices import DeviceScore
from covey.runs.scores.headline import headline

Histories = Sequence[Sequence[Round]]
"""The rounds of every seed."""
Devices = Sequence[Sequence[DeviceScore]]
"""The scores of every seed's devices."""


def models(history: Sequence[Round]) -> list[str]:
    """The models to compare: not new devices', and no global one where nothing was ever sent.

    The one that is best on validation data stands for the algorithm, whichever tier keeps it.
    """
    scored = [record for record in history if record.models]
    if not scored:
        return []
    names = [name for name in scored[-1].models if not name.startswith("new_")]
    if any(record.bytes() for record in history):
        return names
    return [name for name in names if name != "global"]


def most_personal(names: Iterable[str]) -> str | None:
    """The model nearest to the devices."""
    listed = list(names)
    for name in ("personal", "edge", "global", *listed):
        if name in listed:
            return name
    return None


def beside(
    summary: Summary, devices: Devices, others: Mapping[str, tuple[Histories, Devices]]
) -> Summary:
    """The summary with the results of every other algorithm, by method, and the gains over it."""
    yardsticks = []
    gains = list(summary.gains)
    own = most_personal(line.model for line in chain(*devices))
    for method, (histories, scores) in others.items():
        names = models(histories[0])
        every = summarise(histories, summary.protocol).models
        yardsticks.append(Yardstick(method, [each for each in every if each.model in names]))
        wanted = headline(histories[0])
        gains += gains_over(devices, scores, wanted, own, most_personal(names), method)
    return replace(summary, yardsticks=yardsticks, gains=gains)
