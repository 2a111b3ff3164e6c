"""How model rows become bytes on a link: one file per codec, found by name in `CODECS`."""

from difflib import get_close_matches

from covey.codecs.bitmap import Bitmap
from covey.codecs.codec import Codec
from covey.codecs.dense import Dense
from covey.errors import ConfigError

__all__ = ["CODECS", "Bitmap", "Codec", "Dense", "codec"]

CODECS: dict[str, Codec] = {"dense": Dense(), "bitmap": Bitmap()}


def codec(name: str) -> Codec:
    """The codec of this name.

    >>> codec("bitmap")
    Bitmap()
    """
    if name in CODECS:
        return CODECS[name]
    nearest = "".join(f" (did you mean {near!r}?)" for near in get_close_matches(name, CODECS, n=1))
    raise ConfigError(f"there is no codec {name!r}{nearest}; the known ones are {', '.join(CODECS)}.")
