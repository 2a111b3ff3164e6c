"""Models scored all at once, as a GPU does it, have the scores of models scored one by one."""

from dataclasses import asdict
from typing import Any

import pytest
import torch

import covey
from covey.engine.measures import tally
from tests import peek
from tests.laws.cases import PLAIN, experiment

NAMES = ("PFedMe", "SFedHP", "FedAlt", "PerMFL")


def scored(name: str, *, together: bool, **changes: Any) -> covey.Run:
    run = covey.run(experiment(PLAIN[name], rounds=3, score_every=1, **changes))
    peek.services(run).task.examples.remembers = together
    list(run)
    return run


def figures(value: Any) -> Any:
    """Nested figures as pytest can compare them to a few last bits."""
    if isinstance(value, dict):
        return {key: figures(item) for key, item in value.items()}
    if isinstance(value, float):
        return pytest.approx(value, rel=1e-5, abs=1e-7)
    return value


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("native", [True, False])
def test_scores_do_not_depend_on_it(
    name: str, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not native:
        monkeypatch.setattr(tally, "_kernel_scores", lambda task, x: False)
        monkeypatch.setattr(tally, "_GPU_BYTES", 1 << 12)  # several blocks
    alone = scored(name, together=False)
    run = scored(name, together=True)
    assert torch.equal(run.w, alone.w)
    for mine, other in zip(run.history, alone.history, strict=True):
        for model, score in other.models.items():
            assert asdict(mine.models[model]) == figures(asdict(score))
    for line, wanted in zip(run.devices(), alone.devices(), strict=True):
        assert line.as_dict() == figures(wanted.as_dict())


def test_blocks_of_other_devices_are_not_those_remembered() -> None:
    run = covey.run(experiment(PLAIN["FedAvg"], rounds=1))
    examples = peek.services(run).task.examples
    wanted = {}
    for some in ((0, 2), (2, 3), (2,)):
        numbers = torch.tensor(some)
        wanted[some] = [batch.examples for _, batch in examples.blocks("train", numbers)]
    examples.remembers = True
    for _ in range(2):
        for ids, blocks in wanted.items():
            got = [batch.examples for _, batch in examples.blocks("train", torch.tensor(ids))]
            assert all(torch.equal(a, b) for a, b in zip(got, blocks, strict=True))
