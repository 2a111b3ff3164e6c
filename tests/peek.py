"""What tests look at inside a runtime, in one place."""

from __future__ import annotations

from covey.kernel.nodes import Nodes
from covey.runs.seed import Seed
from covey.runtimes.base import BaseRuntime, Play


def end(runtime: BaseRuntime, me: Nodes, round: int) -> None:
    """End a program call: what these nodes kept and noted is recorded in this round."""
    runtime._play = runtime._new_play(round, "train")
    runtime._record(me.tier, me.ids, me.call, me.idle)


class Asks:
    """Who was asked in the last training round of a run, ask by ask."""

    def __init__(self, run: Seed) -> None:
        runtime = run.runtime
        assert isinstance(runtime, BaseRuntime)
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
        assert self._play is not None
        return [ids.tolist() for ids in self._play.facts.cohorts[tier]]
