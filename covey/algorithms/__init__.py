"""One file per algorithm; each is its paper's Algorithm 1."""

from covey.algorithm import Algorithm
from covey.algorithms.fedavg import FedAvg
from covey.algorithms.fedmac import FedMac
from covey.algorithms.fedprox import FedProx
from covey.algorithms.finetune import FineTune
from covey.algorithms.hierfavg import HierFAVG
from covey.algorithms.local import Local
from covey.algorithms.nested import Level, Nested
from covey.algorithms.permfl import PerMFL
from covey.algorithms.pfedme import PFedMe
from covey.algorithms.sfedhp import SFedHP

__all__ = [
    "ALGORITHMS",
    "FedAvg",
    "FedMac",
    "FedProx",
    "FineTune",
    "HierFAVG",
    "Level",
    "Local",
    "Nested",
    "PFedMe",
    "PerMFL",
    "SFedHP",
]

ALGORITHMS: dict[str, type[Algorithm]] = {
    algorithm.__module__.rpartition(".")[2]: algorithm
    for algorithm in (Local, FedAvg, FedProx, FineTune, HierFAVG, PFedMe, FedMac, PerMFL, SFedHP, Nested)
}
"""Every algorithm by the name of its file, which is its name in an experiment file."""
