"""Whose code it is: the user's own files, or those of Python, covey and installed packages."""

from __future__ import annotations

import os
import sysconfig
import traceback
from pathlib import Path

import numpy
import torch

FAULTS = (Exception, SystemExit)
"""What may come out of a user's code: `sys.exit()` there is a mistake, not an end."""

_INSTALLED = {"site-packages", "dist-packages"}
_FOLDERS = [sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")]
_FOLDERS += map(os.path.dirname, [os.__file__, torch.__file__, numpy.__file__, __file__])
_LIBRARIES = set(map(os.path.realpath, _FOLDERS))
"""The folders of Python, torch, numpy and covey."""


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
    parts = {*Path(os.path.abspath(file)).parts, *Path(real).parts}
    if _INSTALLED & parts:
        return False
    return not any(below(real, folder) for folder in _LIBRARIES)


def told(error: BaseException) -> str:
    """An error in one line, with the last line of the user's own files that it passed."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if own_file(frame.filename)]
    text = type(error).__name__
    first_line = next(iter(str(error).splitlines()), "").rstrip(".")
    if first_line:
        text = f"{text}: {first_line}"
    if own:
        last = own[-1]
        text = f"{text} ({os.path.relpath(last.filename)}, line {last.lineno})"
    return f"{text}."
