# mypy: disable-error-code="arg-type"
# Values of wrong types are what is tested.
"""What cannot run is refused before the first round, with the value and the advice in the message."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import covey
from covey import Algorithm, CoveyError, Experiment, Nodes, Tree
from covey.algorithms import FedAlt, FedAvg, HierFAVG, PerMFL, Pruned, SFedHP
from covey.data import own, synthetic
from covey.engine.batches import Examples
from covey.errors import (
    ConfigError,
    DataError,
    ModelError,
    ProgramError,
    TreeError,
)
from covey.models import linear, mlp

DATA = synthetic(devices=6, sizes=[20] * 6)
MODEL = mlp(60, 10)


def start(**more: Any) -> covey.Run:
    """Constructed and not yet run: everything below is refused here at the latest."""
    given = {
        "algorithm": FedAvg(), "data": DATA, "model": MODEL, "tree": Tree.flat(6), "rounds": 1, **more,
    }  # fmt: skip
    return covey.run(Experiment(**given))


def examples(n: int, value: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    x = np.full((n, 3), value)
    return x, np.arange(n) % 2


class WrongWidth(Algorithm):
    def server(self, me: Nodes, w: Tensor) -> Tensor:
        return me.ask(self.device, w).mean()

    def device(self, me: Nodes, w: Tensor) -> Tensor:
        return w[:, :-1]


class Nothing(WrongWidth):
    def server(self, me: Nodes, w: Tensor) -> Any:
        me.ask(self.device, w)


class TooManyRows(WrongWidth):
    def device(self, me: Nodes, w: Tensor) -> Tensor:
        return me.keep("personal", torch.zeros(len(me) + 1, w.shape[1]))


class Mean(WrongWidth):
    """Averages what answers nothing."""

    def device(self, me: Nodes, w: Tensor) -> Any:
        return None


def three_numbers(outputs: Tensor, y: Tensor) -> Tensor:
    return outputs[:, :3]


GROUPS = Tree.grouped([2, 4])
Case = tuple[Callable[[], Any], type[Exception], list[str]]
CASES: dict[str, Case] = {
    # data
    "empty devices alone": (
        lambda: own([examples(0), examples(0)]),
        DataError, ["none of the 2 devices", "training example", "give at least one some"],
    ),
    "NaN in the data": (
        lambda: own([examples(20), examples(20, np.nan)]), DataError, ["NaN", "20 of 40", "example 20", "repair or drop"],
    ),
    "infinity in the data": (lambda: own([examples(20, np.inf)]), DataError, ["infinity", "repair or drop"]),
    "other devices than the tree": (lambda: start(tree=Tree.flat(5)), DataError, ["data has 6", "tree 5"]),
    # the tree and who is asked
    "sFedHP on a flat tree": (
        lambda: start(algorithm=SFedHP()),
        TreeError, ["SFedHP needs the tiers server, edge, device", "has server, device", "Tree.grouped"],
    ),
    "PerMFL on a flat tree": (lambda: start(algorithm=PerMFL()), TreeError, ["PerMFL", "Tree.grouped([3"]),
    "HierFAVG on four tiers": (
        lambda: start(algorithm=HierFAVG(), tree=Tree.uniform(1, 2, 3)), TreeError, ["HierFAVG", "edge1, edge2", "Nested"],
    ),
    "more than there are": (
        lambda: start(algorithm=FedAvg(sample=7)), TreeError, ["sample = 7", "has only 6 children", "at most 6", "fraction"],
    ),
    "more edges than there are": (
        lambda: start(algorithm=SFedHP(sample=3), tree=GROUPS), TreeError, ["sample = 3 at the server", "only 2"],
    ),
    "more devices than an edge has": (
        lambda: start(algorithm=SFedHP(device_sample=3), tree=GROUPS), TreeError, ["sample = 3 at the edge", "edge 0 has only 2"],
    ),
    "a sample of 0": (lambda: start(algorithm=FedAvg(sample=0)), TreeError, ["sample = 0", "fraction in (0, 1]"]),
    "a sample of -2": (lambda: start(algorithm=FedAvg(sample=-2)), TreeError, ["sample = -2", "None for all"]),
    "a sample of 1.5": (lambda: start(algorithm=FedAvg(sample=1.5)), TreeError, ["sample = 1.5", "fraction in (0, 1]"]),
    # the experiment
    "an unknown protocol": (lambda: start(protocol="lenient"), ConfigError, ["protocol = 'lenient'", '"honest" or "paper"']),
    "unknown batches": (lambda: start(batches="random"), ConfigError, ["batches = 'random'", '"uniform" or "cyclic"']),
    "cuda without CUDA": (lambda: start(device="cuda"), ConfigError, ["device = 'cuda'", "no CUDA", "'cpu'"]),
    "a device nobody knows": (lambda: start(device="gpu"), ConfigError, ["'gpu'"]),
    "no parts": (lambda: start(parts=()), ConfigError, ["parts = ()"]),
    "a module's class": (lambda: start(model=nn.Linear), ConfigError, ["model"]),
    "a tree that is a number": (lambda: start(tree=6), ConfigError, ["tree = 6", "Tree.flat"]),
    "data that is an array": (lambda: start(data=np.zeros((6, 3))), ConfigError, ["data"]),
    # the model and the loss
    "Dropout": (lambda: start(model=nn.Sequential(nn.Linear(60, 10), nn.Dropout(1.0))), ModelError, ["p = 1.0", "below 1"]),
    "a wrong input width": (lambda: start(model=mlp(61, 10)), ModelError, ["(60,)", "does not take"]),
    "too few outputs": (lambda: start(model=linear(60, 7)), ModelError, ["7 outputs", "need 10"]),
    "a private pattern of nothing": (lambda: start(private=("head.*",)), ConfigError, ["'head.*'", "shares all layers"]),
    "a loss with two axes": (lambda: start(loss=three_numbers), ConfigError, ["loss"]),
    # the algorithm
    "an algorithm's class": (lambda: start(algorithm=FedAvg), ConfigError, ["FedAvg", "instance", "FedAvg()"]),
    "no algorithm": (lambda: start(algorithm="fedavg"), ConfigError, ["'fedavg'", "instance"]),
    "a list of wrong length": (
        lambda: start(algorithm=PerMFL(lr=[0.1, 0.2]), tree=GROUPS),
        ConfigError, ["2 values for 6 nodes of tier device", "[0.1, 0.2]"],
    ),
    "a list of edges of wrong length": (
        lambda: start(algorithm=PerMFL(edge_rounds=[1, 2, 3]), tree=GROUPS), ConfigError, ["3 values for 2 nodes of tier edge"],
    ),
    "a program of wrong width": (lambda: start(algorithm=WrongWidth()), ConfigError, ["610", "609"]),
    "a server that returns nothing": (lambda: start(algorithm=Nothing()), ConfigError, ["610", "NoneType"]),
    "a keep of too many rows": (lambda: start(algorithm=TooManyRows()), ProgramError, ["'personal'", "1 rows for 0 nodes"]),
    "a mean of nothing": (lambda: start(algorithm=Mean()), ProgramError, ["answers None"]),
    "too few ratios": (lambda: start(algorithm=Pruned(ratio=[0.5, 0.5])), ConfigError, ["a list of 2 values for 6 nodes"]),
    "nothing left to prune": (lambda: start(algorithm=Pruned(), private="*"), ConfigError, ["Pruned", "all are private"]),
    "an order nobody knows": (lambda: Pruned(order="both"), ConfigError, ["'both'", '"alternate" or "together"']),
    "private layers that are not there": (
        lambda: start(algorithm=FedAlt(), private="conv*"), ModelError, ["'conv*' matches no parameter", "'head', the last"],
    ),
    "a sample as text": (lambda: start(algorithm=FedAvg(sample="half")), ConfigError, ["'half'"]),
}  # fmt: skip


@pytest.mark.parametrize("what", CASES)
def test_it_is_refused_at_once(what: str) -> None:
    make, error, words = CASES[what]
    if what == "cuda without CUDA" and torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    with pytest.raises(error) as caught:
        make()
    message = str(caught.value)
    assert isinstance(caught.value, CoveyError)
    assert [word for word in words if word not in message] == [], message


def test_nothing_is_trained_before_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Constructing a run touches no row: the rehearsal is on none."""
    seen = []
    real = Examples.draw

    def draw(self: Any, address: Any, ids: Any, *rest: Any, **more: Any) -> Any:
        seen.append(len(ids))
        return real(self, address, ids, *rest, **more)

    monkeypatch.setattr(Examples, "draw", draw)
    run = start()
    assert set(seen) == {0}
    next(run)
    assert max(seen) > 0


@pytest.mark.parametrize("tree", [Tree.grouped([2, 4]), Tree.uniform(1, 2, 3)])
def test_a_two_tier_algorithm_on_a_deeper_tree_runs_flat_and_says_so(tree: Tree) -> None:
    run = start(algorithm=FedAvg(sample=5), tree=tree)
    assert len(run.notes) == 1
    assert "FedAvg has two tiers: its 6 devices run directly under the server" in run.notes[0]
    record = next(run)
    assert {link for link, _, _ in record.traffic} == {"server-device"}
    assert record.bytes("server-device") == record.bytes() > 0
    flat = start(algorithm=FedAvg(sample=5))
    assert flat.notes == []
    next(flat)
    assert torch.equal(flat.w, run.w)
