"""What the table [model] may say of any model: pretrained weights, adapters, frozen layers.

    [model]
    name = "mlp"
    weights = "body.safetensors"               # values for the whole model
    lora = { rank = 4, train = ["5"] }         # adapters; layer 5 trains as a whole
    frozen = ["1"]                             # layers that do not train

A class or function of the user's own that takes a parameter of such a name is given it instead.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from torch import nn

from covey import models
from covey.engine.modules.layout import freeze
from covey.errors import ConfigError
from covey.fields import Count, Match, Option, Positive, options, spelled

Weights = Annotated[str, Match(r".*\.safetensors", "a file .safetensors")]


@dataclass(frozen=True)
class LoraSettings:
    """The arguments of `covey.models.lora`."""

    rank: Count = 4  # of the matrices of an adapter
    alpha: Positive | None = None  # scale of adapters; "none": the rank
    layers: str | tuple[str, ...] = "*"  # those that get adapters
    train: str | tuple[str, ...] = ()  # those that train as a whole


@dataclass(frozen=True)
class PretrainedSettings:
    """The options of every model."""

    weights: Weights | None = None  # a file with values of the whole model
    lora: LoraSettings | None = None  # adapters, which train in place of their layers
    frozen: str | tuple[str, ...] = ()  # layers that do not train


def options_beside(build: Callable[..., Any]) -> dict[str, Option]:
    """The options that a table may give beside the parameters of what it names."""
    own = inspect.signature(build).parameters
    return {name: each for name, each in options(PretrainedSettings).items() if name not in own}


def prepared(model: nn.Module, given: Mapping[str, Any]) -> nn.Module:
    """The model with the weights of its file, adapters and frozen layers."""
    chosen = PretrainedSettings(**given)
    if chosen.weights is not None:
        model = models.load_weights(model, chosen.weights)
    if chosen.lora is not None:
        model = models.lora(model, **vars(chosen.lora))
    frozen = (chosen.frozen,) if isinstance(chosen.frozen, str) else chosen.frozen
    if any(frozen):
        model = freeze(model, list(filter(None, frozen)))
    return model


def check_start(
    model: nn.Module, table: Mapping[str, Any], start: Literal["seed", "module"]
) -> None:
    """An error where every value of the weights' file would be drawn anew."""
    weights = table.get("weights", "none")
    if weights == "none" or start == "module":
        return
    if all(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigError(
            f'model.weights = {spelled(weights)}, but start = "seed" initialises every layer '
            'anew; set start = "module", or freeze layers with model.frozen or model.lora.'
        )
