"""Who holds the same examples as whom, and whose test examples somebody else has trained on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from covey.data.partition import Numbers
from covey.data.shards import SPLITS, Shards


@dataclass(frozen=True)
class Overlaps:
    """What devices have in common. Examples are the same if their numbers are: equal copies are not looked for."""

    held: int  # examples that somebody holds, each counted once
    shared: int  # of these, those that several devices hold
    tested: int  # examples that somebody is tested on
    leaks: int  # of these, those that another device has for training or validation
    pairs: int  # (tested device, other device) between which there is such an example


def overlaps(shards: Shards) -> Overlaps:
    """How many examples several devices hold, and how many test examples leak into another device's training.

    >>> import torch
    >>> from covey.data import Part
    >>> parts = Part.of([[0, 1], [1, 2]]), Part.of([[], []]), Part.of([[3], [0, 3]])
    >>> overlaps(Shards(torch.zeros(4, 1), torch.zeros(4), *parts))
    Overlaps(held=4, shared=3, tested=2, leaks=1, pairs=1)
    """
    held, test, used = _entries(shards, SPLITS), _entries(shards, ("test",)), _entries(shards, ("train", "validation"))
    n, devices = len(shards.x), shards.devices
    owners, testers, users = (np.bincount(entries // devices, minlength=n) for entries in (held, test, used))
    both = np.bincount(np.intersect1d(test, used, assume_unique=True) // devices, minlength=n)
    leaks = testers * users > both  # some tester and some user of the example are two devices
    return Overlaps(
        held=int(np.count_nonzero(owners)),
        shared=int(np.count_nonzero(owners > 1)),
        tested=int(np.count_nonzero(testers)),
        leaks=int(np.count_nonzero(leaks)),
        pairs=_pairs(test[leaks[test // devices]], used, users, devices),
    )


def _entries(shards: Shards, splits: tuple[str, ...]) -> Numbers:
    """Who holds what in these parts, each once and sorted, as example * devices + device."""
    parts = [shards.part(split) for split in splits]
    device = [np.repeat(np.arange(part.devices), part.counts().numpy()) for part in parts]
    example = [part.index.numpy() for part in parts]
    return np.unique(np.concatenate(example) * shards.devices + np.concatenate(device))


def _pairs(test: Numbers, used: Numbers, users: Numbers, devices: int) -> int:
    """How many pairs of a tested device and another that uses one of its examples, given who uses what, sorted."""
    first, who = users.cumsum() - users, used % devices
    example, tested = test // devices, test % devices
    example = example[np.argsort(tested, kind="stable")]
    ends, start, pairs = np.bincount(tested, minlength=devices).cumsum(), 0, 0
    # Device by device: all pairs at once could be many times as many as the entries.
    for device in np.unique(tested):
        mine = example[start : ends[device]]
        start = ends[device]
        meets = np.zeros(devices, dtype=bool)
        meets[who[_ranges(first[mine], users[mine])]] = True
        meets[device] = False
        pairs += int(np.count_nonzero(meets))
    return pairs


def _ranges(first: Numbers, counts: Numbers) -> Numbers:
    """first[i], first[i] + 1, ..., counts[i] of them, for each i, one after the other."""
    start = counts.cumsum() - counts
    return np.repeat(first - start, counts) + np.arange(int(counts.sum()))
