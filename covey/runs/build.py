"""From experiments to a runtime: the devices held out, and notes for the user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeVar

import torch
from torch import nn

from covey.data import Shards
from covey.engine.population import Population
from covey.errors import ConfigError, meant
from covey.kernel.environment import Environment
from covey.kernel.nodes import no_plan
from covey.links.spec import wires
from covey.runs.experiment import Experiment
from covey.runs.newcomers import Newcomers, held_out
from covey.runs.notes import loss_notes, private_note, score_notes, training_notes
from covey.runs.parts import Parts, module_of, newcomers_data, others, training_data
from covey.runs.saved import checkpoint
from covey.runtimes.alone.loopback import Loopback
from covey.runtimes.contract import Runtime
from covey.runtimes.ranks import launch
from covey.runtimes.ranks.ranks import ALONE, Ranks, join
from covey.runtimes.ranks.sharded import Sharded, first_difference
from covey.runtimes.ranks.shares import Shares
from covey.runtimes.simulator import Simulator
from covey.tree import Tree
from covey.types import Rows

RUNTIMES = ("simulator", "loopback", "sharded")
"""The runtimes of an experiment: one process for all nodes, nodes that share nothing, or several
processes with some subtrees each.

The bits are the same.
"""
AUTO = "auto"
"""Sharded in a process that torchrun has started as one of several, else the simulator."""

_VERSION = "version of "


@dataclass(frozen=True, eq=False)
class Built:
    """A runtime for experiments side by side.

    `held_out` are the devices of each that take no part in training.
    """

    runtime: Runtime
    newcomers: Newcomers | None
    held_out: list[tuple[int, ...]]
    notes: list[str]


class RuntimeFactory(Protocol):
    """Makes a runtime that is none of `RUNTIMES`, such as a tree of real nodes."""

    def check(self, experiments: Sequence[Experiment]) -> None:
        """Raise ConfigError for experiments that it cannot run."""
        ...

    def make(self, parts: Parts) -> Runtime:
        """The runtime of one experiment."""
        ...


Given = TypeVar("Given")


def chosen(runtime: Given) -> Given | str:
    """A runtime, or that which `AUTO` stands for in this process."""
    if runtime != AUTO:
        return runtime
    return "sharded" if launch.several() else "simulator"


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
    first = experiments[0]
    ranks = ALONE
    if not isinstance(runtime, str):
        runtime.check(experiments)
    elif runtime not in RUNTIMES:
        hint = meant(runtime, RUNTIMES)
        raise ConfigError(f"runtime = {runtime!r}{hint}: choose one of {', '.join(RUNTIMES)}.")
    kept_here = runtime == "simulator" and first.device.startswith("cpu")
    if first.store_rows != "dense" and not kept_here:
        form = first.store_rows
        raise ConfigError(
            f"store_rows = {form!r} is for the simulator on a CPU; use store_rows = 'dense'."
        )
    if runtime == "sharded":
        ranks = join()
        with ranks.together("build the runtime"):
            _check_alone("sharded", experiments, "run one process")
            _check_same(ranks, facts or {})
            ranks.use(torch.device(first.device))
    outs = [held_out(experiment) for experiment in experiments]
    module = module_of(first)
    notes: list[str] = list(first.data.notes)
    newcomers = _newcomers(experiments, module, outs, notes)
    tree, note = first.algorithm.fit(first.tree.without(outs[0]))
    if note:
        notes.append(note)
    pairs = zip(experiments, outs, strict=True)
    data = [training_data(experiment, out) for experiment, out in pairs]
    notes += data[0].receiver_notes()
    links = wires(first.codec, tree.links)
    copies = tree.times(len(experiments))
    environment = _environment(experiments, outs, copies, notes)
    parts = Parts(first, module, start, tree, data[0], links)
    if not isinstance(runtime, str):
        built: Runtime = runtime.make(parts)
    elif runtime == "loopback":
        _check_alone("loopback", experiments, "leave it out")
        built = Loopback(tree, data[0], parts.spec)
    elif runtime == "sharded":
        built = _sharded(parts, ranks, notes)
    else:
        spec = parts.spec(Shards.stack(data))
        seeds = tuple(experiment.seed for experiment in experiments)
        spec = replace(spec, tree=copies, seeds=seeds, environment=environment)
        simulator = Simulator(spec)
        simulator.store_in(folder, first.store_rows)
        built = simulator
    notes += training_notes(first, built.task)
    notes += loss_notes(first, data[0])
    notes += score_notes(first, tree.devices)
    if first.algorithm.splits:
        notes.insert(0, private_note(first, built.task.space))  # the first that a run says
    return Built(built, newcomers, outs, notes)


def _sharded(parts: Parts, ranks: Ranks, notes: list[str]) -> Sharded:
    """One process of several that play the nodes of one seed, with its own devices' examples.

    A note says how the nodes are dealt to the ranks.
    """
    tree = parts.tree
    shares = Shares.of(tree, parts.data.train.counts(), ranks.world)
    own = parts.data
    if ranks.world > 1:
        devices = shares.nodes(tree.tiers[-1], ranks.rank)
        own = parts.data.only(range(devices.start, devices.stop))
    spec = parts.spec(own, Population.of(parts.data))
    runtime = Sharded(spec, ranks=ranks, shares=shares)
    facts = runtime.report()
    dealt = ", ".join(map(str, facts["nodes_by_rank"]))
    notes.append(
        f"{facts['ranks']} ranks have {dealt} nodes of tier {facts['cut']}; "
        f"sums of models across ranks are {facts['sums']}."
    )
    return runtime


def _check_alone(runtime: str, experiments: Sequence[Experiment], fix: str) -> None:
    """Refuse what several processes, or nodes that share nothing, cannot run."""
    reason = None
    if len(experiments) > 1:
        reason = "it runs one seed at a time; run the seeds one after the other"
    elif experiments[0].environment is not None:
        name = experiments[0].environment.name
        reason = f"a {name} has a virtual clock, which only the simulator has; {fix}"
    elif runtime == "loopback" and torch.device(experiments[0].device).type != "cpu":
        reason = 'its nodes exchange bytes in main memory; use device = "cpu"'
    if reason is not None:
        raise ConfigError(f'runtime = "{runtime}": {reason}.')


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


def _environment(
    experiments: Sequence[Experiment],
    outs: Sequence[tuple[int, ...]],
    tree: Tree,
    notes: list[str],
) -> Environment:
    """What surrounds the devices; an algorithm that prunes as a plan says must have one."""
    first = experiments[0]
    if first.environment is None:
        if first.algorithm.planned:
            raise no_plan(type(first.algorithm).__name__)
        return Environment()
    chosen = [others(first.tree.devices, out) for out in outs]
    return first.environment.environment(experiments, chosen, tree, notes)
