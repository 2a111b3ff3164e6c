"""The examples of all devices, and the mini-batches that devices draw from their own."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from covey import draws
from covey.data import Shards
from covey.data.shards import NO_TARGET, SPLITS
from covey.engine.population import BLOCK, Population, block_size, most_labels
from covey.errors import ConfigError, DataError, ProgramError
from covey.types import Ids

Batches = Literal["uniform", "cyclic"]
_SMALL = 1 << 18
"""Bytes of examples that are gathered for many devices at once."""
_CACHE_LINE = 64
_REMEMBERED = 1 << 23
"""Positions of examples that are remembered from one scored round to the next."""


@dataclass(frozen=True, eq=False)
class Draw:
    """The address of the random numbers of n devices: of dropout and of augmentation."""

    address: draws.Address
    ids: Ids

    def at(self, *words: int) -> Draw:
        """The draw with more words in its address."""
        return replace(self, address=draws.further(self.address, *words))

    def take(self, rows: Tensor | slice) -> Draw:
        """The draw of some of the devices."""
        address = self.address
        if isinstance(address, Tensor):
            address = address[rows]
        return Draw(address, self.ids[rows])

    def bits(self, width: int) -> Tensor:
        """Random bits, int64 [n, width]."""
        return draws.bits(self.address, self.ids, width)


@dataclass(frozen=True, eq=False)
class Batch:
    """Which examples n devices take, [n, B], of all of `data` (x and y).

    `weight` [n, B] is 0 where a device had none left. `draw` decides what the training pass on this
    batch draws; None: the pass draws nothing. `ids` [n] are the devices.
    """

    data: tuple[Tensor, Tensor]
    examples: Tensor
    weight: Tensor | None = None
    draw: Draw | None = None
    ids: Ids | None = None

    @cached_property
    def x(self) -> Tensor:
        """[n, B, ...], gathered when first asked for."""
        return self.data[0][self.examples]

    @cached_property
    def y(self) -> Tensor:
        """[n, B, ...]."""
        return self.data[1][self.examples]

    @property
    def by_position(self) -> bool:
        """Whether every position of an example has a label of its own."""
        y = self.data[1]
        return y.ndim == 2 and not y.is_floating_point()

    @cached_property
    def target_weight(self) -> Tensor | None:
        """The weight of every target, [n, B], or of every position, [n, B * T].

        It is 0 at a position without a target. None where all weigh the same.
        """
        if not self.by_position:
            return self.weight
        there = self.y != NO_TARGET
        if self.weight is None:
            return there.flatten(1)
        return (there * self.weight.unsqueeze(2)).flatten(1)

    def drawing(self, draw: Draw, rows: Tensor | None = None) -> Batch:
        """The same examples with a draw, or with that of these rows."""
        if rows is not None:
            draw = draw.take(rows.to(draw.ids.device))
        return replace(self, draw=draw)

    def row(self, i: int) -> Batch:
        """The batch of one device, with n = 1."""
        if len(self.examples) == 1:
            return self
        return self._rows[i]

    @cached_property
    def _rows(self) -> list[Batch]:
        """The batches of the devices, which gather their examples once.

        Small examples are gathered for all devices together.
        """
        count = len(self.examples)
        draws_of_rows: Sequence[Draw | None] = [None] * count
        if self.draw is not None:
            draws_of_rows = [self.draw.take(slice(i, i + 1)) for i in range(count)]
        columns: list[Sequence[Any]] = [
            [None] * count if values is None else torch.split(values, 1)
            for values in (self.examples, self.weight, self.ids)
        ]
        rows = []
        for examples, weight, ids, draw in zip(*columns, draws_of_rows, strict=True):
            rows.append(Batch(self.data, examples, weight, draw, ids))
        if all(self._gathers_together(values) for values in self.data):
            for row, x, y in zip(rows, torch.split(self.x, 1), torch.split(self.y, 1), strict=True):
                vars(row).update(x=x, y=y)
        return rows

    def _gathers_together(self, values: Tensor) -> bool:
        """Whether the examples of all devices fit in a cache.

        Numbers of each device must begin at a cache line: else sums of them may have other bits.
        """
        count, size = self.examples.shape
        width = size * values[:1].nbytes
        if values.is_floating_point() and width % _CACHE_LINE:
            return False
        return count * width <= _SMALL


RememberedBlocks = tuple[Ids, list[tuple[Tensor | None, Batch]]]
"""The ids of some devices, and the blocks of one part of their examples."""


class Examples:
    """The examples of all devices, or of those in the shards, and who holds which.

    `population` tells what cannot be seen in the shards; None where they are whole.
    """

    def __init__(
        self,
        shards: Shards,
        device: torch.device,
        dtype: torch.dtype,
        population: Population | None = None,
    ) -> None:
        self.shards = shards
        self.population = population
        self.device = device
        self.dtype = dtype
        self.x = shards.x.to(device)
        if shards.tokens is None:
            self.x = self.x.to(dtype)
        y = shards.y
        if shards.target is not None:
            y = shards.target(y.double())
        self.y = y.to(device)
        if shards.classes is None:
            self.y = self.y.to(dtype)
        self._target_counts: dict[str, Tensor] = {}
        self.index: dict[str, Tensor] = {}
        self.offset: dict[str, Tensor] = {}
        self._offset_on_device: dict[str, Tensor] = {}
        for split in SPLITS:
            part = shards.part(split)
            self.index[split] = part.index.to(device)
            self.offset[split] = part.offset
            self._offset_on_device[split] = part.offset.to(device)
        self._totals: Mapping[str, Tensor] = self.offset
        """By differences, how many examples each device holds, seen here or not."""
        if population is not None and population.offset is not None:
            population.check(shards)
            self._totals = population.offset
        self._has_receivers = len(shards.receivers) > 0
        self.remembers = device.type != "cpu"
        """Whether blocks are remembered: what goes to a GPU waits for it."""
        self._last_blocks: dict[tuple[str, int], RememberedBlocks] = {}
        self._no_single: str | None = None
        """Why a batch of one example has no meaning; None where it has one."""

    def check_not_single(self, reason: str) -> None:
        """Refuse devices of one training example, and from here on batches of one, for a reason."""
        self._no_single = reason
        counts = self.offset["train"].diff()
        single = (counts == 1).nonzero().flatten().tolist()
        if single:
            raise DataError(
                f"device {single[0]} has one training example, but {reason}; leave out such "
                'devices, or use norm = "group".'
            )

    def check_size(self, size: int, *, epochs: float | None = None) -> None:
        """Refuse batches of one example where they have no meaning.

        So may be the last batch of a walk over so many `epochs`.
        """
        if self._no_single is None:
            return
        if size == 1:
            raise ConfigError(
                f'batch = 1, but {self._no_single}; take larger batches, or use norm = "group".'
            )
        if epochs is None:
            return
        counts = self.offset["train"].diff()
        lengths = torch.ceil(epochs * counts.double())
        single = (lengths % size == 1).nonzero().flatten().tolist()
        if single:
            raise ConfigError(
                f"device {single[0]} has {int(counts[single[0]])} training examples, so that the "
                f"last batch of {size} holds one, but {self._no_single}; take another batch, or "
                'use norm = "group".'
            )

    def check_norms(self) -> None:
        """Refuse devices without training examples, whose norm layers would have no statistics."""
        receivers = self.shards.receivers.tolist()
        if receivers:
            raise DataError(
                f"device {receivers[0]} has no training examples, but the model has BatchNorm "
                "layers, whose statistics are those of a device's training examples; leave out "
                'such devices, or use norm = "group".'
            )

    def _check_draw(self, ids: Ids, size: int, *, epochs: float | None = None) -> None:
        """Refuse batches that have no meaning, and those of a device without examples.

        These would be another device's. A GPU is not waited for.
        """
        if self._no_single is not None:
            self.check_size(size, epochs=epochs)
        if not self._has_receivers or ids.device.type != "cpu" or not len(ids):
            return
        empty = ids[self.counts("train", ids) == 0].tolist()
        if empty:
            raise ProgramError(f"device {empty[0]} has no training examples to draw a batch from.")

    @property
    def sample(self) -> tuple[Tensor, Tensor]:
        """Two examples at most, to try the model on; zeros where there are none."""
        if len(self.x):
            return self.x[:2], self.y[:2]
        x = self.x.new_zeros(2, *self.x.shape[1:])
        y = self.y.new_zeros(2, *self.y.shape[1:])
        return x, y

    def counts(self, split: str, ids: Ids) -> Tensor:
        """How many examples of a part each device holds, [n], where `ids` are."""
        if self.shards.partial:
            self.shards.check_present(ids.cpu())
        offset = self.offset[split]
        if ids.device.type != "cpu":
            offset = self._offset_on_device[split]
        return offset[ids + 1] - offset[ids]

    def few(self, split: str, ids: Ids, least: int) -> Tensor:
        """The counts of a part, [n], but 0 where they are `least` or more."""
        counts = self.counts(split, ids)
        return counts.where(counts < least, 0)

    def target_counts(self, split: str, ids: Ids) -> Tensor:
        """How many targets the examples of a part have, [n], where `ids` are.

        They are as many as the examples, or as the positions with a label.
        """
        counts = self.counts(split, ids)
        if not self.shards.by_position:
            return counts
        if split not in self._target_counts:
            self._target_counts[split] = self.shards.target_counts(split)
        return self._target_counts[split][ids.cpu()].to(ids.device)

    def total(self, split: str, first: Ids, stop: Ids) -> Tensor:
        """How many examples of a part the devices first, ..., stop - 1 hold together, [n]."""
        totals = self._totals[split]
        return totals[stop] - totals[first]

    def draw(
        self,
        address: draws.Address,
        ids: Ids,
        size: int,
        steps: range = range(1),
        *,
        local: Ids | None = None,
    ) -> list[Batch]:
        """For each step, `size` training examples of each device's own: uniform with replacement.

        Step s has the slots from s * size on, so that many steps are drawn at the price of one and
        none depends on the others. The draw goes by the ids `local`, where they are not `ids`.
        """
        self._check_draw(ids, size)
        ids = ids.to(self.device)
        if local is None:
            local = ids
        width = size * len(steps)
        first = size * steps.start
        below = self.counts("train", ids)
        chosen = draws.integers(address, local, width, below=below, start=first)
        whole = self.take("train", ids, chosen, None)
        by_step = torch.split(whole.examples, size, dim=1)
        return [Batch(whole.data, examples, ids=ids) for examples in by_step]

    def shuffled(
        self,
        address: draws.Address,
        ids: Ids,
        size: int,
        steps: range,
        *,
        epochs: float,
        local: Ids,
    ) -> list[Batch]:
        """For each step, the next `size` training examples of a walk over each device's own.

        The walk passes through all examples in a random order, then through all in another one. It
        ends after `epochs` passes, so that the last batch may be short. A batch beyond the end
        holds one example.
        """
        self._check_draw(ids, size)
        ids = ids.to(self.device)
        counts = self.counts("train", ids)[:, None]
        places = torch.arange(size * steps.start, size * steps.stop, device=self.device)
        inside = places < torch.ceil(epochs * counts.double())
        inside[:, ::size] = True
        passes = places // counts.clamp(min=1)
        chosen = torch.zeros_like(passes)
        slots = places % counts.clamp(min=1)
        first, last = (int(passes.min()), int(passes.max())) if passes.numel() else (0, -1)
        for number in range(first, min(last + 1, math.ceil(epochs))):
            order = _order(draws.further(address, number), local, counts)
            chosen = torch.where(passes == number, order.gather(1, slots), chosen)
        whole = self.take("train", ids, chosen, inside.to(self.dtype))
        assert whole.weight is not None
        by_step = torch.split(whole.examples, size, dim=1)
        weights = torch.split(whole.weight, size, dim=1)
        pairs = zip(by_step, weights, strict=True)
        return [Batch(whole.data, examples, weight, ids=ids) for examples, weight in pairs]

    def cyclic(self, ids: Ids, size: int, turn: Tensor) -> Batch:
        """Batch number `turn` [n] of an endless walk over each device's examples in order.

        The last batch of a lap is short.
        """
        self._check_draw(ids, size, epochs=1)
        counts = self.counts("train", ids)
        batches_per_lap = (counts + size - 1) // size
        first = (turn % batches_per_lap) * size
        slots = first[:, None] + torch.arange(size)
        return self._padded("train", ids, slots, counts)

    def spread(self, ids: Ids, size: int) -> Batch:
        """Up to `size` training examples of each device: all, or else evenly spaced ones."""
        if self.block("train") != BLOCK:
            size = min(size, self.block("train"))  # no device has more
        counts = self.counts("train", ids.to(self.device))
        counts = counts[:, None]
        slots = torch.arange(size, device=self.device)
        inside = slots < counts
        spaced = slots * counts // size
        all_slots = torch.where(inside, slots, 0)
        chosen = torch.where(counts > size, spaced, all_slots)
        weight = inside.to(self.dtype)
        return self.take("train", ids, chosen, weight)

    def block(self, split: str) -> int:
        """How many examples of a part go through the model at once."""
        if self.population is not None:
            return self.population.blocks[split]
        return block_size(self.shards.part(split))

    def blocks(
        self, split: str, ids: Ids, size: int | None = None
    ) -> Iterator[tuple[Tensor | None, Batch]]:
        """All examples of a part in blocks of one fixed size.

        Gives (which rows have any left, None for all; the block). The size does not depend on who
        is in `ids`, so neither do the bits of a row; another `size` may be given.
        """
        if size is None:
            size = self.block(split)
        if not self.remembers:
            yield from self._cut_blocks(split, ids, size)
            return
        key = (split, size)
        last = self._last_blocks.get(key)
        if last is None or not torch.equal(last[0], ids):
            self._last_blocks.pop(key, None)
            blocks = list(self._cut_blocks(split, ids, size))
            last = (ids.clone(), blocks)
            if sum(batch.examples.numel() for _, batch in blocks) <= _REMEMBERED:
                self._last_blocks[key] = last
        for rows, batch in last[1]:
            yield rows, replace(batch)  # without the examples that it gathers

    def _cut_blocks(
        self,
        split: str,
        ids: Ids,
        size: int,
    ) -> Iterator[tuple[Tensor | None, Batch]]:
        counts = self.counts(split, ids)
        longest = 1
        if len(counts):
            longest = max(1, int(counts.max()))
        for start in range(0, longest, size):
            rows = (counts > start).nonzero()[:, 0]
            slots = torch.arange(start, start + size)
            batch = self._padded(split, ids[rows], slots, counts[rows])
            yield (None if len(rows) == len(ids) else rows), batch

    @cached_property
    def longest(self) -> dict[str, int]:
        """The max number of examples of a device, by part."""
        out = {}
        for split, offset in self.offset.items():
            counts = offset.diff()
            out[split] = int(counts.max()) if len(counts) else 0
        return out

    def _padded(self, split: str, ids: Ids, slots: Tensor, counts: Tensor) -> Batch:
        """The examples in these slots, of weight 0 where a slot is beyond a device's count."""
        inside = slots < counts[:, None]
        slots = torch.where(inside, slots, 0)
        weight = inside.to(self.device, self.dtype)
        return self.take(split, ids, slots.to(self.device), weight)

    def take(self, split: str, ids: Ids, slots: Tensor, weight: Tensor | None) -> Batch:
        """The examples in these slots [n, B] of each device's part."""
        ids = ids.to(self.device)
        index = self.index[split]
        positions = self._offset_on_device[split][ids][:, None] + slots
        chosen = positions.clamp(max=max(len(index) - 1, 0))
        if len(index):
            chosen = index[chosen]
        return Batch((self.x, self.y), chosen, weight, ids=ids)

    def labels(self, ids: Ids) -> Tensor:
        """Which classes each device has training examples of, bool [n, classes]."""
        if self.shards.classes is None:
            raise ConfigError(
                "these targets are numbers, but the algorithm needs classes; give integer labels."
            )
        if self.shards.by_position:
            raise ConfigError(
                "these labels are per position, but the algorithm needs one per example; choose "
                "another algorithm."
            )
        if self.shards.partial:
            self.shards.check_present(ids.cpu())
        return self._labels[ids.to(self.device)]

    @cached_property
    def most_labels(self) -> int:
        """The most classes that one device has."""
        if self.population is not None:
            return self.population.most_labels
        return most_labels(self.shards)

    @cached_property
    def _labels(self) -> Tensor:
        return torch.from_numpy(self.shards.labels() > 0).to(self.device)


def _order(address: draws.Address, ids: Ids, counts: Tensor) -> Tensor:
    """A random order of 0, ..., counts - 1 for each id, [n, the largest count]."""
    longest = 1
    if len(counts):
        longest = max(1, int(counts.max()))
    words = draws.bits(address, ids, longest)
    slots = torch.arange(longest, device=counts.device)
    beyond = slots >= counts
    by_word = words.argsort(dim=1, stable=True)
    return by_word.gather(1, beyond.gather(1, by_word).byte().argsort(dim=1, stable=True))
