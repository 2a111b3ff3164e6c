"""Whose code it is: the user's own files, or those of Python, covey and installed packages."""

from __future__ import annotations

import os
import sysconfig
import traceback
from functools import cache
from pathlib import Path

import numpy
import torch

FAULTS = (Exception, SystemExit)
"""What may come out of a user's code: `sys.exit()` there is a mistake, not an end."""

_INSTALLED = {"site-packages", "dist-packages"}


@cache
def _libraries() -> tuple[str, ...]:
    """The folders of Python, torch, numpy and covey."""
    paths = sysconfig.get_paths()
    python = [paths["stdlib"], paths["platstdlib"], os.path.dirname(os.__file__)]
    packages = [os.path.dirname(file) for file in (torch.__file__, numpy.__file__, __file__)]
    return tuple(dict.fromkeys(os.path.realpath(folder) for folder in python + packages))


def below(path: str, folder: str) -> bool:
    """Whether a path lies in a folder, at any depth.

    >>> below("/home/ann/nets.py", "/home/ann"), below("/home/anna/nets.py", "/home/ann")
    (True, False)
    """
    return Path(path).is_relative_to(folder)


def own_file(file: str | None) -> bool:
    """Whether this is a file of the user's own, wherever a link to it lies.

    >>> own_file(os.__file__), own_file(torch.__file__), own_file("<stdin>"), own_file(None)
    (False, False, False, False)
    """
    if not file or file.startswith("<"):
        return False
    real = os.path.realpath(file)
    if _INSTALLED & {*Path(os.path.abspath(file)).parts, *Path(real).parts}:
        return False
    return not any(below(real, folder) for folder in _libraries())


def told(error: BaseException) -> str:
    """An error in one line, with the last place in the user's own files."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if own_file(frame.filename)]
    place = f" ({os.path.relpath(own[-1].filename)}, line {own[-1].lineno})" if own else ""
    first = next(iter(str(error).splitlines()), "").rstrip(".")
    text = f"{type(error).__name__}: {first}" if first else type(error).__name__
    return f"{text}{place}."
