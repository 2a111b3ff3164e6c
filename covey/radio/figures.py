"""A run on the virtual clock: its figures over all rounds, and the facts of its report."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar

import numpy as np

from covey.radio.clock import RadioRecord
from covey.report.run_files import SeedRecord
from covey.report.seed_facts import shortened
from covey.report.summary import OverSeeds, largest, over_seeds


@dataclass(frozen=True)
class RadioFigures:
    """All rounds on the virtual clock: measured, and by the formulas of a plan if there is one."""

    name: ClassVar[str] = "radio"

    seconds: OverSeeds
    formula_seconds: OverSeeds | None
    joules: OverSeeds  # of all devices
    upload_joules: OverSeeds
    upload_bytes: OverSeeds
    formula_bytes: OverSeeds | None
    left_out: OverSeeds  # devices in a round
    late: OverSeeds
    certificate: float | None  # the largest figure of any round's plan

    def lines(self) -> list[str]:
        """What the rounds took over the air."""
        plan = sent = sure = ""
        if self.formula_seconds is not None:
            plan = f" ({self.formula_seconds} by the plan's formulas)"
        if self.formula_bytes is not None:
            sent = f", by formula {self.formula_bytes.mean / 1e6:.3f}"
        if self.certificate is not None:
            sure = f"; optimality gap of every plan at most {self.certificate:.0e}"
        total = f"{self.seconds} s{plan}, {self.joules} J for all devices"
        uploads = f"{self.upload_joules} J for {self.upload_bytes.mean / 1e6:.3f} MB{sent}"
        missing = f"{self.left_out} devices excluded, {self.late} late"
        return [
            f"\nover the air, all rounds of one seed: {total}",
            f"uploads: {uploads}; per round: {missing}{sure}",
        ]


def summarise(every: Sequence[Sequence[RadioRecord]]) -> RadioFigures:
    """The figures of all rounds of every seed."""

    def per_round(name: str) -> OverSeeds:
        counts = [[len(getattr(record, name)) for record in seed] for seed in every]
        return over_seeds([statistics.mean(seed) for seed in counts])

    def total(name: str) -> OverSeeds:
        return over_seeds([sum(getattr(record, name) for record in seed) for seed in every])

    by_formula = every[0][0].formula_seconds is not None
    return RadioFigures(
        seconds=total("seconds"),
        formula_seconds=total("formula_seconds") if by_formula else None,
        joules=total("joules"),
        upload_joules=total("upload_joules"),
        upload_bytes=total("upload_bytes"),
        formula_bytes=total("formula_bytes") if by_formula else None,
        left_out=per_round("left_out"),
        late=per_round("late"),
        certificate=largest([record.certificate for record in chain(*every)]),
    )


def facts(record: SeedRecord) -> dict[str, Any]:
    """The rounds of a seed on the virtual clock, and its devices' means, for the report."""
    records = [each.radio for each in record.history if each.radio is not None]
    out: dict[str, Any] = {
        "seconds": [each.seconds for each in records],
        "joules": [each.joules for each in records],
        "left_out": [len(each.left_out) for each in records],
        "late": [len(each.late) for each in records],
    }
    if "note" in record.described:
        return out
    # Means over each device's answers, and the rounds in which it was excluded or late.
    devices: dict[str, Any] = {}
    for name in ("left_out", "late"):
        counts = np.zeros(record.described["sizes"][-1], dtype=np.int64)
        for each in records:
            counts[getattr(each, name)] += 1
        devices[name] = counts.tolist()
    sums = record.totals.get(record.described["tiers"][-1], {})
    if "answers" in sums:
        answers = np.asarray(sums["answers"])
        counted = np.where(answers > 0, answers, np.nan)
        for name in ("ratio", "rate", "bandwidth", "seconds"):
            devices[name] = shortened(np.asarray(sums[name]) / counted)
        devices["joules"] = shortened(np.asarray(sums["joules"]))
    return out | {"devices": devices}
