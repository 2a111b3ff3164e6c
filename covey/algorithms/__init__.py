"""One file per algorithm; each is its paper's Algorithm 1."""

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
