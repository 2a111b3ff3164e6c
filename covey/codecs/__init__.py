"""How model rows become bytes on a link: one file per codec, found by name in `CODECS`.

Every module of this folder is imported; what stands in its `CODECS` is in that of the folder.
"""

import importlib
import inspect
import pkgutil
from dataclasses import is_dataclass, replace
from typing import Any

from covey import fields
from covey.codecs.auto import Auto
from covey.codecs.bitmap import Bitmap
from covey.codecs.codec import Codec
from covey.codecs.coo import Coo
from covey.codecs.dense import Dense
from covey.codecs.quantised import Quantised
from covey.errors import ConfigError, meant
from covey.fields import values
from covey.installed import Declared, find
from covey.origin import FAULTS, told

__all__ = [
    "CODECS",
    "Auto",
    "Bitmap",
    "Codec",
    "Coo",
    "Dense",
    "Quantised",
    "codec",
    "declared_codec",
]

_FILES = sorted((info.name for info in pkgutil.iter_modules(__path__)), key="dense".__ne__)
_MODULES = [importlib.import_module(f"{__name__}.{name}") for name in _FILES]
CODECS: dict[str, Codec] = {
    codec.name: codec for module in _MODULES for codec in getattr(module, "CODECS", ())
}
"""Every codec by its name."""


def codec(name: str, **options: Any) -> Codec:
    """The codec of this name, with these options.

    >>> codec("bitmap")
    Bitmap(values='own')
    >>> codec("int8", rounding="stochastic", block=64)
    Quantised(bits=8, block=64, rounding='stochastic')
    """
    declared = find("codecs", name, CODECS)
    if declared is None and name not in CODECS:
        raise ConfigError(
            f"there is no codec {name!r}{meant(name, CODECS)}; "
            f"known codecs are {', '.join(CODECS)}."
        )
    plain: Any = CODECS[name] if declared is None else declared_codec(declared)
    schema = fields.options(type(plain)) if is_dataclass(plain) else {}
    # A field that is not at its default is what the name stands for.
    schema = {key: each for key, each in schema.items() if getattr(plain, key) == each.default}
    given = values(schema, options, f"codec {name}.")
    made: Codec = replace(plain, **given) if options else plain
    return made


_METHODS = ("encode", "decode", "nbytes", "lengths", "roundtrip")


def declared_codec(declared: Declared) -> Codec:
    """The codec that an installed package declares.

    It is an object, or a class without required fields.
    """
    thing: Any = declared.load()
    try:
        made: Any = thing() if inspect.isclass(thing) else thing
    except FAULTS as error:
        raise declared.wrong(f"it cannot be made without arguments: {told(error)}") from error
    lacking = [name for name in _METHODS if not callable(getattr(made, name, None))]
    lacking += [name for name in ("name", "lossless", "draws") if not hasattr(made, name)]
    if lacking:
        names = ", ".join(lacking)
        raise declared.wrong(f"it is no codec, for it has no {names} (covey/codecs/codec.py).")
    if made.name != declared.point.name:
        raise declared.wrong(f"the codec is called {made.name!r}; the names must be the same.")
    codec: Codec = made
    return codec
