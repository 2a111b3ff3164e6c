"""The form of a run's data, as its folder keeps it.

It suffices to bring a new device's data into the same form.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
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
        return DataForm(
            shards.name,
            tuple(shards.x.shape[1:]),
            shards.classes,
            shards.names,
            shards.scaling,
            shards.tokens,
            shards.encoding,
            shards.yes_no,
            shards.target,
        )

    def as_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {
            "name": self.name,
            "shape": list(self.shape),
            "classes": self.classes,
            "names": asdict(self.names),
            "scaling": None if self.scaling is None else self.scaling.as_dict(),
            "tokens": self.tokens,
            "encoding": None if self.encoding is None else self.encoding.as_dict(),
            "yes_no": self.yes_no,
            "target": None if self.target is None else self.target.as_dict(),
        }

    @staticmethod
    def read(path: Path) -> DataForm:
        """What `as_dict` wrote."""
        try:
            facts = json.loads(path.read_text(encoding="utf-8"))
            names = Names(**{key: tuple(value) for key, value in facts["names"].items()})
            encoding = Encoding.read(facts["encoding"]) if facts["encoding"] else None
            return DataForm(
                facts["name"],
                tuple(facts["shape"]),
                facts["classes"],
                names,
                Scaling.read(facts["scaling"]),
                facts["tokens"],
                encoding,
                facts["yes_no"],
                Scaling.read(facts["target"]),
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"cannot read {path}: {error!r}; it is written when a run starts."
            ) from error
