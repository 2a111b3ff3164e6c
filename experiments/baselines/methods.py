"""Every method with the same budget, and the settings it may choose from.

A device evaluates 21 gradients of 20 examples in a round, whatever a method spends them on
(`budget.gradients`): 21 is one more than a multiple of 2 and 4, as Per-FedAvg, APFL and the pruned
method need, and 3 x 7, as those with two loops do. Each method has six settings to choose from,
pFedGP three: six step sizes where one decides, else three and two of its penalty or second rate.
Where layers are private, it is the last one. `Nested` is left out: its settings make it PerMFL,
pFedMe or another of these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import product
from typing import Any

from covey.algorithms import (
    AL2GD,
    APFL,
    L2GD,
    Clustered,
    DemLearn,
    Ditto,
    FedAlt,
    FedAMP,
    FedAvg,
    FedMac,
    FedPer,
    FedProx,
    FedRep,
    FedSim,
    FineTune,
    HeurFedAMP,
    HierFAVG,
    Local,
    PerFedAvg,
    PerMFL,
    PFedBayes,
    PFedGP,
    PFedMe,
    Pruned,
    Scaffold,
    SFedHP,
)
from covey.kernel.algorithm import Algorithm

GRADIENTS, BATCH = 21, 20

Point = dict[str, float]
"""One setting: the numbers that the grid changes."""

_ALONE = (0.003, 0.01, 0.03, 0.1, 0.3, 0.6)
_BESIDE = (0.03, 0.1, 0.3)


@dataclass(frozen=True)
class Method:
    """How an algorithm is made from a setting and the number of devices, and the settings to choose
    from.
    """

    make: Callable[[Point, int], Algorithm]
    points: tuple[Point, ...]
    private: str = ""
    codec: str = "dense"


def grid(**values: Iterable[float]) -> tuple[Point, ...]:
    """All combinations.

    >>> grid(lr=(0.1, 0.3), lam=(1.0,))
    ({'lr': 0.1, 'lam': 1.0}, {'lr': 0.3, 'lam': 1.0})
    """
    return tuple(dict(zip(values, point, strict=True)) for point in product(*values.values()))


def plain(
    kind: Callable[..., Algorithm], private: str = "", codec: str = "dense", **fixed: Any
) -> Method:
    """One step size decides."""
    return Method(lambda p, _: kind(batch=BATCH, **fixed, **p), grid(lr=_ALONE), private, codec)


def both(
    kind: Callable[..., Algorithm],
    other: str,
    private: str = "",
    codec: str = "dense",
    **fixed: Any,
) -> Method:
    """One step size for two loops."""
    make = lambda p, _: kind(batch=BATCH, **{other: p["lr"]}, **fixed, **p)  # noqa: E731
    return Method(make, grid(lr=_ALONE), private, codec)


def paired(
    kind: Callable[..., Algorithm], fixed: dict[str, Any], **more: Iterable[float]
) -> Method:
    """A step size and a second number."""
    return Method(lambda p, _: kind(batch=BATCH, **fixed, **p), grid(lr=_BESIDE, **more))


def _ditto(p: Point, devices: int) -> Algorithm:
    return Ditto(
        lam=p["lam"], lr=p["lr"], personal_lr=p["lr"], steps=10, personal_steps=11, batch=BATCH
    )


def _fedamp(p: Point, devices: int) -> Algorithm:
    """alpha such that models that are all alike weigh as much together as the device's own;
    lam/alpha is .1.
    """
    alpha = p["sigma"] / (2 * (devices - 1))
    return FedAMP(
        sigma=p["sigma"], alpha=alpha, lam=0.1 * alpha, lr=p["lr"], steps=GRADIENTS, batch=BATCH
    )


def _pfedme(p: Point, devices: int) -> Algorithm:
    """w_i goes a third of the way to theta, seven times."""
    return PFedMe(
        lam=p["lam"],
        lr=0.3 / p["lam"],
        personal_lr=p["personal_lr"],
        local_rounds=7,
        steps=3,
        batch=BATCH,
    )


def _fedmac(p: Point, devices: int) -> Algorithm:
    return FedMac(
        lam=1e-4,
        lr=p["lr"],
        personal_lr=p["personal_lr"],
        local_rounds=GRADIENTS,
        steps=1,
        batch=BATCH,
    )


def _permfl(p: Point, devices: int) -> Algorithm:
    """beta gamma = 1, and eta (lam + gamma) just below 1, where the edge's problem is solved
    fastest.
    """
    eta = 0.9 / (p["lam"] + 1)
    return PerMFL(
        lam=p["lam"],
        gamma=1.0,
        beta=1.0,
        edge_lr=eta,
        lr=p["lr"],
        edge_rounds=3,
        steps=7,
        batch=BATCH,
    )


def _sfedhp(p: Point, devices: int) -> Algorithm:
    """Not sparse; lr1 lam2 = 1, so that w_i goes to phi."""
    lam = p["lam"]
    return SFedHP(lam1=lam, lam2=lam, lr1=1 / lam, lr2=p["lr"], edge_rounds=7, steps=3, batch=BATCH)


def _pfedbayes(p: Point, devices: int) -> Algorithm:
    return PFedBayes(
        zeta=p["zeta"], lr=p["lr"], personal_lr=p["lr"], local_rounds=7, steps=3, batch=BATCH
    )


def _pfedgp(p: Point, devices: int) -> Algorithm:
    """Fewer draws and examples than its paper has, and with 100 devices of 10 labels a seventh of
    the steps, for time.
    """
    few: dict[str, Any] = {"draws": 5, "gibbs_steps": 2, "support": 50, "predict_draws": 5}
    return PFedGP(
        lr=p["lr"], steps=GRADIENTS if devices < 100 else GRADIENTS // 7, batch=BATCH, **few
    )


_HF = {"steps": 5, "order": "hessian-free", "hessian": "difference"}  # as its paper has it

METHODS: dict[str, Method] = {
    "local": plain(Local, steps=GRADIENTS),
    "fedavg": plain(FedAvg, steps=GRADIENTS),
    "fedprox": paired(FedProx, {"steps": GRADIENTS}, mu=(0.001, 0.1)),
    "scaffold": plain(Scaffold, steps=GRADIENTS),
    "finetune": paired(FineTune, {"steps": 10, "tune_steps": 11}, tune_lr=(0.03, 0.1)),
    "perfedavg-fo": paired(PerFedAvg, {"steps": 10}, alpha=(0.03, 0.1)),
    "perfedavg-hf": paired(PerFedAvg, _HF, alpha=(0.03, 0.1)),
    "ditto": Method(_ditto, grid(lr=_BESIDE, lam=(0.1, 1.0))),
    "apfl": paired(APFL, {"steps": 10}, alpha_lr=(0.01, 0.1)),
    "l2gd": paired(L2GD, {"p": 1 / (1 + GRADIENTS)}, lam=(0.01, 0.1)),
    "al2gd": Method(
        lambda p, _: AL2GD(
            lam=p["lam"],
            gamma=p["lam"],
            p=1 / (1 + GRADIENTS / 0.8),
            edge_p=0.2,
            lr=p["lr"],
            batch=BATCH,
        ),
        grid(lr=_BESIDE, lam=(0.01, 0.1)),
    ),
    "fedper": plain(FedPer, "head", steps=GRADIENTS),
    "fedrep": both(FedRep, "head_lr", "head", steps=10, head_steps=11),
    "fedalt": both(FedAlt, "personal_lr", "head", steps=10, personal_steps=11),
    "fedsim": both(FedSim, "personal_lr", "head", steps=GRADIENTS),
    "pruned": both(
        Pruned,
        "personal_lr",
        "head",
        "bitmap",
        ratio=0.5,
        steps=10,
        personal_steps=10,
        probe_steps=1,
    ),
    "fedamp": Method(_fedamp, grid(lr=_BESIDE, sigma=(10.0, 100.0))),
    "heurfedamp": paired(HeurFedAMP, {"steps": GRADIENTS}, lam=(0.1, 1.0)),
    "clustered": paired(
        Clustered, {"steps": GRADIENTS, "spread": 0.03, "pick": 100}, clusters=(2, 4)
    ),
    "demlearn": paired(DemLearn, {"steps": GRADIENTS}, alpha=(0.3, 0.6)),
    "pfedme": Method(
        _pfedme,
        (*grid(lam=(1.0,), personal_lr=_BESIDE), *grid(lam=(5.0,), personal_lr=(0.03, 0.1, 0.2))),
    ),
    "fedmac": Method(_fedmac, grid(personal_lr=_BESIDE, lr=(1000.0, 5000.0))),
    "pfedbayes": Method(_pfedbayes, grid(lr=(0.003, 0.01, 0.03), zeta=(0.1, 1.0))),
    "pfedgp": Method(_pfedgp, grid(lr=(0.03, 0.1, 0.3))),
    "hierfavg": plain(HierFAVG, edge_rounds=3, steps=7),
    "permfl": Method(_permfl, grid(lr=_BESIDE, lam=(0.5, 3.0))),
    "sfedhp": Method(_sfedhp, grid(lr=_BESIDE, lam=(0.3, 1.0))),
}
