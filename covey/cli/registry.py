"""What an experiment file can name: algorithms, data, models and codecs, each with one line that says what it is."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isqrt
from typing import Any

from torch import nn

from covey import data, models
from covey.algorithms import ALGORITHMS
from covey.codecs import CODECS
from covey.data import Shards


@dataclass(frozen=True)
class Entry:
    """One thing by its name in a file, and what makes it."""

    name: str
    make: Callable[..., Any]
    line: str


def linear(shards: Shards, *, bias: bool = True) -> nn.Module:
    """One linear layer: multinomial logistic regression."""
    return models.linear(_inputs(shards), _outputs(shards), bias=bias)


def mlp(shards: Shards, *, hidden: Sequence[int] = (100,)) -> nn.Module:
    """Linear layers with ReLU between them; `hidden` lists their widths."""
    return models.mlp(_inputs(shards), *hidden, _outputs(shards))


def cnn(
    shards: Shards,
    *,
    shape: Sequence[int] | None = None,
    channels: Sequence[int] = (32, 64),
    hidden: int = 512,
    kernel: int = 5,
) -> nn.Module:
    """Convolutions with pooling, then two linear layers; flat examples are images of this `shape`, or square and grey."""
    own = tuple(shards.x.shape[1:])
    side = isqrt(_inputs(shards))
    image = shape or (own if len(own) == 3 else (1, *own) if len(own) == 2 else (1, side, side))
    return models.cnn(image, channels=channels, hidden=hidden, classes=_outputs(shards), kernel=kernel)


def _inputs(shards: Shards) -> int:
    return shards.x[0].numel()


def _outputs(shards: Shards) -> int:
    return shards.classes if shards.classes is not None else shards.y[0].numel()


def _line(thing: object) -> str:
    """The first line of a docstring; of an algorithm, that of its file."""
    text = sys.modules[thing.__module__].__doc__ if inspect.isclass(thing) else inspect.getdoc(thing)
    return (text or "").strip().splitlines()[0]


def _entries(things: dict[str, Any]) -> dict[str, Entry]:
    return {name: Entry(name, thing, _line(thing)) for name, thing in things.items()}


REGISTRY: dict[str, dict[str, Entry]] = {
    "algorithms": _entries(dict(ALGORITHMS)),
    "data": _entries({"digits": data.digits, "synthetic": data.synthetic}),
    "models": _entries({"linear": linear, "mlp": mlp, "cnn": cnn}),
    "codecs": {name: Entry(name, type(codec), _line(type(codec))) for name, codec in CODECS.items()},
}
