"""One file per algorithm; each is its paper's Algorithm 1."""

from covey.algorithms.al2gd import AL2GD
from covey.algorithms.apfl import APFL
from covey.algorithms.centralised import Centralised
from covey.algorithms.clustered import Clustered
from covey.algorithms.demlearn import DemLearn
from covey.algorithms.ditto import Ditto
from covey.algorithms.fedalt import FedAlt
from covey.algorithms.fedamp import FedAMP
from covey.algorithms.fedavg import FedAvg
from covey.algorithms.fedmac import FedMac
from covey.algorithms.fedper import FedPer
from covey.algorithms.fedprox import FedProx
from covey.algorithms.fedrep import FedRep
from covey.algorithms.fedsim import FedSim
from covey.algorithms.finetune import FineTune
from covey.algorithms.heurfedamp import HeurFedAMP
from covey.algorithms.hierfavg import HierFAVG
from covey.algorithms.l2gd import L2GD
from covey.algorithms.local import Local
from covey.algorithms.nested import Level, Nested
from covey.algorithms.perfedavg import PerFedAvg
from covey.algorithms.permfl import PerMFL
from covey.algorithms.pfedbayes import PFedBayes
from covey.algorithms.pfedgp import PFedGP
from covey.algorithms.pfedme import PFedMe
from covey.algorithms.pruned import Pruned
from covey.algorithms.scaffold import Scaffold
from covey.algorithms.sfedhp import SFedHP
from covey.kernel.algorithm import Algorithm

__all__ = [
    "AL2GD",
    "ALGORITHMS",
    "APFL",
    "L2GD",
    "Centralised",
    "Clustered",
    "DemLearn",
    "Ditto",
    "FedAMP",
    "FedAlt",
    "FedAvg",
    "FedMac",
    "FedPer",
    "FedProx",
    "FedRep",
    "FedSim",
    "FineTune",
    "HeurFedAMP",
    "HierFAVG",
    "Level",
    "Local",
    "Nested",
    "PFedBayes",
    "PFedGP",
    "PFedMe",
    "PerFedAvg",
    "PerMFL",
    "Pruned",
    "SFedHP",
    "Scaffold",
]

ALGORITHMS: dict[str, type[Algorithm]] = {
    algorithm.__module__.rpartition(".")[2]: algorithm
    for algorithm in (
        Local, Centralised, FedAvg, FedProx, Scaffold, FineTune, PerFedAvg, Ditto, APFL, L2GD, FedPer, FedRep, FedAMP,
        HeurFedAMP, Clustered, PFedMe, FedMac, PFedBayes, PFedGP, DemLearn, HierFAVG, AL2GD, PerMFL, SFedHP,
        FedAlt, FedSim, Pruned, Nested,
    )
}  # fmt: skip
"""Every algorithm by the name of its file, which is its name in an experiment file."""
