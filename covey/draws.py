"""Randomness by address: a draw depends on its address alone, never on earlier draws.

An address is (seed, round, path, tier, stream, k) as one integer key, then a node id and a slot.
The hash is splitmix64's finaliser in wrapping int64 arithmetic, so that CPU and GPU, one process or
many, draw the same bits.
"""

import hashlib
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
VERSION = 2
"""The rule by which addresses are made, a fact of every experiment, node and stored result.

Raise it with every change that moves a draw: a run must not go on, nor a tree train, by two rules.
"""
Address = int | Tensor
"""The key of a draw: one for all ids, or one for each, int64 [n]."""
_ROOT_HALF = 0x3FE6A09E00000000  # the bits of about sqrt(1/2)
_MANTISSA = (1 << 52) - 1
_LN2_HIGH = 6.93147180369123816490e-01  # with zeros at its end, so that k times it is exact
_LN2_LOW = 1.90821492927058770002e-10
_LOG = (
    0.14755898104908072,
    0.15318074165540718,
    0.18183406102175728,
    0.22222201640621805,
    0.2857142871219414,
    0.39999999999552477,
    0.6666666666666713,
)
"""L, with log(1 + f) = 2 s + s^3 L(s^2): the least relative error, below 2^-58."""
_SINE = (
    0.10085633077354056,
    -0.7177235801554498,
    3.8199270504789338,
    -15.094641620509961,
    42.058693923785235,
    -76.7058597527985,
    81.60524927607341,
    -41.341702240399755,
    6.283185307179586,
)
"""sin(2 pi b) / b as a polynomial in b^2 up to |b| = 1/4: the least relative error."""
_BLOCK = 1 << 14
"""Numbers that torch makes at once on a CPU, so that all steps to them stay in the cache."""
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
        number = word & _MASK if isinstance(word, int) else _hash(word)
        state = int(_finalise((state ^ number) + _GOLDEN))
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
    that runs once, changes no draw below it. Other paths begin with a word that no seed is: `key`
    XORs a path into key(seed, round), and key(0, ask) would make round t, ask a of seed 0 draw what
    round a, ask t does.
    """
    if parent == 0 and ask == 0:
        return 0
    return key("path", parent, ask)


def bits(address: Address, ids: Tensor, width: int, start: int = 0) -> Tensor:
    """64 random bits for each id and each slot from `start` on, as int64 [n, width]."""
    slots = torch.arange(start, start + width, dtype=torch.int64, device=ids.device)
    states = _states(address, ids)
    return _finalise_rows(states[:, None] + slots * _signed(_GOLDEN))


def _states(address: Address, ids: Tensor) -> Tensor:
    """The hash of each id under an address, int64 [n]; its slots are counted from it."""
    if not isinstance(address, Tensor):
        address = _signed(address)
    return _finalise_rows(ids + address)


def integers(
    address: Address,
    ids: Tensor,
    width: int,
    *,
    below: Tensor,
    start: int = 0,
) -> Tensor:
    """Integers in [0, below) for each id and slot; `below` is [n].

    The bias of the modulo is under below / 2**63.
    """
    nonnegative = bits(address, ids, width, start) & (_MASK >> 1)
    divisor = below[:, None].clamp(min=1)
    return nonnegative % divisor


def uniform(address: Address, ids: Tensor, width: int) -> Tensor:
    """Numbers in [0, 1), float64 [n, width]."""
    return _fractions(bits(address, ids, width))


def _fractions(bits: Tensor) -> Tensor:
    """The upper 53 bits of each word as a number in [0, 1)."""
    return _shift(bits, 11).double() * 2.0**-53


def normal(
    address: Address, ids: Tensor, width: int, *, dtype: torch.dtype = torch.float64
) -> Tensor:
    """Standard normal numbers [n, width] (Box-Muller), computed in float64.

    The kernel and torch, on a CPU and on a GPU, give the same bits: logarithm and cosine are made
    of sums, products, quotients and square roots, whose rounding IEEE 754 fixes.
    """
    on_cpu = ids.device.type == "cpu"
    if native.loaded() and on_cpu and dtype in native.DTYPES:
        return native.normal(_states(address, ids), width, dtype)
    out = torch.empty(len(ids), width, dtype=dtype, device=ids.device)
    columns = max(1, _BLOCK // max(len(ids), 1)) if on_cpu else width
    for first in range(0, width, columns):
        count = min(columns, width - first)
        u = _fractions(bits(address, ids, count, first))
        v = _fractions(bits(address, ids, count, width + first))
        out[:, first : first + count] = box_muller(u, v)
    return out


def box_muller(u: Tensor, v: Tensor) -> Tensor:
    """sqrt(-2 log(1 - u)) cos(2 pi v), float64; the kernel's normal.h has the same operations.

    cos(2 pi v) is sin(2 pi b) with b = |v - 1/2| - 1/4, which is exact.
    """
    minus_log = _minus_log(1 - u)
    squared = minus_log + minus_log
    radius = torch.sqrt(squared)
    if squared.device.type == "cpu":  # where torch's root is not always rounded to nearest
        radius = torch.from_numpy(np.sqrt(squared.numpy()))
    b = (v - 0.5).abs() - 0.25
    cosine = b * _polynomial(_SINE, b * b)
    return radius * cosine


def _minus_log(x: Tensor) -> Tensor:
    """-log(x) for x in [2^-53, 1], within 1 unit in the last place.

    x is 2^k (1 + f) with 1 + f from sqrt(1/2) on, and s is f / (2 + f). Then log(1 + f) =
    2 artanh(s) = f - (f^2/2 - s (f^2/2 + s^2 L(s^2))).
    """
    scaled = x.view(torch.int64) - _ROOT_HALF
    k = (scaled >> 52).double()
    f = ((scaled & _MANTISSA) + _ROOT_HALF).view(torch.float64) - 1
    s = f / (f + 2)
    z = s * s
    half = f * f * 0.5
    rest = z * _polynomial(_LOG, z)
    low = s * (half + rest) + k * _LN2_LOW
    return ((half - low) - f) - k * _LN2_HIGH


def _polynomial(coefficients: Sequence[float], z: Tensor) -> Tensor:
    """A polynomial in z, the coefficient of the highest power first."""
    value = torch.full_like(z, coefficients[0])
    for coefficient in coefficients[1:]:
        value.mul_(z).add_(coefficient)  # two operations: a fused one would round only once
    return value


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


def spread(address: Address, ids: Tensor) -> Tensor:
    """An address for each id, int64 [n]: the same for all where it is one number."""
    if isinstance(address, Tensor):
        return address
    return torch.full_like(ids, _signed(address))


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
    if isinstance(address, Tensor):
        lanes: Any = address.numpy().astype(np.uint64)
    else:
        lanes = np.uint64(address & _MASK)
    keys = _finalise(groups.numpy().astype(np.uint64) + lanes)
    if native.loaded():
        native.choose(position, keys, size, _SHUFFLE_ROUNDS, number)
    else:
        number = _permuted(number, keys, size, position)
    order = np.lexsort((number, position))
    position = position[order]
    number = number[order].astype(np.int64)
    return torch.from_numpy(position), torch.from_numpy(number)


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
