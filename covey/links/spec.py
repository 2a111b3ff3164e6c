"""What a link does to model rows in one direction: which codec, of what, how much of it, and what
becomes of the rest.

An experiment names one codec for all links ("bitmap"), or a table: per link, and there per
direction ("down", "up"), a codec's name or a table with `name`, the codec's own options, and those
of `LinkSpec`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from covey.codecs import CODECS, Codec, codec
from covey.errors import ConfigError
from covey.types import Rows

DIRECTIONS = ("down", "up")
Spec = str | Mapping[str, Any]


@dataclass(frozen=True)
class LinkSpec:
    """A codec and what is given to it.

    `keep`: only this share of a row's entries, those of largest size, is sent; the others are
    zeros. `update`: not the row is sent but its difference from the one that came down in the same
    ask, where that is as wide. `feedback`: what a message lost is added to the next one (error
    feedback); the sender remembers it.
    """

    codec: Codec
    keep: float | None = None
    update: bool = False
    feedback: bool = False

    def __post_init__(self) -> None:
        if self.keep is not None and not (
            isinstance(self.keep, int | float) and 0 < self.keep <= 1
        ):
            raise ConfigError(
                f"keep = {self.keep!r} must be a share above 0 and up to 1, or left out."
            )
        for name in ("update", "feedback"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} = {getattr(self, name)!r} must be true or false.")
        if self.feedback and self.lossless:
            raise ConfigError(
                f"feedback is on, but {self.codec.name} loses nothing; leave it out, or give `keep` or another codec."
            )

    @property
    def lossless(self) -> bool:
        """Whether what arrives is what was sent, to the bit."""
        return self.codec.lossless and self.keep is None and not self.update


def largest(rows: Rows, share: float) -> Rows:
    """Each row with all but the entries of largest size set to zero: that share of them, at least
    one; equal sizes stay together.

    >>> largest(torch.tensor([[1.0, -3.0, 2.0, 0.5]]), 0.5)
    tensor([[ 0., -3.,  2.,  0.]])
    """
    width = rows.shape[1]
    kept = max(1, round(share * width))
    if kept >= width or not len(rows):
        return rows
    sizes = rows.abs()
    least = sizes.kthvalue(width - kept + 1, dim=1, keepdim=True).values
    return torch.where(
        (sizes < least), torch.zeros((), dtype=rows.dtype, device=rows.device), rows
    )  # NaN stays, to be noticed


def wires(spec: Spec, links: Sequence[str]) -> dict[tuple[str, str], LinkSpec]:
    """The wire of every link and direction."""
    if isinstance(spec, str) or "name" in spec:
        return {
            (link, way): wire(_shared(spec, way), f"codec.{link}", way)
            for link in links
            for way in DIRECTIONS
        }
    if unknown := set(spec) - set(links):
        raise ConfigError(
            f"codec names the link {unknown.pop()!r}, but the links are {', '.join(links)}."
        )
    out = {}
    for link in links:
        here = spec.get(link, "dense")
        if not isinstance(here, str | Mapping):
            raise ConfigError(
                f"codec.{link} = {here!r}: give a codec's name, one of {', '.join(CODECS)}, or a table."
            )
        apart = here if isinstance(here, Mapping) and "name" not in here else None
        if apart is not None and (unknown := set(apart) - set(DIRECTIONS)):
            raise ConfigError(
                f"codec.{link} has {unknown.pop()!r}; give a codec, or one for each of down and up."
            )
        for direction in DIRECTIONS:
            mine = _shared(here, direction) if apart is None else apart.get(direction, "dense")
            out[link, direction] = wire(mine, f"codec.{link}", direction)
    return out


def wire(spec: Any, place: str, direction: str) -> LinkSpec:
    """One wire, from a codec's name or a table.

    >>> wire({"name": "bitmap", "keep": 0.1}, "codec.server-device", "up").keep
    0.1
    """
    if isinstance(spec, str):
        return LinkSpec(codec(spec))
    if not isinstance(spec, Mapping) or not isinstance(spec.get("name"), str):
        raise ConfigError(
            f"{place} = {spec!r}: give a codec's name, one of {', '.join(CODECS)}, or a table with a name."
        )
    own = {field.name for field in fields(LinkSpec)} - {"codec"}
    mine = {key: value for key, value in spec.items() if key in own}
    others = {key: value for key, value in spec.items() if key not in own and key != "name"}
    if direction == "down" and mine.get("update"):
        raise ConfigError(
            f"{place}: update is of what goes up, the difference from what came down; give it under up."
        )
    try:
        return LinkSpec(codec(spec["name"], **others), **mine)
    except ConfigError as error:
        raise ConfigError(f"{place}, {direction}: {error}") from error


def _shared(spec: Any, direction: str) -> Any:
    """What is said of both directions at once; there, `update` can only mean the way up."""
    if isinstance(spec, Mapping) and direction == "down":
        return {key: value for key, value in spec.items() if key != "update"}
    return spec


def difference(rows: Rows, reference: Tensor | None) -> tuple[Rows, Tensor | None]:
    """What is sent of rows as an update, and what the receiver adds to it; the rows where there is
    nothing to compare.
    """
    if reference is None or reference.shape != rows.shape:
        return rows, None
    return rows - reference, reference
