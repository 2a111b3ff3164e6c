"""The specification of one direction of a link: its codec, and what the codec is applied to.

An experiment names one codec for all links ("bitmap"), or a table: per link, and there per
direction ("down", "up"), a codec's name or a table with `name`, the codec's own options, and those
of `LinkSpec`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from covey.codecs import CODECS, Codec, codec
from covey.errors import ConfigError, meant
from covey.fields import Range, check, options
from covey.types import Rows

DIRECTIONS = ("down", "up")
LinkSpecs = dict[tuple[str, str], "LinkSpec"]
"""The specification of every (link, direction)."""
Spec = str | Mapping[str, Any]


@dataclass(frozen=True)
class LinkSpec:
    """A codec, and which rows it gets."""

    codec: Codec
    keep: Annotated[float, Range(0, 1, above=True)] | None = None  # share of a row's entries, those
    # of largest size, that are sent; the others are zeros
    update: bool = False  # whether the difference is sent from the row that came down
    feedback: bool = False  # whether the residual of a message is added to the next one

    def __post_init__(self) -> None:
        check(self)
        if self.feedback and self.lossless:
            reason = f"{self.codec.name} loses nothing"
            fix = "leave it out, or give `keep` or another codec"
            raise ConfigError(f"feedback is on, but {reason}; {fix}.")

    @property
    def lossless(self) -> bool:
        """Whether what arrives is what was sent, to the bit."""
        return self.codec.lossless and self.keep is None and not self.update


_LINK = [name for name in options(LinkSpec) if name != "codec"]
"""The options of a link, which stand beside those of its codec."""


def largest(rows: Rows, share: float) -> Rows:
    """Each row with zeros in place of all entries but a share of largest size, at least one.

    Entries of equal size stay together. NaN stays, so that divergence is noticed.

    >>> largest(torch.tensor([[1.0, -3.0, 2.0, 0.5]]), 0.5)
    tensor([[ 0., -3.,  2.,  0.]])
    """
    width = rows.shape[1]
    count = max(1, round(share * width))
    if count >= width or not len(rows):
        return rows
    sizes = rows.abs()
    rank = width - count + 1
    threshold = sizes.kthvalue(rank, dim=1, keepdim=True).values
    zero = rows.new_zeros(())
    return torch.where(sizes < threshold, zero, rows)


def wires(spec: Spec, links: Sequence[str]) -> LinkSpecs:
    """The specification of every link and direction."""
    if not _is_codec(spec):
        assert isinstance(spec, Mapping)
        if unknown := sorted(set(spec) - set(links), key=str):
            link = unknown[0]
            raise ConfigError(
                f"codec names the link {link!r}{meant(link, links)}, "
                f"but the links are {', '.join(links)}."
            )
    out = {}
    for link in links:
        link_spec = spec
        if isinstance(spec, Mapping) and not _is_codec(spec):
            link_spec = spec.get(link, "dense")
        for direction, direction_spec in _by_direction(link_spec, link).items():
            out[link, direction] = wire(direction_spec, f"codec.{link}", direction)
    return out


def _is_codec(spec: Any) -> bool:
    """Whether this is one codec, by its name or as a table, and no table of links or directions."""
    return isinstance(spec, str) or "name" in spec


def _by_direction(spec: Any, link: str) -> dict[str, Any]:
    """The codec of each direction of a link."""
    if not isinstance(spec, str | Mapping):
        names = ", ".join(CODECS)
        fix = f"give a codec's name, one of {names}, or a table"
        raise ConfigError(f"codec.{link} = {spec!r}: {fix}.")
    if _is_codec(spec):
        both = dict.fromkeys(DIRECTIONS, spec)
        if isinstance(spec, Mapping):  # `update` can only mean the way up
            both["down"] = {key: value for key, value in spec.items() if key != "update"}
        return both
    assert isinstance(spec, Mapping)
    if unknown := set(spec) - set(DIRECTIONS):
        fix = "give a codec, or one for each of down and up"
        raise ConfigError(f"codec.{link} has {unknown.pop()!r}; {fix}.")
    return {direction: spec.get(direction, "dense") for direction in DIRECTIONS}


def wire(spec: Any, name: str, direction: str) -> LinkSpec:
    """The specification of one direction, from a codec's name or a table; `name` is for errors.

    >>> wire({"name": "bitmap", "keep": 0.1}, "codec.server-device", "up").keep
    0.1
    """
    if isinstance(spec, str):
        return LinkSpec(codec(spec))
    if not isinstance(spec, Mapping) or not isinstance(spec.get("name"), str):
        names = ", ".join(CODECS)
        fix = f"give a codec's name, one of {names}, or a table with a name"
        raise ConfigError(f"{name} = {spec!r}: {fix}.")
    codec_options = {key: value for key, value in spec.items() if key not in ("name", *_LINK)}
    link_options = {key: value for key, value in spec.items() if key in _LINK}
    if direction == "down" and link_options.get("update"):
        rule = "update is of what goes up, the difference from what came down"
        raise ConfigError(f"{name}: {rule}; give it under up.")
    try:
        return LinkSpec(codec(spec["name"], **codec_options), **link_options)
    except ConfigError as error:
        raise ConfigError(f"{name}, {direction}: {error}") from error


def difference(rows: Rows, reference: Tensor | None) -> tuple[Rows, Tensor | None]:
    """The difference from a reference, which is sent, and the reference, which the receiver adds.

    Without a reference of their shape the rows are sent as they are.
    """
    if reference is None or reference.shape != rows.shape:
        return rows, None
    return rows - reference, reference
