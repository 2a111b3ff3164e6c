"""covey: personalized federated learning on trees of machines.

A name is imported when it is first used, so that `covey --help` does not wait for torch.
"""

import os
import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

# Without it the bits of a small matrix product depend, on some processors (seen on AMD's), on how
# many stand beside it. MKL reads it when it is first used, so covey should be imported before
# anything is computed. Speed does not change.
os.environ.setdefault("MKL_CBWR", "AUTO")

if TYPE_CHECKING:
    from covey import algorithms, data, models
    from covey.engine.descend import NO_DATA, Stepper, descend
    from covey.engine.solvers.alternate import Mix, Move, alternate
    from covey.engine.solvers.step_rule import StepRule
    from covey.errors import CoveyError
    from covey.fields import (
        Count,
        NonNegative,
        Positive,
        Range,
        Share,
        Whole,
        require,
    )
    from covey.folder.load import load
    from covey.kernel.algorithm import Algorithm
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

_HOMES = {
    "Algorithm": "covey.kernel.algorithm",
    "Count": "covey.fields",
    "CoveyError": "covey.errors",
    "Experiment": "covey.runs.experiment",
    "Masked": "covey.kernel.replies",
    "Mix": "covey.engine.solvers.alternate",
    "Move": "covey.engine.solvers.alternate",
    "NO_DATA": "covey.engine.descend",
    "Nodes": "covey.kernel.nodes",
    "NonNegative": "covey.fields",
    "Positive": "covey.fields",
    "Range": "covey.fields",
    "Replies": "covey.kernel.replies",
    "Round": "covey.runs.run",
    "Rows": "covey.types",
    "Run": "covey.runs.run",
    "Runs": "covey.runs.run",
    "Share": "covey.fields",
    "StepRule": "covey.engine.solvers.step_rule",
    "Stepper": "covey.engine.descend",
    "Tracker": "covey.runs.tracker",
    "Tree": "covey.tree",
    "Whole": "covey.fields",
    "alternate": "covey.engine.solvers.alternate",
    "descend": "covey.engine.descend",
    "exact": "covey.kernel.replies",
    "history": "covey.runs.run",
    "load": "covey.folder.load",
    "require": "covey.fields",
    "run": "covey.runs.run",
}
"""The module of every export that is not a module itself. `runs` is a property of the package."""


def __getattr__(name: str) -> Any:
    """An export, or a folder of covey, at its first use."""
    home = _HOMES.get(name)
    if home is not None:
        value = getattr(import_module(home), name)
    elif not name.startswith("_") and find_spec(f"covey.{name}") is not None:
        value = import_module(f"covey.{name}")
    else:
        raise AttributeError(f"module 'covey' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """The package, whose `runs` is the function and not the folder of the same name."""

    @property
    def runs(self) -> Any:
        """`covey.runs.run.runs`."""
        return import_module("covey.runs.run").runs

    @runs.setter
    def runs(self, folder: ModuleType) -> None:
        """Python sets the folder when it is imported."""


sys.modules[__name__].__class__ = _Package
