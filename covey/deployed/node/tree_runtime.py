"""The server's runtime of a deployed tree: a run uses it as it uses the simulator.

Rows stay where they are kept. A commit costs no message: every later request says which rounds are
good, so that a node which was away finds out when it is asked again.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from covey.data.shards import some
from covey.deployed.faults import fault
from covey.deployed.node.asks import Order
from covey.deployed.node.checked_orders import ENDING
from covey.deployed.node.disk import CHILDREN
from covey.deployed.node.epoch import Epoch
from covey.deployed.node.missed import Missing
from covey.deployed.node.node import Node
from covey.deployed.node.node_rows import NodeRow
from covey.deployed.node.own_models import ChosenModel, as_arguments
from covey.deployed.operate.certificates import read_again
from covey.errors import TransportError
from covey.kernel.algorithm import Program
from covey.kernel.store.store import PRESENT, ColumnKey, Entry, Frozen, KeptRows, Store
from covey.runs.scores.scoring import Scorer
from covey.runtimes.contract import Lane, Runtime
from covey.runtimes.facts import Played
from covey.tree import Tree
from covey.types import Rows

Capture = Callable[[], tuple[bytes, list[tuple[int, str]]]]
"""Where the run stands, and the (round, record) that were not written yet."""


ROWS = 2**28
"""Bytes of the rows of many nodes that come in one message; more come in several."""
_CHOICE = "choice"
"""The fact that tells (round, attempt, whether there was a quorum) of the last held rows."""
VERSIONS = 4
"""How many versions of a row a node is taken to hold."""


class TreeRuntime(Runtime):
    """A tree of deployed nodes, of which this process has the server."""

    def __init__(self, tree: Tree, server: Node) -> None:
        self.tree: Tree = tree
        self.server = server
        self.task = server.task
        self.start = server.start
        self.capture: Capture | None = None
        """Says where the run stands; the server's disk keeps it with every good round."""
        self._played: int | None = None
        self._missing: list[Missing] = []
        self._ending = False
        self._unreached: set[tuple[str, int]] = set()
        disk = server.database
        run = disk.fact("run") or uuid.uuid4().hex
        rollbacks = disk.fact("rollbacks") or []
        self._set_epoch(Epoch(run, disk.fact("before") or 0, tuple(rollbacks)))
        disk.note(run=run)
        choice = disk.fact(_CHOICE)
        if choice is not None:
            # A kill may have left nodes with held rows that a repeated round does not choose. With
            # a quorum other nodes may answer then, so that its models and scores differ. Without
            # one all answer as before, and the orders to hold rows are the same.
            round, attempt, quorum = choice
            good = round < self.epoch.before or attempt != self.epoch.attempt
            if not good and (quorum or server.asks.patience is not None):
                self.rollback()

    def _note_choice(self) -> None:
        """Let the disk know, before nodes do, that rows are held in the round under way."""
        if self._played is None:
            return
        quorum = self.server.asks.patience is not None
        choice = [self._played, self.epoch.attempt, quorum]
        disk = self.server.database
        if disk.fact(_CHOICE) != choice:
            disk.note(**{_CHOICE: choice})

    def _set_epoch(self, epoch: Epoch) -> None:
        """Say from now on that the server stands here, signed where there are certificates."""
        identity = self.server.standing.identity
        if identity is not None:
            epoch = read_again(partial(epoch.signed, identity))
        self.server.standing.epoch = epoch

    @property
    def epoch(self) -> Epoch:
        """Which rounds are good."""
        return self.server.epoch

    def play(
        self,
        program: Program,
        rows: Rows,
        *,
        round: int,
        lane: Lane = "train",
    ) -> Played:
        """Run a program at the server; with no rows, every program below runs on none."""
        if len(rows):
            self._played = round
            if round > self.epoch.before:  # of a checkpoint: what nodes got with it is good
                self._set_epoch(replace(self.epoch, before=round))
                self.server.database.note(before=round)
        self.server.asks.missing.clear()
        played = self.server.play(program, rows, round=round, lane=lane)
        if lane == "score" and len(rows):
            self._check_reports(program, played, round)
        self._missing += self.server.asks.missing
        # In the order of the simulator: down from the top, then up to it.
        links = self.tree.links
        ways = [(link, "down") for link in links] + [(link, "up") for link in reversed(links)]
        traffic = [
            dict(sorted(by_link.items(), key=lambda item: ways.index(item[0][:2])))
            for by_link in played.traffic
        ]
        return replace(played, traffic=traffic)

    def _check_reports(self, program: Program, played: Played, round: int) -> None:
        """Refuse scores without those of a single device, if some must have told theirs.

        With a quorum all devices that were drawn may be away. Then the round has no scores.
        """
        asks = self.server.asks
        leaf = self.tree.tiers[-1]
        expected = {name for tier, name in self.server.rehearsed.widths if tier == leaf}
        if not expected or not expected.isdisjoint(played.reports[0]):
            return
        scorer: Any = getattr(program, "__self__", None)
        devices = list(range(self.tree.devices))
        if isinstance(scorer, Scorer):
            devices = scorer.scored_devices(self.tree, self.server.seeds, round).tolist()
        # Who was missing in the scores; what corrects earlier trainings is left out.
        missing = {(one.tier, one.number) for one in asks.missing if one.lane == "score"}
        routes = [zip(self.tree.tiers, self._route(leaf, one), strict=True) for one in devices]
        if not any(missing.isdisjoint(route) for route in routes):
            return
        below = self.tree.tiers[1]
        children = self.server.database.fact(CHILDREN) or {}
        names = {seat: name for name, seat in children.items()}
        answered = [seat for seat in asks.seats if (below, seat) not in missing]
        fix = "look at their logs, and put out a broken or hostile one: covey ctl evict NAME"
        raise TransportError(
            f"round {round + 1}: nobody has told the scores of any device, though these have "
            f"answered: {some([names.get(seat, f'{below}{seat}') for seat in answered])}; {fix}."
        )

    def commit(self) -> None:
        """What all nodes keep and hold is good."""
        played = self._played is not None
        if self._played is not None:
            before = max(self.epoch.before, self._played + 1)
            self._set_epoch(replace(self.epoch, before=before))
        self._played = None
        state = None
        records: list[tuple[int, str]] = []
        if self.capture is not None:
            state, records = self.capture()
        self.server.end_round(state, records, self._missing, played=played)
        self._missing.clear()
        fault("round-ended")

    def rollback(self) -> None:
        """All nodes go back to the last commit; those below do it when they are asked next."""
        rollbacks = (*self.epoch.rollbacks, self.epoch.before)
        self._set_epoch(replace(self.epoch, rollbacks=rollbacks))
        self._played = None
        self._missing.clear()
        self.server.database.rollback(rollbacks=list(rollbacks))
        self.server.forget()

    def kept(self) -> dict[ColumnKey, Tensor]:
        """Empty rows of the shape and type of everything that nodes keep, by (tier, name)."""
        return self.server.kept()

    def read(
        self,
        tier: str,
        name: str,
        label: str,
        copy: int,
    ) -> KeptRows:
        """(ids, rounds, rows) that the nodes of a tier keep, now or in a held version."""
        template = self.kept()[tier, name]
        arguments = {"name": name, "label": label}
        rows = []
        for part in self._parts(tier, _row_bytes(template)):
            rows += self._order("read", {**arguments, **part}, deepest=tier)
        ordered = sorted((kept for kept in rows if kept.tier == tier), key=lambda kept: kept.number)
        places = [(kept.number, kept.round) for kept in ordered]
        ids, rounds = torch.tensor(places, dtype=torch.int64).reshape(-1, 2).T.contiguous()
        values = [kept.row[None] for kept in ordered if kept.row is not None]
        return ids, rounds, torch.cat([template, *values])

    def hold(self, label: str, copy: int, columns: Sequence[ColumnKey]) -> None:
        """Hold the rows that nodes keep now in these (tier, name).

        They replace the rows that were held under this label.
        """
        if columns:
            self._note_choice()
            self._order("hold", {"label": label, "columns": [list(key) for key in columns]})

    def release(self, label: str, copy: int) -> None:
        """Hold nothing under this label any more."""
        self._note_choice()
        self._order("release", {"label": label})

    def freeze(self, copy: int) -> Iterator[Frozen]:
        """Everything that nodes keep and hold, in the form of the simulator's checkpoints."""
        templates = self.kept()
        together: list[NodeRow] | None = None
        # Bytes of all versions of all rows of all nodes, about.
        sizes = [self.tree.size(tier) * _row_bytes(rows) for (tier, _), rows in templates.items()]
        if VERSIONS * sum(sizes) <= ROWS:
            together = self._order("freeze", {})
        for tier, name in sorted(templates):
            versions = together or []
            if together is None:
                for part in self._parts(tier, VERSIONS * _row_bytes(templates[tier, name])):
                    versions += self._order("freeze", {"name": name, **part}, deepest=tier)
            of_name = [kept for kept in versions if (kept.tier, kept.name) == (tier, name)]
            yield _frozen(tier, name, of_name, templates[tier, name])

    def _parts(self, tier: str, size: int) -> list[dict[str, Any]]:
        """What lets an order bring the rows of a tier in messages that are not too long.

        `size` is that of the rows of one node. No argument at all where one message holds all.
        """
        nodes = self.tree.size(tier)
        if nodes * size <= ROWS:
            return [{}]
        step = max(1, ROWS // size)
        firsts = range(0, nodes, step)
        return [{"part": [tier, first, min(first + step, nodes)]} for first in firsts]

    def thaw(self, frozen: Frozen, copy: int) -> None:
        """Hand every node its own rows of one entry of `freeze`, of any runtime."""
        sizes = dict(zip(self.tree.tiers, self.tree.sizes, strict=True))
        check = Store(sizes)
        check.thaw(frozen, self.nodes(frozen.tier, copy))
        rows = []
        routes = []
        for label, entry in frozen.entries.items():
            columns = (entry.ids, entry.rounds, entry.places)
            for number, round, place in torch.stack(columns, 1).tolist():
                row = frozen.rows[place]
                rows.append(NodeRow(frozen.tier, number, frozen.name, label, round, row))
                routes.append(self._route(frozen.tier, number))
        self.server.learn(frozen.tier, frozen.name, frozen.rows[:0])
        step = max(1, ROWS // max(1, _row_bytes(frozen.rows)))
        for first in range(0, max(1, len(rows)), step):
            some_rows = rows[first : first + step]
            arguments = {"routes": routes[first : first + step]}
            self._order("thaw", arguments, some_rows, deepest=frozen.tier)

    def write_models(self, models: Sequence[ChosenModel], rows: Sequence[NodeRow]) -> None:
        """Let every node write the models that it uses into its own folder.

        `rows` are the global rows of the models' chosen rounds. Nodes that were late in the last
        round tell by then what they did in it.
        """
        self.server.asks.missing.clear()
        self._order("write", as_arguments(models), rows)
        self._missing += self.server.asks.missing

    def report(self) -> dict[str, Any]:
        """How this runtime runs programs."""
        return {
            "runtime": "deployed",
            "nodes": sum(self.tree.sizes),
            "seeds": 1,
            "durability": self.server.database.durability,
        }

    def _order(
        self,
        name: str,
        arguments: dict[str, Any],
        rows: Sequence[NodeRow] = (),
        deepest: str | None = None,
    ) -> list[NodeRow]:
        """Let the whole tree do something."""
        round = self.epoch.before - 1 if self._played is None else self._played
        if self._ending:
            arguments = {**arguments, ENDING: True}
        unreached = self.server.asks.unreached
        unreached.clear()
        order = Order(name, arguments, rows, round, deepest or self.tree.tiers[-1])
        rows_back = self.server.order(order)
        if self._ending:
            self._unreached |= {(tier, number) for tier, number in unreached}
        return rows_back

    @contextmanager
    def ending(self) -> Iterator[None]:
        """While a run ends, do not wait for ever for nodes that are away, if there is a quorum.

        `lacks` tells then whose rows did not come.
        """
        self._unreached.clear()
        self._ending = True
        try:
            yield
        finally:
            self._ending = False

    @property
    def lacks(self) -> str | None:
        """Whose rows did not come when the run ended, in words; None: all came."""
        if not self._unreached:
            return None
        by_tier = groupby(sorted(self._unreached), lambda node: node[0])
        nodes = [f"{tier} {some([number for _, number in of])}" for tier, of in by_tier]
        return f"the rows of {' and '.join(nodes)}"

    def _route(self, tier: str, number: int) -> list[int]:
        """The nodes from the server to a node: one number for each tier."""
        route = [number]
        for above in reversed(self.tree.tiers[: self.tree.index(tier)]):
            firsts = self.tree.first(above, torch.arange(self.tree.size(above)))
            route.insert(0, int(torch.searchsorted(firsts, route[0], right=True)) - 1)
        return route


def _row_bytes(template: Tensor) -> int:
    """The bytes of one row of this shape and type."""
    return template.itemsize * math.prod(template.shape[1:])


def _frozen(
    tier: str,
    name: str,
    rows: Sequence[NodeRow],
    template: Tensor,
) -> Frozen:
    """All versions of a name, in id order; versions of a node that are equal share a row."""
    ordered = sorted(rows, key=lambda kept: (kept.number, kept.label != PRESENT, kept.label))
    labels = [PRESENT, *sorted({kept.label for kept in rows} - {PRESENT})]
    lists: dict[str, list[tuple[int, int, int]]] = {label: [] for label in labels}
    values: list[Tensor] = []
    for number, versions in groupby(ordered, lambda kept: kept.number):
        first = len(values)
        for kept in versions:
            assert kept.row is not None
            place = first
            while place < len(values) and not torch.equal(values[place], kept.row):
                place += 1
            if place == len(values):
                values.append(kept.row)
            lists[kept.label].append((number, kept.round, place))
    entries = {}
    for label, listed in lists.items():
        columns = torch.tensor(listed, dtype=torch.int64).reshape(-1, 3).T.contiguous()
        entries[label] = Entry(*columns)
    stacked = torch.cat([template, *(row[None] for row in values)])
    return Frozen(tier, name, stacked, entries)
