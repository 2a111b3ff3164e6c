"""Parts of what a checkpoint holds of a column, where its nodes lie in several stores."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from covey.kernel.store import Entry, Frozen


def joined(entries: Sequence[Entry]) -> Entry:
    """The entries of several stores as one, in this order."""
    nothing = torch.zeros(0, dtype=torch.int64)
    everything = [Entry(nothing, nothing, nothing), *entries]
    return Entry(
        ids=torch.cat([entry.ids for entry in everything]),
        rounds=torch.cat([entry.rounds for entry in everything]),
        places=torch.cat([entry.places for entry in everything]),
    )


def part_of(frozen: Frozen, nodes: slice) -> Frozen:
    """The rows and entries of some nodes of a column; their ids stay."""
    parts = {}
    for label, entry in frozen.entries.items():
        own = (entry.ids >= nodes.start) & (entry.ids < nodes.stop)
        parts[label] = Entry(
            ids=entry.ids[own],
            rounds=entry.rounds[own],
            places=entry.places[own],
        )
    every_place = torch.cat([part.places for part in parts.values()])
    places = torch.unique(every_place)
    entries = {}
    for label, part in parts.items():
        new_places = torch.searchsorted(places, part.places)
        entries[label] = Entry(part.ids, part.rounds, new_places)
    rows = frozen.rows[places.to(frozen.rows.device)]
    return Frozen(frozen.tier, frozen.name, rows, entries)
