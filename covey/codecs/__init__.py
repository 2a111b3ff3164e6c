"""How model rows become bytes on a link: one file per codec, found by name in `CODECS`."""

from dataclasses import MISSING, fields, replace
from difflib import get_close_matches
from typing import Any

from covey.codecs.auto import Auto
from covey.codecs.bitmap import Bitmap
from covey.codecs.codec import Codec
from covey.codecs.coo import Coo
from covey.codecs.dense import Dense
from covey.codecs.quantised import Quantised
from covey.errors import ConfigError

__all__ = ["CODECS", "Auto", "Bitmap", "Codec", "Coo", "Dense", "Quantised", "codec"]

_ALL: tuple[Codec, ...] = (
    *(Dense(), Bitmap(), Coo(), Auto(), Quantised(8), Quantised(4)),
    *(kind(values) for kind in (Dense, Bitmap, Coo) for values in ("f16", "bf16")),
)
CODECS: dict[str, Codec] = {codec.name: codec for codec in _ALL}


def codec(name: str, **options: Any) -> Codec:
    """The codec of this name, with these options.

    >>> codec("bitmap")
    Bitmap(values='own')
    >>> codec("int8", rounding="stochastic", block=64)
    Quantised(bits=8, block=64, rounding='stochastic')
    """
    if name not in CODECS:
        raise ConfigError(f"there is no codec {name!r}{_nearest(name, CODECS)}; the known ones are {', '.join(CODECS)}.")
    plain: Any = CODECS[name]
    free = [field.name for field in fields(plain) if field.default is not MISSING and getattr(plain, field.name) == field.default]
    if unknown := next((option for option in options if option not in free), None):
        known = f"its options are {', '.join(free)}" if free else "it has none"
        raise ConfigError(f"the codec {name!r} has no option {unknown!r}{_nearest(unknown, free)}; {known}.")
    made: Codec = replace(plain, **options) if options else plain
    return made


def _nearest(name: str, known: Any) -> str:
    return "".join(f" (did you mean {near!r}?)" for near in get_close_matches(name, known, n=1))
