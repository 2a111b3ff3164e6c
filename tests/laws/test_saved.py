"""The saved model is the reported one: files of `models/`, loaded into plain modules, score what
the table says.
"""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import covey
from covey import Run
from covey.folder.recording import write_models
from covey.kernel.nodes import Nodes
from covey.report.summary import summarise
from covey.runs.saved import snapshot
from covey.runs.saved.run_folder import RunFolder
from covey.runs.saved.snapshot import Snapshot
from tests import peek
from tests.given import played
from tests.laws.cases import CASES, Case, every, experiment
from tests.laws.networks import NETWORKS

ROUNDS = 5
NORMED = ("BatchNorm", "class BatchNorm", "BatchNorm2d")


# With `least` the table leaves out examples that the files are scored on.
COUNTED = {name: case for name, case in CASES.items() if "least" not in case.settings}


@every(COUNTED)
def test_the_files_score_what_the_table_says(case: Case, tmp_path: Path) -> None:
    # the last round is scored for being the last
    run = played(experiment(case, rounds=ROUNDS, score_every=2))
    assert_saved_as_reported(run, tmp_path, ROUNDS)


@pytest.mark.parametrize("name", NORMED)
def test_a_network_with_batch_norm_scores_what_the_table_says(name: str, tmp_path: Path) -> None:
    """A plain module in eval mode, with the device's statistics from the file."""
    run = played(NETWORKS[name].experiment(rounds=3))
    assert_saved_as_reported(run, tmp_path, 3)


def assert_saved_as_reported(run: Run, tmp_path: Path, rounds: int) -> None:
    """Write the models of a run, and compare the files with the table."""
    folder = RunFolder(tmp_path)
    write_models(folder, run)
    figures = {
        model.model: model for model in summarise([run.history], run.experiment.protocol).models
    }
    figures = {name: figure for name, figure in figures.items() if not name.startswith("new_")}
    assert figures.keys() == set(run.models())
    for name, figure in figures.items():
        (chosen,) = figure.chosen_round
        for place, round, accuracy, loss in (
            ("models", chosen, figure.accuracy, figure.loss),
            ("models/last", rounds - 1, figure.last, figure.loss_last),
        ):
            path = tmp_path / place / f"{name}.safetensors"
            read = snapshot.read(path, run.runtime.task.space)
            assert (read.model, read.tier, read.round) == (name, figure.tier, round)
            right, lost, count = scored(run, path, read)
            assert right / count == pytest.approx(accuracy.mean, abs=1e-12), (name, place)
            assert lost / count == pytest.approx(loss.mean, rel=2e-5), (name, place)


def test_some_model_is_chosen_before_the_last_round() -> None:
    """Else the law would hold for files of the last round too."""
    earlier = 0
    for name in ("FedAvg", "PFedMe", "PerMFL", "FedPer", "PFedBayes-restart-draws", "Clustered"):
        run = played(experiment(CASES[name], rounds=ROUNDS, score_every=2))
        earlier += any(run.snapshot(model, "chosen").round < ROUNDS - 1 for model in run.models())
    assert earlier >= 4


def scored(run: Run, path: Path, read: Snapshot) -> tuple[float, float, int]:
    """(right, loss, count) of the model in a file on all test examples."""
    test = run.trained.test
    right, lost = 0.0, 0.0
    for device in range(run.trained.devices):
        examples = test.index[test.offset[device] : test.offset[device + 1]]
        if not len(examples):
            continue
        x, y = run.trained.x[examples], run.trained.y[examples]
        outputs = predicted(run, path, read, device, x)
        right += float((outputs.argmax(1) == y).sum())
        lost += float(nn.functional.cross_entropy(outputs, y, reduction="sum"))
    return right, lost, len(test.index)


def predicted(run: Run, path: Path, read: Snapshot, device: int, x: Tensor) -> Tensor:
    """What the model makes of examples: as a plain module or, where the algorithm predicts its own
    way, as that.
    """
    tree = run.runtime.tree
    nodes = torch.tensor([device])
    for tier in reversed(tree.tiers[tree.tiers.index(read.tier) : -1]):
        ends = torch.cumsum(tree.counts(tier, torch.arange(tree.size(tier))), 0)
        nodes = torch.searchsorted(ends, nodes, right=True)
    node = int(nodes)
    if type(run.experiment.algorithm).predictor is covey.Algorithm.predictor:
        module = copy.deepcopy(run.experiment.model)
        module.load_state_dict(state_of(path, node, device))
        module.eval()
        with torch.no_grad():
            return module(x)
    row = read.row(node, device)
    assert row is not None
    return special(run, read, row, device, x)


def state_of(path: Path, node: int, device: int) -> dict[str, Tensor]:
    """The parameters of one node's model, as a stranger would put them together from the file."""
    tensors = load_file(path)
    names = [name for name in tensors if "/" not in name and name != "ids"]
    where = (tensors["ids"] == node).nonzero()
    if len(where):
        state = {name: tensors[name][int(where[0, 0])] for name in names}
    else:
        state = {name: tensors[f"fallback/{name}"] for name in names}
    if "statistics/ids" in tensors:
        own = (tensors["statistics/ids"] == device).nonzero()
        for name, values in tensors.items():
            if name.startswith("statistics/") and name != "statistics/ids":
                state[name.removeprefix("statistics/")] = values[int(own[0, 0])]
    if "private/ids" in tensors:
        own = (tensors["private/ids"] == device).nonzero()
        private = [name for name in names if f"private/{name}" in tensors]
        assert private
        if len(own):
            state |= {name: tensors[f"private/{name}"][int(own[0, 0])] for name in private}
    return state


def special(run: Run, read: Snapshot, row: Tensor, device: int, x: Tensor) -> Tensor:
    """Predictions by the algorithm's own predictor on what the file holds, in a simulator that has
    run nothing.
    """
    fresh = peek.services(covey.run(run.experiment))
    ids = torch.tensor([device])
    for name, part in read.beside.items():
        if bool((part.ids == device).any()):
            fresh.store.put("device", name, ids, part.rows[part.ids == device], read.round)
    me = Nodes(fresh, "device", ids, round=read.round, path=0)
    with torch.no_grad():
        predict = run.experiment.algorithm.predictor(me, read.model, row[None])
        if predict is None:
            return fresh.task.space.fill(row)(x)
        test = run.trained.test
        batch = next(batch for _, batch in fresh.task.examples.blocks("test", ids))
        outputs = predict(batch, torch.tensor([0]))[0]
        count = int(test.offset[device + 1] - test.offset[device])
        assert count <= outputs.shape[0]
        return outputs[:count]


def test_what_is_chosen_survives_a_new_process_and_more_rounds(tmp_path: Path) -> None:
    """Seven rounds, saved, then thirteen: the same as thirteen at once, though round 7 was scored
    for being the last.
    """
    for name in (
        "FedPer",
        "PerMFL",
        "PFedBayes-sample",
        "Clustered-sample",
        "HierFAVG-sample-samples",
    ):
        whole = played(experiment(CASES[name], rounds=13, score_every=3))
        part = played(experiment(CASES[name], rounds=7, score_every=3))
        part.save(tmp_path / f"{name}.safetensors")
        more = played(
            experiment(CASES[name], rounds=13, score_every=3),
            resume=tmp_path / f"{name}.safetensors",
        )
        assert chosen(more) == chosen(whole)


def chosen(run: Run) -> dict[str, Any]:
    """Every model in its chosen round, as plain values."""
    out: dict[str, Any] = {}
    for name in run.models():
        read = run.snapshot(name, "chosen")
        beside = {key: (part.ids.tolist(), part.rows.tolist()) for key, part in read.beside.items()}
        fallback = None if read.fallback is None else read.fallback.tolist()
        out[name] = (read.round, read.ids.tolist(), read.rows.tolist(), fallback, beside)
    return out


def test_a_failed_round_holds_nothing_new(monkeypatch: pytest.MonkeyPatch) -> None:
    run, undisturbed = (
        covey.run(experiment(CASES["PerMFL"], rounds=6, score_every=1)) for _ in range(2)
    )
    real = peek.runs(run)._choose
    fails = iter([True, False, True, False, True])

    def choose(*args: Any) -> Any:
        out = real(*args)
        if next(fails, False):
            raise KeyboardInterrupt  # after the rows were held, before the round has ended
        return out

    monkeypatch.setattr(peek.runs(run), "_choose", choose)
    while run.round < 6:
        try:
            next(run)
        except KeyboardInterrupt:
            continue
    list(undisturbed)
    assert chosen(run) == chosen(undisturbed)
