"""New run folders: where one is made, and what its run ran on."""

from __future__ import annotations

import os
import platform
import re
import sys
from pathlib import Path
from typing import Any

import numpy
import safetensors
import torch

import covey
from covey import atomic
from covey.atomic import refused
from covey.errors import ConfigError
from covey.runs.saved.run_folder import RunFolder


def create(path: Path) -> RunFolder:
    """A new run folder.

    A folder that holds anything is refused, except what a run killed at its very start leaves.
    """
    folder = RunFolder(path)
    with refused(path):
        path.mkdir(parents=True, exist_ok=True)
        entries = [entry for entry in path.iterdir() if entry != folder.lock_file]
        if not all(atomic.LEFT.fullmatch(entry.name) for entry in entries):
            raise ConfigError(
                f"{path} is not empty; give another --out, or continue it with --resume {path}."
            )
    return folder


def unused(name: str, algorithm: str) -> Path:
    """runs/NAME-ALGORITHM-1, or the next number that is free.

    The folder is runs/NAME-1 where the name says the algorithm.
    """
    word = re.sub(r"[^A-Za-z0-9_.-]", "-", algorithm)
    says = not name or word.lower() in re.split(r"[-_.]", name.lower())
    base = (name or word) if says else f"{name}-{word}"
    number = 1
    while (path := Path("runs") / f"{base}-{number}").exists():
        number += 1
    return path


def environment(command: list[str]) -> dict[str, Any]:
    """What a run ran on."""
    cuda = None
    if torch.cuda.is_available():
        cuda = torch.cuda.get_device_name()
    packages = (covey, torch, numpy, safetensors)
    versions = {package.__name__: package.__version__ for package in packages}
    versions["python"] = platform.python_version()
    machine = {
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "cuda": cuda,
    }
    return {
        "versions": versions,
        "machine": machine,
        "command": command,
        "executable": sys.executable,
    }
