"""Randomness by address: a draw depends on its address alone, never on earlier draws.

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
_SHUFFLE_ROUNDS = 64
"""Rounds of swap-or-not.

With these, every subset of a small group has the same probability; a chi-square test checks it.
"""


def key(*words: int | str) -> int:
    """The 64-bit key of an address.

    >>> key(0, 1, "device") == key(0, 1, "device"), key(0, 1, "device") == key(0, 1, "edge")
    (True, False)
    """
    state = 0
    for word in words:
        state = int(_finalise((state ^ _number(word)) + _GOLDEN))
    return state


def further(address: Address, *words: int) -> Address:
    """The address with more words, which are not negative.

    >>> further(key(3), 4, 5) == key(3, 4, 5)
    True
    """
    for word in words:
        if isinstance(address, Tensor):
            address = _finalise_rows((address ^ word) + _signed(_GOLDEN))
        else:
            address = int(_finalise((address & _MASK ^ word) + _GOLDEN))
    return address


def path(parent: int, ask: int) -> int:
    """The path of a program that its parent starts by its ask number `ask`.

    The first ask of path 0 has path 0 again, at any depth: one more tier that asks once, or a loop
    that runs once, changes no draw below it.
    """
    if parent == 0 and ask == 0:
        return 0
    return key(parent, ask)


def bits(address: Address, ids: Tensor, width: int, start: int = 0) -> Tensor:
    """64 random bits for each id and each slot from `start` on, as int64 [n, width]."""
    slots = torch.arange(start, start + width, dtype=torch.int64, device=ids.device)
    offsets = slots * _signed(_GOLDEN)
    if not isinstance(address, Tensor):
        address = _signed(address)
    states = _finalise_rows((ids + address)[:, None])
    return _finalise_rows(states + offsets)


def integers(address: Address, ids: Tensor, width: int, *, below: Tensor, start: int = 0) -> Tensor:
    """Integers in [0, below) for each id and slot; `below` is [n].

    The bias of the modulo is under below / 2**63.
    """
    nonnegative = bits(address, ids, width, start) & (_MASK >> 1)
    divisor = below[:, None].clamp(min=1)
    return nonnegative % divisor


def uniform(address: Address, ids: Tensor, width: int) -> Tensor:
    """Numbers in [0, 1), float64 [n, width]."""
    mantissas = _shift(bits(address, ids, width), 11)
    return mantissas.double() * 2.0**-53


def normal(address: Address, ids: Tensor, width: int) -> Tensor:
    """Standard normal numbers, float64 [n, width] (Box-Muller)."""
    u, v = uniform(address, ids, 2 * width).chunk(2, dim=1)
    radius = torch.sqrt(-2 * torch.log1p(-u))
    angle = 2 * math.pi * v
    return radius * torch.cos(angle)


def failures(uniform: Tensor, probability: float | Tensor) -> Tensor:
    """The number of failures before the first success: a geometric draw for each number in [0, 1).

    `probability` is that of success. The numbers of failures are of the type of `uniform`.

    >>> failures(torch.tensor([0.1, 0.6, 0.8]), 0.5).tolist()
    [0.0, 1.0, 2.0]
    """
    below_one = uniform.double().clamp(max=1 - 2.0**-53)  # a float32 may have been rounded up to 1
    success = torch.as_tensor(probability, dtype=torch.float64)
    ratio = torch.log1p(-below_one) / torch.log1p(-success)
    return torch.floor(ratio).to(uniform)


def keys(seeds: Sequence[int], *words: int | str) -> Tensor:
    """The keys of one address under several seeds, int64 [seeds]."""
    signed = [_signed(key(seed, *words)) for seed in seeds]
    return torch.tensor(signed, dtype=torch.int64)


def choose(
    address: Address, groups: Tensor, *, sizes: Tensor, picks: Tensor
) -> tuple[Tensor, Tensor]:
    """`picks[g]` different numbers below `sizes[g]` for each group g.

    Returns (the group's position, the number), sorted. A keyed permutation (swap-or-not, Hoang,
    Morris and Rogaway 2012) is evaluated at 0, 1, ..., picks - 1, so that the cost is that of the
    sample and not of the population.
    """
    counts = picks.numpy()
    position = np.repeat(np.arange(len(groups)), counts)
    first = np.cumsum(counts) - counts
    number = np.arange(len(position)) - first[position]
    number = number.astype(np.uint64)
    size = sizes.numpy().astype(np.uint64)
    keys = _finalise(groups.numpy().astype(np.uint64) + _unsigned(address))
    if native.loaded():
        native.choose(position, keys, size, _SHUFFLE_ROUNDS, number)
    else:
        number = _permuted(number, keys, size, position)
    order = np.lexsort((number, position))
    position = position[order]
    number = number[order].astype(np.int64)
    return torch.from_numpy(position), torch.from_numpy(number)


def _unsigned(address: Address) -> Any:
    if isinstance(address, Tensor):
        return address.numpy().astype(np.uint64)
    return np.uint64(address & _MASK)


def _permuted(number: Any, keys: Any, size: Any, position: Any) -> Any:
    """Swap-or-not, round by round, on all numbers at once."""
    sizes = size[position]
    for turn in range(_SHUFFLE_ROUNDS):
        step = np.uint64(_GOLDEN * (2 * turn + 1) & _MASK)
        pivot = _finalise(keys + step)
        offset = (pivot % size)[position]
        partner = (offset + sizes - number) % sizes
        larger = _finalise(np.maximum(number, partner))
        coin = _finalise(pivot[position] ^ larger) & np.uint64(1)
        number = np.where(coin == 1, partner, number)
    return number


def _number(word: int | str) -> int:
    if isinstance(word, int):
        return word & _MASK
    return _hash(word)


@lru_cache
def _hash(word: str) -> int:
    digest = hashlib.blake2b(word.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def _signed(word: int) -> int:
    """A 64-bit word as a signed integer, two's complement."""
    word &= _MASK
    if word >> 63:
        return word - (1 << 64)
    return word


def _finalise(z: Any) -> Any:
    """splitmix64's finaliser.

    `z` is a Python integer, which needs the masks, or numpy's uint64, which wraps by itself.
    """
    z = z & _MASK
    z = z ^ (z >> 30)
    z = z * _MULTIPLY[0] & _MASK
    z = z ^ (z >> 27)
    z = z * _MULTIPLY[1] & _MASK
    return z ^ (z >> 31)


def _shift(z: Tensor, by: int) -> Tensor:
    """A logical shift to the right; torch shifts int64 with the sign, which the mask removes."""
    return (z >> by) & (_MASK >> by)


def _finalise_rows(z: Tensor) -> Tensor:
    """splitmix64's finaliser on int64, which wraps by itself."""
    z = z ^ _shift(z, 30)
    z = z * _signed(_MULTIPLY[0])
    z = z ^ _shift(z, 27)
    z = z * _signed(_MULTIPLY[1])
    return z ^ _shift(z, 31)
