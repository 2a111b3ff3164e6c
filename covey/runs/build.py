"""From experiments to what runs them: the runtime, the devices held out, and what the user should know of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from covey.data import Shards
from covey.engine.layout import Space
from covey.engine.task import Task
from covey.errors import ConfigError
from covey.kernel.environment import Ideal
from covey.links.spec import Wire, wires
from covey.runs.experiment import Experiment
from covey.runs.newcomers import Newcomers, held_out
from covey.runtimes.contract import Runtime
from covey.runtimes.simulator import Simulator
from covey.tree import Tree
from covey.wireless.air import Air

_GRAIN = 200_000  # values of rows below which a second thread waits for Python's lock more than it computes


@dataclass(frozen=True, eq=False)
class Built:
    """A runtime for experiments side by side; `held_out` are the devices of each that take no part in training."""

    runtime: Runtime
    newcomers: Newcomers | None
    held_out: list[tuple[int, ...]]
    notes: list[str]


def build(experiments: Sequence[Experiment]) -> Built:
    """What runs these experiments, which differ in seed and data alone."""
    first = experiments[0]
    notes: list[str] = []
    outs = [held_out(experiment) for experiment in experiments]
    newcomers = _newcomers(experiments, outs, notes)
    tree, note = first.algorithm.fit(first.tree.without(outs[0]))
    if note:
        notes.append(note)
    task = _task(experiments, outs)
    notes += _engine_notes(first, task)
    notes += _score_notes(first, tree.devices)
    if first.algorithm.splits:
        notes.insert(0, _private_note(first, task.space))  # the first that a run says
    links = wires(first.codec, tree.links)
    copies = tree.times(len(experiments))
    air = _air(experiments, outs, copies)
    notes += _link_notes(air, tree, links)
    runtime = Simulator(
        first.algorithm,
        copies,
        task,
        links,
        torch.stack([experiment.initial() for experiment in experiments]),
        tuple(experiment.seed for experiment in experiments),
        first.idle,
        first.batches,
        air or Ideal(),
        workers=_workers(first, task),
        memory=first.memory,
        grain=1 if first.workers else _GRAIN,
        capture=first.capture,
    )
    return Built(runtime, newcomers, outs, notes)


def training_data(experiment: Experiment, out: Sequence[int]) -> Shards:
    """The data of the devices that train: all but those held out."""
    data = experiment.protocol_data()
    if not out:
        return data
    return data.chosen([device for device in range(data.devices) if device not in set(out)])


def newcomers_data(experiment: Experiment, out: Sequence[int]) -> Shards:
    """The data of the devices held out."""
    return experiment.protocol_data().chosen(sorted(out))


def _task(experiments: Sequence[Experiment], outs: Sequence[Sequence[int]]) -> Task:
    first = experiments[0]
    data = [training_data(experiment, out) for experiment, out in zip(experiments, outs, strict=True)]
    return Task(
        first.model,
        Shards.stack(data),
        loss=first.loss,
        l2=first.l2,
        private=first.private,
        dtype=first.dtype,
        device=first.device,
    )


def _workers(experiment: Experiment, task: Task) -> int:
    if task.device.type != "cpu":
        return 1  # a GPU is one queue
    return experiment.workers or torch.get_num_threads()


def _newcomers(experiments: Sequence[Experiment], outs: Sequence[tuple[int, ...]], notes: list[str]) -> Newcomers | None:
    if not outs[0]:
        return None
    data = []
    for experiment, out in zip(experiments, outs, strict=True):
        which = f" of seed {experiment.seed}" if len(experiments) > 1 else ""
        devices = ", ".join(map(str, out))
        notes.append(f"held out from training{which}: devices {devices}; the others are numbered anew.")
        data.append(newcomers_data(experiment, out))
    return Newcomers(experiments, data)


def _air(experiments: Sequence[Experiment], outs: Sequence[tuple[int, ...]], tree: Tree) -> Air | None:
    """The virtual clock, where the experiments have a radio; a newcomer may do without, where nothing is planned."""
    first = experiments[0]
    planned = first.algorithm.planned
    if first.radio is None:
        if planned:
            name = type(first.algorithm).__name__
            raise ConfigError(f'{name} prunes as a radio plan says (ratio = "plan"); give a radio, or a number.')
        return None
    training = [[device for device in range(first.tree.devices) if device not in set(out)] for out in outs]
    seeds = tuple(experiment.seed for experiment in experiments)
    return Air(first.radio, first.work(), planned, tree=tree, seeds=seeds, chosen=training)


def _engine_notes(experiment: Experiment, task: Task) -> list[str]:
    """What the user should know of how training is computed."""
    if not experiment.algorithm.hessians or task.no_hessian is None:
        return []
    name = type(experiment.algorithm).__name__
    return [
        f"{name} takes differences of gradients for Hessian products: "
        f"autograd cannot differentiate this model twice ({task.no_hessian})."
    ]


def _score_notes(experiment: Experiment, devices: int) -> list[str]:
    """What the user should know of which devices are scored."""
    sample = experiment.score_sample
    if sample is None or sample <= devices:
        return []
    return [f"score_sample = {sample}, but {devices} devices train: all of them are scored."]


def _link_notes(air: Air | None, tree: Tree, links: Mapping[tuple[str, str], Wire]) -> list[str]:
    """What the user should know of how rows are sent."""
    last = tree.links[-1]
    if air is None or not air.policy.prunes or not links[last, "up"].codec.name.startswith("dense"):
        return []
    return [f'{last} sends dense rows up, pruned weights too, so devices that prune are late; use codec = "bitmap".']


def _private_note(experiment: Experiment, space: Space) -> str:
    """Which layers stay on the devices."""
    name = type(experiment.algorithm).__name__
    private = [slot.name for slot in space.slots if slot.start >= space.shared]
    if not private:
        return f"{name} shares all layers: no layer is private."
    layers = list(dict.fromkeys(parameter.rpartition(".")[0] or parameter for parameter in private))
    more = f" and {len(layers) - 4} more" if len(layers) > 5 else ""
    shown = ", ".join(layers[:4] if more else layers)
    patterns = ", ".join(f'"{pattern}"' for pattern in experiment.private)
    which = patterns if len(experiment.private) == 1 else f"[{patterns}]"
    noun, verb = ("layers", "stay") if len(layers) > 1 else ("layer", "stays")
    return f'{name}: {noun} {shown}{more} {verb} on each device (private = {which}); private = "" shares all.'
