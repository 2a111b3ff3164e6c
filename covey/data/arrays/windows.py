"""Texts cut into sequences of characters, for models that predict the next one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from covey.data.partitions.partition import Parts, check_range
from covey.data.shards import NO_TARGET, Names, Shards
from covey.errors import DataError

UNKNOWN = "\ufffd"
"""The name of token 0: padding, and characters that nobody trained on."""
_LONGEST = 100_000

Numbers = npt.NDArray[np.int64]


def token_names(vocabulary: Sequence[str]) -> tuple[str, ...]:
    """The name of every token: `UNKNOWN`, then the characters."""
    return (UNKNOWN, *vocabulary)


def ids(text: str, tokens: Sequence[str]) -> Numbers:
    """The id of every character; 0 for one that has none.

    >>> ids("abca", token_names("ab")).tolist()
    [1, 2, 0, 1]
    """
    number = {character: position for position, character in enumerate(tokens)}
    return np.array([number.get(character, 0) for character in text], dtype=np.int64)


@dataclass(frozen=True)
class Windows:
    """The texts of all devices in windows, each of `length` characters and the one after.

    Windows follow one another, so that every character but a text's first is predicted once.
    """

    texts: tuple[str, ...]
    starts: tuple[tuple[int, int], ...]  # the text and the position at which each window begins
    length: int

    @staticmethod
    def of(texts: Sequence[str], length: int) -> Windows:
        """The windows of texts, one text per device.

        >>> Windows.of(["abcdef", "xy"], 4).starts
        ((0, 0), (0, 4), (1, 0))
        """
        check_range("length", length, 1, _LONGEST)
        short = [number for number, text in enumerate(texts) if len(text) < 2]
        if short:
            raise DataError(
                f"the text of device {short[0]} has fewer than 2 characters, so that there is "
                "none to predict; give it more or leave it out."
            )
        starts = tuple(
            (number, start)
            for number, text in enumerate(texts)
            for start in range(0, len(text) - 1, length)
        )
        return Windows(tuple(texts), starts, length)

    @property
    def pieces(self) -> list[Numbers]:
        """The windows of every text."""
        owner = np.array([number for number, _ in self.starts], dtype=np.int64)
        return [np.flatnonzero(owner == number) for number in range(len(self.texts))]

    def vocabulary(self, windows: Tensor) -> str:
        """The characters of some windows, in order; those of the training parts are no secret."""
        characters: set[str] = set()
        for window in windows.tolist():
            characters.update(self._text(window))
        return "".join(sorted(characters))

    def encoded(self, tokens: Sequence[str]) -> tuple[Tensor, Tensor]:
        """The ids [windows, length], and at each position the id of the next character.

        A short window is filled up with id 0, which has no target.

        >>> x, y = Windows.of(["abcdef"], 4).encoded(token_names("abcdef"))
        >>> x.tolist(), y.tolist()
        ([[1, 2, 3, 4], [5, 0, 0, 0]], [[2, 3, 4, 5], [6, -100, -100, -100]])
        """
        x = np.zeros((len(self.starts), self.length), dtype=np.int64)
        y = np.full_like(x, NO_TARGET)
        for window in range(len(self.starts)):
            encoded = ids(self._text(window), tokens)
            count = len(encoded) - 1
            x[window, :count] = encoded[:-1]
            y[window, :count] = encoded[1:]
        return torch.from_numpy(x), torch.from_numpy(y)

    def shards(
        self,
        tokens: tuple[str, ...],
        parts: Parts,
        name: str,
        devices: Sequence[str] = (),
        edges: Mapping[str, int] | None = None,
    ) -> Shards:
        """The windows as shards, dealt as `parts` say; `edges` are the sizes of named edges."""
        x, y = self.encoded(tokens)
        under = edges or {}
        return Shards(
            x,
            y,
            *parts,
            classes=len(tokens),
            name=name,
            edges=tuple(under.values()),
            names=Names(tuple(devices), tuple(under), tokens, tokens=tokens),
            tokens=len(tokens),
        )

    def _text(self, window: int) -> str:
        number, start = self.starts[window]
        return self.texts[number][start : start + self.length + 1]
