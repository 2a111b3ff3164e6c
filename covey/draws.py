"""Randomness by address: a draw is a function of where and when it is made, never of what was drawn
before.

An address is (seed, round, path, tier, stream, k) as one integer key, then a node id and a slot.
The hash is splitmix64's finaliser in wrapping int64 arithmetic, so that CPU and GPU, one process or
many, draw the same bits.
"""

import hashlib
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from covey import native

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MULTIPLY = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
Address = int | Tensor
"""The key of a draw: one for all ids, or one for each, int64 [n]."""
_SHUFFLE_ROUNDS = 64  # of swap-or-not: every subset of a small group comes out equally often (a chi-square test checks it)


def key(*words: int | str) -> int:
    """The 64-bit key of an address.

    >>> key(0, 1, "device") == key(0, 1, "device"), key(0, 1, "device") == key(0, 1, "edge")
    (True, False)
    """
    state = 0
    for word in words:
        state = int(_finalise((state ^ _number(word)) + _GOLDEN))
    return state


def path(parent: int, ask: int) -> int:
    """The path of a program started by its parent's ask number `ask`; the first of the first stays
    0 at any depth.

    So one more tier that asks once, or one loop that runs once, changes no draw below it.
    """
    return 0 if parent == 0 and ask == 0 else key(parent, ask)


def bits(address: Address, ids: Tensor, width: int, start: int = 0) -> Tensor:
    """64 random bits for each id and each slot from `start` on, as int64 [n, width]."""
    slots = torch.arange(start, start + width, dtype=torch.int64, device=ids.device) * _signed(
        _GOLDEN
    )
    place = ids + (address if isinstance(address, Tensor) else _signed(address))
    return _finalise_rows(_finalise_rows(place[:, None]) + slots)


def integers(address: Address, ids: Tensor, width: int, *, below: Tensor, start: int = 0) -> Tensor:
    """Integers in [0, below) for each id and slot; `below` is [n]. The bias of the modulo is under
    below / 2**63.
    """
    return (bits(address, ids, width, start) & (_MASK >> 1)) % below[:, None].clamp(min=1)


def uniform(address: Address, ids: Tensor, width: int) -> Tensor:
    """Numbers in [0, 1), float64 [n, width]."""
    return _shift(bits(address, ids, width), 11).double() * 2.0**-53


def normal(address: Address, ids: Tensor, width: int) -> Tensor:
    """Standard normal numbers, float64 [n, width] (Box-Muller)."""
    u, v = uniform(address, ids, 2 * width).chunk(2, dim=1)
    return torch.sqrt(-2 * torch.log1p(-u)) * torch.cos(2 * math.pi * v)


def failures(uniform: Tensor, chance: float | Tensor) -> Tensor:
    """How often a coin of this chance fails before it first succeeds, from numbers in [0, 1): whole
    numbers of their type.

    >>> failures(torch.tensor([0.1, 0.6, 0.8]), 0.5).tolist()
    [0.0, 1.0, 2.0]
    """
    below_one = uniform.double().clamp(max=1 - 2.0**-53)  # a float32 may have been rounded up to 1
    return torch.floor(
        torch.log1p(-below_one) / torch.log1p(-torch.as_tensor(chance, dtype=torch.float64))
    ).to(uniform)


def keys(seeds: Sequence[int], *words: int | str) -> Tensor:
    """The keys of one address under several seeds, int64 [seeds]."""
    return torch.tensor([_signed(key(seed, *words)) for seed in seeds], dtype=torch.int64)


def choose(
    address: Address, groups: Tensor, *, sizes: Tensor, picks: Tensor
) -> tuple[Tensor, Tensor]:
    """`picks[g]` different numbers below `sizes[g]` for each group: (the group's position, the
    number), sorted.

    A keyed permutation (swap-or-not, Hoang, Morris and Rogaway 2012) is evaluated at 0, 1, ...,
    picks - 1, so that the cost is that of the sample and not of the population.
    """
    position = np.repeat(np.arange(len(groups)), picks.numpy())
    first = np.cumsum(picks.numpy()) - picks.numpy()
    number = (np.arange(len(position)) - first[position]).astype(np.uint64)
    size = sizes.numpy().astype(np.uint64)
    start = (
        address.numpy().astype(np.uint64)
        if isinstance(address, Tensor)
        else np.uint64(address & _MASK)
    )
    keys = _finalise(groups.numpy().astype(np.uint64) + start)
    if native.loaded():
        native.choose(position, keys, size, _SHUFFLE_ROUNDS, number)
    else:
        number = _permuted(number, keys, size, position)
    order = np.lexsort((number, position))
    return torch.from_numpy(position[order]), torch.from_numpy(number[order].astype(np.int64))


def _permuted(number: Any, keys: Any, size: Any, position: Any) -> Any:
    """Swap-or-not, turn by turn, on all numbers at once."""
    for turn in range(_SHUFFLE_ROUNDS):
        pivot = _finalise(keys + np.uint64(_GOLDEN * (2 * turn + 1) & _MASK))
        partner = ((pivot % size)[position] + size[position] - number) % size[position]
        coin = _finalise(pivot[position] ^ _finalise(np.maximum(number, partner))) & np.uint64(1)
        number = np.where(coin == 1, partner, number)
    return number


def _number(word: int | str) -> int:
    return word & _MASK if isinstance(word, int) else _hash(word)


@lru_cache
def _hash(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little")


def _signed(word: int) -> int:
    word &= _MASK
    return word - (1 << 64) if word >> 63 else word


def _finalise(z: Any) -> Any:
    """On a Python integer, which needs the masks, or on numpy's uint64, which wraps by itself."""
    z = z & _MASK
    z = ((z ^ (z >> 30)) * _MULTIPLY[0]) & _MASK
    z = ((z ^ (z >> 27)) * _MULTIPLY[1]) & _MASK
    return z ^ (z >> 31)


def _shift(z: Tensor, by: int) -> Tensor:
    return (z >> by) & (_MASK >> by)  # torch shifts int64 with the sign; the mask makes it logical


def _finalise_rows(z: Tensor) -> Tensor:
    z = (z ^ _shift(z, 30)) * _signed(_MULTIPLY[0])
    z = (z ^ _shift(z, 27)) * _signed(_MULTIPLY[1])
    return z ^ _shift(z, 31)
