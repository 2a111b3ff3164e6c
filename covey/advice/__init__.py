"""Advice on step sizes and penalties: by theorems before a run, and by curvature and short trials.

`theorems` holds a setting against what is proven, without running anything; `covey run` refuses what
is certain to diverge. `curvature` measures the losses' largest curvature, `levers` knows which fields
of an algorithm are steps and penalties and what the curvature asks of them, and `search` tries that
for a few rounds and keeps what validation data confirm.
"""

from covey.advice.curvature import Curvature, Probe, smoothness
from covey.advice.search import Change, Findings, Trial, improve
from covey.advice.theorems import Advice, advise

__all__ = [
    "Advice",
    "Change",
    "Curvature",
    "Findings",
    "Probe",
    "Trial",
    "advise",
    "improve",
    "smoothness",
]
