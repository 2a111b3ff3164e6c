"""Which examples several devices hold, and which test or validation examples another trains on."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from covey.data.partitions.partition import Numbers
from covey.data.shards import SPLITS, Shards


@dataclass(frozen=True)
class Overlaps:
    """What devices have in common.

    Examples are the same if their numbers are; `copies` finds those of equal features.
    """

    held: int  # examples that somebody holds, each counted once
    shared: int  # of these, those that several devices hold
    tested: int  # examples that somebody is tested on
    leaks: int  # of these, those that another device has for training or validation
    pairs: int  # (tested device, other device) between which there is such an example
    validated: int  # examples that somebody validates on
    validation_leaks: int  # of these, those that another device trains on
    validation_pairs: int  # (validated device, training device) with such an example
    reused: int  # examples that one and the same device has in two of its parts


def overlaps(shards: Shards) -> Overlaps:
    """How many examples several devices hold, and how many leak into another device's training.

    >>> import torch
    >>> from covey.data import Part
    >>> parts = Part.of([[0, 1], [1, 2]]), Part.of([[4], [1]]), Part.of([[3], [0, 3]])
    >>> found = overlaps(Shards(torch.zeros(5, 1), torch.zeros(5), *parts))
    >>> found.held, found.shared
    (5, 3)
    >>> found.tested, found.leaks, found.pairs
    (2, 1, 1)
    >>> found.validated, found.validation_leaks, found.validation_pairs, found.reused
    (2, 1, 1, 1)
    """
    train, validation, test = (_entries(shards, (split,)) for split in SPLITS)
    used = _entries(shards, ("train", "validation"))
    owners = _counts(_entries(shards, SPLITS), shards)
    tested, leaks, pairs = _leaks(test, used, shards)
    validated, validation_leaks, validation_pairs = _leaks(validation, train, shards)
    twice = np.concatenate([np.intersect1d(train, validation), np.intersect1d(used, test)])
    return Overlaps(
        held=int(np.count_nonzero(owners)),
        shared=int(np.count_nonzero(owners > 1)),
        tested=tested,
        leaks=leaks,
        pairs=pairs,
        validated=validated,
        validation_leaks=validation_leaks,
        validation_pairs=validation_pairs,
        reused=len(np.unique(twice // shards.devices)),
    )


@dataclass(frozen=True)
class Copies:
    """Examples under different numbers that are equal in all features, whatever their targets."""

    held: int  # examples that somebody holds
    different: int  # of these, how many are left where equal ones count once
    tested: int  # examples that somebody is tested on
    leaks: int  # of these, those that equal an example of a training or validation part


def copies(shards: Shards) -> Copies:
    """How many examples equal another one, and how many test examples one that was trained on.

    >>> import torch
    >>> from covey.data import Part
    >>> x = torch.tensor([[1.0], [2.0], [1.0], [3.0]])
    >>> parts = Part.of([[0], [1]]), Part.of([[], []]), Part.of([[3], [2]])
    >>> copies(Shards(x, torch.zeros(4), *parts))
    Copies(held=4, different=3, tested=2, leaks=1)
    """
    rows = shards.x.reshape(len(shards.x), -1).cpu().contiguous().numpy()
    hashes = [hashlib.blake2b(row, digest_size=8).digest() for row in rows]
    content = np.frombuffer(b"".join(hashes), dtype=np.uint64)
    train, validation, test = (shards.part(split).index.numpy() for split in SPLITS)
    used = np.union1d(train, validation)
    tested = np.unique(test)
    held = np.union1d(used, tested)
    others = tested[~np.isin(tested, used)]  # the same number in both is what `overlaps` counts
    leaks = np.isin(content[others], content[used])
    return Copies(
        held=len(held),
        different=len(np.unique(content[held])),
        tested=len(tested),
        leaks=int(np.count_nonzero(leaks)),
    )


def _leaks(judged: Numbers, used: Numbers, shards: Shards) -> tuple[int, int, int]:
    """The number of judged examples, of those that another device uses, and of such pairs."""
    judges = _counts(judged, shards)
    users = _counts(used, shards)
    both = _counts(np.intersect1d(judged, used), shards)
    leaks = judges * users > both  # some judge and some user of the example are two devices
    leaked = judged[leaks[judged // shards.devices]]
    pairs = _pairs(leaked, used, users, shards.devices)
    return int(np.count_nonzero(judges)), int(np.count_nonzero(leaks)), pairs


def _counts(entries: Numbers, shards: Shards) -> Numbers:
    """How many devices have each example, [examples]."""
    return np.bincount(entries // shards.devices, minlength=len(shards.x))


def _entries(shards: Shards, splits: tuple[str, ...]) -> Numbers:
    """Who holds what in these parts, each once and sorted, as example * devices + device."""
    parts = [shards.part(split) for split in splits]
    device = [np.repeat(np.arange(part.devices), part.counts().numpy()) for part in parts]
    example = [part.index.numpy() for part in parts]
    return np.unique(np.concatenate(example) * shards.devices + np.concatenate(device))


def _pairs(leaked: Numbers, used: Numbers, users: Numbers, devices: int) -> int:
    """The number of pairs of a tested device and another device that uses one of its examples."""
    who = used % devices
    ends = users.cumsum()  # example e is used by who[ends[e] - users[e] : ends[e]]
    example, tested = np.divmod(leaked, devices)
    cuts = np.bincount(tested, minlength=devices).cumsum()[:-1]
    pairs = 0
    by_device = example[np.argsort(tested, kind="stable")]
    # Device by device: all pairs at once could be many times as many as the entries.
    for device, own in enumerate(np.split(by_device, cuts)):
        if not len(own):  # most devices, where few examples leak
            continue
        counts = users[own]
        shift = ends[own] - counts.cumsum()
        places = np.repeat(shift, counts) + np.arange(int(counts.sum()))
        meets = np.zeros(devices, dtype=bool)
        meets[who[places]] = True
        meets[device] = False
        pairs += int(np.count_nonzero(meets))
    return pairs
