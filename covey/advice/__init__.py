"""Advice on step sizes and penalties: by theorems before a run, and by curvature and short trials.

An algorithm's file states its theorems, its one-round factor and its levers (`Algorithm.advice`,
`Algorithm.levers`). `rounds` holds a setting against what is stated, without running anything;
`covey run` refuses what is certain to diverge. `curvature` measures the losses' largest curvature,
`levers` says what the curvature asks of steps and penalties, and `search` tries that for a few
rounds and keeps what validation data confirm.
"""

from covey.advice.curvature import Curvature, Probe, smoothness, strong_convexity
from covey.advice.rounds import advise
from covey.advice.search import Change, Findings, Trial, improve
from covey.kernel.advice import Advice

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
    "strong_convexity",
]
