"""Orders, such as to hold rows: they run no program, and go down the tree from node to node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import Tensor

from covey.deployed.node import node_rows
from covey.deployed.node.asks import ChildAsks
from covey.deployed.node.checked import OrderCheck
from covey.deployed.node.checked_orders import ENDING
from covey.deployed.node.epoch import Epoch
from covey.deployed.node.missed import Missing
from covey.deployed.node.node_rows import NodeRow, open_order, seal_order
from covey.deployed.transport.transport import Answer, AskKey, Patience, Seat, digest
from covey.kernel.store.store import ColumnKey
from covey.runtimes.alone.envelope import Pieces

ONCE = ("hold", "release")
"""Orders that depend on when they are followed: one that comes again is not followed again."""
_CHANGING = ("hold", "release", "thaw")
"""The orders that change what a node keeps."""
END_SECONDS = 60.0
"""How long an order at the end of a run waits at least, where there is a quorum."""


@dataclass(frozen=True)
class Order:
    """What all nodes do, down to a tier.

    `rows` are those of the whole subtree; each has a route in `arguments` where it must.
    """

    name: str
    arguments: Mapping[str, Any]
    rows: Sequence[NodeRow]
    round: int
    deepest: str


@dataclass(eq=False)
class ChildOrders:
    """Gives orders to the children of a node, and remembers who has not followed them."""

    asks: ChildAsks
    unreached: list[list[Any]] = field(default_factory=list)
    """(tier, number) of those below that did not follow the last order, or kept their rows."""

    def give(
        self, order: Order, epoch: Epoch, templates: Mapping[ColumnKey, Tensor]
    ) -> list[NodeRow]:
        """Let all children follow an order; the rows that come back."""
        name = order.name
        arguments = dict(order.arguments)
        header = {
            "name": name,
            "arguments": arguments,
            "round": order.round,
            "deepest": order.deepest,
        }
        common = Pieces(())
        if arguments.get("broadcast"):
            common = Pieces(node_rows.pieces(order.rows))  # once for all children
        own = {}
        for child in self.asks.seats:
            part, routes = self._part(child, order)
            changed = {**header, "epoch": asdict(epoch)}
            if routes is not None:
                changed["arguments"] = {**arguments, "routes": routes}
            own[child] = seal_order(changed, part)
        key = AskKey(
            epoch.run, order.round, "order", 0, name, digest(header), attempt=epoch.attempt
        )
        check = OrderCheck(name, arguments, self.asks.subtrees, templates)
        answers = self.asks.send(key, common, own, self._patience(order), check)
        missing = {}
        for seat, answer in answers.items():
            if answer.status == "answered":
                self.asks.orders.settle(seat)
            elif name in ONCE:
                missing[seat] = own[seat]
        self.asks.orders.add(key, arguments.get("label", ""), missing, epoch.before)
        return self._rows(name, answers)

    def _part(self, child: Seat, order: Order) -> tuple[list[NodeRow], list[list[int]] | None]:
        """The rows of a child's subtree, and their routes; None where rows have no routes."""
        routes = order.arguments.get("routes")
        if routes is None:
            return [], None
        place = self.asks.place
        level = place.tiers.index(place.tier) + 1
        part = []
        chosen = []
        for row, route in zip(order.rows, routes, strict=True):
            if len(route) > level and route[level] == child:
                part.append(row)
                chosen.append(route)
        return part, chosen

    def _patience(self, order: Order) -> Patience | None:
        """How long an order waits; None: for all children, however long it takes."""
        patience = self.asks.patience_for(len(self.asks.seats))
        if patience is None or order.name in ONCE:
            return patience
        if not order.arguments.get(ENDING):
            return None
        return Patience(max(patience.seconds, END_SECONDS), patience.quorum)

    def _rows(self, name: str, answers: Mapping[Seat, Answer]) -> list[NodeRow]:
        """The rows that came back from children who followed an order."""
        asks = self.asks
        out: list[NodeRow] = []
        failures = []
        numbers = {}
        for child in asks.seats:
            if answers[child].status != "answered":
                below = asks.place.below(asks.place.tier)
                self.unreached.append([below, child])  # it follows when it is back
                continue
            reply, rows = open_order(answers[child].read())
            if reply["error"] is not None:
                failures.append(asks.error(child, *reply["error"]))
                continue
            numbers[child] = reply["number"]
            if name == "write":
                # The answer to an order is not written down: what it corrects is still to be told.
                asks.missing += asks.missed.corrections(child, reply["ended"])
                asks.missing += [Missing(*values) for values in reply["missing"]]
            self.unreached += reply.get("unreached", [])
            out += rows
        if failures:
            raise failures[0]
        if name in _CHANGING:
            asks.heard |= numbers
            asks.disk.receive(numbers)
        return out
