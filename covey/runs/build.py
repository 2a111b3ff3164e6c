"""From experiments to a runtime: the devices held out, and notes for the user."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import torch
from torch import nn

from covey.data import Shards
from covey.data.shards import some
from covey.engine.layout import ParameterLayout, placed
from covey.engine.population import Population
from covey.engine.task import Task
from covey.errors import ConfigError, meant
from covey.kernel.environment import Ideal
from covey.links.spec import LinkSpecs, wires
from covey.runs import checkpoint
from covey.runs.experiment import Experiment
from covey.runs.loss_notes import loss_notes
from covey.runs.newcomers import Newcomers, held_out
from covey.runs.scoring import Scorer
from covey.runtimes import launch
from covey.runtimes.contract import Runtime
from covey.runtimes.loopback import Loopback, Station
from covey.runtimes.machine import LARGEST_ROWS, cache_bytes, keep_freed_memory
from covey.runtimes.place import Place
from covey.runtimes.ranks import ALONE, Ranks, join
from covey.runtimes.sharded import Sharded, first_difference
from covey.runtimes.shares import Shares
from covey.runtimes.simulator import Simulator
from covey.tree import Tree
from covey.types import Rows
from covey.wireless.clock import RadioClock

RUNTIMES = ("simulator", "loopback", "sharded")
"""The runtimes of an experiment: one process for all nodes, nodes that share nothing, or several
processes with some subtrees each.

The bits are the same.
"""
AUTO = "auto"
"""Sharded in a process that torchrun has started as one of several, else the simulator."""

Kind = TypeVar("Kind", bound=Simulator)

_VERSION = "version of "
_GRAIN = 200_000
"""Values of rows below which a second thread waits for Python's lock more than it computes."""


@dataclass(frozen=True, eq=False)
class Built:
    """A runtime for experiments side by side.

    `held_out` are the devices of each that take no part in training.
    """

    runtime: Runtime
    newcomers: Newcomers | None
    held_out: list[tuple[int, ...]]
    notes: list[str]


@dataclass(frozen=True, eq=False)
class Parts:
    """What a runtime for one experiment is made of.

    `start` are the initial rows, [1, P]; `data` are the examples of the devices that train.
    """

    experiment: Experiment
    module: nn.Module
    start: Rows
    tree: Tree
    data: Shards
    links: LinkSpecs


class RuntimeFactory(Protocol):
    """Makes a runtime that is none of `RUNTIMES`, such as a tree of real nodes."""

    def check(self, experiments: Sequence[Experiment]) -> None:
        """Raise ConfigError for experiments that it cannot run."""
        ...

    def make(self, parts: Parts) -> Runtime:
        """The runtime of one experiment."""
        ...


def chosen(runtime: str) -> str:
    """The name of a runtime; that which `AUTO` stands for in this process."""
    if runtime != AUTO:
        return runtime
    if launch.several():
        return "sharded"
    return "simulator"


def build(
    experiments: Sequence[Experiment],
    start: Rows,
    runtime: str | RuntimeFactory = "simulator",
    facts: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Built:
    """What runs these experiments, which differ in seed and data alone.

    `start` are their initial rows, [experiments, P]. `facts` decide the bits of the first one;
    all ranks must have the same. The rows that nodes keep lie in files of `folder`, or in memory.
    """
    if not isinstance(runtime, str):
        runtime.check(experiments)
    elif runtime not in RUNTIMES:
        hint = meant(runtime, RUNTIMES)
        raise ConfigError(f"runtime = {runtime!r}{hint}: choose one of {', '.join(RUNTIMES)}.")
    first = experiments[0]
    _check_store_rows(first, runtime)
    ranks = ALONE
    if runtime == "sharded":
        ranks = join()
        with ranks.together("build the runtime"):
            _check_sharded(experiments)
            _check_same(ranks, facts or {})
            ranks.use(torch.device(first.device))
    notes: list[str] = list(first.data.notes)
    outs = [held_out(experiment) for experiment in experiments]
    module = module_of(first)
    newcomers = _newcomers(experiments, module, outs, notes)
    tree, note = first.algorithm.fit(first.tree.without(outs[0]))
    if note:
        notes.append(note)
    pairs = zip(experiments, outs, strict=True)
    data = [training_data(experiment, out) for experiment, out in pairs]
    notes += data[0].receiver_notes()
    links = wires(first.codec, tree.links)
    copies = tree.times(len(experiments))
    air = _air(experiments, outs, copies)
    notes += _link_notes(air, tree, links)
    if not isinstance(runtime, str):
        parts = Parts(first, module, start, tree, data[0], links)
        built: Runtime = runtime.make(parts)
    elif runtime == "loopback":
        _check_loopback(experiments)
        built = _loopback(first, module, start, tree, data[0], links)
    elif runtime == "sharded":
        built = _sharded(first, module, start, tree, data[0], links, ranks)
        notes.append(_shard_note(built))
    else:
        task = task_of(first, module, Shards.stack(data))
        simulator = _simulator(experiments, start, copies, task, links, air, Simulator)
        simulator.store_in(folder, first.store_rows)
        built = simulator
    notes += _engine_notes(first, built.task)
    notes += loss_notes(first, data[0])
    notes += _score_notes(first, tree.devices)
    notes += _stop_notes(first)
    if first.algorithm.splits:
        notes.insert(0, _private_note(first, built.task.space))  # the first that a run says
    return Built(built, newcomers, outs, notes)


def simulator_of(parts: Parts, kind: type[Kind]) -> Kind:
    """A simulator of one experiment without a radio, of a class of its own."""
    task = task_of(parts.experiment, parts.module, parts.data)
    tree = parts.tree
    return _simulator([parts.experiment], parts.start, tree, task, parts.links, None, kind)


def _simulator(
    experiments: Sequence[Experiment],
    start: Rows,
    tree: Tree,
    task: Task,
    links: LinkSpecs,
    air: RadioClock | None,
    kind: type[Kind],
) -> Kind:
    """One process that plays every node of every seed."""
    first = experiments[0]
    workers = _workers(first, task)
    return kind(
        first.algorithm,
        tree,
        task,
        links,
        start,
        tuple(experiment.seed for experiment in experiments),
        first.idle,
        first.batches,
        air or Ideal(),
        first.rates(),
        workers=workers,
        memory=first.memory,
        chunk_rows=_chunk_rows(task, workers),
        grain=_grain(first, task),
        capture=first.capture,
    )


def _sharded(
    experiment: Experiment,
    module: nn.Module,
    start: Rows,
    tree: Tree,
    data: Shards,
    links: LinkSpecs,
    ranks: Ranks,
) -> Sharded:
    """One process of several that play the nodes of one seed, with its own devices' examples."""
    shares = Shares.of(tree, data.train.counts(), ranks.world)
    own = data
    if ranks.world > 1:
        devices = shares.nodes(tree.tiers[-1], ranks.rank)
        own = data.only(range(devices.start, devices.stop))
    task = task_of(experiment, module, own, Population.of(data))
    workers = _workers(experiment, task)
    return Sharded(
        experiment.algorithm,
        tree,
        task,
        links,
        start,
        (experiment.seed,),
        experiment.idle,
        experiment.batches,
        Ideal(),
        experiment.rates(),
        workers=workers,
        memory=experiment.memory,
        chunk_rows=_chunk_rows(task, workers),
        grain=_grain(experiment, task),
        capture=experiment.capture,
        ranks=ranks,
        shares=shares,
    )


def _check_store_rows(experiment: Experiment, runtime: str | RuntimeFactory) -> None:
    """Refuse rows in another form where nodes keep them elsewhere than in main memory or files."""
    form = experiment.store_rows
    if form == "dense":
        return
    if runtime != "simulator" or not experiment.device.startswith("cpu"):
        raise ConfigError(
            f"store_rows = {form!r} is for the simulator on a CPU; use store_rows = 'dense'."
        )


def _check_sharded(experiments: Sequence[Experiment]) -> None:
    """Refuse what several processes cannot run."""
    reason = None
    if len(experiments) > 1:
        reason = "it runs one seed at a time; run the seeds one after the other"
    elif experiments[0].radio is not None:
        reason = "a radio has a virtual clock, which only the simulator has; run one process"
    if reason is not None:
        raise ConfigError(f'runtime = "sharded": {reason}.')


def _check_same(ranks: Ranks, facts: Mapping[str, str]) -> None:
    """Refuse ranks with different experiments, or with other versions of covey or torch."""
    versions = checkpoint.versions()
    own_facts = dict(facts)
    for name, text in versions.items():
        own_facts[f"{_VERSION}{name}"] = text
    everyone = ranks.gather_json("compare experiments", own_facts)
    different = first_difference(everyone)
    if different is None:
        return
    rank, name = different
    there, here = checkpoint.around_difference(
        str(everyone[rank].get(name)), str(everyone[0].get(name))
    )
    fix = "start all ranks with the same file, data and versions"
    if name == f"{_VERSION}processor":
        fix = "set the same ATEN_CPU_CAPABILITY on all machines, for instance avx2"
    raise ConfigError(
        f"the {name} of rank {rank} is not that of rank 0 ({there} and {here}); {fix}. "
        'To run an experiment of its own in every process, give runtime="simulator".'
    )


def _shard_note(runtime: Sharded) -> str:
    """How the nodes are dealt to the ranks."""
    facts = runtime.report()
    shares = ", ".join(map(str, facts["nodes_by_rank"]))
    return (
        f"{facts['ranks']} ranks have {shares} nodes of tier {facts['cut']}; "
        f"sums of models across ranks are {facts['sums']}."
    )


def _chunk_rows(task: Task, workers: int) -> int | None:
    """The max bytes of the rows of a chunk, which stay in the cache; None on a GPU."""
    if task.device.type != "cpu":
        return None
    keep_freed_memory()
    return min(cache_bytes() // workers, LARGEST_ROWS)


def _grain(experiment: Experiment, task: Task) -> int:
    """The min number of values of rows in a chunk for a worker."""
    if experiment.workers or task.path == "each":  # one row is work enough for a worker
        return 1
    return _GRAIN


def _loopback(
    experiment: Experiment,
    module: nn.Module,
    start: Rows,
    tree: Tree,
    data: Shards,
    links: LinkSpecs,
) -> Loopback:
    """A tree of nodes that share nothing."""
    scorer = partial(Scorer.made, experiment.algorithm, experiment.least)

    def station(location: Place, training: Place | None, own_task: Task, examples: int) -> Station:
        return Station(
            experiment.algorithm,
            location,
            own_task,
            links,
            start,
            (experiment.seed,),
            experiment.idle,
            experiment.batches,
            rates=experiment.rates(),
            place=location,
            training_place=training,
            under=examples,
            makers={Scorer.__name__: scorer},
        )

    return Loopback(tree, data, partial(task_of, experiment, module), station)


def _check_loopback(experiments: Sequence[Experiment]) -> None:
    """Refuse what nodes that share nothing cannot run."""
    reason = None
    if len(experiments) > 1:
        reason = "it runs one seed at a time; run the seeds one after the other"
    elif experiments[0].radio is not None:
        reason = "a radio has a virtual clock, which only the simulator has; leave out the radio"
    elif torch.device(experiments[0].device).type != "cpu":
        reason = 'its nodes exchange bytes in main memory; use device = "cpu"'
    if reason is not None:
        raise ConfigError(f'runtime = "loopback": {reason}.')


def training_data(experiment: Experiment, out: Sequence[int]) -> Shards:
    """The data of the devices that train: all but those held out."""
    data = experiment.protocol_data()
    if not out:
        return data
    return data.chosen(_others(data.devices, out))


def _others(devices: int, out: Sequence[int]) -> list[int]:
    """The devices that are not held out."""
    left_out = set(out)
    return [device for device in range(devices) if device not in left_out]


def newcomers_data(experiment: Experiment, out: Sequence[int]) -> Shards:
    """The data of the devices held out, of which one or more has training examples."""
    data = experiment.protocol_data()
    chosen = sorted(out)
    if not bool(data.train.counts()[chosen].any()):
        raise ConfigError(
            f"holdout_devices: none of the devices {some(chosen)} has training examples to adapt "
            "to; hold out others."
        )
    return data.chosen(chosen)


def module_of(experiment: Experiment) -> nn.Module:
    """The module of a run, whose frozen parameters all tasks share.

    They are copied once: what happens to the experiment's module later does not reach the run.
    """
    module = copy.deepcopy(experiment.model)
    return placed(module, torch.device(experiment.device), experiment.dtype)


def task_of(
    experiment: Experiment,
    module: nn.Module,
    data: Shards,
    population: Population | None = None,
) -> Task:
    """What every device learns, on the examples in these shards."""
    return Task(
        module,
        data,
        loss=experiment.loss,
        l2=experiment.l2,
        private=experiment.private,
        dtype=experiment.dtype,
        device=experiment.device,
        compute=experiment.compute,
        population=population,
        augment=experiment.augmentations(),
        metrics=experiment.metrics,
        optimiser=experiment.optimiser(),
    )


def _workers(experiment: Experiment, task: Task) -> int:
    if task.device.type != "cpu":
        return 1  # a GPU is one queue
    return experiment.workers or torch.get_num_threads()


def _newcomers(
    experiments: Sequence[Experiment],
    module: nn.Module,
    outs: Sequence[tuple[int, ...]],
    notes: list[str],
) -> Newcomers | None:
    if not outs[0]:
        return None
    data = []
    for experiment, out in zip(experiments, outs, strict=True):
        which = ""
        if len(experiments) > 1:
            which = f" of seed {experiment.seed}"
        devices = ", ".join(map(str, out))
        notes.append(
            f"held out from training{which}: devices {devices}; the others are numbered anew."
        )
        data.append(newcomers_data(experiment, out))
    return Newcomers(experiments, data, module=module)


def _air(
    experiments: Sequence[Experiment],
    outs: Sequence[tuple[int, ...]],
    tree: Tree,
) -> RadioClock | None:
    """The virtual clock, where the experiments have a radio.

    An algorithm that prunes as a plan says must have one.
    """
    first = experiments[0]
    planned = first.algorithm.planned
    if first.radio is None:
        if planned:
            name = type(first.algorithm).__name__
            raise ConfigError(
                f'{name} prunes as a radio plan says (ratio = "plan"); give a radio, or a number.'
            )
        return None
    return RadioClock(
        first.radio,
        first.work(),
        planned,
        tree=tree,
        seeds=tuple(experiment.seed for experiment in experiments),
        chosen=[_others(first.tree.devices, out) for out in outs],
    )


def _engine_notes(experiment: Experiment, task: Task) -> list[str]:
    """What the user should know of how training is computed."""
    notes = _frozen_notes(experiment, task)
    if task.precision.reason is not None:
        notes.append(f'compute = "{experiment.compute}" computes in {task.precision}.')
    if not experiment.algorithm.hessians or task.no_hessian is None:
        return notes
    name = type(experiment.algorithm).__name__
    return [
        *notes,
        f"{name} takes differences of gradients for Hessian products: "
        f"autograd cannot differentiate this model twice ({task.no_hessian}).",
    ]


def _frozen_notes(experiment: Experiment, task: Task) -> list[str]:
    """Which share of the model trains, where not all of it does."""
    space = task.space
    if not space.frozen:
        return []
    frozen = space.frozen_size
    start = "the rest starts from the seed"
    if experiment.start == "module":
        start = "the rest starts from them too"
    return [
        f"{frozen} of {frozen + space.width} parameters are frozen: they keep the module's values "
        f"and are not sent; {start}."
    ]


def _score_notes(experiment: Experiment, devices: int) -> list[str]:
    """What the user should know of which devices are scored."""
    sample = experiment.score_sample
    if sample is None or sample <= devices:
        return []
    return [f"score_sample = {sample}, but {devices} devices train: all of them are scored."]


def _stop_notes(experiment: Experiment) -> list[str]:
    """What the user should know of an early stop that the rounds leave no room for."""
    stop = experiment.early_stop()
    if stop is None:
        return []
    before = experiment.rounds - 1
    scored = before // experiment.score_every
    every = experiment.score_train_every
    if every is not None:
        scored += before // every - before // math.lcm(every, experiment.score_every)
    too_few = f"stop cannot act in {experiment.rounds} rounds"
    if stop.min_rounds > before:
        return [f"{too_few}: min_rounds = {stop.min_rounds}."]
    if scored <= stop.patience:
        needed = f"patience = {stop.patience} needs {stop.patience + 1} scored rounds"
        return [f"{too_few}: {needed} before the last, and there are {scored}."]
    return []


def _link_notes(
    air: RadioClock | None,
    tree: Tree,
    links: LinkSpecs,
) -> list[str]:
    """What the user should know of how rows are sent."""
    if air is None or not air.policy.prunes:
        return []
    last = tree.links[-1]
    codec = links[last, "up"].codec
    if not codec.name.startswith("dense"):
        return []
    return [
        f"{last} sends dense rows up, pruned weights too, so devices that prune are late; "
        'use codec = "bitmap".'
    ]


def _private_note(experiment: Experiment, space: ParameterLayout) -> str:
    """Which layers stay on the devices."""
    name = type(experiment.algorithm).__name__
    private = [slot.name for slot in space.slots if slot.start >= space.shared]
    if not private:
        return f"{name} shares all layers: no layer is private."
    layers = list(dict.fromkeys(_layer(parameter) for parameter in private))
    shown = ", ".join(layers)
    if len(layers) > 5:
        shown = f"{', '.join(layers[:4])} and {len(layers) - 4} more"
    subject = f"layer {shown} stays"
    if len(layers) > 1:
        subject = f"layers {shown} stay"
    patterns = ", ".join(f'"{pattern}"' for pattern in experiment.private)
    if len(experiment.private) != 1:
        patterns = f"[{patterns}]"
    return f'{name}: {subject} on each device (private = {patterns}); private = "" shares all.'


def _layer(parameter: str) -> str:
    """The name of a parameter's layer; its own where it stands in none."""
    return parameter.rpartition(".")[0] or parameter
