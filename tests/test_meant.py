"""A name that nothing has is refused with the name that is most like it."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import covey
from covey.data import scaling
from covey.engine.descend import descend
from covey.errors import CoveyError
from covey.files.config import load
from covey.models import permfl_cnn
from tests.cli.command import BASE
from tests.laws.cases import PLAIN, experiment


def start(**changes: Any) -> covey.Run:
    return covey.run(experiment(PLAIN["PFedMe"], **changes))


def wrong(name: Any) -> Any:
    """A name that the types of a function do not have."""
    return name


def steps() -> Any:
    rows = torch.zeros(1, 2)
    return descend(rows, torch.zeros_like, steps=1, lr=0.1, method=wrong("nesterow"))


NAMES: dict[str, tuple[Callable[[], Any], str]] = {
    "a solver": (lambda: start(solver="admw"), "adamw"),
    "a solver by its case": (lambda: start(solver="SGD"), "sgd"),
    "a setting of a solver": (lambda: start(solver={"momntum": 0.9}), "momentum"),
    "a schedule": (lambda: start(solver={"schedule": "cosin"}), "cosine"),
    "a rate": (lambda: start(schedules={"betta": "cosine"}), "beta"),
    "a loss": (lambda: start(loss="cross_entrpy"), "cross_entropy"),
    "a loss in a table": (lambda: start(loss={"name": "fokal"}), "focal"),
    "a setting of a loss": (lambda: start(loss={"name": "focal", "gama": 2}), "gamma"),
    "a metric": (lambda: start(metrics=("balanced_acuracy",)), "balanced_accuracy"),
    "an augmentation": (lambda: start(augment="nosie"), "noise"),
    "an option of one": (lambda: start(augment={"name": "crop", "pda": 1}), "pad"),
    "a codec": (lambda: start(codec="bitmpa"), "bitmap"),
    "a link": (lambda: start(codec={"server-devices": "bitmap"}), "server-device"),
    "a choice": (lambda: start(idle="trian"), "train"),
    "a runtime": (lambda: covey.run(experiment(PLAIN["PFedMe"]), runtime="simulater"), "simulator"),
    "a stop": (lambda: start(stop={"patiense": 3}), "patience"),
    "a model of a run": (lambda: start().rows("persnal"), "personal"),
    "a method": (steps, "nesterov"),
    "a split": (lambda: experiment(PLAIN["PFedMe"]).data.part("tset"), "test"),
    "a normalisation": (lambda: scaling(wrong("unti"), torch.zeros(1, 1), torch.zeros(1)), "unit"),
    "a network": (lambda: permfl_cnn((1, 28, 28), net=wrong("mnits")), "mnist"),
    "a type in a file": (lambda: load(BASE, ["dtype=float23"]), "float32"),
    "a part in a file": (lambda: load(BASE, ['parts=["tets", "validation"]']), "test"),
    "a solver in a file": (lambda: load(BASE, ["solver=adma"]), "adam"),
    "a loss in a file": (lambda: load(BASE, ["loss=cross_entopy"]), "cross_entropy"),
    "a metric in a file": (lambda: load(BASE, ['metrics=["acuracy"]']), "accuracy"),
}


@pytest.mark.parametrize("name", NAMES)
def test_the_nearest_name_is_said(name: str) -> None:
    call, wanted = NAMES[name]
    with pytest.raises(CoveyError) as caught:
        call()
    assert re.search(rf"did you mean '?([a-z]+\.)?{wanted}'?\?", str(caught.value))
