"""covey: personalized federated learning on trees of machines."""

import os

# Without it the bits of a small matrix product depend, on some processors (seen on AMD's), on how
# many stand beside it. MKL reads it when it is first used, so covey should be imported before
# anything is computed. Speed does not change.
os.environ.setdefault("MKL_CBWR", "AUTO")

from covey import algorithms, data, models
from covey.cli.load import load
from covey.engine.alternate import Mix, Move, alternate
from covey.engine.descend import NO_DATA, Stepper, descend
from covey.engine.step_rule import StepRule
from covey.errors import CoveyError
from covey.kernel.algorithm import Algorithm
from covey.kernel.fields import (
    Count,
    NonNegative,
    Positive,
    Range,
    Share,
    Whole,
    require,
)
from covey.kernel.nodes import Nodes
from covey.kernel.replies import Masked, Replies, exact
from covey.runs.experiment import Experiment
from covey.runs.run import Round, Run, Runs, history, run, runs
from covey.runs.tracker import Tracker
from covey.tree import Tree
from covey.types import Rows

__version__ = "0.1.0"

__all__ = [
    "NO_DATA",
    "Algorithm",
    "Count",
    "CoveyError",
    "Experiment",
    "Masked",
    "Mix",
    "Move",
    "Nodes",
    "NonNegative",
    "Positive",
    "Range",
    "Replies",
    "Round",
    "Rows",
    "Run",
    "Runs",
    "Share",
    "StepRule",
    "Stepper",
    "Tracker",
    "Tree",
    "Whole",
    "algorithms",
    "alternate",
    "data",
    "descend",
    "exact",
    "history",
    "load",
    "models",
    "require",
    "run",
    "runs",
]
