"""Libraries that only some readers need, imported when they are needed and not before."""

from __future__ import annotations

import importlib
from typing import Any

from covey.errors import DataError, install


def needed(module: str, *, extra: str, to: str) -> Any:
    """The module of that name, or a DataError that says what to install.

    >>> needed("json", extra="hub", to="read this").dumps([1])
    '[1]'
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        library = module.partition(".")[0]
        text = f"To {to}, {library} is needed ({error})"
        raise DataError(f"{text}; {install(extra)}.") from error
