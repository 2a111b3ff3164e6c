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
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from pydantic import BaseModel, Field, field_validator
from torch import nn

from covey import models
from covey.cli.validate import STRICT, spell
from covey.engine.layout import freeze
from covey.errors import ConfigError


class LoraTable(BaseModel):
    """The arguments of `covey.models.lora`."""

    model_config = STRICT
    rank: int = Field(4, ge=1)
    alpha: float | None = Field(None, gt=0, allow_inf_nan=False)
    layers: str | list[str] = "*"
    train: str | list[str] = []

    @field_validator("alpha", mode="before")
    @classmethod
    def _none(cls, alpha: Any) -> Any:
        """Read "none", by which a resolved file says that there is no alpha."""
        if alpha == "none":
            return None
        return alpha


class Pretrained(BaseModel):
    """The options of every model."""

    model_config = STRICT
    weights: str | None = Field(None, pattern=r"\.safetensors$")
    lora: LoraTable | None = None
    frozen: str | list[str] = []


def fields(build: Callable[..., Any]) -> dict[str, Any]:
    """The options that a table may give beside the parameters of what it names, by name."""
    own = inspect.signature(build).parameters
    options = Pretrained.model_fields.items()
    return {name: (field.annotation, field) for name, field in options if name not in own}


def is_silent(name: str, value: Any, build: Callable[..., Any]) -> bool:
    """Whether this is an option of a model, and it is not used."""
    return value in (None, [], "") and name in fields(build)


def without_options(values: Iterable[tuple[str, Any]], build: Callable[..., Any]) -> dict[str, Any]:
    """The values of a table that are parameters of what it names."""
    options = fields(build)
    return {name: value for name, value in values if name not in options}


def prepared(model: nn.Module, options: Mapping[str, Any]) -> nn.Module:
    """The model with the weights of its file, adapters and frozen layers."""
    chosen = Pretrained.model_validate(dict(options))
    if chosen.weights is not None:
        model = models.load_weights(model, chosen.weights)
    if chosen.lora is not None:
        model = models.lora(model, **chosen.lora.model_dump())
    patterns = [chosen.frozen] if isinstance(chosen.frozen, str) else chosen.frozen
    patterns = [pattern for pattern in patterns if pattern]
    if patterns:
        model = freeze(model, patterns)
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
            f'model.weights = {spell(weights)}, but start = "seed" initialises every layer '
            'anew; set start = "module", or freeze layers with model.frozen or model.lora.'
        )
