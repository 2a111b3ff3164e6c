"""One file per algorithm; each is its paper's Algorithm 1.

Every module of this folder is imported. Its classes are exported under their names, and its one
algorithm is in `ALGORITHMS` under the name of the file.
"""

import importlib
import inspect
import pkgutil
from types import ModuleType
from typing import TYPE_CHECKING, Any

from covey.kernel.algorithm import Algorithm

if TYPE_CHECKING:  # for tools that run no code; to them, a class that is not named here is Any
    from covey.algorithms.al2gd import AL2GD as AL2GD
    from covey.algorithms.apfl import APFL as APFL
    from covey.algorithms.centralised import Centralised as Centralised
    from covey.algorithms.clustered import Clustered as Clustered
    from covey.algorithms.demlearn import DemLearn as DemLearn
    from covey.algorithms.ditto import Ditto as Ditto
    from covey.algorithms.fedadam import FedAdam as FedAdam
    from covey.algorithms.fedalt import FedAlt as FedAlt
    from covey.algorithms.fedamp import FedAMP as FedAMP
    from covey.algorithms.fedavg import FedAvg as FedAvg
    from covey.algorithms.fedavgm import FedAvgM as FedAvgM
    from covey.algorithms.fedbn import FedBN as FedBN
    from covey.algorithms.fedmac import FedMac as FedMac
    from covey.algorithms.fedper import FedPer as FedPer
    from covey.algorithms.fedprox import FedProx as FedProx
    from covey.algorithms.fedrep import FedRep as FedRep
    from covey.algorithms.fedsim import FedSim as FedSim
    from covey.algorithms.fedyogi import FedYogi as FedYogi
    from covey.algorithms.finetune import FineTune as FineTune
    from covey.algorithms.heurfedamp import HeurFedAMP as HeurFedAMP
    from covey.algorithms.hierfavg import HierFAVG as HierFAVG
    from covey.algorithms.l2gd import L2GD as L2GD
    from covey.algorithms.local import Local as Local
    from covey.algorithms.nested import Level as Level
    from covey.algorithms.nested import Nested as Nested
    from covey.algorithms.perfedavg import PerFedAvg as PerFedAvg
    from covey.algorithms.permfl import PerMFL as PerMFL
    from covey.algorithms.pfedbayes import PFedBayes as PFedBayes
    from covey.algorithms.pfedgp import PFedGP as PFedGP
    from covey.algorithms.pfedme import PFedMe as PFedMe
    from covey.algorithms.pruned import Pruned as Pruned
    from covey.algorithms.scaffold import Scaffold as Scaffold
    from covey.algorithms.sfedhp import SFedHP as SFedHP


def _classes(module: ModuleType) -> dict[str, type]:
    """The public classes that a module defines itself."""
    return {
        name: value
        for name, value in vars(module).items()
        if inspect.isclass(value)
        and value.__module__ == module.__name__
        and not name.startswith("_")
    }


def _algorithm(module: ModuleType) -> type[Algorithm]:
    """The one algorithm of a module."""
    classes = _classes(module).values()
    own = [value for value in classes if issubclass(value, Algorithm)]
    if len(own) != 1:
        names = ", ".join(value.__name__ for value in own) or "none"
        rule = "a file in covey/algorithms defines one algorithm"
        raise ImportError(f"{module.__file__}: {rule}, but here are: {names}.")
    return own[0]


_FILES = [info.name for info in pkgutil.iter_modules(__path__) if not info.ispkg]
_BASELINES = ["local", "centralised", "fedavg"]  # which come first in a list
_NAMES = [*_BASELINES, *sorted({*_FILES} - {*_BASELINES})]
_MODULES = {name: importlib.import_module(f"{__name__}.{name}") for name in _NAMES}

ALGORITHMS: dict[str, type[Algorithm]] = {
    name: _algorithm(module) for name, module in _MODULES.items()
}
"""Every algorithm by the name of its file, which is its name in an experiment file."""

for _module in _MODULES.values():
    globals().update(_classes(_module))

__all__ = [
    "ALGORITHMS",
    *sorted(name for module in _MODULES.values() for name in _classes(module)),
]


def __getattr__(name: str) -> Any:
    """Raise; to a type checker it says that there may be further classes, those of new files."""
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
