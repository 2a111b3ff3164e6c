"""What tests look at inside a run and its runtime, in one place."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from covey.kernel.nodes import Nodes
from covey.kernel.replies import Replies, Total
from covey.kernel.store.store import PRESENT, Store
from covey.runs.experiment import Experiment
from covey.runs.run import Runs
from covey.runs.seed import Seed
from covey.runtimes.alone.loopback import Loopback, Station
from covey.runtimes.base import BaseRuntime, Play
from covey.runtimes.cuda.cuda_graphs import Graphs
from covey.runtimes.cuda.round_graphs import Rounds
from covey.runtimes.simulator import Simulator

Column = tuple[str, str, Tensor, Tensor, Tensor]
"""(tier, name, ids, rounds, rows)."""


def services(run: Seed | Runs) -> BaseRuntime:
    """The runtime of a run whose nodes share one store."""
    assert isinstance(run.runtime, BaseRuntime)
    return run.runtime


def store(run: Seed | Runs) -> Store:
    """Where the nodes of a run keep their rows."""
    return services(run).store


def dump(run: Seed | Runs) -> list[Column]:
    """Everything that the nodes of all seeds keep."""
    columns = sorted(store(run).columns.items())
    return [(*key, *column.read(PRESENT, slice(0, None))) for key, column in columns]


def columns(run: Seed) -> Iterator[Column]:
    """Everything that the nodes of one seed keep, on any runtime."""
    return run.columns()


def station(tree: Loopback, tier: str, number: int) -> Station:
    """One node of a tree whose nodes share nothing."""
    return tree.stations[tier][number]


def server(run: Seed) -> Station:
    """The top node of a tree whose nodes share nothing."""
    assert isinstance(run.runtime, Loopback)
    return run.runtime.server


def runtime_of(me: Nodes) -> Any:
    """What plays a program; a program itself may not look at it."""
    return me._runtime


def total_on_gpu(replies: Replies, parts: list[tuple[Tensor, Tensor]]) -> Tensor:
    """The sums per asker as a GPU computes them: after the last part, in the order of answers."""
    total = Total(replies, parts[0][0])
    total._sum = None
    for rows, asker in parts:
        total.add(rows, asker)
    return total.value()


def use_graphs(run: Seed, replay: type[Any]) -> None:
    """Capture programs with `replay`, which stands in for a CUDA graph."""
    assert isinstance(run.runtime, Simulator)
    run.runtime.graphs = Graphs(run.runtime, replay)


def use_round_graphs(run: Seed, replay: type[Any]) -> Rounds:
    """Capture whole rounds with `replay`, which stands in for a CUDA graph."""
    use_graphs(run, replay)
    assert isinstance(run.runtime, Simulator)
    run.runtime.rounds = Rounds(run.runtime, replay)
    return run.runtime.rounds


def graphs(run: Seed) -> Graphs:
    """The captured programs of a run."""
    assert isinstance(run.runtime, Simulator)
    assert run.runtime.graphs is not None
    return run.runtime.graphs


def variants(run: Seed) -> int:
    """How many captured programs a run has, counted by the size of their rows."""
    return len(graphs(run)._variants)


def runs(run: Seed) -> Runs:
    """The runs side by side to which a run belongs."""
    return run._runs


def change(run: Seed, experiment: Experiment) -> None:
    """Let a run that is alone go on with another experiment."""
    run._runs.experiments = (experiment,)
    run._runs.experiment = experiment


def end(runtime: BaseRuntime, me: Nodes, round: int) -> None:
    """End a program call: what these nodes kept and noted is recorded in this round."""
    runtime._play = runtime._new_play(round, "train")
    runtime._record(me.tier, me.ids, me.call, me.idle)


class Asks:
    """Who was asked in the last training round of a run, ask by ask."""

    def __init__(self, run: Seed) -> None:
        runtime = services(run)
        self._play: Play | None = None
        make = runtime._new_play

        def watched(round: int, lane: str) -> Play:
            play = make(round, lane)  # type: ignore[arg-type]
            if play.trains:
                self._play = play
            return play

        runtime._new_play = watched  # type: ignore[method-assign]

    def of(self, tier: str) -> list[list[int]]:
        """The ids of every ask of a tier, in order."""
        return [ids.tolist() for ids in self._play.facts.cohorts[tier]]
