"""covey: personalized federated learning on trees of machines."""

import os

# Without it the bits of a small matrix product depend, on some processors (seen on AMD's), on how many stand beside it. MKL reads
# it when it is first used, so covey should be imported before anything is computed. Speed does not change.
os.environ.setdefault("MKL_CBWR", "AUTO")

from covey import algorithms, data, models
from covey.algorithm import Algorithm, require
from covey.descend import descend
from covey.errors import CoveyError
from covey.experiment import Experiment
from covey.load import load
from covey.nodes import Nodes
from covey.replies import Masked, Replies, Rows, exact
from covey.run import Round, Run, Runs, history, run, runs
from covey.tree import Tree

__version__ = "0.1.0"

__all__ = [
    "Algorithm",
    "CoveyError",
    "Experiment",
    "Masked",
    "Nodes",
    "Replies",
    "Round",
    "Rows",
    "Run",
    "Runs",
    "Tree",
    "algorithms",
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
