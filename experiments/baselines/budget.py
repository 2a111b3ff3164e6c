"""How many gradients a device evaluates in a round by its settings; `record.gradients` is what a
run really took.
"""

from __future__ import annotations

from covey.algorithms import (
    AL2GD,
    APFL,
    L2GD,
    Ditto,
    FedAlt,
    FedMac,
    FedRep,
    FineTune,
    HierFAVG,
    PerFedAvg,
    PerMFL,
    PFedBayes,
    PFedMe,
    Pruned,
    SFedHP,
)
from covey.kernel.algorithm import Algorithm


def flips(a: L2GD | AL2GD) -> float:
    """The expected flips of the coin at which a device steps, before the server's coin falls."""
    expected = (1 - a.p) / a.p
    if isinstance(a, L2GD):
        return expected
    assert isinstance(a.edge_p, float)
    return expected * (1 - a.edge_p)  # the edge's coin lets devices step


def gradients(a: Algorithm) -> float:
    """Gradients of a mini-batch that a device evaluates in one round of the server; of coins, the
    expected number.
    """
    match a:
        case PerFedAvg():  # inner and outer, twice more for the product with the Hessian; one for the personal model
            return (2 if a.order == "first" else 4) * a.steps + 1
        case APFL():  # the mixture and the common model; one for alpha
            return 2 * a.steps + (1 if a.alpha_lr else 0)
        case FineTune():  # tuned in every round, because any may be the one that is reported
            return a.steps + a.tune_steps
        case Ditto() | FedAlt():
            return a.steps + a.personal_steps
        case FedRep():
            return a.steps + a.head_steps
        case Pruned():
            return a.edge_rounds * (
                a.steps + a.probe_steps + (a.personal_steps if a.order == "alternate" else 0)
            )
        case PFedMe() | FedMac() | PFedBayes():
            return a.local_rounds * a.steps
        case PerMFL() | HierFAVG() | SFedHP():
            assert isinstance(a.edge_rounds, int)
            assert isinstance(a.steps, int)
            return a.edge_rounds * a.steps
        case L2GD() | AL2GD():
            return flips(a)
        case _:
            return float(getattr(a, "steps"))  # noqa: B009
