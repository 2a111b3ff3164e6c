"""The classes that state the options of a file, by the tables that they are of."""

from __future__ import annotations

from typing import Any

from covey import rooms
from covey.engine import augment
from covey.engine.measures import named_losses
from covey.engine.solvers import optimiser
from covey.files import registry
from covey.files.config import Config
from covey.files.pretrained import LoraSettings, PretrainedSettings
from covey.files.tree_config import TreeConfig
from covey.links.spec import LinkSpec
from covey.runs.stopping import EarlyStop

SETTINGS: dict[str, Any] = {
    "experiment": Config,
    "tree": TreeConfig,
    **{f"solver.{name}": kind for name, kind in optimiser.NAMED.items()},
    **{f"loss.{name}": kind for name, kind in named_losses.NAMED.items()},
    **{f"augment.{name}": kind for name, kind in augment.NAMED.items()},
    "stop": EarlyStop,
    "codec": LinkSpec,
    "model": PretrainedSettings,
    "model.lora": LoraSettings,
    **{name: rooms.load(where) for name, where in rooms.added("settings").items()},
}
"""Every table, with the keys that it may have."""

for _name, _kind in SETTINGS.items():
    _line = str(_kind.__doc__).partition("\n")[0]
    registry.REGISTRY["settings"][_name] = registry.Listed(_name, _kind, _line)
