"""What theory says of an algorithm: a file per paper, by the name of the algorithm's own file.

Such a file has two functions, `advice(a, loss)` and `levers(a, L)`: what the methods of these names
are to a user's algorithm (docs/write-an-algorithm.md).
"""

from collections.abc import Callable
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from covey.kernel.algorithm import Algorithm

_PAPERS = {f"covey.algorithms.{info.name}": info.name for info in iter_modules(__path__)}


def stated_by(algorithm: Algorithm, hook: str) -> Callable[..., Any]:
    """What states the `advice` or the `levers` of an algorithm: its class, its paper or the base.

    A subclass may do something else than its parent, so that it does not inherit these statements.
    """
    own = type(algorithm)
    speaker: Any = Algorithm
    if hook in vars(own):
        speaker = own
    elif own.__module__ in _PAPERS:
        speaker = import_module(f"{__name__}.{_PAPERS[own.__module__]}")
    statement: Callable[..., Any] = getattr(speaker, hook)
    return statement
