"""A link between two tiers: what it does to rows that cross it, and what that costs in bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from covey import native
from covey.codecs import CODECS, Codec
from covey.codecs.blocks import check_dtype, count, patterns
from covey.kernel.replies import Exact, Masked, Message
from covey.links.meter import Key, Meter, Traffic
from covey.links.spec import Wire, difference, largest
from covey.types import Rows


@dataclass(frozen=True, eq=False)
class Route:
    """Where a message goes: the link's name, direction and lane, and for each row its number of receivers and its tree.

    `heard` is told how long the message of every row is, in bytes; it waits for a GPU.
    """

    key: Key
    copies: Tensor
    tree: Tensor
    heard: Callable[[Tensor], None] | None = None


@dataclass(frozen=True, eq=False)
class _Entry:
    """One message per row: how many values were sent of how many, and how long that is, where the values decide it."""

    route: Route
    codec: Codec
    width: int
    size: int
    masked: bool
    exact: bool
    sent: Tensor
    lengths: Tensor | None = None

    @property
    def kind(self) -> tuple[object, ...]:
        """What messages that are counted together have in common."""
        return (self.route.key, id(self.codec), self.width, self.size, self.masked, self.exact, self.lengths is None)


class Ledger:
    """What has crossed links and is not yet in the meters, one for each tree of a run.

    The counts stay on the device that made them until `settle` reads all at once: a GPU that is asked after every message waits.
    """

    def __init__(self, meters: Sequence[Meter]) -> None:
        self._meters = meters
        self._entries: list[_Entry] = []

    def add(self, entry: _Entry) -> None:
        """Messages that have crossed."""
        self._entries.append(entry)
        if entry.route.heard is not None:
            facts = entry.width, entry.size, entry.masked
            lengths = _lengths(entry.codec, entry.sent, *facts) if entry.lengths is None else entry.lengths
            entry.route.heard(lengths.cpu())

    def clear(self) -> None:
        """Forget what is not settled."""
        self._entries.clear()

    def settle(self) -> None:
        """Everything into the meters, messages of one kind together."""
        sent = _read([entry.sent for entry in self._entries])
        lengths = iter(_read([entry.lengths for entry in self._entries if entry.lengths is not None]))
        groups: dict[tuple[object, ...], list[tuple[_Entry, Tensor, Tensor | None]]] = {}
        for entry, counts in zip(self._entries, sent, strict=True):
            known = None if entry.lengths is None else next(lengths)
            groups.setdefault(entry.kind, []).append((entry, counts, known))
        for group in groups.values():
            self._count(group)
        self.clear()

    def _count(self, group: list[tuple[_Entry, Tensor, Tensor | None]]) -> None:
        entry = group[0][0]
        copies, tree = (torch.cat([getattr(e.route, name) for e, _, _ in group]) for name in ("copies", "tree"))
        sent = torch.cat([counts for _, counts, _ in group])
        known = [lengths for _, _, lengths in group if lengths is not None]
        facts = entry.width, entry.size, entry.masked
        lengths = torch.cat(known) if known else _lengths(entry.codec, sent, *facts)
        numbers = torch.stack([lengths, _lengths(CODECS["dense"], sent, *facts), sent, torch.ones_like(sent)]) * copies
        totals = torch.zeros(len(self._meters), 4, dtype=torch.int64).index_add_(0, tree, numbers.t())
        for meter, (length, dense, nonzeros, messages) in zip(self._meters, totals.tolist(), strict=True):
            if messages:
                values = 0 if entry.exact else entry.width * messages
                meter.count(*entry.route.key, Traffic(length, messages, values, nonzeros, dense))


def _read(counts: list[Tensor]) -> Sequence[Tensor]:
    """Numbers of many messages in main memory, with one wait for the device."""
    if not counts:
        return ()
    there = next((some.device for some in counts if some.device.type != "cpu"), counts[0].device)
    together = torch.cat([some.to(there, non_blocking=True) for some in counts])
    return torch.split(together.cpu(), [len(some) for some in counts])


def _lengths(codec: Codec, sent: Tensor, width: int, size: int, masked: bool) -> Tensor:
    lengths = codec.lengths(sent, width=width, size=size, masked=masked)
    assert lengths is not None
    return lengths


_NOTHING = torch.zeros(0, dtype=torch.int64)


@dataclass(frozen=True, eq=False)
class Memory:
    """What the senders of some rows lost in earlier messages of this kind, and where they remember it."""

    recall: Callable[[Rows], Rows]  # what is left over, given zeros where nothing is
    keep: Callable[[Rows], None]


@dataclass(frozen=True)
class Link:
    """One direction of a link: what it does to model rows, and the ledger that counts what is really encoded."""

    wire: Wire
    ledger: Ledger

    def send(
        self,
        message: Message,
        route: Route,
        *,
        cut: float | None,
        reference: Rows | None = None,
        keys: Callable[[], Tensor] | None = None,
        memory: Memory | None = None,
    ) -> Message:
        """What the receivers get. `reference` is what came down to those who send now, `keys` the addresses of their draws."""
        if message is None:
            return None
        if isinstance(message, Exact):
            rows = message.rows
            nothing = torch.zeros(len(rows), dtype=torch.int64, device=rows.device)
            self.ledger.add(_Entry(route, CODECS["dense"], rows.shape[1], rows.element_size(), False, True, nothing))
            return message
        rows, mask = (message.rows, message.mask) if isinstance(message, Masked) else (message, None)
        check_dtype(rows)
        cut_rows, sent = native.cut_count(rows, cut)
        rows, given = self._encoded(cut_rows, mask, reference, keys, memory)
        codec = self.wire.codec
        if mask is not None:
            rows, sent = rows.masked_fill(~mask, 0), count(mask.expand(rows.shape))
        elif rows is not cut_rows:
            sent = count(patterns(rows))
        width, size, masked = rows.shape[1], rows.element_size(), mask is not None
        known = codec.lengths(_NOTHING, width=width, size=size, masked=masked) is not None
        lengths = None if known else codec.nbytes(rows, mask)
        self.ledger.add(_Entry(route, codec, width, size, masked, False, sent, lengths))
        if given is not None:
            rows = rows + (given if mask is None else given.masked_fill(~mask, 0))
        return rows if mask is None else Masked(rows, mask)

    def _encoded(
        self,
        rows: Rows,
        mask: Tensor | None,
        reference: Rows | None,
        keys: Callable[[], Tensor] | None,
        memory: Memory | None,
    ) -> tuple[Rows, Rows | None]:
        """What comes out of the codec at the other end, and what the receiver adds to it."""
        wire = self.wire
        given: Rows | None = None
        if wire.update:
            rows, given = difference(rows, reference)
        if memory is not None:
            rows = rows + memory.recall(torch.zeros_like(rows))
        chosen = rows if wire.keep is None else largest(rows if mask is None else rows.masked_fill(~mask, 0), wire.keep)
        out = wire.codec.roundtrip(chosen, mask, keys() if keys is not None and wire.codec.draws else None)
        if memory is not None:
            lost = rows - out
            memory.keep(lost if mask is None else torch.where(mask, lost, memory.recall(torch.zeros_like(rows))))
        return out, given
