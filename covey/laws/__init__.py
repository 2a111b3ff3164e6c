"""Laws that hold for every algorithm, for the tests of one that lies outside covey.

    @pytest.mark.parametrize("law", laws.ALL, ids=str)
    def test_a_law(law: laws.Law) -> None:
        law(MyAlgorithm())

A broken law raises a `ProgramError` that says what differs. covey's own algorithms are held to more
laws, in many settings (tests/laws).
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from covey.data import Shards, own, own_parts
from covey.errors import ProgramError
from covey.kernel.algorithm import Algorithm
from covey.models import linear, mlp
from covey.runs.experiment import Experiment
from covey.runs.run import Run, run, runs
from covey.runs.seed import Seed
from covey.tree import Tree

__all__ = ["ALL", "Law", "differences", "state"]

_INPUTS = 13
_CLASSES = 5
_SIZES = (30, 9, 460, 55, 21, 40, 12, 77)  # examples per device: few, and more than one block
_TREES = {2: Tree.flat(8), 3: Tree.grouped([3, 1, 4])}
_ROUNDS = 3
_MOVED = 1e-4  # parts of the norm of a model, by which some model must move in all rounds


@dataclass(frozen=True)
class Law:
    """One law: its name, and the function that raises where an algorithm breaks it."""

    name: str
    check: Callable[[Algorithm], None]

    def __call__(self, algorithm: Algorithm) -> None:
        self.check(algorithm)

    def __str__(self) -> str:
        return self.name


def state(run: Seed) -> dict[str, Any]:
    """Everything a run holds, except times.

    The global row, all kept rows with their ids and rounds, the models of their chosen rounds, the
    meter and the records.
    """
    out: dict[str, Any] = {"global": run.w.clone()}
    for name in run.models(scored=False):
        chosen = run.snapshot(name, "chosen")
        out |= {
            f"chosen {name}.round": chosen.round,
            f"chosen {name}.ids": chosen.ids,
            f"chosen {name}": chosen.rows,
        }
        out |= {f"chosen {name} {key}": part.rows for key, part in chosen.beside.items()}
    for tier, name, ids, rounds, rows in run.columns():
        out |= {f"{tier}.{name}.ids": ids, f"{tier}.{name}.rounds": rounds, f"{tier}.{name}": rows}
    out["meter"] = json.dumps(sorted(run.meter.state()))
    records = [{**record.as_dict(), "seconds": 0.0, "spent": {}} for record in run.history]
    out["history"] = json.dumps(records, sort_keys=True)
    return out


def differences(left: dict[str, Any], right: dict[str, Any]) -> list[str]:
    """Where two states differ in a bit, and by how much."""
    if left.keys() != right.keys():
        return [f"one of them has {', '.join(sorted(left.keys() ^ right.keys()))}"]
    out = []
    for key, value in left.items():
        other = right[key]
        if not isinstance(value, Tensor):
            if value != other:
                out.append(f"{key}: {value} is not {other}")
        elif value.shape != other.shape:
            out.append(f"{key}: another shape")
        elif not torch.equal(value, other):
            out.append(f"{key}: {(value - other).abs().max().item()}")
    return out


def _shards(seed: int = 5) -> Shards:
    """Devices of very different sizes, each with its own rule from features to labels."""
    draw = torch.Generator().manual_seed(seed)
    pairs = []
    for size in _SIZES:
        x = torch.randn(size, _INPUTS, generator=draw)
        y = (x @ torch.randn(_INPUTS, _CLASSES, generator=draw)).argmax(1)
        pairs.append((x, y))
    return own(pairs, classes=_CLASSES)


def _experiment(algorithm: Algorithm, **changes: Any) -> Experiment:
    """A small experiment with the tiers that the algorithm has programs for."""
    plain: dict[str, Any] = {
        "data": _shards(),
        "model": mlp(_INPUTS, 7, _CLASSES),
        "tree": _TREES[max(2, len(algorithm.tiers()))],
        "rounds": _ROUNDS,
        "score_every": _ROUNDS,
        "workers": 1,
    }
    return Experiment(algorithm, **{**plain, **changes})


def _finished(experiment: Experiment, **options: Any) -> Run:
    """The run after its last round."""
    out = run(experiment, **options)
    for _ in out:
        pass
    return out


def _same(law: str, left: Seed, right: Seed) -> None:
    """Raise where two runs differ in a bit."""
    wrong = differences(state(left), state(right))
    if wrong:
        raise ProgramError(f"{law}, but they differ in {'; '.join(wrong)[:500]}.")


def _some_model_moves(algorithm: Algorithm) -> None:
    ended = _finished(_experiment(algorithm))
    begin = ended.runtime.start[0]
    rows = [ended.w, *(ended.rows(name)[1] for name in ended.models())]
    models = [row for row in rows if row.shape[1:] == begin.shape and len(row)]
    far = max(float((row - begin).norm(dim=1).max() / begin.norm()) for row in models)
    if far < _MOVED:
        raise ProgramError(
            f"{_ROUNDS} rounds should train a model, but none moved by more than {far:.1e} of its "
            "norm; return or keep what `descend` gives, or take larger steps."
        )


def _programs_run_on_no_rows(algorithm: Algorithm) -> None:
    begun = run(_experiment(algorithm))
    answer = begun.runtime.play(algorithm.server, begun.w[:0], round=0).answer
    if answer.shape != (0, begun.w.shape[1]) or answer.dtype != begun.w.dtype:
        raise ProgramError(
            f"no rows [0, {begun.w.shape[1]}] should give no rows, but the server's program "
            f"answered {tuple(answer.shape)} of {answer.dtype}."
        )


def _workers_and_chunks_change_no_bit(algorithm: Algorithm) -> None:
    whole = _finished(_experiment(algorithm))
    for options in ({"workers": 3}, {"memory": 1}):
        parts = _finished(_experiment(algorithm, **options))
        _same(f"a run with {options} should have the bits of a run in one piece", whole, parts)


def _a_resumed_run_has_the_bits_of_an_undisturbed_one(algorithm: Algorithm) -> None:
    experiment = _experiment(algorithm)
    begun = run(experiment)
    next(begun)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run.safetensors")
        begun.save(path)
        resumed = _finished(experiment, resume=path)
    undisturbed = _finished(experiment)
    _same("a resumed run should have the bits of an undisturbed one", undisturbed, resumed)


def _nodes_that_share_nothing_compute_the_same_bits(algorithm: Algorithm) -> None:
    experiment = _experiment(algorithm)
    alone = _finished(experiment, runtime="loopback")
    _same("loopback should have the simulator's bits", _finished(experiment), alone)


def _seeds_side_by_side_are_as_seeds_alone(algorithm: Algorithm) -> None:
    experiments = [_experiment(algorithm, seed=seed) for seed in (3, 4)]
    together = runs(experiments)
    for _ in together:
        pass
    for seed, experiment in zip(together.seeds, experiments, strict=True):
        _same("seeds side by side should be as seeds alone", _finished(experiment), seed)


def _a_fixed_point_stays_fixed(algorithm: Any) -> None:
    """All devices have one least-squares problem, so its minimiser is everybody's.

    A method with noise, pruning or an l1 penalty has no such point: leave this law out.
    """
    draw = torch.Generator().manual_seed(2)
    x = torch.randn(40, 5, generator=draw, dtype=torch.float64)
    y = torch.randn(40, generator=draw, dtype=torch.float64)
    if "batch" in {field.name for field in fields(algorithm)}:
        algorithm = replace(algorithm, batch=None)  # the gradients of all examples
    begun = run(
        _experiment(
            algorithm,
            data=own_parts(train=[(x, y)] * len(_SIZES)),
            model=linear(5, 1, bias=False),
            private=(),
            loss="squared_error",
            dtype=torch.float64,
            parts=("train",),
        )
    )
    best = torch.linalg.lstsq(x, y[:, None]).solution.T
    begun.w = best.clone()
    begun.runtime.start = best.clone()
    for _ in begun:
        pass
    far = float((begun.w - best).abs().max())
    if not far < 1e-10:
        raise ProgramError(
            f"the minimiser of every device's loss should stay, but the global model left it by "
            f"{far:.1e}; a method with noise, pruning or an l1 penalty leaves this law out."
        )


ALL = tuple(
    Law(check.__name__.strip("_").replace("_", " "), check)
    for check in (
        _some_model_moves,
        _programs_run_on_no_rows,
        _workers_and_chunks_change_no_bit,
        _a_resumed_run_has_the_bits_of_an_undisturbed_one,
        _nodes_that_share_nothing_compute_the_same_bits,
        _seeds_side_by_side_are_as_seeds_alone,
        _a_fixed_point_stays_fixed,
    )
)
"""Every law, in the order in which an author meets them."""
