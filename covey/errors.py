"""The exceptions of covey; every message names the thing, shows the value and says what to do.

CoveyError
├── ConfigError      an experiment that cannot run as described (also a ValueError)
│   ├── TreeError        a tree that is malformed, or has other tiers than the algorithm
│   ├── DataError        examples or labels that cannot be trained on
│   └── ModelError       a module that cannot be a row
├── ProgramError     an algorithm file that breaks the rules of its tier
├── DivergedError    training produced a number that is not finite
├── DecodeError      bytes that are not a message (also a ValueError)
├── CheckpointError  a checkpoint that is corrupt
│   └── OtherExperiment  one that is of another experiment
├── RankError        another process of a sharded run has ended, or does something else
└── TransportError   another node of a deployed tree is refused, or cannot be reached
    └── EvictedError     this node is evicted, until an operator admits it again
"""

import importlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any, TypeGuard


class CoveyError(Exception):
    """The root: `except CoveyError` catches everything covey raises on purpose."""


class ConfigError(CoveyError, ValueError):
    """An experiment that cannot run as described."""


class TreeError(ConfigError):
    """A tree that is malformed, or has other tiers than the algorithm."""


class DataError(ConfigError):
    """Examples or labels that cannot be trained on."""


class ModelError(ConfigError):
    """A module that cannot be a row."""


class ProgramError(CoveyError):
    """An algorithm file that breaks the rules of its tier."""


class DivergedError(CoveyError):
    """Training produced a number that is not finite; the last good state remains."""


class DecodeError(CoveyError, ValueError):
    """Bytes that are not a message."""


class CheckpointError(CoveyError):
    """A checkpoint that is corrupt, or of another experiment."""


class OtherExperiment(CheckpointError):
    """A checkpoint, or the disk of a node, is of another experiment."""


class RankError(CoveyError):
    """Another process of a sharded run has ended, or does something else."""


class TransportError(CoveyError):
    """Another node of a deployed tree is refused, or cannot be reached."""


class EvictedError(TransportError):
    """This node of a deployed tree is evicted, until an operator admits it again."""


def install(extra: str) -> str:
    """How to install the libraries of an extra, for a message; covey is not on PyPI.

    >>> install("deploy")
    "in the clone of covey: pip install '.[deploy]'"
    """
    return f"in the clone of covey: pip install '.[{extra}]'"


def needed(module: str, *, extra: str, to: str) -> Any:
    """A module of a library that covey may lack, or a DataError that says what to install.

    >>> needed("json", extra="hub", to="read this").dumps([1])
    '[1]'
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        library = module.partition(".")[0]
        text = f"To {to}, {library} is needed ({error})"
        raise DataError(f"{text}; {install(extra)}.") from error


@contextmanager
def reading(name: object, remedy: str = "download it again") -> Iterator[None]:
    """What goes wrong while a file is read, as a DataError that names the file."""
    try:
        yield
    except DataError:
        raise
    except UnicodeDecodeError as error:
        raise DataError(f"{name} is not text in UTF-8 ({error.reason}); {remedy}.") from error
    except Exception as error:  # a damaged file can fail in any way
        raise DataError(
            f"{name} cannot be read ({type(error).__name__}: {error}); if it is damaged, {remedy}."
        ) from error


def closest(given: Any, choices: Iterable[str]) -> str | None:
    """The choice that is most like what was given, whatever its case; None where none is.

    >>> closest("Adma", ["sgd", "adam"]), closest("SGD", ["sgd", "adam"])
    ('adam', 'sgd')
    """
    if not isinstance(given, str):
        return None
    by_lower = {choice.lower(): choice for choice in choices}
    close = get_close_matches(given[:100].lower(), by_lower, n=1)
    if not close:
        return None
    return by_lower[close[0]]


def meant(given: Any, choices: Iterable[str]) -> str:
    """What may have been meant by a name that is none of the choices, to follow that name.

    >>> meant("admw", ["sgd", "adam", "adamw"])
    " (did you mean 'adamw'?)"
    >>> meant("lion", ["sgd", "adam", "adamw"])
    ''
    """
    choice = closest(given, choices)
    if choice is None:
        return ""
    return f" (did you mean {choice!r}?)"


def shown(value: Any) -> str:
    """A value for a message, cut where it is long.

    >>> shown("yes"), len(shown("y" * 10_000))
    ("'yes'", 103)
    """
    try:
        text = repr(value)
    except ValueError:  # Python writes no whole number of thousands of digits
        return "a whole number of thousands of digits"
    if len(text) > 100:
        return f"{text[:100]}..."
    return text


def is_number(value: object, *, whole: bool = False) -> TypeGuard[int | float]:
    """Whether this is a number, and not a bool, which Python takes for one.

    >>> is_number(1.5), is_number(1.5, whole=True), is_number(True)
    (True, False, False)
    """
    if isinstance(value, bool):
        return False
    return isinstance(value, int if whole else int | float)
