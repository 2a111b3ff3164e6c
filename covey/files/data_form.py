"""The form of a run's data, as its folder keeps it.

It suffices to bring a new device's data into the same form.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from covey.data import Names, Scaling, Shards
from covey.data.tables.encoding import Encoding
from covey.errors import ConfigError
from covey.files.config import Config

CENSUS = "census"


def is_census(config: Config) -> bool:
    """Whether every device has a file of its own."""
    return config.data.get("name") == CENSUS


@dataclass(frozen=True)
class DataForm:
    """The form of the data: shape of an example, classes (None for regression), names, scaling.

    `tokens` is the number of token ids, None where examples are numbers. `encoding` says how the
    columns of a table with words or gaps become inputs. `yes_no` says that targets are several
    yes-or-no labels, `target` how training scaled those that are numbers.
    """

    name: str
    shape: tuple[int, ...]
    classes: int | None
    names: Names
    scaling: Scaling | None
    tokens: int | None = None
    encoding: Encoding | None = None
    yes_no: bool = False
    target: Scaling | None = None

    @staticmethod
    def of(shards: Shards) -> DataForm:
        """The form of these shards."""
        shape = tuple(shards.x.shape[1:])
        names = [field.name for field in fields(DataForm) if field.name != "shape"]
        return DataForm(shape=shape, **{name: getattr(shards, name) for name in names})

    def as_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        out = vars(self) | {"shape": list(self.shape), "names": asdict(self.names)}
        for name in ("scaling", "encoding", "target"):
            value = getattr(self, name)
            out[name] = None if value is None else value.as_dict()
        return out

    @staticmethod
    def read(path: Path) -> DataForm:
        """What `as_dict` wrote."""
        try:
            facts = json.loads(path.read_text(encoding="utf-8"))
            given = {field.name: facts[field.name] for field in fields(DataForm)}
            names = {key: tuple(value) for key, value in facts["names"].items()}
            given["names"] = Names(**names)
            given["shape"] = tuple(facts["shape"])
            given["encoding"] = Encoding.read(facts["encoding"]) if facts["encoding"] else None
            for name in ("scaling", "target"):
                given[name] = Scaling.read(facts[name])
            return DataForm(**given)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"cannot read {path}: {error!r}; it is written when a run starts."
            ) from error
